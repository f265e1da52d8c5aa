"""Wavefronts counted by plain loops over lanes and banks: the text of the rules, nothing clever."""

from __future__ import annotations

from collections.abc import Sequence

from layoutopt.hardware.devices import Device, PhaseRule
from layoutopt.hardware.operations import Operation


def plain_count(
    address: Sequence[int], active: Sequence[bool], operation: Operation, device: Device
) -> tuple[int, int, int]:
    """Wavefronts, ideal and occupied phases of one warp instruction."""
    rule = device.rules[operation.kind, operation.width_bytes]
    lanes = {lane for lane in range(device.lanes) if active[lane]}
    if operation.matrices:
        lanes = set(range(8 * operation.matrices)) if lanes else set()
    phases = [list(phase) for phase in rule.phases]
    if rule.merges_pairs and any(_pairs(address, lanes, bit, device.lanes) for bit in (1, 2)):
        phases = [phases[p] + phases[p + 1] for p in range(0, len(phases), 2)]
    words_per_lane = max(1, operation.width_bytes // rule.bank_bytes)
    wavefronts = ideal = occupied = 0
    for phase in phases:
        requests: list[list[int]] = [[] for _ in range(words_per_lane if rule.split_words else 1)]
        for lane in phase:
            if lane in lanes:
                for k in range(words_per_lane):
                    word = address[lane] // rule.bank_bytes + k
                    requests[k if rule.split_words else 0].append(word)
        for request in requests:
            if request:
                busiest, evenly = _serve(request, rule)
                wavefronts += busiest + rule.extra_wavefronts
                ideal += evenly + rule.extra_wavefronts
                occupied += 1
    return wavefronts, ideal, occupied


def _pairs(address: Sequence[int], lanes: set[int], bit: int, warp: int) -> bool:
    for lane in range(warp):
        if lane in lanes and lane ^ bit in lanes and address[lane] != address[lane ^ bit]:
            return False
    return True


def _serve(words: list[int], rule: PhaseRule) -> tuple[int, int]:
    banks: dict[int, list[tuple[int, int]]] = {}
    for word in words:
        bank = word % rule.banks
        # Kepler: the words of one aligned group that share a bank are one.
        banks.setdefault(bank, []).append(
            (bank, word // (rule.banks if rule.row_words == 1 else rule.row_words))
        )
    distinct = sum(len(set(served)) for served in banks.values())
    busiest = max(len(served if rule.serialises_equal else set(served)) for served in banks.values())
    return busiest, -(-distinct // rule.banks)
