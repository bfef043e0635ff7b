"""Mitigations of a pair: each row is what the pair is under that change alone, and nothing of it is
left behind.
"""

import pytest
import torch

from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from core.errors import CaptureError
from core.inference.capture import mitigations
from core.inference.capture.mitigations import MITIGATIONS, TIMED_FORWARDS, mitigations_of
from core.inference.models.model import LoadedModel
from core.inference.paths.paths import parse_path
from core.runs.tables.mitigations import advice
from tests.core.inference.sameness import logits_of, rms

pytestmark = pytest.mark.model
PAIR = [parse_path("prefill"), parse_path("decode")]


def tried(loaded, prompts, pair=PAIR):
    rows = mitigations_of(
        loaded,
        prompts,
        pair,
        floor_rms=0.5,
        rounds=1,
    )
    assert [row.name for row in rows] == [each.name for each in MITIGATIONS]
    return {row.name: row for row in rows}


@pytest.fixture(scope="module")
def bfloat16():
    loaded = tiny_model("llama", "bfloat16")
    prompts = [list(ids)[:16] for ids in tiny_prompts(loaded)]
    return loaded, prompts, tried(loaded, prompts)


def test_the_pair_as_it_is_and_in_float32_are_what_torch_counts(bfloat16):
    loaded, prompts, rows = bfloat16
    wide = tiny_model("llama", "bfloat16")
    # the same weights, widened by other code
    wide.model.float()
    widened = LoadedModel(**{**vars(wide), "dtype": "float32"})
    models = {"baseline": loaded, "float32": widened}
    for name, model in models.items():
        sides = []
        for path in ("prefill", "decode"):
            sides.append(torch.cat([logits_of(path, model, ids) for ids in prompts]))
        difference = sides[0].double() - sides[1].double()
        row = rows[name]
        assert row.neq == int((difference != 0).sum())
        assert row.elements == difference.numel()
        assert row.max_abs == float(difference.abs().max())
        assert row.rms == pytest.approx(rms(difference), rel=1e-12)
        assert row.noise_ratio == pytest.approx(row.rms / 0.5)
        is_flip = sides[0].argmax(1) != sides[1].argmax(1)
        assert row.flips == int(is_flip.sum())
        assert row.compute_dtype == model.dtype
    assert rows["float32"].neq > 0


def test_a_head_in_float32_leaves_the_difference_of_the_hidden_states(bfloat16):
    loaded, prompts, _ = bfloat16
    # eager attention rounds its weights to bfloat16 and sdpa does not, on every processor
    pair = [parse_path("prefill"), parse_path("prefill+attn:eager")]
    rows = tried(loaded, prompts[:1], pair)
    row = rows["float32 head"]
    assert row.compute_dtype == "float32"
    assert rows["float32"].rms < row.rms / 100
    assert 0.3 < row.rms / rows["baseline"].rms < 1.2


def test_a_mitigation_that_a_cpu_cannot_use_is_a_row_with_the_reason(bfloat16):
    _, _, rows = bfloat16
    assert "TF32 is already off" in rows["TF32 off"].refusal
    assert "need CUDA" in rows["reduced reductions off"].refusal
    assert rows["TF32 off"].neq is None
    assert rows["TF32 off"].share is None
    tf32 = [parse_path("prefill"), parse_path("prefill+tf32")]
    # the pair itself cannot run
    with pytest.raises(CaptureError, match="tf32 needs CUDA"):
        mitigations_of(
            tiny_model("llama"),
            [[1, 2, 3]],
            tf32,
            floor_rms=1.0,
        )


def test_a_mitigation_leaves_the_model_as_it_was(bfloat16):
    loaded, prompts, _ = bfloat16
    fresh = tiny_model("llama", "bfloat16")
    plain = logits_of("decode", fresh, prompts[0])
    assert torch.equal(logits_of("decode", loaded, prompts[0]), plain)
    assert "forward" not in vars(loaded.model.lm_head)
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_overflow_on_one_side_has_no_size_and_float32_leaves_none():
    loaded = tiny_model("llama", "float16")
    down = loaded.model.model.layers[2].mlp.down_proj
    plain = down.forward

    def overflowing(x):
        out = plain(x)
        # if one token is computed alone, in float16
        is_step = x.shape[1] == 1 and x.dtype == torch.float16
        return out + float("inf") if is_step else out

    down.forward = overflowing
    rows = tried(loaded, [list(tiny_prompts(loaded)[0][:12])])
    assert rows["baseline"].rms is None
    assert rows["baseline"].max_ulps is None
    assert rows["baseline"].noise_ratio is None
    assert rows["baseline"].neq == rows["baseline"].elements
    assert "float32: no NaN on one side" in advice(list(rows.values()))


def test_shares_are_ratios_of_the_throughput_in_the_same_rounds(monkeypatch):
    """By the clock the math backend takes twice as long, on a machine that grows slower all the
    time.
    """
    walked = []

    def seconds(loaded, path, ids):
        walked.append((str(path), len(ids)))
        seconds_each = 2.0 if "sdpa" in str(path) else 1.0
        return len(ids) * seconds_each * 1.001 ** len(walked)

    monkeypatch.setattr(mitigations, "_seconds", seconds)
    loaded = tiny_model("llama", "bfloat16")
    ids = list(tiny_prompts(loaded)[0][: TIMED_FORWARDS + 1])
    rows = {row.name: row for row in mitigations_of(loaded, [ids], PAIR, floor_rms=1.0)}
    assert {count for path, count in walked if path.startswith("decode")} == {TIMED_FORWARDS}
    for name, share in (
        ("baseline", 1.0),
        ("deterministic algorithms", 1.0),
        ("SDPA math backend", 0.5),
    ):
        row = rows[name]
        assert row.variant_share == pytest.approx(share, rel=0.03)
        assert row.variant_share_low <= row.variant_share <= row.variant_share_high
        plain = rows["baseline"].variant_tokens_per_second
        assert row.variant_share == pytest.approx(row.variant_tokens_per_second / plain)
    assert rows["baseline"].turns == 6


def test_a_mitigation_that_cannot_be_timed_has_its_figures(monkeypatch):
    def seconds(*_):
        raise CaptureError("out of memory.")

    monkeypatch.setattr(mitigations, "_seconds", seconds)
    loaded = tiny_model("llama")
    rows = tried(loaded, [list(tiny_prompts(loaded)[0][:9])])
    assert rows["baseline"].neq > 0
    assert rows["baseline"].share is None
    assert "already computes in float32" in rows["float32"].refusal
