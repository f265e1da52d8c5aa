"""Record what Triton and CuTe themselves say of random layouts: tests/data/peer_layouts.jsonl.gz.

    pip install triton nvidia-cutlass
    python scripts/checkers/record_peers.py --out tests/data/peer_layouts.jsonl.gz

Triton's answer is the linear layout that its compiler computes (GluonOpBuilder.to_linear_layout); CuTe's
is pycute's evaluation of the layout at every thread and value. Needs no GPU and not layoutopt.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Iterator
from importlib.metadata import version

COUNT = 200


def triton_layouts(rng: random.Random, builder) -> Iterator[dict[str, object]]:
    from triton.experimental.gluon.language import _layouts as gluon

    def power(low: int, high: int) -> int:
        return 1 << rng.randint(low, high)

    def blocked(rank: int):
        lanes = [1] * rank
        for _ in range(5):
            lanes[rng.randrange(rank)] *= 2
        warps = [1] * rank
        for _ in range(rng.randint(0, 3)):
            warps[rng.randrange(rank)] *= 2
        order = list(range(rank))
        rng.shuffle(order)
        return gluon.BlockedLayout([power(0, 3) for _ in range(rank)], lanes, warps, order)

    def mma():
        warps = [power(0, 2), power(0, 1)]
        if rng.random() < 0.3:
            return gluon.NVMMADistributedLayout([3, 0], [4, 1], [16, power(3, 7), 16])
        return gluon.NVMMADistributedLayout([2, 0], warps, [16, 8])

    for number in range(COUNT):
        kind = number % 4
        tile = [power(4, 7), power(4, 7)]
        if kind == 0:
            layout = blocked(2)
        elif kind == 1:
            layout = mma()
        elif kind == 2:
            layout = gluon.DotOperandLayout(rng.randint(0, 1), mma(), power(0, 2))
            if layout.parent.version[0] == 3:
                layout = gluon.DotOperandLayout(0, layout.parent, layout.k_width)
        elif rng.random() < 0.5:
            rank = rng.choice([1, 3])
            layout, tile = blocked(rank), [power(2, 6) for _ in range(rank)]
        else:
            layout, tile = gluon.SliceLayout(rng.randint(0, 1), blocked(2)), [power(4, 7)]
        linear = builder.to_linear_layout(layout._to_ir(builder), tile)
        text = repr(layout)
        if number % 8 == 7:  # the answer is itself a layout that Gluon prints
            text = repr(linear)
        bases = {"register": linear.reg_bases, "lane": linear.lane_bases, "warp": linear.warp_bases}
        yield {"peer": f"triton {version('triton')}", "text": text, "tile": tile, "bases": bases}


def triton_amd_layouts(rng: random.Random, builder) -> Iterator[dict[str, object]]:
    from triton.experimental.gluon.language import _layouts as gluon
    from triton.experimental.gluon.language.amd import _layouts as amd

    def power(low: int, high: int) -> int:
        return 1 << rng.randint(low, high)

    for number in range(COUNT // 2):
        if number % 2:
            shape = rng.choice([[32, 32, 8], [16, 16, 16]])
            layout = amd.AMDMFMALayout(
                rng.choice([3, 4]), shape, rng.random() < 0.5, [power(0, 2), power(0, 2)],
                element_bitwidth=rng.choice([32, 64]) if shape[0] == 16 else 32,
                tiles_per_warp=rng.choice([None, [2, 1], [1, 2], [2, 2]]),
            )  # fmt: skip
            k_width = power(2, 4)
        else:
            layout_version = rng.choice([1, 2])
            warps = rng.choice([[[0, 1], [1, 0]], [[1, 0], [2, 0]], [[1, 0], [0, 1]], [[0, 1]]])
            layout = amd.AMDWMMALayout(layout_version, rng.random() < 0.5, warps, [])
            k_width = 16 if layout_version == 1 else power(2, 4)
        if rng.random() < 0.5:
            layout = gluon.DotOperandLayout(rng.randint(0, 1), layout, k_width)
        tile = [power(4, 7), power(4, 7)]
        attribute = layout._to_ir(builder)
        linear = builder.to_linear_layout(attribute, tile)
        printed = str(builder.get_distributed_ty(builder.get_half_ty(), tile, attribute))
        text = repr(layout) if number % 4 < 2 else printed[printed.index("#ttg") : -1]
        bases = {"register": linear.reg_bases, "lane": linear.lane_bases, "warp": linear.warp_bases}
        yield {"peer": f"triton {version('triton')}", "text": text, "tile": tile, "bases": bases}


def triton_batches(rng: random.Random, builder) -> Iterator[dict[str, object]]:
    """Matrix instructions of three dimensions, the first a batch."""
    from triton.experimental.gluon.language import _layouts as gluon
    from triton.experimental.gluon.language.amd import _layouts as amd

    def power(low: int, high: int) -> int:
        return 1 << rng.randint(low, high)

    for number in range(COUNT // 4):
        warps = [power(0, 2), power(0, 1), power(0, 1)]
        if number % 2:
            shape = rng.choice([[32, 32, 8], [16, 16, 16]])
            tiles = rng.choice([None, [1, 2, 1], [2, 1, 2]])
            layout = amd.AMDMFMALayout(3, shape, rng.random() < 0.5, warps, tiles_per_warp=tiles)
        else:
            layout = gluon.NVMMADistributedLayout([2, 0], warps, [1, 16, 8])
        if number % 4 > 1:
            layout = gluon.DotOperandLayout(rng.randint(0, 1), layout, 2 + number % 2 * 2)
        tile = [power(0, 3), power(4, 6), power(4, 6)]
        linear = builder.to_linear_layout(layout._to_ir(builder), tile)
        bases = {"register": linear.reg_bases, "lane": linear.lane_bases, "warp": linear.warp_bases}
        yield {"peer": f"triton {version('triton')}", "text": repr(layout), "tile": tile, "bases": bases}


def triton_shared_layouts(rng: random.Random, builder) -> Iterator[dict[str, object]]:
    """Offsets of elements: those of the linear layout, or of a padded layout's own bases and pads."""
    from triton.experimental.gluon.language import _layouts as gluon

    def power(low: int, high: int) -> int:
        return 1 << rng.randint(low, high)

    made = 0
    while made < COUNT:
        rank = rng.choice([2, 2, 2, 3])
        tile = [power(1, 7) for _ in range(rank)]
        order = list(range(rank))
        rng.shuffle(order)
        pads: list[list[int]] = []
        if made % 3 == 0:
            layout = gluon.SwizzledSharedLayout(power(0, 4), power(0, 3), power(0, 4), order)
        elif made % 3 == 1:
            width, bits = rng.choice([0, 32, 64, 128]), rng.choice([8, 16, 32])
            transposed = rank == 2 and rng.random() < 0.5
            fast = tile[0 if transposed else -1]
            elements = 1
            for extent in tile:
                elements *= extent
            # Triton ends the process for tiles narrower than the swizzle or of fewer than eight rows.
            if width and (fast * bits < width * 8 or elements // fast < 8):
                continue
            layout = gluon.NVMMASharedLayout(width, bits, rank, transposed=transposed)
        else:
            pads = [[power(3, 6), power(0, 3)], [power(7, 9), power(2, 4)]][: rng.randint(1, 2)]
            layout = gluon.PaddedSharedLayout.with_identity_for(pads, tile, order)
        attribute = layout._to_ir(builder)
        bases = layout.offset_bases if pads else builder.to_linear_layout(attribute, tile).offset_bases
        printed = str(builder.get_shared_mem_desc_ty(builder.get_half_ty(), tile, attribute, tile))
        text = (
            repr(layout)
            if made % 2
            else printed[printed.index("#ttg") : printed.index(", #ttg.shared_memory")]
        )
        yield {
            "peer": f"triton {version('triton')}", "text": text, "tile": tile, "offset": bases, "pads": pads
        }  # fmt: skip
        made += 1


def triton_linear_shared_layouts(rng: random.Random, builder) -> Iterator[dict[str, object]]:
    """Any linear map of offsets to elements, by itself and below pads."""
    from triton.experimental.gluon.language import _layouts as gluon

    for number in range(COUNT // 2):
        tile = [1 << rng.randint(2, 6), 1 << rng.randint(2, 7)]
        bases = [[1 << k, 0] for k in range(tile[0].bit_length() - 1)]
        bases += [[0, 1 << k] for k in range(tile[1].bit_length() - 1)]
        rng.shuffle(bases)
        for _ in range(0 if number % 2 else rng.randint(0, 8)):  # stays invertible; pads know only units
            one, other = rng.sample(range(len(bases)), 2)
            bases[one] = [a ^ b for a, b in zip(bases[one], bases[other], strict=True)]
        pads: list[list[int]] = []
        if number % 2:
            pads = [[1 << rng.randint(2, 4), 1 << rng.randint(0, 3)]]
            layout = gluon.PaddedSharedLayout(pads, bases, [], tile)
        else:
            layout = gluon.SharedLinearLayout(bases)
        attribute = layout._to_ir(builder)
        found = bases if pads else builder.to_linear_layout(attribute, tile).offset_bases
        printed = str(builder.get_shared_mem_desc_ty(builder.get_half_ty(), tile, attribute, tile))
        text = printed[printed.index("#ttg") : printed.index(", #ttg.shared_memory")]
        yield {
            "peer": f"triton {version('triton')}", "text": repr(layout) if number % 4 < 2 else text,
            "tile": tile, "offset": found, "pads": pads,
        }  # fmt: skip


def cute_shared_layouts(rng: random.Random, count: int, sign: int) -> Iterator[dict[str, object]]:
    """Swizzles over layouts of rows or of columns, whole or in blocks; `sign` is that of their shifts."""
    from pycute import ComposedLayout, Layout, Swizzle

    made = 0
    while made < count:
        rows, columns = 1 << rng.randint(2, 5), 1 << rng.randint(2, 6)
        inner = 1 << rng.randint(2, columns.bit_length() - 1)
        plain = rng.choice([
            Layout((rows, columns), (columns, 1)),
            Layout((rows, columns), (1, rows)),
            Layout((rows, (inner, columns // inner)), (inner, (1, rows * inner))),
        ])  # fmt: skip
        bits, base = rng.randint(1, 3), rng.randint(0, 4)
        shift = rng.randint(bits, 4) * sign
        if bits + base + abs(shift) > (rows * columns).bit_length() - 1:
            continue
        layout = ComposedLayout(Swizzle(bits, base, shift), 0, plain)
        printed = f"Sw<{bits},{base},{shift}> o _0 o {plain.shape}:{plain.stride}".replace("(", "(_", 1)
        text = str(layout) if made % 2 else printed
        table = [[layout(r, c) for c in range(columns)] for r in range(rows)]
        peer = f"pycute {version('nvidia-cutlass')}"
        yield {"peer": peer, "text": text, "tile": [rows, columns], "offsets": table}
        made += 1


def cute_layouts(rng: random.Random) -> Iterator[dict[str, object]]:
    """Random factorings of a tile into digits, dealt out to threads and values in random order."""
    from pycute import Layout, product

    for _ in range(COUNT):
        tile = [rng.choice([4, 6, 8, 12, 16, 32]), rng.choice([4, 8, 10, 16, 32])]
        digits, stride = [], 1
        left = tile[0] * tile[1]
        while left > 1:
            size = rng.choice([d for d in range(2, left + 1) if left % d == 0 and (d <= 16 or d == left)])
            digits.append((size, stride))
            stride *= size
            left //= size
        rng.shuffle(digits)
        cut = rng.randint(1, len(digits))
        if rng.random() < 0.3:
            digits.insert(0, (2, 0))  # threads that share
        modes = []
        for part in (digits[:cut], digits[cut:] or [(1, 0)]):
            shape, strides = tuple(d[0] for d in part), tuple(d[1] for d in part)
            if len(part) > 2 and rng.random() < 0.5:  # nested
                shape, strides = ((shape[0], shape[1]), *shape[2:]), ((strides[0], strides[1]), *strides[2:])
            modes.append((shape, strides) if len(part) > 1 else (shape[0], strides[0]))
        layout = Layout(tuple(m[0] for m in modes), tuple(m[1] for m in modes))
        threads, values = product(layout.shape[0]), product(layout.shape[1])
        table = [[layout(t, v) for v in range(values)] for t in range(threads)]
        text = f"{layout.shape}:{layout.stride}".replace(" ", "").replace(",)", ")")
        yield {"peer": f"pycute {version('nvidia-cutlass')}", "text": text, "tile": tile, "table": table}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    from triton._C.libtriton import gluon_ir, ir

    context = ir.context()
    ir.load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)
    rng = random.Random(20261121)
    rows = [*triton_layouts(rng, builder), *cute_layouts(rng), *triton_amd_layouts(rng, builder)]
    rows += [*triton_shared_layouts(rng, builder), *cute_shared_layouts(rng, COUNT // 2, 1)]
    rows += triton_linear_shared_layouts(rng, builder)
    rows += [*triton_batches(rng, builder), *cute_shared_layouts(rng, COUNT // 4, -1)]
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    with open(arguments.out, "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        packed.write(text.encode())
    print(f"wrote {len(rows)} layouts")


if __name__ == "__main__":
    main()
