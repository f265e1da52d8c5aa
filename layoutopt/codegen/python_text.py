"""What the emitters of Python share."""

from __future__ import annotations

import keyword
from collections.abc import Iterable

from layoutopt.codegen.plan import BASE, AccessPlan, Plan
from layoutopt.expressions.grammar import Node, Var, substituted, to_text
from layoutopt.ground.escape import comment


def header(plan: Plan) -> list[str]:
    """Comments at the top: what this is, and what is proved."""
    return [f"# {comment(line)}" for line in plan.about]


def headline(access: AccessPlan) -> str:
    """One line about an access."""
    report = access.report
    return (
        f"{comment(access.access.name)}: {comment(access.access.op)}; {report.wavefronts} wavefronts, "
        f"ideal {report.ideal}, bank_conflicts {report.bank_conflicts}"
    )


def parameter(name: str) -> str:
    """`name` as a parameter's name."""
    return f"{name}_" if keyword.iskeyword(name) or name == "base" else name


def text(node: Node, names: Iterable[str]) -> str:
    """`node` in Python, its variables renamed where Python reserves their names."""
    return to_text(substituted(node, {BASE: Var("base"), **{name: Var(parameter(name)) for name in names}}))
