"""Valid problems, devices, records and traces, for the fuzzer of files to change, and hostile values."""

from __future__ import annotations

import json
from pathlib import Path

_DATA = json.loads(Path(__file__).with_name("originals.json").read_text())
PROBLEMS, DEVICES, TEMPLATE, SIZES = (_DATA[key] for key in ("problems", "devices", "template", "sizes"))
WORDS, EXPRESSIONS, NUMBERS = (_DATA[key] for key in ("words", "expressions", "numbers"))
TILES = [*_DATA["tiles"], "9" * 5000 + "x1"]
PARAMETERS = [*_DATA["parameters"], "M=" + ",".join(map(str, range(1, 20002)))]
PIECES = [*_DATA["pieces of code"], "9" * 40, "0x" + "f" * 40, "a" * 3000]
HOSTILE = [
    *_DATA["hostile"],
    *(10**400, float("inf"), float("nan"), "?" * 5000, "(" * 500, "a" * 300),
    *("-(" * 90 + "1" + ")" * 90, "tid + " * 400 + "0"),
]
LANES = list(range(0, 128, 4))
RECORDS = [
    {"op": "ld.shared.b32", "active": "0xffffffff", "byte_address": LANES},
    {"op": "st.shared.v4.b32", "byte_address": [4 * a for a in LANES]},
]
TRACE = [
    {"access": "rows", "op": "st.shared.b32", "warp": warp, "sequence": i, "active": "0xffffffff"}
    | {"byte_address": [128 * warp + 256 * i + a for a in LANES]}
    for warp in range(2)
    for i in range(2)
]
_ROWS = [[[4 * i + k // 8, k % 8] for k in range(32)] for i in range(2)]
_GATHERED = [[[k * 3 % 8, k * 5 % 8] for k in range(32)]]
COORDINATES = {
    "name": "recorded",
    "tile": {"shape": [8, 8], "element": "f32"},
    "threads": 32,
    "accesses": [
        {"name": "rows", "op": "store", "bytes": 4, "coordinates": _ROWS},
        {"name": "gather", "op": "load", "bytes": 4, "coordinates": _GATHERED, "weight": 3}
        | {"active": [[k != 7 for k in range(32)]]},
    ],
}
