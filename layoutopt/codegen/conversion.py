"""A conversion between register layouts as a CUDA function over the registers of a thread."""

from typing import Final

import numpy as np

from layoutopt.codegen.c_text import operands, to_c
from layoutopt.errors import LayoutError, VerificationError
from layoutopt.expressions.bits import combinations, moved_bits
from layoutopt.expressions.fit import guard
from layoutopt.expressions.grammar import Const, Node, Op, Var, substituted
from layoutopt.expressions.simplify import simplify
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.ownership.conversion import Conversion
from layoutopt.ownership.instructions import Instruction

LANES: Final = 32  # of a warp, on every target that conversions are emitted for


def emit_conversion(conversion: Conversion, name: str) -> str:
    """`template <typename T> __device__ void NAME(const T (&in)[N], T (&out)[M], void* scratch, int tid)`.

    Raises:
        LayoutError: there is none, or the target is no NVIDIA GPU.
    """
    if conversion.status == "infeasible":
        raise LayoutError(f"there is no conversion to emit: {conversion.reason}")
    if not conversion.target.startswith("sm_"):
        raise LayoutError(f"conversions are emitted for NVIDIA GPUs, not {conversion.target}")
    held, wanted = conversion.registers
    size = conversion.element_bytes
    lines = [
        f"// {name} on {conversion.target}: {conversion.wavefronts} wavefronts (at least "
        f"{conversion.proof.lower_bound} are needed), {conversion.bytes} bytes of scratch, "
        f"rounds: {conversion.rounds}",
        "template <typename T>",
        f"__device__ __forceinline__ void {name}(",
        f"    const T (&in)[{held}], T (&out)[{wanted}], void* scratch, int tid) {{",
        f'    static_assert(sizeof(T) == {size}, "elements of {size} bytes");',
    ]
    if conversion.instructions:
        lines.append("    const unsigned smem = (unsigned)__cvta_generic_to_shared(scratch);")
    body = _Body(conversion)
    for instruction in conversion.instructions:
        lines += body.of(instruction)
    given = "out" if conversion.instructions else "in"
    lines += [f"    out[{to}] = {given}[{origin}];" for to, origin in conversion.register_copies]
    return "\n".join([*lines, "}", ""])


class _Body:
    """Statements, instruction by instruction; addresses that differ by a constant share their formula."""

    def __init__(self, conversion: Conversion) -> None:
        self.conversion = conversion
        self.bases: list[tuple[IntArray, str]] = []
        self.last: tuple[int, str] = (0, "store")
        # What one warp stores for others, and scratch that is used again, need a barrier of the block.
        stored = [i.byte_address.max(axis=1) for i in conversion.instructions if i.kind == "store"]
        every_warp = all((np.max(stored, axis=0) >= 0).tolist()) if stored else True
        alone = conversion.shuffles is not None and every_warp and conversion.rounds == 1
        self.barrier = "    __syncwarp();" if alone else "    __syncthreads();"

    def of(self, instruction: Instruction) -> list[str]:
        lines = []
        place = instruction.round, instruction.kind
        if place != self.last:
            lines.append(self.barrier)
            self.last = place
        address = instruction.byte_address.reshape(-1)
        base, lines_of_base = self._base(address)
        lines += lines_of_base
        words, stores = max(1, instruction.bytes // 4), instruction.kind == "store"
        size = len(instruction.registers)
        values = [f"w[{k}]" for k in range(words)]
        listed = operands(1 if stores else 0, words)
        listed = f"{{{listed}}}" if words > 1 or instruction.operation.matrices else listed
        op = _ptx(instruction)
        if stores:
            moved = [f"const T v[{size}] = {{{', '.join(f'in[{r}]' for r in instruction.registers)}}};"]
            moved += [f"unsigned w[{words}] = {{}};", "memcpy(w, v, sizeof v);"]
            sources = ", ".join(f'"r"({v})' for v in (base, *values))
            moved.append(f'asm volatile("{op} [%0], {listed};" ::{sources} : "memory");')
        else:
            results = ", ".join(f'"=r"({v})' for v in values)
            moved = [f"unsigned w[{words}];"]
            moved.append(f'asm volatile("{op} {listed}, [%{words}];" : {results} : "r"({base}) : "memory");')
            moved += [f"T v[{size}];", "memcpy(v, w, sizeof v);"]
            moved += [f"out[{r}] = v[{k}];" for k, r in enumerate(instruction.registers)]
        whole = bool(instruction.operation.matrices)
        active = (instruction.byte_address >= 0).any(axis=1, keepdims=True) & np.ones((1, LANES), bool)
        active = active.reshape(-1) if whole else address >= 0
        condition = "" if active.all() else self._condition(active)
        return [*lines, f"    {condition}{{", *(f"        {line}" for line in moved), "    }"]

    def _base(self, address: IntArray) -> tuple[str, list[str]]:
        """What gives the address, and the declaration that it may need."""
        known = address >= 0
        for table, name in self.bases:
            both = known & (table >= 0)
            if (known & (table < 0)).any():
                continue
            apart = np.unique((table ^ address)[both])
            if len(apart) == 1:
                change = int(apart[0])
                symbol = "+" if not (table[both] & change).any() else "^"
                return (f"smem + {name}" if not change else f"smem + ({name} {symbol} {change})"), []
        name = f"at{len(self.bases)}"
        self.bases.append((address, name))
        text = to_c(self._formula(address), {"tid": (0, len(address) - 1)})
        return f"smem + {name}", [f"    const unsigned {name} = (unsigned)({text});"]

    @staticmethod
    def _formula(address: IntArray) -> Node:
        """The address over `tid`: that of one thread, and what each bit of another changes."""
        known = address >= 0
        first, bits = int(known.argmax()), range(len(address).bit_length() - 1)
        others = address[[first ^ 1 << bit for bit in bits]]
        changes = combinations(np.where(others < 0, 0, others ^ address[first]).tolist())
        values = address[first] ^ changes[np.arange(len(address)) ^ first]
        moved = moved_bits(Var("tid"), values ^ values[0])
        if moved is None or (values != address)[known].any():
            raise VerificationError("the addresses of an instruction are not linear in the thread")
        return Op("^", (moved, Const(int(values[0])))) if values[0] else moved

    @staticmethod
    def _condition(active: BoolArray) -> str:
        node = guard(active[:, None], LANES)
        if node is None:
            raise LayoutError("no formula tells the lanes that take part")
        tid = Var("tid")
        node = substituted(
            node, {"lane": Op("%", (tid, Const(LANES))), "warp": Op("//", (tid, Const(LANES)))}
        )
        text = to_c(simplify(node, {"tid": (0, len(active) - 1)}), {"tid": (0, len(active) - 1)})
        return f"if {text} " if text.startswith("((") or text.count("(") == 1 else f"if ({text}) "


def _ptx(instruction: Instruction) -> str:
    if not instruction.operation.matrices:
        return instruction.op
    kind, *rest = instruction.op.split(".")
    return f"{kind}.sync.aligned.m8n8.{'.'.join(rest)}.shared.b16"
