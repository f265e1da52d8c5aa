"""`layoutopt convert`."""

from __future__ import annotations

from pathlib import Path

import click

from layoutopt.cli.files import InputPath, OutputPath, write_all
from layoutopt.cli.options import device_file_option, more_devices
from layoutopt.cli.output import say, say_json


@click.command("convert")
@click.argument("problem", type=InputPath())
@click.option("--json", "as_json", is_flag=True, help="Print the conversion as one JSON object.")
@click.option("--code", type=OutputPath(), metavar="FILE", help="Write it as a CUDA function.")
@click.option(
    "--minimise",
    type=click.Choice(["bytes", "instructions"]),
    default="bytes",
    show_default=True,
    help="What comes after wavefronts.",
)
@device_file_option
def command(problem: Path, as_json: bool, code: Path | None, minimise: str, device_file: Path | None) -> int:
    """Find the instructions that move a tile from one register layout to another.

    PROBLEM is a file with tile, threads, target and convert: {"from": BASES, "to": BASES}, where BASES has a
    coordinate vector for each bit of a register, lane and warp, as Triton prints linear layouts.

    Exit code 1: not within max_bytes.

    \b
    Example:
      layoutopt convert conversion.json --code conversion.cuh
    """
    from layoutopt.files.file import MAX_FILE_BYTES
    from layoutopt.ground import json_data
    from layoutopt.ownership.conversion import convert_file
    from layoutopt.report.conversion_text import conversion_report

    data = json_data.read(problem, MAX_FILE_BYTES)
    asked, found = convert_file(
        data, more_devices(device_file), "bytes" if minimise == "bytes" else "instructions"
    )
    if code is not None and found.status != "infeasible":
        from layoutopt.codegen.conversion import emit_conversion
        from layoutopt.ground.escape import identifier

        write_all({code: emit_conversion(found, identifier(asked.name)).encode()})
    if as_json:
        say_json({"problem": asked.name} | found.to_json())
    else:
        say(conversion_report(asked.name, found))
    return 1 if found.status == "infeasible" else 0
