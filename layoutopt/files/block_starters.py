"""Starting files for whole blocks: several tiles, from global memory to the result."""

from __future__ import annotations

from typing import Any, Final

from layoutopt.errors import ProblemFileError
from layoutopt.files.starters import Options
from layoutopt.hardware.devices import device
from layoutopt.problems.types import ELEMENT_BYTES, SCHEMA

_OPERANDS: Final = ("f16", "bf16", "f32", "e4m3", "e5m2")
_WARPGROUP: Final = 128
_ROWS: Final = 64  # M of wgmma
_SPAN_BYTES: Final = 128  # of a stage along K: whole rows of the widest mode
_MOST_STAGES: Final = 8
_OTHER_BYTES: Final = 1024  # barriers, and what aligns the start of dynamic shared memory


def hopper(options: Options, stages: int | None) -> dict[str, Any]:
    """A matrix product: TMA in, wgmma of consumers beside a producer, stmatrix and TMA out.

    Args:
        options: `tile` is M and N of the result.
        stages: of A and B; None for as many as fit, at most 8.

    Raises:
        ProblemFileError: the options fit no such kernel; `field` is the option.
    """
    gpu = device(options.target)
    if not gpu.has("wgmma"):
        raise ProblemFileError("--target", f"{options.target} has no wgmma")
    element = options.element or "f16"
    if element not in _OPERANDS:
        raise ProblemFileError("--element", f"wgmma multiplies {', '.join(_OPERANDS)}, not {element!r}")
    rows, columns = _extents(options)
    consumers = 2 if rows % (2 * _ROWS) == 0 else 1
    threads = _WARPGROUP * (1 + consumers)
    if options.threads not in (None, threads):
        raise ProblemFileError(
            "--threads", f"{consumers} warpgroups of consumers and a producer are {threads} threads"
        )
    depth = _SPAN_BYTES // ELEMENT_BYTES[element]
    limits = gpu.limits_of(options.target)
    room = 0 if limits is None else limits.shared_bytes_per_block - _OTHER_BYTES
    fitting = (room - 2 * rows * columns) // ((rows + columns) * _SPAN_BYTES)
    if fitting < (stages or 1):
        raise ProblemFileError(
            "--stages" if stages else "--tile", f"{max(0, fitting)} stages fit beside the result"
        )
    count = stages or min(fitting, _MOST_STAGES)
    result = element if element in ("f16", "bf16") else "bf16"
    return {
        "schema": SCHEMA,
        "name": options.name or "hopper",
        "notes": f"A block of a matrix product on Hopper, {rows}x{columns}x{depth}: a producer warpgroup and "
        f"{consumers} of consumers. Both operands lie along K; B is n by k.",
        "target": options.target,
        "threads": threads,
        "tiles": [
            {"name": "A", "shape": [rows, depth], "element": element, "stages": count},
            {"name": "B", "shape": [columns, depth], "element": element, "stages": count},
            {"name": "D", "shape": [rows, columns], "element": result},
        ],
        "block": {"other_shared_bytes": _OTHER_BYTES},
        "accesses": _accesses(rows // _ROWS // consumers, columns, consumers),
    }


def _extents(options: Options) -> tuple[int, int]:
    tile = options.tile or (128, 128)
    if len(tile) != 2 or tile[0] % _ROWS or tile[1] % 16 or tile[1] > 256:
        raise ProblemFileError(
            "--tile", f"M a multiple of {_ROWS} and N a multiple of 16, at most 256, such as 128x128"
        )
    return tile[0], tile[1]


def _accesses(repeat: int, columns: int, consumers: int) -> list[dict[str, Any]]:
    stores = {
        "tile": "D", "name": "accumulators", "op": "stmatrix.x4", "fragment": "wgmma.m64n8k16.C.f32",
        "warps": [consumers, 1], "first_warp": _WARPGROUP // 32,
        "repeat": {"n": columns // 8, **({"m": repeat} if repeat > 1 else {})},
        "notes": "converted to D's element; the consumers lie one behind the other along m",
    }  # fmt: skip
    return [
        {"tile": "A", "name": "fill A", "op": "tma.load"},
        {"tile": "A", "name": "operand A", "op": "wgmma.A"},
        {"tile": "B", "name": "fill B", "op": "tma.load"},
        {"tile": "B", "name": "operand B", "op": "wgmma.B"},
        stores,
        {"tile": "D", "name": "store D", "op": "tma.store"},
    ]


BLOCKS: Final = {"hopper": hopper}
