"""Problem data as the text of a file that people read: one line a field, one line an access."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import shown, writable

_SHOWN: Final = 8  # entries of a table
_TABLE: Final = re.compile(r"\[([-\d\s,]+)\]")


def problem_text(data: Mapping[str, Any]) -> str:
    """JSON text of problem data, ending in a newline; accesses start with name and op.

    Raises:
        ProblemFileError: it holds what is no text, such as bytes of the command line that are no UTF-8.
    """
    lines = []
    for key, value in data.items():
        if key == "accesses":
            accesses = ",\n".join(f"  {json.dumps(_ordered(access), ensure_ascii=False)}" for access in value)
            lines.append(f' "accesses": [\n{accesses}\n ]')
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    if writable(text) != text:
        wrong = next(c for c in text if writable(c) != c)
        raise ProblemFileError("", f"half of a surrogate pair is no character; given {shown(wrong)}")
    return text


def abridged(expression: str) -> str:
    """An expression with the tables in it cut short, for people."""

    def cut(match: re.Match[str]) -> str:
        entries = match[1].split(",")
        short = f"[{','.join(entries[:_SHOWN])}, ... {len(entries)} entries]"
        return match[0] if len(entries) <= _SHOWN else short

    return _TABLE.sub(cut, expression)


def tables(expressions: Iterable[str]) -> list[tuple[int, ...]]:
    """The tables in some expressions, each once."""
    texts = [match for expression in expressions for match in _TABLE.findall(expression)]
    return [tuple(map(int, text.split(","))) for text in dict.fromkeys(texts)]


def _ordered(access: Mapping[str, Any]) -> dict[str, Any]:
    first = ("name", "op", "bytes", "index", "for")
    known = {key: access[key] for key in first if key in access}
    return {**known, **{key: value for key, value in access.items() if key not in known}}
