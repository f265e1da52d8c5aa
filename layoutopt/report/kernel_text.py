"""A launch of a kernel, for people: its lines, the worst first, and the worst warp instruction."""

import math
from collections.abc import Sequence
from pathlib import PurePath

from layoutopt.kernels.question.summary import KernelAccess, KernelReport, given_by
from layoutopt.problems.text import count_text
from layoutopt.report.text import columns, wrapped

_LANES_A_ROW = 8
_WIDTH = 120


def kernel_report(report: KernelReport, fixes: Sequence[str] = ()) -> str:
    """The report; `fixes` are sentences that say what to change."""
    block, grid = (",".join(map(str, sizes)) for sizes in (report.block, report.grid))
    blocks = math.prod(report.grid)
    counted = f"counts of {count_text(blocks, 'block')}" + ("; --grid counts all" if blocks == 1 else "")
    lines = [f"{report.title}  block {block}  grid {grid}  {report.target} machine code, {counted}"]
    lines += [*([f"  {report.doubt}"] if report.doubt is not None else []), ""]
    lines += _table(report) or [f"  no shared memory is touched{_by_hardware_text(report)}"]
    known, least = ("", "") if report.certain else (", as far as it is known", ", at least")
    lines += ["", f"  what the profiler will print{known} (l1tex__data_..._mem_shared_op_*):"]
    totals = report.totals
    names = {f"wavefronts{least}": "wavefronts", f"bank conflicts{least}": "bank_conflicts"}
    if report.bounded and totals["wavefronts_worst"] > totals["wavefronts"]:
        names = {"wavefronts, at most": "wavefronts_worst", **names}
    parts = ("ld", "st", "atom")
    rows = [(title, *(f"{totals[f'{name}_{part}']:,}" for part in parts)) for title, name in names.items()]
    lines += [*columns([("", *parts), *rows], {0}), "", *_certainty_lines(report)]
    lines += ["", *worst] if (worst := worst_lines(report)) else []
    told = [part for line in fixes for part in wrapped(line, _WIDTH, "  ")]
    words = "executed: warp instructions; ideal: the fewest wavefronts that they can take"
    if any("x0" in line for line in fixes):
        words += "; x0, x1, ...: indices of the array"
    legend = ["", *wrapped(words, _WIDTH, "  ")] if report.accesses else []
    return "\n".join([*lines, *(["", *told] if told else []), *legend, ""])


def _by_hardware_text(report: KernelReport) -> str:
    if not report.by_hardware:
        return ""
    return f" by loads, stores and atomics; what {', '.join(report.by_hardware)} move, no counter holds"


def _table(report: KernelReport) -> list[str]:
    """A row a line of the source, array and operation; an instruction where there is no line."""
    groups: dict[tuple[str, str, str], list[KernelAccess]] = {}
    for access in report.accesses:
        place = f"{PurePath(access.file).name}:{access.line}" if access.file else f"0x{access.address:x}"
        op = f"{access.op} {access.bytes} bytes" if "x" not in access.op else access.op
        groups.setdefault((place, access.array or "?", op), []).append(access)
    ranked = sorted(groups.items(), key=lambda item: -sum(a.bank_conflicts + a.worst for a in item[1]))
    rows = [("line", "array", "op", "executed", "wavefronts", "ideal", "bank conflicts", "")]
    for key, accesses in ranked:
        fields = ("executions", "wavefronts", "ideal", "bank_conflicts", "best", "worst")
        sums = (sum(getattr(access, field) for access in accesses) for field in fields)
        executed, known, ideal, conflicts, best, worst = sums
        wavefronts, note, least = f"{known:,}", _ways(known, ideal), ""
        if any(access.data_dependent for access in accesses):  # best to worst come on top of what is known
            note, least = "not known" if given_by(report.unknown) else "data-dependent", "at least "
            low, high = known + best, known + worst
            wavefronts = f"{low:,}..{high:,}" if report.bounded else f"{least}{low:,}"
            ideal += best
        rows.append((*key, f"{executed:,}", wavefronts, f"{least}{ideal:,}", f"{least}{conflicts:,}", note))
    return columns(rows, {0, 1, 2, 7}) if report.accesses else []


def _ways(wavefronts: int, ideal: int) -> str:
    """`4-way`, or `1.5 times the ideal`; empty without conflicts."""
    ratio = wavefronts / ideal if ideal else 1.0
    if wavefronts <= ideal:
        return ""
    return f"{ratio:.0f}-way" if ratio == round(ratio) else f"{ratio:.1f} times the ideal"


def _certainty_lines(report: KernelReport) -> list[str]:
    """The share of conflicts where the counts are certain; else the reasons why they are not."""
    if report.certain:
        conflicts, wavefronts = report.totals["bank_conflicts"], report.totals["wavefronts"]
        return [f"  certain: {conflicts:,} of {wavefronts:,} wavefronts are bank conflicts"]
    lines = ["  not certain:" if report.bounded else "  not certain, and no worst case is known:"]
    lines += [f"    {why}" for why in report.unknown[:8]]
    if len(report.unknown) > 8:
        lines.append(f"    and {len(report.unknown) - 8} more")
    return lines


def worst_lines(report: KernelReport) -> list[str]:
    """The instruction with the most excess, and where its lanes lie; nothing where none has any."""
    if (worst := report.worst) is None:
        return []
    (access,) = [a for a in report.accesses if a.address == worst.address][:1]
    array = next((a for a in report.arrays if a.name == access.array), None)
    start = array.start if array is not None else 0
    where = f"bytes in {array.name}" if array is not None else "byte addresses"
    place = f"{PurePath(access.file).name}:{access.line}, " if access.file else ""
    lines = [f"  the worst: {place}{access.instruction}: {worst.wavefronts} wavefronts; {where} by lane:"]
    rows = []
    for first in range(0, len(worst.byte_address), _LANES_A_ROW):
        part = worst.byte_address[first : first + _LANES_A_ROW]
        rows.append((f"{first:2}:", *("-" if a is None else f"{a - start:,}" for a in part)))
    return [*lines, *(f"  {line}" for line in columns(rows, {0}))]
