"""Logic, comparisons and predicates of machine code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from layoutopt.kernels.isa.integers import (
    Builder,
    Built,
    compute,
    joined_with,
    predicate_slots,
    shape,
    slots,
    words,
)
from layoutopt.kernels.isa.listing import Instruction
from layoutopt.kernels.isa.operands import UnreadableOperand, is_predicate, number, pair, predicate, word
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Value, constant


def _logic(instruction: Instruction) -> Built:
    """LOP3: a table of three bits, and whether the result is not 0."""
    form = shape(instruction)
    if len(form.sources) != 4 or form.carries not in ([], ["!PT"], ["!UPT"]):
        raise UnreadableOperand("LOP3 of another form")
    lut = int(number(form.sources[3]).bits[0, 0])

    def function(a: Value, b: Value, c: Value) -> tuple[Value, ...]:
        result = values.table3(a, b, c, lut)
        return result, values.invert(values.equal(result, values.ZERO), 1)

    return compute(
        [*slots(form.dest), *predicate_slots(form.results, 1)], words(form.sources[:3], 3), function
    )


def _predicate_logic(instruction: Instruction) -> Built:
    """PLOP3: two tables of three predicates."""
    operands = list(instruction.operands)
    tables = [int(number(text).bits[0, 0]) for text in operands if not is_predicate(text)]
    inputs = [text for text in operands if is_predicate(text)]
    if len(tables) != 2 or len(inputs) != 5:
        raise UnreadableOperand("PLOP3 of another form")
    where = predicate_slots(inputs[:2], 2)

    def function(a: Value, b: Value, c: Value) -> tuple[Value, ...]:
        return tuple(values.table3(a, b, c, lut, 1) for lut in tables)

    return compute(where, [predicate(text) for text in inputs[2:]], function)


_COMPARISONS: Final = ("LT", "LE", "GT", "GE", "EQ", "NE")


def _compare(instruction: Instruction) -> Built:
    """ISETP: a comparison joined with a predicate, and its opposite joined likewise."""
    form = shape(instruction, has_dest=False)
    name = next((m.lower() for m in instruction.modifiers if m in (*_COMPARISONS, "T", "F")), "")
    joint = next((m for m in instruction.modifiers if m in ("AND", "OR", "XOR")), "AND")
    is_signed = not instruction.has("U32", "U64")
    wide = instruction.has("U64", "S64", "64")
    extended = instruction.has("EX")
    if len(form.sources) != 2 or not name:
        raise UnreadableOperand("a comparison of another form")
    sources = [pair(text) if wide else word(text) for text in form.sources]
    carries = [predicate(text) for text in form.carries]
    if len(carries) != (2 if extended else 1):
        raise UnreadableOperand("a comparison of another form")
    width = 64 if wide else 32

    def function(a: Value, b: Value, other: Value, *lower: Value) -> tuple[Value, ...]:
        if name in "tf":
            holds = constant(int(name == "t"))
        elif not extended:
            holds = values.compare(name, a, b, width, is_signed)
        elif name in ("eq", "ne"):
            same = values.equal(a, b)
            holds = (
                values.both(same, lower[0], 1)
                if name == "eq"
                else values.either(values.invert(same, 1), lower[0], 1)
            )
        else:
            strict = values.compare(name[0] + "t", a, b, width, is_signed)
            holds = values.either(strict, values.both(values.equal(a, b), lower[0], 1), 1)
        fails = values.invert(holds, 1)
        return tuple(joined_with(joint, one, other) for one in (holds, fails))

    return compute(predicate_slots(form.results, 2), [*sources, *carries], function)


def _to_predicates(instruction: Instruction) -> Built:
    """R2P: bits of a register under a mask become predicates P0 to P6."""
    operands = instruction.operands
    if len(operands) != 3 or instruction.modifiers not in ((), ("B0",)):
        raise UnreadableOperand("R2P of another form")
    mask = int(number(operands[2]).bits[0, 0])
    chosen = [k for k in range(7) if mask >> k & 1]

    def function(a: Value) -> tuple[Value, ...]:
        return tuple(values.both(values.shift_right(a, constant(k)), values.TRUE, 1) for k in chosen)

    return compute([f"P{k}" for k in chosen], [word(operands[1])], function)


def _from_predicates(instruction: Instruction) -> Built:
    """P2R: predicates as bits under a mask, another register's bits elsewhere."""
    operands = instruction.operands
    if len(operands) != 4 or operands[1] not in ("PR", "UPR"):
        raise UnreadableOperand("P2R of another form")
    prefix = "U" if operands[1] == "UPR" else ""
    mask = int(number(operands[3]).bits[0, 0])
    chosen = [k for k in range(7) if mask >> k & 1]

    def function(a: Value, *predicates: Value) -> tuple[Value, ...]:
        result = values.both(a, constant(~mask))
        for k, value in zip(chosen, predicates, strict=True):
            result = values.either(result, values.shift_left(value, constant(k)))
        return (result,)

    sources = [word(operands[2]), *(predicate(f"{prefix}P{k}") for k in chosen)]
    if instruction.modifiers:
        raise UnreadableOperand("P2R of a part")
    return compute(slots(operands[0]), sources, function)


PREDICATES: Final[Mapping[str, Builder]] = {
    "ISETP": _compare,
    "LOP3": _logic,
    "P2R": _from_predicates,
    "PLOP3": _predicate_logic,
    "R2P": _to_predicates,
}
