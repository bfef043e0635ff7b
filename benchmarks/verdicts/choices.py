"""Models that choose experts or keys on trial: sound paths, and faults of their choices
(docs/explanation/calibration.md).

python -m benchmarks.verdicts.choices                          # half an hour
python -m benchmarks.verdicts.choices --model "qwen3-moe bfloat16"
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV32Config,
    GptOssConfig,
    Llama4TextConfig,
    Qwen3MoeConfig,
)

from benchmarks.verdicts.engines import (
    Engine,
    alter,
    hooking,
    named,
    registering,
    replacing,
    routers,
)
from benchmarks.verdicts.mutations import _routed, without_renormalisation
from benchmarks.verdicts.tiny_models import SHAPE, model_of, tiny_model, tiny_prompts
from core.errors import CaptureError
from core.inference.controls.judge_model import JudgingSession, judge
from core.inference.models.model import LoadedModel
from core.inference.models.torch_errors import quiet
from core.verdict import BUG_SUSPECTED, IDENTICAL, LIKELY_ROUNDING, ROUNDING

EXPERTS = 8
_MOE: dict[str, Any] = {**SHAPE, "moe_intermediate_size": 64, "num_experts_per_tok": 2}
_MLA: dict[str, Any] = {
    **_MOE,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": EXPERTS,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}


def _sparse_attention(heads: int) -> DeepseekV32Config:
    index = {"index_topk": 8, "index_n_heads": heads, "index_head_dim": 16}
    return DeepseekV32Config(**_MLA, **index, head_dim=8)


CONFIGS: dict[str, Callable[[], Any]] = {
    "qwen3-moe": lambda: Qwen3MoeConfig(**_MOE, num_experts=EXPERTS, head_dim=16),
    "gpt-oss": lambda: GptOssConfig(
        **SHAPE,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        head_dim=16,
        sliding_window=8,
    ),
    "llama4": lambda: Llama4TextConfig(
        **SHAPE,
        num_local_experts=EXPERTS,
        num_experts_per_tok=1,
        intermediate_size_mlp=128,
        head_dim=16,
        attention_chunk_size=64,
    ),
    "deepseek-v3": lambda: DeepseekV3Config(**_MLA),
    "deepseek-v3.2, 2 heads": lambda: _sparse_attention(2),
    "deepseek-v3.2, 16 heads": lambda: _sparse_attention(16),
}
NAMES = [
    f"{name} {dtype}"
    for name in ("mixtral", "mixtral-ties", *CONFIGS)
    for dtype in ("float32", "bfloat16")
]
SOUND = (
    "decode",
    "chunked:5",
    "prefill+batch:4",
    "prefill+batch:3+row:1+pad:left:2",
    "decode+batch:3",
    "prefill+attn:eager",
    "static",
)
_IS_ROUNDING = {IDENTICAL, ROUNDING, LIKELY_ROUNDING}


def _loaded(model: str) -> LoadedModel:
    kind, dtype = model.rsplit(" ", 1)
    if kind not in CONFIGS:
        return tiny_model(kind, dtype)
    loaded = model_of(CONFIGS[kind](), dtype)
    generator = torch.Generator().manual_seed(3)
    for name, buffer in loaded.model.named_buffers():
        # transformers leaves it at 0
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
    return loaded


def _one_more(modules: list[Any], name: str) -> list[tuple[Any, str, int]]:
    return [(module, name, getattr(module, name) + 1) for module in modules]


@contextmanager
def _without_bias(model) -> Iterator[None]:
    names = ("e_score_correction_bias", "bias")
    tensors = [getattr(router, name, None) for router in routers(model) for name in names]
    saved = [(tensor, tensor.clone()) for tensor in tensors if tensor is not None]
    for tensor, _ in saved:
        tensor.zero_()
    yield
    for tensor, values in saved:
        tensor.copy_(values)


def _another_expert(_, arguments):
    hidden, ids, weights = arguments
    ids = ids.clone()
    others = [each for each in range(4) if each not in ids[20].tolist()]
    ids[20, 0] = others[0]
    return hidden, ids, weights


def _no_rotation(_, arguments):
    hidden, residual, (cos, sin), *rest = arguments
    return hidden, residual, (torch.ones_like(cos), torch.zeros_like(sin)), *rest


def _four_roundings(_, arguments, output):
    if output.dtype == torch.float32:
        return output
    ids = arguments[1].reshape(len(arguments[0]), -1)
    noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(5))
    is_of_one = (ids == 0).any(-1, keepdim=True)
    step = 4 * torch.finfo(output.dtype).eps / 2
    return output + (is_of_one * step * noise * output).to(output.dtype)


def _with_index(model) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "index_topk")]


def _shared_experts(model) -> list[Any]:
    return named(model, ".shared_experts", ".shared_expert")


_RENORMALIZED = ("mixtral", "qwen3", "gpt-oss", "deepseek")
# name: (fault, beginnings of the models that have it)
FAULTS: dict[str, tuple[Engine, tuple[str, ...]]] = {
    "router's bias left out": (alter(_without_bias), ("gpt-oss", "deepseek")),
    "one expert more": (
        alter(replacing(lambda model: _one_more(routers(model), "top_k"))),
        ("",),
    ),
    "no groups": (
        alter(
            replacing(
                lambda model: [
                    (router, name, 1)
                    for router in routers(model)
                    for name in ("num_group", "topk_group")
                ]
            )
        ),
        ("deepseek",),
    ),
    "shared expert left out": (
        alter(hooking(_shared_experts, lambda _, __, output: torch.zeros_like(output))),
        ("deepseek", "llama4"),
    ),
    "weights not renormalized": (_routed(without_renormalisation), _RENORMALIZED),
    "another expert at one token": (
        alter(
            registering(
                "register_forward_pre_hook",
                lambda model: named(model, ".experts")[-1:],
                _another_expert,
            )
        ),
        _RENORMALIZED,
    ),
    "indexer without RoPE": (
        alter(
            registering(
                "register_forward_pre_hook", lambda model: named(model, ".indexer"), _no_rotation
            )
        ),
        ("deepseek-v3.2",),
    ),
    "one key too many": (
        alter(replacing(lambda model: _one_more(_with_index(model), "index_topk"))),
        ("deepseek-v3.2",),
    ),
    "an expert 4 roundings off in 16 bits": (
        alter(hooking(lambda model: named(model, ".experts"), _four_roundings)),
        _RENORMALIZED,
    ),
}


def try_model(name: str) -> tuple[int, int, int, int]:
    """Print what is wrong; return sound pairs, those accused, faults, those found."""
    loaded = _loaded(name)
    prompts = tiny_prompts(loaded)
    session = JudgingSession(loaded, prompts)
    accused = found = sound = faults = 0
    for path in SOUND:
        try:
            verdict = judge(loaded, prompts, variant=path, session=session)
        except CaptureError as error:
            print(f"{name:28} {path:34} refused: {error}")
            continue
        sound += 1
        if verdict.name not in _IS_ROUNDING:
            accused += 1
            print(f"{name:28} {path:34} {verdict.name}: {verdict.because}", flush=True)
    for label, (fault, kinds) in FAULTS.items():
        is_16_bits_only = "16 bits" in label and name.endswith("float32")
        if not name.startswith(kinds) or is_16_bits_only:
            continue
        faults += 1
        verdict = judge(loaded, prompts, variant=fault, session=session)
        found += verdict.name == BUG_SUSPECTED
        if verdict.name != BUG_SUSPECTED:
            print(f"{name:28} {label:34} {verdict.name}: {verdict.because}", flush=True)
    return sound, accused, faults, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", choices=NAMES, help="only these")
    names = parser.parse_args().model or NAMES
    rows = []
    with quiet():
        for name in names:
            rows.append((name, *try_model(name)))
    print("\n| model | sound pairs | not rounding | faults | found |\n|---|---|---|---|---|")
    total = [sum(row[place] for row in rows) for place in range(1, 5)]
    for row in (*rows, ("all", *total)):
        print("| " + " | ".join(map(str, row)) + " |")


if __name__ == "__main__":
    main()
