"""The picture of a pair: cells have the color of their value, flips a ring, and every kind of run
is drawn.
"""

import io

import numpy as np
import pytest
from PIL import Image, ImageColor, ImageDraw, ImageFont

from core.document.charts import MISMATCH, ULPS
from core.document.drawing import PLOT, SIZE, png_file
from core.judging.ingest import ingest
from core.runs.reader import RunReader
from tests.core.runs.made_runs import header_of, write_run
from tests.places import ROLLOUTS, ROOT

COLORS = np.array([ImageColor.getrgb(color) for _, color in ULPS])


def picture(path):
    """The picture of a run's first pair."""
    with RunReader(path) as run:
        image = Image.open(io.BytesIO(png_file(run, run.pairs[0])))
    assert image.format == "PNG"
    assert image.size == SIZE
    return image.convert("RGB")


def plot(path):
    """The plot in it. [rows, columns, 3] int"""
    return np.asarray(picture(path).crop(PLOT)).astype(int)


def cells_of(pixels, rows, columns):
    """Colors of the middles of so many cells. [rows, columns, 3]"""
    tall, wide, _ = pixels.shape
    down = (np.arange(rows) + 0.5) * tall / rows
    across = (np.arange(columns) + 0.5) * wide / columns
    return pixels[np.ix_(down.astype(int), across.astype(int))]


def colors_of(shares):
    places = [place for place, _ in ULPS]
    channels = [np.interp(shares, places, channel) for channel in COLORS.T]
    return np.stack(channels, axis=-1)


def test_cells_have_the_color_of_their_value_and_a_flip_has_a_ring(store):
    # 22 stored cells of 32 tokens; few differ, so the picture joins three: 8 cells in a row
    header = header_of("float32", (8,), 32 * 22)
    reference = np.zeros((8, header.vocab), np.float32)
    reference[:, 0] = 8.0  # a row ULP is 2**-20
    reference[1, 500] = 8.0 - 4 * 2**-20
    variant = reference.copy()
    variant[1, 500] = 8.0 + 4 * 2**-20
    variant[5, 400] = 3 * 2**-20
    variant[7, 650] = np.nan
    sides = [reference.view(np.uint32), variant.view(np.uint32)]
    pixels = plot(write_run(store, header, sides))
    tokens = 3 * 32  # of a cell, if few cells differ
    colors = cells_of(pixels, 8, 8)
    assert colors[1, 500 // tokens] == pytest.approx(COLORS[-1])
    # of the largest difference, 8 row ULPs; Pillow rounds colors to 8 bits
    assert colors[5, 400 // tokens] == pytest.approx(colors_of(3 / 8), abs=2)
    assert colors[7, 650 // tokens] == pytest.approx(ImageColor.getrgb(MISMATCH))
    assert (colors[3] == 255).all()
    ring = np.argwhere((pixels == (0x1A, 0x1C, 0x20)).all(axis=2))
    # half of it, at the left edge
    middle = 1.5 * len(pixels) / 8
    assert ring.mean(axis=0) == pytest.approx((middle, 0.5), abs=4)


def test_trainer_vs_rollout_is_drawn_by_sequence_and_position(store):
    path = store.path_of(ingest(store, [ROLLOUTS / "slime/train_data/2.pt"]))
    expected = np.load(ROLLOUTS / "expected.npz")
    r = np.zeros((3, 20))
    for row in range(3):
        mask = expected[f"mask{row}"]
        difference = np.abs(expected[f"trainer{row}"] - expected[f"rollout{row}"])
        r[row, : len(mask)] = np.where(mask, difference, 0)
    # the picture begins at the first position that was compared
    r = r[:, r.any(axis=0).argmax() :]
    drawn = cells_of(plot(path), *r.shape)
    away = np.abs(drawn - colors_of(r / r.max())).max(axis=2)
    assert away[r > 0].max() <= 2


def test_an_identical_pair_is_an_empty_plot():
    colors = cells_of(plot(ROOT / "sample_runs" / "batches-on-an-h100.duckdb"), 16, 37)
    assert (colors == 255).mean() > 0.9  # the rest is grid


def test_the_title_names_the_variant_before_the_reference(store):
    header = header_of("float32", (2,), 64)
    rows = np.zeros((2, 64), np.uint32)
    image = picture(write_run(store, header, [rows, rows]))
    expected = Image.new("RGB", SIZE, "white")
    font = ImageFont.load_default(20)
    ImageDraw.Draw(expected).text((16, 10), "Identical: side_1 vs side_0", "#1A1C20", font)
    head = (0, 0, SIZE[0], 38)
    assert np.array_equal(image.crop(head), expected.crop(head))
