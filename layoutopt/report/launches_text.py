"""All launches of a program, for people: kernels by their conflicts, then the worst lines."""

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Final, NamedTuple

from layoutopt.kernels.read.declarations import demangled, without_types
from layoutopt.problems.text import count_text
from layoutopt.report.text import columns
from layoutopt.study.launches import Application, CheckedLaunch, Fix

MOST_LINES: Final = 10
_MOST_NAME: Final = 60
_TAG: Final = re.compile(r"\[abi:\w*\]")


class ConflictLine(NamedTuple):
    """A line of the source, or an instruction where there is none, over all launches."""

    file: str
    line: int
    kernel: str
    instruction: str
    array: str | None
    op: str
    conflicts: int
    wavefronts: int
    fix: str | None

    @property
    def place(self) -> str:
        """The file without its folder, and the line."""
        return f"{PurePath(self.file).name}:{self.line}" if self.line else self.instruction

    @property
    def cost(self) -> str:
        """What happens there, in a sentence."""
        text = f"{self.conflicts:,} of {self.wavefronts:,} wavefronts in shared memory are bank conflicts"
        return f"{text} ({self.kernel}, {self.op})"

    @property
    def message(self) -> str:
        """What happens there, and what to do."""
        return self.cost + (f"; {self.array}: {self.fix}" if self.fix else "")


def conflict_lines(launches: Iterable[CheckedLaunch]) -> list[ConflictLine]:
    """The lines with bank conflicts, over all of these launches, the worst first."""
    lines: dict[tuple[object, ...], ConflictLine] = {}
    for launch in launches:
        for access in launch.report.accesses if launch.report is not None else ():
            if not access.bank_conflicts:
                continue
            kernel, instruction = name(launch), f"0x{access.address:x} {access.instruction}"
            place = (access.file or launch.launch.file, access.line or 0)
            key = (*place, kernel, access.array, access.op if access.line else instruction)
            times = launch.launch.launches
            fix = launch.fixes.get(access.array or "", {}).get("message")
            new = ConflictLine(*place, kernel, instruction, access.array, access.op, 0, 0, fix)
            before = lines.get(key, new)
            lines[key] = before._replace(
                conflicts=before.conflicts + times * access.bank_conflicts,
                wavefronts=before.wavefronts + times * access.wavefronts,
            )
    return sorted(lines.values(), key=lambda line: -line.conflicts)


def name(one: CheckedLaunch) -> str:
    """The kernel in C++, without the types of its parameters and the tags that Numba gives."""
    if one.report is None:
        title = demangled(one.launch.entry or PurePath(one.launch.file).name)
    else:
        title = one.report.title
    return without_types(_TAG.sub("", title))


def undecided(launches: Iterable[CheckedLaunch]) -> Iterator[tuple[CheckedLaunch, str]]:
    """The launches without a known conflict of which it is not certain that they have none, and why."""
    for one in launches:
        if one.report is None:
            yield one, f"not evaluated: {one.failure}"
        elif one.report.doubt is not None and not one.conflicts:
            yield one, one.report.doubt


def verdict(one: CheckedLaunch) -> str:
    """Whether its figures are those of the hardware."""
    if one.report is None:
        return "not evaluated"
    return "certain" if one.report.certain else "a bound" if one.report.bounded else "at least"


def share(part: int, whole: int) -> str:
    """As a percentage."""
    return f"{part / whole:.0%}" if whole else "-"


def application_report(found: Application) -> str:
    """The report."""
    lines = [*head(found), *_kernels(found)]
    worst, fixes, open_ones = conflict_lines(found.kernels), found.fixes, list(undecided(found.kernels))
    if worst:
        lines += ["", "  the worst lines:", *(f"  {one.place}: {one.cost}" for one in worst[:MOST_LINES])]
    if len(worst) > MOST_LINES:
        lines.append(f"  and {len(worst) - MOST_LINES} more")
    if fixes:
        lines += ["", "  the fixes that save most:", *(f"  {fix_text(fix)}" for fix in fixes[:MOST_LINES])]
    if open_ones:
        lines += ["", "  not decided:"]
    for one, why in open_ones:
        times = count_text(one.launch.launches, "launch", "launches")
        lines.append(f"  {name(one)[:_MOST_NAME]} ({times}): {why}")
    return "\n".join([*lines, ""])


def head(found: Application) -> Iterator[str]:
    """How many launches there were, and how much of their time in shared memory is conflicts."""
    kinds = [verdict(one) for one in found.kernels]
    counts = {kind: kinds.count(kind) for kind in ("certain", "a bound", "at least", "not evaluated")}
    told = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    yield f"{count_text(found.launches, 'launch', 'launches')}, {len(found.kernels)} distinct: {told}"
    if found.not_recorded:
        yield f"{found.not_recorded:,} launches had parameters that were not recorded, and are not counted"
    if missed := str(found.missed):
        yield f"not all launches were recorded: {missed}"
    part = share(found.bank_conflicts, found.wavefronts)
    yield f"{found.bank_conflicts:,} of {found.wavefronts:,} wavefronts ({part}) are bank conflicts"


def _kernels(found: Application) -> Iterator[str]:
    rows = [("kernel", "block", "grid", "launches", "wavefronts", "bank conflicts", "of all", "")]
    for one in found.kernels:
        if one.report is None or not (one.conflicts or one.report.totals["wavefronts_worst"]):
            continue
        block, grid = ("x".join(map(str, e)) for e in (one.report.block, one.report.grid))
        counts = f"{one.launch.launches:,}", f"{one.wavefronts:,}", f"{one.conflicts:,}"
        rows.append((name(one)[:_MOST_NAME], block, grid, *counts, share(one.conflicts, found.bank_conflicts),
                     "" if one.report.certain else verdict(one)))  # fmt: skip
    if len(rows) > 1:
        yield from ("", *columns(rows, {0, 7}))


def fix_text(fix: Fix) -> str:
    """What it saves, where, and how."""
    where = f"{without_types(fix.kernel)}, {fix.array}"
    return f"{fix.saved_wavefronts:,} fewer wavefronts over all launches ({where}): {fix.message}"
