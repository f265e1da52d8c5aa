"""Launches in a source: how many bytes of dynamic memory they ask for, and where else kernels are used."""

from collections.abc import Iterator

from tree_sitter import Node

from layoutopt.kernels.read.source import File, Source, Variable, enclosing, every, name_of


def launched_bytes(source: Source, names: set[str]) -> Iterator[tuple[File, Node]]:
    """The bytes in every launch `kernel<<<grid, block, bytes>>>` of one of these kernels."""
    for file in source.files:
        for node in every(file.root):
            called = node.parent.child_by_field_name("function") if node.parent is not None else None
            if node.type == "kernel_call_syntax" and called is not None and name_of(file, called) in names:
                yield from ((file, one) for one in arguments_in(node)[2:3])


def functions_that_reach(source: Source, variable: Variable) -> set[str]:
    """Functions that declare a variable, or use one of the file, with all that call them."""
    if variable.function is not None:
        return _with_callers(source, {variable.file.function_name(variable.function)})
    users = ((file, enclosing(use, "function_definition")) for file, use in source.uses(variable))
    return _with_callers(source, {file.function_name(user) for file, user in users if user is not None})


def _with_callers(source: Source, names: set[str]) -> set[str]:
    """Functions, and all functions and macros that name one of them other than in a launch."""
    uses = [
        (file.text(node), file.function_name(within) if macro is None else macro.name)
        for file in source.files
        for macro in (None, *file.macros)
        for node in every(file.root if macro is None else macro.body)
        if node.type == "identifier" and not _is_launched(node)
        if (within := enclosing(node, "function_definition")) is not None
    ]
    while more := {caller for name, caller in uses if name in names} - names:
        names = names | more
    return names


def other_uses(source: Source, names: set[str]) -> Iterator[str]:
    """Places where a kernel among these functions is named, but neither declared nor launched by `<<<>>>`."""
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
                above = enclosing(node, "call_expression", "function_declarator")
                is_declared = above is not None and above.type == "function_declarator"
                is_written = root is file.root and (is_declared or _is_launched(node))
                if not is_written and source.meant(file, node) is None:
                    yield file.place(node)


def arguments_in(node: Node) -> list[Node]:
    """The arguments of a list of them, without comments."""
    return [child for child in node.named_children if child.type != "comment"]


def _is_launched(node: Node) -> bool:
    """Whether a name is that of what `<<<>>>` launches."""
    call = enclosing(node, "call_expression")
    called = call.child_by_field_name("function") if call is not None else None
    is_launch = call is not None and any(child.type == "kernel_call_syntax" for child in call.children)
    return is_launch and called is not None and node.end_byte <= called.end_byte
