"""A model whose attention chooses its keys is recognized by what it computes, and never accused for
a near tie.
"""

import pytest
import torch

from benchmarks.verdicts.tiny_models import model_of, tiny_model, tiny_prompts
from core.inference.controls.judge_model import judge
from core.inference.controls.key_choices import chooses_keys
from tests.core.inference.odd_models import deepseek_v32

pytestmark = pytest.mark.model
FEW, ALL = 8, 64  # keys of a query: fewer than the prompts have, and more


@pytest.mark.parametrize(("index_topk", "chooses"), [(FEW, True), (ALL, False)])
def test_an_indexer_chooses_keys_if_the_prompt_has_more_than_it_takes(
    index_topk,
    chooses,
):
    loaded = model_of(deepseek_v32(index_topk))
    ids = tiny_prompts(loaded)[1]
    assert FEW < len(ids) < ALL
    with torch.inference_mode():
        assert chooses_keys(loaded, ids) is chooses


@pytest.mark.parametrize("tokens", [1, 4, 40])
def test_a_router_chooses_no_keys_even_with_an_expert_for_each_token(tokens):
    loaded = tiny_model("mixtral")  # of four experts
    with torch.inference_mode():
        assert not chooses_keys(loaded, tiny_prompts(loaded)[0][:tokens])


def test_the_cache_of_an_indexer_is_undecided_with_the_reason_and_no_module_is_named():
    loaded = model_of(deepseek_v32(FEW))
    verdict = judge(loaded, tiny_prompts(loaded), reference="prefill", variant="chunked:8")
    assert verdict.name == "undecided"
    assert "indexer" in verdict.because
    assert not any(row.group == "modules" for row in verdict.evidence)
