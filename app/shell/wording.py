"""Figures and tokens as people read them. No Streamlit here."""

from __future__ import annotations

from collections.abc import Iterable

from core.runs.file.records import (
    BUG_SUSPECTED,
    IDENTICAL,
    INVALID_DUMP,
    LOWER_PRECISION,
    NONDETERMINISTIC,
    NOT_JUDGED,
    ROUNDING,
    UNDECIDED,
)
from core.runs.store.cards import RunCard
from core.text import exact, number, percent, visible

MEASURES = {"neq_share": "share that differs", "max_ulps": "max ULPs", "rms": "rms difference"}
# A verdict and the colour of its label, gravest first. A name a newer version wrote is grey.
VERDICTS = {
    BUG_SUSPECTED: "red",
    INVALID_DUMP: "violet",
    NONDETERMINISTIC: "orange",
    UNDECIDED: "gray",
    NOT_JUDGED: "gray",
    LOWER_PRECISION: "yellow",
    ROUNDING: "blue",
    IDENTICAL: "green",
}
RUNGS = {
    "validity": "Dump validity",
    "sampler": "Sampler",
    "rerun": "Rerun",
    "neighbours": "Neighbours",
    "own dtype": "Own dtype",
    "float32": "float32 microscope",
    "precision": "Lower precision",
    "symmetry": "Error symmetry",
    "structure": "Structure over positions",
    "modules": "Structure over modules",
    "one order": "Every sum in one order",
}
FIGURES = {
    "compute_dtype": "dtype",
    "noise_ratio": "noise ratio: pair over floor, rms over rms",
    "largest_ratio_allowed": "largest noise ratio of rounding",
    "pair_rms_logits": "rms of the pair, logits",
    "floor_rms_logits": "rms of the floor, logits",
    "seed_ratios": "each reordering over the others",
    "linear_maps": "linear maps reordered",
    "draws": "forwards with roundings drawn anew",
    "model_ways_ratios": "the model's own ways over the draws",
    "fault_seen_at_one_position": "smallest fault seen at one position, in roundings",
    "fault_seen_at_a_place_in_all_prompts": "at one place in all prompts",
    "fault_seen_of_one_prompt": "over one prompt",
    "fault_seen_of_one_token": "of one token",
    "fault_seen_over_all": "over all positions",
    "fault_seen_of_one_sign": "of one sign over the prompts",
    "fault_seen_of_one_token_and_sign": "of one token and sign over the prompts",
    "beyond": "what stands out",
    "signed_mean": "mean error left over the prompts, in roundings",
    "signed_mean_allowed": "largest of rounding",
    "share_of_logits": "mean error as a share of the logits",
    "share_of_logits_allowed": "largest share of rounding",
    "computes_in": "computes in, whatever it is asked",
    "worst_position_ratio": "largest ratio at one position",
    "position_ratio_allowed": "largest ratio of rounding at one position",
    "positions_beyond": "positions beyond it",
    "log_spread": "spread of log ratios (standard deviation)",
    "nonfinite_mismatch": "logits NaN or infinite on one side only",
    "reference_rms_logits": "rms of the reference to float64, logits",
    "variant_rms_logits": "rms of the variant to float64, logits",
    "not_repeatable": "sides that do not repeat",
    "rows": "rows in the batch",
    "bit_identical": "bit-identical",
    "first": "first (prompt, position)",
    "starts": "positions at which it begins",
    "block": "block size",
    "is_tail": "goes on to the end",
    "first_module": "module at which it leaves the floor",
    "first_nonfinite": "first of them (prompt, position, token id)",
    "tried": "controls that were given",
    "precision": "the precision",
    "share_left": "share of the distance that it leaves",
    "left_noise_ratio": "what it leaves over its own floor, rms over rms",
    "ratio_over_draws": "error over that of rounding drawn anew",
    "token": "token id of the first",
    "other_row": "the other row",
    "of": "of",
    "vocab": "vocabulary",
    "highest_token_id": "highest token id",
    "reference_least_logsumexp": "least logsumexp of the reference, nats",
    "reference_largest_logsumexp": "largest logsumexp of the reference, nats",
    "variant_least_logsumexp": "least logsumexp of the variant, nats",
    "variant_largest_logsumexp": "largest logsumexp of the variant, nats",
    "reference_filled_rows": "rows of the reference that one value fills",
    "variant_filled_rows": "rows of the variant that one value fills",
    "least_other_logits": "least number of other logits in such a row",
    "same_argmax_shifted_by_0": "same argmax as they stand",
    "same_argmax_shifted_by_-2": "the variant read 2 rows earlier",
    "same_argmax_shifted_by_-1": "the variant read 1 row earlier",
    "same_argmax_shifted_by_1": "the variant read 1 row later",
    "same_argmax_shifted_by_2": "the variant read 2 rows later",
    "rerun_rms_logits": "rms of the rerun to its first call, logits",
    "rerun_neq": "logits that differ in the rerun, by side",
    "called_again": "sides called again",
    "rms_logits": "rms to the first call, logits",
    "neq": "logits that differ",
    "own_dtype_rms_logits": "rms of the pair in its own dtype, logits",
    "times_smaller_in_float32": "how many times smaller it is in float32",
    "times_finer_float32_is": "how many times finer float32 is",
    "positions_that_move_in_own_dtype": "share of positions that move in the own dtype too",
    "worst_position": "(prompt, position) of it",
    "not_the_argmax": "tokens that are not the argmax",
    "reference_noise_ratio": "reference to the model, in rounding floors",
    "variant_noise_ratio": "variant to the model, in rounding floors",
}
# What a row of evidence checked, by a figure that only such rows of its rung have: a rung may have several, and their
# controls are sentences.
CHECKED = {
    "validity": {
        "highest_token_id": "shapes and tokens",
        "same_argmax_shifted_by_0": "shift",
        "reference_least_logsumexp": "logits or probabilities",
        "nonfinite_mismatch": "NaN and infinity",
        "reference_filled_rows": "truncation",
        "cause": "temperature",
    },
    "neighbours": {"other_row": "another row", "rows": "other prompts"},
    "own dtype": {"draws": "error against float32", "seed_ratios": "the pair"},
}


def token(token_id: int | None, text: str | None) -> str:
    """`·self  (301)`, or `token 301` where the text is unknown, or `none (all NaN)` for a side that is all NaN."""
    if token_id is None or token_id != token_id:
        return "none (all NaN)"
    return f"{visible(text)}  ({int(token_id)})" if text is not None else f"token {int(token_id)}"


def opening(sentence: str) -> str:
    """The sentence with a capital at the beginning."""
    return sentence[:1].upper() + sentence[1:]


def kinds(names: Iterable[str]) -> str:
    """Words for the kinds: `keys`, `keys and values`."""
    return " and ".join(f"{name}s" for name in names)


def logit(value: float | None) -> str:
    """Text of a logit of a pair, which may be undefined."""
    return "undefined" if value is None or value != value else exact(value)


def model_name(model: str) -> str:
    """The last part of a folder or hub id."""
    return model.rstrip("/").rsplit("/", 1)[-1]


def outcome(card: RunCard) -> str:
    """The share of logits that differ in a run's worst pair, in a few words for the gallery."""
    if card.nonfinite_mismatch:
        return "NaN or infinity"
    return "bit-identical" if card.pairs == card.bit_identical_pairs else percent(card.max_neq_share)


def verdicts(card: RunCard) -> list[str]:
    """The verdicts of a run's pairs, each once, the gravest first."""
    return [name for name in VERDICTS if name in card.pair_verdicts] + sorted(set(card.pair_verdicts) - set(VERDICTS))


def figure(value: object) -> str:
    """Text of one figure of a row of evidence, whatever JSON it is."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, list):
        return ", ".join(figure(part) for part in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {figure(part)}" for name, part in value.items()) or "none"
    return str(value)


def checked(rung: str, figures: Iterable[str]) -> str:
    """Word or two on what a row of evidence of this rung with these figures checked; nothing where they do not tell."""
    names = set(figures)
    return next((said for figure, said in CHECKED.get(rung, {}).items() if figure in names), "")


def figure_name(key: str) -> str:
    """Name of a figure of a row of evidence, with its unit."""
    return FIGURES.get(key, key.replace("_", " "))
