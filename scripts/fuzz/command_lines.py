"""Command lines with open words: words in capitals are filled in with a value drawn for the case."""

from __future__ import annotations

import random

from originals import EXPRESSIONS, HOSTILE, NUMBERS, PARAMETERS, TILES

LIMIT_S = 0.2
LIMIT = ["--time-limit", str(LIMIT_S)]
WORDS: dict[str, list[str]] = {
    "EXPRESSION": EXPRESSIONS,
    "NUMBER": NUMBERS,
    "VALUE": [
        *NUMBERS,
        *(h for h in HOSTILE if isinstance(h, str) and "\x00" not in h and "\ud800" not in h),
    ],
    "LANGUAGE": ["cuda", "hip", "opencl", "c", "cute", "gluon", "tilelang", "numba"],
    "EXTENTS": ["32x32", "16x64", "8x8x8", "1024", "0x1", "3x5", "64x64"],
    "TILE": TILES,
    "ELEMENT": ["f32", "f16", "s4", "c128", "", "f\n", "12"],
    "OVER": PARAMETERS,
    "KIND": ["gemm", "transpose", "conv", "stencil", "attention", "blank"],
    "THREADS": [
        "((4,8),(2,2)):((32,1),(16,8))",
        "(4,8:1",
        "4:1:1",
        "((",
        "(4,8):(1,9" + "9" * 99 + ")",
        "(" * 5000,
        "",
        "#ttg.blocked<{sizePerThread=[1,4], threadsPerWarp=[8,4], warpsPerCTA=[4,1], order=[1,0]}>",
        "BlockedLayout([1,4],[8,4],[1,1],[1,0])",
        "BlockedLayout([1," * 99,
    ],
}


def command_of(lines: str, rng: random.Random) -> list[str]:
    """One of the command lines, its open words filled in."""
    words = rng.choice([line for line in lines.splitlines() if line]).split()
    filled = [rng.choice(WORDS[word]) if word in WORDS else word for word in words if word != "LIMIT"]
    return filled + (LIMIT if "LIMIT" in words else [])
