"""The texts of CUDA code: `.cu` files beside this module, in parts that begin with `//@ NAME`."""

import re
from collections.abc import Iterable
from functools import cache
from importlib import resources


def filled(file: str, part: str, **values: object) -> str:
    """A part of a file, each `@KEY@` in it replaced by the value of that name."""
    return filled_text(_parts(file)[part], **values)


def filled_text(text: str, **values: object) -> str:
    """A text, each `@KEY@` in it replaced by the value of that name."""
    for key, value in values.items():
        text = text.replace(f"@{key}@", str(value))
    return text


def lines(text: Iterable[str], indent: int = 0) -> str:
    """Each line with its end, for a place of its own in a text."""
    return "".join(f"{' ' * indent}{line}\n" for line in text)


def parts_of(text: str) -> dict[str, str]:
    """The parts of a text by their names."""
    _, *pieces = re.split(r"^//@ (\w+)\n", text, flags=re.M)
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


@cache
def _parts(file: str) -> dict[str, str]:
    return parts_of(resources.files("layoutopt.codegen").joinpath(f"{file}.cu").read_text("utf-8"))
