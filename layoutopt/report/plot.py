"""A comparison as a chart. Needs matplotlib."""

from __future__ import annotations

import io
import logging
import textwrap
from typing import Any

from layoutopt.ground.escape import xml_text
from layoutopt.study.comparison import Comparison, Row

# What it says of folders that it cannot write is about no chart.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

# Okabe and Ito's palette, told apart with every common colour blindness.
_FRONT, _OTHER, _LINE = "#0072B2", "#D55E00", "#999999"
# Wavefronts further apart than this factor are drawn on a logarithmic axis.
_LOG_FROM = 8
_LABEL_CHARACTERS = 48


def chart(comparison: Comparison, kind: str) -> bytes:
    """Bytes against wavefronts, or, where the rows were run on a GPU, cycles; as an SVG or PNG file.

    Args:
        comparison: what to draw; rows without a layout are left out.
        kind: "svg" or "png".

    Raises:
        ImportError: matplotlib is not installed, or its settings (MPLBACKEND, matplotlibrc) are wrong.
    """
    try:
        import matplotlib
    except ValueError as error:
        raise ImportError(str(error)[:200]) from None

    # The figure is made without pyplot, so no display and no global state is touched.
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "layoutopt", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(8.4, 4.6), layout="constrained")
        axes = figure.add_subplot()
        title = _draw_cycles(axes, comparison) if comparison.measured_on else _draw_costs(axes, comparison)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(xml_text(title), loc="left", parse_math=False)
        out = io.BytesIO()
        figure.savefig(out, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {})
    return out.getvalue()


def _draw_cycles(axes: Any, comparison: Comparison) -> str:
    """Measured and estimated cycles of each layout, the fastest on top; the title."""
    layouts: dict[str, list[Row]] = {}
    for row in comparison.rows:
        if row.measured is not None:
            layouts.setdefault(row.offset or "", []).append(row)
    ordered = sorted(layouts.values(), key=lambda rows: -(rows[0].measured or 0.0))
    measured = [rows[0].measured for rows in ordered]
    estimated = [(rows[0].cycles, y) for y, rows in enumerate(ordered) if rows[0].cycles]
    axes.scatter(measured, range(len(ordered)), s=46, zorder=3, color=_FRONT, label="measured")
    axes.scatter(
        [x for x, _ in estimated], [y for _, y in estimated], s=46, zorder=2, facecolors="none",
        edgecolors=_OTHER, marker="s", label="estimated",
    )  # fmt: skip
    for x, y in estimated:
        axes.plot((x, measured[y]), (y, y), color=_LINE, linewidth=1, zorder=1)
    labels = ["\n".join([*_titles(rows), f"{rows[0].bytes:,} bytes"]) for rows in ordered]
    axes.set_yticks(range(len(ordered)), list(map(xml_text, labels)), fontsize=7.5, parse_math=False)
    axes.set_xlim(left=0)
    axes.set_xlabel("cycles of one pass of a block")
    axes.legend(frameon=False)
    return f"{comparison.problem} on {comparison.measured_on}"


def _draw_costs(axes: Any, comparison: Comparison) -> str:
    """Bytes against wavefronts, with the Pareto front; the title."""
    from matplotlib.ticker import LogLocator, NullFormatter

    points: dict[tuple[int, float], list[Row]] = {}
    for row in comparison.rows:
        if row.bytes is not None and row.weighted_wavefronts is not None:
            points.setdefault((row.bytes, row.weighted_wavefronts), []).append(row)
    heights = [y for _, y in points]
    if heights and max(heights) > _LOG_FROM * max(1.0, min(heights)):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    front = sorted(p for p, rows in points.items() if rows[0].pareto)
    axes.step(*zip(*front, strict=True), where="post", color=_LINE, linewidth=1, zorder=1)
    axes.margins(0.12)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    # Labels stand in one column beside the axes, in the order of the points, so that none overlap.
    ordered = sorted(points.items(), key=lambda item: (-item[0][1], item[0][0]))
    for k, ((x, y), rows) in enumerate(ordered):
        colour, marker, ink = (_FRONT, "o", _FRONT) if rows[0].pareto else (_OTHER, "s", "#333333")
        axes.scatter(x, y, s=46, zorder=3, color=colour, marker=marker)
        axes.annotate(
            "\n".join([*_titles(rows), f"{x:,} bytes, {y:g}"]),
            parse_math=False,
            xy=(x, y), xytext=(1.04, 1 - (k + 0.5) / len(ordered)), textcoords="axes fraction", va="center",
            fontsize=7.5, color=ink, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": _LINE, "linewidth": 0.5},
        )  # fmt: skip
    weighted = any(r.wavefronts != r.weighted_wavefronts for rows in points.values() for r in rows)
    axes.set_xlabel("bytes")
    axes.set_ylabel("wavefronts, weighted" if weighted else "wavefronts")
    return f"{comparison.problem} on {comparison.target}; blue: Pareto front"


def _titles(rows: list[Row]) -> list[str]:
    """The rows' titles in lines that end between two of them."""
    whole = ", ".join(row.title.replace(" ", "\xa0") for row in rows)
    return [line.replace("\xa0", " ") for line in textwrap.wrap(whole, _LABEL_CHARACTERS)]
