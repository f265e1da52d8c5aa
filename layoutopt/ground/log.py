"""The log of the package, which a program turns on as any other: `logging.getLogger("layoutopt")`."""

import logging
from collections.abc import Callable
from typing import Final

LOG: Final = logging.getLogger("layoutopt")
LOG.addHandler(logging.NullHandler())

Progress = Callable[[str], None]
"""Called with a line of text from time to time."""


def told(progress: Progress | None) -> Progress:
    """Who is told how far a search is: whoever asks, else the log, at level DEBUG."""
    return LOG.debug if progress is None else progress
