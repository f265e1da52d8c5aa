"""A CUDA program that tests the layouts of a block: each tile as by itself, and that none lies on another."""

from __future__ import annotations

from typing import Final

import msgspec

from layoutopt.codegen.languages import run_plan
from layoutopt.codegen.plan import Plan
from layoutopt.codegen.selftest import END, START, call, once, tile_test
from layoutopt.codegen.tiles import text_of_plans
from layoutopt.errors import LayoutError
from layoutopt.ground.escape import identifier
from layoutopt.problems.types import Resources
from layoutopt.study.block import Part, PlacedBlock


def block_program(block: PlacedBlock) -> str:
    """The text of the program; `nvcc -arch=native` compiles it.

    Raises:
        LayoutError: no NVIDIA GPU has a tile's size or an access's instruction, or what an access costs is
            known at run time only.
    """
    plans = [_plan(block, part) for part in block.parts]
    name = identifier(block.name)
    tests = "".join(_test(part, plan, name) for part, plan in zip(block.parts, plans, strict=True))
    named = {part.tile: plan.name for part, plan in zip(block.parts, plans, strict=True)}
    always = [tile for tile in named if not any(tile in time for time in block.times)]
    times = "\n".join(_time([named[t] for t in (*always, *time)]) for time in block.times or ((),))
    apart = _APART.replace("@TIMES@", times).replace("@NAME@", name)
    calls = " + ".join([f"{name}_apart(profile)", *map(call, plans)])
    header = once(text_of_plans("cuda", block, plans))
    return START.replace("@HEADER@", header) + tests + apart + END.replace("@TESTS@", calls)


def _plan(block: PlacedBlock, part: Part) -> Plan:
    problem = msgspec.structs.replace(part.problem, name=f"{block.name} {part.tile}", block=Resources())
    try:
        return run_plan(problem, block.device, part.answer)
    except LayoutError as error:
        raise LayoutError(f"tile {part.tile!r}: {error}") from None


def _test(part: Part, plan: Plan, block_name: str) -> str:
    """What tests one tile, in a namespace of its own, but for the function that runs it."""
    place = {"PLACE": f"{block_name}_{part.tile}", "BLOCK": block_name, "STAGES": str(part.stages)}
    try:
        text = tile_test(plan) + _PLACED.replace("@NAME@", plan.name)
    except LayoutError as error:
        raise LayoutError(f"tile {part.tile!r}: {error}") from None
    for key, value in {**place, "ELEMENTS": plan.problem.tile.elements, "SIZE": plan.element_bytes}.items():
        text = text.replace(f"@{key}@", str(value))
    space = f"{plan.name}_test_of"
    return f"namespace {space} {{\n{text}}}  // namespace {space}\nusing namespace {space};\n\n"


def _time(tiles: list[str]) -> str:
    """Host code: the tiles that live at one time."""
    placed = " ".join(f"{tile}_place(owners);" for tile in tiles)
    return f"    wrong += apart([](unsigned* owners) {{ {placed} }});"


_PLACED: Final = r"""__global__ void @NAME@_placed(unsigned* owners) {
    for (uint32_t stage = 0; stage < @STAGES@; ++stage)
        for (uint32_t e = threadIdx.x; e < @ELEMENTS@; e += blockDim.x)
            for (uint32_t k = 0; k < @SIZE@; ++k) {
                const uint32_t at = @PLACE@_base + stage * @PLACE@_stage_bytes + offset_of(e) + k;
                atomicAdd(&owners[at < @BLOCK@_bytes ? at : @BLOCK@_bytes], at < @BLOCK@_bytes ? 1u : 2u);
            }
}

void @NAME@_place(unsigned* owners) {
    static_assert(@PLACE@_base % @NAME@_alignment == 0, "counts hold at multiples");
    static_assert(@STAGES@ == 1 || @PLACE@_stage_bytes % @NAME@_alignment == 0, "counts hold at multiples");
    @NAME@_placed<<<1, 256>>>(owners);
}
"""

_APART: Final = r"""// Whether tiles that live at the same time share a byte, or end behind the block.
template <class Place>
int apart(Place place) {
    unsigned* d_owners;
    std::vector<unsigned> owners(@NAME@_bytes + 1);
    CHECK(cudaMalloc(&d_owners, owners.size() * 4));
    CHECK(cudaMemset(d_owners, 0, owners.size() * 4));
    place(d_owners);
    CHECK(cudaMemcpy(owners.data(), d_owners, owners.size() * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(d_owners));
    return *std::max_element(owners.begin(), owners.end()) > 1;
}

int @NAME@_apart(bool profile) {
    static_assert((@NAME@_alignment & (@NAME@_alignment - 1)) == 0, "a power of two");
    if (profile) return 0;
    int wrong = 0;
@TIMES@
    std::printf("@NAME@: tiles that live together share no byte: %s\n", wrong ? "NO" : "yes");
    return wrong;
}

"""
