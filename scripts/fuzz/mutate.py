"""What is done to valid files."""

from __future__ import annotations

import copy
import gzip
import io
import json
import random
from collections.abc import Iterator

import numpy as np
from originals import HOSTILE, WORDS


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
        part = value / 2**40 if abs(value) < 2**1000 else 0.5
        return rng.choice([value + 1, value - 1, -value, 2 * value, value * 1000, value << 20, part])
    if rng.random() < 0.35 and isinstance(value, str) and value:
        k = rng.randrange(len(value))
        more = value[:k] + rng.choice("()*%/^x0\n\x00é") + value[k:]
        return rng.choice([value[:k], more, value + "\n", value.upper(), [value], value * 200])
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
    data = array(rng.choice(tables))
    if rng.random() < 0.5:
        return data
    if rng.random() < 0.5:
        changes = [
            *((b"(8, 8)", shape) for shape in (b"(9, 8)", b"(-8,8)", b"(8**9)")),
            *((b"'<i8'", kind) for kind in (b"'|O8'", b"'<V9'")),
            *((b"descr", b"d\xffscr"), (b"\x93NUMPY\x01", b"\x93NUMPY\x07"), (b"False", b"Fal()")),
            *((b"}", b"]"), (b"NUMPY", b"NUMPX"), (b"\x93NUMPY", b"PK\x03\x04N")),
            (b"(8, 8), ", b"(99999999999, 9), "),
        ]
        return data.replace(*rng.choice(changes), 1)
    return mutate_bytes(data, rng)


def mutated(value: object, rng: random.Random) -> bytes:
    """JSON with fields changed, more often than with bytes changed."""
    return jsonable(mutate_data(value, rng)) if rng.random() < 0.85 else mutate_bytes(jsonable(value), rng)
