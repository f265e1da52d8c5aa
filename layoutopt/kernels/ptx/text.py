"""PTX as text: statements, declarations and scopes, each with its place in the text.

Follows the PTX ISA as nvcc, clang, Triton and Numba write it. Nothing is executed; names are resolved: a
register declared in an inner block gets a name of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn

from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import Budget
from layoutopt.kernels.program import Place

MAX_CHARACTERS: Final = 1 << 26
MAX_STATEMENTS: Final = 1 << 20
MAX_DEPTH: Final = 64

TYPE_BYTES: Final = {
    "pred": 1,
    **{f"{kind}8": 1 for kind in "bsu"},
    **{f"{kind}16": 2 for kind in "bsuf"},
    **{f"{kind}32": 4 for kind in "bsuf"},
    **{f"{kind}64": 8 for kind in "bsuf"},
    "b128": 16,
    "bf16": 2,
    "f16x2": 4,
    "bf16x2": 4,
    "tf32": 4,
}
_NAME: Final = r"[A-Za-z_$%][\w$]*"
# Names of a block, and what they are called in the whole function.
_Names = dict[str, str]
_SPACE: Final = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)+", re.S)
_LABEL: Final = re.compile(rf"({_NAME})\s*:(?!:)")
_LOC: Final = re.compile(r"\.loc\s+(\d+)\s+(\d+)[^\n]*")
_FILE: Final = re.compile(r'\.file\s+(\d+)\s+"([^"\n]*)"[^\n]*')
_LINE: Final = re.compile(r"\.(version|target|address_size)\s+([^\n/]*)")
_SECTION: Final = re.compile(r"\.section\s+[^{;]*\{[^}]*\}")
_HEAD: Final = re.compile(r"(?:\.(?:visible|extern|weak|common)\s+)*\.(entry|func)\b")
_VARIABLE: Final = re.compile(
    r"(?:\.(?:visible|extern|weak|common)\s+)*\.(shared|global|const|local|param|reg|tex)\b([^;]*);"
)
_DECLARED: Final = re.compile(
    rf"^(?P<words>(?:\s*\.[\w:]+(?:\s+(?=\d)\d+)?)*)\s*(?P<name>{_NAME})?\s*(?P<extents>(?:\[\s*\d*\s*\]\s*)*)"
)
_GUARD: Final = re.compile(rf"@(!?)({_NAME})\s+")
_CALL: Final = re.compile(
    rf"call(?:\.uni)?\s+(?:\(([^)]*)\)\s*,\s*)?({_NAME})\s*(?:,\s*\(([^)]*)\))?(?:\s*,\s*{_NAME})?\s*$"
)


@dataclass(frozen=True, slots=True)
class Variable:
    """A declaration: an array of a state space.

    Attributes:
        name: as written.
        space: `shared`, `global`, `const`, `local`, `param`.
        align: in bytes.
        size: in bytes; 0 for an array without extent (dynamic shared memory).
        span: of the text.
        extern: declared elsewhere.
    """

    name: str
    space: str
    align: int
    size: int
    span: tuple[int, int]
    extern: bool = False


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        opcode: with its dots.
        operands: as written, names of inner blocks made unique.
        guard: the predicate, and whether it is negated.
        span: of the text, guard included.
        line: of the text, from 1.
        place: line of the source.
    """

    opcode: str
    operands: tuple[str, ...]
    guard: tuple[str, bool] | None
    span: tuple[int, int]
    line: int
    place: Place | None


@dataclass(frozen=True, slots=True)
class Function:
    """An entry, or a function that it calls.

    Attributes:
        name: as written.
        entry: it can be launched.
        body: instructions; None for a declaration.
        variables: declared inside.
        registers: names and types of registers, `%r<24>` as 24 names.
        span: of its body in the text, braces included.
    """

    name: str
    entry: bool
    body: tuple[Instruction, ...] | None
    variables: tuple[Variable, ...]
    registers: dict[str, str]
    span: tuple[int, int]


@dataclass(slots=True)
class Module:
    """A file of PTX.

    Attributes:
        text: all of it.
        target: such as `sm_90`.
        functions: by name.
        variables: declared outside functions.
    """

    text: str
    target: str = ""
    functions: dict[str, Function] = field(default_factory=dict)
    variables: tuple[Variable, ...] = ()


def read_ptx(text: str, origin: str, budget: Budget | None = None) -> Module:
    """Read a file.

    Args:
        text: of the file.
        origin: its name, for messages.
        budget: the time there is; None for no limit.

    Raises:
        ProblemFileError: it is not PTX that can be read, or too long.
        OutOfTime: the budget is spent.
    """
    if len(text) > MAX_CHARACTERS:
        raise ProblemFileError(origin, f"expected at most {MAX_CHARACTERS:,} characters, got {len(text):,}")
    if text.count(";") > MAX_STATEMENTS:
        raise ProblemFileError(origin, f"expected at most {MAX_STATEMENTS:,} statements")
    return _Reader(text, origin, budget or Budget()).module()


class _Reader:
    def __init__(self, text: str, origin: str, budget: Budget) -> None:
        self._text, self._origin, self._budget = text, origin, budget
        self._at = 0
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._files = {int(m[1]): m[2] for m in _FILE.finditer(text)}
        self._unique = 0

    def module(self) -> Module:
        module = Module(self._text)
        variables: list[Variable] = []
        while self._more():
            if match := self._take(_LINE):
                if match[1] == "target":
                    module.target = match[2].split(",")[0].strip()
            elif self._take(_FILE) or self._take(_SECTION) or self._take(_LOC):
                continue
            elif match := self._take(_HEAD):
                function = self._function(match[1] == "entry")
                known = module.functions.get(function.name)
                if known is None or known.body is None:
                    module.functions[function.name] = function
            elif match := self._take(_VARIABLE):
                variables += self._variables(match)
            elif self._text.startswith((".pragma", ".alias", ".weak", ".visible"), self._at):
                self._statement()
            else:
                self._fail("expected a directive of PTX")
        if not module.target or not module.functions:
            self._fail("expected .target and a function")
        module.variables = tuple(variables)
        return module

    # Places.

    def _more(self) -> bool:
        self._budget.check()
        if match := _SPACE.match(self._text, self._at):
            self._at = match.end()
        return self._at < len(self._text)

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        if match:
            self._at = match.end()
        return match

    def _line(self, at: int) -> int:
        low, high = 0, len(self._line_starts)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._line_starts[middle] <= at else (low, middle)
        return low + 1

    def _fail(self, required: str, at: int | None = None) -> NoReturn:
        at = self._at if at is None else at
        given = self._text[at : at + 60].split("\n")[0].strip()
        raise ProblemFileError(f"{self._origin}: line {self._line(at)}", f"{required}, got {given!r}")

    def _statement(self) -> tuple[str, tuple[int, int]]:
        """The text up to a semicolon, comments left out."""
        end = self._text.find(";", self._at)
        if end < 0:
            self._fail("expected a statement that ends with ';'")
        start, self._at = self._at, end + 1
        return _SPACE.sub(" ", self._text[start:end]).strip(), (start, end + 1)

    # Declarations.

    def _variables(self, match: re.Match[str]) -> Iterator[Variable]:
        space, declaration = match[1], _SPACE.sub(" ", match[2]).partition("=")[0]
        found = _DECLARED.match(declaration)
        if found is None or found["name"] is None:
            self._fail("expected a declaration", match.start())
        for part in _split(declaration[found.start("name") :]):
            one = re.match(rf"({_NAME})\s*((?:\[\s*\d*\s*\]\s*)*)", part)
            if one is None:
                self._fail("expected a name", match.start())
            yield self._variable(space, found["words"], one[1], one[2], match)

    def _variable(self, space: str, words: str, name: str, extents: str, match: re.Match[str]) -> Variable:
        kinds = [w for w in re.findall(r"\.([\w:]+)", words) if w in TYPE_BYTES]
        align = re.search(r"\.align\s+(\d+)", words)
        size = TYPE_BYTES[kinds[-1]] if kinds else 1
        total = size
        for vector in re.findall(r"\.v([24])\b", words):
            total *= int(vector)
        for extent in re.findall(r"\[\s*(\d*)\s*\]", extents):
            total *= int(extent or 0)
        if total > 1 << 40:
            self._fail("expected an array that fits memory", match.start())
        extern = ".extern" in match[0].split("." + space)[0]
        return Variable(name, space, int(align[1]) if align else size, total, match.span(), extern)

    def _skip_parameters(self) -> None:
        """Pass over what stands in parentheses."""
        self._more()
        if self._text.startswith("(", self._at):
            end = self._text.find(")", self._at)
            if end < 0:
                self._fail("expected ')'")
            self._at = end + 1

    # Functions.

    def _function(self, entry: bool) -> Function:
        self._skip_parameters()
        self._more()
        match = self._take(re.compile(_NAME))
        if match is None:
            self._fail("expected the name of a function")
        self._skip_parameters()
        while self._more() and self._text[self._at] not in "{;":  # .maxntid 128, 1, 1 and the like
            directive = self._take(re.compile(r"\.[\w.]+(?:[\s\d,]|//[^\n]*)*"))
            if directive is None:
                self._fail("expected the body of a function")
        if self._text.startswith(";", self._at):
            self._at += 1
            return Function(match[0], entry, None, (), {}, (self._at, self._at))
        if self._at >= len(self._text):
            self._fail("expected the body of a function", match.start())
        return self._body(match[0], entry)

    def _body(self, name: str, entry: bool) -> Function:
        begin = self._at
        scopes: list[_Names] = []
        items: list[tuple[Instruction, tuple[_Names, ...]]] = []
        variables: list[Variable] = []
        registers: dict[str, str] = {}
        place: Place | None = None
        while self._more():
            if self._text[self._at] == "{":
                self._at += 1
                scopes.append({})
                if len(scopes) > MAX_DEPTH:
                    self._fail(f"expected at most {MAX_DEPTH} blocks inside each other")
            elif self._text[self._at] == "}":
                self._at += 1
                scopes.pop()
                if not scopes:
                    span = (begin, self._at)
                    body = tuple(_resolved(item, inside) for item, inside in items)
                    return Function(name, entry, body, tuple(variables), registers, span)
            elif match := self._take(_LOC):
                file = self._files.get(int(match[1]), "")
                place = Place(file, int(match[2])) if int(match[2]) else None
            elif self._take(_LABEL):
                continue
            elif self._text[self._at] == ".":
                variables += self._declaration(scopes, registers)
            else:
                items.append((self._instruction(place), tuple(scopes)))
        return self._fail("expected '}'", begin)

    def _declaration(self, scopes: list[_Names], registers: dict[str, str]) -> list[Variable]:
        match = self._take(_VARIABLE)
        if match is None:
            self._statement()  # .pragma, .branchtargets, .callprototype
            return []
        if match[1] == "reg":
            self._registers(match, scopes, registers)
            return []
        found = []
        for variable in self._variables(match):
            unique = self._declared(variable.name, scopes) if variable.space == "param" else variable.name
            found.append(replace(variable, name=unique))
        return found

    def _registers(self, match: re.Match[str], scopes: list[_Names], registers: dict[str, str]) -> None:
        words = re.match(r"((?:\s*\.\w+)+)\s*(.*)", _SPACE.sub(" ", match[2]), re.S)
        if words is None:
            self._fail("expected registers", match.start())
        kind = re.findall(r"\w+", words[1])[-1]
        for part in _split(words[2]):
            one = re.fullmatch(rf"({_NAME})(?:<(\d+)>)?", part)
            if one is None or int(one[2] or 0) > 1 << 20:
                self._fail("expected registers", match.start())
            for name in [one[1]] if one[2] is None else [f"{one[1]}{k}" for k in range(int(one[2]))]:
                registers[self._declared(name, scopes)] = kind

    def _declared(self, name: str, scopes: list[_Names]) -> str:
        """A name of the innermost block: as it is in the outermost one, else made unique."""
        if len(scopes) <= 1:
            return name
        self._unique += 1
        scopes[-1][name] = f"{name}`{self._unique}"
        return scopes[-1][name]

    def _instruction(self, place: Place | None) -> Instruction:
        start = self._at
        text, span = self._statement()
        guard = None
        if match := _GUARD.match(text):
            guard = (match[2], match[1] == "!")
            text = text[match.end() :]
        if call := _CALL.match(text):
            operands: tuple[str, ...] = (call[2], call[1] or "", call[3] or "")
            return Instruction("call", operands, guard, span, self._line(start), place)
        opcode, _, rest = text.partition(" ")
        if not re.fullmatch(r"[a-z][\w.:]*", opcode):
            self._fail("expected an instruction", start)
        return Instruction(opcode, tuple(_split(rest)), guard, span, self._line(start), place)


def _resolved(item: Instruction, scopes: tuple[_Names, ...]) -> Instruction:
    """The instruction with the unique names of the blocks around it."""
    names: dict[str, str] = {}
    for scope in scopes:
        names |= scope
    if not names:
        return item

    def unique(name: str) -> str:
        return names.get(name, name)

    operands = tuple(re.sub(_NAME, lambda m: unique(m[0]), operand) for operand in item.operands)
    guard = (unique(item.guard[0]), item.guard[1]) if item.guard else None
    return replace(item, operands=operands, guard=guard)


def _split(text: str) -> list[str]:
    """Parts between the commas outside brackets."""
    parts, depth, start = [], 0, 0
    for k, letter in enumerate(text):
        if letter in "{[(":
            depth += 1
        elif letter in "}])":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:k].strip())
            start = k + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts
