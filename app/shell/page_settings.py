"""Settings of a page's own controls (colour, threshold, filter): kept over page switches, and part of its link.

One table says what each is called in the address and what it may be; app/shell/address.py reads and writes it. A
control at its default is not in the address. Its widget is drawn with the `key` and without a default, because its
value comes from the session.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from app.shell import wording
from core.numerics.formats import LOGIT_FORMATS
from core.runs.tables.kernels import LIBRARIES
from core.runs.tables.kv_cache import KINDS
from core.sweeps.matrix import FIGURES
from core.sweeps.plan import AXES
from core.text import printable

COLOURS = {  # of the strip of tokens, and the figure each shows
    "largest difference": "max_abs",
    "max ULPs": "max_ulps",
    "mean ULPs": "mean_ulps",
    "max row ULPs": "max_row_ulps",
    "differing logits": "neq",
    "KL": "kl",
    "near ties": "margin",
    "flips": "is_flip",
}
SORTS = {  # of the gallery, and what each is called
    "newest": "newest first",
    "oldest": "oldest first",
    "name": "name",
    "verdict": "gravest verdict",
    "flips": "most flips",
    "max ULPs": "largest max ULPs",
    "max row ULPs": "largest max row ULPs",
    "positions": "most positions",
}
# Thresholds of a margin in logits: a sequence of 1, 2, 5 from well below a step of bfloat16 at logits of 8 (0.0625) on.
LOGIT_STEPS = ("0", "0.001", "0.002", "0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1", "2", "5", "10")
LONGEST_TEXT = 120
_WHOLE = re.compile(r"-?[0-9]{1,15}", re.ASCII)


def whole(text: str) -> int | None:
    """A whole number out of a link; None for anything else, and that includes `1e3`, `1_000`, ` 7` and digits beyond
    ASCII.
    """
    return int(text) if _WHOLE.fullmatch(text) else None


@dataclass(frozen=True)
class PageSetting:
    """One control: its page, its name in the address, the key of its widget, its default.

    `options` has the word in the address for each value; `span` the lowest and highest whole number; with neither it is
    free text.
    """

    page: str
    name: str
    key: str
    default: str | int | bool
    options: dict[str, str | bool] = field(default_factory=dict)
    span: tuple[int, int] | None = None
    longest: int = LONGEST_TEXT

    def parsed(self, text: str) -> str | int | bool | None:
        """The value that a link asks for; None if it is none."""
        if self.options:
            return self.options.get(text)
        if self.span is not None:
            value = whole(text)
            return value if value is not None and self.span[0] <= value <= self.span[1] else None
        return printable(text, "")[: self.longest]

    def said(self, value: object) -> str | None:
        """Word for a value in the address; None for the default, and for what is no value of this control."""
        if value == self.default:
            return None
        if self.options:
            return next((word for word, option in self.options.items() if option == value), None)
        return str(value)

    @property
    def expected(self) -> str:
        """Values that a link may ask for, in words."""
        return f"{self.span[0]} to {self.span[1]}" if self.span is not None else ", ".join(self.options)


def _words(values: Iterable[str]) -> dict[str, str | bool]:
    return {value.replace(" ", "-").lower(): value for value in values}


SETTINGS = (
    PageSetting("runs", "search", "gallery_search", ""),
    PageSetting("runs", "dtype", "gallery_dtype", "any", _words(["any", *LOGIT_FORMATS])),
    PageSetting("runs", "verdict", "gallery_verdict", "any", _words(["any", *wording.VERDICTS])),
    PageSetting("runs", "flips", "gallery_flips", "any", {"only": "with flips", "none": "without flips", "any": "any"}),
    PageSetting("runs", "device", "gallery_device", ""),
    PageSetting("runs", "tag", "gallery_tag", "", longest=1000),
    PageSetting("runs", "sweeps", "gallery_cells", False, {"listed": True, "apart": False}),
    PageSetting("runs", "sort", "gallery_sort", "newest", _words(SORTS)),
    PageSetting("overview", "colour", "strip_colour", "largest difference", _words(COLOURS)),
    PageSetting("near_ties", "threshold", "threshold", 4, span=(0, 64)),
    PageSetting("near_ties", "logits", "threshold_logits", "0.1", {step: step for step in LOGIT_STEPS}),
    PageSetting("near_ties", "unit", "threshold_unit", "ULPs", {"ulps": "ULPs", "logits": "logits"}),
    PageSetting("near_ties", "of", "near_ties_of", "this prompt", _words(["this prompt", "all prompts"])),
    PageSetting("flips", "list", "flips_listed", "flips", _words(["flips", "flips and near ties"])),
    *(
        PageSetting(page, "top", "top_form", "logits", _words(["logits", "ranks"]))
        for page in ("overview", "near_ties", "flips")
    ),
    PageSetting("heatmap", "by", "worst_by", "difference", {"difference": "difference", "ulps": "ULPs"}),
    # auto: linear in row ULPs, which are of one size, log in the others, which spread over decades
    PageSetting("heatmap", "colours", "heatmap_colours", "auto", _words(["auto", "log", "linear"])),
    PageSetting("heatmap", "scale", "heatmap_scale", "pair", _words(["pair", "view"])),
    PageSetting(
        "repeats", "figure", "class_measure", "neq", _words(["neq", "max_abs", "max_row_ulps", "max_ulps", "flips"])
    ),
    PageSetting("compare", "with", "compare_with", "", longest=1000),
    PageSetting("compare", "by", "compare_by", "max_abs", _words(["max_abs", "max_row_ulps", "max_ulps", "rms", "kl"])),
    PageSetting("matrix", "plan", "matrix_plan", ""),
    PageSetting("matrix", "down", "matrix_rows", "", _words(["", *AXES])),
    PageSetting("matrix", "across", "matrix_columns", "", _words(["", *AXES])),
    PageSetting("matrix", "figure", "matrix_figure", "verdict", _words(FIGURES)),
    *(PageSetting("matrix", axis, f"matrix_of_{axis}", "any", longest=200) for axis in AXES),
    PageSetting("layers", "of", "layers_scope", "this prompt", _words(["this prompt", "all prompts"])),
    PageSetting(
        "layers", "measure", "layers_measure", "ratio", _words(["ratio", "neq_share", "max_row_ulps", "max_ulps"])
    ),
    PageSetting("layers", "module", "layers_module", "", longest=200),
    PageSetting("kernels", "list", "kernels_shown", "all", {"all": "all", "differ": "differ", "products": "products"}),
    PageSetting("kernels", "library", "kernels_library", "any", _words(["any", *LIBRARIES])),
    PageSetting("kernels", "modules", "kernels_apart", False, {"apart": True, "together": False}),
    PageSetting("kv_cache", "of", "kv_scope", "this prompt", _words(["this prompt", "all prompts"])),
    PageSetting("kv_cache", "measure", "kv_measure", "neq_share", _words(wording.MEASURES)),
    PageSetting("kv_cache", "kind", "kv_kind", "key", _words(KINDS)),
    PageSetting("kv_cache", "colour", "kv_colour", "neq_share", _words(["neq_share", "max_row_ulps", "max_ulps"])),
    PageSetting("ops", "machines", "ops_runs", "", longest=1000),
    PageSetting("ops", "op", "ops_op", ""),
    PageSetting("ops", "dtype", "ops_dtype", "any", _words(["any", *LOGIT_FORMATS])),
    PageSetting(
        "ops", "show", "ops_shown", "all", {"all": "all", "no": "with a no", "disagree": "where machines disagree"}
    ),
    PageSetting("ops", "row", "ops_row", "", longest=200),
)


def of_page(page: str) -> list[PageSetting]:
    return [setting for setting in SETTINGS if setting.page == page]
