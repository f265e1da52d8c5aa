"""Edits of a file, some within others, and the file with all of them done."""

import os
from typing import NamedTuple

from tree_sitter import Node

from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import shown
from layoutopt.kernels.read.source import File


class Edit(NamedTuple):
    """Bytes `start` to `end` of a file, replaced by text and by nodes of it, with the edits in these."""

    file: File
    start: int
    end: int
    parts: tuple[str | Node, ...]


def rendered(file: File, edits: list[Edit], line_end: str = "\n") -> bytes:
    """The file with its edits done, inner ones within outer ones; `line_end` ends lines that these begin.

    Raises:
        ProblemFileError: two edits cannot both be done.
    """
    own = sorted(
        (edit for edit in edits if edit.file is file), key=lambda e: (e.start, -e.end, not _wraps(e))
    )
    for k, edit in enumerate(own):
        parts = (part.replace("\n", line_end) if isinstance(part, str) else part for part in edit.parts)
        own[k] = edit._replace(parts=tuple(parts))
    for k, edit in enumerate(own):
        for inner in own[k + 1 :]:
            if inner.start >= edit.end:
                break
            kept = (n for n in edit.parts if not isinstance(n, str))
            if not any(n.start_byte <= inner.start and inner.end <= n.end_byte for n in kept):
                line = file.data.count(b"\n", 0, inner.start) + 1
                place = f"{shown(os.path.basename(file.path))}:{line}"
                raise ProblemFileError(place, "two changes of one expression cannot both be made")
    return _render(file.data, 0, len(file.data), own)


def _wraps(edit: Edit) -> bool:
    """Whether all that an edit replaces stays within what it writes."""
    nodes = (part for part in edit.parts if not isinstance(part, str))
    return any((node.start_byte, node.end_byte) == (edit.start, edit.end) for node in nodes)


def _render(data: bytes, start: int, end: int, edits: list[Edit]) -> bytes:
    """Bytes `start` to `end` with the edits within them done; edits are sorted, outer ones first."""
    text, done = b"", start
    for edit in edits:
        if edit.start < done or edit.end > end:
            continue  # an inner one, done with the outer one; or elsewhere
        text += data[done : edit.start]
        others = [one for one in edits if one is not edit]
        for part in edit.parts:
            if isinstance(part, str):
                text += part.encode()
            else:
                text += _render(data, part.start_byte, part.end_byte, others)
        done = edit.end
    return text + data[done:end]
