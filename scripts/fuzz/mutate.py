"""Valid files of every kind, hostile values, and what is done to the files."""

import copy
import gzip
import io
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_DATA = json.loads(Path(__file__).with_name("originals.json").read_text())
PROBLEMS, DEVICES, TEMPLATE = (_DATA[key] for key in ("problems", "devices", "template"))
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
PIECE = re.compile(r"0x[0-9a-fA-F]+|[%$.\w]+|\s+|.", re.S)


def jsonable(text: object) -> bytes:
    return json.dumps(text).encode()


def lines(records: list) -> bytes:
    return b"".join(jsonable(r) + b"\n" for r in records)


def changed(value: object, rng: random.Random) -> bytes:
    """JSON with fields changed, more often than with bytes changed."""
    return jsonable(mutate_data(value, rng)) if rng.random() < 0.85 else mutate_bytes(jsonable(value), rng)


def paths(data: object, at: tuple = ()) -> Iterator[tuple]:
    yield at
    if isinstance(data, dict | list):
        for key in data if isinstance(data, dict) else range(min(len(data), 40)):
            yield from paths(data[key], (*at, key))


def mutate_data(data: object, rng: random.Random) -> object:
    """Values changed, fields removed, added and renamed: 1 to 3 of these."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = rng.choice(list(paths(data)))
        if not at:
            if rng.random() < 0.1:
                return rng.choice(HOSTILE)
            continue
        parent = data
        for key in at[:-1]:
            parent = parent[key]
        kind = rng.random()
        if kind < 0.65:
            parent[at[-1]] = copy.deepcopy(near(parent[at[-1]], rng))
        elif kind < 0.75:
            del parent[at[-1]]
        elif isinstance(parent, dict):
            name = rng.choice([*WORDS, "zz", "\x1b[2J", "\ud800", "q" * 3000, ""])
            parent[name] = parent.pop(at[-1]) if kind < 0.85 else copy.deepcopy(rng.choice(HOSTILE))
        else:
            parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(rng.choice([*parent, *HOSTILE])))
    return data


def near(value: object, rng: random.Random) -> object:
    """Something hostile, or something close to what it was."""
    if rng.random() < 0.35 and isinstance(value, int) and not isinstance(value, bool):
        part = value / 2**40 if abs(value) < 2**1000 else 0.5
        return rng.choice([value + 1, value - 1, -value, 2 * value, value * 1000, value << 20, part])
    if rng.random() < 0.35 and isinstance(value, str) and value:
        k = rng.randrange(len(value))
        more = value[:k] + rng.choice("()*%/^x0\n\x00é") + value[k:]
        return rng.choice([value[:k], more, value + "\n", value.upper(), [value], value * 200])
    return rng.choice(HOSTILE)


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Cut, flipped, doubled, encoded otherwise."""
    k, j = (rng.randrange(len(data) + 1) for _ in range(2))
    a, b = sorted((k, j))
    bit = bytearray(data)
    for _ in range(rng.choice([1, 1, 4]) if bit else 0):
        bit[rng.randrange(len(bit))] ^= 1 << rng.randrange(8)
    changed = [
        *(b"", data[:k], data[k:], data[:a] + data[b:], data + data, data[:k] + data[a:b] + data[k:]),
        *(bytes(bit), bytes(bit), bytes(bit)),
        *(b"\xef\xbb\xbf" + data, data.decode("latin-1").encode("utf-16")),
        *(data[:k] + piece + data[k:] for piece in (b"\x00" * 9, b"\xff\xfe", b"9" * 5000)),
        *(gzip.compress(data), gzip.compress(data)[:-5], b"[" * 100000, b'{"a":' * 50000),
        *(data + b"\n{}", b"\n" * 1000 + data, b" " * 70000 + data, data.replace(b"4", b"1" * 30)),
    ]
    return rng.choice(changed)


def mutate_array(rng: random.Random) -> bytes:
    """A table of the wrong shape, type or values; a header that lies."""
    table = np.arange(64).reshape(8, 8) * 4
    tables = [
        *(table, table[:4], table.ravel(), table[None], -table, table * 2**40, table + 1, table * 0),
        *(table.astype(kind) for kind in (np.float64, np.int32, np.uint64, ">i8", bool, complex, "M8[s]")),
        *(np.full((8, 8), 2**63 - 1), np.full((8, 8), -(2**63)), table * 1000003, np.asfortranarray(table)),
        *(np.array([], np.int64), np.array(3), np.array([["a"]]), table.astype([("a", np.int64)])),
    ]
    out = io.BytesIO()
    np.save(out, rng.choice(tables))
    how = rng.random()
    if how < 0.5:
        return out.getvalue()
    if how < 0.75:
        changes = [
            *((b"(8, 8)", shape) for shape in (b"(9, 8)", b"(-8,8)", b"(8**9)")),
            *((b"'<i8'", kind) for kind in (b"'|O8'", b"'<V9'")),
            *((b"descr", b"d\xffscr"), (b"\x93NUMPY\x01", b"\x93NUMPY\x07"), (b"False", b"Fal()")),
            *((b"}", b"]"), (b"NUMPY", b"NUMPX"), (b"\x93NUMPY", b"PK\x03\x04N")),
            (b"(8, 8), ", b"(99999999999, 9), "),
        ]
        return out.getvalue().replace(*rng.choice(changes), 1)
    return mutate_bytes(out.getvalue(), rng)


def mutate_code(text: str, rng: random.Random) -> bytes:
    """Lines and tokens of a listing exchanged, dropped, doubled and replaced: 1 to 4 of these."""
    rows = text.splitlines()
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        k, j = rng.randrange(len(rows)), rng.randrange(len(rows))
        kind = rng.random()
        if kind < 0.1:
            del rows[k]
        elif kind < 0.2:
            rows.insert(j, rows[k])
        elif kind < 0.3:
            rows[k], rows[j] = rows[j], rows[k]
        elif kind < 0.33:
            del rows[min(k, j) : max(k, j)]
        else:
            pieces = PIECE.findall(rows[k]) or [""]
            at = rng.randrange(len(pieces))
            others = PIECE.findall(rows[j])
            if kind < 0.7:  # another register for a register, another number for a number
                others = [p for p in PIECE.findall(text) if alike(p, pieces[at])]
            pieces[at] = rng.choice(others if others and kind < 0.8 else PIECES)
            rows[k] = "".join(pieces)
        if not rows:
            return b""
    return ("\n".join(rows) + "\n").encode("utf-8", "replace")


def alike(one: str, other: str) -> bool:
    """Whether two tokens are of one kind: the same but for digits, or both opcodes."""
    return re.sub(r"[0-9a-fx]+", "0", one) == re.sub(r"[0-9a-fx]+", "0", other) or (
        one != other and one[:1].isupper() and other[:1].isupper() and "." in one and "." in other
    )
