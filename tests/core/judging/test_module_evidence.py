"""The rows of evidence on modules: which are named, and in which words."""

from __future__ import annotations

import numpy as np
import pytest

from core.judging.module_evidence import alone_evidence, in_words

BLOCKS = [f"model.layers.{n}.{part}" for n in range(4) for part in ("self_attn", "mlp")]
NAMES = ["model.embed_tokens", *BLOCKS, "model.norm"]


def row(ratios):
    values = np.array(ratios, float)
    return alone_evidence("c", NAMES, values, values * 1e-7, np.full(len(NAMES), 1e-7), "side")


@pytest.mark.parametrize(
    ("beyond", "words"),
    [
        (["model.norm"], "model.norm"),
        (BLOCKS[:2], "model.layers.0.self_attn and model.layers.0.mlp"),
        (BLOCKS[::2], "self_attn in 4 of 4 blocks"),
        ([*BLOCKS[1:6:2], "model.norm"], "mlp in 3 of 4 blocks and model.norm"),
    ],
)
def test_few_modules_are_named_and_many_are_told_as_parts_of_blocks(beyond, words):
    assert in_words(beyond, NAMES) == words


def test_one_module_beyond_rounding():
    found = row([0, *[1.5] * 3, 40, *[1.0] * 4, 2.0])
    assert found.figures.modules_beyond == (BLOCKS[3],)
    assert found.figures.largest_ratio_of_others == 2.0
    assert "model.layers.1.mlp alone differs, 40 times" in found.says


def test_rounding_names_none():
    found = row([0, *[2.0] * 8, 3.0])
    assert found.figures.modules_beyond == ()
    assert "within 3.00 times its own rounding" in found.says


def test_nan_is_beyond_rounding_and_has_no_figure():
    found = row([0, np.nan, *[1.0] * 8])
    assert found.figures.modules_beyond == (BLOCKS[0],)
    assert found.figures.alone_rms[1] is None
    assert "NaN or infinite" in found.says
