"""CUDA C++ for several tiles: where each lies, then the header of each."""

from __future__ import annotations

import re

from layoutopt import __version__
from layoutopt.codegen.languages import emit
from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import identifier
from layoutopt.hardware.devices import Device
from layoutopt.problems.types import TileSet
from layoutopt.synthesis.arrange import Arrangement
from layoutopt.synthesis.tile_groups import groups


def cuda_tiles(tile_set: TileSet, arrangement: Arrangement, gpu: Device) -> str:
    """One header for all tiles of `arrangement`, which must hold layouts.

    Args:
        tile_set: what was solved.
        arrangement: its answer.
        gpu: the target.

    Returns:
        C++ that compiles with nvcc, and without CUDA as plain C++14.

    Raises:
        ProblemFileError: two names become the same identifier.
    """
    name = identifier(tile_set.name)
    lines = [
        f"// {name} on {arrangement.target}: layouts by layoutopt {__version__}",
        f"// {arrangement.bytes} bytes, {arrangement.excess} excess wavefronts; {arrangement.status}",
        "#pragma once",
        "#include <cstdint>",
        "",
        f"constexpr uint32_t {name}_bytes = {arrangement.bytes};",
        f"constexpr uint32_t {name}_alignment = {arrangement.alignment_bytes};",
        f"// __shared__ alignas({name}_alignment) unsigned char smem[{name}_bytes];",
        "// Stage s of a tile begins at base + s * stage_bytes; the functions below count from there.",
    ]
    for part in arrangement.tiles:
        for tile in part.tiles:
            mine = f"{name}_{tile}"
            lines += [
                f"constexpr uint32_t {mine}_base = {part.base_bytes};",
                f"constexpr uint32_t {mine}_stage_bytes = {part.stage_bytes};  // stages: {part.stages}",
            ]
    text = "\n".join(lines) + "\n"
    for (_, problem), part in zip(groups(tile_set), arrangement.tiles, strict=True):
        text += "\n" + emit("cuda", problem, gpu, part.result)
    names = re.findall(r"^(?:__host__ __device__ )?constexpr uint32_t (\w+)", text, re.M)
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ProblemFileError("tiles", f"two tiles or accesses are both {twice[0]} in the code; rename one")
    return text
