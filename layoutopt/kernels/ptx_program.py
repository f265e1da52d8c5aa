"""A kernel of PTX as a program: functions put in place of their calls, arrays given addresses, ways that
meet.

PTX does not say where lanes that parted go on together. Here they do at the first step that both ways must
pass, which is what the assembler arranges for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import Budget
from layoutopt.ground.escape import shown
from layoutopt.kernels.flow import post_dominators
from layoutopt.kernels.names import demangled
from layoutopt.kernels.program import (
    GLOBAL_BASE,
    STACK_BYTES,
    Array,
    Exit,
    Forget,
    Guard,
    Jump,
    Memory,
    Parameter,
    Program,
    Refused,
    Rejoin,
    Step,
)
from layoutopt.kernels.ptx_arithmetic import ARITHMETIC
from layoutopt.kernels.ptx_memory import CONSTANTS_BANK, MEMORY
from layoutopt.kernels.ptx_moves import MOVES
from layoutopt.kernels.ptx_names import ADDRESS, Instance, NamesOf, Places, key_of
from layoutopt.kernels.ptx_reading import Builder, Reading
from layoutopt.kernels.ptx_text import Function, Instruction, Label, Module, Variable, read_ptx
from layoutopt.kernels.relevance import successors

OPERATIONS: Final[Mapping[str, Builder]] = {**ARITHMETIC, **MOVES, **MEMORY}
MAX_CALLS: Final = 16
MAX_STEPS: Final = 1 << 18
MOST_RESULT_BYTES: Final = 64
STATIC_GLOBAL_BASE: Final = GLOBAL_BASE >> 1


def programs(text: str, origin: str = "PTX", budget: Budget | None = None) -> tuple[Program, ...]:
    """The kernels of a file, in its order.

    Raises:
        ProblemFileError: it is not PTX that can be read.
        OutOfTime: the budget is spent.
    """
    module = read_ptx(text, origin, budget)
    entries = [f for f in module.functions.values() if f.entry and f.body is not None]
    if not entries:
        raise ProblemFileError(origin, "expected a kernel (.entry), got none")
    return tuple(program_of(module, entry, budget) for entry in entries)


def program_of(module: Module, entry: Function, budget: Budget | None = None) -> Program:
    """One kernel."""
    return _Flat(module, entry, budget).program()


def shared_places(module: Module, entry: Function) -> dict[str, tuple[int, int]]:
    """First byte and size of every shared array of a kernel, by its name; dynamic ones have size 0."""
    flat = _Flat(module, entry)
    sizes = {v.name: v.size for v in _all_variables(module) if v.space == "shared"}
    return {name: (start, sizes[name]) for name, start in flat.shared.items()}


def _all_variables(module: Module) -> list[Variable]:
    return [*(v for f in module.functions.values() for v in f.variables), *module.variables]


@dataclass(slots=True)
class _Draft:
    """A step whose jump still names a label."""

    step: Step
    target: str | None = None


class _Flat:
    def __init__(self, module: Module, entry: Function, budget: Budget | None = None) -> None:
        self._module, self._entry, self._budget = module, entry, budget or Budget()
        self._items: list[_Draft | str] = []
        self._instances = 0
        self._steps = 0
        self._addresses: dict[str, int] = {}
        self._arrays: list[Array] = []
        self._constants = bytearray()
        self._unset: list[tuple[int, int]] = []
        self._ends = {"shared": 0, "global": STATIC_GLOBAL_BASE, "const": 0, "local": 0}
        self._parameters = _placed(entry.parameters)
        self._place_variables()
        names = {v.name for v in _all_variables(module) if v.space == "shared"}
        self.shared = {name: start for name, start in self._addresses.items() if name in names}
        self._places = Places(self._parameters, self._addresses, module.functions)

    # Memory.

    def _place_variables(self) -> None:
        used = set(re.findall(r"[\w$]+", self._module.text[slice(*self._entry.span)]))
        called = [f for f in self._module.functions.values() if f is not self._entry and not f.entry]
        for function in called:
            used |= set(re.findall(r"[\w$]+", self._module.text[slice(*function.span)]))
        inner = [v for f in (self._entry, *called) for v in f.variables]
        chosen = [v for v in (*inner, *self._module.variables) if v.space != "param" and v.name in used]
        for variable in chosen:
            if not (variable.space == "shared" and variable.extern):
                self._place(variable)
        self._static_bytes = self._ends["shared"]
        for variable in chosen:
            if variable.space == "shared" and variable.extern:
                start = -(-self._static_bytes // max(variable.align, 16)) * max(variable.align, 16)
                self._addresses[variable.name] = start
                self._static_bytes = start

    def _place(self, variable: Variable) -> None:
        if variable.name in self._addresses or variable.space not in self._ends:
            return
        start = -(-self._ends[variable.space] // variable.align) * variable.align
        self._addresses[variable.name] = start
        self._ends[variable.space] = start + variable.size
        if variable.space == "shared":
            name = source_name(variable.name)
            self._arrays.append(Array(name, start, variable.size, variable.element_bytes))
        if variable.space == "const" and variable.content is not None and any(variable.content):
            self._constants = self._constants.ljust(start, b"\0") + variable.content
        elif variable.space == "const":
            self._unset.append((start, variable.size))

    # The program.

    def program(self) -> Program:
        """All of it."""
        self._put_function(Instance(self._entry, ""), 0)
        steps = _joined(self._linked(), self._budget)
        pointers = _pointers(self._entry)
        parameters = tuple(
            Parameter(offset, v.size, v.name, (v.size == 8 and (v.name in pointers or v.pointer)) or None)
            for v, offset in zip(self._entry.parameters, self._parameters.values(), strict=True)
        )
        if self._ends["local"] > STACK_BYTES:
            raise ProblemFileError(self._entry.name, f"expected at most {STACK_BYTES} bytes of local memory")
        return Program(
            name=self._entry.name,
            title=demangled(self._entry.name),
            target=self._module.target,
            form="ptx",
            steps=steps,
            parameters=parameters,
            constants={CONSTANTS_BANK: bytes(self._constants)} if self._constants else {},
            unset={CONSTANTS_BANK: tuple(self._unset)},
            static_bytes=self._static_bytes,
            arrays=tuple(self._arrays),
        )

    def _linked(self) -> list[Step]:
        """Steps whose jumps go to indices."""
        places: dict[str, int] = {}
        drafts: list[_Draft] = []
        for item in self._items:
            if isinstance(item, str):
                places[item] = len(drafts)
            else:
                drafts.append(item)
        found = []
        for draft in self._budget.each(drafts):
            step = draft.step
            if draft.target is not None:
                if draft.target not in places:
                    name = draft.target.split(":")[-1]
                    raise ProblemFileError(self._entry.name, f"line {step.address}: no label {name!r}")
                step = replace(step, action=Jump(places[draft.target]))
            found.append(step)
        return found

    def _put(self, step: Step, target: str | None = None) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise ProblemFileError(self._entry.name, f"more than {MAX_STEPS:,} instructions")
        self._items.append(_Draft(step, target))

    def _put_function(self, instance: Instance, depth: int) -> None:
        body = instance.function.body or ()
        for item in self._budget.each(body):
            if isinstance(item, Label):
                self._items.append(f"{instance.prefix}{item.name}")
            else:
                self._put_instruction(instance, item, depth)
        self._items.append(f"{instance.prefix}end")
        if depth == 0:
            line = next((i.line for i in reversed(body) if isinstance(i, Instruction)), 0)
            self._put(Step(address=line, text="exit", action=Exit()))

    def _put_instruction(self, instance: Instance, item: Instruction, depth: int) -> None:
        words = tuple(item.opcode.split("."))
        names = NamesOf(self._places, instance)
        guard = Guard(names.cell(item.guard[0]), item.guard[1]) if item.guard else None
        base = Step(
            address=item.line,
            text=f"{item.opcode} {', '.join(item.operands)}".strip(),
            action=Refused(item.opcode),
            guard=guard,
            place=item.place,
        )
        if words[0] == "call":
            self._put_call(instance, item, base, depth)
        elif words[0] == "bra" and not item.operands:
            raise ProblemFileError(self._entry.name, f"line {item.line}: bra: expected a label")
        elif words[0] in ("bra", "ret"):
            if words[0] == "ret" and depth == 0:
                self._put(replace(base, action=Exit()))
            else:
                self._put(base, f"{instance.prefix}{item.operands[0] if words[0] == 'bra' else 'end'}")
        else:
            for step in self._built(names, item, words, base):
                self._put(step)

    def _built(self, names: NamesOf, item: Instruction, words: tuple[str, ...], base: Step) -> Iterator[Step]:
        """The steps of an instruction; what the table does not have is refused, where it matters."""
        reading = Reading(words, item.operands, names)
        try:
            moved = names.parameter_move(reading)
            built = moved if moved is not None else _builder(words)(reading)
            if isinstance(built.action, Memory):
                yield from names.with_address(built, base)
                return
        except (ValueError, IndexError, KeyError) as error:
            where = f"line {item.line}: {item.opcode}"
            reason = (
                f"expected {error}" if isinstance(error, ValueError) else "not an instruction that is known"
            )
            dests = (
                names.cells(item.operands[0])
                if item.operands and not item.operands[0].startswith("[")
                else ()
            )
            always = words[0] in ("ld", "st", "atom", "red") or "shared" in words or "shared::cta" in words
            yield replace(base, action=Refused(f"{where}: {reason}", always=always), dests=dests)
            return
        yield replace(base, action=built.action, sources=built.sources, dests=built.dests)

    def _put_call(self, instance: Instance, item: Instruction, base: Step, depth: int) -> None:
        if len(item.operands) != 3:
            where = f"line {item.line}: {item.opcode}"
            raise ProblemFileError(self._entry.name, f"{where}: expected (results), a function, (arguments)")
        name, results, arguments = item.operands
        callee = self._module.functions.get(name)
        actual = [a.strip() for a in (*results.split(","), *arguments.split(",")) if a.strip()]
        if callee is None or callee.body is None or depth >= MAX_CALLS:
            why = "calls itself" if depth >= MAX_CALLS else "is not in this file"
            why = "is called through a pointer" if name in instance.function.registers else why
            forgotten = Forget(f"line {item.line}: the function {shown(name)!r} {why}", counts=True)
            keys = [key_of(instance, a.strip()) for a in results.split(",") if a.strip()]
            cells = tuple(f"%{key}+{k}" for key in keys for k in range(0, MOST_RESULT_BYTES, 4))
            self._put(replace(base, action=forgotten, dests=cells))
            return
        formal = [v.name for v in (*callee.results, *callee.parameters)]
        self._instances += 1
        prefix = f"{self._instances}:"
        keys = [key_of(instance, a) for a in actual]
        after = f"{prefix}after"
        if base.guard is not None:
            skip = replace(base, guard=Guard(base.guard.cell, not base.guard.negated))
            self._put(skip, after)
        self._put_function(Instance(callee, prefix, dict(zip(formal, keys, strict=False))), depth + 1)
        self._items.append(after)


def _builder(words: tuple[str, ...]) -> Builder:
    """The entry of the table for the longest beginning of an opcode."""
    for length in range(len(words), 0, -1):
        builder = OPERATIONS.get(".".join(words[:length]))
        if builder is not None:
            return builder
    raise KeyError(words[0])


def _placed(parameters: tuple[Variable, ...]) -> dict[str, int]:
    """Offsets of an entry's parameters."""
    end, found = 0, {}
    for variable in parameters:
        start = -(-end // max(variable.align, 1)) * max(variable.align, 1)
        found[variable.name] = start
        end = start + variable.size
    return found


def _joined(steps: list[Step], budget: Budget) -> tuple[Step, ...]:
    """With a step where the ways of a branch meet again, and jumps moved accordingly."""
    meets = [
        None if place is not None and _ends(steps[place]) else place
        for place in post_dominators(successors(tuple(steps)), budget)
    ]
    wanted = {k: meets[k] for k, s in enumerate(steps) if isinstance(s.action, Jump) and s.guard is not None}
    places = sorted({place for place in wanted.values() if place is not None})
    meeting = frozenset(places)
    moved, added = {}, 0
    for k in range(len(steps) + 1):
        moved[k] = k + added
        if added < len(places) and places[added] == k:
            added += 1
    found: list[Step] = []
    for k, step in budget.each(enumerate(steps)):
        if k in meeting:
            found.append(replace(step, action=Rejoin(), guard=None, sources=(), dests=(), text="(meet)"))
        action = step.action
        if isinstance(action, Jump) and action.target is not None:
            meet = wanted.get(k)
            step = replace(
                step, action=Jump(moved[action.target], joins=None if meet is None else moved[meet])
            )
        found.append(step)
    return tuple(found)


def _ends(step: Step) -> bool:
    """Lanes that only meet to exit need not wait."""
    return isinstance(step.action, Exit) and step.guard is None


def _pointers(entry: Function) -> set[str]:
    """Parameters that are used as addresses of global memory."""
    of: dict[str, str] = {}
    found = set()
    for item in entry.body or ():
        if not isinstance(item, Instruction) or len(item.operands) < 2:
            continue
        words = item.opcode.split(".")
        place = ADDRESS.fullmatch(item.operands[1])
        source = place[1] if place else item.operands[1]
        if item.opcode.startswith("ld.param") and words[-1][1:] == "64" and place and not place[2]:
            of[item.operands[0]] = source
        elif words[0] in ("add", "mov", "cvta") and source in of:
            of[item.operands[0]] = of[source]
            if item.opcode.startswith(("cvta.to.global", "cvta.global")):
                found.add(of[source])
        for operand in item.operands[:2]:
            base = ADDRESS.fullmatch(operand)
            if base and base[1] in of and words[0] in ("ld", "st", "atom", "red", "cp"):
                found.add(of[base[1]])
    return found


def source_name(name: str) -> str:
    """What the source calls an array: the last name of a mangled local one."""
    if name.startswith("_ZZ"):
        for match in re.finditer(r"E(\d+)", name):
            rest = name[match.end() :]
            if int(match[1]) and len(rest) in (int(match[1]), int(match[1]) + 2) and rest[: int(match[1])]:
                return rest[: int(match[1])]
    return name
