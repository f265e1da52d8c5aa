"""Launches in a source: how many bytes of dynamic memory they ask for, and where else kernels are used."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from tree_sitter import Node

from layoutopt.kernels.read.source import File, Source, enclosing, every, name_of

# Host functions that take a kernel and its bytes of dynamic memory, as these arguments.
_TAKES_BYTES: Final = {
    "cudaFuncSetAttribute": (0, 2),
    "cudaLaunchKernel": (0, 4),
    "cudaLaunchCooperativeKernel": (0, 4),
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor": (1, 3),
    "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": (1, 3),
}


class Asked(NamedTuple):
    """Bytes of dynamic memory that are asked for."""

    argument: Node  # how many
    of: set[str]  # words of what says for which kernel


def asked_bytes(file: File, node: Node, names: set[str]) -> Asked | None:
    """What a launch of a kernel in `names`, or a call in `_TAKES_BYTES`, asks for; None of any other node.

    That is the third of `kernel<<<grid, block, bytes>>>`, or such as the last of
    `cudaFuncSetAttribute(kernel, ...MaxDynamicSharedMemorySize, bytes)`, of whatever kernel.
    """
    call = node.parent
    called = call.child_by_field_name("function") if call is not None else None
    if called is None or node.type not in ("kernel_call_syntax", "argument_list"):
        return None
    name, arguments = name_of(file, called), arguments_in(node)
    if node.type == "kernel_call_syntax":
        return Asked(arguments[2], {name}) if len(arguments) > 2 and name in names else None
    kernel, size = _TAKES_BYTES.get(name, (0, len(arguments)))
    if size >= len(arguments):
        return None
    if kernel == 0 and size == 2 and not file.text(arguments[1]).endswith("MaxDynamicSharedMemorySize"):
        return None
    return Asked(arguments[size], set(re.findall(r"\w+", file.text(arguments[kernel]))))


def with_callers(source: Source, names: set[str]) -> set[str]:
    """Functions, and all that call one of them other than by a launch."""
    calls = [
        (name_of(file, called), file.function_name(caller))
        for file in source.files
        for node in every(file.root)
        if node.type == "call_expression" and not _is_launch(node)
        if (called := node.child_by_field_name("function")) is not None
        if (caller := enclosing(node, "function_definition")) is not None
    ]
    while more := {caller for called, caller in calls if called in names} - names:
        names = names | more
    return names


def other_uses(source: Source, names: set[str]) -> Iterator[str]:
    """Places where a kernel among these functions is used, but not in a launch that can be written."""
    kernels = {
        name
        for file in source.files
        for name in names
        if any(file.is_kernel(function) for function in file.functions.get(name, ()))
    }
    for file in source.files:
        for root in (file.root, *(macro.body for macro in file.macros)):
            for node in every(root):
                if node.type != "identifier" or file.text(node) not in kernels:
                    continue
                around = enclosing(node, "call_expression", "function_declarator")
                called = around.child_by_field_name("function") if around is not None else None
                name = name_of(file, called) if called is not None else ""
                written = name in _TAKES_BYTES or name.startswith("cudaFunc")
                written |= around is not None and (called is None or called.end_byte >= node.end_byte)
                if (root is not file.root or not written) and source.meant(file, node) is None:
                    yield file.place(node)


def arguments_in(node: Node) -> list[Node]:
    """The arguments of a list of them, without comments."""
    return [child for child in node.named_children if child.type != "comment"]


def _is_launch(call: Node) -> bool:
    return any(child.type == "kernel_call_syntax" for child in call.children)
