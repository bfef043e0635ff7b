"""Remedies of a pair: each row is what the pair is under that change alone, and nothing of it is left behind."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from core.errors import CaptureError
from core.inference.capture import throughput
from core.inference.controls import remedies
from core.inference.controls.remedies import (
    BATCHES,
    LEAST_FORWARDS,
    LEAST_TOKENS,
    PRICE_TOKENS,
    REMEDIES,
    WALK_FORWARDS,
    prices_of,
    remedies_of,
)
from core.inference.controls.rounding_floor import whole_side
from core.inference.models.model import LoadedModel
from core.inference.paths.engines import side_of
from core.inference.paths.paths import parse_path
from core.runs.tables.remedies import RemedyRow, advice

pytestmark = pytest.mark.model
NAMES = [remedy.name for remedy in REMEDIES]


def whole(loaded: LoadedModel, path: str, ids: list[int]) -> torch.Tensor:
    return whole_side(side_of(path).run_on(loaded), ids)


def tried(loaded: LoadedModel, prompts, variant: str = "decode") -> dict[str, RemedyRow]:
    rows = remedies_of(loaded, prompts, "prefill", variant, turns=1)
    assert [row.name for row in rows] == NAMES
    return {row.name: row for row in rows}


@pytest.fixture(scope="module")
def bfloat16() -> tuple[LoadedModel, list[list[int]], dict[str, RemedyRow]]:
    loaded = tiny_model("llama", "bfloat16")
    prompts = [list(ids)[:16] for ids in tiny_prompts(loaded)]
    return loaded, prompts, tried(loaded, prompts)


def test_the_pair_as_it_is_and_in_float32_are_what_torch_counts(bfloat16):
    loaded, prompts, rows = bfloat16
    wide = tiny_model("llama", "bfloat16")
    wide.model.float()  # the same weights, loaded by another way than the remedy's
    models = {"as it is": loaded, "float32": LoadedModel(**{**vars(wide), "dtype": "float32"})}
    for name, model in models.items():
        sides = [torch.cat([whole(model, path, ids) for ids in prompts]) for path in ("prefill", "decode")]
        apart = sides[0].double() - sides[1].double()
        row = rows[name]
        assert row.neq == int((apart != 0).sum())
        assert row.elements == apart.numel()
        assert row.max_abs == float(apart.abs().max())
        assert row.rms == pytest.approx(float(apart.square().mean().sqrt()), rel=1e-12)
        assert row.flips == int((sides[0].argmax(1) != sides[1].argmax(1)).sum())
        assert row.compute_dtype == model.dtype
    assert rows["as it is"].neq > 0


def test_only_the_head_in_float32_is_float32_logits_of_the_same_hidden_states(bfloat16):
    loaded, prompts, rows = bfloat16
    row = rows["float32 head"]
    hidden = [loaded.model.model(torch.tensor([ids])).last_hidden_state[0].float() for ids in prompts]
    reference = torch.cat([states @ loaded.model.lm_head.weight.float().T for states in hidden])
    assert row.compute_dtype == "float32"
    assert row.elements == reference.numel()
    # Logits are finer, and the states they come from as far apart as before.
    assert rows["float32"].rms < row.rms / 100
    assert 0.3 < row.rms / rows["as it is"].rms < 1.2


def test_invariant_sums_make_the_sides_equal_and_the_twin_without_them_does_not(bfloat16):
    _, _, rows = bfloat16
    assert rows["invariant"].neq == 0
    assert rows["as it is"].neq > 0


def test_what_a_cpu_has_no_use_for_says_so(bfloat16):
    _, _, rows = bfloat16
    assert "TF32 is off on 'prefill'" in rows["TF32 off"].refusal
    assert "exist on CUDA only" in rows["reduced reductions off"].refusal
    assert rows["TF32 off"].neq is None
    assert rows["TF32 off"].variant_share is None


def test_a_remedy_leaves_the_model_as_it_was(bfloat16):
    loaded, prompts, _ = bfloat16
    assert torch.equal(
        whole(loaded, "decode", prompts[0]), whole(tiny_model("llama", "bfloat16"), "decode", prompts[0])
    )
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}
    assert "forward" not in vars(loaded.model.lm_head)
    assert not torch.are_deterministic_algorithms_enabled()


def test_every_measured_row_has_its_throughput(bfloat16):
    for row in bfloat16[2].values():
        if row.is_measured:
            assert row.reference_tokens_per_second > 0
            assert row.variant_tokens_per_second > 0
            assert row.kept.share == min(row.reference_share, row.variant_share) > 0
            for side in ("reference", "variant"):
                rate, plain = (getattr(each, f"{side}_tokens_per_second") for each in (row, bfloat16[2]["as it is"]))
                assert getattr(row, f"{side}_share") == pytest.approx(rate / plain, rel=1e-12)


@pytest.mark.thorough
def test_prices_are_of_paths_without_their_batch_at_every_batch_size(bfloat16):
    loaded = bfloat16[0]
    rows = prices_of(
        loaded, [parse_path(path) for path in ("decode", "decode+batch:2+row:1", "prefill+threads:1")], turns=1
    )
    assert [(row.path, row.batch) for row in rows] == [
        (path, n) for path in ("decode", "prefill+threads:1") for n in BATCHES
    ]
    for row in rows:
        assert row.share == pytest.approx(row.tokens_per_second / row.plain_tokens_per_second)
        assert LEAST_FORWARDS * row.batch <= row.tokens <= PRICE_TOKENS * row.batch
        assert (row.turns, row.share_low) == (1, None)


def test_a_model_of_float32_is_not_widened_again():
    loaded = tiny_model("gpt2")
    rows = tried(loaded, [list(tiny_prompts(loaded)[0])])
    assert rows["float32"].refusal == rows["float32 head"].refusal == "The model computes in float32 as it is."
    assert rows["as it is"].compute_dtype == "float32"


def test_a_pair_that_cannot_be_run_is_an_error():
    loaded = tiny_model("llama")
    with pytest.raises(CaptureError, match="tf32 exists on CUDA only"):
        remedies_of(loaded, [[1, 2, 3]], "prefill", "prefill+tf32")


def test_an_overflow_on_one_side_has_no_size_and_float32_is_what_leaves_none():
    loaded = tiny_model("llama", "float16")
    down = loaded.model.model.layers[2].mlp.down_proj
    plain = down.forward

    def overflowing(x):  # where one token is computed alone, in float16
        found = plain(x)
        return found + float("inf") if x.shape[1] == 1 and x.dtype == torch.float16 else found

    down.forward = overflowing
    rows = tried(loaded, [list(tiny_prompts(loaded)[0][:12])])
    assert (rows["as it is"].rms, rows["as it is"].max_ulps, rows["as it is"].noise_ratio) == (None, None, None)
    assert rows["as it is"].neq == rows["as it is"].elements
    assert rows["float32"].rms > 0
    assert "**float32** leaves none of those" in advice(list(rows.values()))


class Clock:
    """Moves by what each walk is said to take."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_all_remedies_take_turns_and_their_shares_are_ratios_of_the_rates_beside_them(monkeypatch: pytest.MonkeyPatch):
    """By the clock every sum in one order takes twice as long, and a machine that grows slower makes no difference."""
    walked, clock = [], Clock()

    def walk(loaded: LoadedModel, path, ids, _) -> float:
        took = len(ids) * (2.0 if "invariant" in str(path) else 1.0) * 1.005 ** (len(walked) // 10) / 1000
        walked.append((str(path), loaded.dtype, len(ids)))
        clock.now += took
        return took

    monkeypatch.setattr(remedies, "walk_seconds", walk)
    loaded = tiny_model("llama", "bfloat16")
    ids = [list(tiny_prompts(loaded)[0])]
    assert len(ids[0]) > WALK_FORWARDS
    rows = {row.name: row for row in remedies_of(loaded, ids, "prefill", "decode", floor_rms=1.0, clock=clock)}
    turns = rows["as it is"].turns
    assert turns == 6
    assert [path for path, *_ in walked[:2]] == ["prefill", "decode"]  # how long a walk of each takes
    each_turn = walked[2 : 2 + (len(walked) - 2) // (turns + 1)]
    assert walked[2:] == each_turn * (turns + 1)
    assert [path for path, *_ in each_turn].count(
        "prefill"
    ) == 4  # as it is, float32, float32 head, deterministic algorithms
    assert {dtype for path, dtype, _ in each_turn if path == "decode"} == {"bfloat16", "float32"}
    assert {count for path, _, count in each_turn if path.startswith("decode")} == {WALK_FORWARDS}
    assert {count for path, _, count in each_turn if path.startswith("prefill")} == {len(ids[0])}
    for name, share in (("as it is", 1.0), ("deterministic algorithms", 1.0), ("invariant", 0.5)):
        assert rows[name].variant_share == pytest.approx(share, rel=0.03)
        assert rows[name].variant_share == pytest.approx(
            rows[name].variant_tokens_per_second / rows["as it is"].variant_tokens_per_second, rel=1e-12
        )
        assert rows[name].variant_share_low <= rows[name].variant_share <= rows[name].variant_share_high


def test_what_both_sides_share_is_walked_once_a_turn(monkeypatch: pytest.MonkeyPatch):
    walked = []
    monkeypatch.setattr(remedies, "walk_seconds", lambda loaded, path, ids, _: walked.append(str(path)) or 1.0)
    loaded = tiny_model("gpt2")
    rows = remedies_of(loaded, [list(tiny_prompts(loaded)[0][:9])], "decode", "decode", turns=1, floor_rms=1.0)
    assert (
        walked.count("decode") == 2 + 2 * 2
    )  # a turn that does not count and one that does, as it is and deterministic
    assert {row.variant_share for row in rows if row.is_measured} == {1.0}


def test_a_remedy_that_cannot_be_timed_keeps_its_figures(monkeypatch: pytest.MonkeyPatch):
    def walk(*_) -> float:
        raise CaptureError("out of memory.")

    monkeypatch.setattr(remedies, "walk_seconds", walk)
    loaded = tiny_model("llama")
    rows = tried(loaded, [list(tiny_prompts(loaded)[0][:9])])
    assert rows["as it is"].neq > 0
    assert rows["as it is"].kept is None


@pytest.mark.parametrize(("path", "is_counted"), [("prefill+compile", False), ("prefill", True)])
def test_what_a_compiler_takes_is_no_throughput(monkeypatch: pytest.MonkeyPatch, path: str, is_counted: bool):
    """The first call of an open path takes 200 s, the later ones nothing."""
    waits, clock = [200.0], Clock()

    def run(ids, emit):
        clock.now += waits.pop() if waits else 0.0
        emit(0, torch.zeros(len(ids), 2))

    monkeypatch.setattr(throughput, "open_path", lambda *_: nullcontext(run))
    seconds = throughput.walk_seconds(tiny_model("llama"), parse_path(path), [1, 2, 3], clock)
    assert seconds == (200 if is_counted else 0)


@pytest.mark.parametrize(
    ("seconds_of_a_forward", "forwards", "of_one"),
    [(1e-4, 16, 90), (0.0151, 10, 90), (0.05, 4, 90), (0.3, 4, 45), (30.0, 4, LEAST_TOKENS)],
)
def test_a_walk_on_the_clock_is_long_enough_to_be_told_and_no_longer(
    monkeypatch: pytest.MonkeyPatch, seconds_of_a_forward, forwards, of_one
):
    """of_one: tokens of a path whose forward computes the whole prompt: 0.15 s of it, but never less than 32."""
    monkeypatch.setattr(
        remedies, "walk_seconds", lambda loaded, path, ids, _: seconds_of_a_forward * path.forwards(len(ids))
    )
    loaded = tiny_model("gpt2")
    assert len(remedies._cut(loaded, parse_path("decode"), [1] * 90, Clock())) == forwards
    assert len(remedies._cut(loaded, parse_path("chunked:3"), [1] * 90, Clock())) == 3 * forwards
    assert len(remedies._cut(loaded, parse_path("prefill"), [1] * 90, Clock())) == of_one
