"""The row of evidence on modules: which are named, which first, and whether they compute in fewer
bits.
"""

from dataclasses import replace

import numpy as np
import pytest

from core.checks.modules_alone import ModulesAlone, alone_evidence

BLOCKS = [f"model.layers.{n}.{part}" for n in range(4) for part in ("self_attn", "mlp")]
NAMES = ["model.embed_tokens", *BLOCKS, "model.norm"]
ATTENTION = [1, 3, 5, 7]
POSITIONS = 40


def modules(errors):
    """errors: of the outputs of some modules, [positions], in units of float32's rounding; the
    others only round.
    """
    side = np.ones((len(NAMES), POSITIONS))
    for module, values in errors.items():
        side[module] = values
    # the square of float32's unit, 2^-23
    unit = np.full(side.shape, 2.0**-46)
    return ModulesAlone(
        tuple(NAMES),
        side**2 * unit,
        0 * unit,
        unit,
        np.ones(side.shape),
    )


def figures(errors):
    return alone_evidence("c", modules(errors), "side", 2).figures


def noise(bits, start=0):
    """Errors like those of products in so many bits."""
    drawn = np.random.default_rng(bits).uniform(0.7, 1.4, POSITIONS) * 2.0 ** (22.2 - bits)
    return np.where(np.arange(POSITIONS) < start, 1.0, drawn)


def test_nan_is_beyond_rounding_and_has_no_figure():
    found = figures({1: np.nan})
    assert found.modules_beyond == (BLOCKS[0],)
    assert found.alone_rms[1] is None


@pytest.mark.parametrize("bits", [5, 8, 11])
@pytest.mark.parametrize("start", [0, 8])
def test_noise_of_one_kind_in_every_block_is_a_lower_precision(bits, start):
    row = alone_evidence("c", modules(dict.fromkeys(ATTENTION, noise(bits, start))), "side")
    assert row.figures.kind == "self_attn"
    assert row.figures.blocks == 4
    assert row.figures.first is None
    assert row.figures.bits == pytest.approx(bits, abs=0.5)
    assert "--declare" in row.says


def test_a_fault_on_top_of_noise_is_named_by_itself():
    errors = dict.fromkeys(ATTENTION, noise(8))
    faulty = noise(8)
    faulty[10] *= 20
    late = np.where(np.arange(POSITIONS) < 20, 1, 900)
    for module, error, first in (
        (5, faulty, 10),
        (4, late, 20),
        (7, 10 * noise(8), 0),
    ):
        found = figures({**errors, module: error})
        assert found.modules_beyond == (NAMES[module],)
        assert found.first_module == NAMES[module]
        assert found.first == (2, first)
        assert found.kind == "self_attn"
        assert found.blocks == 4


@pytest.mark.parametrize(
    "errors",
    [
        # not in all blocks
        dict.fromkeys(ATTENTION[:3], noise(8)),
        # not by the same factor
        {module: 5**n * noise(12) for n, module in enumerate(ATTENTION)},
        # a wrong rotary base grows with the position
        dict.fromkeys(ATTENTION, np.arange(POSITIONS) ** 2 * 200.0),
        # gone at every tenth position
        dict.fromkeys(ATTENTION, np.arange(POSITIONS) % 10 * 9000.0),
        # no format has so many bits
        dict.fromkeys(ATTENTION, noise(20)),
        # what all blocks are given
        {0: np.arange(POSITIONS) % 2 * 9000.0 + 1, **dict.fromkeys(ATTENTION, noise(8))},
    ],
)
def test_errors_with_a_structure_are_no_lower_precision(errors):
    assert figures(errors).kind is None


def test_a_scale_is_no_lower_precision():
    alone = modules(dict.fromkeys(ATTENTION, noise(8)))
    scaled = replace(alone, along=alone.side)
    assert alone_evidence("c", scaled, "side").figures.kind is None
