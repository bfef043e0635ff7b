"""Free greedy continuations: every side goes on from the same prompt by its own argmax, and somewhere they may part.

A path computes the prompt as its base says and then goes on token by token with the cache that the prompt left, as
every engine does. Up to the place where two sides part they have seen the same tokens, so feeding the reference's
tokens to every side once more repeats what each of them computed, and gives the complete logits of both at the parting.
That second pass is an ordinary capture: this module finds the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ...errors import CaptureError, UsageError
from ...runs.file.records import Generation
from ..capture.capture import CapturePlan, check_paths, plan_capture, title_of, tokens_of, torch_errors_stop
from ..models.model import LoadedModel
from ..models.torch_errors import quiet
from ..paths.batch import ignore
from ..paths.paths import OpenPath, Path, open_path
from ..paths.sides import sides_of


def plan_generation(
    loaded: LoadedModel,
    prompts: Sequence[str | Sequence[int]],
    reference: str,
    variants: Sequence[str],
    *,
    tokens: int,
    name: str | None = None,
    seed: int = 0,
    is_dry: bool = False,
    on_progress: Callable[[str, int, int], Any] = ignore,
    **options: Any,
) -> CapturePlan:
    """Let every side continue every prompt by up to `tokens` tokens; the plan captures their logits up to the last
    parting.

    A side ends where it chooses an end-of-text token, which counts as its last. The captured positions are those of the
    prompt and of the reference's tokens up to the latest place where a variant parts from it, or all of them where none
    does. is_dry: generate nothing and plan as if no side ever parted, the most that it can cost; on_progress: is told
    (side, prompts done, prompts), prompts of all sides; options: of `plan_capture`.
    """
    ids, paths = _checked(loaded, prompts, reference, variants, tokens)
    made: list[list[tuple[int, ...]]] = [[] for _ in paths]
    if not is_dry:
        plan_capture(loaded, ids, reference, variants, seed=seed, **options)  # refuses what it would, before a forward
        for path, own in zip(paths, made, strict=True):
            for one, _ in continue_all(path, loaded, ids, tokens, seed=seed):
                own.append(one)
                on_progress(str(path), sum(map(len, made)), len(ids) * len(paths))
    generations, whole = [], []
    for number, prompt in enumerate(ids):
        sides = tuple(() if is_dry else own[number] for own in made)
        plain = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        texts = tuple(str(loaded.tokenizer.decode(list(side), **plain)) for side in sides)
        generations.append(Generation(number, len(prompt), tokens, sides, texts))
        whole.append((*prompt, *((0,) * (tokens - 1) if is_dry else _common(generations[-1]))))
    title = name or f"{title_of(loaded, sides_of(reference, variants))}, {tokens} tokens generated"
    return plan_capture(loaded, whole, reference, variants, name=title, seed=seed, generations=generations, **options)


def continue_all(
    path: Path, loaded: LoadedModel, prompts: Sequence[Sequence[int]], tokens: int, *, seed: int = 0
) -> Iterator[tuple[tuple[int, ...], tuple[float, ...]]]:
    """The greedy continuation of each prompt down one path: token ids, at most `tokens`, an end-of-text token the last.

    Beside each token the margin by which it was chosen, in logits; infinite or NaN where a gap is no finite number.
    """
    ends = end_tokens(loaded)
    with quiet(), torch.inference_mode():
        torch.manual_seed(seed)
        with torch_errors_stop(path), open_path(path, loaded) as opened:
            for ids in prompts:
                yield _continuation(opened, ids, tokens, ends)


def end_tokens(loaded: LoadedModel) -> frozenset[int]:
    """Token ids with which the model ends a text: those of its generation config, else the tokenizer's."""
    config: Any = getattr(loaded.model, "generation_config", None)
    said = getattr(config, "eos_token_id", None)
    found = said if isinstance(said, list) else [said if said is not None else loaded.tokenizer.eos_token_id]
    return frozenset(token for token in found if isinstance(token, int))


def best_and_margin(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(argmax, margin in logits): lowest id on ties, NaN never wins. [rows, vocab] -> [rows] each"""
    known = torch.where(logits.isnan(), -torch.inf, logits)
    best = known.topk(2, dim=-1).values.double()
    return known.argmax(-1), best[:, 0] - best[:, 1]


def _continuation(
    opened: OpenPath, ids: Sequence[int], tokens: int, ends: frozenset[int]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    own: list[int] = []
    margins: list[torch.Tensor] = []

    def choose(logits: torch.Tensor) -> int | None:
        if own and own[-1] in ends:
            return None
        token, margin = best_and_margin(logits)
        own.append(int(token))
        margins.append(margin)  # stays on the device: only the token has to be waited for
        return own[-1]

    opened.continued(ids, tokens, choose, ignore)
    return tuple(own), tuple(torch.cat(margins).tolist())


def _common(generation: Generation) -> tuple[int, ...]:
    """The reference's tokens that are fed: up to the latest parting, or so that its last token has its logits."""
    partings = [generation.parting(side) for side in range(1, len(generation.tokens))]
    own = generation.tokens[0]
    if any(parting is None for parting in partings):
        return own[: len(own) - 1]
    return own[: max(parting for parting in partings if parting is not None) - generation.given_positions + 1]


def _checked(
    loaded: LoadedModel, prompts: Sequence[str | Sequence[int]], reference: str, variants: Sequence[str], tokens: int
) -> tuple[list[tuple[int, ...]], list[Path]]:
    """(token ids of the prompts, paths of the sides), where all of it can be continued."""
    if tokens < 1:
        raise UsageError(f"--tokens {tokens}: a continuation has at least one token.")
    paths = [side.path for side in sides_of(reference, variants)]

    def refuse(positions: int | None) -> None:
        check_paths(loaded, paths, None)
        for path in paths:
            if reason := path.cannot_continue(loaded, positions):
                raise CaptureError(f"path '{path}': {reason}.")

    refuse(None)
    ids = [tokens_of(loaded, prompt, f"prompt {n} of {len(prompts)}") for n, prompt in enumerate(prompts, start=1)]
    for number, given in enumerate(ids, start=1):
        if loaded.context is not None and len(given) + tokens > loaded.context:
            raise CaptureError(
                f"prompt {number} of {len(prompts)} has {len(given)} tokens, and {tokens} more do not fit the model's"
                f" context of {loaded.context}; shorten it or lower --tokens."
            )
    for length in sorted({len(given) + tokens - 1 for given in ids}):
        refuse(length)
    return ids, paths
