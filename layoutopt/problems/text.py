"""Problem data as the text of a file that people read: one line a field, one line an access."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def problem_text(data: Mapping[str, Any]) -> str:
    """JSON text of problem data, ending in a newline; accesses start with name and op."""
    lines = []
    for key, value in data.items():
        if key == "accesses":
            accesses = ",\n".join(f"  {json.dumps(_ordered(access), ensure_ascii=False)}" for access in value)
            lines.append(f' "accesses": [\n{accesses}\n ]')
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _ordered(access: Mapping[str, Any]) -> dict[str, Any]:
    first = ("name", "op", "bytes", "index", "for")
    known = {key: access[key] for key in first if key in access}
    return {**known, **{key: value for key, value in access.items() if key not in known}}
