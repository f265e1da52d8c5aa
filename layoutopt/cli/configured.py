"""What `check` checks where nothing is named: layoutopt.toml, or [tool.layoutopt] of pyproject.toml."""

import tomllib
from pathlib import Path
from typing import Annotated, Any

import click
from msgspec import Meta, Struct

from layoutopt.errors import ProblemFileError
from layoutopt.ground import json_data
from layoutopt.ground.escape import shown

_MAX_BYTES = 16 << 20


class _Checked(Struct, frozen=True, forbid_unknown_fields=True):
    """The table of such a file, whose names are relative to its folder."""

    check: Annotated[tuple[str, ...], Meta(min_length=1)]
    baseline: str | None = None


def configured(folder: Path) -> tuple[tuple[Path, ...], Path | None]:
    """The paths to check, and the baseline, both as named from a folder that has one of the files.

    Raises:
        ProblemFileError: the file is wrong.
        UsageError: there is none, or it names nothing.
    """
    for name, table in (("layoutopt.toml", ()), ("pyproject.toml", ("tool", "layoutopt"))):
        path = folder / name
        if not path.is_file():
            continue
        try:
            found: Any = tomllib.loads(json_data.read(path, _MAX_BYTES).decode())
        except (ValueError, RecursionError) as error:
            raise ProblemFileError(name, f"no TOML: {shown(str(error), 200)}") from None
        for key in table:
            found = found.get(key, {}) if isinstance(found, dict) else {}
        if found:
            with json_data.named_by(name):
                asked = json_data.convert(found, _Checked, ".".join(table))
            baseline = folder / asked.baseline if asked.baseline is not None else None
            return tuple(folder / path for path in asked.check), baseline
    raise click.UsageError("nothing to check: name files, or write check = [...] into layoutopt.toml")
