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


def triton_layouts(rng: random.Random) -> Iterator[dict[str, object]]:
    from triton._C.libtriton import gluon_ir, ir
    from triton.experimental.gluon.language import _layouts as gluon

    context = ir.context()
    ir.load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)

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
    rng = random.Random(20261121)
    rows = [*triton_layouts(rng), *cute_layouts(rng)]
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    with open(arguments.out, "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        packed.write(text.encode())
    print(f"wrote {len(rows)} layouts")


if __name__ == "__main__":
    main()
