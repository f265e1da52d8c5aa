"""What `check` checks where nothing is named: layoutopt.toml, or [tool.layoutopt] of pyproject.toml."""

import tomllib
from pathlib import Path
from typing import Any

import click

from layoutopt.errors import ProblemFileError
from layoutopt.ground import json_data
from layoutopt.ground.escape import shown

_MAX_BYTES = 16 << 20


def configured(folder: Path) -> tuple[tuple[Path, ...], Path | None]:
    """The paths to check, and the baseline, both as named from a folder that has one of the files.

    Raises:
        ProblemFileError: the file is wrong.
        UsageError: there is none, or it names nothing.
    """
    for name, table in (("layoutopt.toml", ()), ("pyproject.toml", ("tool", "layoutopt"))):
        path = folder / name
        if path.is_file():
            found: Any = _parsed(path)
            for key in table:
                found = found.get(key, {}) if isinstance(found, dict) else {}
            if found:
                return _read(found, folder, name)
    raise click.UsageError("nothing to check: name files, or write check = [...] into layoutopt.toml")


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(json_data.read(path, _MAX_BYTES).decode())
    except (ValueError, RecursionError) as error:
        raise ProblemFileError(path.name, f"no TOML: {shown(str(error), 200)}") from None


def _read(found: Any, folder: Path, name: str) -> tuple[tuple[Path, ...], Path | None]:
    if not isinstance(found, dict):
        raise ProblemFileError(f"{name}: tool.layoutopt", f"expected a table, given {shown(repr(found))}")
    unknown = sorted(set(found) - {"check", "baseline"})
    if unknown:
        raise ProblemFileError(name, f"expected check and baseline, given {shown(unknown[0])}")
    paths, baseline = found.get("check"), found.get("baseline")
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        raise ProblemFileError(f"{name}: check", f"expected names of files, given {shown(repr(paths))}")
    if baseline is not None and not isinstance(baseline, str):
        raise ProblemFileError(f"{name}: baseline", f"expected a file, given {shown(repr(baseline))}")
    return tuple(folder / path for path in paths), folder / baseline if baseline is not None else None
