"""Trainer against rollout in a run of chosen tokens: figures by every framework's name, and what they depend on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from ...numerics.mismatch import DPPO, FRAMEWORKS, ICEPOP, TIS, Batch, SampledTokens, Sequences, TokenPairs, intervals
from ..figures import Figures

if TYPE_CHECKING:
    import pandas as pd

_TOKENS_AT_ONCE = 1 << 20
_BOTH = "is_trained AND reference IS NOT NULL AND variant IS NOT NULL"
_R = "variant - reference"
_KL = f"(exp({_R}) - 1 - ({_R}))"
PERCENTILES = {f"p{100 * share:g}": share for share in (0.5, 0.9, 0.99, 0.999)}
FIGURE_NAMES = {*PERCENTILES, *(figure.name for framework in FRAMEWORKS.values() for figure in framework.figures)}
GROUPS = 16  # into which the values of a quantity are put
BY = {
    "position": "position",
    "length": "positions",
    "entropy": "entropy",
    "advantage": "advantage",
    "confidence": "reference",
    "weight version": "coalesce(token_version, try_cast(weight_version AS DOUBLE))",
    "step": "step",
    "environment": "environment",
}
_TEXTS = ("environment",)
_JOINED = "chosen_token JOIN prompt USING (prompt) JOIN sequence USING (prompt)"


def has_rollouts(run: Figures) -> bool:
    """Return whether a run is of chosen tokens."""
    return run.header.k == 1 and bool(len(run.query("SELECT 1 FROM sequence LIMIT 1")))


@dataclass(frozen=True)
class Tokens:
    """Tokens of a run read once. percentiles: of |r|, by name; half: how many tokens carry half of the sum of k3."""

    sequences: Sequences
    percentiles: dict[str, float]
    half: int


def read_tokens(run: Figures) -> Tokens:
    """Read the tokens with both values, a million at a time. UsageError if there is none."""
    parts, k3 = [], np.zeros(0)
    for pairs, lengths in _pairs(run):
        part = Sequences.of(pairs, lengths)
        parts.append(Sequences.concatenate([part]))
        k3 = np.concatenate([k3, pairs.k3.astype(np.float32)])
    if not parts:
        raise UsageError("no token has a log-probability on both sides.")
    quantiles = run.query(
        f"SELECT unnest(quantile_cont(abs({_R}), {list(PERCENTILES.values())})) AS q FROM chosen_token WHERE {_BOTH}"
    )
    k3.sort()
    carried = np.cumsum(k3[::-1], dtype=np.float64)
    half = int(np.searchsorted(carried, carried[-1] / 2)) + 1
    return Tokens(Sequences.concatenate(parts), dict(zip(PERCENTILES, quantiles["q"].tolist(), strict=True)), half)


def _pairs(run: Figures) -> Iterator[tuple[TokenPairs, NDArray[np.int64]]]:
    """Yield the tokens of whole sequences in order, with the number of each."""
    counts = run.query("SELECT positions FROM prompt ORDER BY prompt")["positions"].to_numpy(np.int64)
    group = (np.cumsum(counts) - counts) // _TOKENS_AT_ONCE
    for number in np.unique(group):
        first, last = (int(each) for each in np.flatnonzero(group == number)[[0, -1]])
        rows = run.query(
            f"SELECT prompt, reference, variant FROM chosen_token WHERE prompt BETWEEN ? AND ? AND {_BOTH}"
            " ORDER BY prompt, position",
            first,
            last,
        )
        if len(rows):
            lengths = np.bincount(rows["prompt"].to_numpy() - first)
            yield TokenPairs(rows["reference"].to_numpy(float), rows["variant"].to_numpy(float)), lengths


def figures_of(tokens: Tokens, framework: str = "ulpscope", *, with_intervals: bool = True) -> list[dict[str, Any]]:
    """Return a framework's figures: name, value, low and high of its 95 % interval over sequences, unit, definition.

    Raises:
        UsageError: no such framework.
    """
    if framework not in FRAMEWORKS:
        raise UsageError(f"--as '{framework}': expected one of {', '.join(FRAMEWORKS)}.")
    figures, batch = FRAMEWORKS[framework].figures, Batch(tokens.sequences)
    bounds = intervals(tokens.sequences, figures) if with_intervals and len(tokens.sequences) > 1 else None
    rows = []
    for number, figure in enumerate(figures):
        low, high = bounds[number] if bounds is not None else (None, None)
        row = {"name": figure.name, "value": float(figure.value(batch)), "low": low, "high": high}
        rows.append({**row, "unit": figure.unit, "definition": figure.definition})
    if framework == "ulpscope":
        quantiles = [
            {"name": name, "value": value, "low": None, "high": None, "unit": "nats"}
            | {"definition": f"{name[1:]}th percentile of |r|"}
            for name, value in tokens.percentiles.items()
        ]
        rows[2:2] = quantiles
    return rows


def mismatch_json(run: Figures, framework: str = "ulpscope") -> dict[str, Any]:
    """Return a framework's figures with what carries the difference; UsageError for an unknown framework."""
    tokens = read_tokens(run)
    return {
        "framework": framework,
        "figures": figures_of(tokens, framework),
        "source": FRAMEWORKS[framework].source,
        "tokens": int(tokens.sequences.tokens.sum()),
        "sequences": len(tokens.sequences),
        "tokens_with_half_of_kl": tokens.half,
        "bars": bars(run).to_dict("records"),
        "by_step": by_step(run).to_dict("records"),
        "explained_by": explained(run),
    }


def sample_tokens(run: Figures, most: int = 1 << 16) -> SampledTokens:
    """Return the tokens of whole sequences, spread evenly over the run, about `most` in all."""
    total = int(run.query("SELECT sum(positions)::BIGINT AS total FROM prompt")["total"][0])
    table = run.query(
        "SELECT prompt, position, is_trained, reference, variant, entropy,"
        " step - coalesce(token_version, try_cast(weight_version AS DOUBLE)) AS lag, step"
        " FROM chosen_token JOIN sequence USING (prompt) WHERE prompt % ? = 0 ORDER BY prompt, position",
        -(-total // most),
    )
    trained = table["is_trained"].to_numpy(bool)
    is_hole = ~trained & np.append(False, trained[:-1])
    turn = table.assign(hole=is_hole).groupby("prompt")["hole"].cumsum()
    used = table[trained]
    values = [
        used[name].to_numpy(np.float64, na_value=np.nan) for name in ("reference", "variant", "entropy", "lag", "step")
    ]
    optional = [each if np.isfinite(each).any() else None for each in values[2:]]
    prompt, position = (used[name].to_numpy() for name in ("prompt", "position"))
    return SampledTokens(prompt, position, values[0], values[1], turn[trained].to_numpy(), *optional)


def histogram(run: Figures) -> pd.DataFrame:
    """Return tokens and the sum of k3 by log-ratio r, in bins of 1/16 up to 8 on either side: r, tokens, kl."""
    return run.query(
        f"SELECT round(greatest(least({_R}, 8), -8) * 16) / 16 AS r, count(*) AS tokens,"
        f" sum({_KL}) AS kl FROM chosen_token WHERE {_BOTH} GROUP BY 1 ORDER BY 1"
    )


def density(run: Figures) -> pd.DataFrame:
    """Return tokens by the rollout's probability (in 40 steps) and r (in 1/20 of the 99.9th percentile of |r|, which
    bounds it): probability, r, tokens.
    """
    return run.query(
        f"WITH bound AS (SELECT greatest(quantile_cont(abs({_R}), 0.999), 1e-9) AS most FROM chosen_token"
        f" WHERE {_BOTH}) SELECT round(exp(reference) * 40) / 40 AS probability,"
        f" round(greatest(least({_R}, most), -most) / most * 20) / 20 * most AS r, count(*) AS tokens"
        f" FROM chosen_token, bound WHERE {_BOTH} GROUP BY ALL ORDER BY ALL"
    )


def bars(run: Figures) -> pd.DataFrame:
    """Return what the frameworks' bars cut: bar, tokens and kl as shares."""
    ratio, change = f"exp({_R})", "abs(exp(variant) - exp(reference))"
    conditions = {
        f"TIS: exp(r) > {TIS:g}": f"{ratio} > {TIS}",
        f"IcePop: exp(r) outside {ICEPOP[0]:g} to {ICEPOP[1]:g}": f"{ratio} NOT BETWEEN {ICEPOP[0]} AND {ICEPOP[1]}",
        f"DPPO: change of probability > {DPPO:g}": f"{change} > {DPPO}",
    }
    parts = [
        f"count(*) FILTER ({one}) / count(*) AS tokens,"
        f" coalesce(sum({_KL}) FILTER ({one}), 0) / nullif(sum({_KL}), 0) AS kl"
        for one in conditions.values()
    ]
    rows = [f"SELECT ? AS bar, {part} FROM chosen_token WHERE {_BOTH}" for part in parts]
    return run.query(" UNION ALL ".join(rows), *conditions)


def by_step(run: Figures) -> pd.DataFrame:
    """Return figures by training step: step, tokens, mean_abs, k3, ratio, max_abs; empty if no step is known."""
    return run.query(
        f"SELECT step, count(*) AS tokens, avg(abs({_R})) AS mean_abs, avg({_KL}) AS k3,"
        f" avg(exp({_R})) AS ratio, max(abs({_R})) AS max_abs FROM {_JOINED} WHERE {_BOTH} AND step IS NOT NULL"
        " GROUP BY step ORDER BY step"
    )


def by_quantity(run: Figures, quantity: str) -> pd.DataFrame:
    """Return |r| by a quantity of BY, in up to GROUPS groups of about as many tokens: part, value, tokens, mean_abs,
    variance. Equal values are together; the borders are those of about 200,000 tokens.
    """
    column = BY[quantity]
    rows = f"FROM {_JOINED} WHERE {_BOTH} AND {column} IS NOT NULL"
    group, value = column, f"any_value({column})"
    if quantity not in _TEXTS:
        shares = [number / GROUPS for number in range(1, GROUPS)]
        some = "prompt % (SELECT 1 + sum(positions)::BIGINT // 200000 FROM prompt) = 0"
        borders = run.query(f"SELECT unnest(list_distinct(quantile_disc({column}, {shares}))) AS at {rows} AND {some}")
        group = " + ".join(["0", *(f"({column} > {at!r})::INTEGER" for at in borders["at"].tolist())])
        value = f"avg({column})"
    return run.query(
        f"SELECT {group} AS part, {value} AS value, count(*) AS tokens, avg(abs({_R})) AS mean_abs,"
        f" coalesce(var_pop(abs({_R})), 0) AS variance {rows} GROUP BY part ORDER BY part"
    )


def explained(run: Figures) -> dict[str, float]:
    """Return the share of the variance of |r| between the groups of each quantity of BY, largest first.

    The shares are adjusted (epsilon squared): groups that mean nothing explain 0 on average.
    """
    shares = {}
    for quantity in BY:
        rows = by_quantity(run, quantity)
        tokens = rows["tokens"].to_numpy(float)
        if 1 < len(rows) < tokens.sum():
            mean = (tokens @ rows["mean_abs"]) / tokens.sum()
            between, within = tokens @ (rows["mean_abs"] - mean) ** 2, tokens @ rows["variance"]
            chance = (len(rows) - 1) * within / (tokens.sum() - len(rows))
            if between + within > 0:
                shares[quantity] = max(0.0, float((between - chance) / (between + within)))
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def heaviest(run: Figures, most: int = 20) -> pd.DataFrame:
    """Return the sequences that carry the most of the KL, with the position that has the most: prompt, position, name,
    step, tokens, mean_abs, kl_share.
    """
    return run.query(
        f"SELECT prompt, arg_max(position, {_KL}) AS position, any_value(name) AS name, any_value(step) AS step,"
        f" count(*) AS tokens, avg(abs({_R})) AS mean_abs, sum({_KL}) / nullif(sum(sum({_KL})) OVER (), 0) AS kl_share"
        f" FROM {_JOINED} WHERE {_BOTH} GROUP BY prompt ORDER BY kl_share DESC LIMIT {most}"
    )
