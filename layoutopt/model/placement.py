"""Free assignments: every chunk of the tile in any bank, no formula at all.

What a layout of any kind can choose. What it keeps whole and aligned (`layoutopt.accesses.alignment`) are
**chunks** of 4, 8 or 16 bytes. All that matters for conflicts is the **position** of each chunk, its
address modulo one row of banks: any choice of positions is some layout, because rows of banks below one
another give every chunk an address of its own. So the least excess over all positions is the least excess
of every layout, padding, formulas and tables alike; `layoutopt.model.placement_model` asks CP-SAT for it,
`layoutopt.model.annealing` looks near a known layout.

The least bytes come from the same model: chunks of one column stand on each other, wide ones first,
so that a layout of T bytes exists exactly when no column is higher than T allows.

Elements narrower than a word that no wide access binds may share words in any way, which positions
cannot express. The **table** then packs them into words in row-major order, and the **bound** leaves
them out of the phases, which can only lower it. Likewise elements of a lower alignment than their size:
the table starts them at multiples of their size, the bound does not.

Not covered: elements whose size is no power of two, and devices whose words share a bank row.
"""

import math
import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.trace import Trace
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import current
from layoutopt.model.colouring import coloured
from layoutopt.model.cp_sat import Answer, Model, Outcome
from layoutopt.model.phases import PhaseSet
from layoutopt.model.placement_model import PlacementModel, chunks_of, free_phases
from layoutopt.problems.types import Tile

_KEPT = 2  # models, of one case
# Deterministic time for the questions of one call, unless the caller says otherwise.
EFFORT = 10.0
# Rounds of local search before the solver is asked, after it, and to even columns out, for an effort of
# `_ROUNDS_EFFORT`; they grow with the effort, up to `_MOST_OF_ROUNDS` times as many.
_FIRST_ROUNDS, _MORE_ROUNDS, _EVEN_ROUNDS = 6, 28, 1
_ROUNDS_EFFORT, _MOST_OF_ROUNDS = 2.0, 2.0
# Units of phases up to which the solver, in this effort, is done before the compiled search is loaded.
_FEW_UNITS, _FEW_UNITS_EFFORT = 512, 0.1
# Chunks that exchanges of two banks may visit before anything else is tried: some milliseconds.
_MOST_EXCHANGED = 10_000
# Shares of the effort: a yes-or-no question, and the minimum where the answer is no.
_QUESTION_SHARE, _MINIMUM_SHARE = 0.2, 0.6
# Elements beyond the tile, of which a small table is kept, and the effort to place them.
_MOST_FOLDED, _FOLD_EFFORT = 64, 0.5
# Seconds until numba is imported and the local search is loaded, or is compiled, once an installation.
_LOAD_SECONDS, _COMPILE_SECONDS = 0.6, 3.0


class FreeAssignment(Struct, frozen=True):
    """The best free assignment found, and what is proved of all of them.

    Excess is weighted, in units of `Trace.weight_unit`.
    """

    bound: int  # no layout of any kind has less excess
    excess: int | None = None  # excess of `table`; None if none was found
    table: IntArray | None = None  # int64 byte offset of every element, in the shape of the tile
    bytes: int | None = None  # last offset plus element size
    bytes_bound: int = 0  # no layout whose excess is `bound` is smaller

    @property
    def complete(self) -> bool:
        """Whether no layout has less excess, or as little in fewer bytes."""
        return self.excess == self.bound and self.bytes == self.bytes_bound


def free_assignment(
    sets: Sequence[PhaseSet],
    trace: Trace,
    tile: Tile,
    *,
    workers: int = 1,
    effort: float = EFFORT,
    max_bytes: int | None = None,
    hint: IntArray | None = None,
    bound: int = 0,
) -> FreeAssignment | None:
    """The least weighted excess over all placements of chunks in banks, then the fewest bytes.

    Where the time ends early, bound and table hold all the same, and may not meet.

    Args:
        sets: the phases, from `phase_sets`.
        trace: the accesses, whose vectors stay whole.
        workers: solver threads. With one the answer is reproducible unless the time runs out.
        effort: deterministic time for the whole call.
        max_bytes: the table is no larger.
        hint: byte offset of every element in some layout, to start from.
        bound: no layout has less weighted excess, as the caller knows.

    Returns:
        None where the model does not apply (see the module's text) or would be too large.
    """
    model = _model(sets, trace, tile, workers)
    if model is None:
        return None
    # The model starts elements at multiples of their size, and packs loose ones, narrower than a word, in one
    # way. Where layouts may do otherwise, a relaxed model without these two bounds them all.
    counted = np.concatenate([s.elements[s.elements >= 0] for s in sets])
    loose = model.chunks.loose[model.chunks.of[counted]].any()
    if tile.element_alignment == tile.element_bytes and not loose:
        return _within_bytes(model, effort, max_bytes, hint, bound)
    relaxed = _relaxed(sets, trace, tile, workers)
    if relaxed.too_large:
        return None
    proved_wavefronts = relaxed.solve(effort / 2, least=True).bound
    # Where the time ends first, less is proved than the relaxed model's counting bound, or the caller knows.
    bound = max(bound, relaxed.floor, relaxed.excess_at(proved_wavefronts))
    # The search ends at the model's own counting bound; what is proved of all layouts may lie below it.
    found = _within_bytes(model, effort / 2, max_bytes, hint)
    return replace(found, bound=bound, bytes_bound=tile.bytes)


def in_own_bytes(
    sets: Sequence[PhaseSet], trace: Trace, tile: Tile, *, hint: IntArray, bound: int
) -> FreeAssignment | None:
    """A layout of the excess `bound` in the tile's own bytes, or in few more, in a fraction of a second.

    Arguments are those of `free_assignment`. None where `hint`, of any bytes, has more excess.
    """
    model = _model(sets, trace, tile)
    return None if model is None else _near_hint(model, hint, max(bound, model.floor))


def exchanged(sets: Sequence[PhaseSet], trace: Trace, tile: Tile) -> FreeAssignment | None:
    """A layout at the counting bound in the tile's own bytes, where a few exchanges of banks lead to one."""
    model = _model(sets, trace, tile)
    return None if model is None else _exchanged(model, None)


def near(
    sets: Sequence[PhaseSet], trace: Trace, tile: Tile, *, hint: IntArray, bound: int
) -> FreeAssignment | None:
    """The best layout near the hint, of any bytes, by a short local search; `bound`: as `free_assignment`."""
    model = _model(sets, trace, tile)
    if model is None:
        return None
    return _assignment(model, _by_local_search(model, hint, bound, _FIRST_ROUNDS), bound, tile.bytes)


def question(sets: Sequence[PhaseSet], trace: Trace, tile: Tile, most: int | None) -> str:
    """`CpModelProto` text that has a solution if some layout keeps to `most`.

    Args:
        sets: the phases, for which `free_assignment` did not return None.
        most: weighted excess allowed; None for every phase at its counting bound.
    """
    return _relaxed(sets, trace, tile).question(most=most).to_text()


def _relaxed(sets: Sequence[PhaseSet], trace: Trace, tile: Tile, workers: int = 1) -> PlacementModel:
    """Positions of chunks that every layout keeps whole, without the elements that are in none."""
    chunks = chunks_of(trace, tile, min(s.rule.bank_bytes for s in sets), None)
    return PlacementModel(chunks, free_phases(sets, chunks, drop_loose=True), _row_bytes(sets), tile, workers)


def _row_bytes(sets: Sequence[PhaseSet]) -> int:
    return max(s.rule.banks * s.rule.bank_bytes for s in sets)  # of banks


@lru_cache(_KEPT)
def _model(sets: Sequence[PhaseSet], trace: Trace, tile: Tile, workers: int = 1) -> PlacementModel | None:
    """Positions of chunks that keep every element at a multiple of its size."""
    if not sets or tile.element_bytes & (tile.element_bytes - 1) or any(s.rule.row_words > 1 for s in sets):
        return None
    chunks = chunks_of(trace, tile, min(s.rule.bank_bytes for s in sets), tile.element_bytes)
    if chunks.size.max() > min(s.rule.banks * s.rule.bank_bytes for s in sets):
        return None
    phases = free_phases(sets, chunks, drop_loose=False)
    model = PlacementModel(chunks, phases, _row_bytes(sets), tile, workers)
    return None if model.too_large else model


# The questions of one call ---------------------------------------------------------------------


def _within_bytes(
    model: PlacementModel, effort: float, max_bytes: int | None, hint: IntArray | None, bound: int = 0
) -> FreeAssignment:
    """The assignment of the least excess; if it is too large, the best found within `max_bytes`."""
    found = _least_excess(model, effort, hint, bound)
    if max_bytes is None or found.bytes is None or found.bytes <= max_bytes:
        return found
    packed, tile_bytes = _packed(model), model.tile.bytes
    answer = model.solve(effort * _QUESTION_SHARE, atoms=max_bytes // model.atom, least=True, hint=packed)
    # Both are measured: where an atom is shared, the chunks that the model does not place may need one more.
    candidates = [
        _assignment(model, packed, found.bound, tile_bytes),
        _solution(model, answer, found.bound, tile_bytes),
    ]
    fitting = [f for f in candidates if f is not None and f.bytes is not None and f.bytes <= max_bytes]
    without_table = FreeAssignment(found.bound, bytes_bound=tile_bytes)
    return min(fitting, key=lambda f: (f.excess, f.bytes), default=without_table)


def _least_excess(model: PlacementModel, effort: float, hint: IntArray | None, bound: int) -> FreeAssignment:
    """The assignment of the least excess, then of the fewest bytes; the quickest attempt first."""
    bound, tile_bytes = max(bound, model.floor), model.tile.bytes

    def tight(effort: float) -> FreeAssignment | None:
        """An assignment at the counting bound in the tile's own bytes, if CP-SAT finds one."""
        if bound != model.floor:
            return None
        answer = model.solve(effort, atoms=model.atoms(tile_bytes), hint=hint)
        return _solution(model, answer, bound, tile_bytes)

    def searched(start: IntArray | None, rounds: int) -> FreeAssignment:
        """What local search finds from a table; `rounds` is for an effort of `_ROUNDS_EFFORT`."""
        scale = min(_MOST_OF_ROUNDS, effort / _ROUNDS_EFFORT)
        table = _by_local_search(model, start, bound, math.ceil(rounds * scale))
        return _assignment(model, table, bound, tile_bytes)

    # The hint made smaller; exchanges of banks; CP-SAT, where it is done before the local search is loaded.
    if hint is not None and (known := _near_hint(model, hint, bound)) is not None and known.complete:
        return known
    if bound == model.floor and (known := _exchanged(model, hint)) is not None:
        return known
    if sum(len(phase.units) for phase in model.phases) <= _FEW_UNITS:
        known = tight(_FEW_UNITS_EFFORT)
        if known is not None and known.complete:
            return known
    # A short search; CP-SAT for the counting bound alone; a longer search; CP-SAT for the least excess.
    best = searched(hint, _FIRST_ROUNDS)
    if best.complete:
        return best
    if (known := tight(effort * _QUESTION_SHARE)) is not None:
        return known
    if best.excess != bound:
        best = searched(best.table, _MORE_ROUNDS)
    if best.excess != bound:
        best = _with_proved_bound(model, effort * _MINIMUM_SHARE, best)
    return _fewest_bytes(model, effort * _QUESTION_SHARE, best)


def _near_hint(model: PlacementModel, hint: IntArray, bound: int) -> FreeAssignment | None:
    """The hint made smaller without more excess; None where its excess is not `bound`."""
    known = _assignment(model, _offsets_of(model, model.positions_of(hint)), bound, model.tile.bytes)
    if known.excess != bound:
        return None
    table = _folded(model, hint) if bound == model.floor else None
    return _level(model, known) if table is None else _assignment(model, table, bound, model.tile.bytes)


def _exchanged(model: PlacementModel, hint: IntArray | None) -> FreeAssignment | None:
    """An assignment without conflicts in the tile's own bytes, by exchanging banks; None if not found soon.

    None also where chunks are of several sizes, or some phase cannot do without conflicts.
    """
    banks = model.period // model.atom
    rows, more = divmod(model.atoms(model.tile.bytes), banks)
    are_atoms = banks in model.positions.values()  # chunks with a position a bank, all if they are alike
    if not (model.alike and are_atoms) or any(phase.least > 1 for phase in model.phases):
        return None
    position = model.positions_of(_row_major(model) if hint is None else hint)
    index_of = {c: k for k, c in enumerate(position)}
    phases = [sorted({index_of[unit.chunk] for unit in phase.units}) for phase in model.phases]
    room = [rows + (k < more) for k in range(banks)]
    found = coloured(phases, [*position.values()], room, _MOST_EXCHANGED)
    if found is None:
        return None
    table = _offsets_of(model, dict(zip(position, found, strict=True)))
    known = _assignment(model, table, model.floor, model.tile.bytes)
    return known if known.complete else None


def _with_proved_bound(model: PlacementModel, effort: float, known: FreeAssignment) -> FreeAssignment:
    """`known` or an assignment of less excess, with the bound that CP-SAT proves by minimising excess."""
    answer = model.solve(effort, least=True, hint=known.table)
    if answer.outcome is Outcome.INFEASIBLE:
        raise AssertionError("some assignment always exists")
    bound = max(known.bound, model.excess_at(answer.bound))
    better = _solution(model, answer, bound, known.bytes_bound)
    return min([replace(known, bound=bound), *([better] if better else [])], key=lambda f: f.excess or 0)


def _fewest_bytes(model: PlacementModel, effort: float, found: FreeAssignment) -> FreeAssignment:
    """The fewest bytes with the excess of `found`, asking CP-SAT for one more row of banks each time."""
    found = _level(model, found)
    assert found.bytes is not None
    bytes_bound, atoms, enough = model.tile.bytes, model.atoms(model.tile.bytes), model.atoms(found.bytes)
    row_atoms = model.period // model.atom
    while atoms < enough:
        answer = model.solve(effort, atoms=atoms, most=found.excess, hint=found.table)
        found = _solution(model, answer, found.bound, bytes_bound) or found
        if answer.outcome is not Outcome.INFEASIBLE:
            break
        bytes_bound = atoms * model.atom + model.tile.element_bytes
        atoms = (atoms // row_atoms + 1) * row_atoms  # to the end of the next row; a layout may end within it
    return replace(found, bytes_bound=bytes_bound if found.excess == found.bound else model.tile.bytes)


def _solution(model: PlacementModel, answer: Answer, bound: int, bytes_bound: int) -> FreeAssignment | None:
    """The assignment that an answer of the model has; None where it has none."""
    if not _is_solved(answer):
        return None
    return _assignment(model, _offsets_of(model, model.positions_in(answer)), bound, bytes_bound)


def _is_solved(answer: Answer) -> bool:
    return answer.outcome in (Outcome.OPTIMAL, Outcome.FEASIBLE)


# Local search ----------------------------------------------------------------------------------


def _by_local_search(model: PlacementModel, hint: IntArray | None, bound: int, rounds: int) -> IntArray:
    """Byte offsets after local search from `hint`, or from row-major; it ends at an excess of `bound`."""
    position = model.positions_of(_row_major(model) if hint is None else hint)
    # If the time does not last until the loop is compiled, which cannot be stopped, the start is the answer.
    if position and current().affords(_seconds_to_compile()):
        from layoutopt.model.annealing import annealed, board_of

        start, enough = np.array([*position.values()]), bound - model.floor  # beyond `least` of all phases
        found = annealed(board_of(model), start, enough, rounds)
        position = dict(zip(position, found.tolist(), strict=True))
    if model.symmetric:
        position = model.renamed(position, fullest_first=True)  # so that the last row ends early
    return _offsets_of(model, position)


def _seconds_to_compile() -> float:
    """Seconds to load the compiled loop, which is kept beside its source, or to compile it; about."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return math.inf  # never: Python would take minutes for what takes hundredths of a second
    module = sys.modules.get(f"{__package__}.annealing")
    if module is not None and module.cooled.signatures:  # imported alone, it is still to be compiled
        return 0.0
    source = Path(__file__).with_name("annealing.py")
    kept = source.parent.glob("__pycache__/annealing.*.py{}{}.nbi".format(*sys.version_info))
    written = source.stat().st_mtime
    return _LOAD_SECONDS if any(file.stat().st_mtime >= written for file in kept) else _COMPILE_SECONDS


def _level(model: PlacementModel, found: FreeAssignment) -> FreeAssignment:
    """The same excess in the tile's bytes or in few more, by even columns, where chunks are of one size."""
    if found.bytes == model.tile.bytes or not model.alike:
        return found
    assert found.excess is not None
    table = _by_local_search(model, found.table, found.excess, _EVEN_ROUNDS)
    even = _assignment(model, table, found.bound, found.bytes_bound)
    return min(found, even, key=lambda f: f.bytes or 0)


# Tables ----------------------------------------------------------------------------------------


def _assignment(model: PlacementModel, table: IntArray, bound: int, bytes_bound: int) -> FreeAssignment:
    """A table of byte offsets as an assignment, with its excess and bytes."""
    excess = model.excess_of(model.positions_of(table))
    size = int(table.max()) + model.tile.element_bytes
    return FreeAssignment(bound, excess, table.reshape(model.tile.shape), size, bytes_bound)


def _folded(model: PlacementModel, padded: IntArray) -> IntArray | None:
    """The end of a padded layout put into its own holes: a formula, and a table of what lies beyond the tile.

        offset = v - (back[v - elements] if v >= elements else 0)        v: the padded layout, in elements

    What lies in the tile's bytes stays where it is. The rest may go into any hole where it meets nothing of
    its phases; the solver chooses. None where it finds none, elements are no chunks, or phases see few banks.
    `padded`: byte offset of each element.
    """
    element_bytes, chunk_bytes = model.tile.element_bytes, model.chunks.size
    offset = padded.ravel() // element_bytes  # in elements, by element
    elements = len(offset)
    one_element_chunks = (
        len(model.positions) == elements == len(chunk_bytes) and (chunk_bytes == element_bytes).all()
    )
    beyond = np.flatnonzero(offset >= elements).tolist()
    if not (model.symmetric and one_element_chunks and 0 < len(beyond) <= _MOST_FOLDED):
        return None
    holes: list[list[int]] = [[] for _ in range(model.period // element_bytes)]  # offsets, by bank
    for hole in np.setdiff1d(np.arange(elements), offset).tolist():
        holes[hole % len(holes)].append(hole)
    bank_of = _banks_with_holes(model, offset, beyond, np.array([len(of_bank) for of_bank in holes]))
    if bank_of is None:
        return None
    table = offset.copy()
    for element, bank in bank_of.items():
        table[element] = holes[bank].pop(0)
    return table * element_bytes


def _banks_with_holes(
    model: PlacementModel, offset: IntArray, beyond: list[int], holes: IntArray
) -> dict[int, int] | None:
    """A bank for each element beyond the tile, so that every phase keeps to its `least`; None if not found.

    Args:
        model: whose chunks are the elements.
        offset: of each element, in elements.
        beyond: the elements that need a bank.
        holes: how many elements each bank has room for.
    """
    units, banks = model.units, len(holes)
    stays = offset[units.chunk] < len(offset)
    # What each bank may take on in each phase beside the elements that stay, shape (phases, banks).
    room = np.repeat([[phase.least] for phase in model.phases], banks, axis=1)
    stay_at = units.phase[stays], offset[units.chunk[stays]] % banks
    np.subtract.at(room, stay_at, units.times[stays])
    moving = np.stack([units.phase, units.chunk, units.times])[:, ~stays].T.tolist()
    open_banks = dict.fromkeys(beyond, holes > 0)
    for phase, element, times in moving:
        open_banks[element] = open_banks[element] & (room[phase] >= times)
    if not all(is_open.any() for is_open in open_banks.values()):
        return None
    solver = Model()
    # Of each element, a literal for each bank that it may go to.
    goes_to = {
        element: {bank: solver.boolean() for bank in np.flatnonzero(is_open).tolist()}
        for element, is_open in open_banks.items()
    }
    for literals in goes_to.values():
        solver.exactly_one([*literals.values()])
    for bank, count in enumerate(holes.tolist()):
        solver.at_most([(literals[bank], 1) for literals in goes_to.values() if bank in literals], count)
    loads: dict[tuple[int, int], list[tuple[int, int]]] = {}  # by phase and bank: literals and times
    for phase, element, times in moving:
        for bank, literal in goes_to[element].items():
            loads.setdefault((phase, bank), []).append((literal, times))
    for at, load in loads.items():
        if len(load) > 1:
            solver.at_most(load, int(room[at]))
    answer = solver.solve(effort=_FOLD_EFFORT)
    if not _is_solved(answer):
        return None
    return {
        element: next(bank for bank, literal in literals.items() if answer.values[literal])
        for element, literals in goes_to.items()
    }


def _row_major(model: PlacementModel) -> IntArray:
    return np.arange(model.tile.elements) * model.tile.element_bytes


def _packed(model: PlacementModel) -> IntArray:
    """One chunk after the other, wide ones first: no layout is smaller, whatever it costs."""
    chunks = model.chunks
    order = np.lexsort((-_used(model), -chunks.size))
    address = np.zeros(len(order), np.int64)
    address[order] = np.cumsum(chunks.size[order]) - chunks.size[order]
    table: IntArray = address[chunks.of] + chunks.place
    return table


def _used(model: PlacementModel) -> IntArray:
    """Bytes to the end of the last element of each chunk: what lies last need not be whole."""
    used = np.zeros(len(model.chunks.size), np.int64)
    np.maximum.at(used, model.chunks.of, model.chunks.place + model.tile.element_bytes)
    return used


def _offsets_of(model: PlacementModel, position: dict[int, int]) -> IntArray:
    """Byte offsets of all elements, given the position of each chunk that the model has.

    In every column wide chunks lie first; the other chunks, in no phase of several, fill what is left.
    """
    address, height = _stacked(model, position)
    size = model.chunks.size
    placed = np.zeros(len(address), np.bool_)
    placed[list(position)] = True
    free = np.flatnonzero(~placed)
    for width in np.unique(size[free])[::-1].tolist():
        same_width, wide = free[size[free] == width], width // model.atom
        rows, column = _lowest(height.reshape(-1, wide).max(axis=1), len(same_width))
        address[same_width] = rows * model.period + column * width
        above = np.zeros(len(height) // wide, np.int64)
        np.maximum.at(above, column, rows + 1)
        height = np.maximum(height, above.repeat(wide))
    flat: IntArray = address[model.chunks.of] + model.chunks.place
    return flat


def _stacked(model: PlacementModel, position: dict[int, int]) -> tuple[IntArray, IntArray]:
    """Byte address of each chunk, 0 if it has no position, and the rows in use of each column."""
    atom, size = model.atom, model.chunks.size
    filled = [0] * (model.period // atom)
    address = np.zeros(len(size), np.int64)
    sizes, used = size.tolist(), _used(model).tolist()
    for c in sorted(position, key=lambda c: (-sizes[c], -used[c], c)):
        wide = sizes[c] // atom
        columns = slice(position[c] * wide, (position[c] + 1) * wide)
        row = max(filled[columns])
        address[c] = row * model.period + position[c] * wide * atom
        filled[columns] = [row + 1] * wide
    return address, np.array(filled)


def _lowest(height: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """Rows and columns of `count` free places in columns of these heights: lowest first, left to right."""
    levels = np.sort(height)
    below = levels * np.arange(1, len(levels) + 1) - np.cumsum(levels)  # free places below each level
    open_columns = max(1, int(np.searchsorted(below, count)))  # that get any; they are then of one height
    top = -(-(count + int(levels[:open_columns].sum())) // open_columns)
    each = np.maximum(0, top - height)
    columns = np.repeat(np.arange(len(height)), each)
    rows = height[columns] + np.arange(len(columns)) - np.repeat(np.cumsum(each) - each, each)
    order = np.lexsort((columns, rows))[:count]
    return rows[order], columns[order]
