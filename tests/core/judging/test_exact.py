"""Pairs in 16 bits judged against one exact result, with and without trusted results."""

import numpy as np
import pytest
import torch

from core.errors import DumpError, UsageError
from core.evidence import FAILED, PASSED
from core.judging.in_memory import compare_arrays
from core.progress import no_progress
from core.verdict import BUG_SUSPECTED, LIKELY_ROUNDING, ROUNDING, UNDECIDED

POSITIONS, VOCAB = 40, 512
# roundings of the layers before the last one, relative to the logits' own
_EARLIER = 0.02
EXACT = 3 * np.random.default_rng(0).standard_normal((POSITIONS, VOCAB)).astype(np.float32)
TOKENS = np.arange(POSITIONS)


def bits(values):
    """Round to bfloat16 as torch does; the bits, as numpy stores them."""
    tensor = torch.from_numpy(values.astype(np.float32)).bfloat16()
    # numpy has no bfloat16: a dump has two bytes without a type
    return tensor.view(torch.int16).numpy().view("V2")


def result(seed, change=lambda logits: logits):
    """A result in bfloat16 that differs from the exact one by rounding, and by a change."""
    noise = _EARLIER * np.random.default_rng(seed).standard_normal(EXACT.shape)
    return bits(change(EXACT + noise))


def trusted(count):
    return {f"trusted:{seed}": result(100 + seed) for seed in range(count)}


def verdict(tmp_path, pair, exact=None):
    np.savez(tmp_path / "pair.npz", **pair)
    options = {}
    if exact is not None:
        np.savez(tmp_path / "exact.npz", **exact)
        options["exact"] = tmp_path / "exact.npz"
    with compare_arrays(
        [tmp_path / "pair.npz"],
        on_progress=no_progress,
        **options,
    ) as run:
        return run.verdicts[0], [side.name for side in run.header.sides]


def at_one_position(logits):
    logits = logits.copy()
    logits[17] += 0.2 * np.random.default_rng(9).standard_normal(VOCAB)
    return logits


def scaled(logits):
    return logits * 1.03


def pair_of(change, on_both=False):
    reference = result(1, change) if on_both else result(1)
    return {
        "reference": reference,
        "variant": result(2, change),
        "token_ids": TOKENS,
    }


SOUND = pair_of(lambda logits: logits)


def test_a_sound_pair_is_rounding_with_trusted_results_and_likely_rounding_without(tmp_path):
    assert verdict(tmp_path, SOUND, {"exact": EXACT})[0].name == LIKELY_ROUNDING
    found, _ = verdict(tmp_path, SOUND, {"exact": EXACT, **trusted(5)})
    assert found.name == ROUNDING
    passed = [row.side for row in found.evidence if row.outcome == PASSED and row.side]
    assert passed == ["reference", "variant"]


@pytest.mark.parametrize("change", [at_one_position, scaled])
def test_a_fault_of_one_side_is_a_suspected_bug(tmp_path, change):
    found, _ = verdict(tmp_path, pair_of(change), {"exact": EXACT, **trusted(5)})
    assert found.name == BUG_SUSPECTED
    (failed,) = [row for row in found.evidence if row.outcome == FAILED and row.side]
    assert failed.side == "variant"
    if change is at_one_position:
        assert found.first_place == (0, 17)


def test_a_fault_of_both_sides_is_not_rounding(tmp_path):
    """The two are as close to one another as a sound pair, so only the exact result shows it."""
    pair = pair_of(scaled, on_both=True)
    assert verdict(tmp_path, pair)[0].name == LIKELY_ROUNDING
    assert verdict(tmp_path, pair, {"exact": EXACT})[0].name == UNDECIDED
    assert verdict(tmp_path, pair, {"exact": EXACT, **trusted(5)})[0].name == UNDECIDED


def test_the_exact_result_may_be_in_the_dump_itself(tmp_path):
    found, sides = verdict(tmp_path, SOUND | {"exact": EXACT} | trusted(5))
    assert found.name == ROUNDING
    assert sides == ["reference", "variant"]


def test_of_two_arrays_one_called_exact_is_a_side(tmp_path):
    sides = {"exact": result(1), "fast": result(2)}
    assert verdict(tmp_path, sides)[1] == ["exact", "fast"]


def test_float64_is_as_good_as_float32_and_the_first_array_is_exact_if_none_is_called_so(tmp_path):
    # no float32 values any more
    double = EXACT.astype(np.float64) + 1e-12
    others = {name.replace("trusted:", "path "): each for name, each in trusted(5).items()}
    assert verdict(tmp_path, SOUND, {"logits": double, **others})[0].name == ROUNDING


def test_trusted_results_that_are_equal_count_once(tmp_path):
    again = {f"trusted:{number}": result(100) for number in range(5)}
    with pytest.raises(DumpError, match="1 distinct"):
        verdict(tmp_path, SOUND, {"exact": EXACT, **again})


@pytest.mark.parametrize(
    ("exact", "says"),
    [
        ({"exact": EXACT, **trusted(3)}, "at least 4"),
        (
            {
                "exact": EXACT,
                **trusted(4),
                "trusted:x": result(9, lambda each: 1.2 * each),
            },
            "'trusted:x'",
        ),
        (
            {
                "exact": EXACT,
                **trusted(4),
                "trusted:x": EXACT,
            },
            "'trusted:x' equals the exact one",
        ),
        (
            {"exact": torch.from_numpy(EXACT).bfloat16().float().numpy()},
            "bfloat16 values only",
        ),
        ({"exact": EXACT[:, :256]}, "256"),
        ({"exact": EXACT, "token_ids": TOKENS[::-1]}, "token_ids"),
        ({"exact": EXACT[::-1]}, "other weights or tokens"),
    ],
    ids=["few", "unlike", "equal", "16 bits", "shape", "tokens", "weights"],
)
def test_what_is_no_exact_result_is_refused(tmp_path, exact, says):
    with pytest.raises(DumpError, match=says):
        verdict(tmp_path, SOUND, exact)


def test_a_pair_in_float32_needs_a_floor_instead(tmp_path):
    pair = {"reference": EXACT, "variant": EXACT * np.float32(1 + 1e-6)}
    with pytest.raises(UsageError, match="--floor"):
        verdict(tmp_path, pair, {"exact": EXACT.astype(np.float64)})
