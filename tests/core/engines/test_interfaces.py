"""The adapter of SGLang against a stand-in with its documented interface and a real model.

SGLang was never run.
"""

import pytest
import torch

from core.engines import registry
from tests.core.inference.sameness import apart, logits_of
from tests.covering import thorough

IDS = (5, 9, 200, 31, 77, 9, 1024)

SGLANG = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/server_args.py": (
        """
class ServerArgs:
    def __init__(
        self, model_path, dtype, disable_cuda_graph, disable_radix_cache, random_seed,
        attention_backend=None,
    ):
        self.__dict__.update(locals())
class PortArgs:
    @staticmethod
    def init_new(args):
        return PortArgs()
"""
    ),
    # the shapes of sglang/bench_one_batch.py, 0.5.23: next_token_logits are [requests, vocab]
    "sglang/bench_one_batch.py": (
        """
import torch, transformers
def rows(model, ids):
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].float()
def load_model(server_args, port_args, gpu_id, tp_rank):
    dtype = getattr(torch, server_args.dtype)
    auto = transformers.AutoModelForCausalLM
    return Runner(auto.from_pretrained(server_args.model_path, dtype=dtype).eval()), None
def prepare_synthetic_inputs_for_latency_test(batch_size, input_len, custom_inputs=None):
    assert len(custom_inputs) == batch_size and {len(one) for one in custom_inputs} == {input_len}
    return [list(one) for one in custom_inputs]
class Runner:
    def __init__(self, model):
        self.model, self.is_clear = model, False
    def clear(self):
        self.is_clear = True
    def extend(self, reqs):
        assert self.is_clear
        self.is_clear = False
        last = torch.stack([rows(self.model, ids)[-1] for ids in reqs])
        return torch.tensor([0] * len(reqs)), last, reqs
    def decode(self, next_token_ids, batch):
        for ids, token in zip(batch, next_token_ids.tolist(), strict=True):
            ids.append(token)
        return next_token_ids, torch.stack([rows(self.model, ids)[-1] for ids in batch])
    def cleanup(self, batch):
        pass
"""
    ),
}
pytestmark = pytest.mark.model


def test_an_engine_that_is_installed_later_is_found_without_a_new_start(packages):
    """A dashboard is open for weeks."""
    packages({}, "sglang")
    assert not registry.describe("sglang").is_here
    packages(SGLANG, "sglang")
    assert registry.describe("sglang").is_here


@pytest.mark.parametrize("path", ["sglang:decode+batch:3+attn:triton", *thorough(["sglang:walk"])])
def test_rows_stand_at_their_positions(loaded, packages, path):
    """A row that stood one position off would be some 10 away: the model's own logits are that
    large.
    """
    packages(SGLANG, "sglang")
    reference = logits_of("prefill", loaded, IDS)
    found = logits_of(path, loaded, IDS)
    assert found.shape == reference.shape
    assert found.dtype == torch.float32
    assert apart(found, reference) < 1e-3
