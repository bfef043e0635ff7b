"""Train the offline model: a 9.8 M parameter Llama on the source text of the Python standard
library and of four packages.

Why these sizes (docs/contributing/decisions/0004-offline-model.md): on a CPU with bfloat16
instructions a matrix product of one row and one of several rows agreed bit for bit while the
reduction was at most 1024 long, and differed in 0 to 2 elements of 4096 from 1536 on. So the MLP is
wide (2048) and the residual stream narrow (384), and `decode : decode+batch:N` diverges in bfloat16
at 20 MB.

Why this recipe: with AdamW at 3e-3 the heads of so small a model become one-hot, and a key or value
whose weight is exactly 0 shows no fault that is planted in it. Muon for the matrices of the layers,
a softer start of queries and keys, and a penalty on heads whose entropy falls below `ENTROPY_FLOOR`
keep attention as spread as a real model's.
"""

import hashlib
import json
import platform
import sys
import sysconfig
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

VOCABULARY = 4096
CONTEXT = 512  # tokens of a training sequence
BATCH = 8  # sequences a step
PACKAGES = ("networkx", "numpy", "pandas", "scipy")  # all under BSD licences
MATRIX_RATE = 0.02  # of Muon, for the matrices of the layers
OTHER_RATE = 3e-3  # of AdamW, for the embedding and the norms
ENTROPY_FLOOR = 0.6  # nats, of a head, over the queries of a sequence
ENTROPY_WEIGHT = 0.3  # of the penalty, in nats of loss a nat of entropy that is missing
# of the 200 tokens of held-out text over which entropies are measured
STARTS = range(0, 80_000, 8_000)
END_OF_TEXT = "<|endoftext|>"
# `test` packages are left out: some distributions do not install them, and their text is tables of
# expected values.
LEFT_OUT = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idle_test",
    "__pycache__",
    "lib2to3",
}


def source_files(root: Path) -> list[Path]:
    """Every module under `root`, in a fixed order."""
    files = [
        path for path in root.rglob("*.py") if not LEFT_OUT & set(path.relative_to(root).parts)
    ]
    return sorted(files, key=lambda path: path.relative_to(root).as_posix())


def read_corpus() -> tuple[list[str], list[str], list[str], str]:
    """(standard library's training texts, its held-out texts, packages' texts, sha256 of all of
    it).

    One file of the standard library in 40 is held out, chosen by the hash of its path. A package's
    file with lines of a held-out file (a vendored copy) is left out.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    training: list[str] = []
    held_out: list[str] = []
    digest = hashlib.sha256()
    for path in source_files(root):
        text = path.read_text(encoding="utf-8", errors="replace")
        digest.update(text.encode())
        name = path.relative_to(root).as_posix()
        # by a hash of the name, so that other files do not change which are held out
        is_held_out = hashlib.sha256(name.encode()).digest()[0] % 40 == 0
        (held_out if is_held_out else training).append(text)
    # packages carry copies of the standard library, which would be in both parts
    lines_held_out = set().union(*(_long_lines(text) for text in held_out))
    packages: list[str] = []
    for package in PACKAGES:
        for path in source_files(Path(sysconfig.get_paths()["purelib"]) / package):
            text = path.read_text(encoding="utf-8", errors="replace")
            lines = _long_lines(text)
            if len(text) > 200_000 or len(lines & lines_held_out) > 0.1 * len(lines):
                continue
            digest.update(text.encode())
            packages.append(text)
    return training, held_out, packages, digest.hexdigest()


def _long_lines(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines() if len(line.strip()) >= 40}


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
    return np.concatenate(
        [np.array([tokenizer.bos_token_id, *ids], dtype=np.int64) for ids in encoded],
    )


def head_entropies(model: LlamaForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Mean entropy of every head's attention in nats, [layers * heads], over the queries of `ids`
    [1, positions] behind the first 8, which see too few keys to spread over.
    """
    # only eager attention returns its weights
    usual = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        attentions = model(input_ids=ids, output_attentions=True).attentions
    finally:
        model.set_attn_implementation(usual)
    entropies = []
    for weights in attentions:
        weights = weights[0, :, 8:].float()
        entropies.append(-(weights * (weights + 1e-9).log()).sum(-1).mean(-1))
    return torch.cat(entropies)


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, stream: np.ndarray, windows: int = 64) -> float:
    """Mean cross entropy in nats per token over evenly spaced windows of the held-out text, in the
    model's own dtype.
    """
    model.eval()
    starts = np.linspace(0, len(stream) - CONTEXT - 1, windows).astype(int)
    losses = []
    for start in starts:
        ids = torch.from_numpy(stream[start : start + CONTEXT])[None]
        losses.append(model(input_ids=ids, labels=ids).loss.float().item())
    return float(np.mean(losses))


def train(folder: Path, steps: int, seed: int = 0) -> None:
    """Train, save in bfloat16, load back with the plain Auto classes, and record what it is."""
    began = time.perf_counter()
    torch.manual_seed(seed)
    training, held_out, packages, corpus_sha256 = read_corpus()
    tokenizer = train_tokenizer(training)
    stream = token_stream(tokenizer, 2 * training + packages, seed)
    held_out_stream = token_stream(tokenizer, held_out, seed)
    model = LlamaForCausalLM(
        LlamaConfig(
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
    )
    # queries and keys begin at half their size: every head begins by looking everywhere
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            projection.weight.data *= 0.5
    inner = [p for p in model.model.layers.parameters() if p.ndim == 2]
    others = [model.model.embed_tokens.weight, *(p for p in model.parameters() if p.ndim < 2)]
    muon = torch.optim.Muon(inner, lr=MATRIX_RATE, weight_decay=0.1, momentum=0.95)
    adam = torch.optim.AdamW(others, lr=OTHER_RATE, weight_decay=0.0, betas=(0.9, 0.95), fused=True)
    optimizers = [(muon, MATRIX_RATE), (adam, OTHER_RATE)]
    # Whole epochs of shuffled, non-overlapping windows; the offset moves each epoch.
    rng = np.random.default_rng(seed)
    queue: list[int] = []
    for step in range(steps):
        if len(queue) < BATCH:
            offset = int(rng.integers(CONTEXT))
            queue = list(rng.permutation(np.arange(offset, len(stream) - CONTEXT - 1, CONTEXT)))
        rows = [stream[(start := queue.pop()) : start + CONTEXT] for _ in range(BATCH)]
        ids = torch.from_numpy(np.stack(rows))
        # linear warm-up over 100 steps, then linear to nothing over the last 60 %
        share = min(1.0, (step + 1) / 100, (steps - step) / (0.6 * steps))
        for optimizer, peak in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = peak * share
        model.train()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
            penalty = 0.0
            # one sequence in 32 shows the entropies well enough
            if step % 4 == 0:
                entropies = head_entropies(model, ids[:1])
                penalty = 4 * ENTROPY_WEIGHT * torch.relu(ENTROPY_FLOOR - entropies).sum()
        (loss + penalty).backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        for optimizer, _ in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        if step % 500 == 499:
            held_out_nats = held_out_loss(model, held_out_stream, 16)
            print(f"step {step}: loss {loss:.3f}, held out {held_out_nats:.3f}", flush=True)

    minutes = (time.perf_counter() - began) / 60
    model = model.to(torch.bfloat16)
    model.generation_config.bos_token_id = model.generation_config.eos_token_id = (
        tokenizer.eos_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

    record = {
        "training_tokens": steps * BATCH * CONTEXT,
        "corpus_tokens": len(stream),
        "corpus": (
            f"standard library of {platform.python_implementation()} {platform.python_version()}"
            " (twice), "
            + ", ".join(f"{package} {version(package)}" for package in PACKAGES)
            + "; without tests"
        ),
        "corpus_sha256": corpus_sha256,
        "steps": steps,
        "seed": seed,
        "training_minutes": round(minutes, 1),
        "torch": torch.__version__,
    } | measure(folder, held_out)
    (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n")


def measure(folder: Path, held_out: list[str]) -> dict:
    """Measure a trained folder, loaded by the plain Auto classes in bfloat16: parameters, loss and
    heads' entropies on held-out texts, a greedy continuation.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    stream = token_stream(tokenizer, held_out, seed=0)
    prompt = tokenizer("def __init__(self,", return_tensors="pt")
    continuation = model.generate(**prompt, max_new_tokens=48, do_sample=False)
    with torch.no_grad():
        entropies = torch.stack(
            [
                head_entropies(model, torch.from_numpy(stream[start : start + 200])[None])
                for start in STARTS
            ],
        ).mean(0)
    return {
        "architecture": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "held_out_loss_nats": round(held_out_loss(model, stream), 4),
        "head_entropies_nats": {
            "smallest": round(entropies.min().item(), 3),
            "median": round(entropies.median().item(), 3),
        },
        "greedy_continuation": tokenizer.decode(continuation[0]),
    }


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    train(target, steps=int(sys.argv[2]))
