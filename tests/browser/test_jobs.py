"""Jobs of the dashboard, each walked from its first page to its result: a link, a flip to its
module, an upload.
"""

import re
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from playwright.sync_api import expect

from core.numerics.formats import BFLOAT16, values_of
from core.runs.store.store import Store
from tests.browser.driving import (
    FIREFOX,
    choose,
    click_row,
    expect_heading,
    expect_title,
    place,
    press,
    settle,
    visit,
    wait_for_map,
    window,
)
from tests.core.runs.layer_runs import MODULES, layer_run
from tests.core.runs.made_runs import opened
from tests.serving import serving
from tests.waiting import until

POSITIONS, FLIPS = 60, (25, 40)
PARTS = re.compile(r"/api/uploads/[0-9a-f]+\?")


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory):
    """One of its own, with the run `flips`, whose modules differ from position 22 on."""
    store = Store(tmp_path_factory.mktemp("jobs") / "runs")
    changed = {
        (ordinal, 0, position): 1 << (ordinal - 2)
        for ordinal in range(2, len(MODULES))
        for position in range(20 + ordinal, POSITIONS, ordinal)
    }
    rows = {"chosen": (tuple(range(POSITIONS)),), "lengths": (POSITIONS,), "flips": FLIPS}
    layer_run(store, changed, run_id="flips", **rows)
    with serving(store.directory) as running:
        yield running


def go(page, title):
    page.get_by_role("link", name=title, exact=True).click()
    expect_title(page, title)


def said(page, *names):
    """What the address says of these."""
    query = parse_qs(urlsplit(page.url).query)
    return [query.get(name, ["-"])[-1] for name in names]


def hand_over(page, other):
    """Open the link to this view, out of the clipboard, on a colleague's page."""
    press(page, "Link to this view")
    block = page.get_by_test_id("stPopoverBody").get_by_test_id("stCode")
    block.hover()
    block.get_by_role("button", name="Copy to clipboard").click()
    link = page.evaluate("navigator.clipboard.readText()")
    page.keyboard.press("Escape")
    settle(page)
    other.goto(link)
    settle(other)


def colleague(page):
    """A page of another person, who has seen nothing yet."""
    browser = page.context.browser
    return browser.new_context(viewport=page.viewport_size).new_page()


def shown(page):
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
            const tokens = [...strip.querySelectorAll('.strip .token')];
            seen.push(tokens.map((e) => e.style.backgroundColor).join());
          }
          return seen;
        }""")


def expect_shown(page, expected):
    """Once everything has arrived; charts and previews of a command come in later than the script
    ends.
    """
    until(
        lambda: shown(page) == expected,
        seconds=60,
        about=lambda: f"{shown(page)} is not {expected}",
    )


def test_a_link_restores_the_view(page, dashboard):
    """Overview by controls, keys and a click; the heatmap's window; a tab of Internals."""
    other = colleague(page)
    # a setting at its start gives Firefox's clipboard away
    if not FIREFOX:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit(page, dashboard, "overview?run=fresh-against-cached&prompt=1")
    choose(page, "Color by", "KL")
    page.locator(".strip .token[data-position='100']").click()
    expect_heading(page, "Top tokens at position 100 of prompt 1")
    page.get_by_role("heading", name="Overview").click()
    page.keyboard.press("n")
    expect_heading(page, "Top tokens at position 239 of prompt 1")
    hand_over(page, other)
    expect_heading(other, "Top tokens at position 239 of prompt 1")
    assert said(other, "run", "prompt", "position", "colour") == [
        "fresh-against-cached",
        "1",
        "239",
        "kl",
    ]
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


def test_a_flip_leads_to_its_logits_and_to_a_module(page, dashboard):
    visit(page, dashboard)
    click_row(page, "a run")
    expect_title(page, "Overview")
    assert said(page, "run", "position") == ["flips", "25"]  # the first flip
    go(page, "Flips")
    click_row(page, "40")
    expect_heading(page, "Position 40")
    go(page, "Heatmap")
    expect_heading(page, "Largest differences at position 40", is_exact=False)
    canvas = wait_for_map(page)
    for _ in range(12):
        page.mouse.move(*place(canvas, 40.5, 0.5))
        page.mouse.wheel(0, -400)
        wait_for_map(page)
    page.mouse.click(*place(canvas, 40.5, 0.5))
    expect_heading(page, "Token 7 at position 40", is_exact=False)
    with opened(Store(dashboard.store), "flips") as run:
        logits = [float(values_of(run.at(side, 0, 40), BFLOAT16)[7]) for side in (0, 1)]
    for logit in logits:
        expect(
            page.get_by_role(
                "gridcell",
                name=f"{logit:.9g}",
                exact=True,
                include_hidden=True,
            ).first,
        ).to_be_attached()
    go(page, "Internals")
    expect(
        page.get_by_text("is the first module whose output differs at all, at position 22"),
    ).to_be_visible()
    chart = page.locator(".st-key-layers_map .js-plotly-plot")
    chart.scroll_into_view_if_needed()
    box = chart.locator(".nsewdrag").first.bounding_box()
    spot = box["x"] + box["width"] * 40.5 / POSITIONS, box["y"] + box["height"] * 4.5 / len(MODULES)
    page.mouse.move(*spot)
    expect(chart.locator(".hoverlayer")).to_contain_text("model.layers.1from position 40: 1.41x")
    page.mouse.click(*spot)
    expect(page.get_by_text("model.layers.1, decoder layer: ")).to_be_visible()
    assert said(page, "run", "position", "module") == ["flips", "40", "model.layers.1"]
    go(page, "Runs")  # back there a tick opens nothing
    click_row(page, "a run", x=17)
    expect(page.get_by_text("1 run ticked")).to_be_visible()
    expect_title(page, "Runs")


def row(page, name):
    return page.get_by_role("list", name="Files").get_by_role("listitem").filter(has_text=name)


def expect_file(page, name, text):
    """Wait for a text in the row of a file."""
    expect(row(page, name)).to_contain_text(text)


def choose_file(page, path):
    page.get_by_label("Files to upload").set_input_files(path)


def large_dump(folder):
    """20 MB: three parts."""
    noise = np.random.default_rng(0)
    sides = {
        side: noise.standard_normal((50, 50_000), dtype=np.float32)
        for side in ("reference", "variant")
    }
    np.savez(folder / "large.npz", **sides)
    return folder / "large.npz"


def first_byte(request):
    """Offset of the part that a request sends, -1 if it sends none."""
    return int((re.findall(r"bytes (\d+)", request.headers.get("content-range", "")) or [-1])[0])


def test_an_upload_goes_on_after_a_reload_and_becomes_a_run(page, dashboard):
    """It is reloaded when the first part is there."""
    path = large_dump(dashboard.store.parent)
    visit(page, dashboard)
    go(page, "New run")
    page.route(PARTS, lambda route: route.continue_() if first_byte(route.request) <= 0 else None)
    choose_file(page, path)
    expect_file(page, "large.npz", "8.4 MB of")
    go(page, "Runs")  # it goes on while another page is looked at
    go(page, "New run")
    expect_file(page, "large.npz", "8.4 MB of")
    page.reload()
    page.unroute(PARTS)
    settle(page)
    expect_file(page, "large.npz", "choose or drop the same file again")
    with page.expect_request(lambda asked: asked.method == "PUT") as sent:
        choose_file(page, path)
    assert first_byte(sent.value) == 8 << 20
    expect_file(page, "large.npz", "arrived")
    (there,) = dashboard.store.glob(".uploads/*/data/large.npz")
    assert there.read_bytes() == path.read_bytes()
    name = page.get_by_label("Name of the run")
    # typed, because Firefox does not replace a text that is filled in
    name.press("Control+a")
    name.press_sequentially("In two halves")
    name.press("Enter")
    settle(page)
    press(page, "Save as a run")
    page.get_by_role("button", name="Open run").click(timeout=300_000)
    expect_title(page, "Overview")
    with opened(Store(dashboard.store), said(page, "run")[0]) as run:
        assert run.header.name == "In two halves"
        assert np.array_equal(run.at(1, 0, 49).view(np.float32), np.load(path)["variant"][49])
    assert not there.exists()
