"""What bank conflicts there may be: those of a file, which `check --update-baseline` wrote."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal

from msgspec.structs import replace

from layoutopt.ground import json_data
from layoutopt.ground.json_data import Versioned
from layoutopt.kernels.question.summary import KernelAccess, KernelReport
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
        own: dict[str, int] = {}
        for access in one.report.accesses:
            if access.bank_conflicts:
                key = _key(one.report, access)
                own[key] = own.get(key, 0) + access.bank_conflicts
        for key, count in own.items():  # of launches that differ in parameters alone, the worst
            most[key] = max(count, most.get(key, 0))
    return Baseline(dict(sorted(most.items())))


def _key(report: KernelReport, access: KernelAccess) -> str:
    shape = " ".join(",".join(map(str, sizes)) for sizes in (report.block, report.grid))
    return f"{report.title} {shape} {access.array or '?'} {access.op}"


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


def only(found: Application, keys: Collection[str]) -> Application:
    """The same launches with those accesses alone: what a server is told of that knows the rest."""
    kernels = []
    for one in found.kernels:
        if (report := one.report) is not None:
            told = tuple(access for access in report.accesses if _key(report, access) in keys)
            one = replace(one, report=replace(report, accesses=told))
        kernels.append(one)
    return replace(found, kernels=tuple(kernels))
