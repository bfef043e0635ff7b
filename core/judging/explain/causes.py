"""All causes in one list, and the search over it.

To add one: a function that fits it to half of the rows (`fits.py`) or sees it (`signs.py`), a line
here, and a planted cause in `benchmarks/verdicts/causes.py`. It raises `TooFewError` if the pair
lacks what it needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...cause import Cause
from ...responses.pairing import ResponsePair
from ...responses.placeholders import MASKED
from ...responses.records import ResponseSide
from ...text import opening, plural
from . import fits, signs
from .rows import PairRows, TooFewError, rows_of_lists
from .scoring import Find, remaining_rms

OF_VALUES = (fits.temperature, fits.constant_offset, fits.soft_capping, fits.rounded_logits)
OF_TOKENS = (fits.penalty, fits.logit_bias)
OBSERVED = (
    *(signs.misaligned_rows, signs.masks_and_padding, signs.renormalization),
    *(signs.upcast_values, signs.other_token_ids, signs.single_values),
    signs.sampler,
)
_VALUES = {"temperature", "constant", "soft-capping", "rounded"}
_TOKENS = {"penalty", "logit bias"}
_MOVED = {"shifted rows", "other rows", "repeated rows"}
# What another cause brings with it: if that is claimed, this says nothing more.
_IMPLIED_BY = {
    **dict.fromkeys(_VALUES | _TOKENS, _MOVED),
    "sampler": {"shifted rows"},
    "repeated rows": {"shifted rows"},
    "other rows": {"shifted rows"},
    "logit bias": {"penalty", *_MOVED},
    "upcast": _VALUES | _TOKENS,
}


@dataclass(frozen=True)
class Explanation:
    """Causes that are claimed of a pair, those that explain most first, then signs. says: what was
    looked at and what there was too little of, '' for equal sides.
    """

    causes: list[Cause]
    says: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"causes": [cause.to_json() for cause in self.causes], "looked_at": self.says}


def explain(pair: PairRows) -> Explanation:
    """Look for every cause for which a pair has enough rows and values."""
    looked_for = []
    missing: dict[str, list[str]] = {}  # what there was too little of -> causes that need it

    def look_for(finds: Sequence[Find], pair: PairRows) -> list[Cause]:
        causes: list[Cause] = []
        for find in finds:
            name = find.__name__.replace("_", " ")
            try:
                causes += find(pair)
                looked_for.append(name)
            except TooFewError as error:
                missing.setdefault(str(error), []).append(name)
        return causes

    # A penalty may have moved the tokens of the text besides; its amounts are those before a
    # temperature.
    outside_text = [row.outside_text() for row in pair.rows]
    causes = sorted(look_for(OF_VALUES, replace(pair, rows=outside_text)), key=remaining_rms)[:1]
    rest = pair
    for cause in causes:
        if cause.undo:
            rest = replace(
                pair,
                rows=[cause.undo.row(row) for row in pair.rows],
                factor=cause.parameters.get("factor", 1.0),
            )
    causes += [*look_for(OF_TOKENS, rest), *look_for(OBSERVED, pair)]
    names = {cause.name for cause in causes}
    implications = {name for name, others in _IMPLIED_BY.items() if names & others}
    if pair.has_constants and names & {"renormalized", *_TOKENS}:  # which move the log-sum too
        implications.add("constant")
    causes = [cause for cause in causes if cause.name not in implications]
    # other tokens first
    causes.sort(key=lambda cause: (cause.name != "other tokens", -(cause.explained or 0.0)))
    positions = plural(len(pair.every_place), "position")
    says = f"Checked {len(pair.rows):,} of {positions} for: {', '.join(looked_for)}."
    not_checked = [f"{', '.join(names)} (needs {what})" for what, names in missing.items()]
    if not_checked:
        says += f" Not checked: {', '.join(not_checked)}."
    return Explanation(causes, says)


def explain_lists(
    pair: ResponsePair, reference: ResponseSide, variant: ResponseSide
) -> Explanation:
    """Return the causes of a pair of lists, values that are no values of a model before all."""
    explanation = explain(rows_of_lists(pair, reference, variant))
    missing = [
        Cause("masking" if one.kind == MASKED else "placeholders", f"{opening(one.clause)}.")
        for one in pair.placeholders  # masks first
    ]
    causes = [*missing, *explanation.causes]
    # Top-p leaves the prompt's tokens out, or one token alone, which is then no placeholder.
    order = {"masking": 0, "renormalized": 1}
    causes.sort(key=lambda cause: order.get(cause.name, 2))
    return replace(explanation, causes=causes)
