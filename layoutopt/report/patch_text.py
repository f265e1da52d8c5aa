"""What was put into a kernel, for people: arrays, totals before and after, and the edit of the source."""

from __future__ import annotations

from layoutopt.codegen.edit import edit, edit_text
from layoutopt.kernels.question.summary import summary
from layoutopt.report.text import columns
from layoutopt.study.patch import Moved, Patch


def patch_report(found: Patch, edits: bool) -> str:
    """The report; with `edits`, what to change in the source for each array that was moved."""
    before, after = summary(found.before), summary(found.after)
    lines = [f"{before.title}  ({before.target})", ""]
    lines += columns([("array", "bytes", "", "layout"), *(_row(moved) for moved in found.arrays)], {0, 2, 3})
    names = ("wavefronts_ld", "wavefronts_st", "wavefronts_atom", "bank_conflicts")
    rows = [(n.replace("_", " "), f"{before.totals[n]:,}", f"{after.totals[n]:,}") for n in names]
    lines += ["", *columns([("", "before", "after"), *rows], {0})]
    if found.after is not found.before and found.after.launch.shared_bytes:
        lines += ["", f"launch it with {found.shared_bytes:,} bytes of dynamic shared memory"]
    if not after.certain:
        lines += ["", "not certain: " + "; ".join(found.after.doubts)]
    for moved in found.arrays if edits else ():
        if moved.problem is not None and moved.result is not None and moved.result.offset is not None:
            if not moved.in_source:
                why = "no edit is shown: no formula of the source's own variables gives its accesses"
                lines += ["", f"{moved.name} in the source: {why}"]
                continue
            change = edit(moved.problem, found.gpu, moved.result.offset)
            lines += ["", f"{moved.name} in the source:", *edit_text(change).rstrip().splitlines()]
    return "\n".join(lines) + "\n"


def _row(moved: Moved) -> tuple[str, ...]:
    if moved.layout is None:
        return moved.name, f"{moved.bytes_before:,}", "stays", moved.reason
    formula = moved.result.offset if moved.result is not None and moved.result.offset else "as given"
    return moved.name, f"{moved.bytes_after:,}", "moved", formula
