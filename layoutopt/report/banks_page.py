"""One self-contained page: pick access, warp and iteration, point at a lane, step through wavefronts.

The page holds the byte offset of every element under each layout and the element of every lane (of packed
elements, of the bytes that they share), and works the rest out itself; beside its own count stands the
conflict engine's.
"""

import base64
import json
from collections.abc import Sequence
from importlib import resources
from string import Template
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from layoutopt.engine.witness import Instruction
from layoutopt.ground.escape import script, xml, xml_text
from layoutopt.problems.text import tile_text
from layoutopt.report import palette
from layoutopt.report.banks_text import default_colouring, summary
from layoutopt.study.show import Shown, Views

# Lane accesses that a page holds, 4 bytes each before base64; an access beyond its share is cut short.
MAX_LANE_ACCESSES: Final = 1 << 18
# Of a `PhaseRule`, what the page counts by.
_RULE: Final = (
    "phases", "banks", "bank_bytes", "serialises_equal", "merges_pairs", "split_words", "row_words",
    "extra_wavefronts",
)  # fmt: skip


def page(found: Views, colour_by: str | None) -> str:
    """The page as HTML, complete in itself: no network, no font, no library.

    Args:
        found: what to draw; its chosen instruction is what the page opens with.
        colour_by: "lane" or "phase"; None for phases where there are several, else lanes.
    """
    case, chosen = found.case, found.chosen
    problem, gpu = case.problem, case.device
    warp, _ = chosen.at
    warps = -(-problem.threads // gpu.lanes)
    share = max(1, MAX_LANE_ACCESSES // gpu.lanes // warps // len(problem.accesses))
    accesses: list[dict[str, Any]] = []
    kept: list[range] = []
    for number, access in enumerate(case.lanes.accesses):
        iterations = len(access.element) // warps
        first = max(0, min(chosen.row // warps, iterations - share)) if number == chosen.access else 0
        kept.append(range(first, min(iterations, first + share)))
        accesses.append(_access(found, number, kept[-1], warps))
    lane_colours = [palette.lane_colour(lane, gpu.lanes) for lane in range(gpu.lanes)]
    data = {
        "shape": problem.tile.shape,
        "packed": problem.tile.packed,
        "element_bytes": problem.tile.storage.element_bytes,
        "lanes": gpu.lanes,
        "warps": warps,
        "accesses": accesses,
        "layouts": [_layout(shown, kept, warps) for shown in found.layouts],
        "start": {
            "access": chosen.access,
            "warp": warp,
            "iteration": chosen.row // warps - kept[chosen.access].start,
            "colour": colour_by or default_colouring(found.pictures()),
        },
        "phase_colours": palette.PHASES,
        "lane_colours": lane_colours,
        "ink": {ground: palette.ink_on(ground) for ground in (*palette.PHASES, *lane_colours)},
    }
    return Template(_part("page.html")).substitute(
        title=xml(f"{problem.name}, {tile_text(problem)} on {gpu.name}"),
        style=_part("page.css"),
        script=_part("page.js"),
        data=script(xml_text(json.dumps(data, separators=(",", ":"), ensure_ascii=False))),
    )


def _layout(shown: Shown, kept: Sequence[range], warps: int) -> dict[str, Any]:
    """One layout, and the wavefronts of the instructions kept of every access."""
    rows = [slice(each.start * warps, each.stop * warps) for each in kept]
    return {
        "name": shown.name,
        "offset": shown.offset or "a table",
        "bytes": shown.size,
        "table": _packed(shown.table),
        "wavefronts": [_packed(c.wavefronts[part]) for c, part in zip(shown.counts, rows, strict=True)],
    }


def _access(found: Views, number: int, iterations: range, warps: int) -> dict[str, Any]:
    """The elements of an access in some iterations, -1 where a lane is idle."""
    access = found.case.lanes.accesses[number]
    rows = slice(iterations.start * warps, iterations.stop * warps)
    element = np.where(access.active[rows], access.element[rows], -1)
    names = []
    for k in iterations:
        _, values = Instruction(found.case, number, k * warps).at
        names.append(", ".join(f"{name} = {value}" for name, value in values.items()) or "the only one")
    return {
        "number": number,
        "name": access.name,
        "op": access.op,
        "width_bytes": access.operation.width_bytes,
        "iterations": names,
        "left_out": len(access.element) // warps - len(iterations),
        "rule": {name: getattr(found.case.device.rule(access.operation), name) for name in _RULE},
        "element": _packed(element),
        "cost": summary(found, number),
    }


def _packed(values: npt.NDArray[Any]) -> str:
    """Little-endian 32-bit integers in base64."""
    return base64.b64encode(values.astype("<i4").tobytes()).decode("ascii")


def _part(name: str) -> str:
    return resources.files("layoutopt.report").joinpath(name).read_text("utf-8").rstrip()
