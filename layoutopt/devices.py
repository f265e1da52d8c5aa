"""Shared-memory hardware as data: banks, and which lanes an instruction serves together.

Every rule is a row of `data/devices.json`, with its source and how sure it is. Adding a GPU is
adding an entry there; nothing in the code names one.

How a row is read. An instruction's lanes are cut into **phases**. A phase costs as many
wavefronts as the busiest bank has distinct words (`count: words`) or lane-word pairs
(`count: lanes`, for instructions that serialise equal addresses).

`merge: pairs` (8- and 16-byte loads): when over the whole warp every active lane l has lane l^1
inactive or at the same address, or every active lane has so lane l^2, neighbouring phases are
served in pairs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from layoutopt.errors import ProblemFileError
from layoutopt.operations import Operation

DEFAULT_TARGET: Final = "sm_90"


@dataclass(frozen=True, slots=True)
class PhaseRule:
    """How one instruction is served.

    Attributes:
        phases: lanes served together, one tuple a phase, every lane in exactly one.
        banks: number of banks this instruction sees.
        bank_bytes: bytes of one bank word.
        serialises_equal: equal addresses do not merge (`count: lanes`).
        merges_pairs: the whole-warp merge rule of the module's text.
        split_words: each bank word of a wide access is a request of its own.
        row_words: words of one aligned group of this many never conflict (1: every word for
            itself).
        extra_wavefronts: passes that every phase takes beyond its busiest bank.
        confidence: how sure the rule is.
        source: where it comes from.
        note: what the rule leaves out; empty if nothing known.
    """

    phases: tuple[tuple[int, ...], ...]
    banks: int
    bank_bytes: int
    serialises_equal: bool = False
    merges_pairs: bool = False
    split_words: bool = False
    row_words: int = 1
    extra_wavefronts: int = 0
    confidence: str = ""
    source: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as shared memory sees it.

    Attributes:
        name: the target's name.
        title: what people call it.
        lanes: lanes of a warp (AMD: wave).
        banks: number of banks (an instruction may see another number: see its rule).
        bank_bytes: bytes of one bank word.
        rules: `(operation kind, width in bytes)` to rule.
        aliases: other names.
    """

    name: str
    title: str
    lanes: int
    banks: int
    bank_bytes: int
    rules: dict[tuple[str, int], PhaseRule]
    aliases: tuple[str, ...] = ()

    def rule(self, operation: Operation) -> PhaseRule:
        """The rule for `operation`.

        Raises:
            ProblemFileError: no rule is published for it on this device.
        """
        rule = self.rules.get((operation.kind, operation.width_bytes))
        if rule is None:
            known = ", ".join(f"{kind} {width}" for kind, width in sorted(self.rules))
            raise ProblemFileError(
                "",
                f"no published rule for {operation.kind} of {operation.width_bytes} bytes on {self.name}; "
                f"known: {known}",
            )
        return rule


def device(name: str) -> Device:
    """The device called `name` (or one of its aliases), upper or lower case.

    Raises:
        ProblemFileError: no such device.
    """
    table = _index()
    found = table.get(name.lower())
    if found is None:
        known = ", ".join(d.name for d in devices())
        raise ProblemFileError("target", f"unknown target {name!r}; known: {known} (and their aliases)")
    return found


@cache
def devices() -> tuple[Device, ...]:
    """Every device in the package, oldest first within each vendor."""
    text = resources.files("layoutopt").joinpath("data/devices.json").read_text("utf-8")
    raw = json.loads(text)
    return tuple(_device(entry, raw["instruction_sets"]) for entry in raw["devices"])


@cache
def _index() -> dict[str, Device]:
    return {name: d for d in devices() for name in (d.name, *d.aliases)}


def _device(entry: dict[str, Any], sets: dict[str, list[dict[str, Any]]]) -> Device:
    rules = {}
    for instruction in (i for name in entry["instructions"] for i in sets[name]):
        rule = _rule(instruction, entry)
        for kind in instruction["ops"]:
            for width in instruction["bytes"]:
                rules[kind, width] = rule
    return Device(
        entry["name"],
        entry["title"],
        entry["lanes"],
        entry["banks"],
        entry["bank_bytes"],
        rules,
        tuple(entry["aliases"]),
    )


def _rule(instruction: dict[str, Any], entry: dict[str, Any]) -> PhaseRule:
    phase, lanes = instruction["phase"], entry["lanes"]
    if isinstance(phase, int):
        phases = tuple(tuple(range(start, start + phase)) for start in range(0, lanes, phase))
    else:
        phases = tuple(map(tuple, phase))
    return PhaseRule(
        phases=phases,
        banks=instruction.get("banks", entry["banks"]),
        bank_bytes=entry["bank_bytes"],
        serialises_equal=instruction.get("count") == "lanes",
        merges_pairs=instruction.get("merge") == "pairs",
        split_words=instruction.get("split_words", False),
        row_words=instruction.get("row_words", 1),
        extra_wavefronts=instruction.get("extra_wavefronts", 0),
        confidence=instruction["confidence"],
        source=instruction["source"],
        note=instruction.get("note", ""),
    )
