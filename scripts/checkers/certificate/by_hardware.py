"""Whether TMA, tensor cores and bulk copies reach a tile as a certificate says, with plain loops.

A part of check_certificate.py, for layouts that the hardware reads or writes by itself. Everything is
derived from the rules as the CUDA driver API (cuTensorMapEncodeTiled) and the PTX ISA (shared memory layouts
of wgmma and tcgen05, matrix descriptors, cp.async.bulk) have them, and from nothing of layoutopt.

A tile is (shape, bytes of an element), row-major; a table is the byte offset of every element. Functions
called `wrong_...` return what is wrong, or nothing.
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


def unit_bytes(use, size):
    """Bytes of the tensor map's type: the one named, else the largest part of an element."""
    named = {name: count for count, names in NAMED.items() for name in names.split()}
    return named[use["element"]] if use.get("element") else math.gcd(size, 8)


def repetitions(claim):
    """How often an instruction is executed to reach the tile once."""
    return next(claim[field] for field in ("boxes", "instructions", "copies") if field in claim)


def contiguous(shape, size, table, dim):
    """Whether neighbours along a dimension (None: any) lie side by side."""
    return dim is None or shape[dim] == 1 or table[math.prod(shape[dim + 1 :])] - table[0] == size


def wrong_claim(access, shape, size, packed, table, claim):
    """Whether an access reaches the tile as `claim`, a descriptor of the certificate, has it."""
    engine, use = engine_of(access)
    kind = {"tma": "tensor map", "cp.async.bulk": "bulk copy"}.get(engine, "matrix descriptor")
    if claim["kind"] != kind:
        return f"a {kind} is needed, not a {claim['kind']}"
    if engine == "cp.async.bulk":
        return wrong_copies(use, shape, size, packed, table, claim)
    mode = claim["mode"]
    if mode not in SPANS or use.get("mode") not in (None, mode):
        return f"mode {mode} is not allowed"
    if (claim["code"], claim["alignment_bytes"]) != (CODES[engine][mode], alignment(engine, mode)):
        return f"the code or the alignment of mode {mode}"
    if engine == "tma":
        named = claim["swizzle"] == f"CU_TENSOR_MAP_SWIZZLE_{mode.replace('none', 'NONE')}"
        wrong = "" if named else f"the swizzle of mode {mode} is not {claim['swizzle']}"
        return wrong_tensor_map(use, shape, size, packed, table, claim) or wrong
    return wrong_matrix(access, shape, size, table, claim)


# TMA -------------------------------------------------------------------------------------------


def wrong_tensor_map(use, shape, size, packed, table, claim):
    """The form of a tensor map, then every element of every box."""
    order, box, row = claim["order"], [*claim["box"]], claim["box_dim"][0]
    if use.get("box") is not None and list(use["box"]) != box:
        return f"the box is {use['box']}"
    if order != [*(use.get("order") or range(len(shape)))]:
        return f"the order is {order}"
    box[-1] //= packed
    unit = TYPE_BYTES.get(claim["data_type"].removeprefix("CU_TENSOR_MAP_DATA_TYPE_"))
    rest = [box[d] for d in reversed(order[:-1])]
    same = unit == unit_bytes(use, size) and row * unit == box[order[-1]] * size
    if not same or claim["box_dim"][1:] != rest:
        return "boxDim is another box"
    if max(claim["box_dim"]) > MAX_BOX:
        return f"a box of {claim['box_dim']}"
    starts = claim["box_offsets"]
    blocks = use.get("multicast") or 1  # of a cluster: each copies as many of the boxes
    if (claim["boxes"], claim.get("multicast", 1)) != (len(starts), blocks) or len(starts) % blocks:
        return f"the number of boxes, or of the blocks that copy them: {blocks}"
    return wrong_boxes(order, shape, size, table, SPANS[claim["mode"]], box, starts)


def wrong_boxes(order, shape, size, table, span, box, starts):
    """Whether boxes of these extents lie at `starts`, row-major over the dimensions in `order`.

    Their rows follow one another: those of a swizzle each in a whole span, others without gaps.
    """
    row = box[order[-1]] * size
    if any(extent % part for extent, part in zip(shape, box, strict=True)):
        return "the boxes do not tile"
    if row % 16 or row > (span or row):
        return f"a row of a box has {row} bytes"
    corners = corners_of(order, shape, box)
    if len(corners) != len(starts):
        return f"{len(corners)} boxes, not {len(starts)}"
    pitch = span or row
    if not edges_lie(order, shape, size, table, span, box, pitch, starts[0]):
        return "the edges of the first box do not lie as TMA moves them"
    inside = flat_indices(order, shape, [range(box[d]) for d in order])
    places = [n // box[order[-1]] * pitch + n % box[order[-1]] * size for n in range(len(inside))]
    for corner, start in zip(corners, starts, strict=True):
        if start % 128:
            return f"a box begins at byte {start}"
        for element, place in zip(inside, places, strict=True):
            if table[corner + element] != swizzled(start + place, span):
                return f"element {corner + element} does not lie as TMA moves it"
    return ""


def edges_lie(order, shape, size, table, span, box, pitch, start):
    """Whether the far ends of the first box's edges lie where they should: what most layouts fail at once."""
    step = size
    for d in reversed(order):
        end = (box[d] - 1) * math.prod(shape[d + 1 :])
        if table[end] != swizzled(start + (box[d] - 1) * step, span):
            return False
        step = pitch if d == order[-1] else step * box[d]
    return True


def flat_indices(order, shape, ranges):
    """Row-major indices of the elements in some ranges of the dimensions `order`, the last one fastest."""
    strides = {d: math.prod(shape[d + 1 :]) for d in order}
    found = [0]
    for d, steps in zip(order, ranges, strict=True):
        found = [base + x * strides[d] for base in found for x in steps]
    return found


def corners_of(order, shape, box):
    """The first element of every box, row-major over the dimensions in `order`."""
    return flat_indices(order, shape, [range(0, shape[d], box[d]) for d in order])


def fewest_boxes(use, shape, size, packed, table):
    """The least number of boxes that reach the tile; None where none do."""
    order = [*(use.get("order") or range(len(shape)))]
    asked = [*use["box"]] if use.get("box") else None
    if asked:
        asked[-1] //= packed
    widest = MAX_BOX * unit_bytes(use, size) // size
    limits = [widest if d == order[-1] else MAX_BOX for d in range(len(shape))]
    options = [
        [n for n in range(1, min(extent, most) + 1) if extent % n == 0]
        for extent, most in zip(shape, limits, strict=True)
    ]
    boxes = [asked] if asked else sorted(map(list, itertools.product(*options)), key=math.prod, reverse=True)
    for box in boxes:
        row = box[order[-1]] * size
        for mode, span in SPANS.items():
            allowed = use.get("mode") in (None, mode) and row % 16 == 0 and row <= (span or row)
            first, pitch = swizzled(table[0], span), span or row
            if allowed and edges_lie(order, shape, size, table, span, box, pitch, first):
                starts = [swizzled(table[corner], span) for corner in corners_of(order, shape, box)]
                even = len(starts) % (use.get("multicast") or 1) == 0
                if even and not wrong_boxes(order, shape, size, table, span, box, starts):
                    return len(starts)
    return None


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


def instruction_shape(access, use, shape, size):
    """Rows (M or N) and elements of K of one instruction."""
    extent = math.prod(shape[d] for d in matrix_dims(use, len(shape))[1])
    engine, operand = engine_of(access)[0], access["op"][-1]
    rows = ([64] if engine == "wgmma" else [64, 128]) if operand == "A" else range(8, MAX_BOX + 1, 8)
    if access["of"] in ("i8", "u8") and operand == "B":
        rows = [8, 24, *range(16, MAX_BOX + 1, 16)]
    fitting = [n for n in rows if extent % n == 0 and use.get("rows") in (None, n)]
    return max(fitting, default=0), 32 // size


def wrong_matrix(access, shape, size, table, claim):
    """The form of a matrix descriptor, then every element that an instruction reads."""
    engine, use = engine_of(access)
    k, mn = matrix_dims(use, len(shape))
    rows, depth = instruction_shape(access, use, shape, size)
    if (
        claim["k_dim"] != k
        or claim["shape"] != [rows, depth]
        or claim["major"] not in majors(engine, use, size)
    ):
        return (
            f"an instruction reads {rows}x{depth}, {' or '.join(majors(engine, use, size))}-major, K is x{k}"
        )
    leading, stride = claim["leading_byte_offset"], claim["stride_byte_offset"]
    if (
        any(offset % 16 or offset >> 4 >= 1 << 14 for offset in (leading, stride))
        or claim["base_offset"] != 0
    ):
        return "offsets of the descriptor"
    bits = leading >> 4 << 16 | stride >> 4 << 32 | claim["code"] << (62 if engine == "wgmma" else 61)
    bits |= 1 << 46 if engine == "tcgen05" else 0
    if int(claim["descriptor"], 16) != bits or claim["instructions"] != len(claim["starts"]):
        return "the bits of the descriptor, or the number of instructions"
    along = (claim["major"], leading, stride)
    return wrong_operands(shape, (k, mn), (rows, depth), size, table, claim["mode"], along, claim["starts"])


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


def operands(shape, dims, part):
    """The elements that each instruction reads, row by row: by matrices, rows, K."""
    (k, mn), (high, wide) = dims, part
    rest = [d for d in range(len(shape)) if d != k and d not in mn]
    rows = flat_indices(mn, shape, [range(shape[d]) for d in mn])
    columns = flat_indices([k], shape, [range(shape[k])])
    for base in flat_indices(rest, shape, [range(shape[d]) for d in rest]):
        for r, c in itertools.product(range(0, len(rows), high), range(0, len(columns), wide)):
            yield [base + row + column for row in rows[r : r + high] for column in columns[c : c + wide]]


def wrong_operands(shape, dims, part, size, table, mode, along, starts):
    """Whether one descriptor reads, from each of `starts`, what an instruction should."""
    (major, leading, stride), span = along, SPANS[mode]
    read = list(operands(shape, dims, part))
    if len(read) != len(starts):
        return f"{len(read)} instructions, not {len(starts)}"
    each = itertools.product(*map(range, part))
    places = [inside_matrix(major, span, leading, stride, size, r, c) for r, c in each]
    for elements, start in zip(read, starts, strict=True):
        if start % 16 or (span and start % (8 * span) >= span):
            return f"an instruction begins at byte {start}, inside a pattern"
        for element, place in zip(elements, places, strict=True):
            if table[element] != swizzled(start + place, span):
                return f"element {element} does not lie as the instruction reads it"
    return ""


def reads(access, shape, size, table):
    """The number of instructions that read a matrix by some descriptor; None where there is none."""
    engine, use = engine_of(access)
    dims, part = matrix_dims(use, len(shape)), instruction_shape(access, use, shape, size)
    if not part[0]:
        return None
    read = list(operands(shape, dims, part))
    first, (high, deep) = read[0], part
    for mode, span in SPANS.items():
        if use.get("mode") not in (None, mode):
            continue
        begins = [swizzled(table[elements[0]], span) for elements in read]
        for major in majors(engine, use, size):
            wide = (span or 16) // size
            # Eight rows on, and one span on: (rows, elements of K), where an instruction has them.
            places = ((8, 0), (0, wide)) if major == "K" else ((0, 8), (wide, 0))
            across, along = (
                swizzled(table[first[r * deep + c]], span) - begins[0] if r < high and c < deep else 0
                for r, c in places
            )
            offsets = (across, along) if major == "MN" and span is None else (along, across)
            if any(offset % 16 for offset in offsets):
                continue
            if not wrong_operands(shape, dims, part, size, table, mode, (major, *offsets), begins):
                return len(begins)
    return None


# Copies ----------------------------------------------------------------------------------------


def wrong_copies(use, shape, size, packed, table, claim):
    """Copies of whole rows, each in one piece from a multiple of 16 bytes."""
    each = claim["bytes"]
    if each != use.get("bytes") or each % 16 or each % size or len(table) * size % each:
        return f"copies of {each} bytes"
    step = each // size
    starts = [table[n] for n in range(0, len(table), step)]
    if claim["starts"] != starts or claim["copies"] != len(starts) or claim["alignment_bytes"] != 16:
        return "where the copies begin"
    torn = any(table[n] != starts[n // step] + n % step * size for n in range(len(table)))
    return "a copy is torn, or begins at no multiple of 16" if torn or any(s % 16 for s in starts) else ""


# must_be ---------------------------------------------------------------------------------------


def must_be(names, shape, size, order):
    """The layouts that `must_be` names: what a load of TMA by itself may have, and pages of matrices."""
    major = order[-1] if order else len(shape) - 1
    for engine, mode in itertools.product(CODES, SPANS):
        if not {engine, f"{engine}.{mode}"} & set(names):
            continue
        if engine != "tma":
            yield from pages(engine, mode, shape, size, major)
            continue
        use = {"mode": mode, "order": order}
        boxes = boxed(use, shape, size, 1, [*(order or range(len(shape)))])
        for table in itertools.chain(pages(engine, mode, shape, size, major), boxes):
            if fewest_boxes(use, shape, size, 1, table) is not None:
                yield table


def pages(engine, mode, shape, size, major):
    """Pages of a mode's span, each with all rows of a matrix, if rows are whole spans."""
    others = [d for d in range(len(shape)) if d != major]
    span = SPANS[mode] or (shape[major] * size if engine == "tma" else 16)
    if size & (size - 1) or shape[major] * size % span or span % 16 or (engine != "tma" and not others):
        return
    if engine == "tma" or shape[others[-1]] % 8 == 0:
        box = [span // size if d == major else shape[d] if d in others[-1:] else 1 for d in range(len(shape))]
        yield placed(shape, size, span, SPANS[mode], [*others, major], box, [*others[:-1], major])


# Choice ----------------------------------------------------------------------------------------


def instructions(accesses, shape, size, packed, table):
    """Boxes and matrix instructions that reach the tile once; None where some access does not reach it."""
    total = 0
    for access in accesses:
        engine, use = engine_of(access)
        if engine == "cp.async.bulk":
            found = copies_of(use, size, table)
        elif engine == "tma":
            found = fewest_boxes(use, shape, size, packed, table)
        else:
            found = reads(access, shape, size, table)
        if found is None:
            return None
        total += found
    return total


def layouts(accesses, shape, size, packed):
    """Every layout of whole boxes (of TMA, if it takes part), pages or padded copies that follow one another.

    Of layouts that agree in every bank and in their bytes the one of the fewest boxes stands for all.
    """
    sorted_ = sorted(accesses, key=lambda a: engine_of(a)[0] != "tma")
    engine, use = engine_of(sorted_[0])
    if engine == "cp.async.bulk":
        for each in {engine_of(a)[1].get("bytes"): engine_of(a)[1] for a in accesses}.values():
            yield from padded(each, shape, size)
        return
    if engine == "tma":
        order = [*(use.get("order") or range(len(shape)))]
        yield from boxed(use, shape, size, packed, order)
        return
    k, (mn, *more) = matrix_dims(use, len(shape))
    rest = [d for d in range(len(shape)) if d not in (k, mn)]
    for major in () if more else majors(engine, use, size):  # of rows of several dimensions not all are known
        order = [*rest, *((mn, k) if major == "K" else (k, mn))]
        for mode, span in SPANS.items():
            wide = (span or 16) // size
            if use.get("mode") in (None, mode) and not shape[order[-1]] % wide and not shape[order[-2]] % 8:
                box = [
                    shape[d] if d == order[-2] else wide if d == order[-1] else 1 for d in range(len(shape))
                ]
                yield placed(shape, size, span or 16, span, order, box, [*rest, order[-1]])


def boxed(use, shape, size, packed, order):
    """The layouts of boxes of TMA."""
    inner, divisors = order[-1], lambda n: [k for k in range(1, n + 1) if n % k == 0]
    unit = unit_bytes(use, size)
    for mode, span in SPANS.items():
        if use.get("mode") not in (None, mode) or (span and size & (size - 1)):
            continue
        lines = [n for n in divisors(shape[inner]) if n * size <= min(span or MAX_BOX * unit, MAX_BOX * unit)]
        parts = [[n for n in divisors(extent) if n <= MAX_BOX] for extent in shape]
        parts[inner] = lines
        boxes = sorted(itertools.product(*parts), key=math.prod, reverse=True)
        if use.get("box"):
            boxes = [[*use["box"][:-1], use["box"][-1] // packed]]
        seen = set()
        for box in boxes:
            row, number = box[inner] * size, math.prod(shape) // math.prod(box)
            pitch, period = span or row, 8 * span if span else 128
            volume = math.prod(box) // box[inner] * pitch
            if row % 16 or row > pitch or (number > 1 and volume % 128):
                continue
            cut = [d for d in order if box[d] < shape[d]]
            # Where a box fills whole patterns, their order changes no bank.
            for grid in itertools.permutations(cut) if volume % period else [cut]:
                steps = added(shape, size, pitch, order, box, grid)
                pattern = (row, *(tuple(at % period for at in each) for each in steps))
                if pattern not in seen:
                    seen.add(pattern)
                    yield placed(shape, size, pitch, span, order, box, grid)


class Placed(list):
    """Byte offsets of every element, and the span of the swizzle that they have."""

    def __init__(self, table, span=None):
        super().__init__(table)
        self.span = span

    def flips(self):
        """Bits of the offset that the swizzle flips."""
        return (self.span // 32).bit_length() if self.span else 0

    def alignment(self, accesses):
        """What the base must be a multiple of for all of the accesses."""
        mode = next(name for name, span in SPANS.items() if span == self.span)
        return max(alignment(engine_of(access)[0], mode) for access in accesses)


def placed(shape, size, pitch, span, order, box, grid):
    """Boxes one after the other, slowest dimension of `grid` first; rows `pitch` bytes apart."""
    found = [0]
    for steps in added(shape, size, pitch, order, box, grid):
        found = [at + more for at in found for more in steps]
    return Placed((swizzled(at, span) for at in found), span)


def padded(use, shape, size):
    """Row-major copies of `bytes`, pads of less than 128 bytes in their three fastest steps."""
    count, inside, sizes = use["bytes"] // size, 1, []
    for extent in reversed(shape):
        piece = min(extent, max(1, count // inside))
        if inside * piece > count or extent % piece or count * size != use["bytes"]:
            return
        if piece < extent or inside == count:
            sizes.append(extent // piece)
        inside *= piece
    steps = [pad for pad in range(0, 128, 16) if pad % size == 0]
    for pads in itertools.product(*(steps if i < 3 else [0] for i in range(len(sizes)))):
        stride, starts = use["bytes"], [0]
        for pad, number in zip(pads, sizes, strict=True):
            stride += pad
            starts = [n * stride + start for n in range(number) for start in starts]
            stride *= number
        yield Placed(start + k * size for start in starts for k in range(count))


def copies_of(use, size, table):
    """The number of copies that move the tile; None where one is torn, or begins at no multiple of 16."""
    step = use["bytes"] // size
    starts = table[::step]
    whole = all(at == starts[n // step] + n % step * size for n, at in enumerate(table))
    return len(starts) if whole and not any(start % 16 for start in starts) else None


def added(shape, size, pitch, order, box, grid):
    """What each coordinate adds to the byte offset of such boxes, by dimension."""
    volume = math.prod(box) // box[order[-1]] * pitch
    steps = []
    for d, extent in enumerate(shape):
        number = math.prod(shape[e] // box[e] for e in later(grid, d)) * volume if d in grid else 0
        inner = math.prod(box[e] for e in later(order, d)[:-1]) * pitch if d != order[-1] else size
        steps.append([x // box[d] * number + x % box[d] * inner for x in range(extent)])
    return steps


def later(order, dim):
    """The dimensions that follow one in an order."""
    return list(order)[list(order).index(dim) + 1 :]
