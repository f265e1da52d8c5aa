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
    """

    name: str
    title: str
    suffix: str
    summary: str
    unit: Literal["byte", "element"] = "byte"
    has_tables: bool = False

    @property
    def module(self) -> str:
        """Where it is emitted."""
        return f"layoutopt.codegen.{self.name}"


_ALL: Final = (
    Language("cuda", "CUDA C++", ".cuh", "a header: offsets, addresses, inline PTX", has_tables=True),
    Language("hip", "HIP C++", ".hip.hpp", "a header: offsets and typed pointers", has_tables=True),
    Language("opencl", "OpenCL C", ".cl", "text to put before a kernel", has_tables=True),
    Language("c", "C", ".h", "a header of plain functions", has_tables=True),
    Language("cute", "CuTe", ".cute.hpp", "a `Layout`, composed with a `Swizzle`"),
    Language("gluon", "Triton Gluon", ".py", "the object that `allocate_shared_memory` takes"),
    Language("tilelang", "TileLang", ".py", "a `Layout` for `T.annotate_layout`", "element"),
    Language("numba", "Numba CUDA", ".py", "device functions that index a shared array", "element"),
)

LANGUAGES: Final = {language.name: language for language in _ALL}
