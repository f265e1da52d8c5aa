"""Accesses whose elements are known only at run time: the worst over all values, or the expectation.

Each lane of a warp instruction chooses a value of its own, and so one word (or vector) out of a set.
A histogram of 8 bins in 4 banks; every lane may choose any bin:

    bank     0    1    2    3
    bins    0 4  1 5  2 6  3 7       at worst, two lanes choose 0 and 4: two wavefronts

**The worst case** of a phase is the most that some bank can be made to serve. Lanes can occupy as many
distinct words of a bank as a bipartite matching of lanes to that bank's words has edges, exactly; where
equal addresses are served one by one, as many as there are lanes that can reach the bank. Phases choose
independently, so the worst cases of an instruction's phases add up. Where lanes can choose so that two
neighbours differ, the whole-warp merge rule of `layoutopt.hardware.devices` is taken not to hold, which
overstates the worst case at most (where a few values make every worst choice one that merges).

**Its least**, the `ideal`, is what no layout can undercut: of the words that at least d lanes can choose,
some bank holds as many as an even spread gives it, and d lanes can choose d of them (with 256 bins in 32
banks, min(32 lanes, 8)). Where equal addresses are served one by one, all lanes that share a word may
choose it.

**The expectation**, for independent uniform values, is exact where all lanes of a phase choose from the
same words (`_expected_most`). With words equally likely it is least where they are spread
evenly, which is then the `ideal`. In all other cases it is the mean over `SAMPLES` samples of a fixed seed,
or fewer where instructions are many.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from layoutopt.accesses.trace import LaneTrace, Trace
from layoutopt.engine.conflicts import Counts, count_wavefronts
from layoutopt.engine.referee import CountedAccess
from layoutopt.errors import ProblemFileError, under
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import current
from layoutopt.hardware.devices import Device, PhaseRule
from layoutopt.hardware.operations import Operation
from layoutopt.problems.types import Access, Problem

# The standard error of an expectation is then below 1 % of a wavefront's standard deviation.
SAMPLES: Final = 1 << 14
# Samples of all instructions together; where these are many, the sum needs fewer of each.
_ALL_SAMPLES: Final = 64 * SAMPLES
_SEED: Final = 0
MAX_DISTINCT: Final = 1 << 14  # instructions of an access that choose from different elements


class ChoiceTrace(CountedAccess, kw_only=True, frozen=True):
    """Every warp instruction of one access whose lanes choose; equal instructions stand once.

    `lanes` holds the weights of these instructions, and an instruction for each value.
    """

    # int64, shape (distinct instructions, lanes, values): row-major index of the first element that the lane
    # touches for each value; -1 where it takes no part
    distinct: IntArray
    number: IntArray  # int64, shape (instructions,): which of the distinct ones each is
    least: IntArray  # int64, shape (distinct instructions,): the least worst case of any layout
    apart_bytes: int  # bytes by which two of these elements are apart at least

    def count(self, table: IntArray) -> Counts:
        """Wavefronts, ideal and phases of every warp instruction: the worst case, or float64 expectations.

        Args:
            table: int64, shape (elements,): byte offset of every element.

        Raises:
            OutOfTime: the time was over before the end.
        """
        counts: list[tuple[float, float, float]] = []  # wavefronts, ideal, phases
        instructions = zip(self.distinct, self.least.tolist(), strict=True)
        for which, (elements, least) in enumerate(current().each(instructions)):
            address = np.where(elements < 0, -1, table[elements])
            if self.any_is == "uniform":
                counts.append(_expected(address, self, which))
            else:
                wavefronts, phases = _worst(address, self.lanes.operation, self.lanes.rule)
                counts.append((wavefronts, least, phases))
        array = np.array(counts, np.float64 if self.any_is == "uniform" else np.int64).reshape(-1, 3)
        return Counts(*array[self.number].T)


def choices(problem: Problem, looped: Trace, device: Device) -> dict[str, ChoiceTrace]:
    """The accesses of `problem` whose lanes choose, by name.

    Args:
        looped: the trace of `layoutopt.accesses.lower.with_loops(problem)`.

    Raises:
        OutOfTime: the time was over before the end.
        ProblemFileError: a weight depends on the values, or an access is wider than a row of banks.
    """
    warps = -(-problem.threads // device.lanes)
    found = {}
    for i, (access, lanes) in enumerate(zip(problem.accesses, looped.accesses, strict=True)):
        if access.any:
            with under(f"accesses[{i}]"):
                found[access.name] = _choice(access, lanes, warps, problem.tile.storage.element_bytes)
    return found


def _choice(access: Access, lanes: LaneTrace, warps: int, element_bytes: int) -> ChoiceTrace:
    """The run-time choices of one access's lanes, in a block of so many warps.

    The distinct instructions, which of them each warp executes, and the worst case of each, over the values,
    that no layout undercuts. `lanes` is its trace with a loop over the values inside all others.
    """
    values, width = math.prod(access.any.values()), lanes.operation.width_bytes
    weight = lanes.weight.reshape(-1, values, warps)
    if (weight != weight[:, :1]).any():
        raise ProblemFileError("weight", "a weight cannot depend on values of `any`")
    # From (iterations x values x warps, lanes) to (iterations x warps, lanes, values): what each may choose.
    split = np.where(lanes.active, lanes.element, -1).reshape(-1, values, warps, lanes.element.shape[1])
    choice = np.ascontiguousarray(split.transpose(0, 2, 3, 1)).reshape(-1, split.shape[3], values)
    number_of: dict[bytes, int] = {}  # of equal instructions, by their choices; the first one gets 0
    number = np.array([number_of.setdefault(one.tobytes(), len(number_of)) for one in choice], np.int64)
    distinct = choice[np.unique(number, return_index=True)[1]]
    if len(distinct) > MAX_DISTINCT:
        what = f"{len(distinct):,} instructions choose from different elements"
        raise ProblemFileError("any", f"{what}, of at most {MAX_DISTINCT:,}")
    apart_bytes, rule = max(width, element_bytes), lanes.rule  # of lanes that choose different elements
    if width > (row_bytes := rule.banks * rule.bank_bytes):
        wider = f"accesses wider than the {row_bytes} bytes of a row of banks"
        raise ProblemFileError("bytes", f"values known only at run time are not counted for {wider}")
    units, per_unit = _units(lanes.operation, rule), _elements_per_word(apart_bytes, rule)
    least = []  # wavefronts
    for elements in current().each(distinct):
        # Elements stand for addresses: both differ in every layout, or in none.
        of_phases = (
            _least(of_phase, units.banks, per_unit, rule.serialises_equal) + rule.extra_wavefronts
            for of_phase in _phases(elements, elements, rule)
        )
        least.append(units.requests * sum(of_phases))
    return ChoiceTrace(
        replace(lanes, weight=weight[:, 0].ravel()),  # by iteration and warp, all values together
        access.any_is,
        distinct=distinct,
        number=number,
        least=np.array(least, np.int64),
        apart_bytes=apart_bytes,
    )


# Units: what lanes choose from --------------------------------------------------------------


class _Units(NamedTuple):
    """What one lane moves in one request: a word, or an aligned vector.

    Vectors meet in all their banks or in none: they count as words of fewer and wider banks.
    """

    size: int  # bytes
    banks: int  # of such units
    requests: int  # of an instruction, all alike


def _units(operation: Operation, rule: PhaseRule) -> _Units:
    words = max(1, operation.width_bytes // rule.bank_bytes)
    return _Units(words * rule.bank_bytes, rule.banks // words, words if rule.split_words else 1)


def _elements_per_word(apart_bytes: int, rule: PhaseRule) -> int:
    """Elements that some layout may put into what a bank serves at once: a word, or its words of one row."""
    return -(-rule.bank_bytes // apart_bytes) * max(1, rule.row_words // rule.banks)


def _unit_at(address: IntArray, operation: Operation, rule: PhaseRule) -> IntArray:
    """The number of the unit at each address; -1 for address -1."""
    units = _units(operation, rule)
    unit = np.where(address < 0, -1, address // units.size)
    if rule.row_words > 1 and units.size == rule.bank_bytes:
        # Kepler: words of one aligned group that share a bank count as one.
        unit = np.where(unit < 0, -1, unit // rule.row_words * units.banks + unit % units.banks)
    return unit


def _phases(choice: IntArray, address: IntArray, rule: PhaseRule) -> list[IntArray]:
    """The choices of each phase's lanes, shape (lanes, values), -1 for none; without empty phases.

    Phases are merged where no choice can avoid the merge rule: no two neighbours can differ in address.

    Args:
        choice: the units, or elements, that each lane may choose, shape (lanes, values).
        address: of each choice, or what is different exactly where addresses are; same shape.
        rule: the phases.
    """
    phases = [list(lanes) for lanes in rule.phases]
    if rule.merges_pairs:
        low = np.where(address < 0, np.iinfo(np.int64).max, address).min(axis=1)
        high = address.max(axis=1)
        lanes = np.arange(len(address))
        for bit in (1, 2):
            other = lanes ^ bit
            both_active = (high >= 0) & (high[other] >= 0)
            may_differ = np.minimum(low, low[other]) != np.maximum(high, high[other])
            if not (both_active & may_differ).any():
                phases = [a + b for a, b in zip(phases[::2], phases[1::2], strict=True)]
                break
    return [of_phase for of_phase in (choice[lanes] for lanes in phases) if (of_phase >= 0).any()]


def _lane_unit_pairs(choice: IntArray) -> tuple[IntArray, IntArray]:
    """(lane, unit) of every unit that a lane may choose, each pair once, sorted; two arrays."""
    units = int(choice.max(initial=-1)) + 1
    numbered = choice + units * np.arange(len(choice))[:, None]
    return np.divmod(_distinct(numbered[choice >= 0]), max(1, units))


def _distinct(numbers: IntArray) -> IntArray:
    """The numbers, rising and each once; for millions several times as fast as NumPy's `unique`."""
    rising = np.sort(numbers)
    distinct: IntArray = rising[np.diff(rising, prepend=-1) != 0]
    return distinct


def _by_lane(lane: IntArray, unit: IntArray, lanes: int) -> list[list[int]]:
    """The units of each lane that has any, of pairs that are sorted by lane; at most `lanes` of them.

    A lane with as many choices as there are lanes finds one that no other lane takes, so that the others
    matter to no matching.
    """
    by_lane = np.split(unit, np.flatnonzero(np.diff(lane)) + 1)
    return [units[:lanes].tolist() for units in by_lane]


# The worst case -----------------------------------------------------------------------------


def _worst(address: IntArray, operation: Operation, rule: PhaseRule) -> tuple[int, int]:
    """Wavefronts and phases of one instruction; `address` has shape (lanes, values), -1 for none."""
    units, phases = _units(operation, rule), _phases(_unit_at(address, operation, rule), address, rule)
    most = sum(_most(choice, units.banks, rule.serialises_equal) + rule.extra_wavefronts for choice in phases)
    return units.requests * most, units.requests * len(phases)


def _most(choice: IntArray, banks: int, serialises_equal: bool) -> int:
    """Wavefronts of one phase at worst: the most lanes that may choose distinct units of one bank.

    `choice`: the units that each lane may choose, shape (lanes, values), -1 for none. With `serialises_equal`
    lanes that choose one unit are served one by one, so that they need not be distinct.
    """
    lane, unit = _lane_unit_pairs(choice)
    bank = unit % banks
    reaches = np.zeros((banks, len(choice)), bool)
    reaches[bank, lane] = True
    # Of each bank: the lanes that may choose one of its units, such units, and pairs of both.
    bank_lanes = reaches.sum(axis=1)
    if serialises_equal:
        return int(bank_lanes.max())
    bank_units = np.bincount(_distinct(unit) % banks, minlength=banks)
    bank_pairs = np.bincount(bank, minlength=banks)
    limit = np.minimum(bank_lanes, bank_units)  # no matching is larger
    by_bank, ends = np.argsort(bank, kind="stable"), np.cumsum(bank_pairs)  # pairs of bank b end at ends[b]
    most = 0
    for b in np.argsort(-limit, kind="stable").tolist():
        if limit[b] <= most:
            break
        # As many pairs as units: each unit is of one lane. As many as can be: all lanes may choose all of
        # them. Either way the matching reaches the limit, which no bank behind this one exceeds.
        if bank_pairs[b] in (bank_units[b], bank_units[b] * bank_lanes[b]):
            return int(limit[b])
        pairs = by_bank[ends[b] - bank_pairs[b] : ends[b]]
        most = max(most, matching(_by_lane(lane[pairs], unit[pairs], len(choice))))
    return most


def _least(choice: IntArray, banks: int, per_unit: int, serialises_equal: bool) -> int:
    """Lower bound, over all layouts, of the wavefronts of a phase whose lanes choose as badly as can be.

    Args:
        choice: the elements that each lane may choose, shape (lanes, values), -1 for none.
        banks: of units.
        per_unit: elements that a layout may put into a unit at most.
        serialises_equal: whether lanes that choose one element are served one by one.
    """
    lane, element = _lane_unit_pairs(choice)
    lanes_of = np.bincount(element)
    lanes_of = lanes_of[lanes_of > 0]  # of each element that is chosen from: how many lanes may choose it
    lanes = 1 + int(np.count_nonzero(np.diff(lane)))  # how many may choose any; pairs are sorted by lane
    if serialises_equal:
        return max(int(lanes_of.max()), -(-lanes // banks))
    at_once = banks * per_unit  # elements that one wavefront serves at most
    least = 1
    if lanes > banks:  # lanes can choose as many different elements as a matching has
        least = -(-matching(_by_lane(lane, element, lanes)) // at_once)
    elements = 0  # that `count` lanes at least may choose, each of them
    for count, more in sorted(Counter(lanes_of.tolist()).items(), reverse=True):
        elements += more
        # Some bank holds at least as many units of these elements as an even spread gives it, and so many
        # lanes, up to `count`, can choose one each.
        least = max(least, min(count, -(-elements // at_once)))
    return least


def matching(reach: Sequence[Sequence[int]]) -> int:
    """Size of a maximum matching of lanes to the words they reach (augmenting paths)."""
    holder: dict[int, int] = {}

    def place(lane: int, tried: set[int]) -> bool:
        for word in reach[lane]:
            if word not in tried:
                tried.add(word)
                if word not in holder or place(holder[word], tried):
                    holder[word] = lane
                    return True
        return False

    return sum(place(lane, set()) for lane in range(len(reach)))


# The expectation ----------------------------------------------------------------------------


def _expected(address: IntArray, access: ChoiceTrace, which: int) -> tuple[float, float, float]:
    """Expected wavefronts, ideal and phases of row `which` of `access.distinct`.

    `address`: of each choice, shape (lanes, values); -1 where the lane then takes no part.
    """
    operation, rule = access.lanes.operation, access.lanes.rule
    if rule.merges_pairs:
        return _sampled(address, access, which)
    choice: IntArray = np.sort(_unit_at(address, operation, rule), axis=1)  # rising, so -1 comes first
    active = choice[:, -1] >= 0
    phases = [choice[[lane for lane in lanes if active[lane]]] for lanes in rule.phases]
    if any((phase != phase[:1]).any() for phase in phases):  # lanes that choose from different words
        return _sampled(address, access, which)
    units, values = _units(operation, rule), address.shape[1]
    wavefronts = ideal = occupied = 0.0
    for phase in phases:
        if not len(phase):
            continue
        choices: IntArray = phase[0]  # those of all lanes
        chosen, times = np.unique(choices[choices >= 0], return_counts=True)
        chance = dict(zip(chosen.tolist(), (times / values).tolist(), strict=True))
        absent = 1 - int(times.sum()) / values  # how likely a lane takes no part
        some_lane = 1 - absent ** len(phase)  # how likely the phase is served at all
        extra = some_lane * rule.extra_wavefronts
        most = _expected_most(chance, absent, len(phase), units.banks, rule.serialises_equal)
        least = some_lane  # one wavefront, whatever is chosen
        # Elements are units of their own, equally likely, and so for all lanes alike: spread evenly.
        if _elements_per_word(access.apart_bytes, rule) == 1 and len(set(chance.values())) == 1:
            spread = dict(enumerate(chance.values()))
            least = _expected_most(spread, absent, len(phase), units.banks, rule.serialises_equal)
        wavefronts += units.requests * (most + extra)
        ideal += units.requests * (least + extra)
        occupied += units.requests * some_lane
    return wavefronts, ideal, occupied


def _sampled(address: IntArray, access: ChoiceTrace, which: int) -> tuple[float, float, float]:
    """Means over samples of a seed that is the same for every layout; one for each of many instructions."""
    lanes, values = address.shape
    samples = min(SAMPLES, _ALL_SAMPLES // len(access.distinct))
    seed = _SEED if samples == SAMPLES else (_SEED, which)
    drawn = np.random.default_rng(seed).integers(values, size=(samples, lanes))
    chosen = address[np.arange(lanes), drawn]
    counts = count_wavefronts(np.maximum(chosen, 0), chosen >= 0, access.lanes.operation, access.lanes.rule)
    return float(counts.wavefronts.mean()), float(counts.ideal.mean()), float(counts.phases.mean())


def _expected_most(
    chance: dict[int, float], absent: float, lanes: int, banks: int, serialises_equal: bool
) -> float:
    """Expected passes of the busiest bank: the sum over m of P(it serves more than m), lanes independent.

    With word w chosen with probability p_w, P(no bank serves more than m distinct words) is k! times the
    coefficient of z^k, for k lanes, in the product over banks of the sum over j <= m of the elementary
    symmetric polynomials e_j(exp(p_w z) - 1). Where equal addresses are served one by one, the factor of a
    bank of probability P is the sum over j <= m of (P z)^j / j!. (Flajolet and Sedgewick, Analytic
    Combinatorics, II.3.)

    Args:
        chance: of each word that a lane may choose.
        absent: chance that a lane takes no part.
        lanes: how many choose.
        banks: a word w lies in bank w % banks.
        serialises_equal: whether lanes that choose one word are served one by one.
    """
    by_bank: dict[int, list[float]] = {}
    for unit, p in chance.items():
        by_bank.setdefault(unit % banks, []).append(p)
    banks_of = Counter(tuple(sorted(ps)) for ps in by_bank.values())  # how many have words of these chances
    factors = {ps: _bank_series(ps, lanes, serialises_equal) for ps in banks_of}
    expected = 0.0
    for m in range(lanes):
        series = _exponential(absent, lanes)
        for ps, count in sorted(banks_of.items()):
            factor = factors[ps][: m + 1].sum(axis=0)  # of a bank that serves at most m
            for _ in range(count):
                series = np.convolve(series, factor)[: lanes + 1]
        # The series are in z * lanes, so that no coefficient leaves the range of a double.
        none_more = float(series[lanes]) * math.exp(math.lgamma(lanes + 1) - lanes * math.log(lanes))
        expected += max(0.0, 1 - none_more)
    return expected


def _exponential(p: float, lanes: int) -> npt.NDArray[Any]:
    """exp(p * lanes * z) up to z^lanes."""
    return np.cumprod([1.0, *(p * lanes / j for j in range(1, lanes + 1))])


def _bank_series(ps: Sequence[float], lanes: int, serialises_equal: bool) -> npt.NDArray[Any]:
    """How likely lanes need exactly j words of one bank; float, shape (lanes + 1, lanes + 1).

    `ps` has the chance that a lane asks for each word of the bank. Row j is the exponential generating
    function in the number of lanes: in column n the chance that n given lanes all ask for this bank, and for
    exactly j words of it, by n!. With `serialises_equal` lanes of one word are served one by one: j = n.
    """
    if serialises_equal:
        return np.diag(_exponential(sum(ps), lanes))
    rows = np.zeros((lanes + 1, lanes + 1))
    rows[0, 0] = 1
    for p, words in sorted(Counter(ps).items()):
        asked = _exponential(p, lanes)  # for one word of this chance: by one lane at least
        asked[0] = 0
        # With j of these words the series are C(words, j) * asked ** j * rows, each j rows further down.
        total, product = rows.copy(), rows
        for j in range(1, min(words, lanes) + 1):
            product = np.array([np.convolve(row, asked)[: lanes + 1] for row in product])
            product *= (words - j + 1) / j
            total[j:] += product[:-j]
        rows = total
    return rows
