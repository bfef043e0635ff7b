"""Models of a few thousand parameters, and judgements of them that share what does not depend on
the variant.
"""

from collections.abc import Callable
from functools import cache

import pytest

from benchmarks.verdicts.tiny_models import tiny_model
from core.inference.controls.judge_model import JudgingSession, judge
from core.inference.models.model import LoadedModel
from core.verdict import Verdict


@pytest.fixture(scope="session")
def small() -> LoadedModel:
    return tiny_model("llama")


@pytest.fixture(scope="session")
def narrow() -> LoadedModel:
    return tiny_model("llama", "bfloat16")


@pytest.fixture(scope="session")
def half() -> LoadedModel:
    return tiny_model("llama", "float16")


@pytest.fixture(scope="session")
def judged() -> Callable[..., Verdict]:
    """(model, prompts, reference, variant) -> verdict, in one session for the same model and
    prompts.
    """
    session_of = cache(lambda loaded, prompts: JudgingSession(loaded, prompts))

    def judge_once(loaded, prompts, reference, variant) -> Verdict:
        session = session_of(loaded, tuple(map(tuple, prompts)))
        return judge(loaded, prompts, reference=reference, variant=variant, session=session)

    return judge_once
