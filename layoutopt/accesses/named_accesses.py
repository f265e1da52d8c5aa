"""Named accesses: matrix fragments, copies, covers and arrays, written out as ordinary accesses.

    {"name": "A", "op": "ldmatrix.x4", "fragment": "mma.m16n8k16.A.f16",
     "warps": [4, 2], "repeat": {"m": 2, "k": 4}}
    {"name": "fill", "op": "cp.async", "copy": {"bytes": 16, "threads": 256}}
    {"name": "drain", "op": "load", "bytes": 4, "lanes": "free", "global": {"contiguous": 32}}

Accesses by arrays (`layoutopt.accesses.array_access`) and what the hardware does by itself
(`layoutopt.accesses.hardware_access`) are named, too. They exist in problem files only: `expand` replaces
each by an `Access` with index expressions before anything else reads the problem. What lane holds what is
data (`hardware/fragments.json`, from the PTX ISA and from AMD's tables). A fragment's `index` is over its
coordinates m, n, k beside the usual variables, so `["n", "k"]` is a B tile stored by columns of B,
`["s", "m", "k"]` one stage of several, and `["m // 8", "m % 8 + r", "k"]` an implicit GEMM.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from layoutopt.accesses import array_access, copy_access, cover_access, fragment_access, hardware_access
from layoutopt.accesses.copy_access import CopyAccess
from layoutopt.accesses.cover_access import CoverAccess
from layoutopt.accesses.fragment_access import FragmentAccess
from layoutopt.accesses.hardware_access import HardwareAccess
from layoutopt.ground import json_data
from layoutopt.problems.types import Access, Problem


def expand(accesses: list[Any], head: Problem) -> list[Any]:
    """Decoded accesses, every named one written out as the data of an ordinary one.

    Args:
        accesses: decoded.
        head: a problem with their tile, threads and target; its own accesses do not matter.

    Raises:
        ProblemFileError: a named access is wrong, or cannot do what it says.
    """
    return [
        expanded(access, f"accesses[{i}]", head) if is_named(access) else access
        for i, access in enumerate(accesses)
    ]


def is_named(access: Any) -> bool:
    """Whether decoded data is meant as a fragment, a copy, a cover, arrays or one of the hardware."""
    return isinstance(access, dict) and (
        not _KEYS.isdisjoint(access) or _covers(access) or hardware_access.is_hardware(access)
    )


def _covers(access: dict[str, Any]) -> bool:
    """Whether the access leaves its lanes free and gives no index to start from."""
    return "lanes" in access and "index" not in access


_KEYS: Final = frozenset(("fragment", "copy", "coordinates", "bases"))


def expanded(access: dict[str, Any], place: str, head: Problem) -> dict[str, Any]:
    """One named access, found at `place` in its file, as the data of an ordinary one; see `expand`.

    Raises:
        ProblemFileError: likewise.
    """
    tile, threads = head.tile, head.threads
    if hardware_access.is_hardware(access):
        hardware_access.check_declared(access, place)
        plain = hardware_access.written_out(json_data.convert(access, HardwareAccess, place), place, tile)
    elif "fragment" in access:
        named = json_data.convert(access, FragmentAccess, place)
        plain = fragment_access.written_out(named, place, tile, threads)
    elif "copy" in access:
        plain = copy_access.written_out(json_data.convert(access, CopyAccess, place), place, tile, threads)
    elif _covers(access):
        plain = cover_access.from_cover(json_data.convert(access, CoverAccess, place), place, head)
    elif "bases" in access:
        plain = array_access.from_bases(access, place, head)
    else:
        plain = array_access.from_coordinates(access, place, head)
    left_out = {f.encode_name: f.default for f in msgspec.structs.fields(Access)} | {"for": {}, "any": {}}
    data = msgspec.to_builtins(plain)
    return {key: value for key, value in data.items() if key not in left_out or value != left_out[key]}
