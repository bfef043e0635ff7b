"""The verdict of a pair: its names, their exit codes, and the evidence for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from .errors import UsageError
from .evidence import CHECK_GROUPS, Evidence
from .markup import element, inline, join, prose, table
from .numerics.arrays import Floats

IDENTICAL = "identical"
ROUNDING = "rounding"
LIKELY_ROUNDING = "likely rounding"  # by the arrays alone
LOWER_PRECISION = "lower precision"
NONDETERMINISTIC = "nondeterministic"
BUG_SUSPECTED = "bug suspected"
INVALID_DUMP = "invalid dump"
UNDECIDED = "undecided"
VERDICTS = (  # gravest first
    BUG_SUSPECTED,
    INVALID_DUMP,
    NONDETERMINISTIC,
    UNDECIDED,
    LOWER_PRECISION,
    LIKELY_ROUNDING,
    ROUNDING,
    IDENTICAL,
)
# no build should pass with them: exit code 1 of `judge`, `verdict` and `compare --fail-on verdict`
FAILING = (NONDETERMINISTIC, BUG_SUSPECTED, INVALID_DUMP)
NOT_JUDGED = "not judged"  # shown for a pair without a verdict


def exit_code(verdicts: Iterable[str | None]) -> int:
    """Return the exit code of a command that gives these verdicts; None: not judged. A newer
    build's verdict fails.
    """
    passing = {None, NOT_JUDGED, *VERDICTS}.difference(FAILING)
    return int(not passing.issuperset(verdicts))


@dataclass(frozen=True)
class FloorRows:
    """A pair and its noise floor at every position of all prompts, prompts one after another: rms
    in logits. [positions] each
    """

    compute_dtype: str
    pair_rms: Floats
    floor_rms: Floats


class Checked:
    """A result with a `check()` for tests. It has no truth value: `assert judge(...)` would pass
    whatever was found.
    """

    def __bool__(self) -> bool:
        name = type(self).__name__
        raise TypeError(f"{name} is neither true nor false; call check() on it in a test.")


@dataclass(frozen=True)
class Verdict(Checked):
    """Verdict of a pair with the evidence for it.

    because: one sentence; noise_ratio: size of the difference in noise floors, in the dtype that
    decided; first_place: (prompt, position) at which a fault shows first; floors: noise floors by
    position; pair: index in its run.
    """

    name: str
    because: str
    evidence: tuple[Evidence, ...]
    noise_ratio: float | None = None
    first_place: tuple[int, int] | None = None
    floors: tuple[FloorRows, ...] = field(default=(), compare=False, repr=False)
    pair: int = 0

    @property
    def is_bug_suspected(self) -> bool:
        """Whether the verdict is `bug suspected`."""
        return self.name == BUG_SUSPECTED

    def worded(self, words: Callable[[str], str]) -> Verdict:
        """Return the verdict with its sentences in other words."""
        evidence = tuple(replace(row, says=words(row.says)) for row in self.evidence)
        return replace(self, because=words(self.because), evidence=evidence)

    def table(self) -> str:
        """Return the verdict and its checks as plain text, a line each."""
        groups = max((len(row.group) for row in self.evidence), default=0)
        outcomes = max((len(row.outcome) for row in self.evidence), default=0)
        rows = [
            f"  {row.group:<{groups}}  {row.outcome:<{outcomes}}  {row.says}"
            for row in self.evidence
        ]
        return "\n".join([f"{self.name}: {self.because}", *rows])

    __str__ = table

    def _repr_html_(self) -> str:
        rows = [(row.outcome, CHECK_GROUPS[row.group], prose(row.says)) for row in self.evidence]
        sentence = element("p", element("b", self.name), " ", prose(self.because))
        return inline(join(sentence, table(("outcome", "check", "result"), rows, "Checks")))

    def check(self, *, allowed: Sequence[str] = (IDENTICAL, ROUNDING)) -> Verdict:
        """Return the verdict if it is one of `allowed`.

        Args:
            allowed: names of verdicts.

        Raises:
            AssertionError: it is another one; the message is `table()`.
            UsageError: a name is not a verdict.
        """
        __tracebackhide__ = True
        unknown = [name for name in allowed if name not in VERDICTS]
        if unknown:
            raise UsageError(
                f"'{unknown[0]}' is not a verdict; expected one of {', '.join(VERDICTS)}.",
            )
        if self.name not in allowed:
            raise AssertionError(self.table())
        return self
