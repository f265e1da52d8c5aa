"""PTX instructions that touch memory, wait or end: a table, an entry an opcode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from layoutopt.hardware.operations import Operation
from layoutopt.kernels import values
from layoutopt.kernels.program import (
    Barrier,
    Compute,
    Exit,
    Lose,
    Memory,
    Nothing,
    Refused,
    Space,
)
from layoutopt.kernels.ptx_reading import Builder, Built, Reading, fit, forget
from layoutopt.kernels.ptx_text import TYPE_BYTES
from layoutopt.kernels.values import Value, constant

SPACES: Final[dict[str, Space]] = {
    "shared": "shared",
    "shared::cta": "shared",
    "shared::cluster": "shared",
    "global": "global",
    "const": "constant",
    "param": "constant",
    "param::entry": "constant",
    "local": "local",
}
# Where the contents of `.const` arrays lie, and the parameters.
CONSTANTS_BANK: Final = 3
# A shared address and a 64-bit one.
ADDRESS_BITS: Final = {"shared": 32, "local": 32, "constant": 32, "global": 64, "generic": 64}


def space_of(words: tuple[str, ...]) -> Space:
    """The state space that an opcode names; generic if none."""
    return next((SPACES[word] for word in words if word in SPACES), "generic")


def _bank(words: tuple[str, ...]) -> int:
    return CONSTANTS_BANK if "const" in words else 0


def _lanes_of(words: tuple[str, ...]) -> int:
    return next((int(word[1]) for word in words if word in ("v2", "v4", "v8")), 1)


def _counted(kind: str, width: int, space: Space) -> Operation | None:
    return Operation(kind, width) if space in ("shared", "generic") else None


def _load(reading: Reading) -> Built:
    """ld: one value or a vector."""
    words, space = reading.words, space_of(reading.words)
    unit = TYPE_BYTES[reading.kind]
    count = _lanes_of(words)
    signed = reading.signed and unit < 4
    if signed and count > 1:
        return Built(
            Refused(f"{'.'.join(words)} is not known", always=space in ("shared", "generic")),
            (),
            reading.dests,
        )
    action = Memory(
        "load",
        space,
        unit * count,
        unit_bytes=4 if signed else unit,
        signed=signed,
        operation=_counted("load", unit * count, space),
        counter="ld" if space in ("shared", "generic") else None,
        executed="ld" if space == "shared" else None,
        read_only=space == "constant",
        bank=_bank(words),
    )
    return Built(action, (reading.operands[1],), reading.dests)


def _store(reading: Reading) -> Built:
    """st: one value or a vector."""
    words, space = reading.words, space_of(reading.words)
    unit = TYPE_BYTES[reading.kind]
    text = reading.operands[1]
    parts = text.strip("{} ").split(",") if text.startswith("{") else [text]
    action = Memory(
        "store",
        space,
        unit * _lanes_of(words),
        unit_bytes=unit,
        operation=_counted("store", unit * _lanes_of(words), space),
        counter="st" if space in ("shared", "generic") else None,
        executed="st" if space == "shared" else None,
    )
    stored = tuple(reading.names.operand(part.strip(), 8 * unit) for part in parts)
    return Built(action, (reading.operands[0], *stored), ())


# Atomics.


def _combined(name: str, width: int, signed: bool) -> tuple[Callable[..., Value] | None, bool]:
    """What an atomic leaves, and whether the order does not matter."""
    simple: dict[str, Callable[[Value, Value], Value]] = {
        "add": lambda old, new: values.add(old, fit(new, width), width=width),
        "min": lambda old, new: values.least(old, fit(new, width), width, signed),
        "max": lambda old, new: values.greatest(old, fit(new, width), width, signed),
        "and": lambda old, new: values.both(old, fit(new, width), width),
        "or": lambda old, new: values.either(old, fit(new, width), width),
        "xor": lambda old, new: values.differ(old, fit(new, width), width),
    }
    if name in simple:
        return simple[name], True
    if name == "exch":
        return lambda old, new: fit(new, width), False
    if name == "cas":
        return lambda old, was, new: values.select(
            values.equal(old, fit(was, width)), fit(new, width), old
        ), False
    return None, False


_ATOMICS: Final = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


def _atomic(reading: Reading) -> Built:
    """atom and red. Those that the hardware does by trying again are not known."""
    words, space = reading.words, space_of(reading.words)
    name = next((w for w in words[1:] if w in _ATOMICS), "")
    returns = words[0] == "atom"
    place, given = (1, 2) if returns else (0, 1)
    cells = reading.dests if returns else ()
    if space in ("shared", "generic"):
        tries = reading.kind not in ("u32", "s32", "b32") and not (
            name in ("exch", "cas") and reading.kind == "b64"
        )
        if tries or not name or _lanes_of(words) > 1:
            why = f"{'.'.join(words)}: the hardware tries again until it succeeds; how often is not known"
            return Built(Refused(why, always=True), (), cells)
    width = reading.width
    combine, commutes = _combined(name, width, reading.signed)
    sources = tuple(
        reading.names.operand(text, width) for text in reading.operands[given:][: 2 if name == "cas" else 1]
    )
    used = any(reading.names.read_later(cell) for cell in cells)
    one = not isinstance(sources[0], str) and sources[0].bits.flat[0] == 1
    counts = name == "add" and one and not used and width == 32
    # A generic addition of 1 is no ATOMS.POPC.INC.
    kind = "reduce" if counts and space == "shared" else "atomic"
    shared = space in ("shared", "generic")
    action = Memory(
        "atomic",
        space,
        width // 8,
        unit_bytes=width // 8,
        operation=_counted(kind, width // 8, space),
        counter="atom" if shared else None,
        executed="atom" if shared else None,
        combine=combine,
        commutes=commutes,
        doubled=name == "cas",
    )
    return Built(action, (reading.operands[place], *sources), cells)


# Matrices and copies.


def _matrix(kind: str) -> Builder:
    def build(reading: Reading) -> Built:
        words = reading.words
        count = next((int(w[1]) for w in words if w in ("x1", "x2", "x4")), 1)
        operation = Operation(kind, 16, count, "trans" in words)
        loads = kind == "ldmatrix"
        action = Memory(
            "ldmatrix" if loads else "stmatrix",
            space_of(words),
            16,
            operation=operation,
            counter="ld" if loads else "st",
        )
        if loads:
            return Built(action, (reading.operands[1],), reading.dests)
        return Built(action, (reading.operands[0],), ())

    return build


def _copy(reading: Reading) -> Built:
    """cp.async: 4, 8 or 16 bytes from global to shared memory."""
    cache = "cg" if "cg" in reading.words else "ca"
    width = int(reading.operands[2], 0)
    operation = Operation(f"cp.async.{cache}", width)
    action = Memory("copy", "shared", width, operation=operation)
    return Built(action, (reading.operands[0],), ())


def _barrier(waits: bool) -> Builder:
    def build(reading: Reading) -> Built:
        if "cluster" in reading.words:
            return Built(Nothing())
        sources = tuple(reading.names.operand(text, 32) for text in reading.operands[:2])
        return Built(Barrier(waits=waits, counted=len(sources) > 1), sources)

    return build


def _passed(reading: Reading) -> Built:
    """mbarrier.try_wait: taken as passed at once; the loop around it touches no data."""
    return Built(Compute(lambda: (constant(1),)), (), reading.dests)


def _filled(reading: Reading) -> Built:
    """Bulk copies fill shared memory from elsewhere, or read it; none of the three counters counts them."""
    words = reading.words
    into_shared = any(word.startswith("shared") for word in words[:6])
    return Built(Lose()) if into_shared and "prefetch" not in words else Built(Nothing())


def _nothing(_: Reading) -> Built:
    return Built(Nothing())


def _end(_: Reading) -> Built:
    return Built(Exit())


def _refused(why: str) -> Builder:
    def build(reading: Reading) -> Built:
        return Built(Refused(f"{'.'.join(reading.words)}: {why}", always=True), (), reading.dests)

    return build


def _wmma(reading: Reading) -> Built:
    """wmma reads and writes tiles by instructions that only the assembler chooses."""
    if "mma" in reading.words[1:2] or space_of(reading.words) == "global":
        return forget(reading)
    why = "the assembler chooses the instructions that move the tile; give the compiled code"
    return _refused(why)(reading)


MEMORY: Final[dict[str, Builder]] = {
    "ld": _load,
    "ldu": _load,
    "ld.global.nc": _load,
    "st": _store,
    "atom": _atomic,
    "red": _atomic,
    "red.async": _refused("not modelled"),
    "ldmatrix": _matrix("ldmatrix"),
    "stmatrix": _matrix("stmatrix"),
    "cp.async.ca": _copy,
    "cp.async.cg": _copy,
    "bar.sync": _barrier(waits=True),
    "bar.cta.sync": _barrier(waits=True),
    "barrier.sync": _barrier(waits=True),
    "barrier.cta.sync": _barrier(waits=True),
    "bar.arrive": _barrier(waits=False),
    "bar.cta.arrive": _barrier(waits=False),
    "barrier.arrive": _barrier(waits=False),
    "barrier.cta.arrive": _barrier(waits=False),
    "cp.async.bulk": _filled,
    "st.async": _filled,
    "st.bulk": _filled,
    "mbarrier.try_wait": _passed,
    "mbarrier.test_wait": _passed,
    "mbarrier": forget,
    "wmma": _wmma,
    "exit": _end,
    "trap": _end,
    "brx.idx": _refused("a jump through a table"),
    "multimem": forget,
    "tex": forget,
    "tld4": forget,
    "txq": forget,
    "suld": forget,
    "suq": forget,
    "sust": _nothing,
    "sured": _nothing,
    "mma": forget,
    "wgmma": forget,
    "match.any.sync": forget,
    "match.all.sync": forget,
    "redux.sync": forget,
    "createpolicy": forget,
    "mapa": forget,
    "getctarank": forget,
}
# Neither results nor counts: caches, fences, groups of copies, hints.
for _name in (
    "bar.warp.sync", "barrier.cluster", "membar", "fence", "cp.async.commit_group",
    "cp.async.wait_group", "cp.async.wait_all", "cp.async.mbarrier", "cp.reduce",
    "prefetch", "prefetchu", "applypriority", "discard", "nanosleep", "pmevent", "brkpt",
    "griddepcontrol", "setmaxnreg", "mbarrier.init", "mbarrier.inval", "mbarrier.expect_tx",
    "mbarrier.complete_tx", "clusterlaunchcontrol", "tensormap", "stackrestore",
):  # fmt: skip
    MEMORY[_name] = _nothing
# Results that no address of these kernels may depend on: approximations, half precision, video, matrices.
for _name in (
    "rcp", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh", "copysign", "testp", "dp4a", "dp2a", "tcgen05",
    "isspacep", "slct", "sad", "stacksave", "fns", "szext", "bmsk",
):  # fmt: skip
    MEMORY[_name] = forget
