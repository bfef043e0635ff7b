"""Sections of a pair: what the pages show of it, as text, tables and charts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ..markup import Markup, element, facts, fold, join, prose, scrolling, table
from ..numerics.arrays import DataFrame
from ..rl import queries as rl
from ..rl.figures import ICEPOP, TIS, bar_of
from ..runs.file.records import Prompt, StoredPair
from ..runs.queries import caches, choices, flips, heatmap, kernels, layers
from ..runs.queries.heat import heat
from ..runs.queries.verdicts import Answer
from ..runs.reader import RunReader
from ..runs.reports.issue_markdown import headline
from ..runs.tables.mitigations import MitigationRow, advice
from ..text import clip, join_bytes, number, opening, percent, plural, visible
from ..verdict import FAILING, IDENTICAL, ROUNDING
from .charts import LEVELS, Axis, bar, chart, dot, every_few, line, picture
from .grid import MOST_CELLS, overview

Explain = Callable[[RunReader, int], Any]


class Size(NamedTuple):
    """Most positions and flips that are shown of a pair, and bytes of all pairs."""

    positions: int
    flips: int
    bytes: int


FILE = Size(1500, 100, 3_000_000)  # a position takes 0.8 KB
# a position takes 0.2 KB in a notebook's cell, styles come on top
CELL = Size(250, 10, 100_000)
MOST_MODULES = 600
# more strips are in a box that scrolls
_MOST_STRIPS = 8
_TOP = 3  # tokens of a side at a flip
_LONGEST_TOKEN = 60  # characters
# HTML elements that show the marks even without styles
_MARKS = {"flip": "b", "mismatch": "s"}
_OF_TOKENS = ("reference", "reference_margin", "variant", "variant_margin")
# of columns whose names are none
_TITLES = {
    "reference": "reference's argmax",
    "reference_margin": "reference's margin",
    "variant": "variant's argmax",
    "variant_margin": "variant's margin",
    "max_abs": "largest difference",
    "kl": "KL, nats",
    "neq_share": "share that differs",
    "rms": "RMS difference",
    "floor_rms": "noise floor, RMS",
    "ratio": "RMS / noise floor",
    "max_row_ulps": "max row ULPs",
    "agreement_share": "agreement",
    "near_ties": "differ at near ties",
    "beyond": "differ beyond",
    "smallest_margin_row_ulps": "smallest margin, row ULPs",
    "largest_flip_row_ulps": "largest margin of one that differs",
    "neq": "elements that differ",
    "name": "kernel",
    "only": "only in",
    "reference_launches": "reference's launches",
    "variant_launches": "variant's launches",
    "noise_ratio": "RMS / noise floor",
    "reference_share": "reference's throughput / baseline",
    "variant_share": "variant's throughput / baseline",
    "refusal": "not measured",
}


def sections(
    run: RunReader,
    pair: StoredPair,
    answer: Answer,
    size: Size,
    explain: Explain | None,
) -> Iterator[tuple[str, Markup]]:
    """Yield the title and content of every section that the pair has; of a CELL those of text.

    explain: looks for the causes of a pair, which takes seconds; None leaves them out.
    """
    import pandas as pd

    header = run.header
    prompts = []
    if run.has_rollouts:
        prompts = [row["prompt"] for row in rl.summary(run, "heaviest")[:_MOST_STRIPS]]
    elif header.is_long:
        prompts = run.largest(pair.index)["prompt"].tolist()
    if prompts:
        each = [run.positions_of(pair.index, prompt) for prompt in prompts]
        figures = pd.concat(each, ignore_index=True)
    else:
        figures = run.positions(pair.index)
    yield "", join(_verdict(answer), facts({} if run.has_rollouts else headline(run, pair)))
    if answer.checks:
        yield "Checks", _checks(answer)
    if run.has_rollouts:
        yield "Trainer vs. rollout", _rollouts(run)
    yield "Tokens" if header.has_tokens else "Rows", _tokens(run, pair, figures, size)
    if figures["is_flip"].any():
        yield "Flips", _flips(run, pair, figures, size)
    for title, parts in _charted(run, pair, figures):
        # a cell has the sentence, without the charts
        shown = islice(parts, 1) if size is CELL else parts
        yield title, join(*shown)
    is_short_list = header.is_list and not header.is_long
    is_explained = (run.has_all_logits or is_short_list) and header.has_tokens
    if explain and is_explained and not pair.summary.bit_identical:
        yield "Common causes", _causes(explain(run, pair.index))


def _charted(
    run: RunReader,
    pair: StoredPair,
    figures: DataFrame,
) -> Iterator[tuple[str, Iterator[Markup]]]:
    """Yield the other sections, each a sentence, then charts and tables."""
    continued = flips.continuations(run).query("pair == @pair.index")
    if len(continued):
        yield "Continuations", _continuations(run, pair, continued)
    if not pair.summary.bit_identical:
        if figures["reference_margin"].notna().any():
            yield "Near ties", _near_ties(run, figures)
        if not run.header.is_list:
            yield "Heatmap", _heatmap(run, pair, figures)
    if pair.index in run.pairs_with_layers:
        yield "Layers", _layers(run, pair)
    if pair.index in run.pairs_with_choices:
        yield "Choices", _choices(run, pair)
    if pair.index in run.pairs_with_kv:
        yield "KV cache", _kv_cache(run, pair)
    if kernels.is_watched(run, pair.index):
        yield "Kernels", _kernels(run, pair)
    if rows := run.mitigations.get(pair.index):
        yield "Mitigations", _mitigations(rows)


def _verdict(answer: Answer) -> Markup:
    kind = "open"
    if answer.name in FAILING:
        kind = "bad"
    elif answer.name in (IDENTICAL, ROUNDING):
        kind = "good"
    says = prose(opening(answer.sentence))
    parts = [element("p", element("strong", answer.name), " ", says)]
    if answer.facts:
        parts.append(facts(answer.facts))
    if answer.next_command:
        parts.append(element("p", "Next: ", element("code", answer.next_command)))
    return element("div", *parts, class_=f"answer {kind}")


def _checks(answer: Answer) -> Markup:
    rows = []
    for title, row in answer.titled_checks:
        outcome = element("span", row.outcome, class_=row.outcome.replace(" ", "-"))
        result = join(prose(row.says), element("small", prose(row.control)))
        rows.append((outcome, title, result))
    return join(
        table(("outcome", "check", "result"), rows, "Checks", class_="box stack"),
        element("p", answer.not_run_line),
    )


def _rollouts(run: RunReader) -> Markup:
    import pandas as pd

    figures = pd.DataFrame(rl.figures_of(run))
    bins = pd.DataFrame(rl.summary(run, "histogram"))
    titles = {"name": "figure", "low": "95 % interval, from", "high": "to"}
    shown = ("name", "value", "low", "high", "usual", "definition")
    span = max(1.0, bins["r"].abs().max() + 0.1)
    x = Axis("r = trainer - rollout, nats (8 and beyond: last bins)", -span, span)
    y = Axis("tokens, log scale", 0.5, 2.0 * bins["tokens"].max(), is_log=True)
    bins["share"] = bins["kl"] / max(bins["kl"].sum(), 1e-300)
    half = 100 / 64 / span
    marks = []
    for row in bins.itertuples():
        title = f"r = {row.r:g}: {row.tokens:,} tokens, {percent(row.share)} of the KL"
        marks.append(
            bar(
                x.at(row.r) - half,
                2 * half,
                y.at(row.tokens),
                "reference",
                title,
            )
        )
    for limit in np.log((TIS, *ICEPOP)):
        if abs(limit) < span:
            marks.append(line([x.at(limit)] * 2, (0, 100), "limit"))
    legend = {"reference": "tokens", "limit": "bars of TIS and IcePop"}
    return join(
        element("p", rl.sentence(rl.mismatch_json(run))),
        _steps(run),
        listing(figures, shown, "Trainer vs. rollout", titles),
        chart(
            "Tokens by r",
            x,
            y,
            marks,
            legend,
            260,
        ),
    )


def _steps(run: RunReader) -> Markup:
    """Return mean |r| and k3 by training step, the last ones of many; nothing of a single one."""
    every = rl.summary(run, "steps")
    rows = every[-FILE.positions :]
    limit = bar_of("k3")
    if len(rows) < 2 or limit is None:
        return Markup()
    sizes = [row[name] for row in rows for name in ("mean_abs", "k3") if row[name]]
    x = Axis("step", rows[0]["step"] - 0.5, rows[-1]["step"] + 0.5, step=1)
    y = _log_axis("nats, log scale", np.array([limit.high, *sizes]))
    xs = [x.at(row["step"]) for row in rows]
    marks = [line((0, 100), [y.at(limit.high)] * 2, "limit")]
    for kind, name in (("reference", "mean_abs"), ("variant", "k3")):
        # zeros are not on the axis
        ys = [y.at(row[name] or np.nan) for row in rows]
        marks.append(line(xs, ys, f"stream {kind}"))
    legend = {
        "reference": "mean |r|",
        "variant": "k3",
        "limit": f"usual k3: {limit.span} ({limit.framework})",
    }
    title = "Mean |r| and k3 by training step, log scale"
    if len(rows) < len(every):
        title += f", last {len(rows):,} of {len(every):,} steps"
    return chart(title, x, y, marks, legend, 220)


def _non_null(values: Any) -> Any:
    """Return values as objects, None for what is undefined."""
    return values.astype(object).where(values.notna(), None)


def _rows(table: DataFrame) -> Iterator[Any]:
    return _non_null(table).itertuples(index=False)


def _text(value: Any) -> str:
    """Return the text of a cell; '' if it is undefined."""
    if value is None:
        return ""
    return value if isinstance(value, str) else number(value)


def _visible(token: str) -> str:
    return clip(visible(token) or "∅", _LONGEST_TOKEN)


def listing(
    figures: DataFrame,
    shown: Sequence[str],
    label: str,
    titles: Mapping[str, str] = _TITLES,
) -> Markup:
    """Return a table of some columns. titles: of the names that are none."""
    figures = figures[[*shown]].dropna(axis="columns", how="all")
    head = [titles.get(name, name) for name in figures]
    rows = [[*map(_text, row)] for row in _rows(figures)]
    return table(head, rows, label)


def _around(figures: DataFrame, most: int) -> DataFrame:
    """Return the rows that are shown: all, or so many around the telling one."""
    if len(figures) <= most:
        return figures
    is_telling = (figures[["prompt", "position"]] == list(flips.telling_place(figures))).all(axis=1)
    start = min(max(0, is_telling.argmax() - most // 2), len(figures) - most)
    return figures[start : start + most]


def _tokens(run: RunReader, pair: StoredPair, figures: DataFrame, size: Size) -> Markup:
    import pandas as pd

    header = run.header
    window = _around(figures, size.positions)
    is_rollout = run.has_rollouts
    shade = heat(window, "largest difference", header.compute_dtype, header.unit)
    window = window.assign(
        level=shade.levels,
        link=window["is_flip"] & (figures["is_flip"].cumsum() <= size.flips),
    )
    parts = []
    tables = []
    rows = rl.summary(run, "heaviest") if is_rollout else []
    steps = {row["prompt"]: row["step"] for row in rows}
    for number_of, part in window.groupby("prompt", sort=False):
        # of lists: those that were compared
        prompt = _prompt(run, number_of)
        places = part["position"].tolist()
        previous = places[0]
        if header.has_several_prompts or len(part) < prompt.positions:
            name = f"{'Sequence' if is_rollout else 'Prompt'} {number_of}"
            if (step := steps.get(number_of)) is not None:
                name += f", step {step:.0f}"
            parts.append(element("h4", f"{name}, positions {previous:,} to {places[-1]:,}"))
        ids = places
        if prompt.token_ids:
            ids = [prompt.token_ids[place] for place in places]
        what = "token" if prompt.token_ids or header.has_tokens else "row"
        texts = [f"{token} " for token in ids]
        names = [f"{what} {token}" for token in ids]
        if any(prompt.token_texts):
            texts = names = [_visible(prompt.token_texts[place]) for place in places]
            if prompt.token_ids:
                names = [f"{text} ({token})" for text, token in zip(texts, ids, strict=True)]
        state = np.select([part["is_flip"], part["near_tie"]], ["flip", "near tie"], "")
        argmaxes = {
            side: [_argmax(run, token) for token in _non_null(part[f"{side}_token"])]
            for side in flips.SIDES
        }
        part = part.assign(prompt=number_of, token=names, state=state, **argmaxes)
        tables.append(part)
        spans: list[Markup] = []
        for row, text in zip(_rows(part), texts, strict=True):
            if row.position > previous + 1:
                # of lists there are positions that were not compared
                spans.append(Markup("… "))
            previous = row.position
            mark = "mismatch" if row.nonfinite_mismatch else row.state.replace("near tie", "")
            content = text.replace("↵", "↵\n")
            if mark:
                content = element(_MARKS[mark], content)
            size_here = f"{_text(row.max_abs)} {header.unit} {row.state}"
            spans.append(
                element(
                    "a" if row.link else "span",
                    content,
                    class_=f"h{row.level or 0} {mark}",
                    title=f"position {row.position}, {row.token}: {size_here}",
                    href=f"#f{pair.index}-{number_of}-{row.position}" if row.link else None,
                )
            )
        # without spaces between tokens a browser could not break the line
        parts.append(element("p", join(*spans, between="<wbr>"), class_="strip"))
    legend: list[object] = [shade.unit, _scale("scale", shade.low, shade.high)]
    if window["is_flip"].any():
        legend.append(element("b", "flip", class_="flip"))
    if window["nonfinite_mismatch"].any():
        legend.append(element("s", "NaN or infinity on one side", class_="mismatch"))
    strips = join(*parts)
    if len(parts) > _MOST_STRIPS:
        strips = scrolling(strips, "Tokens")
    note = folded = ""
    if len(window) < len(figures) or is_rollout or header.is_long:
        which = "of the worst sequences" if is_rollout else "around the most telling one"
        note = f"{len(window):,} of {plural(header.rows, 'position')} are shown: those {which}."
        note = element("p", note)
    if size is FILE:
        title = "Figures by position"
        of_tokens = _OF_TOKENS if header.has_tokens else ()
        shown = "prompt", "position", "token", "state", *of_tokens, "max_abs", "max_row_ulps", "kl"
        titles = _TITLES | {"max_row_ulps": "row ULPs"}
        folded = fold(title, listing(pd.concat(tables), shown, title, titles))
    return join(note, strips, element("p", join(*legend, between=" "), class_="legend"), folded)


def _scale(kind: str, low: str | None, high: str | None) -> Markup:
    """Return the ends of a scale of colors around its bar, `high` alone without `low`."""
    start = join(element("b", low), element("span", " to ", class_=kind)) if low else ""
    return element("span", start, element("b", high or ""), class_="ends")


def _prompt(run: RunReader, number_of: int) -> Prompt:
    """Return the tokens of a prompt, of a rollout those of the sequence."""
    prompt = run.header.prompts[number_of]
    if not run.has_rollouts:
        return prompt
    tokens = rl.tokens_of(run, number_of)
    texts = join_bytes(tokens["text"].fillna("").tolist())
    return Prompt(prompt.positions, tuple(tokens["token_id"]), tuple(texts))


def _argmax(run: RunReader, token: int | None) -> str:
    """Return `·self (301)`, or the id of a token whose text is unknown; '' for no token."""
    if token is None:
        return ""
    if token not in run.vocabulary:
        return f"token {token}"
    return f"{_visible(run.vocabulary[token])} ({token})"


def _flips(run: RunReader, pair: StoredPair, figures: DataFrame, size: Size) -> Markup:
    every = figures[figures["is_flip"]]
    first_choices = choices.first_flips(run, pair.index)
    shown = every.head(size.flips)
    unit, margins = flips.margin_texts(shown, run.header.unit)
    rows = []
    for row, margin in zip(_rows(shown), margins, strict=True):
        texts = run.header.prompts[row.prompt].token_texts
        place = f"{row.position:,}{run.header.of_prompt(row.prompt)}"
        context = element("small", f"after {_visible(texts[row.position])}") if texts else ""
        if row.position >= first_choices.get(row.prompt, np.inf):
            context = join(context, element("small", "behind another choice"))
        tops = run.top_tokens([0, pair.index + 1], row.prompt, row.position)
        lists = [_top(run, top) for top in tops]
        cells = [join(place, context), *lists, margin, _text(row.max_abs)]
        name = f"f{pair.index}-{row.prompt}-{row.position}"
        rows.append(element("tr", *(element("td", cell) for cell in cells), id=name))
    note = ""
    if len(every) > len(rows):
        note = f"{len(rows):,} of {len(every):,} flips are listed."
    sides = f"reference: {pair.reference}", f"variant: {pair.variant}"
    head = ("position", *sides, f"margins, {unit}", "largest difference")
    return join(
        element("p", prose(flips.flips_sentence(figures)), " ", note),
        table(head, rows, "Flips"),
    )


def _top(run: RunReader, top: DataFrame) -> Markup:
    """Return the top tokens of a side with logits and probabilities."""
    items = []
    for token, row in top.head(_TOP).iterrows():
        about = f" {row.logit:.9g}"
        if not np.isnan(row.probability):
            about += f", {percent(row.probability)}"
        items.append(element("li", element("code", _argmax(run, token)), about))
    return element("ol", *items)


def _log_axis(title: str, values: Any, zero: float | None = None) -> Axis:
    return Axis(
        title,
        values.min() / 2,
        values.max() * 2,
        True,
        zero,
    )


def _near_ties(run: RunReader, figures: DataFrame) -> Iterator[Markup]:
    yield element("p", prose(flips.near_ties_sentence(figures)))
    points, x_zero, y_zero = flips.margin_points(figures)
    unit = run.header.unit
    across = _log_axis(f"largest difference at the position, {unit}", points["x"], x_zero)
    up = _log_axis(f"smaller margin of the two sides, {unit}", points["y"], y_zero)
    # after zeros
    start = max((x_zero or across.low) * 1.5, (y_zero or up.low) * 0.75)
    end = min(across.high, up.high / 2)
    marks = []
    legend = {}
    if start < end:
        legend["bound"] = "margin = 2 x difference"
        xs, ys = (across.at(start), across.at(end)), (up.at(2 * start), up.at(2 * end))
        marks.append(line(xs, ys, "bound"))
    shares = points["margin"] / points["difference"].clip(lower=1e-300)
    order = shares.sort_values(kind="stable").index[: FILE.positions]
    nearest = points.loc[order].sort_index()
    kinds = ("quiet", "reference", "variant", "mismatch")
    for name, kind in zip(flips.KINDS, kinds, strict=True):
        shown = nearest[nearest["kind"] == name]
        if len(shown):
            legend[kind] = f"{name} ({(points['kind'] == name).sum():,})"
        for row in shown.itertuples():
            title = (
                f"prompt {row.prompt}, position {row.position}: margin {number(row.margin)},"
                f" largest difference {number(row.difference)}"
            )
            radius = 5 if kind == "variant" else 3
            marks.append(dot(across.at(row.x), up.at(row.y), kind, title, radius))
    note = ""
    if len(points) > len(nearest):
        note = f" {len(nearest):,} of {len(points):,} are drawn: the nearest to a flip."
    yield element("p", "Positions can flip only below the line.", note)
    label = "Margins and differences of every position, log scales"
    yield chart(
        label,
        across,
        up,
        marks,
        legend,
        380,
    )


def _heatmap(run: RunReader, pair: StoredPair, figures: DataFrame) -> Iterator[Markup]:
    yield element("p", prose(heatmap.sentence(run, figures)))
    grid = overview(run, pair, figures)
    label = "Heatmap: largest differences by position and token"
    marks = [picture(grid.levels), *grid.bands()]
    yield chart(
        label,
        grid.x,
        grid.y,
        marks,
        {},
        340,
    )
    yield element(
        "p",
        grid.unit,
        _scale("ulps", "0", number(grid.highest)),
        class_="legend",
    )
    yield element("p", grid.note, class_="note")


def _layers(run: RunReader, pair: StoredPair) -> Iterator[Markup]:
    modules = layers.modules(run, pair.index)
    yield element("p", prose(layers.sentence(run, pair.index, modules)))
    differing = modules[modules["rms"] > 0]
    if len(differing):
        streams = modules[modules["kind"] == layers.RESIDUAL]
        ends = {row: str(block) for row, block in every_few(streams["block"], 12).items()}
        title = "execution order; ticks: end of each layer"
        x = Axis(title, -0.5, max(len(modules), 2) - 0.5, labels=ends)
        sizes = np.concatenate([differing["rms"], streams["floor_rms"].to_numpy(float)])
        y = _log_axis("RMS difference", sizes[sizes > 0])
        marks = []
        for name, kind in (("floor_rms", "limit"), ("rms", "stream")):
            xs = [x.at(row) for row in streams.index]
            ys = [y.at(value) if value > 0 else np.nan for value in streams[name]]
            marks.append(line(xs, ys, kind))
        for row in differing.itertuples():
            title = f"{row.module}: RMS {number(row.rms)}, noise floor {number(row.floor_rms)}"
            marks.append(dot(x.at(row.Index), y.at(row.rms), "reference", clip(title, 200)))
        legend = {"reference": "module", "stream": "residual stream"}
        if (modules["floor_rms"] > 0).any():
            legend["limit"] = "noise floor"
        yield chart(
            "RMS difference of every module, log scale",
            x,
            y,
            marks,
            legend,
        )
    kinds = modules["kind"].map(layers.kind_word)
    top_modules = modules.assign(kind=kinds).head(MOST_MODULES)
    shown = ("module", "kind", "neq_share", "rms", "floor_rms", "ratio", "max_row_ulps")
    title = "Modules"
    if len(modules) > MOST_MODULES:
        title += f", {MOST_MODULES:,} of {len(modules):,}"
    yield fold(title, listing(top_modules, shown, "Modules"))


def _choices(run: RunReader, pair: StoredPair) -> Iterator[Markup]:
    modules = choices.by_module(run, pair.index)
    yield element("p", prose(choices.sentence(run, pair.index, modules)))
    first = choices.first_flip(modules)
    if first is not None:
        prompt = first["first_prompt"]
        cells = choices.cells(run, pair.index, prompt, MOST_CELLS)
        states = cells.pivot(index="row", columns="cell", values="value").fillna(0)
        # nothing, the first color of the scale, that of a mismatch
        levels = np.array([0, 1, LEVELS + 1], np.uint8)[states.to_numpy(int)]
        names = choices.short_names(modules)
        named = every_few(range(len(states)), 12)
        labels = {place + 0.5: names[states.index[place]] for place in named}
        y = Axis("module", len(states), 0, labels=labels)
        start, end = cells["first_position"].min(), cells["last_position"].max() + 1
        x = Axis(f"position{run.header.of_prompt(prompt)}", start, end, step=1)
        legend = {"near-tie": "near tie", "mismatch": "beyond"}
        yield chart(
            "Choices by layer and position",
            x,
            y,
            [picture(levels)],
            legend,
            240,
        )
    yield element("p", prose(choices.rule(run, pair.index, modules)), class_="note")
    shown = (
        "module",
        "agreement_share",
        "choices",
        "near_ties",
        "beyond",
        "smallest_margin_row_ulps",
        "largest_flip_row_ulps",
    )
    yield fold("By layer", listing(modules, shown, "Choices by layer"))


def _continuations(
    run: RunReader,
    pair: StoredPair,
    continued: DataFrame,
) -> Iterator[Markup]:
    yield element("p", prose(opening(flips.outcome(continued))))
    is_open: str | None = ""
    for row in _rows(continued.head(_MOST_STRIPS)):
        generation = run.generations[row.prompt].tokens
        agreed = row.agreed_tokens
        texts = []
        for side, name in ((0, pair.reference), (pair.index + 1, pair.variant)):
            tokens = join_bytes([run.vocabulary.get(t, f"token {t} ") for t in generation[side]])
            other = "".join(tokens[agreed:])
            rest = element("b", other) if other else ""
            texts.append(element("h4", name))
            texts.append(element("pre", "".join(tokens[:agreed]), rest, tabindex="0"))
        common = f"{agreed:,} of {plural(row.compared_tokens, 'token')} in common"
        yield fold(f"Prompt {row.prompt}: {common}", *texts, open=is_open)
        is_open = None


def _kv_cache(run: RunReader, pair: StoredPair) -> Iterator[Markup]:
    summary = caches.summaries(run, pair.index)[None]
    yield element("p", prose(caches.sentence(run.header, summary)))
    table = caches.merge(
        run,
        pair.index,
        None,
        "layer",
        "kind",
    )
    differing = table[table["rms"] > 0]
    if len(differing):
        x = Axis("layer", -0.5, table["layer"].max() + 0.5, step=1)
        y = _log_axis("RMS difference, log scale", differing["rms"])
        marks = []
        for row in _rows(differing):
            kind = f"{row.kind}s"
            title = f"layer {row.layer}, {kind}: RMS {number(row.rms)}"
            marks.append(dot(x.at(row.layer), y.at(row.rms), kind, title))
        legend = {"keys": "keys", "values": "values"}
        yield chart(
            "RMS difference of keys and values by layer",
            x,
            y,
            marks,
            legend,
            220,
        )
    shown = ("layer", "kind", "neq", "elements", "rms", "max_row_ulps")
    yield fold("By layer", listing(table, shown, "KV cache by layer"))


def _kernels(run: RunReader, pair: StoredPair) -> Iterator[Markup]:
    names = pair.reference, pair.variant
    table = kernels.side_by_side(run, pair.index)
    yield element("p", prose(opening(kernels.counts_in_words(table, names))))
    if start := kernels.find_start(run, pair.index):
        yield element("p", prose(kernels.place_in_words(run.header, start, names)))
    table = table.assign(name=table["name"].map(kernels.short_name))
    differs = (table["only"] != "") | table["is_multiplied"]
    shown = ("name", "library", "only", "reference_launches", "variant_launches")
    for title, part in (("Kernels that differ", differs), ("Other kernels", ~differs)):
        if part.any():
            yield fold(f"{title}: {int(part.sum()):,}", listing(table[part], shown, title))


def _mitigations(rows: Sequence[MitigationRow]) -> Iterator[Markup]:
    import pandas as pd

    yield element("p", advice(rows).replace("->", "→"))
    shown = (
        "name",
        "neq",
        "rms",
        "noise_ratio",
        "flips",
        "reference_share",
        "variant_share",
        "refusal",
    )
    yield listing(pd.DataFrame(rows), shown, "Mitigations", _TITLES | {"name": "mitigation"})


def _causes(explanation: Any) -> Markup:
    """Return what was found of a pair. explanation: of `core.judging`, which is above this."""
    causes = [
        element("li", element("b", each.name), ": ", each.text) for each in explanation.causes
    ]
    lead = element("ul", *causes) if causes else element("p", "No common cause fits.")
    return join(lead, element("p", explanation.says, class_="note"))
