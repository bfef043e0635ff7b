"""Does a rollout's choice of experts account for r? Its recorded experts against a checkpoint's,
and r with them replayed in the checkpoint's forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from ...cause import Cause
from ...checks.choices import LARGEST_GAP
from ...checks.list_floor import LISTS
from ...numerics.arrays import Floats, Ints, Record
from ...numerics.statistic import TINY
from ...text import number, percent, plural

if TYPE_CHECKING:
    from .rescoring import Rescoring

# Of the squared r: what replaying takes away at least if the experts account for it, and how many
# times as much it leaves if others were recorded than used. Equal experts change nothing.
_EXPLAINED = 0.5
_WORSE = 2.0


@dataclass(frozen=True, eq=False)
class Routing:
    """A rollout's experts and a checkpoint's, at tokens that both sides score.

    routers: their modules; r, replayed: checkpoint minus rollout as it is, and with the recorded
    experts, [tokens]; alike: whether a router takes the recorded experts, [tokens, routers], NaN if
    none were; gaps: how far apart a router's scores are at each other choice, over what rounding
    moves them.
    """

    routers: Sequence[str]
    r: Floats
    replayed: Floats
    alike: Floats
    gaps: Floats


def explain_routing(scores: Sequence[Rescoring]) -> list[Cause]:
    """Return the cause *routing* by the checkpoint and dtype that are nearest to the rollout; none
    if its experts do not account for r, or it recorded none.
    """
    near = []
    for scored in scores:
        one = scored.routing
        if isinstance(one, str):
            return [Cause("experts not compared", one)]
        if one is not None:
            square, replayed = ((values**2).mean() for values in (one.r, one.replayed))
            near.append((min(square, replayed), square, replayed, scored, one))
    if not near:
        return []
    _, square, replayed, scored, one = min(near, key=itemgetter(0))
    layers = (one.alike == 0).sum(axis=1)
    is_other = layers > 0
    rollout, _ = scored.names
    if is_other.any() and replayed <= (1 - _EXPLAINED) * square:
        says = f"'{rollout}' takes other experts than {scored.model} in {scored.dtype}."
    elif replayed > max(_WORSE * square, LISTS.over_all**2 * scored.floor.mean()):
        says = f"'{rollout}' did not use the experts that it recorded."
    else:
        return []
    of_others = float((one.r[is_other] ** 2).sum())
    agreement = np.nanmean(one.alike, axis=0)
    lowest = int(np.nanargmin(agreement))
    figures = {
        "mean_abs": float(np.abs(one.r).mean()),
        "mean_abs_replayed": float(np.abs(one.replayed).mean()),
        "tokens_with_others": float(is_other.mean()),
        "share_of_square": of_others / max(float((one.r**2).sum()), TINY),
        "agreement": float(np.nanmean(one.alike)),
        "no_near_ties": int((one.gaps > LARGEST_GAP).sum()),
    }
    says += (
        f" Mean |r| is {number(figures['mean_abs'])}, and"
        f" {number(figures['mean_abs_replayed'])} with the recorded experts replayed."
        f" {percent(figures['tokens_with_others'])} of the tokens have other experts, and"
        f" {percent(figures['share_of_square'])} of the squared r."
        f" {percent(figures['agreement'])} of the choices agree, fewest in"
        f" {one.routers[lowest]} ({percent(agreement[lowest])})."
    )
    ties = " Every other choice is a near tie, as rounding makes."
    if beyond := figures["no_near_ties"]:
        ties = f" {beyond:,} of {plural(len(one.gaps), 'other choice')} are no near ties."
    groups = _by_agreement(one, layers)
    return [Cause("routing", says + ties, {**figures, "by_agreement": groups})]


def _by_agreement(one: Routing, layers: Ints) -> list[Record]:
    """Return |r| by the number of layers with other experts, in groups up to 0, 1, 3, 7, ..."""
    group = np.ceil(np.log2(layers + 1))
    sizes = np.abs(one.r)
    rows = []
    for each in np.unique(group):
        part = group == each
        rows.append(
            {
                "up_to_layers": int(2**each) - 1,
                "tokens": int(part.sum()),
                "mean_abs": float(sizes[part].mean()),
                "mean_abs_replayed": float(np.abs(one.replayed[part]).mean()),
            },
        )
    return rows
