"""What `layoutopt solve` writes for several tiles."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from layoutopt.cli.files import write_all
from layoutopt.cli.output import say, say_json
from layoutopt.problems.answer import Status
from layoutopt.problems.types import Block

if TYPE_CHECKING:
    from layoutopt.hardware.devices import Device
    from layoutopt.problems.answer import Arrangement


def finish(
    tile_set: Block,
    arrangement: Arrangement,
    gpu: Device,
    as_json: bool,
    table: Path | None,
    code: Path | None,
    certificate: Path | None,
) -> int:
    """Write the files asked for and print the answer; returns the exit code."""
    text = None
    if arrangement.tiles and (code is not None or not as_json):
        from layoutopt.codegen.tiles import arrangement_code

        text = arrangement_code(tile_set, arrangement, gpu)
    outputs = {}
    if arrangement.tiles and table is not None:
        outputs[table] = _npz(tile_set, arrangement)
    if text is not None and code is not None:
        outputs[code] = text.encode()
    if certificate is not None:
        from layoutopt.search.block_certificate import block_certificate

        outputs[certificate] = json.dumps(block_certificate(tile_set, gpu, arrangement)).encode() + b"\n"
    write_all(outputs)
    if as_json:
        say_json(arrangement.to_json())
    else:
        from layoutopt.report.tile_set_text import arrangement_report

        say(arrangement_report(tile_set, arrangement))
        if text is not None and code is None:
            click.echo("\n" + text, nl=False)
    if not arrangement.tiles:
        return 3 if arrangement.status is Status.UNKNOWN else 1
    return 1 if arrangement.excess else 0


def _npz(tile_set: Block, arrangement: Arrangement) -> bytes:
    """Byte offsets of each tile's first stage from the start of all of them, by the tile's name."""
    import numpy as np

    from layoutopt.search.tile_groups import groups

    tiles = {tile.name: tile for tile in tile_set.tiles}
    tables: dict[str, Any] = {}
    for (_, problem), part in zip(groups(tile_set), arrangement.tiles, strict=True):
        assert part.result.layout is not None
        offsets = part.result.layout.table().ravel()
        for place in part.places:
            tile = tiles[place.tile]
            own = offsets[:: tile.element_bits // problem.tile.element_bits][: tile.elements]
            tables[place.tile] = own.reshape(tile.shape) + place.base_bytes
    buffer = io.BytesIO()
    np.savez(buffer, **tables)
    return buffer.getvalue()
