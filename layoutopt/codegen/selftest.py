"""A CUDA program that tests its own layout: values, cycles and, under a profiler, counters.

Every access has two kernels. `NAME_values_K` moves known data through the tile by the emitted address,
on one side, and by the offset of each element, on the other; the host, which knows the access's index
as the problem states it, says what must come out. `NAME_access_K` does nothing but the access, once
for every warp and iteration, as the one instruction that it is, so that a profiler's counters are those
of the access.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

from layoutopt.codegen import cuda
from layoutopt.codegen.c_family import arguments, loop_nest, parameter, parameters
from layoutopt.codegen.c_text import helpers, to_c
from layoutopt.codegen.plan import AccessPlan, Plan
from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import Const, Node, Op, Var, substituted
from layoutopt.index.address_forms import over_tid

REPEATS: Final = 64
MAX_SHARED_BYTES: Final = 227 << 10  # of one block on compute capability 9.0, CUDA programming guide

_REGISTERS: Final = {1: "u8", 2: "u16", 4: "b32", 8: "v2.b32", 16: "v4.b32"}


def program(plan: Plan) -> str:
    """The text of the program; `nvcc -arch=native` compiles it.

    Raises:
        LayoutError: no NVIDIA GPU has the tile's size or an access's instruction.
    """
    return _program(cuda.emit(plan), _tile_test(plan), [_call(plan)])


def placed_tile_test(plan: Plan, block: str, tile: str, stages: int) -> str:
    """What tests one of several tiles, in a namespace of its own, but for the function that runs it.

    Raises:
        LayoutError: as for `program`.
    """
    text = _tile_test(plan) + _PLACED
    for key, value in {
        "NAME": plan.name,
        "PLACE": f"{block}_{tile}",
        "BLOCK": block,
        "STAGES": str(stages),
        "ELEMENTS": str(plan.problem.tile.elements),
        "SIZE": str(plan.element_bytes),
    }.items():
        text = text.replace(f"@{key}@", value)
    space = f"{plan.name}_test_of"
    return f"namespace {space} {{\n{text}}}  // namespace {space}\nusing namespace {space};\n\n"


def block_program(
    name: str, header: str, plans: Sequence[Plan], tests: str, times: Sequence[Sequence[str]]
) -> str:
    """A program that tests several tiles, each as by itself, and that none lies on another.

    Args:
        name: of the block.
        header: the code of all tiles.
        plans: of each.
        tests: what `placed_tile_test` gives for each.
        times: for each time, the names of the plans whose tiles live then.
    """
    apart = "\n".join(
        f"    wrong += apart([](unsigned* owners) {{ {' '.join(f'{tile}_place(owners);' for tile in time)} }});"
        for time in times
    )
    tests += _APART.replace("@TIMES@", apart).replace("@NAME@", name)
    return _program(header, tests, [f"{name}_apart(profile)", *map(_call, plans)])


def _program(header: str, tests: str, calls: Sequence[str]) -> str:
    """A program that calls what counts the wrong accesses."""
    start = _START.replace("@HEADER@", header.replace("#pragma once\n", ""))
    return start + tests + _END.replace("@TESTS@", " + ".join(calls))


def _call(plan: Plan) -> str:
    """What counts the wrong accesses of a tile."""
    return f"{plan.name}_selftest(profile)"


def _tile_test(plan: Plan) -> str:
    """The part of the program that tests one tile.

    Raises:
        LayoutError: as for `program`.
    """
    if plan.bytes > MAX_SHARED_BYTES:
        raise LayoutError(f"a block has at most {MAX_SHARED_BYTES} bytes of shared memory, not {plan.bytes}")
    for access in plan.accesses:
        if access.lanes.operation.width_bytes not in _REGISTERS or plan.device.lanes != 32:
            raise LayoutError(f"the self-test runs on NVIDIA GPUs; {plan.device.name} is none")
    text, kernels = _TILE, [_kernels(plan, k, a) for k, a in enumerate(plan.accesses)]
    called = helpers("\n".join(kernels), f"{plan.name}_test", "static", "long long")
    for key, value in {
        "KERNELS": "\n".join([*called, *kernels]),
        "RUNS": "\n".join(_run(plan, k, a) for k, a in enumerate(plan.accesses)),
        "COORDINATES": _coordinates(plan),
        "THREADS": str(plan.problem.threads),
        "ELEMENTS": str(plan.problem.tile.elements),
        "SIZE": str(plan.element_bytes),
        "REPEATS": str(REPEATS),
        "NAME": plan.name,
    }.items():
        text = text.replace(f"@{key}@", value)
    return text


def kernel_name(plan: Plan, index: int) -> str:
    """The kernel that does nothing but the access."""
    return f"{plan.name}_access_{index}"


def _coordinates(plan: Plan) -> str:
    """Arguments of the offset function for element `e` in row-major order."""
    terms: list[str] = []
    stride = 1
    for extent in reversed(plan.problem.tile.shape):
        terms.insert(0, f"e / {stride} % {extent}")
        stride *= extent
    return ", ".join(terms)


def _element(plan: Plan, access: AccessPlan) -> str:
    """The first element that a lane touches, row-major, from the problem's own expressions."""
    node: Node = Const(0)
    for text, extent in zip(access.access.index, plan.problem.tile.shape, strict=True):
        index = access.named(over_tid(str(text), access.access, plan.device.lanes))
        node = Op("+", (Op("*", (node, Const(extent))), index))
    renamed = substituted(node, {v: Var(parameter(v)) for v in access.ranges})
    ranges = {parameter(v): r for v, r in access.ranges.items()}
    return to_c(renamed, ranges, called=f"{plan.name}_test")


def _iterations(access: AccessPlan) -> int:
    return reduce(lambda a, b: a * b, access.access.loops.values(), 1)


def _position(access: AccessPlan) -> str:
    """The number of the iteration, the last loop variable fastest."""
    text = "0"
    for v, trips in access.access.loops.items():
        text = f"({text} * {trips} + {parameter(v)})"
    return text


def condition(access: AccessPlan) -> str:
    """Whether a thread takes part, in C++."""
    return f"{access.name}_active({arguments(access)})" if access.active is not None else "true"


def access_instruction(access: AccessPlan, address: str) -> str:
    """The access as one PTX instruction on registers v[0..3]; `cell` is its source in global memory."""
    operation = access.lanes.operation
    does, width = operation.does, operation.width_bytes
    words = max(1, width // 4)
    if operation.matrices:
        return cuda.matrix_instruction(operation, address, [f"v[{k}]" for k in range(operation.matrices)])
    if does.copies:
        return cuda.async_instruction(operation, address, "cell")
    if does.adds and not does.returns:
        return f'asm volatile("red.shared.add.u{8 * width} [%0], 1;" :: "r"({address}) : "memory");'
    if does.adds and width == 8:
        return (
            '{ unsigned long long old; asm volatile("atom.shared.add.u64 %0, [%1], %2;" : "=l"(old) '
            f': "r"({address}), "l"((unsigned long long)v[0]) : "memory"); v[0] = (uint32_t)old; }}'
        )
    if does.adds:
        return f'asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(v[0]) : "r"({address}), "r"(v[0]) : "memory");'
    held = ", ".join(f"%{k}" for k in range(words))
    if does.returns:
        outputs = ", ".join(f'"=r"(v[{k}])' for k in range(words))
        if width < 4:
            return f'asm volatile("ld.volatile.shared.u{8 * width} %0, [%1];" : "=r"(v[0]) : "r"({address}) : "memory");'.replace(
                "ld.volatile.shared.u16 %0, [%1];",
                "{ .reg .u16 h; ld.volatile.shared.u16 h, [%1]; cvt.u32.u16 %0, h; }",
            )
        held = held if words == 1 else f"{{{held}}}"
        return (
            f'asm volatile("ld.volatile.shared.{_REGISTERS[width]} {held}, [%{words}];" : {outputs} '
            f': "r"({address}) : "memory");'
        )
    inputs = ", ".join(f'"r"(v[{k}])' for k in range(words))
    held = ", ".join(f"%{k + 1}" for k in range(words))
    held = held if words == 1 else f"{{{held}}}"
    if width == 2:
        return (
            'asm volatile("{ .reg .u16 h; cvt.u16.u32 h, %1; st.volatile.shared.u16 [%0], h; }" '
            f':: "r"({address}), "r"(v[0]) : "memory");'
        )
    return f'asm volatile("st.volatile.shared.{_REGISTERS[width]} [%0], {held};" :: "r"({address}), {inputs} : "memory");'


def _kernels(plan: Plan, index: int, access: AccessPlan) -> str:
    operation = access.lanes.operation
    name, guard = plan.name, condition(access)
    words = operation.matrices or max(1, operation.width_bytes // 4)
    address = f"smem + {access.name}_bytes({arguments(access)})"
    if access.form.has_step:
        step = ", ".join(map(parameter, access.access.loops))
        address = f"smem + {access.name}_step(base, {step})"
    # Matrix instructions are executed by whole warps; each lane's registers come from its cell.
    load_cell = f"for (int word = 0; word < {words}; ++word) v[word] = cell[word];"
    store_cell = f"for (int word = 0; word < {words}; ++word) cell[word] = v[word];"
    values = [
        f"uint32_t* cell = cells + 4 * (THREADS * (size_t){_position(access)} + tid);",
        f"if ({guard}) {{ {load_cell} {access_instruction(access, address)} {store_cell} }}",
    ]
    wait = ['asm volatile("cp.async.wait_all;" ::: "memory");'] if operation.does.copies else []
    # What is loaded must be used, or the assembler leaves the load out.
    use = " sum ^= v[0] ^ v[1] ^ v[2] ^ v[3];" if operation.does.returns else ""
    alone = [f"if ({guard}) {{ {access_instruction(access, address)}{use} }}"]
    base = [f"    const uint32_t base = {access.name}_base(tid); (void)base;"] if access.form.has_step else []
    where = f"{index}"
    lines = [
        f"static uint32_t {name}_element_{where}({parameters(access)}) {{ return {_element(plan, access)}; }}",
        f"__global__ void {name}_values_{where}(const unsigned char* in, uint32_t* cells, unsigned char* out) {{",
        "    const int tid = threadIdx.x;",
        "    const uint32_t smem = fill(in, tid);",
        "    uint32_t v[4] = {0, 0, 0, 0};",
        *base,
        *loop_nest(access, values, "    ", "#pragma unroll 1"),
        *(f"    {line}" for line in wait),
        "    read_back(out, tid);",
        "}",
        f"__global__ void {kernel_name(plan, index)}(uint32_t* cells, int repeats, long long* cycles) {{",
        "    const int tid = threadIdx.x;",
        "    extern __shared__ __align__(1024) unsigned char tile[];",
        "    const uint32_t smem = static_cast<uint32_t>(__cvta_generic_to_shared(tile));",
        # Neighbours copy from neighbouring places: scattered sources arrive in more passes.
        *([f"    const uint32_t* cell = cells + {operation.width_bytes // 4} * tid;"] if wait else []),
        "    uint32_t v[4] = {cells[tid], cells[tid + 1], cells[tid + 2], cells[tid + 3]}, sum = 0;",
        *base,
        "    __syncthreads();",
        "    const long long start = clock64();",
        "    #pragma unroll 1",
        "    for (int repeat = 0; repeat < repeats; ++repeat) {",
        *loop_nest(access, alone, "        ", "#pragma unroll"),
        *(f"        {line}" for line in wait),
        "    }",
        "    __syncthreads();",
        "    if (tid == 0) *cycles = clock64() - start;",
        "    cells[tid] = sum ^ v[0] ^ v[1] ^ v[2] ^ v[3];",
        "}",
    ]
    return "\n".join(lines).replace("THREADS", str(plan.problem.threads))


def _run(plan: Plan, index: int, access: AccessPlan) -> str:
    """Host code: what goes in, and what must come out."""
    operation = access.lanes.operation
    name, report = plan.name, access.report
    element = f"{name}_element_{index}({arguments(access)})"
    visit = [f"if ({condition(access)}) visit({_position(access)}, tid, {element});"]
    loops = loop_nest(
        access,
        ["for (int tid = 0; tid < @THREADS@; ++tid) {", *(f"    {v}" for v in visit), "}"],
        "        ",
        "",
    )
    loops = [line for line in loops if line.strip()]
    does = operation.does
    mode = "ADD" if does.adds else "LOAD" if does.returns else "STORE"
    if operation.matrices:
        mode = "LDMATRIX" if does.returns else "STMATRIX"
    shown = "".join(c if c.isalnum() or c in " _-.+/" else "_" for c in access.access.name)
    return "\n".join(
        [
            f'    wrong += {name}_test(Access{{"{shown}", "{access.access.op}", {mode}, '
            f"{operation.width_bytes}, {operation.matrices}, {int(operation.transposed)}, "
            f"{int(does.adds and not does.returns)}, {_iterations(access)}, {report.wavefronts}, {report.bank_conflicts}}}, {index},",
            f"        {name}_values_{index}, {kernel_name(plan, index)}, profile, [](auto visit) {{",
            *loops,
            "    });",
        ]
    )


_START: Final = r"""// Self-test. nvcc -std=c++17 -arch=native -o selftest selftest.cu && ./selftest
// Counters: ncu --kernel-name regex:_access_ --metrics \
//   l1tex__data_pipe_lsu_wavefronts_mem_shared.sum,l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum \
//   ./selftest profile
@HEADER@
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

namespace {

#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { \
    std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)); std::exit(3); } } while (0)

enum Mode { LOAD, STORE, ADD, LDMATRIX, STMATRIX };
struct Access {
    const char *name, *op;
    Mode mode;
    int width, matrices, transposed, ones, iterations;
    long long wavefronts, bank_conflicts;  // predicted
};

typedef void (*Values)(const unsigned char*, uint32_t*, unsigned char*);
typedef void (*Alone)(uint32_t*, int, long long*);

// Where register `reg` of `lane` lies: the lane that gives its row's address, and the byte in the row.
std::pair<int, int> matrix_place(int lane, int reg, int half, bool transposed) {
    int row = lane / 4, column = 2 * (lane % 4) + half;
    if (transposed) std::swap(row, column);
    return {8 * reg + row, 2 * column};
}

"""

_TILE: Final = r"""__device__ uint32_t offset_of(uint32_t e) { return @NAME@_offset_bytes(@COORDINATES@); }

// Put the elements of `in`, row-major, where the layout says; nullptr for zeros.
__device__ uint32_t fill(const unsigned char* in, int tid) {
    extern __shared__ __align__(1024) unsigned char tile[];
    for (uint32_t k = tid; k < @NAME@_bytes; k += @THREADS@) tile[k] = 0;
    __syncthreads();
    for (uint32_t e = tid; in && e < @ELEMENTS@; e += @THREADS@)
        for (uint32_t k = 0; k < @SIZE@; ++k) tile[offset_of(e) + k] = in[e * @SIZE@ + k];
    __syncthreads();
    return static_cast<uint32_t>(__cvta_generic_to_shared(tile));
}

__device__ void read_back(unsigned char* out, int tid) {
    extern __shared__ __align__(1024) unsigned char tile[];
    __syncthreads();
    for (uint32_t e = tid; e < @ELEMENTS@; e += @THREADS@)
        for (uint32_t k = 0; k < @SIZE@; ++k) out[e * @SIZE@ + k] = tile[offset_of(e) + k];
}

__global__ void @NAME@_bijection(unsigned* owners) {
    for (uint32_t e = threadIdx.x; e < @ELEMENTS@; e += @THREADS@)
        for (uint32_t k = 0; k < @SIZE@; ++k)
            if (offset_of(e) + k < @NAME@_bytes) atomicAdd(&owners[offset_of(e) + k], 1u);
}

@KERNELS@

template <class Kernel>
void allow_shared(Kernel kernel) {
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, @NAME@_bytes));
}

template <class Loops>
int @NAME@_test(Access a, int index, Values values, Alone alone, bool profile, Loops loops) {
    std::vector<unsigned char> in(@ELEMENTS@ * @SIZE@ + 16), out(in.size());
    std::vector<uint32_t> cells(4ull * @THREADS@ * a.iterations + 4096), after(cells.size());
    for (size_t k = 0; k < in.size(); ++k) in[k] = static_cast<unsigned char>((k * 2654435761u + 12345u) >> 13);
    unsigned char *d_in, *d_out; uint32_t* d_cells; long long* d_cycles;
    CHECK(cudaMalloc(&d_in, in.size())); CHECK(cudaMalloc(&d_out, out.size()));
    CHECK(cudaMalloc(&d_cells, cells.size() * 4)); CHECK(cudaMalloc(&d_cycles, 8));
    CHECK(cudaMemset(d_cells, 0, cells.size() * 4));
    allow_shared(values); allow_shared(alone);
    long long cycles = 0;
    int wrong = 0;
    if (profile) {
        alone<<<1, @THREADS@, @NAME@_bytes>>>(d_cells, 1, d_cycles);
        CHECK(cudaDeviceSynchronize());
    } else {
        // The first element of each active lane, by iteration and thread.
        std::vector<long long> element(static_cast<size_t>(a.iterations) * @THREADS@, -1);
        loops([&](int i, int tid, uint32_t e) { element[static_cast<size_t>(i) * @THREADS@ + tid] = e; });
        std::vector<unsigned char> want(in.size(), 0);  // the tile afterwards
        std::vector<uint32_t> want_cells(cells.size(), 0);
        std::map<size_t, unsigned long long> sums;
        for (size_t at = 0; at < element.size(); ++at) {
            if (element[at] < 0) continue;
            unsigned char* cell = reinterpret_cast<unsigned char*>(&cells[4 * at]);
            unsigned char* want_cell = reinterpret_cast<unsigned char*>(&want_cells[4 * at]);
            const size_t lane = at % @THREADS@ % 32, warp = at - lane, place = element[at] * @SIZE@;
            if (a.mode == LOAD) std::memcpy(want_cell, &in[place], a.width);
            if (a.mode == STORE) { std::memcpy(cell, &in[place], a.width); std::memcpy(&want[place], cell, a.width); }
            if (a.mode == ADD) {
                cells[4 * at] = static_cast<uint32_t>(at * 7 + 1);
                sums[place] += a.ones ? 1 : cells[4 * at];
            }
            for (int reg = 0; reg < a.matrices; ++reg)
                for (int half = 0; half < 2; ++half) {
                    std::pair<int, int> p = matrix_place(static_cast<int>(lane), reg, half, a.transposed);
                    const size_t source = element[warp + p.first] * @SIZE@ + p.second;
                    if (a.mode == LDMATRIX) std::memcpy(want_cell + 4 * reg + 2 * half, &in[source], 2);
                    else { std::memcpy(cell + 4 * reg + 2 * half, &in[source], 2); std::memcpy(&want[source], &in[source], 2); }
                }
        }
        for (auto& sum : sums) std::memcpy(&want[sum.first], &sum.second, a.width);
        const bool reads = a.mode == LOAD || a.mode == LDMATRIX;
        if (reads) want = in;
        CHECK(cudaMemcpy(d_in, in.data(), in.size(), cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(d_cells, cells.data(), cells.size() * 4, cudaMemcpyHostToDevice));
        values<<<1, @THREADS@, @NAME@_bytes>>>(reads ? d_in : nullptr, d_cells, d_out);
        CHECK(cudaMemcpy(out.data(), d_out, out.size(), cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(after.data(), d_cells, cells.size() * 4, cudaMemcpyDeviceToHost));
        for (size_t k = 0; k < @ELEMENTS@ * @SIZE@; ++k) wrong += out[k] != want[k];
        for (size_t at = 0; reads && at < element.size(); ++at)
            for (int k = 0; element[at] >= 0 && k < (a.matrices ? a.matrices : (a.width + 3) / 4); ++k)
                wrong += after[4 * at + k] != want_cells[4 * at + k];
        for (int again = 0; again < 2; ++again)
            alone<<<1, @THREADS@, @NAME@_bytes>>>(d_cells, @REPEATS@, d_cycles);
        CHECK(cudaMemcpy(&cycles, d_cycles, 8, cudaMemcpyDeviceToHost));
        std::printf("%d\t%s\t%s\t%s\t%lld\t%lld\t%.1f\n", index, a.name, a.op, wrong ? "WRONG" : "right",
                    a.wavefronts, a.bank_conflicts, static_cast<double>(cycles) / @REPEATS@);
    }
    CHECK(cudaFree(d_in)); CHECK(cudaFree(d_out)); CHECK(cudaFree(d_cells)); CHECK(cudaFree(d_cycles));
    return wrong != 0;
}

int @NAME@_is_no_bijection() {
    unsigned* d_owners;
    std::vector<unsigned> owners(@NAME@_bytes);
    CHECK(cudaMalloc(&d_owners, owners.size() * 4));
    CHECK(cudaMemset(d_owners, 0, owners.size() * 4));
    @NAME@_bijection<<<1, @THREADS@>>>(d_owners);
    CHECK(cudaMemcpy(owners.data(), d_owners, owners.size() * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(d_owners));
    size_t owned = 0;
    for (unsigned count : owners) { if (count > 1) return 1; owned += count; }
    return owned != size_t(@ELEMENTS@) * @SIZE@;
}

int @NAME@_selftest(bool profile) {
    static_assert((@NAME@_alignment & (@NAME@_alignment - 1)) == 0, "a power of two");
    int wrong = 0;
    if (!profile) {
        wrong = @NAME@_is_no_bijection();
        std::printf("@NAME@: every element has its own bytes: %s\n", wrong ? "NO" : "yes");
        std::printf("access\tname\top\tvalues\twavefronts predicted\tbank conflicts predicted\tcycles\n");
    }
@RUNS@
    return wrong;
}

"""

_END: Final = r"""}  // namespace

// Without arguments: values and cycles. With `profile`: each access once, for a profiler.
int main(int argc, char** argv) {
    const bool profile = argc > 1 && !std::strcmp(argv[1], "profile");
    const int wrong = @TESTS@;
    CHECK(cudaDeviceSynchronize());
    return wrong != 0;
}
"""

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
