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
import math
import random
from collections.abc import Iterator
from importlib.metadata import version

COUNT = 200
Row = dict[str, object]


class Triton:
    """Random layouts of Gluon's, each with what Triton's compiler makes of it."""

    def __init__(self, rng: random.Random) -> None:
        from triton._C.libtriton import gluon_ir, ir
        from triton.experimental.gluon.language import _layouts as gluon
        from triton.experimental.gluon.language.amd import _layouts as amd

        self.rng, self.gluon, self.amd = rng, gluon, amd
        self.context = ir.context()
        ir.load_dialects(self.context)
        self.builder = gluon_ir.GluonOpBuilder(self.context)

    def power(self, low: int, high: int) -> int:
        return 1 << self.rng.randint(low, high)

    def distributed(self, layout, tile: list[int], printed: bool = False, linear: bool = False) -> Row:
        """Which elements registers, lanes and warps hold; as Python, as MLIR or as that answer itself."""
        attribute = layout._to_ir(self.builder)
        found = self.builder.to_linear_layout(attribute, tile)
        kind = str(self.builder.get_distributed_ty(self.builder.get_half_ty(), tile, attribute))
        text = kind[kind.index("#ttg") : -1] if printed else repr(found if linear else layout)
        bases = {"register": found.reg_bases, "lane": found.lane_bases, "warp": found.warp_bases}
        return {"peer": f"triton {version('triton')}", "text": text, "tile": tile, "bases": bases}

    def shared(self, layout, tile: list[int], pads: list, bases: list | None, printed: bool) -> Row:
        """Offsets of elements: those of the linear layout, or of a padded layout's own bases and pads."""
        attribute = layout._to_ir(self.builder)
        offset = bases if pads else self.builder.to_linear_layout(attribute, tile).offset_bases
        kind = str(self.builder.get_shared_mem_desc_ty(self.builder.get_half_ty(), tile, attribute, tile))
        text = kind[kind.index("#ttg") : kind.index(", #ttg.shared_memory")] if printed else repr(layout)
        peer = f"triton {version('triton')}"
        return {"peer": peer, "text": text, "tile": tile, "offset": offset, "pads": pads}

    def blocked(self, rank: int):
        lanes, warps, order = [1] * rank, [1] * rank, list(range(rank))
        for _ in range(5):
            lanes[self.rng.randrange(rank)] *= 2
        for _ in range(self.rng.randint(0, 3)):
            warps[self.rng.randrange(rank)] *= 2
        self.rng.shuffle(order)
        return self.gluon.BlockedLayout([self.power(0, 3) for _ in range(rank)], lanes, warps, order)

    def mma(self):
        warps = [self.power(0, 2), self.power(0, 1)]
        if self.rng.random() < 0.3:
            return self.gluon.NVMMADistributedLayout([3, 0], [4, 1], [16, self.power(3, 7), 16])
        return self.gluon.NVMMADistributedLayout([2, 0], warps, [16, 8])

    def layouts(self) -> Iterator[Row]:
        rng, gluon = self.rng, self.gluon
        for number in range(COUNT):
            kind = number % 4
            tile = [self.power(4, 7), self.power(4, 7)]
            if kind == 0:
                layout = self.blocked(2)
            elif kind == 1:
                layout = self.mma()
            elif kind == 2:
                layout = gluon.DotOperandLayout(rng.randint(0, 1), self.mma(), self.power(0, 2))
                if layout.parent.version[0] == 3:
                    layout = gluon.DotOperandLayout(0, layout.parent, layout.k_width)
            elif rng.random() < 0.5:
                rank = rng.choice([1, 3])
                layout, tile = self.blocked(rank), [self.power(2, 6) for _ in range(rank)]
            else:
                layout = gluon.SliceLayout(rng.randint(0, 1), self.blocked(2))
                tile = [self.power(4, 7)]
            yield self.distributed(layout, tile, linear=number % 8 == 7)

    def amd_layouts(self) -> Iterator[Row]:
        rng, power = self.rng, self.power
        for number in range(COUNT // 2):
            if number % 2:
                shape = rng.choice([[32, 32, 8], [16, 16, 16]])
                layout = self.amd.AMDMFMALayout(
                    rng.choice([3, 4]), shape, rng.random() < 0.5, [power(0, 2), power(0, 2)],
                    element_bitwidth=rng.choice([32, 64]) if shape[0] == 16 else 32,
                    tiles_per_warp=rng.choice([None, [2, 1], [1, 2], [2, 2]]),
                )  # fmt: skip
                k_width = power(2, 4)
            else:
                layout_version = rng.choice([1, 2])
                warps = rng.choice([[[0, 1], [1, 0]], [[1, 0], [2, 0]], [[1, 0], [0, 1]], [[0, 1]]])
                layout = self.amd.AMDWMMALayout(layout_version, rng.random() < 0.5, warps, [])
                k_width = 16 if layout_version == 1 else power(2, 4)
            if rng.random() < 0.5:
                layout = self.gluon.DotOperandLayout(rng.randint(0, 1), layout, k_width)
            yield self.distributed(layout, [power(4, 7), power(4, 7)], printed=number % 4 > 1)

    def batches(self) -> Iterator[Row]:
        """Matrix instructions of three dimensions, the first a batch."""
        rng, power = self.rng, self.power
        for number in range(COUNT // 4):
            warps = [power(0, 2), power(0, 1), power(0, 1)]
            if number % 2:
                shape = rng.choice([[32, 32, 8], [16, 16, 16]])
                tiles = rng.choice([None, [1, 2, 1], [2, 1, 2]])
                layout = self.amd.AMDMFMALayout(3, shape, rng.random() < 0.5, warps, tiles_per_warp=tiles)
            else:
                layout = self.gluon.NVMMADistributedLayout([2, 0], warps, [1, 16, 8])
            if number % 4 > 1:
                layout = self.gluon.DotOperandLayout(rng.randint(0, 1), layout, 2 + number % 2 * 2)
            yield self.distributed(layout, [power(0, 3), power(4, 6), power(4, 6)])

    def shared_layouts(self) -> Iterator[Row]:
        rng, gluon, power, made = self.rng, self.gluon, self.power, 0
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
                # Triton ends the process for tiles narrower than the swizzle or of fewer than eight rows.
                if width and (fast * bits < width * 8 or math.prod(tile) // fast < 8):
                    continue
                layout = gluon.NVMMASharedLayout(width, bits, rank, transposed=transposed)
            else:
                pads = [[power(3, 6), power(0, 3)], [power(7, 9), power(2, 4)]][: rng.randint(1, 2)]
                layout = gluon.PaddedSharedLayout.with_identity_for(pads, tile, order)
            yield self.shared(layout, tile, pads, layout.offset_bases if pads else None, not made % 2)
            made += 1

    def linear_shared_layouts(self) -> Iterator[Row]:
        """Any linear map of offsets to elements, by itself and below pads."""
        rng = self.rng
        for number in range(COUNT // 2):
            tile = [self.power(2, 6), self.power(2, 7)]
            bases = [[1 << k, 0] for k in range(tile[0].bit_length() - 1)]
            bases += [[0, 1 << k] for k in range(tile[1].bit_length() - 1)]
            rng.shuffle(bases)
            for _ in range(0 if number % 2 else rng.randint(0, 8)):  # stays invertible; pads know only units
                one, other = rng.sample(range(len(bases)), 2)
                bases[one] = [a ^ b for a, b in zip(bases[one], bases[other], strict=True)]
            pads: list[list[int]] = []
            if number % 2:
                pads = [[self.power(2, 4), self.power(0, 3)]]
                layout = self.gluon.PaddedSharedLayout(pads, bases, [], tile)
            else:
                layout = self.gluon.SharedLinearLayout(bases)
            yield self.shared(layout, tile, pads, bases, number % 4 > 1)


def cute_shared_layouts(rng: random.Random, count: int, sign: int) -> Iterator[Row]:
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


def cute_layouts(rng: random.Random) -> Iterator[Row]:
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
    rng = random.Random(20261121)
    triton = Triton(rng)
    rows = [*triton.layouts(), *cute_layouts(rng), *triton.amd_layouts()]
    rows += [*triton.shared_layouts(), *cute_shared_layouts(rng, COUNT // 2, 1)]
    rows += triton.linear_shared_layouts()
    rows += [*triton.batches(), *cute_shared_layouts(rng, COUNT // 4, -1)]
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    with open(arguments.out, "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        packed.write(text.encode())
    print(f"wrote {len(rows)} layouts")


if __name__ == "__main__":
    main()
