"""What can go wrong, as a tree.

    LayoutoptError
      ProblemFileError     the problem, table or device file is wrong
        ExpressionError    an expression in it cannot be parsed or evaluated
      LayoutError          this layout cannot hold this tile
      VerificationError    the model and the conflict engine disagree: a bug in layoutopt
      MachineError         this machine has no GPU or no compiler

A warning, `DisputedRuleWarning`, says that public sources contradict each other about a device.

"Infeasible" and "out of time" are answers, not errors: see `layoutopt.problems.types.Status`.
"""

import contextlib
from collections.abc import Iterator


class LayoutoptError(Exception):
    """Base of every error that layoutopt raises on purpose."""


class ProblemFileError(LayoutoptError):
    """A file is wrong.

    Attributes:
        field: path of the field, such as `accesses[2].index[0]`; empty for the whole file.
        reason: what was required and what was given.
        of_file: the field is one of the whole file, whatever part of it was looked at.
    """

    def __init__(self, field: str, reason: str, *, of_file: bool = False) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field
        self.reason = reason
        self.of_file = of_file

    def move(self, field: str) -> None:
        """Say that the field is another one."""
        self.field = field
        self.args = (f"{field}: {self.reason}" if field else self.reason,)


@contextlib.contextmanager
def under(place: str) -> Iterator[None]:
    """Errors inside name fields of what stands at `place` in the file, such as `accesses[2]`."""
    try:
        yield
    except ProblemFileError as error:
        if not error.of_file:
            error.move(f"{place}.{error.field}".replace(".[", "[").strip("."))
        raise


Wrong = Iterator[tuple[str, str]]
"""Fields with what is wrong with each; only the first is asked for."""


def raise_first(wrong: Wrong) -> None:
    """Raise the first of what is wrong, if anything is.

    Raises:
        ProblemFileError: it.
    """
    for field, reason in wrong:
        raise ProblemFileError(field, reason)


class ExpressionError(ProblemFileError):
    """An expression cannot be parsed, or fails for some thread.

    Attributes:
        position: flat index, in the broadcast shape of the variables, of the first failing
            evaluation; None when the text itself is at fault.
    """

    def __init__(self, reason: str, position: int | None = None, field: str = "") -> None:
        super().__init__(field, reason)
        self.position = position


class LayoutError(LayoutoptError):
    """A layout does not fit its tile: elements overlap, a vector is torn or misaligned."""


class VerificationError(LayoutoptError):
    """The model promised what the conflict engine does not confirm. Always a bug in layoutopt."""


class DisputedRuleWarning(UserWarning):
    """A hardware rule was used about which public sources contradict each other."""


class MachineError(LayoutoptError):
    """This machine lacks what the command needs: a GPU, a compiler, a permission."""
