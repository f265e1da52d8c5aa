"""What bank conflicts there may be: those of a file, which `check --update-baseline` wrote."""

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


def baseline_of(application: Application) -> Baseline:
    """Bank conflicts by kernel, block, grid, array and op; the most of launches that differ in arguments."""
    most: dict[str, int] = {}
    for kernel in application.kernels:
        if (report := kernel.report) is None:
            continue
        conflicts: dict[str, int] = {}  # of this launch
        for access in report.accesses:
            if access.bank_conflicts:
                key = _key(report, access)
                conflicts[key] = conflicts.get(key, 0) + access.bank_conflicts
        for key, count in conflicts.items():
            most[key] = max(count, most.get(key, 0))
    return Baseline(dict(sorted(most.items())))


def _key(report: KernelReport, access: KernelAccess) -> str:
    shape = " ".join(",".join(map(str, sizes)) for sizes in (report.block, report.grid))
    return f"{report.title} {shape} {access.array or '?'} {access.op}"


def read_baseline(data: bytes) -> Baseline:
    """The baseline that a file holds.

    Raises:
        ProblemFileError: it holds something else.
    """
    return json_data.convert(json_data.parse(data), Baseline)


def worse(application: Application, baseline: Baseline) -> dict[str, tuple[int, int]]:
    """Bank conflicts in the baseline and now, of every key of `baseline_of` that has more now."""
    now, before = baseline_of(application).bank_conflicts, baseline.bank_conflicts
    return {key: (before.get(key, 0), n) for key, n in now.items() if n > before.get(key, 0)}


def only(found: Application, keys: Collection[str]) -> Application:
    """The same launches with the accesses of these keys of a baseline alone."""
    kernels = []
    for kernel in found.kernels:
        if (report := kernel.report) is not None:
            accesses = tuple(access for access in report.accesses if _key(report, access) in keys)
            kernel = replace(kernel, report=replace(report, accesses=accesses))
        kernels.append(kernel)
    return replace(found, kernels=tuple(kernels))
