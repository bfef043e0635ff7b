"""Verdict of a pair as people read it: name, sentence, first divergence, RMS / noise floor, next
step, checks.

Reads stored verdicts only. A pair that was not judged is identical if its bits are, else undecided
or not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...checks.arrays_alone import LEAST_VALUES
from ...checks.modules_alone import AloneFigures
from ...command_name import COMMAND
from ...evidence import (
    CHECK_GROUPS,
    EXPLAINED,
    FAILED,
    FLOAT32,
    MISSING,
    NEIGHBOURS,
    OWN_DTYPE,
    PASSED,
    PRECISION,
    RERUN,
    SAMPLER,
    Evidence,
)
from ...places import words_of
from ...text import multiple, number
from ...verdict import IDENTICAL, LIKELY_ROUNDING, LOWER_PRECISION, NOT_JUDGED, UNDECIDED
from ..file.records import StoredPair
from ..requests import command_with

if TYPE_CHECKING:
    from ..measured import MemoryRun
    from ..reader import RunReader

# a longer command is not worth showing: a prompt may have thousands of characters
_LONGEST = 200
# Checks that can be run independent of the others. The rest follows from them, or needs another
# variant.
_CAN_BE_RUN = {
    "capture": (RERUN, OWN_DTYPE, FLOAT32),
    "upload": (SAMPLER, RERUN, NEIGHBOURS, OWN_DTYPE, FLOAT32),
}
_OF_VALUES = (RERUN, NEIGHBOURS, OWN_DTYPE, FLOAT32)
_OF_LISTS = (RERUN, OWN_DTYPE)


@dataclass(frozen=True)
class Answer:
    """A pair's verdict in the order in which it is read.

    name: a verdict or 'not judged'; place: first place of a fault, in words; size: RMS / noise
    floor; next_command: it would decide. Each is '' if there is none. not_run: titles of the checks
    that could be run and were not.
    """

    name: str
    sentence: str
    is_judged: bool = False
    first_place: tuple[int, int] | None = None
    place: str = ""
    size: str = ""
    next_command: str = ""
    checks: tuple[Evidence, ...] = ()
    not_run: tuple[str, ...] = ()

    @property
    def facts(self) -> dict[str, str]:
        """First divergence and RMS / noise floor, those that there are."""
        facts = {"first divergence": self.place, "RMS / noise floor": self.size}
        return {name: value for name, value in facts.items() if value}

    @property
    def titled_checks(self) -> list[tuple[str, Evidence]]:
        """Every check with its title; of several on one group also what each checked, or the
        side.
        """
        titled = []
        for row in self.checks:
            title = CHECK_GROUPS[row.group]
            same = [each for each in self.checks if each.group == row.group]
            if len(same) > 1:
                is_alone = [each.check for each in same].count(row.check) == 1
                title += f": {row.check if is_alone or not row.side else row.side}"
            titled.append((title, row))
        return titled

    @property
    def not_run_line(self) -> str:
        """`Not run: rerun, compute dtype.`; '' if every check was."""
        return f"Not run: {', '.join(self.not_run)}." if self.not_run else ""


def shown_verdict(kind: str, is_bit_identical: bool, verdict: str | None) -> str:
    """Return the stored verdict; of a pair that was not judged what its bits say, of a dump
    'undecided'.
    """
    if verdict:
        return verdict
    if is_bit_identical:
        return IDENTICAL
    return UNDECIDED if kind == "upload" else NOT_JUDGED


def answer_of(run: RunReader | MemoryRun, pair: StoredPair) -> Answer:
    """Return the verdict of a pair with its checks."""
    header, evidence = run.header, run.evidence(pair.index)
    kind = header.provenance.kind
    name = shown_verdict(kind, pair.summary.bit_identical, pair.verdict)
    sentence = pair.because or ""
    if pair.verdict is None:
        sentence = "No check was run."
        if name == IDENTICAL:
            sentence = "Both sides are equal bit for bit."
        elif kind != "upload":
            sentence = f"No check was run; `{COMMAND} judge` runs them."
    can_be_run = _CAN_BE_RUN[kind] if header.has_tokens else _OF_VALUES
    if header.is_list:
        can_be_run = _OF_LISTS
    done = {row.group for row in evidence}
    if header.compute_dtype == "float32":
        done.add(OWN_DTYPE)
    # the first place, and the first module that differs alone
    place = []
    if pair.first_place:
        place.append(header.worded(words_of(pair.first_place, header.lengths)))
    alone = [row.figures for row in evidence if isinstance(row.figures, AloneFigures)]
    modules = [name for figures in alone for name in figures.modules_beyond]
    return Answer(
        name,
        sentence,
        pair.verdict is not None,
        pair.first_place,
        ", ".join(place + modules[:1]),
        size_of(pair, evidence),
        next_command(run, pair),
        tuple(_explained(evidence) if name == LOWER_PRECISION else evidence),
        tuple(CHECK_GROUPS[group] for group in can_be_run if group not in done),
    )


def _explained(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Rows of a pair that is `lower precision`: what the precision explains has not failed."""
    names = []
    for row in evidence:
        if row.group == PRECISION and row.outcome == PASSED:
            settings = ", ".join(getattr(row.figures, "settings", ()))
            names.append(getattr(row.figures, "precision", "") or settings)
    cause = f"consistent with {' and '.join(names)}"
    rows = []
    for row in evidence:
        figures = row.figures
        if row.group in (OWN_DTYPE, FLOAT32) and row.outcome == FAILED:
            row = replace(row, outcome=EXPLAINED, says=f"{row.says.removesuffix('.')}: {cause}.")
        elif isinstance(figures, AloneFigures) and figures.is_of_few_bits:
            bits = f"about {figures.bits:.0f} bits of precision"
            row = replace(row, says=f"{figures.part}: {bits}, {cause}.")
        rows.append(row)
    return rows


def size_of(pair: StoredPair, evidence: Sequence[Evidence]) -> str:
    """`0.94x in float32 (limit 4x)`: the noise ratio of a verdict, '' if there is none or no bit
    differs.
    """
    ratio = pair.noise_ratio
    if ratio is None or pair.summary.bit_identical:
        return ""
    size = multiple(ratio)
    figures = figures_of_ratio(pair, evidence)
    if dtype := getattr(figures, "compute_dtype", None):
        size += f" in {dtype}"
    if limit := getattr(figures, "largest_ratio_allowed", None):
        size += f" (limit {number(limit)}x)"
    return size


def figures_of_ratio(pair: StoredPair, evidence: Sequence[Evidence]) -> Any:
    """Return the figures of the check whose noise ratio is that of the verdict, None if none."""
    for row in evidence:
        if getattr(row.figures, "noise_ratio", None) == pair.noise_ratio:
            return row.figures
    return None


def deciding_controls(run: RunReader | MemoryRun, evidence: Sequence[Evidence]) -> dict[str, str]:
    """Return the controls that would decide about a dump, most telling first: options of `ulpscope
    verdict` -> what they bring. Empty for captures, and if every control was used.
    """
    header = run.header
    if header.provenance.kind != "upload":
        return {}
    used: set[str] = set()
    for row in evidence:
        # of the controls that the pair was judged with, those that did not decide
        if row.group == FLOAT32 and row.outcome == MISSING:
            used.update(getattr(row.figures, "controls", None) or ())
    has_ids = all(prompt.token_ids for prompt in header.prompts)
    if header.is_list:
        served = "the model that is served, which measures the noise floor on the same tokens"
        return {"--model MODEL": served} if has_ids else {}
    is_wide = header.compute_dtype == "float32"
    # scores have no noise floor by row
    is_long = header.has_tokens or header.vocab >= LEAST_VALUES
    pair = "--float32 PAIR_IN_FLOAT32.npz"
    # figures of an earlier pair in float32 are stored, not its logits
    first = "" if is_wide else f"{pair} "
    floor = (
        "a noise floor: the reference in float32 on three or more paths that are equal in exact"
        " arithmetic (batch sizes, kernels)"
    )
    controls = [
        (
            "float32",
            pair,
            "the same two sides in float32, with the same weights and tokens",
            not is_wide and is_long,
        ),
        ("floor", f"{first}--floor WAYS_IN_FLOAT32.npz", floor, is_long),
        (
            "model",
            f"{first}--model MODEL",
            "the model, which measures the noise floor on this dump's tokens",
            has_ids and header.has_tokens,
        ),
        (
            "exact",
            "--exact EXACT.npz",
            "the exact result of the reference in float32, and four or more trusted 16-bit results",
            not is_wide and is_long,
        ),
        (
            "rerun",
            "--rerun AGAIN.npz",
            "whether a kernel is nondeterministic: each side called once more",
            True,
        ),
    ]
    return {
        options: what for name, options, what, can_be in controls if can_be and name not in used
    }


def next_command(run: RunReader | MemoryRun, pair: StoredPair) -> str:
    """Return the command that would decide about a pair: '' if its verdict is decided, or nothing
    is left to try.
    """
    about = run.header.provenance
    verdict = shown_verdict(about.kind, pair.summary.bit_identical, pair.verdict)
    if verdict == NOT_JUDGED:
        judge = command_with(about, "judge") or ""
        # $': a prompt of several lines
        return judge if len(judge) <= _LONGEST and "$'" not in judge else ""
    if verdict not in (UNDECIDED, LIKELY_ROUNDING):
        return ""
    if run.has_rollouts:
        explain = f"{COMMAND} explain {run.run_id} --trainer CHECKPOINT"
        return explain if run.has_prompts_of_rollouts() else ""
    options = next(iter(deciding_controls(run, run.evidence(pair.index))), "")
    return options and f"{COMMAND} verdict {run.run_id} {options}"


def ulp_percentile(histogram: Mapping[int, int], share: float) -> int | None:
    """Return the least distance that at least this share of the elements does not exceed; None of
    no elements.

    histogram: ULP distance to number of elements.
    """
    distances = sorted(histogram)
    counts = np.cumsum([0, *map(histogram.__getitem__, distances)])
    place = np.searchsorted(counts[1:], share * counts[-1])
    return distances[place] if counts[-1] else None
