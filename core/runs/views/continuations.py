"""Continuations of each prompt by the variants of a run, going on freely, beside the reference's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numpy.typing import NDArray

from ...errors import UsageError
from ...numerics.formats import values_of
from ...text import plural
from ..reader import RunReader, StoredPair

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Continuation:
    """One variant's continuation of one prompt against the reference's.

    `position` is where they part: the position of the prompt whose logits made the variant choose another token; None
    where they never do within the tokens that both generated.
    """

    prompt: int
    pair: int
    variant: str
    given_positions: int
    reference_tokens: tuple[int, ...]
    variant_tokens: tuple[int, ...]
    reference_text: str
    variant_text: str
    position: int | None

    @property
    def compared(self) -> int:
        """Number of tokens that both sides generated."""
        return min(len(self.reference_tokens), len(self.variant_tokens))

    @property
    def step(self) -> int | None:
        """0-based index of the generated token that parts them."""
        return None if self.position is None else self.position - (self.given_positions - 1)

    @property
    def agreed(self) -> int:
        """Number of generated tokens that the sides share before they part."""
        return self.compared if self.step is None else self.step

    @property
    def chosen(self) -> tuple[int, int] | None:
        """The reference's and the variant's token where they part."""
        return None if self.step is None else (self.reference_tokens[self.step], self.variant_tokens[self.step])

    def is_confirmed(self, here: pd.Series) -> bool:
        """Return whether the stored logits of the parting position have the two generated tokens as their argmaxes.

        here: the row of the position table at `position`. They have not where a path computes the same tokens
        differently from call to call.
        """
        import pandas as pd

        argmaxes = (here["reference_token"], here["variant_token"])
        return not any(pd.isna(token) for token in argmaxes) and (int(argmaxes[0]), int(argmaxes[1])) == self.chosen


def continuations(run: RunReader, prompt: int | None = None) -> list[Continuation]:
    """Continuations of every prompt that was continued, or of one, each variant in turn; empty for a run that only
    scored given tokens.
    """
    found = []
    for index, generation in sorted(run.generations.items()):
        if prompt not in (None, index):
            continue
        for pair in run.pairs:
            side = pair.index + 1
            found.append(
                Continuation(
                    index,
                    pair.index,
                    pair.variant,
                    generation.given_positions,
                    generation.tokens[0],
                    generation.tokens[side],
                    generation.texts[0],
                    generation.texts[side],
                    generation.parting(side),
                )
            )
    return found


def outcome(run: RunReader, pair: StoredPair) -> str:
    """Sentence on how many of the continued prompts part, and on the earliest parting, for one pair."""
    found = [one for one in continuations(run) if one.pair == pair.index]
    parted = [one for one in found if one.chosen]
    asked = plural(max(one.compared for one in found), "generated token")
    if not parted:
        return f"the sides agree in all of {asked}" + (f" of each of {len(found)} prompts." if len(found) > 1 else ".")
    first = min(parted, key=lambda one: one.agreed)
    where = f", first in prompt {first.prompt}" if len(found) > 1 else ""
    many = f"**{len(parted)} of {len(found)} prompts part**" if len(found) > 1 else "**the sides part**"
    return (
        f"{many} within {asked}{where} after {plural(first.agreed, 'token')} in common, at position {first.position}."
    )


def logits_of_chosen(run: RunReader, found: Continuation) -> tuple[NDArray, NDArray]:
    """Logits of the two tokens at the position where they part: the reference's of both, then the variant's. Where the
    run did not keep them: as far as they are among the stored best, else NaN.
    """
    if found.chosen is None or found.position is None:
        raise UsageError(f"prompt {found.prompt}: the continuations of '{found.variant}' and the reference never part.")
    place, sides, chosen = (found.prompt, found.position), (0, found.pair + 1), list(found.chosen)
    if not run.has_all_logits:
        best = [run.top_tokens(side, *place).set_index("token_id")["logit"] for side in sides]
        reference, variant = (logits.reindex(chosen).to_numpy(float) for logits in best)
    else:
        reference, variant = (values_of(run.at(side, *place), run.header.format)[chosen] for side in sides)
    return reference, variant
