"""Tiny random-weight models with a real byte-level tokenizer, built here: no network, no file from
elsewhere.
"""

from functools import cache
from pathlib import Path

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from core.inference.models.torch_errors import quiet
from tests.core.inference.sameness import on_cpu
from tests.places import MODEL

TEXT = (
    "def walk(self, path): return [step for step in path if step]\nThe ferry left at ten past six,"
    " café lamps – still lit.\n"
)

VOCAB = 384
CONTEXT = 96
# of the sliding-window models: far shorter than the prompts, so that caches do drop tokens
WINDOW = 8
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    # ten times the usual: with 0.02 attention is so even that a wrong key would hardly show
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
# of families that derive the width of the MLP and of a key themselves
FEWER = {key: SHAPE[key] for key in SHAPE.keys() - {"intermediate_size", "num_key_value_heads"}}
# by name, with the type of the model if that is another word
CONFIGS = {
    "llama": SHAPE,
    "gpt2": FEWER,
    "qwen2": SHAPE | {"tie_word_embeddings": True},
    "mixtral": SHAPE | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3": SHAPE | {"head_dim": 12},
    "mistral": SHAPE | {"sliding_window": None},
    "mistral-window": SHAPE | {"model_type": "mistral", "sliding_window": WINDOW},
    # One windowed and one full layer each; soft caps low enough to bite at these weights.
    "gemma2": SHAPE
    | {
        "head_dim": 12,
        "sliding_window": WINDOW,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 10.0,
    },
    "gemma3": SHAPE
    | {
        "model_type": "gemma3_text",
        "head_dim": 12,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gpt-neox": FEWER | {"intermediate_size": 96},
    "qwen2-moe": SHAPE
    | {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 48,
    },
    # These cannot take every path: a running state next to attention, positions that cannot be
    # given, no cache of keys at all.
    "longrope": SHAPE
    | {
        "model_type": "llama",
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "short_factor": [1.0] * 6,
            "long_factor": [4.0] * 6,
            "original_max_position_embeddings": 24,
        },
    },
    "lfm2": SHAPE | {"layer_types": ["conv", "full_attention"]},
    # without position ids its cached steps begin at 0 in transformers 5.23
    "bamba": SHAPE
    | {
        "attn_layer_indices": [1],
        "mamba_n_heads": 6,
        "mamba_d_head": 16,
        "mamba_d_state": 8,
        "mamba_chunk_size": 16,
    },
    "bloom": FEWER,
    "mamba": FEWER,
    "mamba2": FEWER
    | {
        "num_heads": 6,
        "head_dim": 16,
        "n_groups": 2,
        "state_size": 8,
        "chunk_size": 16,
    },
    "rwkv": FEWER,
    "minimax": SHAPE
    | {
        "head_dim": 12,
        "num_local_experts": 4,
        # a linear first layer has no length, and cached steps begin at 0
        "layer_types": ["full_attention", "linear_attention"],
    },
    "gpt1": FEWER | {"model_type": "openai-gpt"},
}


def config_of(name, configs=CONFIGS):
    return AutoConfig.for_model(**{"model_type": name.replace("-", "_"), **configs[name]})


# Those that can take every path.
MODELS = [
    "llama",
    "gpt2",
    "gpt-neox",
    "qwen2",
    "qwen3",
    "mistral",
    "mistral-window",
    "gemma2",
    "gemma3",
    "mixtral",
    "qwen2-moe",
]


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Models this small lose more to thread barriers than they gain."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


class _Folders(dict[str, Path]):
    """One saved model of each architecture, made when it is first asked for: name -> folder."""

    def __init__(self, make):
        self._make = make
        self._bpe = ByteLevelBPETokenizer()
        self._bpe.train_from_iterator(
            [TEXT] * 3,
            vocab_size=300,
            special_tokens=["<|start|>"],
            show_progress=False,
        )

    def __missing__(self, name):
        folder = self[name] = self._make(name)
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            AutoModelForCausalLM.from_config(config_of(name), dtype=torch.float32).save_pretrained(
                folder,
            )
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=self._bpe._tokenizer,
            bos_token="<|start|>",
            eos_token="<|start|>",
        )
        tokenizer.save_pretrained(folder)
        return folder


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory):
    return _Folders(tmp_path_factory.mktemp)


@pytest.fixture(scope="session")
def llama(model_folders):
    return on_cpu(model_folders["llama"])


@pytest.fixture(scope="session")
def llama_bfloat16(model_folders):
    return on_cpu(model_folders["llama"], "bfloat16")


@pytest.fixture(scope="module", params=MODELS)
def loaded(request, model_folders):
    return on_cpu(model_folders[request.param])


@pytest.fixture(scope="module")
def model_of(model_folders):
    """Each model in each dtype, loaded once."""
    return cache(
        lambda name, dtype="float32": on_cpu(model_folders[name], dtype),
    )


@pytest.fixture(scope="session")
def shipped_model():
    """The folder of the small trained model of the sample runs."""
    return MODEL
