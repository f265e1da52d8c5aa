"""`layoutopt convert`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal, NotRequired, TypedDict

import click

from layoutopt.cli.files import FileCommand, InputPath, OutputPath, write_all
from layoutopt.cli.options import device_file_option, form_options, minimise_option, more_devices
from layoutopt.cli.output import form, say, say_json
from layoutopt.errors import ProblemFileError
from layoutopt.ground import json_data
from layoutopt.ground.escape import identifier
from layoutopt.problems.answer import Bound

MAX_TEXT_BYTES: Final = 64 << 20


class Moves(TypedDict):
    """An instruction of every warp."""

    kind: Literal["store", "load"]
    op: str
    bytes: int
    round: int
    registers: list[int]
    byte_address: list[list[int]]


class Proved(TypedDict):
    """What bounds the wavefronts."""

    wavefronts: Bound


class Converted(TypedDict):
    """What --json prints of a conversion."""

    schema: Literal["layoutopt.conversion/1"]
    problem: str
    target: str
    status: Literal["optimal", "feasible", "infeasible"]
    bytes: int
    wavefronts: int
    rounds: int
    layout: list[list[int]]
    instructions: list[Moves]
    register_copies: list[list[int]]
    shuffles: int | None
    proof: Proved
    reason: NotRequired[str]


@click.command("convert", cls=FileCommand)
@click.argument("problem", type=InputPath())
@form_options("Print the conversion as one JSON object.")
@click.option("--code", type=OutputPath(), metavar="FILE", help="Write it as a CUDA function.")
@minimise_option(["bytes", "instructions"], "What comes after wavefronts.", "bytes")
@device_file_option
def command(problem: Path, code: Path | None, minimise: str, device_file: Path | None) -> int:
    """Find the instructions that move a tile from one register layout to another.

    PROBLEM is a file with tile, threads, target and convert: {"from": BASES, "to": BASES}, where BASES has a
    coordinate vector for each bit of a register, lane and warp, as Triton prints linear layouts. Or it is a
    kernel in Triton's GPU IR (.ttgir), of which every convert_layout, reduction and scan is answered; with
    --json a line each.

    Exit code 1: not within max_bytes.

    \b
    Examples:
      layoutopt convert conversion.json --code conversion.cuh
      layoutopt convert kernel.ttgir
    """
    from layoutopt.ownership.conversion import SCHEMA, convert_data
    from layoutopt.report.conversion_text import conversion_report

    devices = more_devices(device_file)
    text = json_data.read(problem, MAX_TEXT_BYTES)
    questions: Iterable[Any] = [json_data.parse(text)] if problem.suffix != ".ttgir" else _of_triton(text)
    functions, texts, worst = [], [], 0
    for data in questions:
        asked, found = convert_data(data, devices, "bytes" if minimise == "bytes" else "instructions")
        worst = max(worst, int(found.status == "infeasible"))
        if form() == "json":
            say_json({"schema": SCHEMA, "problem": asked.name} | found.to_json())
        else:
            texts.append(conversion_report(asked.name, found))
        if code is not None and found.status != "infeasible":  # else what stands there stays
            from layoutopt.codegen.conversion import emit_conversion

            functions.append(emit_conversion(found, identifier(asked.name)))
    if code is not None and functions:
        write_all({code: "\n".join(["#include <cstring>\n", *functions]).encode()})
    say("\n".join(texts))
    return worst


def _of_triton(text: bytes) -> list[Any]:
    from layoutopt.imports.triton_ir import conversions

    found = list(conversions(text.decode("utf-8", "replace")))
    if not found:
        raise ProblemFileError("", "no convert_layout in it, nor a reduction or scan of several warps")
    return found
