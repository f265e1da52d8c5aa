"""PTX as text: statements, declarations and scopes, each with its place in the text.

Follows the PTX ISA as nvcc, clang, Triton and Numba write it. Nothing is executed; names are resolved: a
register declared in an inner block gets a name of its own.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NoReturn

from msgspec import Struct

from layoutopt.errors import ProblemFileError
from layoutopt.ground.brackets import split
from layoutopt.ground.budget import checkpoint
from layoutopt.kernels.program import Place

MAX_CHARACTERS: Final = 1 << 26
MAX_STATEMENTS: Final = 1 << 20
MAX_DEPTH: Final = 64

TYPE_BYTES: Final = {
    **{f"{kind}{bits}": bits // 8 for kind in "bsuf" for bits in (8, 16, 32, 64)},
    "pred": 1,
    "b128": 16,
    "bf16": 2,
    "f16x2": 4,
    "bf16x2": 4,
    "tf32": 4,
}
_NAME: Final = r"[A-Za-z_$%][\w$]*"
_LINKAGE: Final = r"(?:\.(?:visible|extern|weak|common)\s+)*"
_BLANK: Final = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)+", re.S)
_FILE: Final = re.compile(r'\.file\s+(\d+)\s+"([^"\n]*)"[^\n]*')
# What a file is made of. The head of a function goes up to its body, or to the semicolon of a declaration.
_PART: Final = re.compile(
    rf"""(?P<blank>{_BLANK.pattern})
    | \.loc\s+(?P<file>\d+)\s+(?P<line>\d+)[^\n]*
    | \.target\s+(?P<target>\w+)[^\n]*
    | (?P<skipped>\.(?:file|version|address_size)\b[^\n]*|\.section\s+[^{{;]*\{{[^}}]*\}})
    | {_LINKAGE}\.(?P<kind>entry|func)\b\s*(?:\([^)]*\))?\s*(?P<name>{_NAME})(?:[^{{;/]|//[^\n]*|/\*.*?\*/)*
    | (?P<linkage>{_LINKAGE})\.(?P<space>shared|global|const|local|param|reg|tex)\b(?P<declared>[^;]*);
    | (?P<label>{_NAME}\s*:(?!:))
    | (?P<directive>\.(?:pragma|alias|weak|visible|branchtargets|calltargets|callprototype)\b[^;]*;)
    | (?P<brace>[{{}};])
    | (?P<instruction>[@a-z][^;]*;)
    """,
    re.S | re.X,
)
_DECLARED: Final = re.compile(rf"(?P<words>(?:\s*\.[\w:]+(?:\s+(?=\d)\d+)?)*)\s*(?P<names>{_NAME}.*)", re.S)
_EXTENTS: Final = re.compile(rf"({_NAME})\s*((?:\[\s*\d*\s*\]\s*)*)")
_CALL: Final = re.compile(
    rf"call(?:\.uni)?\s+(?:\(([^)]*)\)\s*,\s*)?({_NAME})\s*(?:,\s*\(([^)]*)\))?(?:\s*,\s*{_NAME})?\s*$"
)


class Variable(Struct, frozen=True):
    """An array of shared memory."""

    name: str  # as written
    align: int  # in bytes
    size: int  # in bytes; 0 for an array without extent (dynamic shared memory)
    span: tuple[int, int]  # of the text
    extern: bool = False  # declared elsewhere


class Instruction(Struct, frozen=True):
    """One instruction."""

    opcode: str  # with its dots
    operands: tuple[str, ...]  # as written, names of inner blocks made unique
    span: tuple[int, int]  # of the text, its guard included
    line: int  # of the text, from 1
    place: Place | None  # line of the source


@dataclass(slots=True)
class Function:
    """An entry, or a function that it calls."""

    name: str  # as written
    entry: bool  # it can be launched
    parameters: tuple[str, ...]  # as declared
    span: tuple[int, int]  # of its body in the text, braces included
    body: list[Instruction] | None = None  # instructions; None for a declaration
    # Names and types of registers, `%r<24>` as 24 names
    registers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Module:
    """A file of PTX."""

    text: str  # all of it
    functions: dict[str, Function] = field(default_factory=dict)  # by name
    # The arrays of shared memory that it declares, wherever
    variables: list[Variable] = field(default_factory=list)

    def inside(self, variable: Variable) -> str | None:
        """The function that a variable is declared in; None for one of the whole file."""
        at = variable.span[0]
        return next((name for name, one in self.functions.items() if one.span[0] < at < one.span[1]), None)

    def body(self, name: str) -> str:
        """The text of a function."""
        return self.text[slice(*self.functions[name].span)]


def read_ptx(text: str, origin: str) -> Module:
    """Read a file.

    Args:
        text: of the file.
        origin: its name, for messages.

    Raises:
        ProblemFileError: it is not PTX that can be read, or too long.
    """
    if len(text) > MAX_CHARACTERS:
        raise ProblemFileError(origin, f"expected at most {MAX_CHARACTERS:,} characters, got {len(text):,}")
    if text.count(";") > MAX_STATEMENTS:
        raise ProblemFileError(origin, f"expected at most {MAX_STATEMENTS:,} statements")
    return _Reader(text, origin).module()


class _Reader:
    def __init__(self, text: str, origin: str) -> None:
        self._text, self._origin = text, origin
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._files = {int(m[1]): m[2] for m in _FILE.finditer(text)}
        self._module = Module(text)
        self._function: Function | None = None
        # The blocks that are open: names declared there, and what they are called in the whole function.
        self._scopes: list[dict[str, str]] = []
        self._unique = 0
        self._place: Place | None = None

    def module(self) -> Module:
        at, target = 0, ""
        while at < len(self._text):
            checkpoint()
            part = _PART.match(self._text, at)
            if part is None:
                self._fail("expected a directive or an instruction of PTX that ends with ';'", at)
            at = part.end()
            target = part["target"] or target
            self._take(part)
        if self._scopes:
            self._fail("expected '}'", self._function.span[0] if self._function is not None else 0)
        if not target or not self._module.functions:
            self._fail("expected .target and a function", at)
        return self._module

    def _take(self, part: re.Match[str]) -> None:
        if part["line"]:
            file, line = self._files.get(int(part["file"]), ""), int(part["line"])
            self._place = Place(file, line) if line else None
        elif part["kind"]:
            if self._scopes:
                self._fail("expected the end of the function before it", part.start())
            listed = re.search(r"\(([^)]*)\)", self._text[part.end("name") : part.end()])
            told = tuple(split(_BLANK.sub(" ", listed[1]).strip())) if listed is not None else ()
            self._function = Function(part["name"], part["kind"] == "entry", told, (part.end(), part.end()))
            known = self._module.functions.get(part["name"])
            if known is None or known.body is None:
                self._module.functions[part["name"]] = self._function
        elif part["space"] == "reg":
            self._registers(part)
        elif part["space"] == "shared":
            self._module.variables += self._variables(part)
        elif part["brace"]:
            self._brace(part)
        elif part["instruction"]:
            self._instruction(part)

    def _fail(self, required: str, at: int) -> NoReturn:
        given = self._text[at : at + 60].split("\n")[0].strip()
        raise ProblemFileError(f"{self._origin}: line {self._line(at)}", f"{required}, got {given!r}")

    def _line(self, at: int) -> int:
        return bisect_right(self._line_starts, at)

    def _brace(self, part: re.Match[str]) -> None:
        function = self._function
        if part["brace"] == ";":  # behind a declaration, or alone
            return
        if function is None or (part["brace"] == "}" and not self._scopes):
            self._fail("expected a function", part.start())
        if part["brace"] == "{":
            if not self._scopes:
                function.span, function.body = (part.start(), part.end()), []
                self._place = None
            self._scopes.append({})
            if len(self._scopes) > MAX_DEPTH:
                self._fail(f"expected at most {MAX_DEPTH} blocks inside each other", part.start())
            return
        self._scopes.pop()
        if not self._scopes:
            function.span, self._function = (function.span[0], part.end()), None

    def _declared(self, part: re.Match[str]) -> tuple[str, list[str]]:
        """The words of a declaration, and what is declared, comments and initial values left out."""
        found = _DECLARED.fullmatch(_BLANK.sub(" ", part["declared"]).partition("=")[0].strip())
        if found is None:
            self._fail("expected a declaration", part.start())
        return found["words"], split(found["names"])

    def _variables(self, part: re.Match[str]) -> Iterator[Variable]:
        words, names = self._declared(part)
        kinds = [w for w in re.findall(r"\.([\w:]+)", words) if w in TYPE_BYTES]
        align = re.search(r"\.align\s+(\d+)", words)
        unit = TYPE_BYTES[kinds[-1]] if kinds else 1
        for text in names:
            one = _EXTENTS.match(text)
            if one is None:
                self._fail("expected a name", part.start())
            size = unit
            for count in (*re.findall(r"\.v([24])\b", words), *re.findall(r"\[\s*(\d*)\s*\]", one[2])):
                size *= int(count or 0)
            if size > 1 << 40:
                self._fail("expected an array that fits memory", part.start())
            extern = ".extern" in part["linkage"]
            yield Variable(one[1], int(align[1]) if align else unit, size, part.span(), extern)

    def _registers(self, part: re.Match[str]) -> None:
        words, names = self._declared(part)
        kind = re.findall(r"\w+", words)
        for text in names:
            one = re.fullmatch(rf"({_NAME})(?:<(\d+)>)?", text)
            if one is None or not kind or int(one[2] or 0) > 1 << 20 or self._function is None:
                self._fail("expected registers", part.start())
            for name in [one[1]] if one[2] is None else [f"{one[1]}{k}" for k in range(int(one[2]))]:
                self._function.registers[self._named(name)] = kind[-1]

    def _named(self, name: str) -> str:
        """A name of the innermost block: as it is in the outermost one, else made unique."""
        if len(self._scopes) <= 1:
            return name
        self._unique += 1
        self._scopes[-1][name] = f"{name}`{self._unique}"
        return self._scopes[-1][name]

    def _instruction(self, part: re.Match[str]) -> None:
        text = re.sub(rf"^@!?{_NAME}\s+", "", _BLANK.sub(" ", part[0][:-1]).strip())
        opcode, _, rest = text.partition(" ")
        operands = split(rest)
        if call := _CALL.match(text):
            opcode, operands = "call", [call[2], call[1] or "", call[3] or ""]
        elif not re.fullmatch(r"[a-z][\w.:]*", opcode):
            self._fail("expected an instruction", part.start())
        if self._function is None or self._function.body is None:
            self._fail("expected a directive of PTX", part.start())
        names = {name: unique for scope in self._scopes for name, unique in scope.items()}
        if names:
            operands = [re.sub(_NAME, lambda m: names.get(m[0], m[0]), operand) for operand in operands]
        line = self._line(part.start())
        self._function.body.append(Instruction(opcode, tuple(operands), part.span(), line, self._place))
