"""Reasons in words: why a layout works, or why none can and what to give up.

Of several tiles: what decides each of them by itself, and what the common budget costs.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, Unpack, overload

from msgspec import Struct
from msgspec.structs import replace

from layoutopt.engine.case import Case
from layoutopt.engine.run_time_values import ChoiceTrace
from layoutopt.engine.witness import Instruction, Served
from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import Node, to_text
from layoutopt.files.checks import fields_of
from layoutopt.files.result_file import MAX_BYTES
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import current, deadline, spending, unhurried
from layoutopt.ground.interrupt import interruptibly
from layoutopt.ground.json_data import Versioned
from layoutopt.ground.log import Progress, told
from layoutopt.hardware.devices import Device
from layoutopt.layout.families import without_each_part
from layoutopt.layout.layout import Layout, row_major
from layoutopt.model.placement import FreeAssignment
from layoutopt.problems.answer import EVERY_LAYOUT, Arrangement, Bound, ModelGrowth, Proof, Result, Status
from layoutopt.problems.same_layout import groups, within_room
from layoutopt.problems.target import Question, target_of
from layoutopt.problems.text import count_text, lanes_text, listed
from layoutopt.problems.types import Access, Block, Problem, constrained
from layoutopt.proof.board import subject_of
from layoutopt.proof.reasons import BY_HAND, CLIQUE, COUNTING, SOLVER, SearchLimits
from layoutopt.search.block import solve
from layoutopt.search.proposal import Ask, of_tile
from layoutopt.study.in_use import node_in_use, without_formulas
from layoutopt.study.relaxations import Relaxation, Relaxations, names
from layoutopt.study.rows import solved

_MOST_SHOWN: Final = 8  # wavefronts drawn of one phase
# Share of the time, where there are several tiles, for the search over all of them; and of what is left then,
# for the same without the budget of bytes.
_ARRANGE_SHARE: Final = 0.3
# The scope of "no layout": other constraints might have one.
ALLOWED: Final = "the layouts that the constraints allow"


class Explanation(Versioned, frozen=True):
    """Why the best layout works, or why none is free of conflicts.

    Attributes:
        problem: its name.
        target: the GPU, such as sm_90.
        conflict_free: whether a layout without conflicts exists; None where that is open.
        scope: the layouts for which `conflict_free` holds when it is false, and `lower_bound`.
        lower_bound: of the excess, where `weighted` of the weighted excess.
        evidence: what the bound rests on.
        excess, weighted_excess: of the best layout found; None without one.
        offset: that layout.
        clique: words that pairwise meet, more than banks, as in a certificate.
        clashing_accesses: accesses that cannot all be served without conflicts.
        clash_is_minimal: whether without any one of them the others of these can.
        other_clashes: more sets of that kind, each found with one of `clashing_accesses` left out.
        relaxations: what to give up.
        reasons: sentences and drawings for people.
        widths: where the file leaves widths open, those that the solver chose, in bytes by access name;
            all else is about them.
        decided_by: what decided that nothing is better, as in a result.
        model: what the model took to find the layout, as in a result.
        weighted: whether accesses weigh other than 1.
    """

    problem: str
    target: str
    conflict_free: bool | None
    scope: str
    lower_bound: int | float
    evidence: str
    excess: int | float | None
    weighted_excess: int | float | None
    offset: str | None
    clique: dict[str, Any] | None
    clashing_accesses: tuple[str, ...]
    clash_is_minimal: bool
    other_clashes: tuple[tuple[str, ...], ...]
    relaxations: tuple[Relaxation, ...]
    reasons: tuple[str, ...]
    widths: dict[str, int]
    decided_by: str | None = None
    model: ModelGrowth | None = None
    weighted: bool = False
    schema_: Literal["layoutopt.explanation/1"] = "layoutopt.explanation/1"


class ExplainedTile(Struct, frozen=True):
    """A tile, or tiles that share a layout, as if there were no others."""

    tiles: tuple[str, ...]
    explanation: Explanation


class BlockExplanation(Versioned, frozen=True):
    """Why several tiles come out as they do: what an `Explanation` says, of all of them together."""

    problem: str
    target: str
    conflict_free: bool | None
    scope: str
    lower_bound: int | float  # of the weighted excess
    excess: int | float | None
    weighted_excess: float | None
    bytes: int | None  # of the best layouts found; None without one
    max_bytes: int | None  # the budget
    clashing_accesses: tuple[str, ...]  # of single tiles
    relaxations: tuple[Relaxation, ...]  # what to give up of what all tiles share
    reasons: tuple[str, ...]
    tiles: tuple[ExplainedTile, ...]  # one by one, without the budget
    schema_: Literal["layoutopt.tile_set_explanation/1"] = "layoutopt.tile_set_explanation/1"


@overload
def explain(problem: Problem, **how: Unpack[Question]) -> Explanation: ...
@overload
def explain(problem: Block, **how: Unpack[Question]) -> BlockExplanation: ...
def explain(
    problem: Problem | Block,
    *,
    time_limit: float | None = None,
    target: Device | str | None = None,
    progress: Progress | None = None,
) -> Explanation | BlockExplanation:
    """Solve `problem` and say why the answer is what it is. Ctrl-C ends it with what is known so far.

    Args:
        problem: what to explain: a tile and its accesses, or several.
        time_limit: seconds, of which the search may use half; None for no limit.
        target: the device or its name, where it is not the one the problem names.
        progress: called with a line of text from time to time.

    Raises:
        ProblemFileError: the problem contradicts itself.
    """
    gpu, progress = target_of(problem, target), told(progress)

    def work() -> Explanation | BlockExplanation:
        if isinstance(problem, Block):
            return _explain_block(problem, gpu, progress)
        return _explain_tile(problem, gpu, progress)

    with deadline(time_limit) as budget:
        return interruptibly(work, budget)


# A tile ------------------------------------------------------------------------------------------


def _explain_tile(problem: Problem, gpu: Device, progress: Progress) -> Explanation:
    """Why the best layout of one tile works, or why none is free of conflicts and what to give up."""
    in_use = node_in_use(problem)  # read first: what is wrong with the formula is said before the search
    case, result = solved(problem, gpu, progress=progress)
    if result.layout is not None:
        progress(f"excess {result.excess:g} in {result.bytes:,} bytes; what could be given up")
    proof = result.proof
    bound = proof.objective  # often of the families searched alone
    # Whether none of the scope is free of conflicts; accesses of weight 0 count in the second bound alone.
    refuted = bound.lower_bound > 0 or (result.layout is None and proof.excess.lower_bound > 0)
    is_free = result.layout is not None and result.excess == 0
    conflict_free = _conflict_free(is_free, refuted, result.status)  # None where that is open
    general = proof.every_layout
    if not conflict_free and not bound.everywhere and general is not None and general.lower_bound:
        bound = general  # less, but it says that no family helps
    scope = ALLOWED if conflict_free is False and not bound.lower_bound else bound.scope
    with unhurried():  # told even where no time is left
        reasons = [*_why_it_works(case, result, in_use)]
    left_open = (a.name for a in problem.accesses if a.is_free or isinstance(a.bytes, tuple))
    questions = Relaxations(case, frozenset(left_open))
    # Accesses that no layout serves together; whether it takes each of them; words that meet pairwise.
    clash, clash_is_minimal, clique = list[Access](), False, None
    # Subsets of accesses are asked about only where no lane chooses at run time.
    if refuted and bound.everywhere and not conflict_free and not case.chooses:
        sentences, clique = _why_none(case, proof)
        reasons += sentences
        clash, clash_is_minimal = questions.smallest_clash(questions.accesses)
    other_clashes, relaxations = questions.other_clashes(clash), list[Relaxation]()
    if not conflict_free:
        relaxations += [*questions.looser_constraints(), *questions.left_out(clash)]
        # Where excess does not come first, its answer may have conflicts that others have not.
        conflict_free = any(r.kind == "minimise" for r in relaxations) or conflict_free
    if not current().spent:
        relaxations += questions.choices(result, names(clash))
    if lanes := lanes_text(problem, case.asked):
        reasons.insert(0, f"The lanes are chosen: {lanes}; what follows is about them.")
        scope += ", with the lanes chosen"
    return Explanation(
        problem=case.problem.name,
        target=case.device.name,
        conflict_free=conflict_free,
        scope=scope,
        lower_bound=bound.lower_bound,
        evidence=proof.evidence,
        excess=result.excess,
        weighted_excess=result.weighted_excess,
        offset=result.offset,
        clique=clique,
        clashing_accesses=names(clash),
        clash_is_minimal=clash_is_minimal,
        other_clashes=tuple(other_clashes),
        relaxations=tuple(relaxations),
        reasons=tuple(reasons),
        widths=case.widths,
        decided_by=result.decided_by,
        model=result.model,
        weighted=case.has_weights,
    )


def _conflict_free(found: bool, refuted: bool, status: Status) -> bool | None:
    """Whether a layout without conflicts exists, if one was found or refuted; None where that is open."""
    if found:
        return True
    return False if refuted or status is Status.INFEASIBLE else None


def _why_none(case: Case, proof: Proof) -> tuple[list[str], dict[str, Any] | None]:
    """Why every layout has conflicts: sentences, and the clique as data, if that is a reason.

    Reasons are told from the easiest on, up to the one that the bound rests on. Where that is no harder than
    a clique, or is the solver, which speaks last, the first reason but counting ends them.
    """
    subject, clique = subject_of(case.lowered.tile, case.device, case.lanes), None
    as_easy_as_a_clique = ("", COUNTING.evidence, CLIQUE.evidence, SOLVER.evidence)
    sentences = list[str]()
    for reason in BY_HAND:
        found = reason.find(subject, SearchLimits())
        if found is None:
            continue
        sentences += reason.sentences(subject, case.problem, found)
        if reason is CLIQUE:
            clique = reason.data(subject, case.problem, found)
        if reason is not COUNTING and proof.evidence in (reason.evidence, *as_easy_as_a_clique):
            break
    if proof.evidence == SOLVER.evidence:
        least = FreeAssignment(round(proof.objective.lower_bound * case.lanes.weight_unit))
        sentences += SOLVER.sentences(subject, case.problem, least)
    return sentences, clique


# A block -----------------------------------------------------------------------------------------


def _explain_block(block: Block, gpu: Device, progress: Progress) -> BlockExplanation:
    """Explain each group of tiles that share a layout, and what the block's budget of bytes costs."""

    def solve_in_share(changed: Block) -> Arrangement:
        with spending(current().part(_ARRANGE_SHARE)):
            return solve(without_formulas(changed), gpu, Ask(progress=progress))

    answer = solve_in_share(block)
    # What the GPU has for a block, whatever budget the file gives; None where that is not known.
    gpu_bytes = within_room(constrained(block, max_bytes=None), gpu).layout.max_bytes
    block = within_room(block, gpu)  # the budget is the file's, else what the GPU has
    without_budget, relaxations = None, list[Relaxation]()
    if answer.excess != 0:  # or there is none
        without_budget, relaxations = _shared_relaxations(block, answer, gpu_bytes, solve_in_share)
    problems, explained = groups(block), []
    for k, (tiles, problem) in enumerate(problems):
        tile_progress = of_tile(tiles[0].name, progress)
        with fields_of(block, *tiles), spending(current().part(1 / (len(problems) - k))):
            explanation = _explain_tile(problem, gpu, tile_progress)
        explained.append(ExplainedTile(tuple(tile.name for tile in tiles), explanation))
    bound, explanations = answer.proof.objective, [tile.explanation for tile in explained]
    # What each tile has in any layout adds up, and may be more than what the search proved of all.
    sum_of_tiles = sum(own.lower_bound for own in explanations if own.scope == EVERY_LAYOUT)
    if sum_of_tiles >= bound.lower_bound:
        bound = Bound(sum_of_tiles, EVERY_LAYOUT)
    found_free = bool(answer.tiles) and answer.excess == 0
    conflict_free = _conflict_free(found_free, bound.lower_bound > 0, answer.status)
    return BlockExplanation(
        problem=block.name,
        target=gpu.name,
        conflict_free=conflict_free,
        scope=ALLOWED if conflict_free is False and not bound.lower_bound else bound.scope,
        lower_bound=bound.lower_bound,
        excess=answer.excess,
        weighted_excess=answer.weighted_excess,
        bytes=answer.bytes,
        max_bytes=block.layout.max_bytes,
        clashing_accesses=tuple(name for own in explanations for name in own.clashing_accesses),
        relaxations=tuple(relaxations),
        reasons=tuple(_block_reasons(block, answer, without_budget, gpu_bytes, explained)),
        tiles=tuple(explained),
    )


def _shared_relaxations(
    block: Block, answer: Arrangement, gpu_bytes: int | None, solve_in_share: Callable[[Block], Arrangement]
) -> tuple[Arrangement | None, list[Relaxation]]:
    """The answer without the budget of bytes, if it is better; and constraints of all tiles to relax.

    Args:
        block: the problem, whose budget is at most what the GPU has.
        answer: its answer, perhaps without layouts.
        gpu_bytes: shared memory that the GPU has for a block; None where that is not known.
        solve_in_share: solves a changed block in a share of the time.
    """
    relaxations, budget = list[Relaxation](), block.layout.max_bytes
    if block.layout.families is not None:
        all_families = solve_in_share(constrained(block, families=None))
        if all_families.tiles and _is_better(all_families, answer):
            excess = _excess_text(all_families, "no conflicts")
            text = f"with all families there are {excess} in {all_families.bytes:,} bytes"
            relaxations.append(Relaxation("families", text))
    if budget is None:
        return None, relaxations
    unlimited = solve_in_share(constrained(block, max_bytes=MAX_BYTES))
    if unlimited.bytes is None or unlimited.bytes <= budget or not _is_better(unlimited, answer):
        return None, relaxations
    if answer.tiles and (unlimited.excess or 0) >= (answer.excess or 0):
        return None, relaxations  # better by its weights alone, which sentences about excess do not show
    excess = _excess_text(unlimited, "no conflicts")
    if gpu_bytes is None or unlimited.bytes <= gpu_bytes:
        text = f"with layout.max_bytes {unlimited.bytes:,} there are {excess}"
        relaxations.append(Relaxation("max_bytes", text))
    most = max(tile.stages for tile in block.tiles)
    for stages in range(most - 1, 0, -1):
        tiles = tuple(replace(t, stages=min(stages, t.stages)) for t in block.tiles)
        if sum(tile.stages * tile.bytes for tile in tiles) > budget:
            continue
        fewer_stages = solve_in_share(replace(block, tiles=tiles))
        if fewer_stages.tiles and not _is_better(unlimited, fewer_stages):
            excess = _excess_text(fewer_stages, "no conflicts")
            text = f"with {stages} in place of {most} stages there are {excess}"
            relaxations.append(Relaxation("stages", text))
            break
    return unlimited, relaxations


def _is_better(other: Arrangement, answer: Arrangement) -> bool:
    """Whether another answer has less weighted excess than `answer`, or `answer` has no layouts."""
    return not answer.tiles or (other.weighted_excess or 0) < (answer.weighted_excess or 0)


def _excess_text(answer: Arrangement, without: str = "no bank conflicts") -> str:
    """`3 excess wavefronts`, or `without` where there are none."""
    return count_text(answer.excess, "excess wavefront") if answer.excess else without


def _block_reasons(
    block: Block,
    answer: Arrangement,
    without_budget: Arrangement | None,
    gpu_bytes: int | None,
    explained: Sequence[ExplainedTile],
) -> Iterator[str]:
    """Sentences on the result, on tiles that alone prevent a better one, and on what the budget costs.

    Arguments are as for `_shared_relaxations`, and what that says of the answer without the budget.
    """
    budget = block.layout.max_bytes
    if not answer.tiles:
        yield f"{answer.status}: {answer.reason}"
    else:
        of_budget = f" of {budget:,}" if budget is not None else ""
        yield f"all tiles together: {_excess_text(answer)} in {answer.bytes:,} bytes{of_budget}"
    for tile in explained:
        if tile.explanation.conflict_free is False:
            verb = "has conflicts in" if tile.explanation.lower_bound else "is held by none of"
            scope = f"{tile.explanation.scope}, whatever the others take"
            yield f"tile {' and '.join(tile.tiles)} {verb} {scope}"
    if without_budget is not None:
        whose = f"a block of {block.target} has" if budget == gpu_bytes else "layout.max_bytes is"
        saved = (answer.excess or 0) - (without_budget.excess or 0)
        costs = f"the budget costs {count_text(saved, 'excess wavefront')}: " if answer.tiles else ""
        needs = f"the tiles take {without_budget.bytes:,} bytes, and {whose} {budget:,}"
        yield f"{costs}with {_excess_text(without_budget)} {needs}"


# Why a layout works ---------------------------------------------------------------------------


def _why_it_works(case: Case, result: Result, in_use: Node | None = None) -> Iterator[str]:
    """Sentences and drawings: the worst phase before, the same phase now, and what each part buys.

    Args:
        case: the tile and its accesses.
        result: the answer.
        in_use: the layout in use, element offset over x0, x1, ...; None where there is none. It is the
            layout before, unless it has no conflicts: then, and without one, that is the row-major layout.

    Raises:
        ExpressionError: the formula cannot be evaluated.
    """
    in_use_is_free = (  # of conflicts
        in_use is not None
        and _why_unsound(case, in_use) is None
        and not any(access.excess for access in case.measure(in_use))
    )
    if in_use is None or in_use_is_free:
        stored = case.problem.tile.storage
        before: Layout | Node = row_major(stored.shape, stored.element_bytes)
        title, subject = "Row-major", "Row-major, with no pad and no swizzle,"
    else:
        before, title = in_use, f"In use, {to_text(in_use)}"
        subject = f"The layout in use, {to_text(in_use)},"
    if (unsound := _why_unsound(case, before)) is not None:
        yield f"{subject} cannot hold this tile: {unsound}."
    worst: Instruction | None = None  # the one of the most excess before
    # Row-major is counted even where it tears vectors; an unsound formula in use may have no offsets.
    if unsound is None or before is not in_use:
        table = case.table(before)
        reports = case.reports(case.count(table))
        access = max(range(len(reports)), key=lambda k: reports[k].excess)
        if reports[access].excess > 0:
            worst = Instruction.worst(case, access, table)
            yield _phase_text(worst, before, title)
        elif unsound is None:
            yield f"{subject} has no conflicts already."
    yield from _on_solution(case, result, before, worst)
    if case.problem.is_dictated and result.layout is not None and result.reason:
        yield f"Of {result.proof.excess.scope}: {result.reason}."
    if in_use is not None and in_use_is_free:
        yield f"The layout in use, {to_text(in_use)}, has no conflicts."


def _on_solution(
    case: Case, result: Result, before: Layout | Node, worst: Instruction | None
) -> Iterator[str]:
    """Sentences on the solved layout: what it does to the instruction that was worst before, the effect of
    each of its parts, and the conflicts that remain.
    """
    if result.layout is None:
        yield f"No layout: {result.reason}."
        return
    layout = case.as_bytes(result.layout)
    name = "a table of offsets" if layout.lookup else result.offset
    if layout != before:
        if worst is not None:
            yield _phase_text(worst, layout, f"With {name}")
        if not case.problem.is_dictated:  # a mode has no parts to leave out
            yield from _part_effects(case, result.layout)
    for access, report in enumerate(result.accesses):
        if report.excess:
            remaining = Instruction.worst(case, access, case.table(layout))
            if remaining != worst:
                yield _phase_text(remaining, layout, f"Left over with {name}")


def _phase_text(instruction: Instruction, layout: Layout | Node, title: str) -> str:
    """The worst phase of an instruction behind the layout's `title`, with a drawing unless lanes choose."""
    case, name, table = instruction.case, instruction.lanes.name, instruction.case.table(layout)
    # Where lanes choose among many elements at run time, there is no one phase to draw.
    if isinstance(choice := case.accesses[instruction.access], ChoiceTrace):
        counts = choice.count(table)
        over = "at worst over all values" if choice.any_is == "worst" else "expected over uniform values"
        wavefronts, ideal = counts.wavefronts[instruction.row], counts.ideal[instruction.row]
        return f"{title}: `{name}`: {over}, one takes {wavefronts:g} wavefronts, where {ideal:g} could do."
    rule, operation = instruction.lanes.rule, instruction.lanes.operation
    phase, (warp, iteration) = instruction.worst_phase(table), instruction.at
    where = "".join(f", {name} = {value}" for name, value in iteration.items())
    text = f"{title}: `{name}` (warp {warp}{where}): {len(phase.lanes)} lanes are served together. "
    # In the busiest bank: the words that are touched, and the lanes that touch them.
    words = len({touch.word for touch in phase.touches})
    lanes = sorted({touch.lane for touch in phase.touches})
    passes, taken = len(phase.passes), phase.taken(rule, operation)
    if words > 1:
        elements = _coordinates_text([instruction.coordinates(lane) for lane in lanes])
        holds = f"bank {phase.bank} holds {words} of their words"
        if rule.serialises_equal and passes > words:
            holds += f", for which {passes} lanes wait one after the other"
        text += (
            f"Lanes {listed(lanes)} {'read' if operation.is_read else 'write'} {elements}: "
            f"{_distance_text(instruction, table, lanes)}{holds}, {taken}."
        )
    elif passes > 1:  # lanes of one word that the GPU does not merge
        text += f"Lanes {listed(lanes)} touch one word, and are served one after the other, {taken}."
    else:
        text += f"No two of their words share a bank, {taken}."
    return "\n".join([text, *_drawing(instruction, table, phase)])


def _distance_text(instruction: Instruction, table: IntArray, lanes: Sequence[int]) -> str:
    """A clause on lanes whose addresses lie whole rows of banks apart; empty for others."""
    device, address = instruction.case.device, instruction.addresses(table)
    period = device.banks * device.bank_bytes
    distance = math.gcd(*(address[b] - address[a] for a, b in itertools.pairwise(lanes)))
    if not distance or distance % period:
        return ""
    return f"their addresses lie multiples of {distance:,} bytes apart, and banks repeat every {period}; "


def _drawing(instruction: Instruction, table: IntArray, phase: Served) -> Iterator[str]:
    """The lines of a table of one phase: a column for the banks of one access, a row for each wavefront.

    bank   0-3  4-7  ...
    lane     0    1          the first lane of each word; 0+ where several lanes touch it
    """
    operation, address = instruction.lanes.operation, instruction.addresses(table)
    rule = instruction.lanes.rule
    piece_bytes = max(operation.width_bytes, rule.bank_bytes)  # what a lane touches, in whole words
    columns = max(1, rule.banks * rule.bank_bytes // piece_bytes)
    # Of each column: the lanes served in one pass, by what they have in common.
    passes: list[dict[int, list[int]]] = [{} for _ in range(columns)]
    for lane in phase.lanes:
        piece = common = address[lane] // piece_bytes
        if rule.serialises_equal:  # nothing: each lane has a pass of its own
            common = lane
        elif rule.row_words > 1:  # an aligned row of words, of which a bank serves several
            common = address[lane] // (rule.bank_bytes * rule.row_words)
        passes[piece % columns].setdefault(common, []).append(lane)
    banks = rule.banks // columns  # of a column
    names = [f"{k * banks}" + (f"-{k * banks + banks - 1}" if banks > 1 else "") for k in range(columns)]
    cells = [[f"{lanes[0]}{'+' * (len(lanes) > 1)}" for lanes in column.values()] for column in passes]
    width = max(2, *(len(text) for column in (names, *cells) for text in column))
    rows = list(itertools.zip_longest(*cells, fillvalue="."))
    titles = itertools.chain(("bank", "lane"), itertools.repeat(""))
    for title, row in zip(titles, (names, *rows[:_MOST_SHOWN]), strict=False):
        yield f"    {title:<6}" + " ".join(cell.rjust(width) for cell in row)
    if len(rows) > _MOST_SHOWN:
        yield f"    and {len(rows) - _MOST_SHOWN} more wavefronts"


def _part_effects(case: Case, layout: Layout) -> Iterator[str]:
    """A sentence on each pad, rotation and XOR bit: the wavefronts that the layout has more without it."""
    wavefronts = {a.name: a.wavefronts for a in case.measure(layout)}
    for part, without in without_each_part(layout):
        other = case.as_bytes(without)
        if (unsound := _why_unsound(case, other)) is not None:
            yield f"Without {part} the tile would not fit: {unsound}."
            continue
        changes = {a.name: a.wavefronts - wavefronts[a.name] for a in case.measure(other)}
        effect = ", ".join(f"`{name}` {change:+,}" for name, change in changes.items() if change)
        none = "no change: it keeps the vectors whole or the tile dense"
        yield f"Without {part}: {f'{effect} wavefronts' if effect else none}."


def _why_unsound(case: Case, layout: Layout | Node) -> str | None:
    """Why a layout cannot hold the tile, if it cannot."""
    try:
        case.check(case.table(layout))
    except LayoutError as error:
        return str(error)
    return None


def _coordinates_text(elements: Sequence[tuple[int, ...]]) -> str:
    """`elements 0, 4 and 8`, `rows 0 and 8 of column 3`, or the coordinates of all."""
    distinct = list(dict.fromkeys(elements))
    dimensions = len(distinct[0])
    if dimensions == 1:
        return f"elements {listed([at[0] for at in distinct])}"
    varying = [d for d in range(dimensions) if len({at[d] for at in distinct}) > 1]
    if dimensions == 2 and len(varying) == 1:
        (d,) = varying
        several, one = ("rows", "column") if d == 0 else ("columns", "row")
        return f"{several} {listed([at[d] for at in distinct])} of {one} {distinct[0][1 - d]}"
    return f"{listed(distinct)}"
