"""A judging session: the same judgements as without one, bit for bit, and what does not depend on
the variant once.
"""

from contextlib import contextmanager

import pytest

from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from core.checks.rerun import AGAIN, RerunFigures
from core.errors import CaptureError
from core.inference.controls.judge_model import JudgingSession, judge
from core.inference.paths.engines import digest_of, side_of

pytestmark = pytest.mark.model
# of few forwards themselves
VARIANTS = ["prefill+batch:2", "prefill+attn:eager"]


@contextmanager
def counted(loaded, columns=None):
    """One entry a forward of the model; columns: of so many tokens a row only."""
    calls = []

    def see(_, given, named):
        ids = given[0] if given else named["input_ids"]
        if columns is None or ids.shape[1] == columns:
            calls.append(None)

    handle = loaded.model.register_forward_pre_hook(see, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("dtype", "reference"),
    [("bfloat16", "prefill"), ("float32", "chunked:4")],
)
def test_judgements_of_a_session_are_those_made_alone_with_fewer_forwards(
    dtype,
    reference,
):
    loaded = tiny_model("llama", dtype)
    prompts = [ids[:12] for ids in tiny_prompts(loaded)[:2]]
    with counted(loaded) as of_each:
        alone = [
            judge(loaded, prompts, reference=reference, variant=variant) for variant in VARIANTS
        ]
    session = JudgingSession(loaded, prompts)
    with counted(loaded) as of_session:
        together = [
            judge(loaded, prompts, reference=reference, variant=variant, session=session)
            for variant in VARIANTS
        ]
    for one, other in zip(alone, together, strict=True):
        assert one == other
        # the verdicts' equality looks at no array
        for own, shared in zip(one.floors, other.floors, strict=True):
            assert own.compute_dtype == shared.compute_dtype
            assert own.pair_rms.tobytes() == shared.pair_rms.tobytes()
            assert own.floor_rms.tobytes() == shared.floor_rms.tobytes()
    assert len(of_session) < 0.9 * len(of_each)


def test_a_session_of_another_model_or_of_other_prompts_is_refused():
    loaded = tiny_model("llama", "float32")
    prompts = [tiny_prompts(loaded)[0][:8]]
    other = tiny_model("llama", "float32")
    for session in (JudgingSession(other, prompts), JudgingSession(loaded, [prompts[0][:7]])):
        with pytest.raises(CaptureError, match="session is of another model"):
            judge(loaded, prompts, reference="prefill", variant="decode", session=session)


def test_a_capture_counts_as_one_of_the_calls_that_a_side_has_to_repeat_itself_in():
    loaded = tiny_model("llama", "float32")
    prompt = tiny_prompts(loaded)[0][:8]
    captured = [digest_of(loaded, [prompt], side_of(path)) for path in ("prefill", "decode")]

    def judged(*digests):
        asked = {"reference": "prefill", "variant": "decode", "digests": digests or None}
        return judge(loaded, [prompt], **asked)

    plain = judged()
    with counted(loaded, columns=1) as seen:
        assert judged(*captured) == plain
    assert len(seen) == 8
    # the twin: a capture whose variant had other bits, as an engine's first call may
    other = judged(captured[0], captured[0])
    assert other.name == "nondeterministic"
    (rerun,) = [row.figures for row in other.evidence if row.check is AGAIN]
    assert rerun == RerunFigures(not_repeatable=("decode",))
