"""Named accesses: matrix fragments, copies, covers and arrays, written out as ordinary accesses.

    {"name": "A", "op": "ldmatrix.x4", "fragment": "mma.m16n8k16.A.f16",
     "warps": [4, 2], "repeat": {"m": 2, "k": 4}}
    {"name": "fill", "op": "cp.async", "copy": {"bytes": 16, "threads": 256}}
    {"name": "drain", "op": "load", "bytes": 4, "lanes": "free", "global": {"contiguous": 32}}

Accesses by arrays (`layoutopt.accesses.array_access`) and what the hardware does by itself
(`layoutopt.accesses.hardware_access`) are named, too. They exist in problem files only: `expanded` makes an
`Access` with index expressions of each before anything else reads the problem. What lane holds what is data
(`hardware/fragments.json`, from the PTX ISA and from AMD's tables). A fragment's `index` is over its
coordinates m, n, k beside the usual variables, so `["n", "k"]` is a B tile stored by columns of B,
`["s", "m", "k"]` one stage of several, and `["m // 8", "m % 8 + r", "k"]` an implicit GEMM.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from layoutopt.accesses.array_access import ArrayAccess, BasesAccess, from_bases, from_coordinates
from layoutopt.accesses.copy_access import CopyAccess, CoverAccess, from_copy, from_cover
from layoutopt.accesses.fragment_access import FragmentAccess, from_fragment
from layoutopt.accesses.hardware_access import HardwareAccess, from_hardware, is_hardware
from layoutopt.errors import under
from layoutopt.problems.types import Access, Problem

# The types of named accesses, the field by which data is known to be one, and what makes an ordinary access
# of its data, for a problem with its tile, threads and target.
_KINDS: Final[dict[type, tuple[str, Callable[[dict[str, Any], Problem], Access]]]] = {
    FragmentAccess: ("fragment", from_fragment),
    CopyAccess: ("copy", from_copy),
    CoverAccess: ("lanes", from_cover),
    ArrayAccess: ("coordinates", from_coordinates),
    BasesAccess: ("bases", from_bases),
    HardwareAccess: ("op", from_hardware),
}
TYPES: Final = tuple(_KINDS)


def is_named(access: Any) -> bool:
    """Whether decoded data is meant as a fragment, a copy, a cover, arrays or one of the hardware."""
    return isinstance(access, dict) and _kind(access) is not None


def _kind(access: dict[str, Any]) -> type | None:
    if is_hardware(access):
        return HardwareAccess
    plain = {"op", "lanes"} if "index" in access else {"op"}
    return next((kind for kind, (key, _) in _KINDS.items() if key in access.keys() - plain), None)


def expanded(access: dict[str, Any], place: str, head: Problem) -> dict[str, Any]:
    """A named access, found at `place` in its file, as the data of an ordinary one.

    Args:
        access: decoded.
        place: for errors.
        head: a problem with its tile, threads and target; the accesses there do not matter.

    Raises:
        ProblemFileError: the access is wrong, or cannot do what it says.
    """
    kind = _kind(access)
    assert kind is not None
    _, to_ordinary = _KINDS[kind]
    with under(place):
        ordinary = to_ordinary({k: v for k, v in access.items() if k != "instructions"}, head)
    defaults = {f.encode_name: f.default for f in msgspec.structs.fields(Access)} | {"for": {}, "any": {}}
    data = msgspec.to_builtins(ordinary)
    data = {key: value for key, value in data.items() if key not in defaults or value != defaults[key]}
    free = access.get("instructions")
    return data if free is None else data | {"instructions": free}
