"""A pair's tokens rescored by models: how many noise floors each side is away, and which checkpoint
it agrees with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

import numpy as np

from ...cause import Cause
from ...checks.choices import LARGEST_GAP
from ...checks.list_floor import LISTS, list_floor_row
from ...evidence import Evidence
from ...numerics.arrays import Flags, Floats
from ...numerics.statistic import TINY, rms_ratio
from ...rl.causes import explain_tokens
from ...rl.figures import SampledTokens
from ...text import number, percent, plural
from .rows import RowPair

_FEW = 0.05  # of the tokens may be far off without deciding about the others
_DISTINCT = 4.0  # standard errors, so that one tie in 30,000 is called distinct
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


@dataclass(frozen=True, eq=False)
class Rescoring:
    """Rows of a pair as a model scores their tokens, one after another.

    plain: by its forward, [tokens]; draws: in other reduction orders, [draws, tokens]; entropy:
    nats, [rows]; places: of a rollout, sequence and index in the response of each row; routing:
    with the rollout's experts, or why these cannot be compared, None if it recorded none.
    """

    model: str
    dtype: str
    names: tuple[str, str]
    rows: Sequence[RowPair]
    plain: Floats
    draws: Floats
    entropy: Floats
    places: Sequence[tuple[int, int]] = ()
    routing: Routing | str | None = None

    @cached_property
    def sides(self) -> tuple[Floats, Floats]:
        """Floats of the reference and the variant. [tokens] each"""
        reference = np.concatenate([row.x for row in self.rows])
        variant = np.concatenate([row.y for row in self.rows])
        return reference, variant

    @cached_property
    def squares(self) -> Floats:
        """Mean squares of the pair, of the draws to the model, and of both sides to it. [3 + draws,
        rows]
        """
        x, y = self.sides
        to_model = [values - self.plain for values in (*self.draws, x, y)]
        differences = np.square([y - x, *to_model])
        sizes = [len(row.x) for row in self.rows]
        starts = np.cumsum([0, *sizes[:-1]])
        return np.add.reduceat(differences, starts, axis=1) / sizes

    @property
    def floor(self) -> Floats:
        """Mean squares of the draws. [rows]"""
        return self.squares[1:-2].mean(axis=0)

    @property
    def has_floor(self) -> bool:
        return bool(self.floor.any() and np.isfinite(self.squares).all())

    @cached_property
    def ratios(self) -> tuple[float, float, float]:
        """Difference of the pair, of the reference to the model and of the variant to it, in noise
        floors.
        """
        pair, x, y = (rms_ratio(self.squares[row], self.floor) for row in (0, -2, -1))
        return pair, x, y

    @cached_property
    def scale(self) -> Floats:
        """Floor of each row; one next to 0 is no scale. [rows]"""
        least = max(np.median(self.floor), 1e-300)
        return np.maximum(self.floor, least)

    def outliers(self, side: int) -> Flags:
        """Return the rows by which a side is far from the model; none if it is not, or if they are
        many. [rows]
        """
        is_far = self.squares[-2 + side] > LISTS.at_a_place**2 * self.scale
        counts = self.ratios[1 + side] > LISTS.over_all and is_far.mean() <= _FEW
        return is_far if counts else np.zeros_like(is_far)

    def ratio(self, side: int) -> float:
        """Return a side's distance without outliers, in noise floors."""
        usual = ~self.outliers(side)
        return rms_ratio(self.squares[-2 + side][usual], self.floor[usual])

    @property
    def mean(self) -> Floats:
        """Mean over the forward and the draws, which has less rounding than each. [tokens]"""
        return np.mean([self.plain, *self.draws], axis=0)


def floor_evidence(scores: Rescoring) -> Evidence:
    """Return the noise floor check of a pair of lists."""
    ratios = None
    worst = 0.0
    if scores.has_floor:
        ratios = scores.ratios
        worst = float(np.sqrt(scores.squares[0] / scores.scale).max())
    return list_floor_row(
        scores.model,
        scores.dtype,
        scores.names,
        ratios,
        worst,
    )


@dataclass(frozen=True)
class _Agreement:
    """A side, its nearest rescoring, and those that it agrees with by checkpoint: the nearest and
    what cannot be distinguished from it, none if all are far.
    """

    side: int
    nearest: Rescoring
    fits: dict[str, Rescoring]

    @property
    def name(self) -> str:
        return self.nearest.names[self.side]

    def size(self, one: Rescoring) -> str:
        return f"{number(one.ratio(self.side))} noise floors ({one.dtype})"

    @property
    def place(self) -> str:
        return f"{self.nearest.model}, {self.size(self.nearest)}"


def _agreement(scores: Sequence[Rescoring], side: int) -> _Agreement:
    # Of those that fit the closest, so the finer dtype: a float32 side may be 1 noise floor from
    # either.
    close = [one for one in scores if one.ratio(side) <= LISTS.over_all]

    def usual_square(one: Rescoring) -> float:
        return one.squares[-2 + side][~one.outliers(side)].mean()

    if close:
        nearest = min(close, key=usual_square)
    else:
        nearest = min(scores, key=lambda one: one.ratio(side))
    values = nearest.sides[side]
    usual = ~nearest.outliers(side)
    fits = {}
    for one in close:
        if one.dtype == nearest.dtype:
            # Diebold and Mariano (1995): squared errors of two predictions of the same values,
            # paired.
            farther = ((values - one.mean) ** 2 - (values - nearest.mean) ** 2)[usual]
            standard_error = np.sqrt((farther**2).sum())
            if one is nearest or farther.sum() <= _DISTINCT * standard_error:
                fits[one.model] = one
    return _Agreement(side, nearest, fits)


def explain_rescored(scores: Sequence[Rescoring]) -> list[Cause]:
    """Return which checkpoint a rollout and a trainer each agree with, then why a side does not, or
    some of its tokens.

    scores: of each checkpoint and dtype, each with a noise floor.
    """
    sides = [_agreement(scores, side) for side in (0, 1)]
    causes = [_verdict(sides, scores), *explain_routing(scores)]
    for side in sides:
        near = side.nearest
        off = near.outliers(side.side)
        if side.fits and not off.any():
            continue
        sequence, position = np.array(near.places).T
        tokens = SampledTokens(
            sequence,
            position,
            near.sides[side.side],
            near.plain,
            entropy=near.entropy,
            names=(side.name, near.model),
        )
        reasons = explain_tokens(tokens)
        if off.any():
            places = ("some tokens", "part of the response")
            reasons = [reason for reason in reasons if reason.name not in places]
            if not reasons:
                first = off.argmax()
                place = f"first token {position[first]} of sequence {sequence[first]}"
                says = (
                    f"'{side.name}' is off at {off.sum():,} of {len(off):,} tokens, {place}:"
                    " another choice of experts, or other inputs?"
                )
                figures = {"tokens": int(off.sum()), "sequence": int(sequence[first])}
                reasons = [Cause("some tokens", says, figures)]
        causes += reasons
    return causes


def _verdict(sides: Sequence[_Agreement], scores: Sequence[Rescoring]) -> Cause:
    rollout, trainer = sides
    both = [name for name in rollout.fits if name in trainer.fits]
    if both:
        kind = "numerics of two settings"
        if rollout.nearest.dtype == trainer.nearest.dtype:
            kind = "rounding"

        def distance(name: str) -> float:
            return sum(side.fits[name].ratio(side.side) for side in sides)

        name = min(both, key=distance)
        sizes = ", ".join(f"'{side.name}' {side.size(side.fits[name])}" for side in sides)
        says = f"Both sides agree with {name}: {sizes}."
    elif rollout.fits and trainer.fits:
        kind = "stale weights"
        says = (
            f"'{rollout.name}' agrees with {rollout.place}, '{trainer.name}' with {trainer.place}."
        )
    elif rollout.fits or trainer.fits:
        kind = "one side"
        fit, off = sides if rollout.fits else sides[::-1]
        says = (
            f"No given checkpoint fits '{off.name}', nearest {off.place}; '{fit.name}' agrees with"
            f" {fit.place}."
        )
    else:
        kind = "another checkpoint"
        near = f"'{rollout.name}' is {rollout.place}, to '{trainer.name}' {trainer.place}"
        says = f"No given checkpoint fits. Nearest to {near}."
    for side in sides:
        if len(side.fits) > 1:
            names = ", ".join(list(side.fits)[:3])
            if len(side.fits) > 3:
                names += ", ..."
            says += f" For '{side.name}', {names} cannot be distinguished at this noise floor."
    table = [
        {
            "checkpoint": one.model,
            "dtype": one.dtype,
            "rollout": one.ratios[1],
            "trainer": one.ratios[2],
        }
        for one in scores
    ]
    agrees = {"rollout": list(rollout.fits), "trainer": list(trainer.fits)}
    return Cause(kind, says, {"agrees": agrees, "noise_floors": table})


def explain_routing(scores: Sequence[Rescoring]) -> list[Cause]:
    """Return the cause *routing* by the checkpoint and dtype that are nearest to the rollout; none
    if its experts do not account for r, or it recorded none.
    """
    near = []
    for scored in scores:
        one = scored.routing
        if isinstance(one, str):
            return [Cause("experts not compared", one)]
        if one:
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
    # |r| by the number of layers with other experts, in groups up to 0, 1, 3, 7, ...
    group = np.ceil(np.log2(layers + 1))
    rows = []
    for each in np.unique(group):
        part = group == each
        rows.append(
            {
                "up_to_layers": int(2**each) - 1,
                "tokens": int(part.sum()),
                "mean_abs": float(np.abs(one.r[part]).mean()),
                "mean_abs_replayed": float(np.abs(one.replayed[part]).mean()),
            },
        )
    return [Cause("routing", says + ties, {**figures, "by_agreement": rows})]
