"""The version of the package, which answers and code name."""

from __future__ import annotations

__version__ = "0.1.0"
