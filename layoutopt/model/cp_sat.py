"""A small CP-SAT model in proto form, and one call to solve it.

Models are written as the text form of `CpModelProto` (the `.pb.txt` that OR-Tools documents): one
string parsed once is about ten times faster to build than a Python object per constraint. The
compiled binding is imported directly because `ortools.sat.python.cp_model` pulls in pandas, which
alone takes longer to import than a typical problem takes to solve.
"""

import atexit
import enum
import math
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec import Struct

from layoutopt.ground.budget import Budget, current

SEED = 1
FAR: Final = 1 << 40  # more than any sum in a model of layouts
_EFFORT_EACH: Final = 0.005  # seconds that a solve is charged with beside the solver's deterministic time


class Outcome(enum.Enum):
    """What the solver says of a model, in its own terms."""

    OPTIMAL = "OPTIMAL"
    FEASIBLE = "FEASIBLE"
    INFEASIBLE = "INFEASIBLE"
    UNKNOWN = "UNKNOWN"


class Answer(Struct, frozen=True):
    """What the solver found and proved, and what it took."""

    outcome: Outcome
    values: tuple[int, ...]  # by variable; empty without a solution
    objective: int  # the value of the solution
    bound: int  # no solution has less
    branches: int = 0
    conflicts: int = 0
    effort: float = 0.0  # in the solver's deterministic time


NO_ANSWER: Final = Answer(Outcome.UNKNOWN, values=(), objective=0, bound=0)


class Model:
    """Variables, constraints and an objective.

    A literal is a variable's index, or `-index - 1` for its negation, as in the proto.
    """

    def __init__(self) -> None:
        self.domains: list[tuple[int, int]] = []  # lowest and highest value of each variable
        self.names: dict[int, str] = {}  # of variables, for people
        self.constraints: list[str] = []  # in `CpModelProto` text
        self.objective: list[tuple[int, int]] = []  # variables and coefficients of the sum that is minimised
        self._hint: dict[int, int] = {}

    def boolean(self, name: str = "") -> int:
        """A new 0/1 variable."""
        return self.integer(0, 1, name)

    def integer(self, low: int, high: int, name: str = "") -> int:
        """A new integer variable in low..high."""
        self.domains.append((low, high))
        if name:
            self.names[len(self.domains) - 1] = name
        return len(self.domains) - 1

    def clause(self, literals: Sequence[int]) -> None:
        """At least one literal is true."""
        self.constraints.append(f"constraints{{bool_or{{literals:[{_join(literals)}]}}}}")

    def at_most_one(self, literals: Sequence[int]) -> None:
        """No two literals are true."""
        self.constraints.append(f"constraints{{at_most_one{{literals:[{_join(literals)}]}}}}")

    def exactly_one(self, literals: Sequence[int]) -> None:
        """One literal is true."""
        self.constraints.append(f"constraints{{exactly_one{{literals:[{_join(literals)}]}}}}")

    def hint(self, variable: int, value: int) -> None:
        """A value to try first."""
        self._hint[variable] = value

    def xor(self, a: int, b: int, name: str) -> int:
        """A literal equal to `a xor b`."""
        c = self.boolean(name)
        # bool_xor holds when an odd number of its literals is true: a ^ b ^ (not c) = 1.
        self.constraints.append(f"constraints{{bool_xor{{literals:[{a},{b},{-c - 1}]}}}}")
        return c

    def conjunction(self, literals: Sequence[int], name: str) -> int:
        """A literal equal to the conjunction of `literals`."""
        if len(literals) == 1:
            return literals[0]
        both = self.boolean(name)
        for literal in literals:
            self.clause((-both - 1, literal))
        self.clause((both, *(-literal - 1 for literal in literals)))
        return both

    def at_most(self, terms: Iterable[tuple[int, int]], bound: int) -> None:
        """The sum of coefficient * literal over `(literal, coefficient)` is at most `bound`."""
        positive = []
        for literal, coefficient in terms:
            bound -= coefficient * (literal < 0)
            positive.append((-literal - 1, -coefficient) if literal < 0 else (literal, coefficient))
        self.linear(positive, [-(2**62), bound])

    def linear(
        self, terms: Sequence[tuple[int, int]], domain: Sequence[int], only_if: Sequence[int] = ()
    ) -> None:
        """The sum of coefficient * variable over `(variable, coefficient)` lies in `domain`.

        Args:
            terms: variables, not negated, and their coefficients.
            domain: lowest and highest value of each interval, rising.
            only_if: literals; where one is false, nothing is asked.
        """
        names, coefficients = zip(*terms, strict=True) if terms else ((), ())
        given = f"enforcement_literal:[{_join(only_if)}] " if only_if else ""
        self.constraints.append(
            f"constraints{{{given}linear{{vars:[{_join(names)}] coeffs:[{_join(coefficients)}] "
            f"domain:[{_join(domain)}]}}}}"
        )

    def copy(self) -> "Model":
        """A model of its own with all that this one has so far; variables keep their numbers."""
        other = Model()
        vars(other).update((name, part.copy()) for name, part in vars(self).items())
        return other

    @property
    def size(self) -> tuple[int, int]:
        """How many variables and constraints there are."""
        return len(self.domains), len(self.constraints)

    def minimise(self, terms: Sequence[tuple[int, int]]) -> None:
        """Minimise the sum of coefficient * variable over `(variable, coefficient)`."""
        self.objective = list(terms)

    def to_text(self) -> str:
        """The model as `CpModelProto` text."""
        variables = "".join(f"variables{{domain:[{low},{high}]}}" for low, high in self.domains)
        objective = ""
        if self.objective:
            names, coefficients = zip(*self.objective, strict=True)
            objective = f"objective{{vars:[{_join(names)}] coeffs:[{_join(coefficients)}]}}"
        hint = ""
        if self._hint:
            hint = f"solution_hint{{vars:[{_join(self._hint)}] values:[{_join(self._hint.values())}]}}"
        return variables + "".join(self.constraints) + objective + hint

    def solve(self, workers: int = 1, effort: float | None = None, *, presolve: bool = True) -> Answer:
        """Solve within the time there is, and within `effort` in the solver's deterministic time.

        Small models that are solved again and again are faster without `presolve`.

        One worker and a fixed seed make the solution, and not only its value, reproducible.
        """
        from ortools.sat.python import cp_model_helper as cp

        budget = current()
        if budget.effort is not None:
            effort = min(budget.effort, math.inf if effort is None else effort)
        if effort is not None and effort <= 0:
            budget.cut_short()
            return NO_ANSWER
        proto = cp.CpModelProto()
        if not proto.parse_text_format(self.to_text()):
            raise AssertionError("the model's text form is malformed")
        limits = "" if budget.seconds is None else f" max_time_in_seconds:{max(budget.seconds, 1e-3)}"
        limits += "" if effort is None else f" max_deterministic_time:{effort}"
        # No LP with one worker: the models are clauses and parities. Ctrl-C is handled by whoever owns the
        # budget.
        parameters = cp.SatParameters()
        parameters.parse_text_format(
            f"num_workers:{workers} random_seed:{SEED} linearization_level:{0 if workers == 1 else 1} "
            f"symmetry_level:0 catch_sigint_signal:false cp_model_presolve:{str(presolve).lower()}{limits}"
        )
        wrapper: Any = cp.SolveWrapper()
        wrapper.set_parameters(parameters)
        response = _response(wrapper, proto)
        if response is None:
            return NO_ANSWER
        budget.charge(_EFFORT_EACH + response.deterministic_time)
        outcome = Outcome(response.status.name)
        found = outcome in (Outcome.OPTIMAL, Outcome.FEASIBLE)
        decided = outcome in (Outcome.OPTIMAL, Outcome.INFEASIBLE)
        if not decided and (effort is None or response.deterministic_time < effort):
            budget.cut_short()  # it was the clock that ended it
        return Answer(
            outcome,
            values=tuple(response.solution) if found else (),
            objective=round(response.objective_value),
            bound=round(max(response.best_objective_bound, -1e18)),  # minus infinity cannot be rounded
            branches=response.num_branches,
            conflicts=response.num_conflicts,
            effort=response.deterministic_time,
        )


# Seconds that a solve may take to notice its time limit before nobody waits for it any longer; and between
# two looks at whether the budget was stopped.
_GRACE_SECONDS, _LOOKS_EVERY_SECONDS = 0.5, 0.05


def _response(wrapper: Any, proto: Any) -> Any:
    """The solver's response; None where the budget is stopped, or the limit is over, before there is one.

    A running solve cannot be stopped from another thread: `stop_search` looks up the limit in a hash map
    to which the solve adds entries at any time, and now and then the process aborts. So it runs in a
    thread of its own, and is left behind there.
    """
    budget = current()
    if budget.stopped:
        return None
    done = threading.Event()
    response: list[Any] = []

    def work() -> None:
        try:
            response.append(wrapper.solve(proto))
        except BaseException as error:  # handed to the thread that waits
            response.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    patience = Budget(None if budget.seconds is None else budget.seconds + _GRACE_SECONDS)
    try:
        while not (done.wait(_LOOKS_EVERY_SECONDS) or budget.stopped or patience.spent):
            pass
    finally:
        if not response and thread.is_alive():
            _left_behind.append((thread, wrapper))
    if response and isinstance(response[0], BaseException):
        raise response[0]
    return response[0] if response else None


_left_behind: list[tuple[threading.Thread, Any]] = []


@atexit.register
def _end_left_behind() -> None:
    """An interpreter must not end while a solver runs in it: here the risk of stopping one is the smaller."""
    for thread, wrapper in _left_behind:
        if thread.is_alive():
            wrapper.stop_search()
            thread.join()


def _join(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))
