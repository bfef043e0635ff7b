"""Families of transformers as tiny models, each on every path: right, refused or wrong.

python -m benchmarks.families                       # every family that builds
python -m benchmarks.families --family mamba2 --family bamba
python -m benchmarks.families --seed 8              # other weights
python -m benchmarks.families --dtype bfloat16
python -m benchmarks.families --path mlx:decode --path ort:prefill   # sides of engines
python -m benchmarks.families --against OLD.txt     # and what differs from an earlier output
"""

import argparse
import difflib
import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from benchmarks.verdicts.tiny_models import model_of, tiny_prompts
from core.checks.pair import WIDE
from core.errors import CaptureError
from core.inference.controls.judge_model import JudgingSession, judge
from core.inference.controls.rounding_floor import rounding_floor
from core.inference.models.model import LoadedModel
from core.inference.models.torch_errors import foreign_errors_stop, quiet
from core.inference.paths.engines import PLAIN, divergence_of, side_of
from core.numerics.statistic import floor_test
from core.verdict import IDENTICAL, ROUNDING

PATHS = (
    "decode",
    "chunked:5",
    "reuse:13",
    "blocks:8",
    "static",
    "prefill+batch:3",
    "prefill+pad:left:3",
    "decode+batch:3+pad:left:3",
)
_MOST_PARAMETERS = 20_000_000
_RIGHT = "Right on every path: "
# sizes of any family, as far as its configuration has them
_SIZES: dict[str, Any] = {
    # of a BERT kind
    "is_decoder": True,
    "vocab_size": 384,
    "hidden_size": 64,
    "n_embd": 64,
    "d_model": 64,
    "embedding_dim": 64,
    "intermediate_size": 128,
    "ffn_dim": 128,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "n_layer": 4,
    "num_layers": 4,
    "num_blocks": 4,
    "num_attention_heads": 4,
    "n_head": 4,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "mamba_d_state": 8,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "state_size": 8,
    "lru_width": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "n_group": 1,
    "topk_group": 1,
}
_MLA = {"num_key_value_heads": 4, "head_dim": 8}
_MAMBA2 = {
    "num_heads": 8,
    "head_dim": 16,
    "n_groups": 2,
    "chunk_size": 16,
    # of mlx-lm, as in released files
    "intermediate_size": 128,
}
# of two heads the scores tie exactly, and engines order ties otherwise
_INDEXER = {**_MLA, "index_topk": 8, "index_n_heads": 32, "index_head_dim": 16}
_LAYERS = ["mamba", "attention", "mamba", "attention"]
# what a family needs besides
_OF_FAMILY: dict[str, dict[str, Any]] = {
    "axk1": _MLA,
    "axk2": _MLA,
    "bailing_hybrid": {**_MLA, "layer_group_size": 2, "first_k_dense_replace": 1},
    "bamba": {"attn_layer_indices": [1, 3], "mamba_chunk_size": 16},
    "codegen": {"rotary_dim": 8},
    "deepseek_v2": _MLA,
    "deepseek_v3": _MLA,
    "deepseek_v32": _INDEXER,
    "dots1": {"n_shared_experts": 1},
    "falcon_h1": {"mamba_d_ssm": 128, "mamba_chunk_size": 16},
    "glm4_moe_lite": _MLA,
    "glm_moe_dsa": _INDEXER,
    "gptj": {"rotary_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": _LAYERS, "mamba_chunk_size": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {
        **_MLA,
        "linear_head_dim": 16,
        "linear_num_heads": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": _MAMBA2,
    "minicpm3": _MLA,
    # as in the released model: no window, and a first layer of linear attention
    "minimax": {"layer_types": ["linear_attention", "full_attention"] * 2, "sliding_window": None},
    "xlstm": {"qk_dim_factor": 1.0, "mode": "inference"},
    "sarvam_mla": _MLA,
    "youtu": _MLA,
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "n_mamba_heads": 8,
        "chunk_size": 16,
        "num_key_value_heads": 4,
    },
}


def families() -> list[str]:
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_config(family: str, positions: int = 128):
    """A small configuration of a family; raises whatever the family raises."""
    default = AutoConfig.for_model(family)
    known = {*inspect.signature(type(default).__init__).parameters, *vars(default)}
    longest = dict.fromkeys(("max_position_embeddings", "n_positions"), positions)
    sizes = {name: size for name, size in (_SIZES | longest).items() if name in known}
    if "text_config" in known and hasattr(default.text_config, "model_type"):
        sizes["text_config"] = tiny_config(default.text_config.model_type, positions)
    return type(default)(**sizes | _OF_FAMILY.get(family, {}))


def tiny_family(
    family: str,
    seed: int = 7,
    dtype: str = "float32",
    positions: int = 128,
) -> LoadedModel:
    """A tiny model of a family; CaptureError says why there is none."""
    try:
        config = tiny_config(family, positions)
        with torch.device("meta"):
            shapes = AutoModelForCausalLM.from_config(config)
        parameters = sum(each.numel() for each in shapes.parameters())
        if parameters > _MOST_PARAMETERS:
            raise CaptureError(f"{parameters:,} parameters")
        loaded = model_of(config, dtype, seed)
        with torch.inference_mode():
            logits = loaded.model(input_ids=torch.arange(5, 29)[None]).logits
    except Exception as error:
        reason = str(error).splitlines()[0][:80] if str(error) else ""
        raise CaptureError(f"{type(error).__name__}: {reason}") from error
    if not bool(logits.isfinite().all()):
        raise CaptureError("its random weights give no finite logits")
    return loaded


def cells(loaded: LoadedModel, paths: Sequence[str] = PATHS) -> Iterator[tuple[str, str]]:
    """Yield what is said of each path, and why. What is within the noise floor needs no judge."""
    prompts = tiny_prompts(loaded)[1:]
    session = JudgingSession(loaded, prompts)
    floor = None
    # in 16 bits a fault can be within the noise floor
    if loaded.dtype == "float32":
        with suppress(CaptureError), torch.inference_mode():
            floor = rounding_floor(loaded, prompts).squares
    for path in paths:
        try:
            with torch.inference_mode(), foreign_errors_stop(path, "choose another path"):
                squares = divergence_of(loaded, prompts, (PLAIN, side_of(path))).squares
            is_equal = not squares.any()
            if is_equal or (floor is not None and floor_test(squares, floor, WIDE).is_passed):
                yield "right", ""
                continue
            verdict = judge(loaded, prompts, variant=path, session=session)
        except CaptureError as error:
            yield "refused", str(error)
        else:
            is_right = verdict.name in (IDENTICAL, ROUNDING)
            yield "right" if is_right else verdict.name, verdict.because


def changes(old: str, new: str) -> Iterator[str]:
    """Yield the lines that differ between two outputs; families that are right have one each."""
    outputs = [text.replace(", ", "\n").splitlines() for text in (old, new)]
    return difflib.unified_diff(*outputs, "earlier", "later", n=0, lineterm="")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", action="append", choices=families(), help="only these")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="number, of how many")
    parser.add_argument("--seed", type=int, default=7, help="of the random weights")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--path", action="append", help="these instead of the eight")
    parser.add_argument("--against", type=Path, help="an earlier output")
    options = parser.parse_args()
    number, parts = options.part
    paths = options.path or PATHS
    counts = Counter()
    right, lines, reasons, missing = [], [], [], []
    for family in (options.family or families())[number::parts]:
        with quiet():
            try:
                loaded = tiny_family(family, options.seed, options.dtype)
            except CaptureError as error:
                missing.append(f"- {family}: {error}")
                continue
            found = list(cells(loaded, paths))
        counts.update(name for name, _ in found)
        if all(name == "right" for name, _ in found):
            right.append(family)
            continue
        lines.append(f"| {family} | {' | '.join(name for name, _ in found)} |")
        print(lines[-1], file=sys.stderr, flush=True)
        for path, (name, because) in zip(paths, found, strict=True):
            if name != "right":
                reasons.append(f"- {family}, {path}: {name}: {because}")
    built = len(right) + len(lines)
    output = [
        f"transformers {transformers.__version__}: {built} families, {dict(counts)}\n",
        f"{_RIGHT}{', '.join(right)}.\n",
        f"| family | {' | '.join(paths)} |",
        "|---" * (len(paths) + 1) + "|",
        *lines,
        "",
        *reasons,
        "\nNot built:\n",
        *missing,
    ]
    print("\n".join(output))
    if options.against:
        print("\nAgainst the earlier output:\n")
        changed = changes(options.against.read_text(), "\n".join(output))
        print("\n".join(changed) or "- the same")


if __name__ == "__main__":
    main()
