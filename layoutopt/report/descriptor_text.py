"""How the hardware reaches a tile by itself, as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from layoutopt.hardware.dictated import engine
from layoutopt.hardware.operations import BY_ITSELF
from layoutopt.problems.answer import AccessReport, BulkCopy, MatrixDescriptor, TensorMap
from layoutopt.problems.types import Resources
from layoutopt.study.check import AuditedAccess


def descriptor_lines(accesses: Sequence[AccessReport] | Sequence[AuditedAccess]) -> list[str]:
    """A line for each access that no lane executes, an empty one first; nothing where there is none."""
    lines = [f"  {access.name}: {_text(access)}" for access in accesses if access.descriptor is not None]
    return ["", *lines] if lines else []


def cluster_lines(block: Resources) -> list[str]:
    """A line about the cluster that the block belongs to, where it does."""
    if block.cluster is None:
        return []
    portable = engine("tma").portable_cluster
    beyond = f"; more than {portable} are not portable" if block.cluster > portable else ""
    return [f"  cluster    {block.cluster} blocks, at once on one GPC{beyond}"]


def _text(access: AccessReport | AuditedAccess) -> str:
    match access.descriptor:
        case TensorMap() as found:
            box = "x".join(map(str, found.box))
            dims = ", ".join(map(str, found.box_dim))
            said = f"{_counted(found.boxes, 'box', 'boxes')} of {box}, boxDim {{{dims}}}, {found.swizzle}"
            if found.multicast > 1:
                each = _counted(found.boxes // found.multicast, "box", "boxes")
                said += f", {each} by each of {found.multicast} blocks of the cluster to all of them"
        case MatrixDescriptor() as found:
            rows, depth = found.shape
            side = "n" if access.op.endswith("B") else "m"
            said = (
                f"{found.major}-major, mode {found.mode} (code {found.code}), offsets: leading "
                f"{found.leading_byte_offset:,}, stride {found.stride_byte_offset:,}; "
                f"{_counted(found.instructions, 'instruction', 'instructions')} of {side}{rows} k{depth}"
            )
        case BulkCopy() as found:
            said = f"{_counted(found.copies, 'copy', 'copies')} of {found.bytes:,} bytes"
        case None:
            return ""
    rules = engine(BY_ITSELF[access.op])
    unproven = "" if rules.confidence == "measured" else f"; {rules.name} by {rules.confidence}, not run"
    return f"{said}; base: a multiple of {found.alignment_bytes:,} bytes{unproven}"


def _counted(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"
