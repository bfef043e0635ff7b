"""Every hypothesis about a pair, and which of their causes are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .alignment import moved_ids, other_tokens, shifted_rows
from .grids import coarser, upcast
from .masks import masked
from .observations import jumps, sampler
from .penalties import bias, penalty
from .rows import PairRows
from .scoring import Cause
from .transforms import constant, scale, soft_capping

# The one list: a hypothesis is a function of a pair that yields the causes it claims.
HYPOTHESES: tuple[Callable[[PairRows], Iterator[Cause]], ...] = (
    other_tokens,
    shifted_rows,
    moved_ids,
    scale,
    constant,
    soft_capping,
    coarser,
    penalty,
    bias,
    masked,
    upcast,
    sampler,
    jumps,
)

_BENT = ("temperature", "soft-capping")
# What another cause brings with it: where that is claimed, this says nothing more.
_IMPLIED: tuple[tuple[str, set[str]], ...] = (
    ("logit bias", {"penalty"}),
    ("sampler", {"shifted rows"}),
    ("upcast", {"temperature", "constant", "soft-capping", "penalty", "logit bias", "rounded"}),
)


def causes_of(pair: PairRows) -> list[Cause]:
    """Every cause that is claimed: those that explain most first, then observations. Empty: no simple cause found."""
    found = [cause for hypothesis in HYPOTHESES for cause in hypothesis(pair)]
    names = {cause.name for cause in found}
    found = [cause for cause in found if not any(cause.name == weak and names & strong for weak, strong in _IMPLIED)]
    bent = [cause for cause in found if cause.name in _BENT]  # a line and a curve: the better one
    best = max((cause.explained or 0.0 for cause in bent), default=0.0)
    found = [cause for cause in found if cause not in bent or (cause.explained or 0.0) >= best]
    return sorted(found, key=lambda cause: -(2.0 if cause.name == "other tokens" else cause.explained or 0.0))
