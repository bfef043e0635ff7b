"""Engines on trial: their settings, none of which is a bug, and faults planted in what they load
(the GGUF of llama.cpp, the folder of the others) or in what they are fed, each of which is one.
`python -m benchmarks.verdicts.other_engines MODEL [--positions N]` prints the tables of
docs/guides/engines.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import numpy as np
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata
from safetensors.numpy import load_file, save_file

from core.checks.modules_alone import in_words
from core.engines.process import EngineProcess
from core.engines.registry import describe
from core.inference.controls.judge_model import judge
from core.inference.models.engine_files import folder_of, gguf_of
from core.inference.models.model import LoadedModel, load_model
from core.inference.paths import engine_side

WIDE = "kv:f32+flash:off"  # float32 in every part of llama.cpp
SETTINGS = {
    f"llamacpp:prefill+{WIDE}": "rounding",
    f"llamacpp:decode+{WIDE}+threads:1": "rounding",
    f"llamacpp:chunked:16+{WIDE}": "rounding",
    f"llamacpp:prefill+{WIDE}+batch:4": "rounding",
    "llamacpp:decode": "lower precision",
    "llamacpp:prefill+kv:f32": "lower precision",
    "llamacpp:prefill+flash:off": "lower precision",
    "llamacpp:prefill+kv:q8_0": "lower precision",
    "llamacpp:prefill+kv:q4_0": "lower precision",
    "llamacpp:prefill+kv:bf16+flash:off": "lower precision",
    "llamacpp:prefill+weights:bf16+flash:off": "lower precision",
    "llamacpp:reuse:20+weights:bf16": "lower precision",
    "ct2:prefill": "rounding",
    "ct2:prefill+compute:int8_float32": "lower precision",
    "transformers:prefill": "identical",
    "transformers:decode": "rounding",
}
# settings of engines that a development environment has not
IF_HERE = {
    "genai:prefill": "rounding",
    "genai:decode": "rounding",
    "genai:prefill+batch:4": "rounding",
    "genai:reuse:20+threads:1": "rounding",
    "genai:prefill+weights:int8": "lower precision",
    "genai:decode+weights:int8+activations:int8": "lower precision",
    "genai:decode+weights:int4+activations:int8": "lower precision",
}
FOLDER_SIDES = (
    "ct2:prefill",
    "ort:prefill",
    "genai:prefill",
    "ov:prefill",
    "mlx:prefill",
    "vllm:prefill",
)
PROMPT = Path(__file__).parents[2] / "sample_runs" / "prompts" / "parser.txt"


def _zero_row(data) -> None:
    data[7] = 0


def _swap_heads(data) -> None:
    data[:128] = np.concatenate([data[64:128], data[:64]])


def _transpose_block(data) -> None:
    data[:64, :64] = data[:64, :64].T.copy()


def _plain_norm(data) -> None:
    data[:] = 1


@dataclass(frozen=True)
class Fault:
    """A value of a GGUF's metadata and of config.json, or a tensor of both, is change(it); change
    of a tensor works in place.
    """

    in_gguf: str
    in_folder: str
    change: Callable[[Any], Any]


PLANTED = {
    "RoPE's base 5 % larger": Fault(
        "llama.rope.freq_base", "rope_theta", lambda base: 1.05 * float(base)
    ),
    "the norms' epsilon 1e-3": Fault(
        "llama.attention.layer_norm_rms_epsilon", "rms_norm_eps", lambda _: 1e-3
    ),
    "a row of a projection zero": Fault(
        "blk.1.attn_output.weight", "model.layers.1.self_attn.o_proj.weight", _zero_row
    ),
    "two heads swapped": Fault(
        "blk.1.attn_q.weight", "model.layers.1.self_attn.q_proj.weight", _swap_heads
    ),
    "a block transposed": Fault(
        "blk.2.attn_output.weight", "model.layers.2.self_attn.o_proj.weight", _transpose_block
    ),
    "a norm left out": Fault(
        "blk.1.ffn_norm.weight", "model.layers.1.post_attention_layernorm.weight", _plain_norm
    ),
}
# as a context twice as long is served; only a GGUF can say so
SCALED = "positions scaled by a half"
FED = "a token before the prompt"  # as an engine that adds a BOS of its own
# as a server whose template is another model's
TEMPLATE = "another chat template"
OPENING = "<|im_start|>user\n"  # of the chat, and what the other template writes in its place
OTHER_OPENING = "[INST] <<SYS>>\nYou are a helpful, respectful and honest assistant.\n<</SYS>>\n\n"


def planted(loaded: LoadedModel, fault: str, target: Path) -> Path:
    """The model's GGUF in float32 with one fault in it."""
    sound = gguf_of(loaded, "float32")
    if fault == SCALED:
        reader = gguf.GGUFReader(sound)
        writer = gguf.GGUFWriter(target, "llama")
        scaling = {
            "llama.rope.scaling.type": MetadataDetails(gguf.GGUFValueType.STRING, "linear"),
            "llama.rope.scaling.factor": MetadataDetails(gguf.GGUFValueType.FLOAT32, 2.0),
        }
        copy_with_new_metadata(reader, writer, scaling, [])
        return target
    kind = PLANTED[fault]
    shutil.copy(sound, target)
    file = gguf.GGUFReader(target, "r+")
    if field := file.fields.get(kind.in_gguf):
        value = field.parts[field.data[0]]
        value[:] = kind.change(value[0])
    for tensor in file.tensors:
        if tensor.name == kind.in_gguf:
            kind.change(tensor.data)
    file.data.flush()
    return target


def planted_folder(loaded: LoadedModel, fault: str, target: Path) -> Path:
    """A copy of the model's folder with one fault in its configuration or weights."""
    shutil.copytree(folder_of(loaded), target)
    kind = PLANTED[fault]
    config = json.loads((target / "config.json").read_text())
    rope = config.get("rope_parameters", config)
    # mlx-lm 0.32 reads the second only
    config["rope_theta"] = rope["rope_theta"]
    if kind.in_folder in config:
        config[kind.in_folder] = kind.change(config[kind.in_folder])
    rope["rope_theta"] = config["rope_theta"]
    (target / "config.json").write_text(json.dumps(config))
    for path in target.glob("*.safetensors"):
        tensors = load_file(path)
        if kind.in_folder in tensors:
            kind.change(tensors[kind.in_folder])
            save_file(tensors, path, {"format": "pt"})
    return target


def fed(change: Callable[[Sequence[int]], list[int]]) -> AbstractContextManager[Any]:
    """Every engine is fed `change` of each prompt, at least as many tokens, of which the last rows
    are handed on, until the context ends.
    """
    run = EngineProcess.run

    def run_changed(process, ids):
        fed_ids = change(ids)
        more = len(fed_ids) - len(ids)
        for rows in run(process, fed_ids):
            bits = rows.bits[max(0, more - rows.start) :]
            if len(bits):
                yield replace(rows, start=max(0, rows.start - more), bits=bits)

    return mock.patch.object(EngineProcess, "run", run_changed)


def chat(
    loaded: LoadedModel,
    positions: int,
) -> tuple[tuple[int, ...], AbstractContextManager[Any]]:
    """The ids of a chat, and a context in which every engine is fed the same words in another
    template.
    """

    def tokens(text):
        return list(loaded.tokenizer(text, add_special_tokens=False)["input_ids"])

    opening, other, words = tokens(OPENING), tokens(OTHER_OPENING), tokens(PROMPT.read_text())
    ids = (*opening, *words)[:positions]
    return ids, fed(lambda fed_ids: [*other, *fed_ids[len(opening) :]])


def _is_here(path: str) -> bool:
    return describe(path.partition(":")[0]).is_here


def _row(
    loaded: LoadedModel,
    path: str,
    fault: str,
    verdict_expected: str,
    prompt: tuple[int, ...],
) -> bool:
    """Print a line of the table; returns whether the verdict is another than it should be."""
    began = time.perf_counter()
    verdict = judge(loaded, [prompt], variant=path)
    seconds = time.perf_counter() - began
    ratio = "" if verdict.noise_ratio is None else f"{verdict.noise_ratio:.3g}"
    each = ""
    for row in verdict.evidence:
        figures = row.figures
        if fault == "none" and row.check == "an engine's settings":
            each = f"{', '.join(figures.settings)}; all wide {figures.widest_noise_ratio:.2f}"
        elif fault != "none" and row.check == "each module alone":
            each = in_words(figures.modules_beyond, figures.modules)
    mark = "" if verdict.name == verdict_expected else f" (expected {verdict_expected})"
    print(
        f"| `{path}` | {fault} | {verdict.name}{mark} | {ratio} | {each} | {seconds:.1f} |",
        flush=True,
    )
    return bool(mark)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--positions", type=int, default=60)
    options = parser.parse_args()
    loaded = load_model(options.model, dtype="float32", device="cpu")
    ids = tuple(loaded.tokenizer(PROMPT.read_text())["input_ids"][: options.positions])
    llamacpp = [f"llamacpp:prefill+{WIDE}", "llamacpp:decode"]
    others = [path for path in FOLDER_SIDES if _is_here(path)]
    settings = SETTINGS | {path: setting for path, setting in IF_HERE.items() if _is_here(path)}
    print(
        "| side | fault | verdict | floors | each setting, or which modules, alone | s"
        " |\n|---|---|---|---|---|---|",
    )
    wrong = [_row(loaded, path, "none", setting, ids) for path, setting in settings.items()]
    with tempfile.TemporaryDirectory() as folder:
        for name, paths, faults, plant in (
            ("gguf_of", llamacpp, [*PLANTED, SCALED], planted),
            ("folder_of", others, [*PLANTED], planted_folder),
        ):
            for number, fault in enumerate(faults):
                edited = plant(loaded, fault, Path(folder) / f"{name}{number}.gguf")
                with mock.patch.object(engine_side, name, lambda *_, edited=edited: edited):
                    wrong += [_row(loaded, path, fault, "bug suspected", ids) for path in paths]
    templated, in_another = chat(loaded, options.positions)
    for fault, context, prompt in (
        (FED, fed(lambda own: [ids[0], *own]), ids),
        (TEMPLATE, in_another, templated),
    ):
        with context:
            wrong += [
                _row(loaded, path, fault, "bug suspected", prompt) for path in (*llamacpp, *others)
            ]
    print(f"{sum(wrong)} of {len(wrong)} otherwise than expected")
    return int(any(wrong))


if __name__ == "__main__":
    sys.exit(main())
