"""Rollouts of real engines on a CPU: SmolLM2 sampled by llama.cpp's server and by vLLM, scored by
transformers.

    ulpscope model smollm2                   # and an interpreter with vLLM in ULPSCOPE_ENGINE_VLLM
    python -m benchmarks.verdicts.sampling   # writes tests/cases/rollouts/engines

`benchmarks.verdicts.engine_rollouts` plants causes in these files. Values are rounded to 3, 5 or,
in float32, 6 digits.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from core.engines.registry import location_of
from core.inference.models.engine_files import gguf_of
from core.inference.models.model import LoadedModel, load_model, save_model
from core.packaged_models import PACKAGED, folder_of

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "cases" / "rollouts" / "engines"
SCRIPT = Path(__file__).with_name("vllm_sampling.py")
SMOLLM2 = folder_of(PACKAGED["smollm2"])
TOKENS = 32  # of a response
QUESTIONS = (
    "Why is the sky blue?",
    "Write a haiku about rain.",
    "What is 17 times 23?",
    "Name three uses of copper.",
    "Who wrote Faust?",
    "Explain recursion to a child.",
    "Translate 'good night' into French.",
    "What is a prion?",
    "List four prime numbers.",
    "Why do cats purr?",
    "How is glass made?",
    "Tell a story about a lighthouse.",
)
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
SYSTEM = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging"
    " Face<|im_end|>\n"
)
OTHER_INPUTS = {  # what a trainer may feed instead
    "two_bos": "<|im_start|>" + CHAT,
    "system_message": SYSTEM + CHAT,
    "no_generation_prompt": CHAT.removesuffix("<|im_start|>assistant\n"),
}


@dataclass(frozen=True)
class Rollout:
    """A file. weights: dtype of the engine's matrices; sampling: settings that its
    log-probabilities include; rate: of two updates, whose weights sample the second and last third,
    and whose last is the trainer's.
    """

    name: str
    engine: str
    weights: str = "bfloat16"
    sampling: dict[str, float] = field(default_factory=dict)
    rate: float = 0.0

    def group(self) -> tuple[str, str, bool, bool]:
        return self.engine, self.weights, bool(self.sampling), bool(self.rate)

    @property
    def seed(self) -> int:
        # of the name: hash() of a text changes from process to process
        return zlib.crc32(self.name.encode()) >> 1

    @property
    def is_plain(self) -> bool:
        return self.weights in ("bfloat16", "float32") and not self.sampling and not self.rate


ROLLOUTS = (
    Rollout("llamacpp-bfloat16", "llamacpp"),
    Rollout("llamacpp-float32", "llamacpp", "float32"),
    Rollout("vllm-bfloat16", "vllm"),
    Rollout("vllm-float32", "vllm", "float32"),
    Rollout("temperature-0.6", "vllm", sampling={"temperature": 0.6}),
    Rollout("temperature-0.8", "llamacpp", sampling={"temperature": 0.8}),
    Rollout("temperature-1.2", "vllm", sampling={"temperature": 1.2}),
    Rollout("top-p-0.8", "llamacpp", sampling={"top_p": 0.8}),
    Rollout("top-p-0.9", "vllm", sampling={"top_p": 0.9}),
    Rollout("top-p-0.95", "llamacpp", sampling={"top_p": 0.95}),
    Rollout("top-k-5", "vllm", sampling={"top_k": 5}),
    Rollout("top-k-20", "llamacpp", sampling={"top_k": 20}),
    Rollout("top-k-50", "vllm", sampling={"top_k": 50}),
    Rollout("min-p-0.2", "llamacpp", sampling={"min_p": 0.2}),
    Rollout("min-p-0.1", "vllm", sampling={"min_p": 0.1}),
    Rollout("min-p-0.05", "llamacpp", sampling={"min_p": 0.05}),
    Rollout("weights-q4_0", "llamacpp", "q4_0"),
    Rollout("weights-float8", "vllm", "float8"),
    Rollout("weights-q8_0", "llamacpp", "q8_0"),
    Rollout("lag-1e-4", "llamacpp", rate=1e-4),
    Rollout("lag-1e-5", "llamacpp", rate=1e-5),
    Rollout("lag-1e-6", "llamacpp", rate=1e-6),
)

# tokens and the engine's log-probabilities, None if it gave none
Response = tuple[list[int], list[float | None]]


def sample_llamacpp(
    path: Path,
    prompts: Sequence[list[int]],
    sampling: dict[str, float],
    seed: int,
) -> list[Response]:
    """Responses of llama.cpp's server of a GGUF, one request after the other."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup, params.verbosity = 512, 1, False, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    settings = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **sampling}
    settings |= {
        "n_predict": TOKENS,
        "n_probs": 1,
        "post_sampling_probs": bool(sampling),
        "return_tokens": True,
    }
    responses = []
    for number, prompt in enumerate(prompts):
        body = json.dumps({"prompt": prompt, "seed": seed + number, **settings}).encode()
        request = urllib.request.Request(
            f"{server.listening_address}/completion",
            body,
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            response = json.load(answer)
        entries, values = response["completion_probabilities"][::-1], []
        # those that end within a UTF-8 character have no entry
        for token in response["tokens"]:
            entry = (
                entries.pop()
                if entries and entries[-1]["id"] == token
                else {"logprob": None, "prob": np.nan}
            )
            values.append(float(np.log(entry["prob"])) if sampling else entry["logprob"])
        responses.append((response["tokens"], values))
    return responses


def gguf_with_vocabulary(loaded: LoadedModel, dtype: str, target: Path) -> Path:
    """A GGUF of the model, matrices in `dtype`, with the vocabulary of the packaged one, which a
    server needs.
    """
    kind = {"float32": "F32", "bfloat16": "BF16"}.get(dtype, dtype.upper())
    quantized = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(target, "llama")
    for name, entry in gguf.GGUFReader(SMOLLM2 / PACKAGED["smollm2"].members[0][1]).fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            of_items = entry.types[1] if entry.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, entry.contents(), entry.types[0], of_items)
    for tensor in gguf.GGUFReader(gguf_of(loaded, "float32")).tensors:
        values, of_tensor = np.array(tensor.data), quantized if tensor.data.ndim > 1 else None
        writer.add_tensor(
            tensor.name,
            gguf.quants.quantize(values, of_tensor) if of_tensor else values,
            raw_dtype=of_tensor,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def sample_vllm(
    folder: Path,
    dtype: str,
    rollouts: Sequence[Rollout],
    prompts: list[list[int]],
) -> list[list[Response]]:
    """Responses of vLLM to the prompts by each rollout's settings, all in one batch."""
    mode = "processed_logprobs" if rollouts[0].sampling else "raw_logprobs"
    asked = [
        {
            "ids": ids,
            "seed": rollout.seed + number,
            "sampling": {"temperature": 1.0, **rollout.sampling},
        }
        for rollout in rollouts
        for number, ids in enumerate(prompts)
    ]
    request = {
        "model": str(folder),
        "dtype": dtype,
        "logprobs": mode,
        "tokens": TOKENS,
        "prompts": asked,
    }
    command = [location_of("vllm").python, str(SCRIPT)]
    done = subprocess.run(
        command,
        input=json.dumps(request),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    responses = json.loads(done.stdout)
    return [responses[at : at + len(prompts)] for at in range(0, len(responses), len(prompts))]


def in_float8(loaded: LoadedModel) -> LoadedModel:
    """The model with each matrix rounded to float8_e4m3fn, scaled by its largest value."""
    with torch.no_grad():
        for weight in loaded.model.parameters():
            if weight.ndim > 1:
                scale = weight.abs().max() / torch.finfo(torch.float8_e4m3fn).max
                weight.copy_((weight / scale).to(torch.float8_e4m3fn).to(weight.dtype) * scale)
    return loaded


def update(
    loaded: LoadedModel,
    prompts: Sequence[list[int]],
    responses: Sequence[Response],
    rate: float,
) -> LoadedModel:
    """The model after a step of AdamW toward the even responses and away from the odd ones."""
    optimizer = torch.optim.AdamW(
        loaded.model.requires_grad_().parameters(),
        lr=rate,
        weight_decay=0.0,
    )
    for number, (prompt, (tokens, _)) in enumerate(zip(prompts, responses, strict=True)):
        ids = torch.tensor([*prompt, *tokens])
        logprobs = loaded.model(ids[None]).logits[0].log_softmax(-1)
        of_tokens = logprobs[len(prompt) - 1 : -1].gather(1, ids[len(prompt) :, None])
        (of_tokens.mean() * (1 if number % 2 else -1) / len(prompts)).backward()
    optimizer.step()
    loaded.model.zero_grad()
    loaded.model.requires_grad_(False)
    return loaded


def score(
    loaded: LoadedModel,
    prompt: Sequence[int],
    tokens: Sequence[int],
) -> tuple[list[float], list[float]]:
    """The model's log-probabilities of a response, and the entropies of its distributions."""
    with torch.inference_mode():
        logits = loaded.model(torch.tensor([*prompt, *tokens])[None]).logits[
            0,
            len(prompt) - 1 : -1,
        ]
    logprobs = logits.double().log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return chosen.tolist(), (-logprobs.exp() * logprobs).sum(-1).tolist()


def digits(values: Sequence[float | None], count: int) -> list[float | None]:
    return [
        None if value is None or np.isnan(value) else float(f"{value:.{count}g}")
        for value in values
    ]


class Sampler:
    """Engines and trainers of one checkpoint; files of models go to a scratch folder."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.trainers = {dtype: self.load(dtype) for dtype in ("bfloat16", "float32")}
        self.prompts = [self.ids(CHAT.format(question)) for question in QUESTIONS]

    def load(self, dtype: str) -> LoadedModel:
        return load_model(str(SMOLLM2), dtype=dtype, device="cpu")

    def ids(self, text: str) -> list[int]:
        return list(self.trainers["float32"].tokenizer(text, add_special_tokens=False)["input_ids"])

    def responses(self, rollouts: Sequence[Rollout]) -> list[list[Response]]:
        """Sample rollouts that share an engine, weights and what their log-probabilities
        include.
        """
        dtype = rollouts[0].weights
        if rollouts[0].engine == "llamacpp":
            path = gguf_with_vocabulary(
                self.trainers["float32"],
                dtype,
                self.scratch / "model.gguf",
            )
            return [
                sample_llamacpp(path, self.prompts, each.sampling, each.seed) for each in rollouts
            ]
        if dtype != "float8":
            return sample_vllm(SMOLLM2, dtype, rollouts, self.prompts)
        save_model(in_float8(self.load("bfloat16")), self.scratch / "float8")
        return sample_vllm(self.scratch / "float8", "bfloat16", rollouts, self.prompts)

    def lagged(self, rollout: Rollout) -> tuple[list[Response], LoadedModel]:
        """Sample a third of the prompts by each of three versions of the weights. -> responses and
        the last version
        """
        loaded, responses = self.load("float32"), []
        for version in range(3):
            part = self.prompts[version::3]
            if version:
                update(loaded, self.prompts[version - 1 :: 3], responses[-1], rollout.rate)
            path = gguf_with_vocabulary(loaded, rollout.weights, self.scratch / "model.gguf")
            responses.append(sample_llamacpp(path, part, {}, rollout.seed + 10 * version))
        loaded.model.bfloat16()
        return [responses[n % 3][n // 3] for n in range(len(self.prompts))], loaded

    def rows(
        self,
        rollout: Rollout,
        responses: Sequence[Response],
        trainer: LoadedModel,
    ) -> Iterator[dict[str, Any]]:
        """Rows of a file, scored by the trainer; of one without a cause also in float32 and on
        other inputs.
        """
        for number, (prompt, (tokens, values)) in enumerate(
            zip(self.prompts, responses, strict=True),
        ):
            scores, entropy = score(trainer, prompt, tokens)
            row = {"rollout": values, "trainer": scores}
            if rollout.is_plain:
                row["trainer_float32"] = score(self.trainers["float32"], prompt, tokens)[0]
            if rollout.name == "vllm-bfloat16":
                for name, chat in OTHER_INPUTS.items():
                    row[name] = score(trainer, self.ids(chat.format(QUESTIONS[number])), tokens)[0]
            count = 6 if rollout.weights == "float32" else 5
            row = {name: digits(column, count) for name, column in row.items()}
            row |= {"entropy": digits(entropy, 3), "token_ids": tokens, "prompt_token_ids": prompt}
            row["sequence"] = str(number)
            if rollout.rate:
                row |= {"step": 2, "weight_version": str(number % 3)}
            yield row

    def write(self, rollouts: Sequence[Rollout], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        same = self.trainers["bfloat16"]
        is_lagged = rollouts[0].rate
        sampled = (
            map(self.lagged, rollouts)
            if is_lagged
            else ((one, same) for one in self.responses(rollouts))
        )
        for rollout, (responses, trainer) in zip(rollouts, sampled, strict=True):
            rows = self.rows(rollout, responses, trainer)
            lines = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
            (folder / f"{rollout.name}.jsonl").write_text(lines)
            print(
                f"{rollout.name}: {sum(len(tokens) for tokens, _ in responses)} tokens",
                flush=True,
            )


def main() -> None:
    """Sample the files, those of one engine and model together."""
    with tempfile.TemporaryDirectory() as scratch:
        sampler = Sampler(Path(scratch))
        # the GGUFs that are made for llama.cpp go with the scratch folder
        os.environ["ULPSCOPE_CACHE"] = scratch
        for _, group in groupby(sorted(ROLLOUTS, key=Rollout.group), Rollout.group):
            sampler.write(list(group), FOLDER)


if __name__ == "__main__":
    main()
