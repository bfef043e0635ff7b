"""Faults that only 16-bit kernels have, on trial: the engine's float32 is the model's own forward, its bfloat16 or
float16 has a fault of a given size (docs/verdict_calibration.md).

python -m benchmarks.verdicts.kernel_faults                       # every model and dtype: the tables of the docs
python -m benchmarks.verdicts.kernel_faults --model llama --dtype float16
python -m benchmarks.verdicts.kernel_faults --folder DIR --dtype bfloat16   # a real model, as SmolLM2
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.verdicts.engines import PREFIX, Engine, attention, cache_of, hooked, layers, other_tokens, prefill, walk
from benchmarks.verdicts.screening import PROMPTS, TOKENS
from benchmarks.verdicts.tiny_models import CONFIGS, tiny_model, tiny_prompts
from benchmarks.verdicts.variations import in_float64, in_two_halves, norms_in_float64
from core.inference.controls.drawn_roundings import DRAWS, errors_of, sixteen_rows
from core.inference.models.dtypes import in_float32
from core.inference.models.model import LoadedModel, load_model
from core.inference.models.torch_errors import quiet
from core.inference.paths.engines import PLAIN, side_of, whole_side
from core.judging.statistic import BLOCKS
from core.runs.file.evidence import FAILED

DTYPES = ("bfloat16", "float16")
MODELS = tuple(name for name in CONFIGS if name != "mixtral-ties")
SHARES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # of the whole fault
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, np.inf)  # upper ends, in roundings at the position where the fault is largest
PLACE = -5  # token at which faults of one token are
_NARROW = (torch.bfloat16, torch.float16)


def in_16_bits_only(engine: Engine) -> Engine:
    """The engine where the model is in 16 bits, a plain forward in float32 and float64."""
    return lambda model, ids: engine(model, ids) if model.dtype in _NARROW else prefill(model, ids)


def _moved(values: torch.Tensor, towards: torch.Tensor, share: float) -> torch.Tensor:
    return (values.float() + share * (towards.float() - values.float())).to(values.dtype)


def _of_module(module: Callable[[Any], Any], change: Callable[[torch.Tensor, Any], torch.Tensor]) -> Engine:
    """A plain forward in which a module's output is change(output, arguments)."""

    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        def changed(arguments: Any, output: Any) -> Any:
            first = output[0] if isinstance(output, tuple) else output
            found = change(first, arguments)
            return (found, *output[1:]) if isinstance(output, tuple) else found

        with hooked(module(model), changed):
            return prefill(model, ids)

    return engine


def _middle_block(model: Any) -> Any:
    return layers(model)[1]


def _norm(model: Any) -> Any:
    return next(each for each in _middle_block(model).children() if "Norm" in type(each).__name__)


def _at_one_token(output: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    changed = output.clone()
    changed[:, PLACE] = found
    return changed


def residual_twice(share: float) -> Engine:
    """At one token a block's input is added once more."""
    return _of_module(
        _middle_block,
        lambda output, arguments: _at_one_token(output, output[:, PLACE] + share * arguments[0][:, PLACE]),
    )


def norm_of_its_neighbor(share: float) -> Engine:
    """At one token a norm's output is that of the token before."""
    return _of_module(
        _norm, lambda output, _: _at_one_token(output, _moved(output[:, PLACE], output[:, PLACE - 1], share))
    )


def embedding_rows_swapped(share: float) -> Engine:
    """The embeddings of the first two different tokens of the prompt are swapped."""

    def change(output: torch.Tensor, arguments: Any) -> torch.Tensor:
        tokens = arguments[0][0]
        first, second = tokens.unique()[:2]
        changed = output.clone()
        for token, other in ((first, second), (second, first)):
            there = tokens == token
            changed[0, there] = _moved(output[0, there], output[0, tokens == other][:1], share)
        return changed

    return _of_module(lambda model: model.get_input_embeddings(), change)


def head_tile_of_its_neighbor(share: float) -> Engine:
    """One tile of 16 tokens of the head is that of the position before, at one position."""

    def change(output: torch.Tensor, _: Any) -> torch.Tensor:
        changed = output.clone()
        changed[:, PLACE, 16:32] = _moved(output[:, PLACE, 16:32], output[:, PLACE - 1, 16:32], share)
        return changed

    return _of_module(lambda model: model.get_output_embeddings(), change)


def last_chunk_shifted(share: float) -> Engine:
    """A block's output of the last chunk of 7 is read one row early."""

    def change(output: torch.Tensor, _: Any) -> torch.Tensor:
        changed = output.clone()
        changed[:, -7:] = _moved(output[:, -7:], output[:, -8:-1], share)
        return changed

    return _of_module(_middle_block, change)


def another_row(share: float) -> Engine:
    """From one token on, a block's output is that of another request in the batch."""

    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        def change(_: Any, output: Any) -> Any:
            first = output[0] if isinstance(output, tuple) else output
            changed = first.clone()
            changed[0, PLACE] = _moved(first[0, PLACE], first[1, PLACE], share)
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        with hooked(_middle_block(model), change):
            logits: torch.Tensor = model(input_ids=torch.stack([ids, other_tokens(ids)]), use_cache=False).logits
        return logits[0]

    return engine


def attention_sees_ahead(share: float) -> Engine:
    """One query of the first layer reads the value after its own."""

    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        def change(original: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, options: Any) -> Any:
            found, *rest = original(module, query, key, value, mask, options)
            if module.layer_idx == 0:
                found = found.clone()
                other = value[:, :, PLACE + 1].repeat_interleave(query.shape[1] // value.shape[1], 1)
                found[:, PLACE] = _moved(found[:, PLACE], other, share)
            return (found, *rest)

        with attention(model, change):
            return prefill(model, ids)

    return engine


def stale_slot(share: float) -> Engine:
    """One cached slot of all layers holds what another request left there."""

    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        left = cache_of(model, other_tokens(ids)[:PREFIX])

        def after(cache: Any, at: int) -> None:
            if at == PREFIX:
                for layer, old in zip(cache.layers, left.layers, strict=True):
                    layer.keys[:, :, -3] = _moved(layer.keys[:, :, -3], old.keys[:, :, -3], share)
                    layer.values[:, :, -3] = _moved(layer.values[:, :, -3], old.values[:, :, -3], share)

        return walk(model, ids, [PREFIX], after)

    return engine


FAULTS: dict[str, Callable[[float], Engine]] = {
    "attention reads ahead": attention_sees_ahead,
    "stale cache slot": stale_slot,
    "norm of the token before": norm_of_its_neighbor,
    "residual added twice": residual_twice,
    "embedding rows swapped": embedding_rows_swapped,
    "tile of the head": head_tile_of_its_neighbor,
    "last chunk shifted": last_chunk_shifted,
    "another row of the batch": another_row,
}


# The same function by other 16-bit kernels.


def scores_rounded(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Attention rounds its scores and its weights to 16 bits, as an unfused kernel does."""

    def change(original: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, options: Any) -> Any:
        if options.get("softcap") is not None:
            return original(module, query, key, value, mask, options)
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = (query @ key.transpose(2, 3) * options["scaling"]).masked_fill(~mask, -torch.inf)
        return (scores.softmax(-1) @ value).transpose(1, 2), None

    with attention(model, change):
        return prefill(model, ids)


TWINS: dict[str, Engine] = {
    "scores rounded to 16 bits": scores_rounded,
    "products in two halves": in_two_halves,
    "norms in float64": norms_in_float64,
    "float64, rounded at the end": in_float64,
}


@dataclass(frozen=True)
class Tried:
    """One case. size: of the fault in float32, in roundings drawn anew at the position where it is largest, 0 of a
    twin; outcome: of the check.
    """

    model: str
    dtype: str
    case: str
    size: float
    outcome: str


def run_trial(
    name: str, loaded: LoadedModel, prompts: Sequence[Sequence[int]], shares: Sequence[float] = SHARES
) -> list[Tried]:
    """Every fault at every size and every twin, on one model."""
    engines: dict[tuple[str, float], Engine] = {
        (case, share): make(share) for case, make in FAULTS.items() for share in shares
    }
    engines |= {(case, 0.0): engine for case, engine in TWINS.items()}
    with quiet(), torch.inference_mode():
        sizes = _sizes(loaded, prompts, {key: engine for key, engine in engines.items() if key[1]})
        sides = [side_of(in_16_bits_only(engine)) for engine in engines.values()]
        rows, _ = sixteen_rows(loaded, prompts, sides, BLOCKS)
    return [
        Tried(name, loaded.dtype, case, sizes.get((case, share), 0.0), row.outcome)
        for (case, share), row in zip(engines, rows, strict=True)
    ]


def _sizes(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], engines: dict[tuple[str, float], Engine]
) -> dict[tuple[str, float], float]:
    draws = errors_of(loaded, prompts, [], range(DRAWS))[1]
    rounding = np.mean([each.squares for each in draws], axis=0)
    found = {}
    with in_float32(loaded) as widened:
        plain = torch.cat([whole_side(PLAIN.run_on(widened), ids) for ids in prompts]).double()
        for key, engine in engines.items():
            side = side_of(engine)
            fault = torch.cat([whole_side(side.run_on(widened), ids) for ids in prompts]).double() - plain
            found[key] = float(np.sqrt((fault.square().mean(1).numpy() / rounding).max()))
    return found


def table(tried: Sequence[Tried]) -> Iterator[str]:
    """Lines of Markdown: a line a fault, a column a size, seen of tried; then the twins that were accused."""
    ends = [f"{low:g} to {high:g}" if high < np.inf else f"{low:g} and more" for low, high in _ranges()]
    yield f"| fault of the 16-bit kernel alone | {' | '.join(ends)} |"
    yield f"|{'---|' * (1 + len(ends))}"
    for case in [*FAULTS, "together"]:
        cells = []
        for low, high in _ranges():
            own = [one for one in tried if one.size and low <= one.size < high and case in (one.case, "together")]
            cells.append(f"{sum(one.outcome == FAILED for one in own)} of {len(own)}" if own else "")
        yield f"| {case} | {' | '.join(cells)} |"
    twins = [one for one in tried if not one.size]
    yield f"\n{sum(one.outcome == FAILED for one in twins)} of {len(twins)} harmless twins accused"


def _ranges() -> list[tuple[float, float]]:
    return list(zip((0.0, *SIZES[:-1]), SIZES, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS, help="only these; may be given several times")
    parser.add_argument("--folder", help="of a transformers model, in place of the small ones")
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    parser.add_argument("--share", action="append", type=float, help="of a fault; default: all of the docs' table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    tried: list[Tried] = []
    for name in [given.folder] if given.folder else given.model or MODELS:
        for dtype in given.dtype or DTYPES:
            if given.folder:
                loaded = load_model(given.folder, dtype=dtype, device="cpu")
                prompts = [tuple(loaded.tokenizer(text)["input_ids"][:TOKENS]) for text in list(PROMPTS.values())[:2]]
            else:
                loaded = tiny_model(name, dtype)
                prompts = tiny_prompts(loaded)
            tried += run_trial(name, loaded, prompts, given.share or SHARES)
            seen = sum(one.outcome == FAILED for one in tried if one.model == name and one.dtype == dtype)
            print(f"{name} {dtype}: {seen} called bugs", flush=True)
    print("", *table(tried), sep="\n")
    return int(any(one.outcome == FAILED for one in tried if not one.size))


if __name__ == "__main__":
    raise SystemExit(main())
