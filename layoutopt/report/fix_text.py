"""What a change of layouts does, for people: arrays, totals and resources before and after."""

from layoutopt.hardware.driver import Driver
from layoutopt.report.text import columns
from layoutopt.study.source_fix import SourceFix


def fix_report(found: SourceFix, driver: Driver | None = None) -> str:
    """The report; totals are those of both machine codes, times those of a GPU."""
    old, new, (before, after) = found.before, found.after, found.totals
    lines = [f"{old.program.title}  ({old.program.target})", ""]
    if not found.arrays:
        return "\n".join([*lines, "no array has conflicts"]) + "\n"
    rows = [(one.name, f"{one.bytes_after:,}", one.offset or f"stays: {one.reason}") for one in found.arrays]
    lines += columns([("array", "bytes", "layout"), *rows], {0, 2})
    names = ("wavefronts_ld", "wavefronts_st", "wavefronts_atom", "bank_conflicts")
    table = [(n.replace("_", " "), f"{before[n]:,}", f"{after[n]:,}") for n in names]
    table += [
        ("instructions of a block", f"{old.followed.issued:,}", f"{new.followed.issued:,}"),
        ("registers of a thread", f"{old.program.registers}", f"{new.program.registers}"),
        ("shared bytes of a block", f"{old.shared_bytes:,}", f"{new.shared_bytes:,}"),
        ("resident blocks", f"{old.blocks_per_sm}", f"{new.blocks_per_sm}"),
    ]
    if (race := found.race) is not None:
        old_time, new_time = (f"{1e6 * taken:,.1f}" for taken in race.seconds)
        table.append(("microseconds of a launch", old_time, new_time))
    lines += ["", *columns([("", "before", "after"), *table], {0})]
    for one in found.arrays:
        lines += ["", f"{one.name}: {one.reason}"] if one.offset is not None and one.reason else []
        if one.open_column is not None:
            where = f"arguments or data may decide the column at {one.open_column}"
            lines += ["", f"{one.name}: {where}; beyond the row, undefined in C++, lies another element now"]
    if found.files:
        lines += ["", _compared(found)]
    if race is not None and driver is not None:
        changing = f"; {race.changing:,} bytes change from launch to launch" if race.changing else ""
        lines += ["", f"on {driver.gpu.name}, both write the same bytes{changing}"]
    if found.files and new.evaluation.launch.shared_bytes != old.evaluation.launch.shared_bytes:
        shared = new.evaluation.launch.shared_bytes
        lines += ["", f"launch it with {shared:,} bytes of dynamic shared memory"]
    if found.chosen_for:
        given = ", ".join(f"{name}={value}" for name, value in found.chosen_for.items())
        lines += ["", f"chosen for {given}; for other values nothing was compared"]
    if found.out_of_time:
        lines += ["", "the time limit ended the search: this is the best until then (--time-limit)"]
    doubts = new.evaluation.doubts
    if doubts:
        lines += ["", "not certain: " + "; ".join(doubts)]
    return "\n".join(lines) + "\n"


def _compared(found: SourceFix) -> str:
    """How many bytes of global memory both versions were seen to leave equal."""
    changed, unknown, count = found.changed_bytes, found.unknown_bytes, len(found.blocks)
    who = "the first block" if count == 1 else f"{count} blocks that differ"
    if not changed:
        return f"no byte was compared: {who} {'is' if count == 1 else 'are'} not seen to change global memory"
    text = f"compared {found.compared_bytes:,} of {changed:,} bytes that {who} change{'s' * (count == 1)}"
    why = "values that are not evaluated, or not given, decide them"
    return f"{text}; {unknown:,} not: {why}" if unknown else f"{text}: equal"
