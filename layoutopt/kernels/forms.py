"""PTX and machine code of one kernel: which accesses the assembler joined, removed or added, line by line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import PurePath

from msgspec import Struct

from layoutopt.kernels.summary import KernelAccess, KernelReport


class Accesses(Struct, frozen=True):
    """What one form does in a line: executions by their bytes, and wavefronts, at least."""

    executions: dict[int, int]
    wavefronts: int


class Change(Struct, frozen=True):
    """A line where the forms differ; `change` is joined, split, removed, added or executed."""

    file: str | None
    line: int | None
    op: str
    change: str
    ptx: Accesses
    sass: Accesses


Key = tuple[str | None, int | None, str]


def changes(one: KernelReport, other: KernelReport) -> tuple[Change, ...] | None:
    """Where machine code does otherwise than its PTX.

    None where these are not two forms of one kernel, or what one of them does is not certain.
    """
    if {one.form, other.form} != {"ptx", "sass"} or one.name != other.name:
        return None
    if not (one.certain and other.certain):
        return None
    ptx, sass = (one, other) if one.form == "ptx" else (other, one)
    lined = all(any(a.file is not None for a in form.accesses) for form in (ptx, sass))
    given, runs = _by_line(ptx.accesses, lined), _by_line(sass.accesses, lined)
    found = []
    for key in sorted({**given, **runs}, key=str):
        before, after = given[key], runs[key]
        if before != after:
            found.append(Change(*key, _what(before, after), before, after))
    return tuple(found)


def _by_line(accesses: Sequence[KernelAccess], lined: bool) -> dict[Key, Accesses]:
    """What is done in each line; all of an operation together where lines are not known."""
    groups: dict[Key, list[KernelAccess]] = defaultdict(list)
    for access in accesses:
        file = PurePath(access.file).name if lined and access.file is not None else None
        groups[file, access.line if lined else None, access.op].append(access)
    found = defaultdict(lambda: Accesses({}, 0))
    for key, some in groups.items():
        widths: dict[int, int] = {}
        for access in some:
            widths[access.bytes] = widths.get(access.bytes, 0) + access.executions
        found[key] = Accesses(widths, sum(a.wavefronts + a.best for a in some))
    return found


def _what(before: Accesses, after: Accesses) -> str:
    if not after.executions:
        return "removed"
    if not before.executions:
        return "added"
    widest = max(after.executions), max(before.executions)
    return "joined" if widest[0] > widest[1] else "split" if widest[0] < widest[1] else "executed"


def said(change: Change) -> str:
    """One change, for people."""
    place = "all lines" if change.file is None else f"{change.file}:{change.line}"
    before, after = (_counted(part, change.op) for part in (change.ptx, change.sass))
    match change.change:
        case "removed":
            return f"{place}: {before} in PTX, none in machine code"
        case "added":
            return f"{place}: {after} in machine code, none in PTX"
    return f"{place}: {before} in PTX, {after} in machine code"


def _counted(part: Accesses, op: str) -> str:
    parts = [f"{count:,} {op} of {width} bytes" for width, count in sorted(part.executions.items())]
    return f"{' and '.join(parts)} ({part.wavefronts:,} wavefronts)"
