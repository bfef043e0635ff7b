"""Trainer against rollout in a run of chosen tokens: figures by every framework's name, and what
they depend on.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np

from ..errors import UsageError
from ..numerics.arrays import DataFrame, Floats, Record
from ..runs.figures import Figures
from ..runs.queries.layers import records
from ..text import number, percent, plural, series
from .figures import (
    CLAMP,
    DPPO,
    FRAMEWORKS,
    ICEPOP,
    PERCENTILES,
    TIS,
    Batch,
    SampledTokens,
    Sequences,
    bar_of,
    intervals,
    stands_out,
)

HEADLINE = {
    "k3": "KL (k3)",
    "ess": "ESS",
    "ratio": "mean ratio",
    "mean_abs": "mean |r|",
    "max_abs": "largest |r|",
}
_TOKENS_AT_ONCE = 1 << 20
_SAMPLED = 1 << 16  # tokens in which causes are looked for
# bins of a logarithm: values within 0.01 % of each other are together
_BINS = 10_000
# what the frameworks' bars cut
_CUTS = {
    f"TIS: exp(r) > {TIS:g}": f"exp(r) > {TIS}",
    f"IcePop: exp(r) outside {ICEPOP[0]:g} to {ICEPOP[1]:g}": (
        f"exp(r) NOT BETWEEN {ICEPOP[0]} AND {ICEPOP[1]}"
    ),
    f"DPPO: change of probability > {DPPO:g}": f"abs(exp(variant) - exp(reference)) > {DPPO}",
}
GROUPS = 16  # into which the values of a quantity are put
_KL = "2 * exp(r / 2) * sinh(r / 2) - r"  # k3 = exp(r) - 1 - r, also near 0
# tokens of the loss with both values
_TOKENS = f"""(
    SELECT *, variant - reference AS r, abs(r) AS size, {_KL} AS kl
    FROM chosen_token WHERE is_trained AND reference IS NOT NULL AND variant IS NOT NULL
)"""
# Of a response by several weights, the oldest.
_OF_SEQUENCES = """
    JOIN prompt USING (prompt) JOIN (
        SELECT *, list_min(string_split(weight_version, ',').list_transform(
            lambda v: try_cast(v AS DOUBLE))) AS oldest
        FROM sequence
    ) USING (prompt)"""
_VERSION = "coalesce(token_version, oldest)"
BY = {
    "position": "position",
    "length": "positions",
    "entropy": "entropy",
    "advantage": "advantage",
    "confidence": "reference",
    "turn": "coalesce(len(list_filter(starts, lambda p: p < position)), 0)",
    "lag": f"step - {_VERSION}",
    "weight version": _VERSION,
    "step": "step",
    "rank": "try_cast(try_cast(sampling AS JSON) ->> 'rank' AS BIGINT)",
    "environment": "environment",
    "stop reason": "stop_reason",
}
_TEXTS = ("environment", "stop reason")
_SINGLE = (*_TEXTS, "turn", "rank")  # a group for each value: one rank may be the fault
# Where the masked stretches of a sequence start. One that has no masked token is not there.
_STARTS = """
    LEFT JOIN (
        SELECT prompt, list_filter(masked, lambda p, n: n = 1 OR masked[n - 1] < p - 1) AS starts
        FROM (SELECT prompt, list(position ORDER BY position) AS masked
            FROM chosen_token WHERE NOT is_trained GROUP BY prompt)
    ) USING (prompt)"""

# by log-ratio r, in bins of 1/16 up to 8 on either side
_HISTOGRAM = f"""
    SELECT round(greatest(least(r, 8), -8) * 16) / 16 AS r, count(*) AS tokens, sum(kl) AS kl
    FROM {_TOKENS} GROUP BY 1 ORDER BY 1"""
# by the rollout's probability, in 40 steps, and r, in 1/20 of $1, which bounds it
_DENSITY = f"""
    SELECT round(exp(reference) * 40) / 40 AS probability,
        round(greatest(least(r, $1), -$1) / $1 * 20) / 20 * $1 AS r, count(*) AS tokens
    FROM {_TOKENS} GROUP BY ALL ORDER BY ALL"""
# no rows if no step is known
_STEPS = f"""
    SELECT step, count(*) AS tokens, avg(size) AS mean_abs, avg(kl) AS k3, avg(exp(r)) AS ratio,
        max(size) AS max_abs
    FROM {_TOKENS} {_OF_SEQUENCES} WHERE step IS NOT NULL GROUP BY step ORDER BY step"""
# of some steps, and of the others
_OF_STEPS = f"""
    SELECT step IN ($steps) AS is_named, avg(kl) AS k3, avg(w) ** 2 / avg(w ** 2) AS ess,
        avg(w) AS ratio, avg(size) AS mean_abs, max(size) AS max_abs
    FROM (SELECT *, exp(greatest(least(r, {CLAMP}), -{CLAMP})) AS w FROM {_TOKENS})
    {_OF_SEQUENCES} WHERE step IS NOT NULL GROUP BY is_named ORDER BY is_named DESC"""
# the 20 sequences that carry the most of the KL, each with the position that has the most of it
_HEAVIEST = f"""
    SELECT prompt, arg_max(position, (kl, -position)) AS position, any_value(name) AS name,
        any_value(step) AS step, count(*) AS tokens, avg(size) AS mean_abs,
        sum(kl) / nullif(sum(sum(kl)) OVER (), 0) AS kl_share
    FROM {_TOKENS} {_OF_SEQUENCES} GROUP BY prompt ORDER BY kl_share DESC, prompt LIMIT 20"""


def summary(run: Figures, name: str) -> Any:
    """Return one of `summaries`, as it was stored with the run."""
    return json.loads(run.query("SELECT content FROM mismatch WHERE name = ?", name)["content"][0])


def figures_of(run: Figures, framework: str = "ulpscope") -> list[Record]:
    """Return a framework's figures: name, value, low and high of its 95 % interval over sequences,
    unit, definition, usual: what a framework takes for normal, is_usual: None without that.

    Raises:
        UsageError: no such framework.
    """
    if framework not in FRAMEWORKS:
        raise UsageError(f"--as '{framework}': expected one of {', '.join(FRAMEWORKS)}.")
    rows = summary(run, f"figures of {framework}")
    figures = {figure.name: figure for figure in FRAMEWORKS[framework].figures}
    for row in rows:
        if figure := figures.get(row["name"]):
            # those of the run may be older
            row["definition"] = figure.definition
        # a bootstrap never exceeds an extreme
        if re.search("max|min", row["name"]):
            row["low"] = row["high"] = None
        bar = bar_of(row["name"], framework)
        row["usual"] = f"{bar.span} ({bar.framework})" if bar else ""
        row["is_usual"] = bar.holds(row["value"]) if bar else None
    return rows


def at_worst_steps(run: Figures) -> dict[str, Record]:
    """Return the figures of HEADLINE at the steps that stand out, which a verdict names, and at the
    others, by `step 5` and `others`; empty if none does.
    """
    rows = summary(run, "steps")
    is_worst = stands_out(np.array([row["mean_abs"] for row in rows]))
    worst = [str(row["step"]) for row in compress(rows, is_worst)]
    if not worst:
        return {}
    place = f"step {worst[0]}"
    if len(worst) > 1:
        place = f"{len(worst):,} steps from {worst[0]}"
    table = run.query(_OF_STEPS.replace("$steps", ", ".join(worst)))
    return dict(zip((place, "others"), records(table), strict=True))


def interval_of(figure: Mapping[str, Any]) -> str:
    """Return the interval of a figure of `figures_of` in words, '' if it has none."""
    low = figure["low"]
    return "" if low is None else f"{number(low)} to {number(figure['high'])}"


def sentence(mismatch: Mapping[str, Any]) -> str:
    """Say which figures are usual, how many tokens there are, how few carry half of the KL, and
    what |r| depends on most. mismatch: of `mismatch_json`.
    """
    tokens = mismatch["tokens"]
    half = mismatch["tokens_with_half_of_kl"]
    text = (
        f"{mismatch['usual']} r is trainer minus rollout, over {plural(tokens, 'token')} of"
        f" {plural(mismatch['sequences'], 'sequence')}. Half of the KL is in"
        f" {plural(half, 'token')} ({percent(half / tokens)})."
    )
    if mismatch["left_out"]:
        text += f" {mismatch['left_out']}"
    name, share = next(iter(mismatch["explained_by"].items()), ("", 0.0))
    # fewer tokens tell nothing
    if share >= 0.02 and tokens >= 1000:
        text += f" |r| depends most on the {name}: {percent(share)} of its variance."
    return text


def summaries(run: Figures, masked: int = 0) -> Record:
    """Return what pages and reports show of all tokens, to be stored with the run, in types of
    JSON; empty if no token has both values. masked: responses without a token of the loss, which
    are not in the run.
    """
    (trained,) = _counts(run, "SELECT count(*) FROM chosen_token WHERE is_trained")
    sequences, counted = _read_sequences(run, masked)
    if not sequences.sums:
        return {}
    tokens = int(sequences.sums["tokens"].sum())
    percentiles = _percentiles(run)
    groups = {quantity: by_quantity(run, quantity) for quantity in BY}
    tables = {
        "histogram": run.query(_HISTOGRAM),
        "density": run.query(_DENSITY, max(percentiles[-1], 1e-9)),
        "bars": bars(run),
        "steps": run.query(_STEPS),
        "heaviest": run.query(_HEAVIEST),
        **{f"by {name}": rows for name, rows in groups.items()},
    }
    return {
        "tokens": {
            "tokens": tokens,
            "sequences": len(sequences),
            "half": _tokens_with_half(run),
            # responses without a value on a side count as masked too
            "masked": len(counted) - len(sequences),
            "missing": trained - tokens,
        },
        "explained": _explained(groups),
        **_figures(sequences, counted, percentiles),
        **{name: records(table) for name, table in tables.items()},
    }


def _counts(run: Figures, sql: str) -> list[int]:
    """Return the only row of a query, of whole numbers."""
    return [int(value) for value in run.query(sql).iloc[0]]


def tokens_of(run: Figures, prompt: int) -> DataFrame:
    """Return the tokens of a sequence: token_id, text (null if unknown), rollout, trainer, r,
    max_abs (|r|), kl (k3), ratio, clipped (bars of frameworks that cut it); values null if masked.
    """
    clipped = ", ".join(f"CASE WHEN {cut} THEN '{name}' END" for name, cut in _CUTS.items())
    return run.query(
        f"""
        SELECT token_id, text, reference AS rollout, variant AS trainer, variant - reference AS r,
            abs(r) AS max_abs, {_KL} AS kl, exp(r) AS ratio, concat_ws(', ', {clipped}) AS clipped
        FROM (SELECT * REPLACE (CASE WHEN is_trained THEN reference END AS reference,
            CASE WHEN is_trained THEN variant END AS variant) FROM chosen_token WHERE prompt = ?)
        LEFT JOIN vocabulary USING (token_id) ORDER BY position""",
        prompt,
    )


def _read_sequences(run: Figures, masked: int) -> tuple[Sequences, Sequences]:
    """Sum up the tokens with both values by sequence, about a million tokens at a time.

    Returns:
        sequences with such tokens, and these with all others.
    """
    (most,) = _counts(run, "SELECT count(*) FROM prompt")
    most += masked
    # filled in place: parts of a million sequences and all of them would be in memory twice
    sums: dict[str, Floats] = defaultdict(lambda: np.zeros(most))
    stop = 0
    for part in _parts(run):
        start, stop = stop, stop + len(part)
        for name, values in part.sums.items():
            sums[name][start:stop] = values
    for name, values in sums.items():
        if name.startswith("max "):
            values[stop:] = -np.inf
    return Sequences({name: values[:stop] for name, values in sums.items()}), Sequences(sums)


def _binned(value: str) -> str:
    """Return SQL of the tokens in bins of a value that is never negative, ascending: tokens, low,
    high, total.
    """
    return f"""
        SELECT count(*) AS tokens, min(v) AS low, max(v) AS high, sum(v) AS total
        FROM (SELECT {value} AS v FROM {_TOKENS})
        GROUP BY round(ln(nullif(greatest(v, 0), 0)) * {_BINS}) ORDER BY low"""


def _percentiles(run: Figures) -> Floats:
    """Return PERCENTILES of |r|, exact in bins of up to two tokens."""
    bins = run.query(_binned("size"))
    tokens = bins["tokens"].to_numpy(np.int64)
    ends = np.cumsum(tokens)
    ranks = np.column_stack([ends - tokens, ends - 1])
    places = np.array(list(PERCENTILES.values())) * (ends[-1] - 1)
    return np.interp(places, ranks.ravel(), bins[["low", "high"]].to_numpy(float).ravel())


def _tokens_with_half(run: Figures) -> int:
    """Return how many tokens carry half of the sum of k3, the largest first."""
    (half,) = _counts(
        run,
        f"""
        SELECT coalesce(
            counted - tokens
                + greatest(1, ceil((half - (carried - total)) / nullif(total, 0) * tokens)),
            1)
        FROM (
            SELECT *, sum(total) OVER descending AS carried, sum(tokens) OVER descending AS counted,
                sum(total) OVER () / 2 AS half
            FROM ({_binned("kl")}) WINDOW descending AS (ORDER BY low DESC)
        ) WHERE carried >= half ORDER BY low DESC LIMIT 1""",
    )
    return half


def _parts(run: Figures) -> Iterator[Sequences]:
    """Yield the sums of whole sequences in order."""
    chunks = run.query(f"""
        SELECT min(prompt) AS first, max(prompt) AS last FROM (
            SELECT prompt, (sum(positions) OVER (ORDER BY prompt) - positions)::BIGINT
                // {_TOKENS_AT_ONCE} AS chunk FROM prompt
        ) GROUP BY chunk ORDER BY chunk""")
    for first, last in chunks.itertuples(index=False):
        rows = run.query(
            f"SELECT prompt, reference, variant FROM {_TOKENS} WHERE prompt BETWEEN ? AND ?"
            " ORDER BY prompt, position",
            first,
            last,
        )
        if len(rows):
            sides = rows["reference"].to_numpy(), rows["variant"].to_numpy()
            yield Sequences.of(*sides, np.bincount(rows["prompt"].to_numpy() - first))


def _figures(
    sequences: Sequences,
    counted: Sequences,
    percentiles: Floats,
) -> dict[str, list[Record]]:
    """Return the figures of every framework, by the name that they are stored under."""
    rows: dict[str, list[Record]] = {}
    for framework in FRAMEWORKS.values():
        of_all = counted if framework.counts_masked else sequences
        # its own: values of a million sequences are too many to keep
        batch = Batch(Sequences(of_all.sums))
        bounds: Sequence[tuple[Any, Any]] = [(None, None)] * len(framework.figures)
        if len(batch.sequences) > 1:
            bounds = intervals(batch.sequences, framework.figures)
        rows[f"figures of {framework.name}"] = [
            _row(each.name, each.definition, each.unit, each.value(batch), *bound)
            for each, bound in zip(framework.figures, bounds, strict=True)
        ]
    rows["figures of ulpscope"][2:2] = [
        _row(name, f"{name[1:]}th percentile of |r|", "nats", value)
        for name, value in zip(PERCENTILES, percentiles, strict=True)
    ]
    return rows


def _row(
    name: str,
    definition: str,
    unit: str,
    value: float,
    low: float | None = None,
    high: float | None = None,
) -> Record:
    return {
        "name": name,
        "value": _plain(value),
        "low": _plain(low),
        "high": _plain(high),
        "unit": unit,
        "definition": definition,
    }


def _plain(value: float | None) -> float | None:
    """Return a figure as JSON knows it: None for NaN, the largest number for an overflow."""
    return None if value is None or np.isnan(value) else float(np.nan_to_num(value))


def mismatch_json(run: Figures, framework: str = "ulpscope") -> Record:
    """Return a framework's figures with what carries the difference; UsageError for an unknown
    framework.
    """
    tokens = summary(run, "tokens")
    says = []
    if masked := tokens.get("masked", 0):
        about = "in no figure"
        if FRAMEWORKS[framework].counts_masked:
            about = f"counted in means over responses, as {framework} does"
        says.append(f"{plural(masked, 'response')} without a token of the loss: {about}.")
    if missing := tokens.get("missing", 0):
        own = {"ulpscope": "", "trl": "; TRL takes r as 0 there in its ratios"}
        about = own.get(framework, f"; {framework} itself makes NaN of means over them")
        says.append(f"{plural(missing, 'token')} without a value on a side: in no figure{about}.")
    # of the figures that matter most, whether a framework calls them normal
    usual: dict[str, list[str]] = {}
    values = {row["name"]: row["value"] for row in summary(run, "figures of ulpscope")}
    steps = summary(run, "steps")
    for name, label in HEADLINE.items():
        bar = bar_of(name)
        value = values.get(name)
        if bar is not None and value is not None:
            words = bar.state(value)
            if not bar.holds(value):
                words += f" ({bar.span})"
            beyond = sum(name in row and not bar.holds(row[name]) for row in steps)
            if beyond:
                words += f", beyond it at {beyond:,} of {plural(len(steps), 'step')}"
            usual.setdefault(words, []).append(f"{label} {number(value)}")
    return {
        "framework": framework,
        "figures": figures_of(run, framework),
        "source": FRAMEWORKS[framework].source,
        "tokens": tokens["tokens"],
        "sequences": tokens["sequences"],
        "tokens_with_half_of_kl": tokens["half"],
        "left_out": " ".join(says),
        "usual": " ".join(f"{series(labels)}: {state}." for state, labels in usual.items()),
        "bars": summary(run, "bars"),
        "by_step": steps,
        "explained_by": summary(run, "explained"),
    }


def sample_tokens(run: Figures) -> SampledTokens:
    """Return the tokens of whole sequences, spread evenly over the run, about `_SAMPLED` in all."""
    used = run.query(f"""
        SELECT *, CASE WHEN count(step) OVER () > 0 THEN step ELSE max(version) OVER () END
            - version AS lag
        FROM (
            SELECT prompt, position, reference, variant, entropy, {_VERSION} AS version, step,
                {BY["rank"]} AS rank, {BY["turn"]} AS turn,
                coalesce(environment, '') AS environment, coalesce(stop_reason, '') AS stop_reason
            FROM chosen_token {_OF_SEQUENCES} {_STARTS} WHERE is_trained
                AND prompt % (SELECT ceil(sum(positions) / {_SAMPLED})::BIGINT FROM prompt) = 0
        ) ORDER BY prompt, position""")
    names = ["reference", "variant", "entropy", "lag", "version", "step", "rank"]
    rollout, trainer, entropy, lag, version, step, rank = (
        used[name].to_numpy(np.float64) for name in names
    )
    return SampledTokens(
        used["prompt"].to_numpy(),
        used["position"].to_numpy(),
        rollout,
        trainer,
        used["turn"].to_numpy(),
        entropy if np.isfinite(entropy).any() else None,
        lag,
        {
            "step": step,
            "weight version": version,
            "rank": rank,
            **{name: used[BY[name]].to_numpy(str) for name in _TEXTS},
        },
        (run.header.sides[0].name, run.header.sides[1].name),
    )


def bars(run: Figures) -> DataFrame:
    """Return what the frameworks' bars cut: bar, tokens and kl as shares."""
    rows = [
        f"""
        SELECT ? AS bar, avg(({condition})::INTEGER) AS tokens,
            coalesce(sum(kl) FILTER ({condition}), 0) / nullif(sum(kl), 0) AS kl FROM {_TOKENS}"""
        for condition in _CUTS.values()
    ]
    return run.query(" UNION ALL ".join(rows), *_CUTS)


def by_quantity(run: Figures, quantity: str) -> DataFrame:
    """Return |r| by a quantity of BY, in up to GROUPS groups of about as many tokens: part, value,
    tokens, mean_abs, variance. Equal values are together; the borders are those of about 200,000
    tokens.
    """
    starts = _STARTS if quantity == "turn" else ""
    rows = (
        f"(SELECT prompt, size, {BY[quantity]} AS value FROM {_TOKENS} {_OF_SEQUENCES} {starts}"
        " WHERE value IS NOT NULL)"
    )
    group = "value"
    value = "any_value(value)"
    if quantity not in _SINGLE:
        shares = [number / GROUPS for number in range(1, GROUPS)]
        borders = run.query(f"""
            SELECT unnest(list_distinct(quantile_disc(value, {shares}))) AS at FROM {rows}
            WHERE prompt % (SELECT 1 + sum(positions)::BIGINT // 200000 FROM prompt) = 0""")
        group = " + ".join(["0", *(f"(value > {at!r})::INTEGER" for at in borders["at"].tolist())])
        value = "avg(value)"
    return run.query(f"""
        SELECT {group} AS part, {value} AS value, count(*) AS tokens, avg(size) AS mean_abs,
            coalesce(var_pop(size), 0) AS variance
        FROM {rows} GROUP BY part ORDER BY part""")


def _explained(groups: Mapping[str, DataFrame]) -> dict[str, float]:
    """Return the share of the variance of |r| between the groups of each quantity of BY, largest
    first.

    The shares are adjusted (epsilon squared): groups that mean nothing explain 0 on average.
    """
    shares = {}
    for quantity, rows in groups.items():
        tokens = rows["tokens"].to_numpy(np.int64)
        if not 1 < len(rows) < tokens.sum():
            continue
        between = np.cov(rows["mean_abs"], fweights=tokens, ddof=0) * tokens.sum()
        within = tokens @ rows["variance"]
        chance = (len(rows) - 1) * within / (tokens.sum() - len(rows))
        if between + within > 0:
            shares[quantity] = max(0.0, float((between - chance) / (between + within)))
    # lag before its equal, the version
    return dict(sorted(shares.items(), key=lambda item: -round(item[1], 9)))
