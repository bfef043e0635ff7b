"""The HTML file of a run: what it shows is in the run, nothing in it is live, and its size is
bounded.
"""

import base64
import hashlib
import html
import io
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from core.document import page, sections
from core.document.charts import Axis
from core.document.grid import MOST_CELLS, overview
from core.document.page import html_cell, html_file
from core.judging.axes import AXES
from core.judging.ingest import ingest
from core.judging.stored import explain_pair
from core.markup import element, prose
from core.rl.queries import summary, tokens_of
from core.runs.queries import caches
from core.runs.queries.heatmap import sentence
from core.runs.reader import RunReader
from core.runs.reports.issue_markdown import MOST_FLIPS, issue_text
from core.text import number, visible
from tests.core.probing.made_state import made_state, stored
from tests.core.responses.made_sides import engine_side, response, side, store_run
from tests.core.runs.damaging import with_texts
from tests.core.runs.made_runs import calm_sides, header_of, opened, sample, write_run
from tests.places import ROLLOUTS, ROOT, RUNS

HOSTILE = (
    "</style></title><script>alert(1)</script><img src=x onerror=alert(1)>\" onload='x' &lt; `code`"
    " **b**\u202e"
)
TAGS = (
    "html head meta title style body main header footer section details summary h1 h2 h3 h4 p b s"
    " strong small code pre span i a wbr div ol li dl dt dd table thead tbody tr th td figure"
    " figcaption svg line text circle rect image"
)
ATTRIBUTES = (
    "lang charset http-equiv content name class id href title open scope tabindex role aria-label"
    " x y x1 x2 y1 y2 dx dy cx cy r width height text-anchor preserveaspectratio image-rendering"
)


class Document(HTMLParser):
    """Elements of an HTML file, and the texts in them."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.texts = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)

    def of(self, tag, kind=""):
        of_tag = [about for name, about in self.elements if name == tag]
        return [
            about for about in of_tag if not kind or kind in (about.get("class") or "").split(" ")
        ]

    @property
    def tags(self):
        return {tag for tag, _ in self.elements}

    @property
    def attributes(self):
        return {name for _, about in self.elements for name in about}

    @property
    def text(self):
        return "".join(self.texts)


def shown(path):
    with RunReader(path) as run:
        return Document(html_file(run))


def test_the_policy_allows_the_style_sheet_and_pictures_in_the_file_alone():
    with sample("injected-bug") as run:
        text = html_file(run)
    (style,) = re.findall("<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = (each for each in Document(text).of("meta") if "http-equiv" in each)
    assert policy["content"] == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none';"
        " form-action 'none'"
    )
    assert "url(" not in style


@pytest.mark.parametrize(
    "sample",
    ["where-it-starts", "fresh-against-cached", "continuations-that-part"],
)
def test_no_text_of_a_run_becomes_markup(sample, tmp_path):
    path = tmp_path / "mine.duckdb"
    path.write_bytes((RUNS / f"{sample}.duckdb").read_bytes())
    with_texts(path, HOSTILE)
    with RunReader(path) as run:
        document = Document(html_file(run))
        cell = Document(html_cell(run))
    tags = set(TAGS.split())
    attributes = set(ATTRIBUTES.split())
    assert document.tags <= tags
    assert document.attributes <= attributes
    links = [about["href"] for _, about in document.elements if about.get("href")]
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert "<script>alert(1)</script>" in document.text
    assert "\u202e" not in document.text
    assert cell.tags <= tags | {"br"}
    assert cell.attributes - {"style"} <= attributes - {"id", "href"}
    classes = [about["class"] for _, about in cell.elements if "class" in about]
    assert classes == ["tex2jax_ignore mathjax_ignore"]
    assert "<script>alert(1)</script>" in cell.text


def test_an_element_escapes_its_text_and_its_attributes():
    assert element("b", "<i>", title='"&') == '<b title="&quot;&amp;">&lt;i&gt;</b>'
    assert element("b", element("i", "x"), class_=None) == "<b><i>x</i></b>"
    assert (
        prose("a `<b>` **c `d`** e") == "a <code>&lt;b&gt;</code> <b>c </b><b><code>d</code></b> e"
    )


def test_figures_flips_and_points_are_those_of_the_run():
    path = RUNS / "fresh-against-cached.duckdb"
    document = shown(path)
    with RunReader(path) as run:
        table = run.positions(0)
        pair = run.pairs[0]
        assert sentence(run, table).replace("*", "") in document.text
        flips = table[table["is_flip"]]
        place = flips.iloc[0][["prompt", "position"]]
        reference, _ = run.top_tokens([0, 1], *place)
    top = reference.iloc[0]
    assert f"{top['logit']:.9g}, {top['probability']:.1%}" in document.text
    assert pair.because in document.text
    listed = [about["id"] for about in document.of("tr") if about.get("id")]
    assert listed == [f"f0-{row.prompt}-{row.position}" for row in flips.itertuples()]
    links = [about["href"] for about in document.of("a", "flip")]
    assert links == [f"#{name}" for name in listed]
    assert len(document.of("circle", "variant")) == len(flips)
    points = [len(document.of("circle", kind)) for kind in ("quiet", "reference", "variant")]
    assert sum(points) == table["reference_margin"].notna().sum()


@pytest.mark.parametrize(
    ("name", "titles"),
    [
        ("continuations-that-part", ["Continuations", "KV cache", "Common causes"]),
        ("where-it-starts", ["Layers", "KV cache", "Kernels", "Mitigations", "Common causes"]),
    ],
)
def test_what_the_pages_have_of_a_pair_is_in_the_file(name, titles):
    with sample(name) as run:
        text = html_file(run, explain_pair)
        cell = html_cell(run)
        layers = [caches.merge(run, pair.index, None, "layer", "kind") for pair in run.pairs]
        written = [
            "".join(run.vocabulary[token] for token in side)
            for generation in run.generations.values()
            for side in generation.tokens
        ]
    assert set(titles) <= {*re.findall("<h3>(.*?)</h3>", text)}
    # common causes, the last title, are looked for in the file only
    assert {f"<b>{title}</b>" in cell for title in titles[:-1]} == {True}
    dots = re.findall("layer ([0-9]+), (key|value)s: RMS", text)
    differing = pd.concat(layers).query("rms > 0")
    drawn = zip(differing["layer"].map(str), differing["kind"], strict=True)
    assert sorted(dots) == sorted(drawn)
    shown = re.sub("</?b>", "", text)
    assert all(html.escape(each) in shown for each in written)


def test_a_cell_of_a_notebook_reads_without_its_styles():
    with RunReader(ROOT / "sample_runs/fresh-against-cached.duckdb") as run:
        cell = html_cell(run)
        table = run.positions(0)
        prompts = run.header.prompts
    flips = table[table["is_flip"]]
    tokens = [visible(prompts[row.prompt].token_texts[row.position]) for row in flips.itertuples()]
    strips = re.findall('<p style="white-space:pre-wrap[^>]*>(.*?)</p>', cell, re.DOTALL)
    bold = re.findall("<b>(.*?)</b>", "".join(strips), re.DOTALL)
    assert [html.unescape(token).rstrip("\n") for token in bold] == tokens
    assert not re.search("<h[1-6]|<svg|<style|<a href", cell)
    assert len(re.findall("<tr><td[^>]*>[0-9]+ of prompt", cell)) == len(flips)


@pytest.mark.parametrize("place", [(0, 0), (37, 40_001), (499, 49_999)])
def test_a_single_differing_logit_is_seen_in_the_heatmap(place, store):
    header = header_of("bfloat16", (500,), 50_000)
    reference = calm_sides(header)[0]
    variant = reference.copy()
    variant[place] ^= 1  # one ULP
    with RunReader(write_run(store, header, [reference, variant])) as run:
        grid = overview(run, run.pairs[0], run.positions(0))
        text = html_file(run)
    rows, columns = grid.levels.shape
    assert max(rows, columns) <= MOST_CELLS
    tall = grid.y.low / rows
    wide = grid.x.high / columns
    assert np.argwhere(grid.levels).tolist() == [[place[0] // tall, place[1] // wide]]
    assert columns <= 110  # as wide as three pixels on a phone
    (content,) = re.findall('data:image/png;base64,([^"]+)', text)
    image = Image.open(io.BytesIO(base64.b64decode(content)))
    assert np.array_equal(np.asarray(image), grid.levels)
    alpha = np.asarray(image.convert("RGBA"))[..., 3]
    assert np.array_equal(alpha > 0, grid.levels > 0)


def test_a_run_of_500_positions_and_three_variants_is_whole_and_within_three_megabytes(store):
    header = header_of("bfloat16", (500,), 4096, sides=4)
    with RunReader(write_run(store, header)) as run:
        text = html_file(run)
    assert len(text.encode()) <= 3_000_000
    document = Document(text)
    assert len(document.of("details", "pair")) == 3
    titles = [about.get("title") or "" for about in document.of("span")]
    assert sum("position 499" in title for title in titles) == 3


def test_what_is_too_large_is_cut_with_a_sentence(store, monkeypatch):
    path = write_run(store, header_of("bfloat16", (900,), 64, sides=4))
    # positions, flips and bytes
    small = sections.Size(600, 5, 500_000)
    for module in (page, sections):
        monkeypatch.setattr(module, "FILE", small)
    document = shown(path)
    pairs = len(document.of("details", "pair"))
    assert 1 <= pairs < 3
    assert re.search(f"{3 - pairs} variants? left out", document.text)
    marks = document.of("span") + document.of("a")
    assert sum("title" in about for about in marks) == 600 * pairs
    assert "600 of 900 positions are shown" in document.text
    assert sum("id" in about for about in document.of("tr")) == 5 * pairs
    assert len(document.of("circle")) == 600 * pairs
    with RunReader(path) as run:
        cell = html_cell(run)
    assert len(cell.encode()) < 200_000
    assert "250 of 900 positions are shown" in cell


def test_trainer_vs_rollout_has_its_figures_and_histogram(store):
    document = shown(store.path_of(ingest(store, [ROLLOUTS / "slime/train_data/2.pt"])))
    expected = np.load(ROLLOUTS / "expected.npz")
    assert "0.0121" in document.text  # mean |r|, as the Overview has it
    bars = re.findall("r = [-0-9.]+: ([0-9]+) tokens", document.text)
    tokens = [expected[f"mask{number}"].sum() for number in range(3)]
    assert sum(map(int, bars)) == sum(tokens)


def test_the_worst_sequences_of_a_rollout_stand_as_text():
    with RunReader(ROOT / "sample_runs/trainer-against-rollout.duckdb") as run:
        worst = [row["prompt"] for row in summary(run, "heaviest")[:2]]
        texts = ["".join(map(visible, tokens_of(run, prompt)["text"])) for prompt in worst]
        document = Document(html_file(run))
        cell = html_cell(run)
    text = document.text
    assert f"Sequence {worst[0]}, step 5, " in text
    assert len(document.of("line", "stream")) == 2 * 5  # between six steps
    assert all(each.replace("↵", "↵\n") in text for each in texts)
    assert len(cell.encode()) < 100_000


def test_an_axis_places_values_in_percent_with_round_ticks_within_it():
    assert [
        Axis("", 0, 10).at(2.5),
        Axis("", 10, 0).at(2.5),
    ] == pytest.approx([25, 75])
    assert Axis("", 1, 1000, is_log=True).at(10) == pytest.approx(100 / 3)
    for axis, ticks in (
        (Axis("", 0, 49_152), "0 10,000 20,000 30,000 40,000"),
        (Axis("", 0, 3, step=1), "0 1 2 3"),
        (Axis("", 0.01, 30, is_log=True), "0.01 0.1 1 10"),
        (Axis("", 0.05, 3, is_log=True, zero=0.1), "0 0.2 0.5 1 2"),
    ):
        assert " ".join(axis.ticks().values()) == ticks


@pytest.mark.parametrize(
    ("sides", "name", "unit"),
    [
        (
            [
                side("one", response([4, 5], {0: {7: -0.3, 8: -1.7}})),
                side("two", response([4, 5], {0: {7: -1.6, 8: -0.4}})),
            ],
            "margin",
            "nats",
        ),
        ([engine_side("one", 1, 20), engine_side("two", 4, 20)], "margin_ulps", "ULPs"),
    ],
)
def test_flips_of_lists_have_the_margins_that_are_known(sides, name, unit, cli, store):
    run_id = store_run(store, "lists", *sides)
    with opened(store, run_id) as run:
        figures = run.positions(0)
        text = html_file(run)
        issue = issue_text(run, run.pairs, "")
    flips = figures.loc[figures["is_flip"], [f"reference_{name}", f"variant_{name}"]]
    rows = flips.astype(float).to_numpy().tolist()
    margins = [" / ".join(map(number, row)) for row in rows]
    assert len(margins) > 0
    assert f"margins, {unit}<" in text
    assert re.findall("<td>([^<]* / [^<]*)</td>", text) == margins
    assert f"margins, {unit} |" in issue
    assert re.findall(r"\| ([^|]* / [^|]*) \|", issue) == margins[:MOST_FLIPS]
    gate = cli("compare", run_id, "--fail-on", "flips")
    assert "undefined ULPs" not in gate.stdout + gate.stderr


def test_axes_of_a_state_are_a_table_the_worst_first(store):
    with opened(store, stored(store, made_state(1e-3, 0.9))) as run:
        parts = [html_file(run), html_cell(run)]
    for part in parts:
        box = part.partition('aria-label="Server state"')[2].partition("</table>")[0]
        rows = re.findall("<tr><td[^>]*>([^<]*)</td><td[^>]*>([^<]*)</td>", box)
        assert rows[:2] == [("warm", "beyond"), ("continuation", "within the noise")]
        assert {result for _, result in rows[2:]} == {"not available"}
        assert {name for name, _ in rows} == {axis.name for axis in AXES}
