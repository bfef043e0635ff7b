"""Causes of a trainer that differs from its rollout on trial: planted in tokens sampled from a real
model's logits, and pairs that only round (docs/guides/rl.md).

    python -m benchmarks.verdicts.rollouts                  # the small model of sample_runs
    python -m benchmarks.verdicts.rollouts --model DIR      # another, as SmolLM2
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from core.inference.models.model import load_model
from core.rl.causes import explain_tokens
from core.rl.figures import SampledTokens

ROOT = Path(__file__).resolve().parents[2]
Logits = NDArray[np.float64]
CLEAN = ""
LENGTH = 32  # tokens of a response
DRAWS = 4  # tokens sampled at each position


def logits_of(model: str, dtype: str, ids: torch.Tensor) -> Logits:
    """Logits of a text by one forward. [positions, vocab]"""
    loaded = load_model(model, dtype=dtype, device="cpu")
    with torch.inference_mode():
        return loaded.model(ids[None]).logits[0].float().double().numpy()


def log_softmax(logits: Logits) -> Logits:
    """Log-probabilities. [positions, vocab]"""
    # exp of large logits could be infinite
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def restricted(logits: Logits, *, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0) -> Logits:
    """Logits with the tokens that a sampler leaves out at -inf."""
    order = np.argsort(-logits, axis=1, kind="stable")
    ranked = np.exp(np.take_along_axis(log_softmax(logits), order, axis=1))
    # the token that crosses the share still counts, as in samplers
    keep = (np.cumsum(ranked, axis=1) - ranked) < top_p
    keep &= ranked >= min_p * ranked[:, :1]
    if top_k:
        keep[:, top_k:] = False
    kept = np.zeros_like(keep)
    np.put_along_axis(kept, order, keep, axis=1)
    return np.where(kept, logits, -np.inf)


def sampled(rollout: Logits, trainer: Logits, seed: int) -> SampledTokens:
    """Tokens sampled from the rollout's distribution, with both sides' values and the trainer's
    entropy.
    """
    rng = np.random.default_rng(seed)
    sides = [np.tile(log_softmax(side), (DRAWS, 1)) for side in (rollout, trainer)]
    with np.errstate(divide="ignore"):
        # the argmax with Gumbel noise is a sample of the softmax
        drawn = np.argmax(sides[0] + rng.gumbel(size=sides[0].shape), axis=1)
    rows = np.arange(len(drawn))
    entropy = -(np.exp(sides[1]) * np.where(np.isfinite(sides[1]), sides[1], 0)).sum(axis=1)
    return SampledTokens(
        rows // LENGTH,
        rows % LENGTH,
        sides[0][rows, drawn],
        sides[1][rows, drawn],
        entropy=entropy,
    )


def cases(
    exact: Logits,
    rounded: Logits,
    other: Logits,
) -> Iterator[tuple[str, str, SampledTokens]]:
    """Yield (case, expected cause, tokens). exact, rounded: one model's logits in float32 and
    bfloat16; other: those of older weights.
    """
    rng = np.random.default_rng(1)
    yield "bfloat16 rollout, float32 trainer", CLEAN, sampled(rounded, exact, 0)
    yield "float32 rollout, bfloat16 trainer", CLEAN, sampled(exact, rounded, 1)
    yield (
        "one dtype, noise of 1e-6",
        CLEAN,
        sampled(exact + rng.normal(0, 1e-6, exact.shape), exact, 2),
    )
    yield "older weights on one side", CLEAN, sampled(other, exact, 3)
    for seed, factor in enumerate((0.6, 0.8, 1.2), 4):
        yield f"temperature {factor}", "temperature", sampled(rounded / factor, exact, seed)
    for seed, share in enumerate((0.8, 0.9, 0.95), 7):
        yield (
            f"top-p {share}",
            "renormalized",
            sampled(restricted(rounded, top_p=share), exact, seed),
        )
    for seed, most in enumerate((2, 5, 20), 10):
        yield f"top-k {most}", "renormalized", sampled(restricted(rounded, top_k=most), exact, seed)
    for seed, least in enumerate((0.2, 0.1, 0.05), 13):
        yield (
            f"min-p {least}",
            "renormalized",
            sampled(restricted(rounded, min_p=least), exact, seed),
        )
    plain = sampled(rounded, exact, 20)
    about = {
        "turn": plain.position // 8,
        "lag": plain.sequence % 3.0,
        "groups": {"step": plain.sequence // 8},
    }
    yield "turns, lags and steps of one quality", CLEAN, with_values(plain, **about)
    for shift in (1, -1, 2):
        yield (
            f"shifted by {shift}",
            "shifted",
            with_values(plain, trainer=np.roll(plain.trainer, -shift)),
        )
    for value in (0.0, -9999.0, np.nan):
        for share in (0.02, 0.1, 0.3):
            values = np.where(rng.random(len(plain.r)) < share, value, plain.rollout)
            expected = "missing" if np.isnan(value) else "placeholders"
            yield (
                f"{value:g} at {share:.0%} of the tokens",
                expected,
                with_values(plain, rollout=values),
            )
    # a tool's output that the mask does not leave out
    for length in (2, 4, 8):
        values = np.where(
            (plain.position >= 10) & (plain.position < 10 + length),
            0.0,
            plain.rollout,
        )
        yield (
            f"{length} tokens of a tool in the loss",
            "placeholders",
            with_values(plain, rollout=values),
        )
    for place in (0, LENGTH - 1):
        for size in (0.1, 0.5, 2.0):
            values = plain.trainer - size * (plain.position == place)
            yield (
                f"token {place} off by {size}",
                "part of the response",
                with_values(plain, trainer=values),
            )
    # the trainer's text has another number of tokens
    for every, shift in ((4, 1), (2, -1), (1, 2)):
        later = np.roll(plain.rollout, -shift) + rng.normal(0, 0.05, len(plain.r))
        is_later = (plain.sequence % every == 0) & (plain.position >= 8 + plain.sequence % 5)
        # a roll takes values of the next sequence at the end of one
        is_later &= np.roll(plain.sequence, -shift) == plain.sequence
        moved = with_values(plain, trainer=np.where(is_later, later, plain.trainer))
        yield f"other ids in 1 of {every} sequences", "retokenized", moved
    turn = plain.position // (LENGTH // 4)
    for first, size in ((1, 0.05), (2, 0.2), (3, 1.0)):
        changed = with_values(plain, trainer=plain.trainer - size * (turn >= first), turn=turn)
        yield f"other inputs from turn {first + 1} of 4 on, {size}", "part of the response", changed
    for size in (0.1, 0.5, 2.0):
        values = plain.trainer - size * (plain.position % (LENGTH // 4) == 0)
        changed = with_values(plain, trainer=values, turn=turn)
        yield f"first token of each turn off by {size}", "part of the response", changed
    equal = sampled(exact, exact, 20)
    for tokens, name in ((equal, "float16"), (equal, "bfloat16"), (plain, "bfloat16")):
        values = torch.tensor(tokens.rollout).to(getattr(torch, name)).double().numpy()
        about = ", with its rounding" if tokens is plain else ""
        yield (
            f"log-probabilities stored in {name}{about}",
            "rounded",
            with_values(tokens, rollout=values),
        )
    step = plain.sequence // 8
    for factor in (0.7, 0.8, 1.3):
        hot = sampled(rounded / factor, exact, 20)
        rollout, trainer = (
            np.where(step == step.max(), *each)
            for each in ((hot.rollout, plain.rollout), (hot.trainer, plain.trainer))
        )
        late = with_values(
            plain,
            rollout=rollout,
            trainer=trainer,
            entropy=hot.entropy,
            groups={"step": step},
        )
        yield f"temperature {factor} at the last step", "temperature", late
    wrong, lag = sampled(rounded, other, 20).trainer, (plain.sequence % 3).astype(float)
    for share in (1.0, 0.7, 0.5):
        values = plain.trainer + share * lag / 2 * (wrong - plain.trainer)
        yield (
            f"weights of 0 to 2 steps ago, {share}",
            "lag",
            with_values(plain, trainer=values, lag=lag),
        )


def with_values(tokens: SampledTokens, **values: NDArray) -> SampledTokens:
    """Tokens with some of their values replaced."""
    return SampledTokens(**{**vars(tokens), **values})


def main() -> int:
    """Print a line per case; exit code 1 if one is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default=str(ROOT / "sample_runs" / "model"))
    options = parser.parse_args()
    loaded = load_model(options.model, dtype="float32", device="cpu")
    text = (ROOT / "sample_runs" / "prompts" / "parser.txt").read_text()
    ids = torch.tensor(loaded.tokenizer(text)["input_ids"][:256])
    exact, rounded = (logits_of(options.model, dtype, ids) for dtype in ("float32", "bfloat16"))
    with torch.inference_mode():
        for weight in loaded.model.parameters():
            weight += weight.std() * 0.02 * torch.randn_like(weight) if weight.numel() > 1 else 0
        other = loaded.model(ids[None]).logits[0].double().numpy()
    wrong = count = 0
    for name, expected, tokens in cases(exact, rounded, other):
        causes = explain_tokens(tokens)
        named = causes[0].name if causes else ""
        count, wrong = count + 1, wrong + (named != expected)
        size = np.nanmean(np.abs(tokens.r))
        outcome, says = "ok   " if named == expected else "WRONG", causes[0].text if causes else "-"
        print(f"{outcome} {name:<40} mean |r| {size:<9.3g} {says}")
    print(f"{wrong} of {count} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
