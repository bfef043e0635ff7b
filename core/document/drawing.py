"""A pair as a PNG for an issue thread, drawn without a browser."""

import io
import textwrap

import numpy as np

from ..runs.file.records import StoredPair
from ..runs.reader import RunReader
from ..runs.reports.issue_markdown import gravest_first, headline
from ..text import clip, number, opening, printable
from .charts import LEVELS, colored
from .grid import overview
from .sections import FILE

SIZE = (800, 620)  # pixels, as wide as an issue
PLOT = (72, 188, 776, 508)  # left, top, right, bottom
_INK, _QUIET, _GRID = "#1A1C20", "#5F6872", "#D5DAE0"


def png_file(run: RunReader, pair: StoredPair | None = None) -> bytes:
    """Return a PNG of a pair, else of the gravest: verdict, figures, heatmap; rings are flips, at
    reference tokens.
    """
    from PIL import Image, ImageDraw, ImageFont

    run.header.check_short()
    pairs = run.pairs if pair is None else [pair]
    pair, answer = gravest_first(run, pairs)[0]
    figures = run.positions(pair.index)
    grid = overview(run, pair, figures)
    left, top, right, bottom = PLOT
    image = Image.new("RGB", SIZE, "white")
    draw = ImageDraw.Draw(image)
    # Pillow's own font: none of the system is the same everywhere
    draw.font = ImageFont.load_default(14)

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = grid.x.at(x) / 100, grid.y.at(y) / 100
        return left + across * (right - left), bottom - up * (bottom - top)

    # head
    title = f"{opening(answer.name)}: {pair.variant} vs {pair.reference}"
    draw.text(
        (16, 10),
        clip(printable(title), 76),
        _INK,
        ImageFont.load_default(20),
    )
    facts = "; ".join(f"{name}: {value}" for name, value in headline(run, pair).items())
    lines = []
    for text in (f"Run: {run.header.name}", answer.sentence.replace("`", "'"), facts):
        lines += textwrap.wrap(printable(opening(text)), 110, max_lines=2)
    draw.multiline_text(
        (16, 42),
        "\n".join(lines),
        _INK,
        spacing=5,
    )

    # grids
    for value, text in grid.x.ticks().items():
        foot = place(value, grid.y.low)
        draw.line((foot, place(value, grid.y.high)), _GRID)
        draw.text(foot, text, _QUIET, anchor="ma")
    for value, text in grid.y.ticks().items():
        start = place(grid.x.low, value)
        draw.line((start, place(grid.x.high, value)), _GRID)
        draw.text(start, f"{text}  ", _QUIET, anchor="rm")

    # cells, and a ring around each flip
    cells = colored(grid.levels).resize((right - left, bottom - top), Image.Resampling.NEAREST)
    cells = cells.convert("RGBA")
    image.paste(cells, (left, top), cells)
    names = ["row", "reference_token"]
    if run.header.is_list:
        names = ["prompt", "position"]
    numbered = figures.assign(row=range(len(figures)))
    flips = numbered.loc[figures["is_flip"], names].head(FILE.flips)
    for y, x in flips.dropna().to_numpy(float) + 0.5:
        draw.circle(place(x, y), 5, outline=_INK, width=2)
    draw.text((left, top - 8), grid.y.title, _QUIET, anchor="ls")
    draw.text((right, bottom + 36), grid.x.title, _QUIET, anchor="rs")

    # scale
    levels = np.arange(1, LEVELS + 1, dtype=np.uint8)
    image.paste(colored(levels[None]).resize((120, 12)), (left, bottom + 48))
    legend = f"0 to {number(grid.highest)} {grid.unit}"
    if len(flips):
        legend += "; ring: flip"
    draw.text((left + 128, bottom + 60), legend, _QUIET, anchor="ls")
    draw.multiline_text(
        (left, bottom + 68),
        textwrap.fill(grid.note, 100),
        _QUIET,
        spacing=5,
    )
    output = io.BytesIO()
    image.save(output, "PNG", optimize=True)
    return output.getvalue()
