"""A model of a few thousand parameters, in float32 and in bfloat16."""

from __future__ import annotations

import pytest

from benchmarks.verdicts.tiny_models import tiny_model
from core.inference.models.model import LoadedModel


@pytest.fixture(scope="module")
def small() -> LoadedModel:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def narrow() -> LoadedModel:
    return tiny_model("llama", "bfloat16")
