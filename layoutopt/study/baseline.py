"""What bank conflicts there may be: those of a file, which `check --update-baseline` wrote."""

from __future__ import annotations

from typing import Final, Literal

from layoutopt.ground import json_data
from layoutopt.ground.json_data import Versioned
from layoutopt.study.launches import Application

MAX_BYTES: Final = 64 << 20


class Baseline(Versioned, frozen=True, forbid_unknown_fields=True):
    """Bank conflicts of one launch, by kernel, its shape, array and operation; lines of sources move."""

    bank_conflicts: dict[str, int]
    schema_: Literal["layoutopt.baseline/1"] = "layoutopt.baseline/1"


def baseline_of(found: Application) -> Baseline:
    """The conflicts that there are."""
    most: dict[str, int] = {}
    for one in found.kernels:
        if one.report is None:
            continue
        shape = " ".join(",".join(map(str, sizes)) for sizes in (one.report.block, one.report.grid))
        own: dict[str, int] = {}
        for access in one.report.accesses:
            if access.bank_conflicts:
                key = f"{one.report.title} {shape} {access.array or '?'} {access.op}"
                own[key] = own.get(key, 0) + access.bank_conflicts
        for key, count in own.items():  # of launches that differ in parameters alone, the worst
            most[key] = max(count, most.get(key, 0))
    return Baseline(dict(sorted(most.items())))


def read_baseline(data: bytes) -> Baseline:
    """The contents of such a file.

    Raises:
        ProblemFileError: they are not.
    """
    return json_data.convert(json_data.parse(data), Baseline)


def worse(found: Application, known: Baseline) -> dict[str, tuple[int, int]]:
    """What has more conflicts than in the baseline: how many there, and how many now."""
    now = baseline_of(found).bank_conflicts
    return {
        k: (known.bank_conflicts.get(k, 0), n) for k, n in now.items() if n > known.bank_conflicts.get(k, 0)
    }
