"""The problems that ship with the package, by name.

A problem is called by its file's name without `.json`, or by folder and name
(`basics/transpose_32x32_f32`) where several folders have one of that name. The folder `tile_sets` holds
problems of several tiles.
"""

import difflib
from pathlib import Path

SCHEMA_NAME = "problem.schema"
TILE_SETS = "tile_sets"


def folder() -> Path:
    """Where the problem files are: in the package, or beside it in a checkout."""
    installed = Path(__file__).with_name("catalogue")
    return installed if installed.is_dir() else Path(__file__).parents[2] / "problems"


def problems() -> dict[str, Path]:
    """Every problem file by folder and name, sorted."""
    root = folder()
    files = sorted(path for path in root.rglob("*.json") if path.stem != SCHEMA_NAME)
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in files}


def of_one_tile() -> dict[str, Path]:
    """Every problem of one tile, as in `problems`."""
    return {name: path for name, path in problems().items() if path.parent.name != TILE_SETS}


def short_names() -> dict[str, Path]:
    """Every problem file by the shortest name that `find` takes for it."""
    known = problems()
    stems = [path.stem for path in known.values()]
    return {path.stem if stems.count(path.stem) == 1 else name: path for name, path in known.items()}


def find(name: str) -> Path | None:
    """The file of the problem called `name`, if there is exactly one."""
    return problems().get(name) or short_names().get(name)


def near(name: str) -> list[str]:
    """Names much like `name`."""
    return difflib.get_close_matches(name, short_names(), n=3, cutoff=0.5)
