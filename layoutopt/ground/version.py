"""The version of the package, which answers and code name."""

__version__ = "0.1.0"
