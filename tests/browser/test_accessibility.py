"""Every page of a shipped run stands: axe finds no serious fault and nothing is wider than the
window, in both themes, wide and narrow.
"""

from importlib.resources import files

import pytest
from playwright.sync_api import expect

from app.navigation import FIRST, PAGE_OF, PAGES
from tests.browser.driving import BACK, pause, visit
from tests.covering import covering, thorough
from tests.serving import ROOT, serving

AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
RUN = "run=where-it-starts&variant=decode"
QUERIES = {"new_run": "tab=capture", "compare": f"{RUN}&with=fresh-against-cached"}
# besides those that pages open with
TABS = ("upload", "probe", "kv_cache", "kernels", "mitigations", "classes")
SERIOUS = ("serious", "critical")
NO_SCROLL = "document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth"


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory):
    """One whose samples are the shipped ones."""
    samples = str(ROOT / "sample_runs")
    with serving(tmp_path_factory.mktemp("shipped") / "runs", samples=samples) as running:
        yield running


def faults(page):
    """`rule: element` of every serious violation of WCAG 2 A and AA."""
    page.evaluate(AXE)
    found = page.evaluate(
        "() => axe.run(document, {runOnly: {type: 'tag', values: ['wcag2a', 'wcag2aa', 'wcag21a',"
        " 'wcag21aa']}})",
    )
    return [
        f"{violation['id']}: {node['target']} {node['html'][:160]}"
        for violation in found["violations"]
        if violation["impact"] in SERIOUS
        for node in violation["nodes"]
    ]


@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        *covering(list(BACK), [page.name for page in PAGES]),
        *thorough((scheme, tab) for scheme in BACK for tab in TABS),
    ],
)
def test_a_page_stands_without_a_serious_fault(name, scheme, page, dashboard):
    page.emulate_media(color_scheme=scheme)
    of, tab = PAGE_OF[name], f"&tab={name}" if name in TABS else ""
    visit(page, dashboard, f"{'' if name == FIRST else of.name}?{QUERIES.get(name, RUN)}{tab}")
    expect(page.locator("h1")).to_have_text(of.title)
    assert page.get_by_test_id("stAlertContentError").count() == 0
    app = page.get_by_test_id("stApp")
    assert app.evaluate("app => getComputedStyle(app).backgroundColor") == BACK[scheme]
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        pause(page, 150)
        assert faults(page) == []
        assert page.evaluate(NO_SCROLL) <= 0


def test_a_planted_fault_is_found(page, dashboard):
    visit(page, dashboard, f"flips?{RUN}")
    page.evaluate(
        """() => {
            const faint = document.createElement('p');
            faint.textContent = 'faint';
            faint.style.color = '#dddddd';
            faint.style.background = '#ffffff';
            const button = document.createElement('button');
            document.querySelector('[data-testid=stMain] h1').parentElement.append(faint, button);
        }""",
    )
    rules = {fault.split(":")[0] for fault in faults(page)}
    assert {"color-contrast", "button-name"} <= rules
