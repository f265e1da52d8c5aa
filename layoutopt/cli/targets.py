"""`layoutopt targets`."""

from pathlib import Path
from typing import Any, Literal, TypedDict

import click
from msgspec import to_builtins

from layoutopt.cli.files import FileCommand
from layoutopt.cli.options import device_file_option, form_options, more_devices
from layoutopt.cli.output import tell
from layoutopt.hardware.devices import Device, PhaseRule, device, devices
from layoutopt.hardware.operations import spelling

PHASE_NAMES = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-"


class Target(TypedDict):
    """A GPU in a few fields of its `Device`."""

    name: str
    title: str
    lanes: int
    banks: int
    bank_bytes: int
    aliases: list[str]


class Targets(TypedDict):
    """What --json prints of all of them."""

    schema: Literal["layoutopt.targets/1"]
    targets: list[Target]


class Detail(Target):
    """What --json prints of one: its limits, and how it serves instructions (docs/hardware.md)."""

    schema: Literal["layoutopt.target/1"]
    notes: list[str]
    limits: list[dict[str, Any]]
    instructions: list[dict[str, Any]]


@click.command("targets", cls=FileCommand)
@click.argument("target", required=False)
@device_file_option
@form_options()
def command(target: str | None, device_file: Path | None) -> int:
    """List the GPUs that layoutopt knows, or show how one of them serves its instructions.

    TARGET is a name or an alias, such as sm_90, ada or mi300x.

    \b
    Examples:
      layoutopt targets
      layoutopt targets gfx942
    """

    def fields(gpu: Device, kind: Any) -> dict[str, Any]:
        """Those of one of the types above that a device has by itself."""
        return {name: to_builtins(getattr(gpu, name)) for name in kind.__annotations__ if hasattr(gpu, name)}

    more = more_devices(device_file)
    if target is not None:
        gpu = device(target, more)
        rules: dict[PhaseRule, list[tuple[str, int]]] = {}
        for access, rule in gpu.rules.items():
            rules.setdefault(rule, []).append(access)
        served = [_served(rule, accesses) for rule, accesses in rules.items()]
        data = {"schema": "layoutopt.target/1", **fields(gpu, Detail), "instructions": served}
        tell(lambda: data, text=lambda: _pictures(gpu, rules))
        return 0
    known = (*more, *devices())
    data = {"schema": "layoutopt.targets/1", "targets": [fields(gpu, Target) for gpu in known]}
    tell(lambda: data, text=lambda: _list(known))
    return 0


def _served(rule: PhaseRule, accesses: list[tuple[str, int]]) -> dict[str, Any]:
    """How some instructions are served, as data."""
    same = "banks", "bank_bytes", "split_words", "row_words", "extra_wavefronts"
    said = "confidence", "source", "alternative", "note"
    return {
        "instructions": [{"op": spelling(kind, width) or kind, "bytes": width} for kind, width in accesses],
        "phases": [list(phase) for phase in rule.phases],
        "count": "lanes" if rule.serialises_equal else "words",
        "merge": "pairs" if rule.merges_pairs else "none",
        **{field: getattr(rule, field) for field in (*same, *said)},
    }


def _list(known: tuple[Device, ...]) -> str:
    name = max(len(d.name) for d in known)
    lines = [f"{'target':<{name}}  lanes  banks  title"]
    for d in known:
        lines.append(f"{d.name:<{name}}  {d.lanes:>5}  {d.banks:>5}  {d.title}")
        lines += [f"{'':<{name}}                {', '.join(d.aliases)}"] if d.aliases else []
    return "\n".join(lines) + "\n"


def _pictures(device: Device, rules: dict[PhaseRule, list[tuple[str, int]]]) -> str:
    lines = [
        f"{device.name}: {device.title}",
        f"{device.lanes} lanes, {device.banks} banks of {device.bank_bytes} bytes"
        + (f"; also called {', '.join(device.aliases)}" if device.aliases else ""),
    ]
    lines += [
        f"{limits.targets[0]}: {limits.shared_bytes >> 10} KiB of shared memory for up to {limits.blocks} "
        f"blocks and {limits.threads:,} threads, {limits.shared_bytes_per_block >> 10} KiB for one block"
        for limits in device.limits
    ]
    lines.append("Lanes with the same digit are served together.")
    for rule, accesses in rules.items():
        lines += ["", *_picture(rule, accesses, device.lanes)]
    lines += [""] * bool(device.notes) + [f"note: {note}" for note in device.notes]
    return "\n".join(lines) + "\n"


def _picture(rule: PhaseRule, accesses: list[tuple[str, int]], lanes: int) -> list[str]:
    widths: dict[str, list[int]] = {}
    for kind, width in accesses:
        widths.setdefault(kind, []).append(width)
    title = ", ".join(f"{kind} {'/'.join(map(str, sizes))}" for kind, sizes in widths.items())
    spelt = [name for kind, width in accesses if (name := spelling(kind, width))]
    together, phases = len(rule.phases[0]), len(rule.phases)
    how = f"{phases} phases of {together} lanes" if phases > 1 else f"1 phase of {together} lanes"
    phase_of = {lane: PHASE_NAMES[p] for p, members in enumerate(rule.phases) for lane in members}
    return [
        f"{title} bytes: {how}, {rule.banks} banks",
        *([f"  in a file: {', '.join(spelt)}"] if spelt else []),
        "  lane   " + "".join(f"{lane:<8}" for lane in range(0, lanes, 8)).rstrip(),
        "  phase  " + "".join(phase_of[lane] for lane in range(lanes)),
        *(f"  {text}" for text in _details(rule)),
        f"  {rule.confidence}: {rule.source}",
    ]


def _details(rule: PhaseRule) -> list[str]:
    texts = {
        "equal addresses wait for each other: a bank serves one lane a wavefront": rule.serialises_equal,
        "a bank serves one word a wavefront, to any number of lanes": not rule.serialises_equal,
        "neighbouring phases merge in pairs when in the whole warp every active lane l has lane l^1 "
        "inactive or at the same address, or every one has so lane l^2": rule.merges_pairs,
        f"each {rule.bank_bytes}-byte word of a wide access is a request of its own": rule.split_words,
        f"words of one aligned group of {rule.row_words} words never conflict": rule.row_words > 1,
        f"every phase takes {rule.extra_wavefronts} wavefront more than its busiest bank": (
            rule.extra_wavefronts
        ),
        f"other sources: {rule.alternative}": rule.alternative,
        f"note: {rule.note}": rule.note,
    }
    return [text for text, holds in texts.items() if holds]
