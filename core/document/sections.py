"""Sections of a pair: what the pages show of it, as text, tables and charts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..markup import Markup, element, facts, fold, join, prose, scrolling, table
from ..rl import queries as rl
from ..rl.figures import ICEPOP, TIS
from ..runs.file.records import Prompt, StoredPair
from ..runs.queries import caches, flips, heatmap, kernels, layers
from ..runs.queries.heat import heat
from ..runs.queries.verdicts import Answer
from ..runs.reader import RunReader
from ..runs.reports.issue_markdown import headline
from ..text import clip, join_bytes, number, opening, percent, plural, visible
from ..verdict import FAILING, IDENTICAL, ROUNDING
from .charts import Axis, bar, chart, dot, line, picture
from .grid import overview

if TYPE_CHECKING:
    import pandas as pd


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
_ABOUT = {"": "'s argmax", "_margin": "'s margin"}  # of either side, in the table of positions


def sections(
    run: RunReader,
    pair: StoredPair,
    answer: Answer,
    size: Size = FILE,
    explain: Explain | None = None,
) -> Iterator[tuple[str, Markup]]:
    """Yield the title and content of every section that the pair has; of a CELL those of text.

    explain: looks for the causes of a pair, which takes seconds; None leaves them out.
    """
    import pandas as pd

    is_rollout = run.has_rollouts()
    if is_rollout:
        worst = [row["prompt"] for row in rl.summary(run, "heaviest")[:_MOST_STRIPS]]
        each = [run.positions_of(pair.index, prompt) for prompt in worst]
        figures = pd.concat(each, ignore_index=True)
    elif run.header.is_long:
        figures = run.positions_of(pair.index, int(run.largest(pair.index)["prompt"].iloc[0]))
    else:
        figures = run.positions(pair.index)
    yield "", join(_verdict(answer), facts({} if is_rollout else headline(run, pair)))
    if answer.checks:
        yield "Checks", _checks(answer)
    if is_rollout:
        yield "Trainer vs. rollout", _rollouts(run)
    yield "Tokens" if run.header.has_tokens else "Rows", _tokens(run, pair, figures, size)
    if figures["is_flip"].any():
        yield "Flips", _flips(run, pair, figures, size)
    for title, parts in _charted(run, pair, figures):
        # a cell has the sentence, without the charts
        yield title, join(*(islice(parts, 1) if size is CELL else parts))
    is_explained = run.has_all_logits or (run.header.k is not None and not run.header.is_long)
    is_explained = is_explained and run.header.has_tokens
    if explain is not None and is_explained and not pair.summary.bit_identical:
        yield "Common causes", _causes(explain(run, pair.index))


def _charted(
    run: RunReader,
    pair: StoredPair,
    figures: pd.DataFrame,
) -> Iterator[tuple[str, Iterator[Markup]]]:
    """Yield the other sections, each a sentence, then charts and tables."""
    continued = flips.continuations(run)
    continued = continued[continued["pair"] == pair.index]
    if len(continued):
        yield "Continuations", _continuations(run, pair, continued)
    if not pair.summary.bit_identical and figures["reference_margin"].notna().any():
        yield "Near ties", _near_ties(run, figures)
    if not pair.summary.bit_identical and run.header.k is None:
        yield "Heatmap", _heatmap(run, pair, figures)
    if pair.index in run.pairs_with_layers:
        yield "Layers", _layers(run, pair)
    if pair.index in run.pairs_with_kv:
        yield "KV cache", _kv_cache(run, pair)
    if kernels.is_watched(run, pair.index):
        yield "Kernels", _kernels(run, pair)


def _verdict(answer: Answer) -> Markup:
    kind = "open"
    if answer.name in FAILING:
        kind = "bad"
    elif answer.name in (IDENTICAL, ROUNDING):
        kind = "good"
    parts = [element("p", element("strong", answer.name), " ", prose(opening(answer.sentence)))]
    if answer.facts:
        parts.append(facts(answer.facts))
    if answer.next_command:
        parts.append(element("p", "Next: ", element("code", answer.next_command)))
    return element("div", *parts, class_=f"answer {kind}")


def _checks(answer: Answer) -> Markup:
    rows = [
        (
            element("span", row.outcome, class_=row.outcome.replace(" ", "-")),
            title,
            join(prose(row.says), element("small", prose(row.control))),
        )
        for title, row in answer.titled_checks
    ]
    checks = table(("outcome", "check", "result"), rows, "Checks", class_="box stack")
    return join(checks, element("p", answer.not_run_line))


def _rollouts(run: RunReader) -> Markup:
    import pandas as pd

    figures, bins = (
        pd.DataFrame(rows) for rows in (rl.figures_of(run), rl.summary(run, "histogram"))
    )
    titles = {
        "name": "figure",
        "value": "value",
        "low": "95 % interval, from",
        "high": "to",
        "usual": "usual",
    }
    span = max(1.0, float(bins["r"].abs().max()) + 0.1)
    x = Axis("r = trainer - rollout, nats (8 and beyond: last bins)", -span, span)
    y = Axis("tokens, log scale", 0.5, 2.0 * float(bins["tokens"].max()), is_log=True)
    share, half = bins["kl"] / max(float(bins["kl"].sum()), 1e-300), 100 / 64 / span
    marks = [
        bar(
            x.at(r) - half,
            2 * half,
            y.at(count),
            "reference",
            f"r = {r:g}: {count:,} tokens, {percent(kl)} of the KL",
        )
        for r, count, kl in zip(bins["r"], bins["tokens"], share, strict=True)
    ]
    bars = [x.at(float(np.log(ratio))) for ratio in (TIS, *ICEPOP) if abs(np.log(ratio)) < span]
    marks += [line((place, place), (0, 100), "limit") for place in bars]
    return join(
        element("p", rl.sentence(rl.mismatch_json(run))),
        listing(figures, titles | {"definition": "definition"}, "Trainer vs. rollout"),
        chart(
            "Tokens by r",
            x,
            y,
            marks,
            {"reference": "tokens", "limit": "bars of TIS and IcePop"},
            260,
        ),
    )


def _non_null(values: pd.Series | pd.DataFrame) -> Any:
    """Return values as objects, None for what is undefined."""
    return values.astype(object).where(values.notna(), None)


def _rows(table: pd.DataFrame) -> Iterator[Any]:
    return _non_null(table).itertuples(index=False)


def _text(value: Any) -> str:
    """Return the text of a cell; '' if it is undefined."""
    if value is None:
        return ""
    return value if isinstance(value, str) else number(value)


def _visible(token: str) -> str:
    return clip(visible(token) or "∅", _LONGEST_TOKEN)


def listing(figures: pd.DataFrame, titles: Mapping[str, str], label: str) -> Markup:
    """Return a table of some columns. titles: by the names of the columns."""
    figures = figures[[*titles]].dropna(axis="columns", how="all")
    return table(
        [titles[name] for name in figures],
        [[*map(_text, row)] for row in _rows(figures)],
        label,
    )


def _around(figures: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return the rows that are shown: all, or so many around the telling one."""
    if len(figures) <= most:
        return figures
    prompt, position = flips.telling_place(figures)
    row = int(np.flatnonzero((figures["prompt"] == prompt) & (figures["position"] == position))[0])
    start = min(max(0, row - most // 2), len(figures) - most)
    return figures.iloc[start : start + most]


def _tokens(run: RunReader, pair: StoredPair, figures: pd.DataFrame, size: Size) -> Markup:
    import pandas as pd

    header, window = run.header, _around(figures, size.positions)
    is_rollout = run.has_rollouts()
    shade = heat(window, "largest difference", header.compute_dtype, header.unit)
    window = window.assign(
        level=shade.levels,
        link=window["is_flip"] & (figures["is_flip"].cumsum() <= size.flips),
    )
    parts, tables = [], []
    for number_of, part in window.groupby("prompt", sort=False):
        # of lists: those that were compared
        prompt, places = _prompt(run, number_of), part["position"].tolist()
        previous, last = places[0], places[-1]
        if len(header.prompts) > 1 or len(part) < prompt.positions:
            name = f"{'Sequence' if is_rollout else 'Prompt'} {number_of}"
            parts.append(element("h4", f"{name}, positions {previous:,} to {last:,}"))
        ids = [prompt.token_ids[place] for place in places] if prompt.token_ids else places
        what = "token" if prompt.token_ids or header.has_tokens else "row"
        texts, names = [f"{token} " for token in ids], [f"{what} {token}" for token in ids]
        if any(prompt.token_texts):
            texts = [_visible(prompt.token_texts[place]) for place in places]
            names = [
                f"{text} ({token})" if prompt.token_ids else text
                for text, token in zip(texts, ids, strict=True)
            ]
        state = np.select([part["is_flip"], part["near_tie"]], ["flip", "near tie"], "")
        spans: list[Markup] = []
        for row, text, name, kind in zip(_rows(part), texts, names, state, strict=True):
            if spans and row.position > previous + 1:
                # of lists there are positions that were not compared
                spans.append(Markup("… "))
            previous = row.position
            mark = "mismatch" if row.nonfinite_mismatch else kind.replace("near tie", "")
            title = f"position {row.position}, {name}: {_text(row.max_abs)} {header.unit} {kind}"
            link = f"#f{pair.index}-{number_of}-{row.position}" if row.link else None
            look = {"class_": f"h{row.level or 0} {mark}", "title": title, "href": link}
            content = (
                element(_MARKS[mark], text.replace("↵", "↵\n"))
                if mark
                else text.replace("↵", "↵\n")
            )
            spans.append(element("a" if row.link else "span", content, **look))
        # without spaces between tokens a browser could not break the line
        parts.append(element("p", join(*spans, between="<wbr>"), class_="strip"))
        argmaxes = {
            side: [_argmax(run, row) for row in _non_null(part[f"{side}_token"])]
            for side in flips.SIDES
        }
        tables.append(part.assign(prompt=number_of, token=names, state=state, **argmaxes))
    scale = [element("b", shade.low), element("span", " to ", class_="scale")] if shade.low else []
    signs = (
        ("flip", "is_flip", "flip"),
        ("mismatch", "nonfinite_mismatch", "NaN or infinity on one side"),
    )
    legend = [
        element(_MARKS[kind], text, class_=kind)
        for kind, column, text in signs
        if window[column].any()
    ]
    titles = {"prompt": "prompt", "position": "position", "token": "token", "state": "state"}
    if header.has_tokens:
        titles |= {
            f"{side}{what}": f"{side}{about}"
            for side in flips.SIDES
            for what, about in _ABOUT.items()
        }
    titles |= {"max_abs": "largest difference", "max_row_ulps": "row ULPs", "kl": "KL, nats"}
    title = "Figures by position"
    which = "of the worst sequences" if is_rollout else "around the most telling one"
    note = f"{len(window):,} of {plural(header.rows, 'position')} are shown: those {which}."
    return join(
        element("p", note) if len(window) < len(figures) or is_rollout or header.is_long else "",
        join(*parts) if len(parts) <= _MOST_STRIPS else scrolling(join(*parts), "Tokens"),
        element(
            "p",
            join(shade.unit, *scale, element("b", shade.high or ""), *legend, between=" "),
            class_="legend",
        ),
        fold(title, listing(pd.concat(tables), titles, title)) if size is FILE else "",
    )


def _prompt(run: RunReader, number_of: int) -> Prompt:
    """Return the tokens of a prompt, of a rollout those of the sequence."""
    prompt = run.header.prompts[number_of]
    if not run.has_rollouts():
        return prompt
    tokens = rl.tokens_of(run, number_of)
    texts = join_bytes(tokens["text"].fillna("").tolist())
    return Prompt(prompt.positions, tuple(tokens["token_id"]), tuple(texts))


def _argmax(run: RunReader, token: int | None) -> str:
    """Return `·self (301)`, or the id of a token whose text is unknown; '' for no token."""
    if token is None or token not in run.vocabulary:
        return "" if token is None else f"token {token}"
    return f"{_visible(run.vocabulary[token])} ({token})"


def _flips(run: RunReader, pair: StoredPair, figures: pd.DataFrame, size: Size) -> Markup:
    every = figures[figures["is_flip"]]
    rows = []
    for row in _rows(every.head(size.flips)):
        texts = run.header.prompts[row.prompt].token_texts
        place = f"{row.position:,}" + (
            f" of prompt {row.prompt}" if len(run.header.prompts) > 1 else ""
        )
        context = element("small", f"after {_visible(texts[row.position])}") if texts else ""
        tops = run.top_tokens([0, pair.index + 1], row.prompt, row.position)
        steps = [_text(getattr(row, f"{side}_margin_ulps")) or "undefined" for side in flips.SIDES]
        cells = [
            join(place, context),
            *(_top(run, top) for top in tops),
            " / ".join(steps),
            _text(row.max_abs),
        ]
        name = f"f{pair.index}-{row.prompt}-{row.position}"
        rows.append(element("tr", *(element("td", cell) for cell in cells), id=name))
    note = f"{len(rows):,} of {len(every):,} flips are listed." if len(every) > len(rows) else ""
    sides = f"reference: {pair.reference}", f"variant: {pair.variant}"
    head = ("position", *sides, "margins, ULPs", "largest difference")
    return join(
        element("p", prose(flips.flips_sentence(figures)), " ", note),
        table(head, rows, "Flips"),
    )


def _top(run: RunReader, top: pd.DataFrame) -> Markup:
    """Return the top tokens of a side with logits and probabilities."""
    items = []
    for token, row in top.head(_TOP).iterrows():
        share = "" if np.isnan(row.probability) else f", {percent(row.probability)}"
        items.append(
            element("li", element("code", _argmax(run, token)), f" {row.logit:.9g}{share}"),
        )
    return element("ol", *items)


def _log_axis(title: str, values: np.ndarray | pd.Series, zero: float | None = None) -> Axis:
    return Axis(title, float(values.min()) / 2, float(values.max()) * 2, True, zero)


def _near_ties(run: RunReader, figures: pd.DataFrame) -> Iterator[Markup]:
    yield element("p", prose(flips.near_ties_sentence(figures)))
    points = flips.margin_points(figures)
    (x, x_zero), (y, y_zero) = flips.above_zero(points.difference), flips.above_zero(points.margin)
    across = _log_axis(f"largest difference at the position, {run.header.unit}", x, x_zero)
    up = _log_axis(f"smaller margin of the two sides, {run.header.unit}", y, y_zero)
    # after zeros
    ends = (
        max((x_zero or across.low) * 1.5, (y_zero or up.low) * 0.75),
        min(across.high, up.high / 2),
    )
    marks, legend = [], {}
    if ends[0] < ends[1]:
        legend["bound"] = "margin = 2 x difference"
        marks.append(
            line([across.at(each) for each in ends], [up.at(2 * each) for each in ends], "bound"),
        )
    shares = points.margin / np.maximum(points.difference, 1e-300)
    nearest = np.argsort(shares, kind="stable")[: FILE.positions]
    kinds = ("quiet", "reference", "variant", "mismatch")
    for (name, mask), kind in zip(points.kinds.items(), kinds, strict=True):
        rows = np.sort(nearest[mask[nearest]])
        if len(rows):
            legend[kind] = f"{name} ({int(mask.sum()):,})"
        for row in rows:
            place = points.table.iloc[row]
            title = (
                f"prompt {place['prompt']}, position {place['position']}: margin"
                f" {number(points.margin[row])}, largest difference"
                f" {number(points.difference[row])}"
            )
            radius = 5 if kind == "variant" else 3
            marks.append(dot(across.at(x[row]), up.at(y[row]), kind, title, radius))
    note = ""
    if len(x) > len(nearest):
        note = f" {len(nearest):,} of {len(x):,} are drawn: the nearest to a flip."
    yield element("p", "Positions can flip only below the line.", note)
    label = "Margins and differences of every position, log scales"
    yield chart(label, across, up, marks, legend, 380)


def _heatmap(run: RunReader, pair: StoredPair, figures: pd.DataFrame) -> Iterator[Markup]:
    yield element("p", prose(heatmap.sentence(run, figures)))
    grid = overview(run, pair, figures)
    scale = [
        element("b", "0"),
        element("span", class_="ulps"),
        element("b", number(grid.highest)),
    ]
    label = "Heatmap: largest differences by position and token"
    marks = [picture(grid.levels), *grid.bands()]
    yield chart(label, grid.x, grid.y, marks, {}, 340)
    yield element("p", grid.unit, *scale, class_="legend")
    yield element("p", grid.note, class_="note")


def _layers(run: RunReader, pair: StoredPair) -> Iterator[Markup]:
    modules = layers.modules(run, pair.index)
    sentence = layers.sentence(run, pair.index, modules, names_prompt=len(run.header.prompts) > 1)
    rms, floor = (modules[name].to_numpy(float, na_value=np.nan) for name in ("rms", "floor_rms"))
    streams = np.flatnonzero(modules["kind"] == layers.RESIDUAL)
    positive = np.concatenate([rms, floor[streams]])
    positive = positive[positive > 0]
    yield element("p", prose(sentence))
    if (rms > 0).any():
        blocks = modules.loc[modules["kind"] == layers.RESIDUAL, "block"]
        ends = {
            float(row): str(block) for row, block in blocks[:: -(-len(blocks) // 12) or 1].items()
        }
        x = Axis(
            "execution order; ticks: end of each layer",
            -0.5,
            max(len(modules), 2) - 0.5,
            labels=ends,
        )
        y = _log_axis("RMS difference", positive)

        def path(values: np.ndarray, kind: str) -> Markup:
            return line(
                [x.at(row) for row in streams],
                [y.at(v) if v > 0 else np.nan for v in values[streams]],
                kind,
            )

        marks = [path(floor, "limit"), path(rms, "stream")]
        for row in np.flatnonzero(rms > 0):
            title = (
                f"{modules['module'].iloc[row]}: RMS {number(rms[row])}, noise floor"
                f" {number(floor[row])}"
            )
            marks.append(dot(x.at(row), y.at(rms[row]), "reference", clip(title, 200)))
        legend = {"reference": "module", "stream": "residual stream"}
        legend |= {"limit": "noise floor"} if (floor > 0).any() else {}
        yield chart("RMS difference of every module, log scale", x, y, marks, legend)
    top_modules = modules.assign(kind=modules["kind"].map(layers.kind_word)).head(MOST_MODULES)
    titles = {"module": "module", "kind": "kind", "neq_share": "share that differs"}
    titles |= {"rms": "RMS difference", "floor_rms": "noise floor, RMS"}
    titles |= {"ratio": "RMS / noise floor", "max_row_ulps": "max row ULPs"}
    note = f", {MOST_MODULES:,} of {len(modules):,}" if len(modules) > MOST_MODULES else ""
    yield fold(f"Modules{note}", listing(top_modules, titles, "Modules"))


def _continuations(
    run: RunReader,
    pair: StoredPair,
    continued: pd.DataFrame,
) -> Iterator[Markup]:
    yield element("p", prose(opening(flips.outcome(continued))))
    for row in _rows(continued.head(_MOST_STRIPS)):
        generation, agreed = run.generations[row.prompt].tokens, row.agreed_tokens
        texts = []
        for side, name in ((0, pair.reference), (pair.index + 1, pair.variant)):
            tokens = join_bytes([run.vocabulary.get(t, f"token {t} ") for t in generation[side]])
            same, other = ("".join(part) for part in (tokens[:agreed], tokens[agreed:]))
            texts.append(element("h4", name))
            texts.append(element("pre", same, element("b", other) if other else "", tabindex="0"))
        common = f"{agreed:,} of {plural(row.compared_tokens, 'token')} in common"
        is_first = row.prompt == continued["prompt"].iloc[0]
        yield fold(f"Prompt {row.prompt}: {common}", *texts, open="" if is_first else None)


def _kv_cache(run: RunReader, pair: StoredPair) -> Iterator[Markup]:
    summary = caches.summaries(run, pair.index)[None]
    yield element("p", prose(caches.sentence(summary, names_prompt=len(run.header.prompts) > 1)))
    table = caches.merge(run, pair.index, None, "layer", "kind")
    positive = table["rms"][table["rms"] > 0]
    if len(positive):
        x = Axis("layer", -0.5, float(table["layer"].max()) + 0.5, step=1)
        y = _log_axis("RMS difference, log scale", positive)
        marks = [
            dot(
                x.at(row.layer),
                y.at(row.rms),
                f"{row.kind}s",
                f"layer {row.layer}, {row.kind}s: RMS {number(row.rms)}",
            )
            for row in _rows(table[table["rms"] > 0])
        ]
        legend = {"keys": "keys", "values": "values"}
        yield chart("RMS difference of keys and values by layer", x, y, marks, legend, 220)
    titles = {"layer": "layer", "kind": "kind", "neq": "elements that differ"}
    titles |= {"elements": "elements", "rms": "RMS difference", "max_row_ulps": "max row ULPs"}
    yield fold("By layer", listing(table, titles, "KV cache by layer"))


def _kernels(run: RunReader, pair: StoredPair) -> Iterator[Markup]:
    names = pair.reference, pair.variant
    table = kernels.side_by_side(run, pair.index)
    yield element("p", prose(opening(kernels.counts_in_words(table, names))))
    start = kernels.find_start(run, pair.index)
    if start is not None:
        names_prompt = len(run.header.prompts) > 1
        says = kernels.place_in_words(start, names, names_prompt=names_prompt)
        yield element("p", prose(says))
    table = table.assign(name=table["name"].map(kernels.short_name))
    differs = (table["only"] != "") | table["is_multiplied"]
    titles = {"name": "kernel", "library": "library", "only": "only in"}
    titles |= {f"{side}_launches": f"{side}'s launches" for side in flips.SIDES}
    for title, part in (("Kernels that differ", differs), ("Other kernels", ~differs)):
        if part.any():
            yield fold(f"{title}: {int(part.sum()):,}", listing(table[part], titles, title))


def _causes(explanation: Any) -> Markup:
    """Return what was found of a pair. explanation: of `core.judging`, which is above this."""
    causes = [
        element("li", element("b", each.name), ": ", each.text) for each in explanation.causes
    ]
    lead = element("ul", *causes) if causes else element("p", "No common cause fits.")
    return join(lead, element("p", explanation.says, class_="note"))
