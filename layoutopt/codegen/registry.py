"""The languages: a new one is a module in this folder, with `emit(plan)`, and a line here."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple


class Language(NamedTuple):
    """A language that code is emitted in, known before its module, and numpy, are imported.

    Attributes:
        name: what the user asks for, and the module in this folder.
        title: what people call it.
        suffix: of its files.
        summary: what is emitted, in a line.
        unit: what addresses count.
        has_tables: whether it expresses tables of offsets and elements that share a byte.
        has_accesses: whether it has code for the accesses, and not only for the layout.
        constant: how a constant is written: its name, then its value.
        comment: what begins one.
    """

    name: str
    title: str
    suffix: str
    summary: str
    unit: Literal["byte", "element"] = "byte"
    has_tables: bool = False
    has_accesses: bool = False
    constant: str = "constexpr uint32_t {} = {};"
    comment: str = "//"

    @property
    def module(self) -> str:
        """Where it is emitted."""
        return f"layoutopt.codegen.{self.name}"


_ENUM: Final = "enum {{ {} = {} }};"
_OBJECT: Final = False, False, "{} = {}", "#"
_FUNCTIONS: Final = False, True, "{} = {}", "#"
# After what addresses count: tables, code for accesses, constants and comments.
_ALL: Final = (
    Language("cuda", "CUDA C++", ".cuh", "a header: offsets, addresses, inline PTX", "byte", True, True),
    Language("hip", "HIP C++", ".hip.hpp", "a header: offsets and typed pointers", "byte", True, True),
    Language("opencl", "OpenCL C", ".cl", "text to put before a kernel", "byte", True, True, _ENUM),
    Language("c", "C", ".h", "a header of plain functions", "byte", True, True, _ENUM),
    Language("cute", "CuTe", ".cute.hpp", "a `Layout`, composed with a `Swizzle`"),
    Language("gluon", "Triton Gluon", ".py", "what `allocate_shared_memory` takes", "byte", *_OBJECT),
    Language("tilelang", "TileLang", ".py", "a `Layout` for `T.annotate_layout`", "element", *_OBJECT),
    Language("numba", "Numba CUDA", ".py", "device functions on a shared array", "element", *_FUNCTIONS),
)

LANGUAGES: Final = {language.name: language for language in _ALL}
