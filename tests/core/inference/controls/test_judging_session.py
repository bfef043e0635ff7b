"""A judging session: the same judgements as without one, bit for bit, and what does not depend on the variant once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from core.errors import CaptureError
from core.inference.controls import judging_session
from core.inference.controls.judge_model import judge_pair
from core.inference.controls.judging_session import JudgingSession
from core.inference.controls.rounding_floor import rounding_floor
from core.inference.models.model import LoadedModel
from core.inference.paths.engines import side_of

pytestmark = pytest.mark.model
VARIANTS = ["prefill+batch:2", "prefill+batch:3", "prefill+attn:eager", "chunked:6"]  # of few forwards themselves


@contextmanager
def counted(loaded: LoadedModel) -> Iterator[list[None]]:
    """One entry a forward of the model."""
    calls: list[None] = []
    handle = loaded.model.register_forward_pre_hook(lambda *_: calls.append(None))
    try:
        yield calls
    finally:
        handle.remove()


@pytest.mark.spread(1)
@pytest.mark.parametrize(("dtype", "reference"), [("bfloat16", "prefill"), ("float32", "chunked:4")])
def test_judgements_of_a_session_are_those_made_alone_with_fewer_forwards(dtype: str, reference: str) -> None:
    loaded = tiny_model("llama", dtype)
    prompts = [ids[:12] for ids in tiny_prompts(loaded)[:2]]
    with counted(loaded) as of_each:
        alone = [judge_pair(loaded, prompts, reference, variant) for variant in VARIANTS]
    session = JudgingSession(loaded, prompts, pairs=len(VARIANTS))
    with counted(loaded) as of_session:
        together = [judge_pair(loaded, prompts, reference, variant, session=session) for variant in VARIANTS]
    for one, other in zip(alone, together, strict=True):
        assert one.verdict == other.verdict
        assert [(f.compute_dtype, f.pair_rms.tobytes(), f.floor_rms.tobytes()) for f in one.floors] == [
            (f.compute_dtype, f.pair_rms.tobytes(), f.floor_rms.tobytes()) for f in other.floors
        ]
    assert len(of_session) < 0.8 * len(of_each)


def test_a_seed_is_reordered_once_and_gives_the_floor_it_gives_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_model("llama", "float32")
    prompts = [ids[:8] for ids in tiny_prompts(loaded)[:2]]
    asked: list[list[int]] = []

    def noting(model: LoadedModel, prompts: Any, seeds: Any, *rest: Any, **named: Any) -> Any:
        asked.append(list(seeds))
        return rounding_floor(model, prompts, seeds, *rest, **named)

    monkeypatch.setattr(judging_session, "rounding_floor", noting)
    session = JudgingSession(loaded, prompts)
    session.floor(loaded, [0, 1])
    found = session.floor(loaded, [1, 2])
    assert asked == [[0, 1], [2]]
    plain = rounding_floor(loaded, prompts, [1, 2])
    assert (found.seeds, found.maps, found.rms_by_seed) == (plain.seeds, plain.maps, plain.rms_by_seed)
    session.floor(loaded, [1, 2], "decode")  # the twin: another path is another floor
    assert asked[2:] == [[1, 2]]


def test_callables_of_one_name_are_asked_each_for_itself() -> None:
    loaded = tiny_model("llama", "float32")
    prompts = [tiny_prompts(loaded)[0][:12]]

    def engine_of(factor: float) -> Any:
        def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
            return model(ids[None]).logits[0] * factor

        return engine

    session = JudgingSession(loaded, prompts, pairs=2)
    right, wrong = engine_of(1.0), engine_of(1.01)
    assert judge_pair(loaded, prompts, right, "prefill", session=session).verdict.name == "identical"
    assert judge_pair(loaded, prompts, wrong, "prefill", session=session).verdict.is_bug_suspected


def test_a_session_of_another_model_or_of_other_prompts_is_refused() -> None:
    loaded = tiny_model("llama", "float32")
    prompts = [tiny_prompts(loaded)[0][:8]]
    other = tiny_model("llama", "float32")
    for session in (JudgingSession(other, prompts), JudgingSession(loaded, [prompts[0][:7]])):
        with pytest.raises(CaptureError, match="the session is of another model or of other prompts"):
            judge_pair(loaded, prompts, "prefill", "decode", session=session)


def test_logits_are_kept_for_several_pairs_only_and_within_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_model("llama", "float32")
    prompts = [tiny_prompts(loaded)[0][:8]]
    side = side_of("prefill")
    assert not JudgingSession(loaded, prompts).keeps(loaded)
    several = JudgingSession(loaded, prompts, pairs=2)
    with torch.inference_mode():
        assert several.reference(loaded, side, prompts[0]) is several.reference(loaded, side, prompts[0])
    monkeypatch.setattr(judging_session, "KEPT_BYTES", 8 * loaded.vocab_size * 4 - 1)
    assert not several.keeps(loaded)
