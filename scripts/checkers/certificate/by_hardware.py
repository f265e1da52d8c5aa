"""Whether TMA, tensor cores and bulk copies reach a tile as a certificate says, with plain loops.

A part of check_certificate.py, for layouts that the hardware reads or writes by itself. Everything is
derived from the rules as the CUDA driver API (cuTensorMapEncodeTiled) and the PTX ISA (shared memory layouts
of wgmma and tcgen05, matrix descriptors, cp.async.bulk) have them, and from nothing of layoutopt.

A tile has a `shape`, bytes of an element (`size`) and elements to a byte (`packed`); a table is the byte
offset of every element, row-major. A way is how an access may reach a tile: a mode with a box, or with what
is contiguous. The descriptor of a way is derived from the table, and a certificate must have the same.
"""

import itertools
import math

SPANS = {"none": None, "32B": 32, "64B": 64, "128B": 128}
CODES = {
    "tma": {"none": 0, "32B": 1, "64B": 2, "128B": 3},
    "wgmma": {"none": 0, "128B": 1, "64B": 2, "32B": 3},
    "tcgen05": {"none": 0, "128B": 2, "64B": 4, "32B": 6},
}
# Types of a tensor map: as the driver spells them, and those a problem may name.
TYPE_BYTES = {
    "UINT8": 1, "UINT16": 2, "FLOAT16": 2, "BFLOAT16": 2, "UINT32": 4, "INT32": 4, "FLOAT32": 4,
    "TFLOAT32": 4, "UINT64": 8, "INT64": 8, "FLOAT64": 8,
}  # fmt: skip
NAMED = {1: "u8 i8 b8 f8 e4m3 e5m2", 2: "u16 i16 b16 f16 bf16", 4: "u32 b32 i32 f32 tf32 f16x2 bf16x2",
         8: "u64 b64 i64 f64"}  # fmt: skip
MAX_BOX = 256


class Unreached(Exception):
    """A way does not reach the tile; the text says why."""


def reached(holds, why):
    if not holds:
        raise Unreached(why)


def engine_of(access):
    """Who does it, and what the file says of it."""
    use = access.get("hardware", access)
    return str(access["op"]).rpartition(".")[0] if access["op"] != "cp.async.bulk" else access["op"], use


def swizzled(address, span):
    """The 16-byte chunk of a row of `span` bytes moves by the number of the 128-byte line."""
    return address if span is None else address ^ address // 128 % (span // 16) * 16


def alignment(engine, mode):
    """What a base must be a multiple of: eight rows of a swizzle; a line for TMA; a chunk."""
    return 8 * SPANS[mode] if SPANS[mode] else 128 if engine == "tma" else 16


def repetitions(claim):
    """How often an instruction is executed to reach the tile once."""
    return next(claim[field] for field in ("boxes", "instructions", "copies") if field in claim)


def contiguous(tile, table, dim):
    """Whether neighbours along a dimension (None: any) lie side by side."""
    return (
        dim is None or tile.shape[dim] == 1 or table[math.prod(tile.shape[dim + 1 :])] - table[0] == tile.size
    )


def flat_indices(order, shape, ranges):
    """Row-major indices of the elements in some ranges of the dimensions `order`, the last one fastest."""
    strides = {d: math.prod(shape[d + 1 :]) for d in order}
    found = [0]
    for d, steps in zip(order, ranges, strict=True):
        found = [base + x * strides[d] for base in found for x in steps]
    return found


def wrong_claim(access, tile, table, claim):
    """What is wrong with `claim`, the certificate's descriptor of an access; nothing where nothing is."""
    engine, use = engine_of(access)
    kind, fields, ways, described = ENGINES[engine]
    if claim["kind"] != kind:
        return f"a {kind} is needed, not a {claim['kind']}"
    way, unused = tuple(claim[field] for field in fields), ()
    if way not in ways(access, tile):
        return f"no {kind} of {' and '.join(map(str, way))} is allowed"
    if kind == "matrix descriptor":
        unused = claim["leading_byte_offset"], claim["stride_byte_offset"]
    elif engine == "tma":
        unit = TYPE_BYTES.get(claim["data_type"].removeprefix("CU_TENSOR_MAP_DATA_TYPE_"))
        if unit != unit_bytes(use, tile.size):
            return f"the data type {claim['data_type']}"
    try:
        found = described(access, tile, table, *way, *unused)
    except Unreached as why:
        return str(why)
    if "mode" in fields:
        found |= {"code": CODES[engine][way[0]], "alignment_bytes": alignment(engine, way[0])}
    wrong = [field for field, value in found.items() if claim.get(field, 1) != value]
    return f"{wrong[0]} is {claim.get(wrong[0])}, it should be {found[wrong[0]]}" if wrong else ""


def instructions(accesses, tile, table):
    """Boxes, matrix instructions and copies that reach the tile; None where some access does not."""
    total = 0
    for access in accesses:
        _, _, ways, described = ENGINES[engine_of(access)[0]]
        for way in ways(access, tile):  # of tensor maps, by rising number of boxes
            try:
                total += repetitions(described(access, tile, table, *way))
                break
            except Unreached:
                continue
        else:
            return None
    return total


# TMA -------------------------------------------------------------------------------------------


def boxes_of(access, tile):
    """Modes and boxes that tile the shape, in the file's elements; larger boxes first."""
    _, use = engine_of(access)
    order = dims_of(use, tile)
    unit, inner = unit_bytes(use, tile.size), order[-1]
    most = [MAX_BOX * unit // tile.size if d == inner else MAX_BOX for d in range(len(order))]
    sides = [
        [n for n in range(1, min(pair) + 1) if pair[0] % n == 0]
        for pair in zip(tile.shape, most, strict=True)
    ]
    if use.get("box"):
        asked = [*use["box"][:-1], use["box"][-1] // tile.packed]
        sides = [[n] if n in side else [] for n, side in zip(asked, sides, strict=True)]
    for box in sorted(itertools.product(*sides), key=math.prod, reverse=True):
        row = box[inner] * tile.size
        for mode, span in SPANS.items():
            if use.get("mode") in (None, mode) and row % 16 == 0 and row <= (span or row):
                yield mode, [*box[:-1], box[-1] * tile.packed]


def dims_of(use, tile):
    """Dimensions of a tensor, slowest first."""
    return [*(use.get("order") or range(len(tile.shape)))]


def unit_bytes(use, size):
    """Bytes of the tensor map's type: the one named, else the largest part of an element."""
    named = {name: count for count, names in NAMED.items() for name in names.split()}
    return named[use["element"]] if use.get("element") else math.gcd(size, 8)


def tensor_map(access, tile, table, mode, box):
    """The tensor map of a mode and a box. Rows of a swizzle lie each in a whole span, others without gaps."""
    _, use = engine_of(access)
    order, span, size = dims_of(use, tile), SPANS[mode], tile.size
    inside = [*box[:-1], box[-1] // tile.packed]
    row = inside[order[-1]]
    pitch, blocks = span or row * size, use.get("multicast") or 1
    first, step = swizzled(table[0], span), size
    for d in reversed(order):  # the far end of each edge of the first box: what most layouts fail at once
        end = (inside[d] - 1) * math.prod(tile.shape[d + 1 :])
        lies = table[end] == swizzled(first + (inside[d] - 1) * step, span)
        reached(lies, f"element {end} does not lie as TMA moves it")
        step = pitch if d == order[-1] else step * inside[d]
    corners = flat_indices(order, tile.shape, [range(0, tile.shape[d], inside[d]) for d in order])
    starts = [swizzled(table[corner], span) for corner in corners]
    reached(len(starts) % blocks == 0, f"{len(starts)} boxes, copied by {blocks} blocks")
    elements = flat_indices(order, tile.shape, [range(inside[d]) for d in order])
    for corner, start in zip(corners, starts, strict=True):
        reached(start % 128 == 0, f"a box begins at byte {start}")
        for n, element in enumerate(elements):
            lies = swizzled(start + n // row * pitch + n % row * size, span) == table[corner + element]
            reached(lies, f"element {corner + element} does not lie as TMA moves it")
    sides = [row * size // unit_bytes(use, size), *(inside[d] for d in reversed(order[:-1]))]
    return {
        "swizzle": f"CU_TENSOR_MAP_SWIZZLE_{mode.replace('none', 'NONE')}", "order": order, "box_dim": sides,
        "box_offsets": starts, "boxes": len(starts), "multicast": blocks,
    }  # fmt: skip


# Matrices --------------------------------------------------------------------------------------


def matrix_dims(use, dims):
    """Which dimension is K, and which are M or N, slowest first: the last two, or what the file says."""
    k = use.get("k")
    if k is None:
        k = dims - 2 if use.get("major") == "MN" else dims - 1
    return k, use.get("mn") or [dims - 2 if k == dims - 1 else dims - 1]


def majors(engine, use, size):
    """Which of the two may be contiguous."""
    if use.get("major") is not None:
        return (use["major"],)
    either = use.get("k") is not None and size in ((2,) if engine == "wgmma" else (1, 2))
    return ("K", "MN") if either else ("K",)


def majors_of(access, tile):
    """Modes, and what may be contiguous; none where no instruction has rows that fit."""
    engine, use = engine_of(access)
    if instruction_shape(access, tile)[0]:
        for mode, major in itertools.product(SPANS, majors(engine, use, tile.size)):
            if use.get("mode") in (None, mode):
                yield mode, major


def instruction_shape(access, tile):
    """Rows (M or N) and elements of K of one instruction."""
    (engine, use), operand = engine_of(access), access["op"][-1]
    extent = math.prod(tile.shape[d] for d in matrix_dims(use, len(tile.shape))[1])
    rows = ([64] if engine == "wgmma" else [64, 128]) if operand == "A" else range(8, MAX_BOX + 1, 8)
    if access["of"] in ("i8", "u8") and operand == "B":
        rows = [8, 24, *range(16, MAX_BOX + 1, 16)]
    fitting = [n for n in rows if extent % n == 0 and use.get("rows") in (None, n)]
    return max(fitting, default=0), 32 // tile.size


def matrix(access, tile, table, mode, major, *unused):
    """The matrix descriptor of a mode; `unused`: its leading and stride offset, where they say nothing."""
    engine, use = engine_of(access)
    shape, span, (k, mn) = instruction_shape(access, tile), SPANS[mode], matrix_dims(use, len(tile.shape))
    read = list(operands(tile.shape, k, mn, shape))
    starts = [swizzled(table[elements[0]], span) for elements in read]
    # Eight rows on, and one span on: (rows, elements of K), where an instruction has them.
    wide = (span or 16) // tile.size
    steps = ((0, wide), (8, 0)) if major == "K" else ((wide, 0), (0, 8))
    steps = steps[::-1] if major == "MN" and span is None else steps
    leading, stride = (
        swizzled(table[read[0][r * shape[1] + c]], span) - starts[0]
        if r < shape[0] and c < shape[1]
        else told
        for (r, c), told in zip(steps, unused or (0, 0), strict=True)
    )
    fields = all(offset % 16 == 0 and 0 <= offset >> 4 < 1 << 14 for offset in (leading, stride))
    reached(fields, f"offsets of {leading} and {stride} bytes")
    inside = [
        inside_matrix(major, span, leading, stride, tile.size, *place)
        for place in itertools.product(*map(range, shape))
    ]
    for elements, start in zip(read, starts, strict=True):
        whole = start % 16 == 0 and not (span and start % (8 * span) >= span)
        reached(whole, f"an instruction begins at byte {start}, inside a pattern")
        for element, place in zip(elements, inside, strict=True):
            lies = table[element] == swizzled(start + place, span)
            reached(lies, f"element {element} does not lie as the instruction reads it")
    bits = leading >> 4 << 16 | stride >> 4 << 32 | CODES[engine][mode] << (62 if engine == "wgmma" else 61)
    bits |= 1 << 46 if engine == "tcgen05" else 0
    return {
        "k_dim": k, "shape": [*shape], "leading_byte_offset": leading, "stride_byte_offset": stride,
        "base_offset": 0, "descriptor": f"{bits:#018x}", "starts": starts, "instructions": len(starts),
    }  # fmt: skip


def inside_matrix(major, span, leading, stride, size, r, c):
    """Byte of row r (M or N) and column c (K) in what one instruction reads: the canonical layouts.

    Core matrices are 8 rows of 16 bytes; with a swizzle, 8 rows of its span.
    """
    if major == "MN":
        r, c = c, r
    wide = (span or 16) // size
    inner = r % 8 * (span or 16) + c % wide * size
    across, along = r // 8, c // wide
    if major == "MN" and span is None:
        return inner + across * leading + along * stride
    return inner + across * stride + along * leading


def operands(shape, k, mn, part):
    """The elements that each instruction reads, row by row: by matrices, rows, K."""
    high, wide = part
    rest = [d for d in range(len(shape)) if d != k and d not in mn]
    rows = flat_indices(mn, shape, [range(shape[d]) for d in mn])
    columns = flat_indices([k], shape, [range(shape[k])])
    for base in flat_indices(rest, shape, [range(shape[d]) for d in rest]):
        for r, c in itertools.product(range(0, len(rows), high), range(0, len(columns), wide)):
            yield [base + row + column for row in rows[r : r + high] for column in columns[c : c + wide]]


# Copies ----------------------------------------------------------------------------------------


def copied(access, tile):
    """The bytes of one copy, where whole ones make the tile."""
    each = engine_of(access)[1].get("bytes")
    if each and each % 16 == 0 and each % tile.size == 0 and math.prod(tile.shape) * tile.size % each == 0:
        yield (each,)


def copies(access, tile, table, each):
    """Copies of whole rows, each in one piece from a multiple of 16 bytes."""
    step = each // tile.size
    starts = table[::step]
    torn = any(at != starts[n // step] + n % step * tile.size for n, at in enumerate(table))
    reached(
        not torn and not any(start % 16 for start in starts), "a copy is torn, or begins at no multiple of 16"
    )
    return {"starts": starts, "copies": len(starts), "alignment_bytes": 16}


# Kind of descriptor, the fields of it that are a way, all ways that the file allows, the descriptor of one.
ENGINES = {
    "tma": ("tensor map", ("mode", "box"), boxes_of, tensor_map),
    "wgmma": ("matrix descriptor", ("mode", "major"), majors_of, matrix),
    "tcgen05": ("matrix descriptor", ("mode", "major"), majors_of, matrix),
    "cp.async.bulk": ("bulk copy", ("bytes",), copied, copies),
}
