"""Output files: written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from layoutopt.errors import ProblemFileError


def write(path: Path, data: bytes) -> None:
    """Write `data` to `path` through a temporary file in the same folder.

    Raises:
        ProblemFileError: the file cannot be written; an old one is left as it was.
    """
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise ProblemFileError("", f"cannot write {str(path)!r}: {error.strerror}") from None
