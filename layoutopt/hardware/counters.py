"""What the profiler prints for an access, from what the engine counts."""

from __future__ import annotations

from typing import Final

from layoutopt.hardware.devices import Device
from layoutopt.hardware.operations import Operation

BANK_CONFLICTS: Final = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"
WAVEFRONTS: Final = "l1tex__data_pipe_lsu_wavefronts_mem_shared"


def counters(gpu: Device, operation: Operation, wavefronts: int, bank_conflicts: int) -> dict[str, int]:
    """Predicted profiler counters; empty where the profiler does not count the operation.

    Those of Nsight Compute (their `.sum`), or the one that the GPU's data names.

    A launch adds a few wavefronts of its own to the total, which `..._op_misc` holds; they are not
    in the prediction.
    """
    if operation.does.counters is None:
        return {}
    if gpu.conflict_counter is not None:
        return {gpu.conflict_counter: bank_conflicts}
    found = {BANK_CONFLICTS: bank_conflicts, WAVEFRONTS: wavefronts}
    wavefront_part, conflict_part = operation.does.counters
    for part in ("op_ld", "op_st", "op_atom"):
        found[f"{WAVEFRONTS}_{part}"] = wavefronts if part == wavefront_part else 0
    for part in ("op_ld", "op_st", "op_atom", "op_ldgsts"):
        found[f"{BANK_CONFLICTS}_{part}"] = bank_conflicts if part == conflict_part else 0
    return found
