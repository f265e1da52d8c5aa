"""A store as a C++ header: a constexpr table of layouts, looked up by the parameters of the sweep.

    constexpr auto tile = layoutopt_gemm::tiles[layoutopt_gemm::find(64, 128)];
    __shared__ alignas(tile.alignment_bytes) unsigned char smem[tile.bytes];
    smem[layoutopt_gemm::offset_bytes(tile, row, column)]   // folded, since `tile` is constexpr

Each entry holds its layout as numbers (`layoutopt.layout.layout`): digits of coordinates with strides, a
rotation, a pad after every so many elements, XOR masks. Layouts that are tables are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from layoutopt import __version__
from layoutopt.ground.escape import comment, identifier
from layoutopt.sweeps.rows import Answered
from layoutopt.sweeps.store import Store

_HEAD: Final = """#pragma once
#include <cstdint>
#ifdef __CUDACC__
#define LAYOUTOPT_FUNCTION __host__ __device__ constexpr
#else
#define LAYOUTOPT_FUNCTION constexpr
#endif

"""
_TYPES: Final = """// A part of a coordinate, x[dimension] / divide % size, in steps of stride units.
struct Digit {
    uint32_t dimension, divide, size, stride;
};

// Bit `bit` of the offset is flipped by the parity of the bits of `mask`.
struct Flip {
    uint32_t bit, mask;
};

"""
_FUNCTIONS: Final = """
LAYOUTOPT_FUNCTION bool same(const char* a, const char* b) {
    while (*a != 0 && *a == *b) {
        ++a;
        ++b;
    }
    return *a == *b;
}

// Byte offset of the element at the coordinates x.
template <typename... Coordinates>
LAYOUTOPT_FUNCTION uint32_t offset_bytes(const Tile& tile, Coordinates... x) {
    uint32_t at[] = {static_cast<uint32_t>(x)...};
    at[sizeof...(x) - 1] /= tile.packed;
    uint32_t linear = 0;
    for (uint32_t k = 0; k < tile.digits; ++k) {
        const Digit digit = tile.digit[k];
        uint32_t value = at[digit.dimension] / digit.divide % digit.size;
        if (k + 1 == tile.digits && tile.turn != 0) {
            value = (value + linear / tile.pitch * tile.turn) % digit.size;
        }
        linear += value * digit.stride;
    }
    if (tile.pad_every != 0) {
        linear += linear / tile.pad_every * tile.pad;
    }
    uint32_t offset = linear;
    for (uint32_t k = 0; k < tile.flips; ++k) {
        uint32_t odd = linear & tile.flip[k].mask;
        odd ^= odd >> 16;
        odd ^= odd >> 8;
        odd ^= odd >> 4;
        odd ^= odd >> 2;
        odd ^= odd >> 1;
        offset ^= (odd & 1) << tile.flip[k].bit;
    }
    return offset * tile.unit_bytes;
}

"""


def write_header(store: Store, file: BinaryIO, name: str) -> None:
    """The header, in the namespace layoutopt_NAME."""
    params: dict[str, bool] = {}
    digits = flips = dims = 1
    count = 0
    for one, layout in _layouts(store):
        count += 1
        for param, value in one.tile.params.items():
            params[param] = isinstance(value, int) and params.get(param, True)
        digits = max(digits, len(layout["digits"]))
        flips = max(flips, len(layout.get("swizzle", ())))
        dims = max(dims, len(layout["shape"]))
    name = f"layoutopt_{identifier(name)}"
    lines = [
        f"// {count} tiles by layoutopt {__version__}",
        f"// constexpr auto tile = {name}::tiles[{name}::find(...)];",
        *_left_out(store),
        _HEAD,
        f"namespace {name} {{\n",
        _TYPES,
        "struct Tile {",
        "    const char* name;",
        *(f"    {'long long' if number else 'const char*'} param_{p};" for p, number in params.items()),
        "    uint32_t bytes, declared_bytes, alignment_bytes, unit_bytes, packed;",
        "    double excess;",
        f"    uint32_t dims, shape[{dims}];",
        f"    uint32_t digits;\n    Digit digit[{digits}];",
        "    uint32_t pitch, turn, pad_every, pad;",
        f"    uint32_t flips;\n    Flip flip[{flips}];",
        "};",
        _FUNCTIONS,
        f"constexpr uint32_t tile_count = {count};",
        f"constexpr Tile tiles[{max(1, count)}] = {{",
    ]
    file.write("\n".join(lines).encode() + b"\n")
    for one, layout in _layouts(store):
        file.write(f"    {_entry(one, layout, params)},\n".encode())
    file.write(("};\n\n" + _find(params) + f"\n}}  // namespace {name}\n").encode())


def _layouts(store: Store) -> Iterator[tuple[Answered, dict[str, Any]]]:
    """The problems whose answer is a formula, and its numbers."""
    for one in store.answered():
        layout = (one.answer or {}).get("layout")
        if layout is not None and not layout.get("lookup"):
            yield one, layout


def _left_out(store: Store) -> Iterator[str]:
    for one in store.answered():
        layout = (one.answer or {}).get("layout")
        if layout is None or layout.get("lookup"):
            why = "its layout is a table" if layout else f"it has no layout ({one.status})"
            yield f"// {comment(one.tile.name)} is not here: {why}"


def _entry(one: Answered, layout: dict[str, Any], params: dict[str, bool]) -> str:
    answer = one.answer or {}
    values = [_text(one.tile.name)]
    for name, number in params.items():
        value = one.tile.params.get(name, 0 if number else "")
        values.append(f"{value}" if number else _text(str(value)))
    units = [*layout["shape"][:-1], layout["shape"][-1] // layout.get("packed", 1)]
    parts = layout["digits"]
    digits = [f"{{{d['dim']}, {d['divide']}, {d['size']}, {d['stride']}}}" for d in parts]
    flips = [f"{{{t['bit']}, {t['mask']}}}" for t in layout.get("swizzle", ())]
    every, pad = layout.get("interval", (0, 0))
    pitch = parts[-2]["stride"] if len(parts) > 1 else parts[-1]["size"]
    values += [
        *(str(answer[field]) for field in ("bytes", "declared_bytes", "alignment_bytes")),
        str(layout["element_bytes"]),
        str(layout.get("packed", 1)),
        str(answer["excess"]),
        str(len(units)),
        f"{{{', '.join(map(str, layout['shape']))}}}",
        str(len(digits)),
        f"{{{', '.join(digits)}}}",
        f"{pitch}, {layout.get('turn', 0)}, {every}, {pad}",
        str(len(flips)),
        f"{{{', '.join(flips)}}}",
    ]
    return f"{{{', '.join(values)}}}"


def _text(text: str) -> str:
    """A string literal of C++."""
    plain = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in text.encode("utf-8", "replace")
    )
    return f'"{plain}"'


def _find(params: dict[str, bool]) -> str:
    """Functions that give the number of a tile, -1 where there is none."""
    text = _search("find_name", ["const char* name"], ["same(tiles[k].name, name)"])
    if not params:
        return text
    declared = [f"{'long long' if number else 'const char*'} param_{p}" for p, number in params.items()]
    tests = [
        f"tiles[k].param_{p} == param_{p}" if number else f"same(tiles[k].param_{p}, param_{p})"
        for p, number in params.items()
    ]
    return text + "\n" + _search("find", declared, tests)


def _search(name: str, declared: list[str], tests: list[str]) -> str:
    return (
        f"LAYOUTOPT_FUNCTION int {name}({', '.join(declared)}) {{\n"
        "    for (uint32_t k = 0; k < tile_count; ++k) {\n"
        f"        if ({' && '.join(tests)}) {{\n"
        "            return static_cast<int>(k);\n"
        "        }\n"
        "    }\n"
        "    return -1;\n"
        "}\n"
    )
