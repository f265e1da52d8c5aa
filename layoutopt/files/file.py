"""JSON to a problem of one tile (`Problem`) or of several (`Block`), with errors that name the field."""

import os
import re
from pathlib import Path
from typing import Any, Final

import msgspec

from layoutopt.accesses import named_accesses
from layoutopt.errors import ProblemFileError
from layoutopt.files import catalogue, templates
from layoutopt.files.checks import check, check_element, fields_of
from layoutopt.files.result_file import is_answer
from layoutopt.ground import json_data
from layoutopt.ground.escape import described
from layoutopt.problems.types import SCHEMA, Block, Problem

MAX_FILE_BYTES: Final = 8 << 20
# Fields that there were, and what to write instead.
_GONE: Final = {
    "layout.must_be": 'an access says it, such as {"name": "out", "op": "tma.store", "mode": "128B"}',
    "sizes": "give the values in `params`; `layoutopt sweep --export FILE.cuh` makes one header for all",
}
# Stands for the accesses while the rest of a file is read.
_ANY_ACCESS: Final = {"name": "any", "op": "load", "index": ["0"]}


def load(path: str | Path) -> Problem | Block:
    """Read a problem of one tile or of several: a file, else the problem of that name in the catalogue.

    Raises:
        ProblemFileError: the file cannot be read or does not hold a problem; `field` says where.
    """
    return from_data(parsed(read(path)))


def read(path: str | Path) -> bytes:
    """The text of a problem file, or of the problem of that name in the catalogue.

    Raises:
        ProblemFileError: there is neither, or it cannot be read.
    """
    if not isinstance(path, str | os.PathLike):
        raise ProblemFileError("", f"expected the name of a file, got {described(path)}")
    name = str(path)
    if Path(path).suffix != ".json" and _is_missing(name):
        found = catalogue.find(name)
        if found is None:
            near = catalogue.near(name)
            hint = f"did you mean {' or '.join(near)}?" if near else "`layoutopt problems` lists them"
            raise ProblemFileError("", f"no file and no problem of the catalogue is called {name!r}; {hint}")
        path = found
    return json_data.read(path, MAX_FILE_BYTES)


def _is_missing(path: str) -> bool:
    """Whether there is nothing of that name; what is there and cannot be reached is not missing."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):  # whoever reads it says why
        return False
    return False


def parsed(data: bytes) -> Any:
    """JSON data of a problem file from its text.

    Raises:
        ProblemFileError: the text is too long, or no JSON.
    """
    if len(data) > MAX_FILE_BYTES:
        raise ProblemFileError("", f"a problem file has at most {MAX_FILE_BYTES:,} bytes")
    return json_data.parse(data)


def from_data(raw: Any) -> Problem | Block:
    """A problem of one tile (`tile`) or of several (`tiles`) from decoded JSON data.

    Raises:
        ProblemFileError: the data is not a problem; `field` says where.
    """
    if isinstance(raw, dict) and "convert" in raw:
        raise ProblemFileError("convert", "a conversion of registers, which `layoutopt convert` answers")
    if is_answer(raw):
        raise ProblemFileError("schema", f"expected {SCHEMA!r}, a problem; this is a result")
    kind: type[Problem | Block] = Block if isinstance(raw, dict) and "tiles" in raw else Problem
    try:
        problem = json_data.convert(written_out(templates.single(raw)), kind)
    except ProblemFileError as error:
        place = f"{error.field}.{error.reason.rpartition('unknown field ')[2].strip('`')}".lstrip(".")
        instead = _GONE.get(re.sub(r"^tiles\[\d+\]\.", "", place))
        if instead is None:
            raise
        raise ProblemFileError(place, f"there is no such field: {instead}") from None
    check(problem)
    return problem


def tile_from_data(raw: Any) -> Problem:
    """The same where one tile is expected."""
    problem = from_data(raw)
    if isinstance(problem, Block):
        raise ProblemFileError("tiles", "one `tile` is expected here, not several")
    return problem


def written_out(raw: Any) -> Any:
    """Problem data in which named accesses (`layoutopt.accesses.named_accesses`) are ordinary ones.

    Raises:
        ProblemFileError: a named access, or what it depends on, is wrong.
    """
    accesses = raw.get("accesses") if isinstance(raw, dict) else None
    if not isinstance(accesses, list) or not any(map(named_accesses.is_named, accesses)):
        return raw
    written = list(accesses)
    named = [i for i, access in enumerate(accesses) if named_accesses.is_named(access)]
    if "tiles" not in raw:
        head = json_data.convert({**raw, "accesses": [_ANY_ACCESS]}, Problem)
        check_element(head.tile)
        for i in named:
            written[i] = named_accesses.expanded(accesses[i], f"accesses[{i}]", head)
        return {**raw, "accesses": written}
    block = json_data.convert({**raw, "accesses": [{**_ANY_ACCESS, "tile": "any"}]}, Block)
    tiles = {tile.name: tile for tile in block.tiles}
    for i in named:
        access, name = accesses[i], accesses[i].get("tile")
        if not isinstance(name, str) or name not in tiles:
            expected = f"expected the name of a tile, one of {', '.join(tiles)}"
            raise ProblemFileError(f"accesses[{i}].tile", expected)
        with fields_of(block, tiles[name]):
            check_element(tiles[name])
        own = {key: value for key, value in access.items() if key != "tile"}
        plain = named_accesses.expanded(own, f"accesses[{i}]", block.problem(tiles[name]))
        written[i] = {**plain, "tile": name}
    return {**raw, "accesses": written}


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a problem file, generated from the types."""
    kinds = [Problem, Block, templates.Template, *named_accesses.TYPES]
    (one, several, template, *named), components = msgspec.json.schema_components(
        kinds, ref_template="#/$defs/{name}"
    )
    items = components["Problem"]["properties"]["accesses"]
    items["items"] = {"anyOf": [items["items"], *named]}
    tile = components["TileAccess"]["properties"]["tile"]
    for reference in named:  # the same of one of several tiles
        name = reference["$ref"].rpartition("/")[2]
        own = components[name]
        properties, required = {"tile": tile, **own["properties"]}, ["tile", *own["required"]]
        components[f"Tile{name}"] = {
            **own, "title": f"Tile{name}", "properties": properties, "required": required
        }  # fmt: skip
    items = components["Block"]["properties"]["accesses"]
    of_tiles = [{"$ref": reference["$ref"].replace("/$defs/", "/$defs/Tile")} for reference in named]
    items["items"] = {"anyOf": [items["items"], *of_tiles]}
    components["Template"]["required"] = ["params"]
    for component in components.values():  # fields have descriptions of their own
        if "description" in component:
            component["description"] = re.split(r"\n\n *Attributes:", component["description"])[0]
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "layoutopt problem",
        "anyOf": [one, several, template],
        "$defs": components,
    }
    data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))
    return data
