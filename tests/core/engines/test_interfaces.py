"""Adapters of engines that need a GPU, against packages with their documented interface and a real model behind it:
rows stand at their positions, and what an engine leaves out is refused. The engines themselves were never run.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from core.engines import registry
from core.errors import CaptureError
from core.inference.models.model import load_model
from core.inference.paths.engines import side_of, whole_side
from tests.covering import thorough

ROOT = Path(__file__).resolve().parents[3]
IDS = (5, 9, 200, 31, 77, 9, 1024)

MODEL = """
import torch, transformers
def of(folder, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
def rows(model, ids):
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].float()
"""
SGLANG = {
    "model_here.py": MODEL,
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/server_args.py": """
class ServerArgs:
    def __init__(self, model_path, dtype, disable_cuda_graph, disable_radix_cache, random_seed, attention_backend=None):
        self.__dict__.update(locals())
class PortArgs:
    @staticmethod
    def init_new(args):
        return PortArgs()
""",
    # the shapes of sglang/bench_one_batch.py, 0.5.23: next_token_logits are [requests, vocab]
    "sglang/bench_one_batch.py": """
import torch
from model_here import of, rows
def load_model(server_args, port_args, gpu_id, tp_rank):
    return Runner(of(server_args.model_path, server_args.dtype)), None
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
        return torch.tensor([0] * len(reqs)), torch.stack([rows(self.model, ids)[-1] for ids in reqs]), reqs
    def decode(self, next_token_ids, batch):
        for ids, token in zip(batch, next_token_ids.tolist(), strict=True):
            ids.append(token)
        return next_token_ids, torch.stack([rows(self.model, ids)[-1] for ids in batch])
    def cleanup(self, batch):
        pass
""",
}
TENSORRT_LLM = {
    "model_here.py": MODEL,
    "tensorrt_llm/llmapi.py": """
class CudaGraphConfig:
    pass
class KvCacheConfig:
    def __init__(self, enable_block_reuse=True, dtype="auto"):
        self.enable_block_reuse = enable_block_reuse
""",
    # context_logits [positions, vocab]; generation_logits [1, 1, vocab] a step, as issue 15503 of the project shows
    "tensorrt_llm/__init__.py": """
from types import SimpleNamespace
from model_here import of, rows
class SamplingParams:
    def __init__(self, max_tokens, temperature, end_id, pad_id, detokenize, return_context_logits=False,
                 return_generation_logits=False):
        self.__dict__.update(locals())
class LLM:
    def __init__(self, model, dtype, kv_cache_config, **rest):
        assert set(rest) == {"skip_tokenizer_init", "tensor_parallel_size", "cuda_graph_config"}
        self.model, self.seen, self.reuses = of(model, dtype), [], kv_cache_config.enable_block_reuse
    def generate(self, prompts, asked, use_tqdm):
        return [self.answer(prompt["prompt_token_ids"], asked) for prompt in prompts]
    def answer(self, ids, asked):
        logits = rows(self.model, ids)
        cut = 4 if self.reuses and ids in self.seen else 0
        self.seen.append(ids)
        return SimpleNamespace(
            context_logits=logits[cut:] if asked.return_context_logits else None,
            outputs=[SimpleNamespace(generation_logits=logits[None, -1:] if asked.return_generation_logits else None)],
        )
""",
}

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def loaded():
    return load_model(str(ROOT / "sample_runs" / "model"), dtype="float32", device="cpu")


def test_an_engine_that_is_installed_later_is_found_without_a_new_start(packages):
    """A dashboard is open for weeks."""
    packages({}, "sglang")
    assert not registry.describe("sglang").is_here
    packages(SGLANG, "sglang")
    assert registry.describe("sglang").is_here


@pytest.mark.parametrize(
    ("files", "path"),
    [
        (SGLANG, "sglang:decode+batch:3+attn:triton"),
        *thorough(
            [
                (SGLANG, "sglang:walk"),
                (TENSORRT_LLM, "trtllm:prefill"),
                (TENSORRT_LLM, "trtllm:walk+batch:2+prefix:on"),
                (TENSORRT_LLM, "trtllm:prefill+run:graphs+kv:fp8"),
            ]
        ),
    ],
)
def test_rows_stand_at_their_positions(loaded, packages, path, files):
    """A row that stood one position off would be some 10 away: the model's own logits are that large."""
    packages(files, path.partition(":")[0])
    with torch.inference_mode():
        reference = whole_side(side_of("prefill").run_on(loaded), IDS)
        found = whole_side(side_of(path).run_on(loaded), IDS)
    assert found.shape == reference.shape
    assert found.dtype == torch.float32
    assert float((found - reference).abs().max()) < 1e-3


def test_context_logits_of_reused_blocks_are_missing_and_that_is_said(loaded, packages):
    packages(TENSORRT_LLM, "trtllm")
    side = side_of("trtllm:prefill+prefix:on").run_on(loaded)
    whole_side(side, IDS)
    with pytest.raises(CaptureError, match="context logits of 3 of 7"):
        whole_side(side, IDS)
