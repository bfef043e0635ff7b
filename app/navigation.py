"""Every page and tab as a row, in the order of the navigation.

It is read at the start of the server, so it imports nothing that draws or computes.
"""

from app.internals.recorded import RECORDED
from app.overview import PARTS as ROLLOUT_PARTS
from app.page import Page, PageSetting
from app.shell.wording import VERDICTS
from core.numerics.formats import LOGIT_FORMATS
from core.runs.file.records import StoredPair
from core.runs.queries.heat import COLOURS
from core.runs.reader import RunReader
from core.runs.tables.kernels import LIBRARIES
from core.runs.tables.kv_cache import BY_POSITION
from core.sweeps.matrix import FIGURES
from core.sweeps.plan import AXES

PROMPTS = ("this prompt", "all prompts")
# Thresholds of a margin in logits: a sequence of 1, 2, 5 from well below a step of bfloat16 at
# logits of 8 (0.0625) on.
LOGIT_STEPS = (
    "0",
    "0.001",
    "0.002",
    "0.005",
    "0.01",
    "0.02",
    "0.05",
    "0.1",
    "0.2",
    "0.5",
    "1",
    "2",
    "5",
    "10",
)


_COUNT_WORDS = {None: "unknown", 0: "none"}
_NO_TOKENS = "no tokens"


def _no_flips(run: RunReader, pair: StoredPair) -> str:
    if not run.header.has_tokens:
        return _NO_TOKENS
    return "" if run.generations else _COUNT_WORDS.get(pair.summary.flips, "")


def _no_near_ties(run: RunReader, pair: StoredPair) -> str:
    if not run.header.has_tokens:
        return _NO_TOKENS
    return _COUNT_WORDS.get(pair.summary.near_ties, "")


def _no_cells(run: RunReader, pair: StoredPair) -> str:
    if run.header.is_list:
        return "no rows"
    return "empty" if pair.summary.bit_identical else ""


RUNS = Page(
    "runs",
    "Runs",
    "store",
    (
        PageSetting("search", "gallery_search", ""),
        PageSetting("verdict", "gallery_verdict", "any", ["any", *VERDICTS]),
        PageSetting(
            "flips",
            "gallery_flips",
            "any",
            {"only": "with flips", "none": "without flips", "any": "any"},
        ),
        PageSetting("hidden", "gallery_hidden", False, {"listed": True, "apart": False}),
    ),
)
NEW_RUN = Page(
    "new_run",
    "New run",
    "store",
    tabs=tuple(Page(title.lower(), title, "store") for title in ("Upload", "Capture", "Probe")),
)
OVERVIEW = Page(
    "overview",
    "Overview",
    "run",
    (
        PageSetting("colour", "strip_colour", "largest difference", tuple(COLOURS)),
        PageSetting("part", "mismatch_part", ROLLOUT_PARTS[0], ROLLOUT_PARTS),
        PageSetting("framework", "framework", "ulpscope"),
        PageSetting("by", "mismatch_by_quantity", ""),
    ),
)
FLIPS = Page(
    "flips",
    "Flips",
    "run",
    (PageSetting("list", "flips_listed", "flips", ["flips", "flips and near ties"]),),
    absent=_no_flips,
)
NEAR_TIES = Page(
    "near_ties",
    "Near ties",
    "run",
    (
        PageSetting("threshold", "threshold", 2, span=(0, 64)),
        PageSetting("logits", "threshold_logits", "0.1", LOGIT_STEPS),
        PageSetting("unit", "threshold_unit", "ULPs", ["ULPs", "logits"]),
        PageSetting("of", "near_ties_of", PROMPTS[0], PROMPTS),
    ),
    absent=_no_near_ties,
)
HEATMAP = Page(
    "heatmap",
    "Heatmap",
    "run",
    (
        PageSetting("by", "worst_by", "difference", ["difference", "ULPs"]),
        # auto: linear in row ULPs, which are of one size, log in the others, which spread over
        # decades
        PageSetting("colours", "heatmap_colours", "auto", ["auto", "log", "linear"]),
        PageSetting("rows", "heatmap_rows", ""),  # `12:40`, as tokens; nothing: all of them
        # columns, token ids or ranks from 0; nothing: the first look
        PageSetting("tokens", "heatmap_tokens", ""),
        PageSetting("order", "heatmap_order", "", ["id", "rank"]),
        PageSetting(
            "cells",
            "heatmap_cells",
            "row_ulps",
            ["row_ulps", "ulps", "difference"],
        ),
        PageSetting("token", "heatmap_token", ""),  # an id or a text
    ),
    absent=_no_cells,
)
LAYERS = Page(
    "layers",
    "Layers",
    "run",
    (
        PageSetting("of", "layers_scope", PROMPTS[0], PROMPTS),
        PageSetting(
            "measure",
            "layers_measure",
            "ratio",
            ["ratio", "neq_share", "max_row_ulps", "max_ulps"],
        ),
        PageSetting("module", "layers_module", ""),
    ),
)
CHOICES = Page(
    "choices",
    "Choices",
    "run",
    (PageSetting("of", "choices_scope", PROMPTS[0], PROMPTS),),
)
KV_CACHE = Page(
    "kv_cache",
    "KV cache",
    "run",
    (
        PageSetting("of", "kv_scope", PROMPTS[0], PROMPTS),
        PageSetting(
            "measure",
            "kv_measure",
            "max_row_ulps",
            ["neq_share", "max_row_ulps", "max_ulps", "rms"],
        ),
        PageSetting("kind", "kv_kind", "key", BY_POSITION),
    ),
)
KERNELS = Page(
    "kernels",
    "Kernels",
    "run",
    (
        PageSetting("list", "kernels_shown", "start", ["start", "all", "differ", "products"]),
        PageSetting("library", "kernels_library", "any", ["any", *LIBRARIES]),
        PageSetting("modules", "kernels_split", False, {"apart": True, "together": False}),
    ),
)
MITIGATIONS = Page("mitigations", "Mitigations", "run")
INTERNALS = Page(
    "internals",
    "Internals",
    "run",
    tabs=(LAYERS, CHOICES, KV_CACHE, KERNELS, MITIGATIONS),
)
_WITH = PageSetting("with", "compare_with", "")  # ids of runs
SIDE_BY_SIDE = Page(
    "side_by_side",
    "Side by side",
    "run",
    (
        _WITH,
        PageSetting(
            "by",
            "compare_by",
            "max_abs",
            ["max_abs", "max_row_ulps", "max_ulps", "rms", "kl"],
        ),
    ),
)
CLASSES = Page(
    "classes",
    "Classes",
    "run",
    absent=lambda run, _: "" if len(run.sides) > 2 and not run.header.is_list else "two sides",
)
SWEEPS = Page(
    "sweeps",
    "Sweeps",
    "store",
    (
        PageSetting("plan", "matrix_plan", ""),
        PageSetting("down", "matrix_rows", "", ["", *AXES]),
        PageSetting("across", "matrix_columns", "", ["", *AXES]),
        PageSetting("figure", "matrix_figure", "verdict", tuple(FIGURES)),
        *(PageSetting(axis, f"matrix_of_{axis}", "any") for axis in AXES),
    ),
)
WATCHES = Page("watches", "Watched endpoints", "store")
COMPARE = Page("compare", "Compare", "run", tabs=(SIDE_BY_SIDE, CLASSES, SWEEPS, WATCHES))
MACHINE = Page(
    "machine",
    "Machine",
    "store",
    (
        _WITH,
        PageSetting("probes", "ops_run", ""),
        PageSetting("op", "ops_op", ""),
        PageSetting("dtype", "ops_dtype", "any", ["any", *LOGIT_FORMATS]),
        PageSetting("show", "ops_shown", "all", ["all", "differing"]),
    ),
)

PAGES = (RUNS, NEW_RUN, OVERVIEW, FLIPS, NEAR_TIES, HEATMAP, INTERNALS, COMPARE, MACHINE)
FIRST = RUNS.name  # the page at the root
# what has settings: tabs, other pages
PARTS = {part.name: part for page in PAGES for part in page.tabs or (page,)}
PAGE_OF = {part.name: page for page in PAGES for part in (page, *page.tabs)}
# addresses of earlier pages, and the tab or page that each is now
MOVED = {name: name for name in ("upload", "capture", "probe", "layers", "kv_cache", "kernels")}
MOVED |= {"repeats": "classes", "matrix": "sweeps", "ops": MACHINE.name}
SETTING_NAMES = frozenset(
    ["tab", *(setting.name for part in PARTS.values() for setting in part.settings)],
)


def absent(run: RunReader, pair: int) -> dict[str, str]:
    """Word for each page and tab of which a pair has nothing: `none`, or what was not done."""
    words = {name: part.absent(run, run.pairs[pair]) for name, part in PARTS.items() if part.absent}
    for name, recorded in RECORDED.items():
        if pair not in recorded.pairs(run):
            words[name] = "not captured"
    if all(tab.name in words for tab in INTERNALS.tabs):
        words[INTERNALS.name] = "not captured"
    return {name: word for name, word in words.items() if word}
