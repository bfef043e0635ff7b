"""Every page, in the groups and the order of the navigation; what they declare, for those who ask of all of them."""

from __future__ import annotations

from dataclasses import dataclass

from app.capture import PAGE as CAPTURE
from app.compare import PAGE as COMPARE
from app.flips import PAGE as FLIPS
from app.gallery import PAGE as RUNS
from app.heatmap import PAGE as HEATMAP
from app.internals import KERNELS, KV_CACHE, LAYERS
from app.matrix import PAGE as MATRIX
from app.near_ties import PAGE as NEAR_TIES
from app.ops import PAGE as OPS
from app.overview import PAGE as OVERVIEW
from app.page import Page, PageSetting
from app.probe import PAGE as PROBE
from app.repeats import PAGE as REPEATS
from app.upload import PAGE as UPLOAD
from core.runs.reader import RunReader, StoredPair


@dataclass(frozen=True)
class Group:
    """A group of the navigation, with a line on what its pages answer."""

    name: str
    line: str
    pages: tuple[Page, ...]


GROUPS = (
    Group("This pair", "what differs", (OVERVIEW, NEAR_TIES, HEATMAP, FLIPS)),
    Group("Where it starts", "and what ends it", (KV_CACHE, LAYERS, KERNELS)),
    Group("Store", "all runs, and new ones", (RUNS, REPEATS, COMPARE, MATRIX, OPS, CAPTURE, PROBE, UPLOAD)),
)
FIRST = RUNS.name  # the page at the root
PAGES = tuple(sorted((page for group in GROUPS for page in group.pages), key=lambda page: page.name != FIRST))
SETTING_NAMES = frozenset(setting.name for page in PAGES for setting in page.settings)
_SETTINGS = {page.name: page.settings for page in PAGES}


def settings_of(page: str) -> tuple[PageSetting, ...]:
    return _SETTINGS.get(page, ())


def absent(run: RunReader, pair: StoredPair) -> dict[str, str]:
    """Word for each page of which a pair has nothing: `none` where nothing is of its kind, else what was not done."""
    said = {page.name: page.absent(run, pair) for page in PAGES if page.absent is not None}
    return {name: word for name, word in said.items() if word}
