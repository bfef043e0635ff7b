"""Every page in the order of the navigation, and the declarations of all of them."""

from __future__ import annotations

from app.compare import PAGE as COMPARE
from app.flips import PAGE as FLIPS
from app.gallery import PAGE as RUNS
from app.heatmap import PAGE as HEATMAP
from app.internals import PAGE as INTERNALS
from app.machine import PAGE as MACHINE
from app.near_ties import PAGE as NEAR_TIES
from app.overview import PAGE as OVERVIEW
from app.page import Page
from core.runs.reader import RunReader

_NEW = tuple(Page(title.lower(), title, "store") for title in ("Upload", "Capture", "Probe"))
NEW_RUN = Page("new_run", "New run", "store", tabs=_NEW)
PAGES = (RUNS, NEW_RUN, OVERVIEW, FLIPS, NEAR_TIES, HEATMAP, INTERNALS, COMPARE, MACHINE)
FIRST = RUNS.name  # the page at the root
# what has settings: tabs, other pages
PARTS = {part.name: part for page in PAGES for part in page.tabs or (page,)}
PAGE_OF = {part.name: page for page in PAGES for part in (page, *page.tabs)}
MOVED = {  # addresses of earlier pages, and the tab or page that each is now
    **{name: name for name in ("upload", "capture", "probe", "layers", "kv_cache", "kernels")},
    **{"repeats": "classes", "matrix": "sweeps", "ops": MACHINE.name},
}
SETTING_NAMES = frozenset(
    ["tab", *(setting.name for part in PARTS.values() for setting in part.settings)],
)


def absent(run: RunReader, pair: int) -> dict[str, str]:
    """Word for each page and tab of which a pair has nothing: `none`, or what was not done."""
    parts = {
        part.name: part.absent(run, run.pairs[pair])
        for part in PARTS.values()
        if part.absent is not None
    }
    return {name: word for name, word in parts.items() if word}


def lines(run: RunReader, pair: int) -> list[tuple[Page, str]]:
    """Return what pages and tabs say of a pair on its overview."""
    parts = [
        (part, part.line(run, run.pairs[pair])) for part in PARTS.values() if part.line is not None
    ]
    return [(part, line) for part, line in parts if line is not None]
