"""Evidence of a verdict: the rungs of the ladder, the checks that each has, and one frozen record of figures a check.

A figure's label and unit are declared with its field. Pages, JSON, the run file and the table in docs/verdict.md read
them there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING as NOTHING
from dataclasses import Field, dataclass, field, fields
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from ...errors import UsageError
from ...text import shown

PASSED, FAILED, MISSING, NOTED = "passed", "failed", "missing", "noted"
OUTCOMES = (PASSED, FAILED, MISSING, NOTED)

VALIDITY, SAMPLER, SCREENING = "validity", "sampler", "screening"
RERUN, NEIGHBOURS = "rerun", "neighbours"
OWN_DTYPE, FLOAT32, PRECISION, SYMMETRY = "own dtype", "float32", "precision", "symmetry"
STRUCTURE, MODULES, ONE_ORDER = "structure", "modules", "one order"
RUNGS = {  # in the order of the ladder, with their titles
    VALIDITY: "Dump validity",
    SAMPLER: "Sampler",
    SCREENING: "Screening",
    RERUN: "Rerun",
    NEIGHBOURS: "Neighbours",
    OWN_DTYPE: "Own dtype",
    FLOAT32: "float32 microscope",
    PRECISION: "Lower precision",
    SYMMETRY: "Error symmetry",
    STRUCTURE: "Structure over positions",
    MODULES: "Structure over modules",
    ONE_ORDER: "Every sum in one order",
}


def figure(label: str, *, key: str = "", default: Any = NOTHING) -> Any:
    """Field of a figure. label: what it is, with its unit; key: its name in JSON where that is not the field's.

    A figure is written to JSON as null where it has no value; one whose default is None is left out there.
    """
    return field(default=default, metadata={"label": label, "key": key})


# Labels of figures that several checks have.
_DTYPE = "dtype"
_NOISE_RATIO = "noise ratio: pair over floor, rms over rms"
_LARGEST_RATIO = "largest noise ratio of rounding"
_PAIR_RMS = "rms of the pair, logits"
_WORST = "largest ratio at one position"
_WORST_ALLOWED = "largest ratio of rounding at one position"
_POSITIONS = "positions"
_BEYOND = "positions beyond it"
_MISMATCH = "logits NaN or infinite on one side only"
_FIRST = "first (prompt, position)"
_FIRST_MISMATCH = "first of them (prompt, position, token id)"
_IDENTICAL = "bit-identical"
_ROWS = "rows in the batch"
_DIFFERING = "logits that differ"
_PRECISION = "the precision"
_SHARE_LEFT = "share of the distance that it leaves"
_TRIED = "controls that were given"


@dataclass(frozen=True, kw_only=True)
class CheckFigures:
    """Figures of one check, which check themselves: the file they come from may be anybody's."""

    def __post_init__(self) -> None:
        kinds = _kinds(type(self))  # type: ignore[arg-type] # a class can be hashed, whatever the hash of its records
        for each in fields(self):
            try:
                value = _of_kind(getattr(self, each.name), kinds[each.name])
            except UsageError as error:
                raise UsageError(f"the figure '{_key(each)}' is {error}") from error
            object.__setattr__(self, each.name, value)

    def present(self) -> list[tuple[str, str, Any]]:
        """Every figure there is: its key in JSON, its label and its value."""
        found = [(each, getattr(self, each.name)) for each in fields(self)]
        return [
            (_key(each), each.metadata["label"], value)
            for each, value in found
            if value is not None or each.default is NOTHING
        ]

    def to_json(self) -> dict[str, Any]:
        """The figures as an object of JSON."""
        return {key: value for key, _, value in self.present()}


@dataclass(frozen=True, kw_only=True)
class Unmeasured(CheckFigures):
    """Figures of a check that could not be made: the controls that were tried, the dtype that stands in the way."""

    tried: tuple[str, ...] | None = figure(_TRIED, default=None)
    computes_in: Mapping[str, str] | None = figure("computes in, whatever it is asked", default=None)


@dataclass(frozen=True, kw_only=True)
class ShapesFigures(CheckFigures):
    positions: int = figure(_POSITIONS)
    vocab: int = figure("vocabulary")
    highest_token_id: int | None = figure("highest token id")


@dataclass(frozen=True, kw_only=True)
class SentFigures(CheckFigures):
    """What servers sent of their rows."""

    positions: int = figure("positions at which both sides sent a row of equal context")
    values: int = figure("values that both sides sent")
    neq: int = figure("of them, values that differ")
    flips: int = figure("flips")


@dataclass(frozen=True, kw_only=True)
class PlaceholderFigures(CheckFigures):
    kind: str = figure("kind of placeholder")
    tokens: int = figure("tokens with one")
    of: int = figure("tokens in all")


@dataclass(frozen=True, kw_only=True)
class ContextFigures(CheckFigures):
    prompts: int = figure("prompts")


@dataclass(frozen=True, kw_only=True)
class GridFigures(CheckFigures):
    formats: tuple[str, ...] = figure("formats that hold all values")


@dataclass(frozen=True, kw_only=True)
class ShiftFigures(CheckFigures):
    """Share of the positions at which the argmax is the same."""

    unshifted: float = figure("same argmax as they stand", key="same_argmax_shifted_by_0")
    two_earlier: float = figure("the variant read 2 rows earlier", key="same_argmax_shifted_by_-2")
    one_earlier: float = figure("the variant read 1 row earlier", key="same_argmax_shifted_by_-1")
    one_later: float = figure("the variant read 1 row later", key="same_argmax_shifted_by_1")
    two_later: float = figure("the variant read 2 rows later", key="same_argmax_shifted_by_2")


@dataclass(frozen=True, kw_only=True)
class LogsumexpFigures(CheckFigures):
    reference_least_logsumexp: float | None = figure("least logsumexp of the reference, nats")
    reference_largest_logsumexp: float | None = figure("largest logsumexp of the reference, nats")
    variant_least_logsumexp: float | None = figure("least logsumexp of the variant, nats")
    variant_largest_logsumexp: float | None = figure("largest logsumexp of the variant, nats")


@dataclass(frozen=True, kw_only=True)
class TruncationFigures(CheckFigures):
    reference_filled_rows: int = figure("rows of the reference that one value fills")
    variant_filled_rows: int = figure("rows of the variant that one value fills")
    least_other_logits: int | None = figure("least number of other logits in such a row")


@dataclass(frozen=True, kw_only=True)
class NumbersFigures(CheckFigures):
    nonfinite_mismatch: int = figure(_MISMATCH)
    positions: int = figure("positions with one")
    first: tuple[int, int] | None = figure(_FIRST)
    token: int | None = figure("token id of the first", default=None)


@dataclass(frozen=True, kw_only=True)
class SamplerFigures(CheckFigures):
    tokens: int = figure("emitted tokens")
    not_the_argmax: int = figure("tokens that are not the argmax")
    first: int | None = figure("first of them, counted among the emitted tokens")


@dataclass(frozen=True, kw_only=True)
class ScreeningFigures(CheckFigures):
    compute_dtype: str = figure(_DTYPE)
    rms_row_ulps: float = figure("rms of the pair, row ULPs")
    rounding_row_ulps: float = figure("largest rms that looks like rounding, row ULPs")
    bug_row_ulps: float = figure("rms that rounding never comes near, row ULPs")
    worst_position_ratio: float = figure("largest rms at one position over the median position")
    position_ratio_allowed: float = figure("largest such ratio of rounding")
    positions_beyond: int = figure("positions that stand out")
    flips_beyond_noise: int = figure("flips beyond the noise")
    first: tuple[int, int] | None = figure(_FIRST)
    causes: tuple[str, ...] = figure("simple causes")


@dataclass(frozen=True, kw_only=True)
class RerunFigures(CheckFigures):
    """All but the first of a dump alone, whose reruns are uploaded."""

    not_repeatable: tuple[str, ...] = figure("sides that do not repeat")
    called_again: tuple[str, ...] | None = figure("sides called again", default=None)
    pair_rms_logits: float | None = figure(_PAIR_RMS, default=None)
    rerun_rms_logits: float | None = figure("rms of the rerun to its first call, logits", default=None)
    rerun_neq: Mapping[str, int | None] | None = figure("logits that differ in the rerun, by side", default=None)
    rerun_noise_ratio: float | None = figure("rerun over the noise floor, rms over rms", default=None)
    largest_ratio_allowed: float | None = figure(_LARGEST_RATIO, default=None)
    rerun_worst_position_ratio: float | None = figure(_WORST, default=None)
    beyond_noise_floor: bool | None = figure("the rerun differs by more than rounding", default=None)
    rerun_row_ulps: float | None = figure("largest difference of the rerun, row ULPs", default=None)


@dataclass(frozen=True, kw_only=True)
class OtherPromptsFigures(CheckFigures):
    """rows: of a model; neq, rms_logits: of a dump, uploaded again."""

    rows: int | None = figure(_ROWS, default=None)
    bit_identical: bool = figure(_IDENTICAL)
    neq: int | None = figure(_DIFFERING, default=None)
    rms_logits: float | None = figure("rms to the first call, logits", default=None)


@dataclass(frozen=True, kw_only=True)
class OtherRowFigures(CheckFigures):
    rows: int = figure(_ROWS)
    row: int = figure("the row")
    other_row: int = figure("the other row")
    bit_identical: bool = figure(_IDENTICAL)


@dataclass(frozen=True, kw_only=True)
class OtherRowFloorFigures(OtherRowFigures):
    compute_dtype: str = figure(_DTYPE)
    noise_ratio: float | None = figure(_NOISE_RATIO)
    worst_position_ratio: float | None = figure(_WORST)
    positions_beyond: int = figure(_BEYOND)
    nonfinite_mismatch: int = figure(_MISMATCH)


@dataclass(frozen=True, kw_only=True)
class RatioFigures(CheckFigures):
    """A noise ratio and the dtype it was measured in, with which figures of several checks begin."""

    compute_dtype: str = figure(_DTYPE)
    noise_ratio: float | None = figure(_NOISE_RATIO)


@dataclass(frozen=True, kw_only=True)
class PairFigures(RatioFigures):
    """A pair beside its rounding floor."""

    largest_ratio_allowed: float = figure(_LARGEST_RATIO)
    pair_rms_logits: float = figure(_PAIR_RMS)
    floor_rms_logits: float = figure("rms of the floor, logits")
    seed_ratios: tuple[float, ...] = figure("each reordering over the others")
    worst_position_ratio: float | None = figure(_WORST)
    position_ratio_allowed: float | None = figure(_WORST_ALLOWED)
    positions: int = figure(_POSITIONS)
    positions_beyond: int = figure(_BEYOND)
    log_spread: float = figure("spread of log ratios (standard deviation)")
    nonfinite_mismatch: int = figure(_MISMATCH)
    linear_maps: int | None = figure("linear maps reordered", default=None)
    floor_row_ulps: float | None = figure("99.9th percentile of the floor, row ULPs", default=None)
    first_nonfinite: tuple[int, int, int] | None = figure(_FIRST_MISMATCH, default=None)


@dataclass(frozen=True, kw_only=True)
class NotFiniteFigures(RatioFigures):
    """A pair that needs no floor: one side holds a NaN or an infinity that the other has not."""

    nonfinite_mismatch: int = figure(_MISMATCH)
    positions_beyond: int = figure("positions with one")
    first_nonfinite: tuple[int, int, int] = figure(_FIRST_MISMATCH)


@dataclass(frozen=True, kw_only=True)
class NarrowingFigures(CheckFigures):
    reference_to_float32_logits: float = figure("rms of the reference to itself in float32, logits")
    variant_to_float32_logits: float = figure("rms of the variant to itself in float32, logits")


@dataclass(frozen=True, kw_only=True)
class FromModelFigures(CheckFigures):
    reference_noise_ratio: float = figure("reference to the model, in rounding floors")
    variant_noise_ratio: float = figure("variant to the model, in rounding floors")


@dataclass(frozen=True, kw_only=True)
class ListFloorFigures(RatioFigures):
    worst_position_ratio: float = figure(_WORST)
    reference_noise_ratio: float = figure("reference to the model, in rounding floors")
    variant_noise_ratio: float = figure("variant to the model, in rounding floors")


@dataclass(frozen=True, kw_only=True)
class DrawnFigures(RatioFigures):
    """An engine's error against the model's float32 forward, beside that of roundings drawn anew."""

    noise_ratio: float = figure(_NOISE_RATIO)
    largest_ratio_allowed: float = figure(_LARGEST_RATIO)
    draws: int = figure("forwards with roundings drawn anew")
    model_ways_ratios: tuple[float, ...] = figure("the model's own ways over the draws")
    worst_position_ratio: float = figure(_WORST)
    position_ratio_allowed: float = figure(_WORST_ALLOWED)
    positions: int = figure(_POSITIONS)
    positions_beyond: int = figure(_BEYOND)
    ratio_outside_roundings_directions: float | None = figure("ratio outside the directions of rounding")
    nonfinite_mismatch: int = figure(_MISMATCH)
    fault_seen_at_one_position: float | None = figure("smallest fault seen at one position, in roundings", default=None)
    fault_seen_at_a_place_in_all_prompts: float | None = figure("at one place in all prompts", default=None)
    fault_seen_of_one_prompt: float | None = figure("over one prompt", default=None)
    fault_seen_of_one_token: float | None = figure("of one token", default=None)
    fault_seen_over_all: float = figure("over all positions")
    fault_seen_of_one_sign: float | None = figure("of one sign over the prompts", default=None)
    fault_seen_of_one_token_and_sign: float | None = figure("of one token and sign over the prompts", default=None)
    beyond: Mapping[str, tuple[int, ...]] = figure("what stands out")
    signed_mean: float | None = figure("mean error left over the prompts, in roundings")
    signed_mean_allowed: float = figure("largest of rounding")
    share_of_logits: float | None = figure("mean error as a share of the logits")
    share_of_logits_allowed: float = figure("largest share of rounding")


@dataclass(frozen=True, kw_only=True)
class ShrinkFigures(CheckFigures):
    """A pair in float32 beside the same in 16 bits, where no floor is to be had."""

    compute_dtype: str = figure(_DTYPE)
    pair_rms_logits: float = figure(_PAIR_RMS)
    own_dtype_rms_logits: float = figure("rms of the pair in its own dtype, logits")
    times_smaller_in_float32: float | None = figure("how many times smaller it is in float32")
    times_finer_float32_is: float = figure("how many times finer float32 is")
    positions_that_move_in_own_dtype: float = figure("share of positions that move in the own dtype too")
    worst_position_ratio: float = figure(_WORST)
    worst_position: tuple[int, int] = figure("(prompt, position) of it")
    tried: tuple[str, ...] | None = figure(_TRIED, default=None)


@dataclass(frozen=True, kw_only=True)
class OnlyInFloat32Figures(CheckFigures):
    neq: int | None = figure(_DIFFERING)
    pair_rms_logits: float = figure(_PAIR_RMS)


@dataclass(frozen=True, kw_only=True)
class PrecisionsFigures(CheckFigures):
    noise_ratio: float = figure(_NOISE_RATIO)
    precision: str | None = figure(_PRECISION, default=None)
    share_left: float | None = figure(_SHARE_LEFT, default=None)


@dataclass(frozen=True, kw_only=True)
class ExplainedFigures(CheckFigures):
    """A side beside the model in one lower precision, over that precision's own floor."""

    noise_ratio: float = figure(_NOISE_RATIO)
    precision: str = figure(_PRECISION)
    compute_dtype: str = figure(_DTYPE)
    share_left: float = figure(_SHARE_LEFT)
    left_noise_ratio: float | None = figure("what it leaves over its own floor, rms over rms")
    worst_position_ratio: float | None = figure(_WORST)
    position_ratio_allowed: float = figure(_WORST_ALLOWED)
    positions_beyond: int = figure(_BEYOND)
    left_noise_ratio_bfloat16: float | None = figure("the same in bfloat16", default=None)
    left_noise_ratio_float16: float | None = figure("the same in float16", default=None)


@dataclass(frozen=True, kw_only=True)
class DrawnPrecisionFigures(DrawnFigures):
    """A side of 16 bits beside the model in a lower precision, whose roundings are drawn anew."""

    precision: str = figure(_PRECISION)
    ratio_over_draws: float = figure("error over that of rounding drawn anew")


@dataclass(frozen=True, kw_only=True)
class SettingsFigures(CheckFigures):
    """A side of another engine with its settings at their widest, and with each alone as it is."""

    noise_ratio: float = figure(_NOISE_RATIO)
    settings: tuple[str, ...] = figure("settings that round coarser than float32")
    setting_noise_ratios: tuple[float, ...] = figure("noise ratio of each alone, the others at their widest")
    widest_noise_ratio: float = figure("noise ratio with all at their widest")
    bits: int = figure("bits of the coarsest setting's significand")
    share_of_rounding_in_bits: float = figure("distance over that of the model with every product in so many bits")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.settings) != len(self.setting_noise_ratios):
            raise UsageError("the figures 'settings' and 'setting_noise_ratios' are of different lengths")


@dataclass(frozen=True, kw_only=True)
class SymmetryFigures(CheckFigures):
    reference_rms_logits: float = figure("rms of the reference to float64, logits")
    variant_rms_logits: float = figure("rms of the variant to float64, logits")


@dataclass(frozen=True, kw_only=True)
class StructureFigures(CheckFigures):
    positions: int = figure(_POSITIONS)
    of: int | None = figure("positions looked at", default=None)
    first: tuple[int, int] | None = figure(_FIRST)
    starts: tuple[int, ...] = figure("positions at which it begins")
    block: int | None = figure("block size")
    smaller_block: int | None = figure("smaller block size that is not ruled out")
    is_tail: bool = figure("goes on to the end")


@dataclass(frozen=True, kw_only=True)
class ModulesFigures(CheckFigures):
    compute_dtype: str = figure(_DTYPE)
    first_module: str | None = figure("module at which it leaves the floor")
    modules: tuple[str, ...] = figure("modules as they run")
    pair_rms: tuple[float | None, ...] = figure("rms of the pair, in units of each module's output")
    floor_rms: tuple[float | None, ...] = figure("rms of the floor, in units of each module's output")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.modules) == len(self.pair_rms) == len(self.floor_rms):
            raise UsageError("the figures 'modules', 'pair_rms' and 'floor_rms' are of different lengths")


@dataclass(frozen=True, kw_only=True)
class AloneFigures(CheckFigures):
    """The modules of a side, each given what ran before it on that side."""

    largest_ratio_allowed: float = figure("largest ratio of rounding, to a module's own")
    modules_beyond: tuple[str, ...] = figure("modules that alone differ by more")
    largest_ratio_of_others: float = figure("largest ratio of the others")
    modules: tuple[str, ...] = figure("modules as they run")
    alone_rms: tuple[float | None, ...] = figure("rms of the side to float64, in units of each module's output")
    own_rounding_rms: tuple[float | None, ...] = figure("rms of the model's own float32 to float64, likewise")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.modules) == len(self.alone_rms) == len(self.own_rounding_rms):
            raise UsageError("the figures 'modules', 'alone_rms' and 'own_rounding_rms' are of different lengths")


@dataclass(frozen=True, kw_only=True)
class OneOrderFigures(CheckFigures):
    compute_dtype: str = figure(_DTYPE)
    bit_identical: bool = figure(_IDENTICAL)


class Check(StrEnum):
    """Check that a row of evidence reports, in a few words, with its rung and the record of its figures."""

    rung: str
    record: type[CheckFigures]

    def __new__(cls, words: str, rung: str = "", record: type[CheckFigures] = CheckFigures) -> Check:
        check = str.__new__(cls, words)
        check._value_, check.rung, check.record = words, rung, record
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
    NARROWING = "each side against float32", OWN_DTYPE, NarrowingFigures
    FROM_MODEL = "each side against the model", OWN_DTYPE, FromModelFigures
    LIST_FLOOR = "the lists over a model's floor", OWN_DTYPE, ListFloorFigures
    OWN_PAIR = "the pair", OWN_DTYPE, PairFigures
    OWN_NOT_FINITE = "the pair, not finite", OWN_DTYPE, NotFiniteFigures
    DRAWN = "error against float32", OWN_DTYPE, DrawnFigures
    UPLOADED_FLOOR = "the uploaded floor", FLOAT32, Unmeasured
    WIDE_PAIR = "the widened pair", FLOAT32, PairFigures
    WIDE_NOT_FINITE = "the widened pair, not finite", FLOAT32, NotFiniteFigures
    SHRINK = "the pair in two precisions", FLOAT32, ShrinkFigures
    ONLY_IN_FLOAT32 = "the pair in float32 alone", FLOAT32, OnlyInFloat32Figures
    PRECISIONS = "precisions that engines offer", PRECISION, PrecisionsFigures
    EXPLAINED = "one lower precision", PRECISION, ExplainedFigures
    SETTINGS = "an engine's settings", PRECISION, SettingsFigures
    DRAWN_PRECISION = "one precision in 16 bits", PRECISION, DrawnPrecisionFigures
    FROM_FLOAT64 = "error against float64", SYMMETRY, SymmetryFigures
    OUTLIERS = "positions that stand out", STRUCTURE, StructureFigures
    DIFFERING = "positions that differ", STRUCTURE, StructureFigures
    GROWTH = "outputs of modules", MODULES, ModulesFigures
    ALONE = "each module alone", MODULES, AloneFigures
    IN_ONE_ORDER = "sums in one order", ONE_ORDER, OneOrderFigures


@dataclass(frozen=True)
class Evidence:
    """Row of evidence: what was checked, what was run for it, its figures, how it came out, and what that says.

    side: name of the one side that the row is about, None where it is about the pair.
    """

    check: Check
    control: str
    figures: CheckFigures
    outcome: str
    says: str
    side: str | None = None

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise UsageError(f"the outcome of a check is one of {', '.join(OUTCOMES)}, not '{shown(self.outcome)}'")
        if type(self.figures) not in (self.check.record, Unmeasured):
            raise UsageError(f"{type(self.figures).__name__} are no figures of the check '{self.check}'")

    @property
    def rung(self) -> str:
        """Rung of the ladder that the check is on."""
        return self.check.rung

    @property
    def height(self) -> int:
        """Index of its rung, from the first of the ladder."""
        return list(RUNGS).index(self.rung)

    def to_json(self) -> dict[str, Any]:
        """The row as an object of JSON."""
        return {
            "rung": self.rung,
            "check": self.check.value,
            "side": self.side,
            "control": self.control,
            "figures": self.figures.to_json(),
            "outcome": self.outcome,
            "says": self.says,
        }


def figures_of(check: Check, given: object) -> CheckFigures:
    """The record of a check from its figures in JSON, or that of a check that was not measured. UsageError for figures
    of anything else; one that may be null may be left out.
    """
    if not isinstance(given, Mapping):
        raise UsageError("figures are no object of JSON")
    unmeasured = _names(Unmeasured)
    record, names = (
        (Unmeasured, unmeasured) if given.keys() <= unmeasured.keys() else (check.record, _names(check.record))
    )
    unknown = next((key for key in given if key not in names), None)
    if unknown is not None:
        raise UsageError(f"'{shown(unknown)}' is no figure of the check '{check}'")
    return record(**{name: given.get(key) for key, name in names.items()})


def documented() -> str:
    """The table of docs/verdict.md: every check with its rung and figures."""
    rows = [
        f"| {check.rung} | {check} | "
        + "; ".join(f"`{_key(each)}`: {each.metadata['label']}" for each in fields(check.record))
        + " |"
        for check in Check
    ]
    return "\n".join(["| rung | check | figures |", "|---|---|---|", *rows])


@cache
def _kinds(record: Any) -> dict[str, Any]:
    """Types of the record's fields."""
    return get_type_hints(record)


def _names(record: Any) -> dict[str, str]:
    """Names of the record's fields, by their keys in JSON."""
    return {_key(each): each.name for each in fields(record)}


def _key(each: Field[Any]) -> str:
    return each.metadata["key"] or each.name


def _of_kind(value: Any, kind: Any) -> Any:
    """The value where it is of this type, lists as tuples; UsageError where it is not, or cannot be computed with."""
    parts = get_args(kind)
    if isinstance(kind, UnionType):  # one type or None
        return None if value is None else _of_kind(value, parts[0])
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        kinds = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        if len(kinds) == len(value):
            return tuple(_of_kind(*each) for each in zip(value, kinds, strict=True))
    elif get_origin(kind) is Mapping and isinstance(value, Mapping):
        return {_of_kind(key, parts[0]): _of_kind(each, parts[1]) for key, each in value.items()}
    elif kind in (bool, str) and isinstance(value, kind):
        return value
    elif kind in (int, float) and not isinstance(value, bool) and isinstance(value, int):
        if abs(value) < 1 << 63:
            return value
    elif kind is float and isinstance(value, float) and math.isfinite(value):
        return value
    raise UsageError(f"{shown(repr(value))}, which is no {getattr(kind, '__name__', kind)}")
