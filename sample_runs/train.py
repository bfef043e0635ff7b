"""Train the offline model: a 9.8 M parameter Llama on the Python standard library's own source text.

Why these sizes (docs/decisions/0004-offline-model.md has the table): on a CPU with bfloat16 instructions a matrix
product of one row and one of several rows agreed bit for bit while the reduction was at most 1024 long, and differed in
0 to 2 elements of 4096 from 1536 on. So the MLP is wide (2048) and the residual stream narrow (384), and `decode :
decode+batch:N` diverges in bfloat16 at 20 MB.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 4096
CONTEXT = 512  # tokens of a training sequence
BATCH = 4  # sequences a step
END_OF_TEXT = "<|endoftext|>"
# `test` packages are left out: some distributions do not install them, and their text is tables of expected values.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3"}


def source_files() -> list[Path]:
    """Every module of this interpreter's standard library, in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in root.rglob("*.py") if not LEFT_OUT & set(path.relative_to(root).parts)]
    return sorted(files, key=lambda path: path.relative_to(root).as_posix())


def read_corpus() -> tuple[list[str], list[str], str]:
    """(training texts, held-out texts, sha256 of all of it). One file in 40 is held out, chosen by the hash of its
    path.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    training: list[str] = []
    held_out: list[str] = []
    digest = hashlib.sha256()
    for path in source_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        digest.update(text.encode())
        name = path.relative_to(root).as_posix()
        is_held_out = hashlib.sha256(name.encode()).digest()[0] % 40 == 0
        (held_out if is_held_out else training).append(text)
    return training, held_out, digest.hexdigest()


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE, so that every string has token ids and every token id has text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )


def token_stream(tokenizer: PreTrainedTokenizerFast, texts: list[str], seed: int) -> np.ndarray:
    """All texts, shuffled, each opened by the end-of-text token. [tokens] int64."""
    order = np.random.default_rng(seed).permutation(len(texts))
    encoded = tokenizer([texts[i] for i in order], add_special_tokens=False)["input_ids"]
    return np.concatenate([np.array([tokenizer.bos_token_id, *ids], dtype=np.int64) for ids in encoded])


def new_model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=384,
        intermediate_size=2048,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over 60 steps, then half a cosine down to a tenth."""
    if step < 60:
        return peak * (step + 1) / 60
    return peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - 60) / max(1, steps - 60))))


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, stream: np.ndarray, windows: int = 64) -> float:
    """Mean cross entropy in nats per token over evenly spaced windows of the held-out text, in the model's own
    dtype.
    """
    model.eval()
    starts = np.linspace(0, len(stream) - CONTEXT - 1, windows).astype(int)
    losses = []
    for start in starts:
        ids = torch.from_numpy(stream[start : start + CONTEXT])[None]
        losses.append(model(input_ids=ids, labels=ids).loss.float().item())
    return float(np.mean(losses))


def train(folder: Path, steps: int, peak: float = 3e-3, seed: int = 0) -> dict:
    """Train, save in bfloat16, load back with the plain Auto classes, and record what it is. Returns the record."""
    started = time.perf_counter()
    torch.manual_seed(seed)
    training, held_out, corpus_sha256 = read_corpus()
    tokenizer = train_tokenizer(training)
    stream = token_stream(tokenizer, training, seed)
    held_out_stream = token_stream(tokenizer, held_out, seed)
    print(
        f"{len(training)} files, {len(stream):,} tokens; held out {len(held_out)} files, {len(held_out_stream):,}"
        " tokens",
        flush=True,
    )

    model = new_model()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        fused=True,
    )
    # Whole epochs of shuffled, non-overlapping windows; the offset moves each epoch.
    rng = np.random.default_rng(seed)
    queue: list[int] = []
    model.train()
    running = None
    for step in range(steps):
        if len(queue) < BATCH:
            offset = int(rng.integers(CONTEXT))
            queue = list(rng.permutation(np.arange(offset, len(stream) - CONTEXT - 1, CONTEXT)))
        rows = [stream[(start := queue.pop()) : start + CONTEXT] for _ in range(BATCH)]
        ids = torch.from_numpy(np.stack(rows))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        running = loss.item() if running is None else 0.98 * running + 0.02 * loss.item()
        if step % 50 == 0 or step == steps - 1:
            wall = time.perf_counter() - started
            print(f"step {step:5d}/{steps}  loss {running:.3f}  {wall / 60:.1f} min", flush=True)

    model = model.to(torch.bfloat16)
    model.generation_config.bos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    loaded_tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = loaded_tokenizer("def __init__(self,", return_tensors="pt")
    continuation = loaded.generate(**prompt, max_new_tokens=48, do_sample=False)
    record = {
        "architecture": "LlamaForCausalLM",
        "parameters": sum(p.numel() for p in loaded.parameters()),
        "training_tokens": steps * BATCH * CONTEXT,
        "corpus_tokens": len(stream),
        "corpus": f"standard library of {platform.python_implementation()} {platform.python_version()}, without tests",
        "corpus_sha256": corpus_sha256,
        "steps": steps,
        "seed": seed,
        "held_out_loss_nats": round(held_out_loss(loaded, held_out_stream), 4),
        "training_minutes": round((time.perf_counter() - started) / 60, 1),
        "torch": torch.__version__,
        "greedy_continuation": loaded_tokenizer.decode(continuation[0]),
    }
    (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))
    return record


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    train(target, steps=int(sys.argv[2]))
