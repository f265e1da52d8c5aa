"""What nvcc made of a source, kept: the same source, headers, options and compiler give the same file again.

The folder is $LAYOUTOPT_CACHE, else `layoutopt` in the user's folder for caches; empty, nothing is kept. An
entry is a file that nvcc wrote and the list of files that it read, with their digests; a header that another
file now hides from it is not noticed, as with ccache.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from layoutopt.ground.temporary import cache_folder, replacing

MOST_ENTRIES: Final = 256
# What compilers read beside their command line.
_VARIABLES: Final = (
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
)


class _Entry(msgspec.Struct):
    """What was read, with SHA-256 of each file, and what came out."""

    read: dict[str, str]
    made: bytes


def kept(compiler: str, words: Sequence[str], make: Callable[[Path], bytes], folder: Path) -> bytes:
    """The output of a compiler, from the cache if its options, its environment and all it read are the same.

    Args:
        compiler: the program, whose change makes all that it wrote worthless.
        words: its options and files by whole names.
        make: compiles, and writes the names of the files that it reads as a rule of make into the file.
        folder: for that file.
    """
    home = cache_folder()
    rule = folder / "read.d"
    if home is None:
        return make(rule)
    told = os.stat(compiler)
    around = (os.getcwd(), *(os.environ.get(variable, "") for variable in _VARIABLES))
    name = "\0".join((compiler, str(told.st_size), str(told.st_mtime_ns), *around, *words))
    place = home / (hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest() + ".nvcc")
    with contextlib.suppress(OSError, msgspec.DecodeError, msgspec.ValidationError):
        entry = msgspec.msgpack.decode(place.read_bytes(), type=_Entry)
        if all(_digest(path) == digest for path, digest in entry.read.items()):
            return entry.made
    made = make(rule)
    with contextlib.suppress(OSError, UnicodeEncodeError):  # names that are no UTF-8 are not kept
        read = {path: _digest(path) for path in _listed(rule.read_text("utf-8", "surrogateescape"))}
        home.mkdir(parents=True, exist_ok=True)
        with replacing(place) as temporary:
            temporary.write_bytes(msgspec.msgpack.encode(_Entry(read, made)))
        for old in sorted(home.glob("*.nvcc"), key=lambda one: one.stat().st_mtime)[:-MOST_ENTRIES]:
            old.unlink(missing_ok=True)
    return made


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _listed(rule: str) -> list[str]:
    """The files behind the colon of a rule of make; spaces in names have a backslash before them."""
    words = re.split(r"(?<!\\)\s+", rule.partition(" : ")[2].replace("\\\n", " ").strip())
    return [word.replace("\\ ", " ") for word in words]
