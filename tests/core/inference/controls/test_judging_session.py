"""A judging session: the same judgements as without one, bit for bit, and what does not depend on the variant once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.verdicts.mutations import scaled_value
from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from core.errors import CaptureError
from core.inference.controls import judging_session
from core.inference.controls.judge_model import judge, judge_pair
from core.inference.controls.judging_session import JudgingSession
from core.inference.controls.rounding_floor import rounding_floor
from core.inference.models.model import LoadedModel
from core.inference.paths.engines import digests_of, side_of
from core.runs.file.evidence import Check, RerunFigures

pytestmark = pytest.mark.model
VARIANTS = ["prefill+batch:2", "prefill+batch:3", "prefill+attn:eager", "chunked:6"]  # of few forwards themselves


@contextmanager
def counted(loaded: LoadedModel, columns: int | None = None) -> Iterator[list[None]]:
    """One entry a forward of the model; columns: of so many tokens a row only."""
    calls: list[None] = []

    def see(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        if columns is None or (given[0] if given else named["input_ids"]).shape[1] == columns:
            calls.append(None)

    handle = loaded.model.register_forward_pre_hook(see, with_kwargs=True)
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
    session = JudgingSession(loaded, prompts)
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

    session = JudgingSession(loaded, prompts)
    right, wrong = engine_of(1.0), engine_of(1.01)
    assert judge_pair(loaded, prompts, right, "prefill", session=session).verdict.name == "identical"
    assert judge_pair(loaded, prompts, wrong, "prefill", session=session).verdict.is_bug_suspected


def test_a_session_of_another_model_or_of_other_prompts_is_refused() -> None:
    loaded = tiny_model("llama", "float32")
    prompts = [tiny_prompts(loaded)[0][:8]]
    other = tiny_model("llama", "float32")
    for session in (JudgingSession(other, prompts), JudgingSession(loaded, [prompts[0][:7]])):
        with pytest.raises(CaptureError, match="session is of another model"):
            judge_pair(loaded, prompts, "prefill", "decode", session=session)


@contextmanager
def keeping(most: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as changed:
        changed.setattr(judging_session, "KEPT_BYTES", most)
        yield


def test_a_pair_judged_with_kept_logits_has_the_figures_of_one_computed_anew_at_every_rung(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = tiny_model("llama", "bfloat16")
    prompts = [ids[:12] for ids in tiny_prompts(loaded)[:2]]
    with keeping(0, monkeypatch), counted(loaded) as of_all:
        anew = judge_pair(loaded, prompts, "prefill", "chunked:2")
    with counted(loaded) as of_kept:
        kept = judge_pair(loaded, prompts, "prefill", "chunked:2")
    assert anew.verdict == kept.verdict
    for one, other in zip(anew.floors, kept.floors, strict=True):
        assert (one.pair_rms.tobytes(), one.floor_rms.tobytes()) == (
            other.pair_rms.tobytes(),
            other.floor_rms.tobytes(),
        )
    # Without: plain prefill for the floor, its own rounding and the narrow answers in both dtypes, both sides from
    # float64 and for the narrow answers once more. Six forwards are one prompt of `chunked:2`.
    assert len(of_all) - len(of_kept) == 2 * (2 + 4 + 2 * 6)


@pytest.mark.parametrize(("dtype", "decodings"), [("float32", 3), ("bfloat16", 4)])
def test_a_judgement_decodes_for_the_pair_its_rerun_and_one_order_and_watches_modules_on_the_way(
    dtype: str, decodings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bfloat16: the pair in float32 is one more. The twin watches modules in runs of their own."""
    loaded = tiny_model("llama", dtype)
    prompt = tiny_prompts(loaded)[0][:8]
    with counted(loaded, columns=1) as seen:
        found = judge_pair(loaded, [prompt], "prefill", "decode")
    monkeypatch.setattr(JudgingSession, "watch", lambda *_: None)
    with counted(loaded, columns=1) as of_twin:
        alone = judge_pair(loaded, [prompt], "prefill", "decode")
    assert (len(seen), len(of_twin)) == (8 * decodings, 8 * (decodings + 1))
    assert found.verdict == alone.verdict


@pytest.mark.parametrize(("dtype", "decodings"), [("float32", 2), ("bfloat16", 3)])
def test_a_judgement_until_decided_is_the_whole_one_without_what_cannot_decide(dtype: str, decodings: int) -> None:
    loaded = tiny_model("llama", dtype)
    prompt = tiny_prompts(loaded)[0][:8]
    whole = judge_pair(loaded, [prompt], "prefill", "decode").verdict
    with counted(loaded, columns=1) as seen:
        brief = judge_pair(loaded, [prompt], "prefill", "decode", until_decided=True).verdict
    assert len(seen) == 8 * decodings
    left_out = (Check.FROM_FLOAT64, Check.GROWTH, Check.IN_ONE_ORDER)
    assert [row.check for row in brief.evidence] == [row.check for row in whole.evidence if row.check not in left_out]
    assert replace(whole, evidence=()) == replace(brief, evidence=())
    assert whole.name in ("rounding", "identical")  # bfloat16 hides rounding of so few positions on some processors
    assert judge(loaded, [prompt], variant="decode") == brief


def test_a_bug_is_given_all_of_its_evidence_though_it_is_judged_until_decided() -> None:
    loaded = tiny_model("llama", "float32")
    prompt = tiny_prompts(loaded)[0]
    whole, brief = (
        judge_pair(loaded, [prompt], "prefill", scaled_value(1.01), until_decided=is_brief).verdict
        for is_brief in (False, True)
    )
    assert whole.is_bug_suspected
    assert whole == brief


def test_a_capture_counts_as_one_of_the_calls_that_a_side_has_to_repeat_itself_in() -> None:
    loaded = tiny_model("llama", "float32")
    prompt = tiny_prompts(loaded)[0][:8]
    captured = tuple(digests_of(loaded, [prompt], [side_of("prefill"), side_of("decode")]))
    plain = judge_pair(loaded, [prompt], "prefill", "decode").verdict
    with counted(loaded, columns=1) as seen:
        found = judge_pair(loaded, [prompt], "prefill", "decode", captured=(captured[0], captured[1])).verdict
    assert (found, len(seen)) == (plain, 8 * 2)
    # the twin: a capture whose variant had other bits, as an engine's first call may
    other = judge_pair(loaded, [prompt], "prefill", "decode", captured=(captured[0], captured[0])).verdict
    assert other.name == "nondeterministic"
    (rerun,) = [row.figures for row in other.evidence if row.check is Check.AGAIN]
    assert rerun == RerunFigures(not_repeatable=("decode",))


def test_whether_a_side_repeats_itself_is_never_read_from_what_was_kept() -> None:
    loaded = tiny_model("llama", "float32")
    session = JudgingSession(loaded, [tiny_prompts(loaded)[0][:8]])
    plain = side_of("prefill")
    with torch.inference_mode(), counted(loaded) as calls:
        session.reference(loaded, plain, session.prompts[0])
        session.reference(loaded, plain, session.prompts[0])
        assert len(calls) == 1
        session.digest(loaded, plain)
        assert len(calls) == 2


def test_logits_are_kept_within_their_bytes_and_let_go_with_their_side(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_model("llama", "float32")
    prompt = tiny_prompts(loaded)[0][:8]
    session, plain, other = JudgingSession(loaded, [prompt]), side_of("prefill"), side_of("chunked:8")
    with keeping(8 * loaded.vocab_size * 4, monkeypatch), torch.inference_mode(), counted(loaded) as calls:
        first = session.reference(loaded, plain, prompt)
        assert session.reference(loaded, plain, prompt) is first
        assert session.keeps(1)
        assert not session.keeps(2)
        session.reference(loaded, other, prompt)
        session.reference(loaded, other, prompt)
        assert len(calls) == 3
        session.forget(plain)
        session.reference(loaded, other, prompt)
        session.reference(loaded, other, prompt)
        assert len(calls) == 4
