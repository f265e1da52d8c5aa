"""The languages: a new one is a module in this folder, with `emit(plan)`, and a line here."""

from typing import Final, Literal, NamedTuple


class Language(NamedTuple):
    """A language that code is emitted in, known before its module, and numpy, are imported."""

    name: str  # what the user asks for, and the module in this folder
    title: str  # what people call it
    suffix: str  # of its files
    summary: str  # what is emitted, in a line
    declared: str = ""  # how a kernel declares the bytes of a tile, or comes by them
    unit: Literal["byte", "element"] = "byte"  # what addresses count
    has_tables: bool = False  # whether it expresses tables of offsets and elements that share a byte
    constant: str = "constexpr uint32_t {} = {};"  # how a constant is written: its name, then its value
    comment: str = "//"  # what begins one
    # `start, end`: of a file, as lines
    start: tuple[str, ...] = ("#pragma once", "#include <cstdint>")
    end: tuple[str, ...] = ()
    family: str = ""  # the module, where several languages share one

    @property
    def module(self) -> str:
        """Where it is emitted."""
        return f"layoutopt.codegen.{self.family or self.name}"

    def start_of(self, name: str) -> list[str]:
        """The first lines of the file of a tile, or of all tiles, of this name."""
        return [line.format(guard=f"{name}_H".upper()) for line in self.start]


_CPP: Final = "__shared__ alignas({name}_alignment) unsigned char smem[{name}_bytes];"
_OPENCL: Final = "__local uchar smem[{name}_bytes] __attribute__((aligned({alignment})));"
_ENUM: Final = "enum {{ {} = {} }};"
_GUARD: Final = ("#ifndef {guard}", "#define {guard}", "#include <stdint.h>")
_PLACES: Final = "places each tile itself: the bases are those that were counted"
_NUMBA: Final = "in {name}_bytes of dynamic shared memory: cuda.shared.array(0, dtype)[base // itemsize:]"
# After what addresses count: tables, constants, comments, and the lines of a file.
_PYTHON: Final = False, "{} = {}", "#", ()
_ALL: Final = (
    Language("cuda", "CUDA C++", ".cuh", "a header: offsets, addresses, inline PTX", _CPP, "byte", True),
    Language("hip", "HIP C++", ".hip.hpp", "a header: offsets and typed pointers", _CPP, "byte", True,
             family="c_family"),
    Language("opencl", "OpenCL C", ".cl", "text to put before a kernel", _OPENCL, "byte", True, _ENUM,
             start=(), family="c_family"),
    Language("c", "C", ".h", "a header of plain functions", _CPP.replace("__shared__ alignas", "_Alignas"),
             "byte", True, _ENUM, start=_GUARD, end=("", "#endif"), family="c_family"),
    Language("cute", "CuTe", ".cute.hpp", "a `Layout`, composed with a `Swizzle`", _CPP),
    Language("gluon", "Triton Gluon", ".py", "what `allocate_shared_memory` takes",
             f"gl.allocate_shared_memory {_PLACES}", "byte", *_PYTHON),
    Language("tilelang", "TileLang", ".py", "a `Layout` for `T.annotate_layout`",
             f"T.alloc_shared {_PLACES}", "element", *_PYTHON),
    Language("numba", "Numba CUDA", ".py", "device functions on a shared array", _NUMBA, "element", *_PYTHON),
)  # fmt: skip

LANGUAGES: Final = {language.name: language for language in _ALL}
