"""Output files: written whole, all of them, or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from layoutopt.errors import ProblemFileError


def write_all(outputs: Mapping[Path, bytes]) -> None:
    """Write every output, or none: each to a temporary file in its folder, renamed when all are there.

    Raises:
        ProblemFileError: a file cannot be written; old ones are left as they were.
    """
    umask = os.umask(0)
    os.umask(umask)
    temporary: dict[Path, str] = {}
    try:
        for path, data in outputs.items():
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            handle, temporary[path] = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(temporary[path], 0o666 & ~umask)
        for path in outputs:
            os.replace(temporary[path], path)
            del temporary[path]
    except OSError as error:
        raise ProblemFileError("", f"cannot write {str(path)!r}: {error.strerror}") from None
    finally:
        for left in temporary.values():
            os.unlink(left)


def check_distinct(problem: Path, **outputs: Path | None) -> None:
    """Refuse options that name one file twice, or the problem itself.

    Raises:
        ProblemFileError: two of them are the same file.
    """
    seen = {problem.resolve(): "the problem"}
    for option, path in outputs.items():
        if path is not None:
            other = seen.setdefault(path.resolve(), f"--{option}")
            if other != f"--{option}":
                raise ProblemFileError("", f"--{option} would overwrite {other}, {str(path)!r}")
