"""Evidence of a verdict: groups of checks, and one record of figures per check.

A figure's label and unit are declared with its field. Pages, JSON, the run file and
docs/reference/checks.md read them there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import structs

from ...errors import UsageError
from ...markup import element, inline, join, prose, table
from ...text import clean
from .records import BUG_SUSPECTED, IDENTICAL, ROUNDING, VERDICTS, FloorRows

PASSED, FAILED, MISSING, NOTED = "passed", "failed", "not available", "informative"
EXPLAINED = "explained"  # of a pair that is `lower precision`: shown for a failed check, not stored
OUTCOMES = (PASSED, FAILED, MISSING, NOTED, EXPLAINED)

VALIDITY, SAMPLER, SCREENING = "validity", "sampler", "screening"
RERUN, NEIGHBOURS = "rerun", "neighbours"
OWN_DTYPE, FLOAT32, PRECISION = "own dtype", "float32", "precision"
STRUCTURE, MODULES = "structure", "modules"
CHECK_GROUPS = {  # groups of checks in the order in which they run, with their titles
    VALIDITY: "dump validity",
    SAMPLER: "sampler",
    SCREENING: "arrays alone",
    RERUN: "rerun",
    NEIGHBOURS: "neighbors",
    OWN_DTYPE: "compute dtype",
    FLOAT32: "float32 comparison",
    PRECISION: "lower precision",
    STRUCTURE: "positions",
    MODULES: "modules",
}


class CheckFigures(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Figures of one check. A figure is written to JSON as null if it has no value, and left out if
    its default is None.
    """

    def present(self) -> list[tuple[str, str, Any]]:
        """Every figure there is: its key in JSON, its label and its value."""
        values, labels = self.to_json(), labels_of(type(self))
        return [(key, label, values[key]) for key, label in labels.items() if key in values]

    def to_json(self) -> dict[str, Any]:
        """Return the figures as an object of JSON."""
        return msgspec.to_builtins(self)


class Unmeasured(CheckFigures):
    """Figures of a check that could not be run: the available controls, the dtype that rules it
    out.
    """

    controls: Annotated[tuple[str, ...] | None, "controls that were given"] = msgspec.field(
        default=None,
        name="tried",
    )
    computes_in: Annotated[Mapping[str, str] | None, "computes in, whatever the request"] = None


# Figures that several checks have, with their labels.
_Dtype = Annotated[str, "dtype"]
_FirstPlace = Annotated[tuple[int, int] | None, "first (prompt, position)"]
_Ratio = Annotated[float, "RMS difference / noise floor"]
_WorstRatio = Annotated[float | None, "largest ratio at one position"]
_Limit = Annotated[float, "its limit"]
_Positions = Annotated[int, "positions"]
_Outliers = Annotated[int, "outlier positions"]
_Mismatches = Annotated[int, "logits NaN or infinite on one side only"]

SHIFTS = {"unshifted": 0, "two_earlier": -2, "one_earlier": -1, "one_later": 1, "two_later": 2}
_SHIFTS_IN_JSON = {name: f"same_argmax_shifted_by_{rows}" for name, rows in SHIFTS.items()}


class ShapesFigures(CheckFigures):
    positions: _Positions
    vocab: Annotated[int, "vocabulary"]
    highest_token_id: Annotated[int | None, "highest token id"]


class SentFigures(CheckFigures):
    """What servers sent of their rows."""

    positions: Annotated[int, "positions at which both sides sent a row of equal context"]
    values: Annotated[int, "values that both sides sent"]
    neq: Annotated[int, "of them, values that differ"]
    flips: Annotated[int | None, "flips"]


class PlaceholderFigures(CheckFigures):
    kind: Annotated[str, "kind of placeholder"]
    tokens: Annotated[int, "tokens with one"]
    of: Annotated[int, "tokens in all"]


class ContextFigures(CheckFigures):
    prompts: Annotated[int, "prompts"]


class GridFigures(CheckFigures):
    formats: Annotated[tuple[str, ...], "formats that hold all values"]


class ShiftFigures(CheckFigures, rename=_SHIFTS_IN_JSON):
    """Share of the positions at which the argmax is the same."""

    unshifted: Annotated[float, "same argmax without a shift"]
    two_earlier: Annotated[float, "each row vs. the reference's 2 rows after it"]
    one_earlier: Annotated[float, "each row vs. the reference's 1 row after it"]
    one_later: Annotated[float, "each row vs. the reference's 1 row before it"]
    two_later: Annotated[float, "each row vs. the reference's 2 rows before it"]


class LogsumexpFigures(CheckFigures):
    reference_least_logsumexp: Annotated[float | None, "least logsumexp of the reference, nats"]
    reference_largest_logsumexp: Annotated[float | None, "largest logsumexp of the reference, nats"]
    variant_least_logsumexp: Annotated[float | None, "least logsumexp of the variant, nats"]
    variant_largest_logsumexp: Annotated[float | None, "largest logsumexp of the variant, nats"]


class TruncationFigures(CheckFigures):
    reference_filled_rows: Annotated[int, "rows of the reference that one value fills"]
    variant_filled_rows: Annotated[int, "rows of the variant that one value fills"]
    least_other_logits: Annotated[int | None, "least number of other logits in such a row"]


class NumbersFigures(CheckFigures):
    nonfinite_mismatch: _Mismatches
    positions: Annotated[int, "positions with one"]
    first: _FirstPlace
    token: Annotated[int | None, "token id of the first"] = None


class SamplerFigures(CheckFigures):
    tokens: Annotated[int, "emitted tokens"]
    not_the_argmax: Annotated[int, "tokens that are not the argmax"]
    first: Annotated[int | None, "first of them, counted among the emitted tokens"]


class ScreeningFigures(CheckFigures):
    compute_dtype: _Dtype
    rms_row_ulps: Annotated[float, "RMS of the pair, row ULPs"]
    rounding_row_ulps: Annotated[float, "largest RMS that looks like rounding, row ULPs"]
    bug_row_ulps: Annotated[float, "RMS that rounding never comes near, row ULPs"]
    worst_position_ratio: Annotated[float, "largest RMS at one position over the median position"]
    position_ratio_allowed: Annotated[float, "largest such ratio of rounding"]
    positions_beyond: _Outliers
    flips_beyond_noise: Annotated[int, "flips beyond the noise"]
    first: _FirstPlace
    causes: Annotated[tuple[str, ...], "common causes"]


class RerunFigures(CheckFigures):
    """All but the first of a dump alone, whose reruns are uploaded."""

    not_repeatable: Annotated[tuple[str, ...], "sides that do not repeat"]
    rerun_rms_logits: Annotated[float | None, "RMS of the rerun to its first call, logits"] = None
    rerun_neq: Annotated[
        Mapping[str, int | None] | None,
        "logits that differ in the rerun, by side",
    ] = None
    rerun_noise_ratio: Annotated[float | None, "rerun / noise floor, RMS"] = None
    largest_ratio_allowed: Annotated[float | None, "its limit"] = None
    rerun_worst_position_ratio: _WorstRatio = None
    beyond_noise_floor: Annotated[bool | None, "the rerun differs by more than rounding"] = None
    rerun_row_ulps: Annotated[float | None, "largest difference of the rerun, row ULPs"] = None


class OtherPromptsFigures(CheckFigures, kw_only=True):
    """rows: of a model; neq, rms_logits: of a dump, uploaded again."""

    rows: Annotated[int | None, "rows in the batch"] = None
    bit_identical: Annotated[bool, "bit-identical"]
    neq: Annotated[int | None, "logits that differ"] = None
    rms_logits: Annotated[float | None, "RMS to the first call, logits"] = None


class OtherRowFigures(CheckFigures):
    rows: Annotated[int, "rows in the batch"]
    row: Annotated[int, "the row"]
    other_row: Annotated[int, "the other row"]
    bit_identical: Annotated[bool, "bit-identical"]


class OtherRowFloorFigures(OtherRowFigures):
    compute_dtype: _Dtype
    noise_ratio: Annotated[float | None, "RMS difference / noise floor"]
    worst_position_ratio: _WorstRatio
    positions_beyond: _Outliers
    nonfinite_mismatch: _Mismatches


class RatioFigures(CheckFigures):
    """A noise ratio and the dtype it was measured in, with which figures of several checks
    begin.
    """

    compute_dtype: _Dtype
    noise_ratio: Annotated[float | None, "RMS difference / noise floor"]


class PairFigures(RatioFigures):
    """A pair compared with its noise floor."""

    largest_ratio_allowed: _Limit
    pair_rms_logits: Annotated[float, "RMS of the pair, logits"]
    floor_rms_logits: Annotated[float, "RMS of the floor, logits"]
    seed_ratios: Annotated[
        tuple[float, ...],
        "RMS of each noise-floor forward / mean of the others",
    ]
    worst_position_ratio: _WorstRatio
    position_ratio_allowed: Annotated[float | None, "limit of the ratio at one position"]
    positions: _Positions
    positions_beyond: _Outliers
    log_spread: Annotated[float, "spread of log ratios (standard deviation)"]
    nonfinite_mismatch: _Mismatches
    linear_maps: Annotated[int | None, "linear layers with reordered reduction"] = None
    floor_row_ulps: Annotated[float | None, "99.9th percentile of the floor, row ULPs"] = None
    first_nonfinite: Annotated[
        tuple[int, int, int] | None,
        "first of them (prompt, position, token id)",
    ] = None


class NotFiniteFigures(RatioFigures):
    """A pair that needs no floor: one side holds a NaN or an infinity that the other has not."""

    nonfinite_mismatch: _Mismatches
    positions_beyond: Annotated[int, "positions with one"]
    first_nonfinite: Annotated[tuple[int, int, int], "first of them (prompt, position, token id)"]


class SingleLogitFigures(CheckFigures):
    """A logit that differs far more than the others at its position."""

    compute_dtype: _Dtype
    ratio_to_others: Annotated[float, "difference of the logit / RMS of the others at its position"]
    largest_ratio_allowed: _Limit
    positions_beyond: Annotated[int, "positions with such a logit"]
    first: Annotated[tuple[int, int], "first (prompt, position)"]
    token: Annotated[int, "token id of the first"]


class NarrowingFigures(CheckFigures):
    reference_to_float32_logits: Annotated[
        float,
        "RMS of the reference to itself in float32, logits",
    ]
    variant_to_float32_logits: Annotated[float, "RMS of the variant to itself in float32, logits"]
    worst_position_ratio: Annotated[
        float | None,
        "largest ratio of the two at one position over the median one",
    ] = None
    systematic_share: Annotated[float | None, "part of the error that goes with the logits"] = None


class FromModelFigures(CheckFigures):
    reference_noise_ratio: Annotated[float, "reference to the model, in noise floors"]
    variant_noise_ratio: Annotated[float, "variant to the model, in noise floors"]


class ListFloorFigures(RatioFigures):
    worst_position_ratio: Annotated[float, "largest ratio at one position"]
    reference_noise_ratio: Annotated[float, "reference to the model, in noise floors"]
    variant_noise_ratio: Annotated[float, "variant to the model, in noise floors"]


class DrawnFigures(RatioFigures, kw_only=True):
    """An engine's error against the model's float32 forward, compared with that of random
    roundings.
    """

    noise_ratio: Annotated[float | None, "RMS error / RMS error of rounding"]
    largest_ratio_allowed: _Limit
    draws: Annotated[int, "forwards with randomized rounding"]
    model_ways_ratios: Annotated[
        tuple[float, ...],
        "RMS error of the model's own paths / of these forwards, near 1",
    ]
    worst_position_ratio: _WorstRatio
    position_ratio_allowed: Annotated[float, "limit of the ratio at one position"]
    positions: _Positions
    positions_beyond: _Outliers
    nonfinite_mismatch: Annotated[int, "positions NaN or infinite, unlike in float32"]
    fault_seen_at_one_position: Annotated[
        float | None,
        "smallest detectable fault at one position, x rounding error",
    ] = None
    fault_seen_over_all: Annotated[float, "smallest detectable fault overall, x rounding error"]
    outliers: Annotated[Mapping[str, tuple[int, ...]], "outliers, by kind of place"] = (
        msgspec.field(name="beyond")
    )


class ShrinkFigures(CheckFigures):
    """A pair in float32 compared with the same pair in 16 bits, if no noise floor is available."""

    compute_dtype: _Dtype
    pair_rms_logits: Annotated[float, "RMS of the pair, logits"]
    own_dtype_rms_logits: Annotated[float, "RMS of the pair in its own dtype, logits"]
    times_smaller_in_float32: Annotated[float | None, "how many times smaller it is in float32"]
    times_finer_float32_is: Annotated[float, "how many times finer float32 is"]
    positions_that_move_in_own_dtype: Annotated[
        float,
        "share of positions that move in the own dtype too",
    ]
    worst_position_ratio: Annotated[float, "largest ratio at one position"]
    worst_position: Annotated[tuple[int, int], "(prompt, position) of it"]
    controls: Annotated[tuple[str, ...] | None, "controls that were given"] = msgspec.field(
        default=None,
        name="tried",
    )


class PrecisionsFigures(CheckFigures):
    noise_ratio: _Ratio
    precision: Annotated[str | None, "the precision"] = None
    share_left: Annotated[float | None, "share of the difference that remains"] = None


class ExplainedFigures(CheckFigures):
    """A side compared with the model in one lower precision, over that precision's own noise
    floor.
    """

    noise_ratio: _Ratio
    precision: Annotated[str, "the precision"]
    compute_dtype: _Dtype
    share_left: Annotated[float, "share of the difference that remains"]
    left_noise_ratio: Annotated[
        float | None,
        "what remains / that precision's own noise floor, RMS",
    ]
    worst_position_ratio: _WorstRatio
    position_ratio_allowed: Annotated[float, "limit of the ratio at one position"]
    positions_beyond: _Outliers
    left_noise_ratio_bfloat16: Annotated[float | None, "the same in bfloat16"] = None
    left_noise_ratio_float16: Annotated[float | None, "the same in float16"] = None


class DrawnPrecisionFigures(DrawnFigures, kw_only=True):
    """A side of 16 bits compared with the model in a lower precision and random roundings."""

    precision: Annotated[str, "the precision"]
    ratio_over_draws: Annotated[float, "error over that of randomized rounding"]


class SettingsFigures(CheckFigures):
    """A side of another engine with its settings at their widest."""

    noise_ratio: _Ratio
    settings: Annotated[tuple[str, ...], "settings that round coarser than float32"]
    widest_noise_ratio: Annotated[float, "RMS difference / noise floor with all at full precision"]
    bits: Annotated[int, "bits of the coarsest setting's significand"]
    share_of_rounding_in_bits: Annotated[
        float,
        "distance over that of the model with every product in so many bits",
    ]


class StructureFigures(CheckFigures, kw_only=True):
    positions: _Positions
    of: Annotated[int | None, "positions compared"] = None
    first: _FirstPlace
    starts: Annotated[tuple[int, ...], "positions at which outliers start"]
    block: Annotated[int | None, "block size"]
    is_tail: Annotated[bool, "continues to the end"]


class ModuleRoundingFigures(CheckFigures):
    """The modules of a side in 16 bits, each given identical inputs."""

    compute_dtype: _Dtype
    largest_ratio: Annotated[float, "largest RMS error of a module / RMS error of its rounding"]
    largest_ratio_allowed: _Limit
    modules_beyond: Annotated[tuple[str, ...], "modules that differ by more given identical inputs"]
    modules: Annotated[int, "modules"]
    score_scale: Annotated[float | None, "relative error of the attention scores' scale"] = None
    largest_score_scale_allowed: Annotated[float | None, "largest such error allowed"] = None


class AloneFigures(CheckFigures):
    """The modules of a side, each given what ran before it on that side."""

    largest_ratio_allowed: Annotated[float, "limit of the ratio, x the module's own rounding"]
    modules_beyond: Annotated[tuple[str, ...], "modules that differ by more given identical inputs"]
    largest_ratio_of_others: Annotated[float, "largest ratio of the others"]
    modules: Annotated[tuple[str, ...], "modules in execution order"]
    alone_rms: Annotated[
        tuple[float | None, ...],
        "RMS of the side to float64, in units of each module's output",
    ]
    own_rounding_rms: Annotated[
        tuple[float | None, ...],
        "RMS of the model's own float32 to float64, likewise",
    ]
    first_module: Annotated[str | None, "first of those that differ"] = None
    first: Annotated[tuple[int, int] | None, "first (prompt, position) at which one does"] = None
    kind: Annotated[str | None, "part of the blocks that errs like a lower precision"] = None
    blocks: Annotated[int | None, "blocks in which it does"] = None
    bits: Annotated[float | None, "approximate bits that it computes to"] = None


class Check(StrEnum):
    """Check that a row of evidence reports, in a few words, with its group and the record of its
    figures.
    """

    group: str
    record: type[CheckFigures]

    def __new__(
        cls,
        words: str,
        group: str = "",
        record: type[CheckFigures] = CheckFigures,
    ) -> Check:
        """Make a check from the words that are stored for it."""
        check = str.__new__(cls, words)
        check._value_, check.group, check.record = words, group, record
        return check

    SENT = "values that both sides sent", VALIDITY, SentFigures
    PLACEHOLDERS = "placeholders", VALIDITY, PlaceholderFigures
    CONTEXT = "tokens and texts", VALIDITY, ContextFigures
    GRID = "dtype that the values show", VALIDITY, GridFigures
    SHAPES = "shapes and tokens", VALIDITY, ShapesFigures
    SHIFT = "shift", VALIDITY, ShiftFigures
    LOGSUMEXP = "logits or probabilities", VALIDITY, LogsumexpFigures
    TRUNCATION = "truncation", VALIDITY, TruncationFigures
    NUMBERS = "NaN and infinity", VALIDITY, NumbersFigures
    EMITTED = "emitted tokens", SAMPLER, SamplerFigures
    ARRAYS_ALONE = "the arrays alone", SCREENING, ScreeningFigures
    AGAIN = "each side again", RERUN, RerunFigures
    OTHER_PROMPTS = "other prompts", NEIGHBOURS, OtherPromptsFigures
    OTHER_ROW = "another row", NEIGHBOURS, OtherRowFigures
    OTHER_ROW_FLOOR = "another row, against the floor", NEIGHBOURS, OtherRowFloorFigures
    SINGLE_LOGIT = "a single logit", OWN_DTYPE, SingleLogitFigures
    NARROWING = "each side against float32", OWN_DTYPE, NarrowingFigures
    FROM_MODEL = "each side against the model", OWN_DTYPE, FromModelFigures
    LIST_FLOOR = "the lists over a model's floor", OWN_DTYPE, ListFloorFigures
    OWN_PAIR = "the pair", OWN_DTYPE, PairFigures
    OWN_NOT_FINITE = "the pair, not finite", OWN_DTYPE, NotFiniteFigures
    DRAWN = "error against float32", OWN_DTYPE, DrawnFigures
    MODULE_ROUNDING = "each module in 16 bits", OWN_DTYPE, ModuleRoundingFigures
    WIDE_PAIR = "the widened pair", FLOAT32, PairFigures
    WIDE_NOT_FINITE = "the widened pair, not finite", FLOAT32, NotFiniteFigures
    SHRINK = "the pair in two precisions", FLOAT32, ShrinkFigures
    PRECISIONS = "precisions that engines offer", PRECISION, PrecisionsFigures
    EXPLAINED = "one lower precision", PRECISION, ExplainedFigures
    SETTINGS = "an engine's settings", PRECISION, SettingsFigures
    DRAWN_PRECISION = "one precision in 16 bits", PRECISION, DrawnPrecisionFigures
    OUTLIERS = "positions that stand out", STRUCTURE, StructureFigures
    DIFFERING = "positions that differ", STRUCTURE, StructureFigures
    ALONE = "each module alone", MODULES, AloneFigures


@dataclass(frozen=True)
class Evidence:
    """Row of evidence: a check, its control, figures, outcome, and a sentence on it.

    side: name of the one side that the row is about, None if it is about the pair.
    """

    check: Check
    control: str
    figures: CheckFigures
    outcome: str
    says: str
    side: str | None = None

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise UsageError(
                f"the outcome of a check is one of {', '.join(OUTCOMES)}, not"
                f" '{clean(self.outcome)}'",
            )
        if type(self.figures) not in (self.check.record, Unmeasured):
            raise UsageError(
                f"{type(self.figures).__name__} are no figures of the check '{self.check}'",
            )

    @property
    def group(self) -> str:
        """Group that the check belongs to."""
        return self.check.group

    @property
    def order(self) -> int:
        """Index of its group in `CHECK_GROUPS`."""
        return list(CHECK_GROUPS).index(self.group)

    def to_json(self) -> dict[str, Any]:
        """Return the row as an object of JSON."""
        return {
            "group": self.group,
            "check": self.check.value,
            "side": self.side,
            "control": self.control,
            "figures": self.figures.to_json(),
            "outcome": self.outcome,
            "says": self.says,
        }


@dataclass(frozen=True)
class Verdict:
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


def figures_of(check: Check, text: str) -> CheckFigures:
    """Return the record of a check from its figures in JSON; a newer build's figures that it lacks
    are left out.

    Raises:
        UsageError: figures of another check.
    """
    try:
        values = msgspec.json.decode(text, type=dict[str, Any])
        record = Unmeasured if values.keys() <= labels_of(Unmeasured).keys() else check.record
        return msgspec.convert(values, record)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(
            f"the figures of the check '{check}' cannot be read ({clean(error)})",
        ) from error


@cache
def labels_of(record: type[CheckFigures]) -> dict[str, str]:
    """Labels of a record's figures, by their keys in JSON."""
    hints = get_type_hints(record, include_extras=True)
    return {each.encode_name: get_args(hints[each.name])[1] for each in structs.fields(record)}
