"""What Nsight Compute prints for an access, from what the engine counts."""

from __future__ import annotations

from typing import Final

from layoutopt.operations import Operation

BANK_CONFLICTS: Final = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"
WAVEFRONTS: Final = "l1tex__data_pipe_lsu_wavefronts_mem_shared"

# The sub-counter that an operation moves beside the total; None where it moves the total alone.
SUFFIXES: Final[dict[str, str | None]] = {
    "load": "op_ld",
    "ldmatrix": "op_ld",
    "store": "op_st",
    "stmatrix": "op_st",
    "atomic": None,
    "reduce": None,
    "cp.async.ca": None,
}


def counters(operation: Operation, wavefronts: int, bank_conflicts: int) -> dict[str, int]:
    """Predicted profiler counters (their `.sum`); empty where the profiler does not count the operation."""
    if operation.kind not in SUFFIXES:
        return {}
    suffix = SUFFIXES[operation.kind]
    found = {BANK_CONFLICTS: bank_conflicts, WAVEFRONTS: wavefronts}
    for other in ("op_ld", "op_st"):
        found[f"{BANK_CONFLICTS}_{other}"] = bank_conflicts if other == suffix else 0
        found[f"{WAVEFRONTS}_{other}"] = wavefronts if other == suffix else 0
    return found
