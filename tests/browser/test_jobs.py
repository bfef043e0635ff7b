"""The five jobs of the dashboard, each walked from its first page to its result, and a fault in the product that makes
each walk fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, Request, expect

from core.numerics.formats import BFLOAT16, values_of
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.browser.driving import (
    Dashboard,
    choose,
    click_row,
    picture,
    place,
    serving,
    settle,
    visit,
    wait_for_map,
    window,
)
from tests.core.runs.judged_runs import judged_run
from tests.core.runs.layer_runs import MODULES, layer_run
from tests.waiting import until

POSITIONS, FLIPS = 60, (25, 40)
PARTS = re.compile(r"/api/uploads/[0-9a-f]+\?")


@pytest.fixture(scope="module")
def dashboard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """One of its own, with two more runs: `flips`, whose modules differ from position 22 on, and `unjudged`."""
    store = Store(tmp_path_factory.mktemp("jobs") / "runs")
    judged_run(store, None, run_id="unjudged")
    changed = {
        (ordinal, 0, position): 1 << (ordinal - 2)
        for ordinal in range(2, len(MODULES))
        for position in range(20 + ordinal, POSITIONS, ordinal)
    }
    rows = {"chosen": (tuple(range(POSITIONS)),), "lengths": (POSITIONS,), "flips": FLIPS}
    layer_run(store, changed, run_id="flips", **rows)
    with serving(store.directory, fault=getattr(request, "param", "")) as running:
        yield running


def go(page: Page, title: str) -> None:
    page.get_by_role("link", name=title, exact=True).click()
    expect(page.locator("h1")).to_have_text(title)
    settle(page)


def said(page: Page, *names: str) -> list[str]:
    """What the address says of these."""
    query = parse_qs(urlsplit(page.url).query)
    return [query.get(name, ["-"])[-1] for name in names]


def hand_over(page: Page, other: Page) -> None:
    """Open the link to this view, out of the clipboard, on a colleague's page."""
    page.get_by_role("button", name="Link to this view").click()
    block = page.get_by_test_id("stPopoverBody").get_by_test_id("stCode")
    block.hover()
    block.get_by_role("button", name="Copy to clipboard").click()
    link = page.evaluate("navigator.clipboard.readText()")
    page.keyboard.press("Escape")
    settle(page)
    other.goto(link)
    settle(other)


def colleague(page: Page) -> Page:
    """A page of another person, who has seen nothing yet."""
    browser = page.context.browser
    assert browser is not None
    return browser.new_context(viewport=page.viewport_size).new_page()


def shown(page: Page) -> list[str]:
    """What a reader sees: the text of the page and of the sidebar, and what every control holds."""
    return page.evaluate("""() => {
          const seen = [document.querySelector('[data-testid=stMain]').innerText,
            document.querySelector('[data-testid=stSidebarUserContent]').innerText];
          document.querySelectorAll('input, [role=slider]')
            .forEach((e) => seen.push(e.ariaLabel + '=' + (e.value ?? e.ariaValueNow)));
          document.querySelectorAll('[role=radio], [role=switch], [role=checkbox]')
            .forEach((e) => seen.push(e.innerText + '=' + (e.ariaChecked ?? e.checked)));
          const strip = [...document.querySelectorAll('[data-testid=stBidiComponentIsolated]')]
            .map((e) => e.shadowRoot).find((r) => r && r.querySelector('.strip'));
          if (strip) {
            seen.push('here ' + strip.querySelector('.here')?.dataset.position,
              strip.querySelector('.legend').innerText);
            seen.push([...strip.querySelectorAll('.strip .token')].map((e) => e.style.backgroundColor).join());
          }
          return seen;
        }""")


def expect_shown(page: Page, expected: list[str]) -> None:
    """Once everything has arrived; charts and previews of a command come in later than the script ends."""
    until(lambda: shown(page) == expected, seconds=60, about=lambda: f"{shown(page)} is not {expected}")


def test_a_link_restores_the_view(page: Page, dashboard: Dashboard) -> None:
    """Overview by controls, keys and a click; the heatmap's window; a tab of Internals."""
    other = colleague(page)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit(page, dashboard, "overview?run=fresh-against-cached&prompt=1")
    choose(page, "Color by", "KL")
    page.locator(".strip .token[data-position='100']").click()
    expect(page.get_by_role("heading", name="Top tokens at position 100", exact=True)).to_be_visible()
    settle(page)
    page.get_by_role("heading", name="Overview").click()
    page.keyboard.press("n")
    expect(page.get_by_role("heading", name="Top tokens at position 239", exact=True)).to_be_visible()
    settle(page)
    hand_over(page, other)
    expect(other.get_by_role("heading", name="Top tokens at position 239", exact=True)).to_be_visible()
    assert said(other, "run", "prompt", "position", "colour") == ["fresh-against-cached", "1", "239", "kl"]
    expect_shown(other, shown(page))

    go(page, "Heatmap")
    canvas = wait_for_map(page)
    page.mouse.move(*place(canvas, 472, 30))
    page.mouse.wheel(0, -600)
    page.wait_for_url(re.compile("rows="))
    settle(page)
    hand_over(page, other)
    first, last = (int(end) for end in said(page, "rows")[0].split(":"))
    assert window(wait_for_map(other))[:2] == (first, last) != (0, 729)
    assert window(wait_for_map(other)) == pytest.approx(window(wait_for_map(page)), abs=1)
    expect_shown(other, shown(page))

    go(page, "Internals")
    page.get_by_text("all prompts", exact=True).click()
    page.wait_for_url(re.compile("of=all-prompts"))
    settle(page)
    hand_over(page, other)
    expect_shown(other, shown(page))


def test_a_flip_leads_to_its_logits_and_to_a_module(page: Page, dashboard: Dashboard) -> None:
    visit(page, dashboard)
    click_row(page, "a run")
    expect(page.locator("h1")).to_have_text("Overview")
    settle(page)
    assert said(page, "run", "position") == ["flips", "25"]  # the first flip
    go(page, "Flips")
    click_row(page, "40")
    expect(page.get_by_role("heading", name="Position 40", exact=True)).to_be_visible()
    go(page, "Heatmap")
    expect(page.get_by_role("heading", name="Largest differences at position 40")).to_be_visible()
    canvas = wait_for_map(page)
    for _ in range(12):
        page.mouse.move(*place(canvas, 40.5, 0.5))
        page.mouse.wheel(0, -400)
        wait_for_map(page)
    page.mouse.click(*place(canvas, 40.5, 0.5))
    expect(page.get_by_role("heading", name="Token 7 at position 40")).to_be_visible()
    settle(page)
    with RunReader(Store(dashboard.store).path_of("flips")) as run:
        logits = [float(values_of(run.at(side, 0, 40), BFLOAT16)[7]) for side in (0, 1)]
    for logit in logits:
        expect(
            page.get_by_role("gridcell", name=f"{logit:.9g}", exact=True, include_hidden=True).first
        ).to_be_attached()
    go(page, "Internals")
    expect(page.get_by_text("is the first module that differs, at position 22")).to_be_visible()
    chart = page.locator(".st-key-layers_map .js-plotly-plot")
    chart.scroll_into_view_if_needed()
    box = chart.locator(".nsewdrag").first.bounding_box()
    assert box is not None
    spot = box["x"] + box["width"] * 40.5 / POSITIONS, box["y"] + box["height"] * 4.5 / len(MODULES)
    page.mouse.move(*spot)
    expect(chart.locator(".hoverlayer")).to_contain_text("model.layers.1from position 40: 1.41 times the floor")
    page.mouse.click(*spot)
    expect(page.get_by_text("model.layers.1, residual: ")).to_be_visible()
    assert said(page, "run", "position", "module") == ["flips", "40", "model.layers.1"]
    picture(page, "job-flip-to-module")
    go(page, "Runs")  # back there a tick opens nothing
    click_row(page, "a run", x=17)
    expect(page.get_by_text("Ticked:")).to_be_visible()
    settle(page)
    expect(page.locator("h1")).to_have_text("Runs")


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("list", name="Files").get_by_role("listitem").filter(has_text=name)


def choose_file(page: Page, path: Path) -> None:
    page.get_by_label("Files to upload").set_input_files(path)


def large_dump(folder: Path) -> Path:
    """20 MB: three parts."""
    noise = np.random.default_rng(0)
    sides = {side: noise.standard_normal((50, 50_000), dtype=np.float32) for side in ("reference", "variant")}
    np.savez(folder / "large.npz", **sides)
    return folder / "large.npz"


def first_byte(request: Request) -> int:
    """Offset of the part that a request sends, -1 if it sends none."""
    return int((re.findall(r"bytes (\d+)", request.headers.get("content-range", "")) or [-1])[0])


def test_an_upload_goes_on_after_a_reload_and_becomes_a_run(page: Page, dashboard: Dashboard) -> None:
    """It is reloaded when the first part is there."""
    path = large_dump(dashboard.store.parent)
    visit(page, dashboard)
    go(page, "New run")
    page.route(PARTS, lambda route: route.continue_() if first_byte(route.request) <= 0 else None)
    choose_file(page, path)
    expect(row(page, "large.npz")).to_contain_text("8.4 MB of")
    go(page, "Runs")  # it goes on while another page is looked at
    go(page, "New run")
    expect(row(page, "large.npz")).to_contain_text("8.4 MB of")
    page.reload()
    page.unroute(PARTS)
    settle(page)
    expect(row(page, "large.npz")).to_contain_text("choose or drop the same file again")
    with page.expect_request(lambda asked: asked.method == "PUT") as sent:
        choose_file(page, path)
    assert first_byte(sent.value) == 8 << 20
    expect(row(page, "large.npz")).to_contain_text("arrived")
    (there,) = dashboard.store.glob(".uploads/*/data/large.npz")
    assert there.read_bytes() == path.read_bytes()
    page.get_by_label("Name of the run").fill("In two halves")
    page.get_by_role("button", name="Save as a run").click()
    page.get_by_role("button", name="Open run").click(timeout=300_000)
    expect(page.locator("h1")).to_have_text("Overview")
    settle(page)
    with RunReader(Store(dashboard.store).path_of(said(page, "run")[0])) as run:
        assert run.header.name == "In two halves"
        assert np.array_equal(run.at(1, 0, 49).view(np.float32), np.load(path)["variant"][49])
    assert not there.exists()


@pytest.mark.thorough
@pytest.mark.model
def test_a_capture_is_watched_and_cancelled(page: Page, dashboard: Dashboard) -> None:
    runs = sorted(dashboard.store.glob("*.duckdb"))
    visit(page, dashboard)
    go(page, "New run")
    page.get_by_role("tab", name="Capture").click()
    page.get_by_role("textbox", name="Name of the run").fill("A long one")
    page.get_by_role("textbox", name="Prompts").fill("for line in lines:\n    print(line)\n" * 60)
    page.get_by_role("textbox", name="Prompts").press("Control+Enter")
    settle(page)
    page.get_by_role("button", name="Capture", exact=True).click()
    # A job is polite to what else runs: ten seconds of imports take it minutes on a busy machine.
    expect(page.get_by_text(re.compile(r"of [\d,]+ positions,")).first).to_be_visible(timeout=300_000)
    assert list(dashboard.store.glob(".partial-*"))
    page.get_by_role("link", name="Overview", exact=True).click()
    expect(page.get_by_test_id("stSidebar").get_by_text("A long one: ")).to_be_visible()
    other = colleague(page)  # everybody sees it, and may cancel it
    visit(other, dashboard, "new_run?tab=capture")
    other.get_by_role("button", name="Cancel").click()
    expect(other.get_by_text("cancelled; nothing was stored")).to_be_visible()
    assert list(dashboard.store.glob(".partial-*")) == []
    assert sorted(dashboard.store.glob("*.duckdb")) == runs
    other.get_by_role("button", name="Dismiss").click()
    expect(other.get_by_text("cancelled; nothing was stored")).to_have_count(0)
    page.get_by_role("link", name="New run", exact=True).click()
    expect(page.get_by_role("textbox", name="Name of the run")).to_have_value("A long one")  # to be tried again


@pytest.mark.thorough
@pytest.mark.model
def test_a_run_is_judged_from_its_page(page: Page, dashboard: Dashboard) -> None:
    """A real capture and every control, on the run's own tokens and the shipped model."""
    badge = page.locator(".st-key-verdict .stMarkdownBadge").first
    visit(page, dashboard)
    click_row(page, "Judged: None")
    expect(page.locator("h1")).to_have_text("Overview")
    expect(badge).to_contain_text("not judged")
    settle(page)
    page.get_by_role("button", name="Run checks").click()
    expect(page.get_by_text("It continues if you leave this page.")).to_be_visible()
    expect(page.get_by_text("Judged: None, judged").first).to_be_visible(timeout=300_000)  # it opens by itself
    page.reload()
    settle(page)
    expect(badge).to_contain_text("rounding")
    store = Store(dashboard.store)
    with RunReader(store.path_of(said(page, "run")[0])) as run, RunReader(store.path_of("unjudged")) as first:
        assert run.header.prompts[0].token_ids == first.header.prompts[0].token_ids
        assert run.pairs[0].verdict == "rounding"
        assert {line.group for line in run.evidence(0)} >= {"rerun", "own dtype", "float32"}
    picture(page, "job-judged")
    go(page, "Runs")
    expect(page.get_by_role("gridcell", name="Judged: None", exact=True, include_hidden=True)).to_have_count(
        0
    )  # it stands in its place


FAULTS: dict[str, tuple[Callable[[Page, Dashboard], None], str, str]] = {  # the job, the fault, what the job says
    "a link without the position": (
        test_a_link_restores_the_view,
        """
from app.shell import address
of = address.of
address.of = lambda *view: {name: value for name, value in of(*view).items() if name != "position"}
""",
        "Top tokens at position 239",
    ),
    "another row's position": (
        test_a_flip_leads_to_its_logits_and_to_a_module,
        """
from app.shell import selection
select = selection.select_row
selection.select_row = lambda listed, key: select(listed[::-1], key)
""",
        "Position 40",
    ),
    "an upload from the start": (
        test_an_upload_goes_on_after_a_reload_and_becomes_a_run,
        """
from pathlib import Path
read, goes_on = Path.read_text, "row.received = answer.received ?? 0;"
Path.read_text = lambda *a, **b: read(*a, **b).replace(goes_on, "await call(row, 'DELETE'); row.received = 0;")
""",
        r"assert 0 == \(8 << 20\)",
    ),
    "a cancel that leaves the job running": (
        test_a_capture_is_watched_and_cancelled,
        """
from app.shell import jobs
over = {"state": "cancelled", "message": "cancelled; nothing was stored"}
jobs.Jobs.cancel = lambda self, number: self._change(self._tasks[number], **over) or True
""",
        "partial",
    ),
    "a judged run without its verdict": (
        test_a_run_is_judged_from_its_page,
        """
from dataclasses import replace
from app.verdict import panel_actions
judged = panel_actions.judged_again
panel_actions.judged_again = lambda *of: (replace(judged(*of)[0], judge=False), judged(*of)[1])
""",
        "rounding",
    ),
}


@pytest.mark.thorough
@pytest.mark.model
@pytest.mark.parametrize(("job", "dashboard", "says"), FAULTS.values(), ids=FAULTS, indirect=["dashboard"])
def test_a_planted_fault_fails_its_job(job: Callable, page: Page, dashboard: Dashboard, says: str) -> None:
    expect.set_options(timeout=30_000)
    try:
        with pytest.raises(AssertionError, match=says):
            job(page, dashboard)
    finally:
        expect.set_options(timeout=120_000)
