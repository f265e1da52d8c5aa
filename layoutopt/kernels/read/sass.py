"""Kernels out of machine code: text, cubins, and files that hold cubins."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import shown
from layoutopt.kernels.isa import table
from layoutopt.kernels.isa.listing import Function, functions
from layoutopt.kernels.machine.launch import bank_layout, is_pointer, type_size
from layoutopt.kernels.machine.relevance import constant_place
from layoutopt.kernels.program import Exit, Jump, Memory, Parameter, Program, Reconverge, Step
from layoutopt.kernels.ptx.text import Module, read_ptx
from layoutopt.kernels.read import elf
from layoutopt.kernels.read.declarations import declared, demangled, parameter_types, ptx_parameters

# Architectures whose code is read; older ones have other instructions.
OLDEST: Final = 70
# What the system keeps of shared memory from compute capability 9.0 on.
RESERVED_BYTES: Final = 0x400
# Steps after a load of a parameter that are looked at for what it is.
_MOST_FOLLOWED: Final = 1024


def from_text(text: str, target: str | None = None) -> tuple[Program, ...]:
    """The kernels of a listing; parameters are told from the name, or from what the code reads of them."""
    return tuple(_program(function, target, None, Module("")) for function in functions(text))


def from_cubin(data: bytes, listing: str) -> tuple[Program, ...]:
    """The kernels of a cubin.

    Args:
        data: the file.
        listing: what `nvdisasm -gi -c` prints of it.
    """
    found = elf.sections(data)
    known = {section.name for section in found}
    # With line information the compiler leaves the PTX, a line after another, each ended by a zero.
    texts = [section.content for section in found if section.name == ".nv_debug_ptx_txt"]
    ptx = Module("")
    with contextlib.suppress(ProblemFileError):
        ptx = read_ptx(b"".join(texts).replace(b"\0", b"\n").decode("utf-8", "replace"), "")
    return tuple(
        _program(function, None, elf.kernel_info(found, function.name), ptx)
        for function in functions(listing)
        if f".nv.info.{function.name}" in known
    )


def _program(function: Function, target: str | None, info: dict[str, Any] | None, ptx: Module) -> Program:
    target = _target(function, target)
    steps = table.steps(function)
    title = demangled(function.name)
    base = bank_layout(target)["parameters"]
    plain = Program(name=function.name, title=title, target=target, steps=steps, parameter_base=base)
    if info is None:
        return replace(plain, parameters=_told(title) or tuple(_read(steps, base)))
    reserved = RESERVED_BYTES if _number(target) >= 90 else 0
    found = replace(plain, **{"static_bytes": reserved, **info})
    types = [("", kind) for kind in parameter_types(title) or ()]
    parameters = described(info["parameters"], types)
    return replace(
        found,
        parameters=described(parameters, ptx_parameters(ptx, function.name)),
        arrays=declared(ptx, function.name, found.static_bytes or 0, reserved),
    )


def _number(target: str) -> int:
    return int(re.sub(r"\D", "", target) or 0)


def _target(function: Function, target: str | None) -> str:
    found = target or function.target
    if not found:
        raise ProblemFileError(
            "--target", f"the listing does not name the GPU of {shown(function.name)}: give it, such as sm_90"
        )
    check_target(found)
    if _number(found) < OLDEST:
        raise ProblemFileError("", f"code of {shown(found)}; architectures from sm_{OLDEST} on are read")
    return found


def check_target(target: str) -> None:
    """Refuse the name of a GPU that is none of NVIDIA."""
    if not re.fullmatch(r"sm_\d{2,3}[af]?", target):
        raise ProblemFileError("--target", f"expected a GPU of NVIDIA such as sm_90, got {shown(target)!r}")


def described(parameters: tuple[Parameter, ...], told: Sequence[tuple[str, str]]) -> tuple[Parameter, ...]:
    """The parameters with the names and types that a declaration tells, if it has as many.

    What machine code or another declaration told stays, but for the `void*` and `.u64` of PTX. A type that is
    not known is a class: one of 8 bytes may be two values.
    """
    if len(told) != len(parameters):
        return parameters
    return tuple(_described(one, *names) for one, names in zip(parameters, told, strict=True))


def _described(one: Parameter, name: str, kind: str) -> Parameter:
    one, known = replace(one, name=name or one.name), type_size(kind)
    if not kind or known not in (None, one.size) or one.type not in ("", ".u64", ".b64", "void*"):
        return one
    if known is None and one.type:
        return one
    pointer = one.pointer or is_pointer(kind)
    return replace(one, type=kind, pointer=pointer, whole=one.size != 8 or pointer or known is not None)


def _told(title: str) -> tuple[Parameter, ...] | None:
    """The parameters that a demangled name says, laid out as C does; None where a type is not known."""
    types = parameter_types(title)
    if types is None:
        return None
    found, end = [], 0
    for kind in types:
        size = type_size(kind)
        if size is None:
            return None
        start = -(-end // size) * size
        found.append(Parameter(start, size, pointer=is_pointer(kind), type=kind))
        end = start + size
    return tuple(found)


def _read(steps: tuple[Step, ...], base: int) -> Iterator[Parameter]:
    """Parameters as the code reads them: words, and pairs of words that are always read together.

    Positions are then those of what is read, which `--arg` by offset (`+8`) does not depend on.
    """
    # Where words, and pairs of words, are read that begin there.
    words, pairs = set[int](), set[int]()
    # An operand of 64 bits or an address is one value; what one load reads may be two of 4 bytes.
    values = set[int]()
    for k, step in enumerate(steps):
        at = constant_place(step)
        if isinstance(step.action, Memory) and at is not None and at >= base:
            width = step.action.width_bytes
            (pairs if width >= 8 else words).update(range(at, at + width, 8))
            for n, start in enumerate(range(at, at + width, 8)):
                if start not in values and _is_one_value(steps, k, step.dests[2 * n : 2 * n + 2]):
                    values.add(start)
        read = {int(cell[4:]) for cell in step.cells if cell.startswith("$c0.") and int(cell[4:]) >= base}
        paired = {at for at in read if at % 8 == 0 and at + 4 in read}
        pairs |= paired
        values |= paired
        words |= {at for at in read if at not in paired and at - 4 not in paired}
    for at in sorted(words | pairs):
        if at % 8 == 0 and at in pairs and at not in words and at + 4 not in words:
            yield Parameter(at - base, 8, whole=at in values)
        elif at in words or at in pairs:
            yield Parameter(at - base, 4)
            if at in pairs and at + 4 not in words:
                yield Parameter(at + 4 - base, 4)


def _is_one_value(steps: tuple[Step, ...], load: int, cells: tuple[str, ...]) -> bool:
    """Whether two registers that a step loads are surely used as one address, or one addend of 64 bits."""
    for step in steps[load + 1 : load + 1 + _MOST_FOLLOWED]:
        action = step.action
        is_place = isinstance(action, Memory) and action.space in ("global", "generic")
        if is_place and step.sources[0].cells[:2] == cells:
            return True
        if "IMAD.WIDE" in step.text and any(one.cells == cells for one in step.sources[-1:]):
            return True
        leaves = isinstance(action, Reconverge) and action.leaves
        ends = (leaves or isinstance(action, Jump | Exit)) and step.guard is None
        if ends or not set(cells).isdisjoint(step.dests):
            return False
    return False
