"""What is done to valid files, and hostile values."""

from __future__ import annotations

import copy
import gzip
import io
import json
import random
from collections.abc import Iterator

import numpy as np

HOSTILE = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    3,
    7,
    33,
    1 << 31,
    1 << 40,
    1 << 63,
    1 << 64,
    -(1 << 63),
    10**400,
    0.5,
    -0.0,
    1e308,
    float("inf"),
    float("nan"),
    "",
    " ",
    "0",
    "tid",
    "nan",
    "\n",
    "a\n",
    "\x1b[31mred",
    "a\x00b",
    "\u202eabc",
    "\ud800",
    "\ufffe",
    "=1+1",
    "<b>|</b>",
    "$x_1$",
    "\u0661",
    "*/ int x; /*",
    "?" * 5000,
    "(" * 500,
    "x0",
    "i",
    "a" * 300,
    [],
    {},
    [[]],
    [0],
    [1, 2, 3, 4],
    [None],
    {"a": 1},
    {"bytes": 0},
    {"bytes": 17},
    {"bytes": 12, "align": 8},
    {"bytes": 4, "align": 3},
    "tid // 0",
    "1 << 99999",
    "9**9**9",
    "tid % 0",
    "__import__('os')",
    "[1 for x in y]",
    "tid.real",
    "1e3",
    "tid and",
    "0x1f",
    "lane, lane",
    "tid if tid else",
    "min(1)",
    "max()",
    "-(" * 90 + "1" + ")" * 90,
    "tid + " * 400 + "0",
    "é",
    "ⅷ",
    "x0*64 + x1",
    "lookup[x0]",
]
WORDS = [
    "name",
    "op",
    "bytes",
    "index",
    "for",
    "where",
    "any",
    "weight",
    "layout",
    "families",
    "tile",
    "tiles",
    "shape",
    "element",
    "target",
    "threads",
    "max_bytes",
    "must_be",
    "order",
    "offset",
    "digits",
    "swizzle",
    "lookup",
    "status",
    "proof",
    "notes",
    "params",
    "stages",
    "overlay",
    "align",
    "lanes",
    "banks",
    "phase",
    "fragment",
    "copy",
    *[
        "coordinates",
        "active",
        "bases",
        "sizes",
        "block",
        "kernel",
        "global",
        "contiguous",
        "iterations",
        "box",
        "mode",
        "major",
        "rows",
        "registers",
        "cluster",
        "multicast",
        "first_warp",
        "mn",
        "other_shared_bytes",
        "type",
    ],
]

EXPRESSIONS = [
    "x0*8 + x1",
    "x0*9 + x1",
    "x0*8 + (x1 ^ x0)",
    "x0",
    "x0**9**9",
    "x0 << 10**9",
    "x0 << 40",
    "-x0",
    "x0*8 - x1",
    "x9",
    "x0 // 0",
    "x0 % (x1 - x1)",
    "1e5",
    "x0.__class__",
    "\u0661*x0",
    "",
    " ",
    "((((x0",
    "x0 if x1",
    "x0*2**62 + x1",
    "(lambda: 0)()",
    "x0*8 + x1 # c",
    "x0\n*8 + x1",
    "\u202ex0",
    "x0 and x1",
    "not x0",
    "x0 == x1",
    "0",
    "min(x0, x1)*8",
    "published",
    "x0*8+x1;",
    "x0*99999999999999999999 + x1",
    "~x0",
    "x0*8 + x1 + 0.0",
    "True",
    "x0*1000000 + x1",
]
NUMBERS = [
    "0",
    "-1",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "",
    "x",
    "1e-9",
    "0.05",
    "999999999",
    "99999999999999999999",
    "1_0",
    "٣",
    " 1",
    "0x10",
    "1\n",
]


def jsonable(text: object) -> bytes:
    return json.dumps(text).encode()


def array(values: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, values)
    return out.getvalue()


def lines(records: list) -> bytes:
    return b"".join(json.dumps(r).encode() + b"\n" for r in records)


def paths(data: object, at: tuple = ()) -> Iterator[tuple]:
    yield at
    if isinstance(data, dict):
        for key in data:
            yield from paths(data[key], (*at, key))
    elif isinstance(data, list):
        for k in range(min(len(data), 40)):
            yield from paths(data[k], (*at, k))


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
        return rng.choice(
            [
                value + 1,
                value - 1,
                -value,
                2 * value,
                value * 1000,
                value << 20,
                value / 2**40 if abs(value) < 2**1000 else 0.5,
            ]
        )
    if rng.random() < 0.35 and isinstance(value, str) and value:
        k = rng.randrange(len(value))
        return rng.choice(
            [
                value[:k],
                value[:k] + rng.choice("()*%/^x0\n\x00é") + value[k:],
                value + "\n",
                value.upper(),
                [value],
                value * 200,
            ]
        )
    return rng.choice(HOSTILE)


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Cut, flipped, doubled, encoded otherwise."""
    k = rng.randrange(len(data) + 1)
    j = rng.randrange(len(data) + 1)
    a, b = sorted((k, j))
    bit = bytearray(data)
    for _ in range(rng.choice([1, 1, 4])):
        if bit:
            bit[rng.randrange(len(bit))] ^= 1 << rng.randrange(8)
    return rng.choice(
        [
            b"",
            data[:k],
            data[k:],
            data[:a] + data[b:],
            data + data,
            data[:k] + data[a:b] + data[k:],
            bytes(bit),
            bytes(bit),
            bytes(bit),
            b"\xef\xbb\xbf" + data,
            data.decode("latin-1").encode("utf-16"),
            data[:k] + b"\x00" * 9 + data[k:],
            data[:k] + b"\xff\xfe" + data[k:],
            gzip.compress(data),
            gzip.compress(data)[:-5],
            b"[" * 100000,
            b'{"a":' * 50000,
            data[:k] + b"9" * 5000 + data[k:],
            data + b"\n{}",
            b"\n" * 1000 + data,
            b" " * 70000 + data,
            data.replace(b"4", b"1" * 30),
        ]
    )


def mutate_array(rng: random.Random) -> bytes:
    """A table of the wrong shape, type or values; a header that lies."""
    table = np.arange(64).reshape(8, 8) * 4
    values = rng.choice(
        [
            table,
            table.astype(np.float64),
            table.astype(np.int32),
            table.astype(np.uint64),
            table[:4],
            table.ravel(),
            table[None],
            -table,
            table * 2**40,
            table + 1,
            table * 0,
            np.full((8, 8), 2**63 - 1),
            np.array([], np.int64),
            np.array(3),
            table.astype(">i8"),
            np.asfortranarray(table),
            table.astype(bool),
            table.astype(complex),
            np.array([["a"]]),
            table.astype([("a", np.int64)]),
            np.full((8, 8), -(2**63)),
            table * 1000003,
            table.astype("M8[s]"),
        ]
    )
    data = array(values)
    if rng.random() < 0.5:
        return data
    if rng.random() < 0.5:
        changes = [
            (b"(8, 8)", b"(9, 8)"),
            (b"(8, 8)", b"(-8,8)"),
            (b"(8, 8)", b"(8**9)"),
            (b"'<i8'", b"'|O8'"),
            (b"'<i8'", b"'<V9'"),
            (b"descr", b"d\xffscr"),
            (b"\x93NUMPY\x01", b"\x93NUMPY\x07"),
            (b"False", b"Fal()"),
            (b"}", b"]"),
            (b"NUMPY", b"NUMPX"),
            (b"(8, 8), ", b"(99999999999, 9), "),
            (b"\x93NUMPY", b"PK\x03\x04N"),
        ]
        return data.replace(*rng.choice(changes), 1)
    return mutate_bytes(data, rng)


def mutated(value: object, rng: random.Random) -> bytes:
    """JSON with fields changed, more often than with bytes changed."""
    return jsonable(mutate_data(value, rng)) if rng.random() < 0.85 else mutate_bytes(jsonable(value), rng)
