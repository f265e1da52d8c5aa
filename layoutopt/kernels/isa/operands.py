"""Operands of machine code as sources of steps, and instructions that compute as rows of letters.

A row names what an instruction gives and takes, one letter each:

    results   r  a register             d  two registers       p  a predicate (PT, or none, takes it nowhere)
              b  the lanes that will meet
    sources   w  a word                 d  two words           p  a predicate
              a  a word, inverted where a sign stands there     c  with X, all predicates at the end
              u  a word without a sign before it               h  the high word of a float of 64 bits
              f  a float of 32 bits     g  one of 64 bits: a sign and bars act on its sign bit

The function of a row takes the instruction and a value a source. It returns or generates a value a result.
"""

import itertools
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from layoutopt.kernels.isa.listing import Instruction
from layoutopt.kernels.machine import values
from layoutopt.kernels.machine.values import Value, constant
from layoutopt.kernels.program import Action, Compute, Forget, Source, opposite, same

_PLACE: Final = re.compile(
    r"(?P<sign>[-~!])?(?P<bar>\|)?"
    r"(?:(?P<register>U?R(?:\d{1,3}|Z))|c\[(?P<bank>0x[0-9a-f]{1,2})\]\s?\[(?P<offset>[^\]]*)\])"
    r"(?:\.[A-Z0-9_]+)*\|?$"
)
_PREDICATE: Final = re.compile(r"(!)?(U?P(?:\d|T))$")
_INTEGER: Final = re.compile(r"-?0x[0-9a-f]{1,16}$")
_FLOAT: Final = re.compile(r"[+-]?(?:\d+\.?\d*(?:e[+-]?\d+)?|INF|QNAN|NAN)$", re.I)
_PART: Final = re.compile(
    r"(?P<register>U?R(?:\d{1,3}|Z))(?:\.(?P<scale>X4|X8|X16|U32|64))?|(?P<number>-?0x[0-9a-f]{1,16})"
)


class UnreadableOperand(Exception):
    """The operand has a form that is not known."""


class Built(NamedTuple):
    """What becomes of an instruction."""

    action: Action
    sources: tuple[Source, ...] = ()
    dests: tuple[str, ...] = ()


Builder = Callable[[Instruction], Built]
# Of the instruction and the values of its sources.
Function = Callable[..., Value | Iterable[Value]]
Letters = str | Callable[[Instruction], str]


def is_predicate(text: str) -> bool:
    """Whether the operand is a predicate."""
    return _PREDICATE.match(text) is not None


def predicate(text: str) -> Source:
    """A predicate as a value of one bit."""
    match = _PREDICATE.match(text)
    if match is None:
        raise UnreadableOperand(text)
    negated, name = match.groups()
    if name.endswith("T"):
        return Source.always(constant(0 if negated else 1))
    return Source((name,), opposite if negated else same)


def registers(text: str, count: int = 1) -> tuple[str, ...]:
    """The cells of a register and of those behind it, so many in all; none for RZ."""
    match = _PLACE.match(text)
    if match is None or match["sign"] or not match["register"]:
        raise UnreadableOperand(text)
    prefix, digits = re.fullmatch(r"(U?R)(\d+|Z)", match["register"]).groups()  # type: ignore[union-attr]
    return () if digits == "Z" else tuple(f"{prefix}{int(digits) + k}" for k in range(count))


def number(text: str, width: int = 32) -> Value:
    """An immediate: an integer in hexadecimal, else a float."""
    if _INTEGER.match(text):
        return constant(int(text, 16), width)
    if not _FLOAT.match(text):
        raise UnreadableOperand(text)
    form, bits = ("<d", "<Q") if width == 64 else ("<f", "<I")
    try:
        packed = struct.pack(form, float(text.lower().replace("qnan", "nan")))
    except OverflowError:
        raise UnreadableOperand(text) from None
    return constant(struct.unpack(bits, packed)[0], width)


def word(text: str, count: int = 1, real: bool = False) -> Source:
    """A source of 32 bits, or of 64 with a count of 2: registers, words of constant memory, or a number."""
    width = 32 * count
    match = _PLACE.match(text)
    if match is None:
        return Source.always(number(text, width))
    sign, bar, name, bank, offset = match.groups()
    if name:
        cells = registers(name, count)
    elif _INTEGER.match(offset):
        cells = tuple(f"$c{int(bank, 16)}.{int(offset, 16) + 4 * k}" for k in range(count))
    else:
        raise UnreadableOperand(text)
    if (bar and not real) or sign == "!" or (sign == "~" and (real or count == 2)):
        raise UnreadableOperand(text)
    whole = values.join if len(cells) == 2 else same if cells else lambda: values.ZERO
    if not sign and not bar:
        return Source(cells, whole)
    top = constant(1 << (width - 1), width)

    def value(*parts: Value) -> Value:
        found = whole(*parts)
        if bar:
            found = values.both(found, values.invert(top, width), width)
        if sign and real:
            return values.differ(found, top, width)
        change = {"-": values.negate, "~": values.invert}.get(sign or "")
        return found if change is None else change(found, width)

    return Source(cells, value)


def words(text: str, count: int) -> list[Source]:
    """A register and those behind it, each by itself."""
    return [Source.cell(cell) for cell in registers(text, count)] or [word("RZ")] * count


def negates(text: str) -> bool:
    """Whether a sign stands before a register or a word of constant memory."""
    return text.startswith("-") and _PLACE.match(text) is not None


def _without_sign(text: str) -> Source:
    if text.startswith("-"):
        raise UnreadableOperand(text)
    return word(text)


def _high_word(text: str) -> Source:
    return word(text) if _PLACE.match(text) else Source.always(values.high(number(text, 64)))


_SOURCES: Final[dict[str, Callable[[str], Source]]] = {
    "w": word,
    "d": lambda text: word(text, 2),
    "a": lambda text: word(f"~{text[1:]}" if negates(text) else text),
    "u": _without_sign,
    "h": _high_word,
    "f": lambda text: word(text, 1, real=True),
    "g": lambda text: word(text, 2, real=True),
    "p": predicate,
}


def address(text: str, wide: bool) -> Source:
    """An address in brackets, `[R5+UR4+0x10]` or `desc[UR4][R2.64+0x10]`; `wide` ones have 64 bits."""
    inner = text[text.index("]") + 1 :] if text.startswith("desc[") else text
    if not (inner.startswith("[") and inner.endswith("]")):
        raise UnreadableOperand(text)
    return _place(inner[1:-1], wide)


def constant_place(text: str) -> tuple[int, Source]:
    """`c[0x3][R5+0x10]`: the bank, and the address in it."""
    match = _PLACE.match(text)
    if match is None or match["sign"] or not match["bank"]:
        raise UnreadableOperand(text)
    return int(match["bank"], 16), _place(match["offset"], wide=False)


def _place(inner: str, wide: bool) -> Source:
    """A sum of registers and numbers."""
    parts: list[Source] = []
    offset = 0
    for text in inner.replace("+-", "+ -").split("+"):
        match = _PART.fullmatch(text.strip())
        if match is None:
            raise UnreadableOperand(f"[{inner}]")
        if match["number"]:
            offset += int(match["number"], 16)
        else:
            one = word(match["register"], 2 if wide and match["scale"] != "U32" else 1)
            parts.append(_scaled(one, {"X4": 2, "X8": 3, "X16": 4}.get(match["scale"], 0)))
    width = 64 if wide else 32
    start = constant(offset, width)

    def total(*given: Value) -> Value:
        left = iter(given)
        terms = [one.value(*itertools.islice(left, len(one.cells))) for one in parts]
        return values.add(start, *terms, width=width)

    return Source(tuple(cell for one in parts for cell in one.cells), total)


def _scaled(source: Source, by: int) -> Source:
    cells, plain = source
    return Source(cells, lambda *given: values.shift_left(plain(*given), constant(by))) if by else source


def row(
    results: Letters,
    sources: Letters,
    function: Function,
    *,
    only: tuple[str, ...] | None = None,
    needs: tuple[str, ...] = (),
    unlike: tuple[str, ...] = (),
    across: bool = False,
) -> Builder:
    """An instruction by its letters.

    Args:
        results, sources: see the module; of the instruction where they are functions.
        function: what it computes.
        only: the modifiers that it may have; None for any.
        needs: modifiers of which it must have one.
        unlike: modifiers with which its results are not modelled.
        across: the function takes the active lanes, bool of shape (warps, 32), before the values.
    """

    def build(inst: Instruction) -> Built:
        if (only is not None and not set(inst.modifiers) <= set(only)) or (needs and not inst.has(*needs)):
            raise UnreadableOperand("another mode")
        gives, takes = (text if isinstance(text, str) else text(inst) for text in (results, sources))
        if inst.has(*unlike):
            return forget(2 if "d" in gives else 1)(inst)
        carries = (
            len(list(itertools.takewhile(is_predicate, reversed(inst.operands)))) if inst.has("X") else 0
        )
        takes = takes.replace("c", "p" * carries)
        written, read = _parted(list(inst.operands), gives, len(takes))
        if len(read) == len(takes) + 1 and read[-1] in ("!PT", "!UPT"):
            del read[-1]  # a predicate that some forms of an instruction join, and this one does not
        if len(read) != len(takes):
            raise UnreadableOperand(f"{len(read)} sources instead of {len(takes)}")
        given = [_SOURCES[letter](text) for letter, text in zip(takes, read, strict=True)]
        return computed(inst, list(zip(gives, written, strict=True)), given, function, across)

    return build


def _parted(operands: list[str], gives: str, count: int) -> tuple[list[str], list[str]]:
    """The operands that take the results, a letter each, and the others, of which `count` are sources.

    Predicates of results stand before the register or behind it: `P0, R1, ...` or `R1, P0, ...`. A result
    that is left out goes to RZ or PT; a predicate more than there are results is PT.
    """
    predicates, register = _leading(operands, count), []
    if gives[0] in "rd":
        register = ["RZ" if not operands or is_predicate(operands[0]) else operands.pop(0)]
        predicates = predicates or _leading(operands, count)
    asked = gives.count("p")
    if any(not name.endswith("T") for name in predicates[asked:]):
        raise UnreadableOperand(f"{len(predicates)} predicates for results")
    return [*register, *predicates[:asked], *["PT"] * (asked - len(predicates))], operands


def _leading(texts: list[str], kept: int) -> list[str]:
    """The predicates that stand first, taken away, as long as so many operands are left."""
    most = max(len(texts) - kept, 0)
    found = list(itertools.takewhile(is_predicate, texts[:most]))
    del texts[: len(found)]
    return found


def computed(
    inst: Instruction,
    results: Sequence[tuple[str, str]],
    sources: Sequence[Source],
    function: Function,
    across: bool = False,
) -> Built:
    """An instruction by the letter and operand of each result, and the sources."""
    # Where each word goes that the function gives; None for nowhere (RZ, PT).
    cells: list[str | None] = []
    for letter, text in results:
        if letter in "pb":
            cells.append(None if text.endswith("T") else text)
        else:
            count = 2 if letter == "d" else 1
            cells += registers(text, count) or (None,) * count
    asked = [k for k, cell in enumerate(cells) if cell is not None]
    pair_first = bool(results) and results[0][0] == "d"

    def run(*given: Any) -> tuple[Value, ...]:
        found = function(inst, *given)
        words = iter((found,) if isinstance(found, Value) else found)
        if pair_first:
            pair = next(words)
            words = itertools.chain((values.cut(pair), values.high(pair)), words)
        # What a function generates is computed as far as somebody takes it.
        computed = list(itertools.islice(words, asked[-1] + 1))
        return tuple(computed[k] for k in asked)

    action = Compute(run, across) if asked else Forget()
    return Built(action, tuple(sources), tuple(cell for cell in cells if cell is not None))


def forget(count: int, places: int = 1) -> Builder:
    """Results that are not modelled, of so many registers at each of the first places that name some."""
    return lambda inst: Built(Forget(), (), written(inst, count, places))


def written(inst: Instruction, count: int, places: int = 1) -> tuple[str, ...]:
    """Predicates before the first registers, and so many registers there, that an instruction may write."""
    cells: list[str] = []
    for text in inst.operands:
        name = text.split(".")[0].lstrip("-!~|").rstrip("|")
        if is_predicate(name):
            cells += [] if name.endswith("T") else [name]
        elif re.fullmatch(r"U?R(\d{1,3}|Z)", name):
            cells += registers(name, count)
            places -= 1
        if not places:
            break
    return tuple(cells)
