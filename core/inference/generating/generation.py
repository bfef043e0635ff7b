"""Free greedy continuations: every side continues the same prompt by its own argmax until they
diverge.

A path computes the prompt by its base and then generates token by token with that cache, like a
serving engine. Before they diverge, two sides have read the same tokens. So feeding the reference's
tokens to every side repeats the computation and gives the complete logits of both at the
divergence. That second pass is an ordinary capture: this module finds the tokens.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ...capture_request import CaptureRequest
from ...errors import CaptureError, UsageError
from ...progress import Progress, no_progress
from ...runs.file.records import Generation
from ..capture.capture import CapturePlan, check_paths, plan_capture, torch_errors_stop
from ..models.model import Ids, Inputs, LoadedModel
from ..paths.batch import ignore
from ..paths.paths import OpenPath, Path, open_path, sides_of

Scores = tuple[Ids, tuple[float, ...]]
"""Tokens that a path chooses, and their margins in logits."""


def plan_generation(
    loaded: LoadedModel,
    prompts: Inputs,
    request: CaptureRequest,
    *,
    command: str = "",
    is_dry: bool = False,
    on_progress: Progress = no_progress,
) -> CapturePlan:
    """Continue every prompt on every side by up to `request.tokens` tokens, and plan the capture up
    to the last divergence.

    A side ends with an end-of-text token. The captured positions are those of the prompt and of the
    reference's tokens up to the last divergence of a variant, or all if there is none. is_dry:
    generate nothing and plan as if no side diverged, the maximal cost; command: see `plan_capture`.
    """
    tokens = request.tokens
    if tokens < 1:
        raise UsageError(f"--tokens {tokens}: expected at least 1.")
    paths = [side.path for side in sides_of(request)]
    check_paths(loaded, paths, None)
    count = len(prompts)
    ids = [
        tokens_with_room(loaded, prompt, f"prompt {number} of {count}", tokens)
        for number, prompt in enumerate(prompts, 1)
    ]
    for length in sorted({len(prompt) + tokens - 1 for prompt in ids}):
        check_continuing(loaded, paths, length)
    # of each prompt, by side
    continuations: list[list[Ids]] = [[] for _ in ids]
    if is_dry:
        continuations = [[()] * len(paths)] * len(ids)
    else:
        # raises its errors before any forward
        plan_capture(loaded, ids, request)
        done = 0
        for path in paths:
            every = continue_all(path, loaded, ids, tokens, request.seed)
            for own, (continuation, _) in zip(continuations, every, strict=True):
                own.append(continuation)
                done += 1
                on_progress(f"{path} writes", done, count * len(paths), "prompts")
    generations = []
    whole = []
    plain = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
    for number, (prompt, sides) in enumerate(zip(ids, continuations, strict=True)):
        texts = tuple(str(loaded.tokenizer.decode(list(side), **plain)) for side in sides)
        generation = Generation(number, len(prompt), tokens, tuple(sides), texts)
        generations.append(generation)
        fed = (0,) * (tokens - 1) if is_dry else _common(generation)
        whole.append(prompt + fed)
    return plan_capture(loaded, whole, request, generations=generations, command=command)


def continue_all(
    path: Path,
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    seed: int = 0,
) -> Iterator[Scores]:
    """Yield the greedy continuation of each prompt on one path: up to `tokens` token ids, and their
    margins in logits.

    An end-of-text token is the last. A margin may be infinite or NaN.
    """
    ends = end_tokens(loaded)
    torch.manual_seed(seed)
    with torch_errors_stop(path), open_path(path, loaded) as run:
        for ids in prompts:
            yield _continuation(run, ids, tokens, ends)


def end_tokens(loaded: LoadedModel) -> frozenset[int]:
    """Return the end-of-text token ids: of the generation config, else the tokenizer's."""
    value = getattr(loaded.model.generation_config, "eos_token_id", None)
    if value is None:
        value = loaded.tokenizer.eos_token_id
    if value is None:
        return frozenset()
    return frozenset(value if isinstance(value, list) else [value])


def best_and_margin(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return (argmax, margin in logits): lowest id on ties, NaN never wins. [rows, vocab] -> [rows]
    each
    """
    values = torch.where(logits.isnan(), -torch.inf, logits)
    best = values.topk(2, dim=-1).values.double()
    return values.argmax(-1), best[:, 0] - best[:, 1]


def _continuation(
    run: OpenPath,
    ids: Sequence[int],
    tokens: int,
    ends: frozenset[int],
) -> Scores:
    own: list[int] = []
    margins: list[Tensor] = []

    def choose(logits: Tensor) -> int | None:
        if own and own[-1] in ends:
            return None
        token, margin = best_and_margin(logits)
        own.append(int(token))
        # the margin stays on the device: only the token is waited for
        margins.append(margin)
        return own[-1]

    run.continue_prompt(ids, tokens, choose, ignore)
    return tuple(own), tuple(torch.cat(margins).tolist())


def _common(generation: Generation) -> Ids:
    """Return the reference's tokens to feed: up to the last divergence, or all but its last one."""
    own = generation.tokens[0]
    partings = [generation.parting(side) for side in range(1, len(generation.tokens))]
    last = max((parting for parting in partings if parting is not None), default=0)
    return own[:-1] if None in partings else own[: last - generation.given_positions + 1]


def tokens_with_room(
    loaded: LoadedModel,
    prompt: str | Sequence[int] | Tensor,
    label: str,
    tokens: int,
) -> Ids:
    """Return a prompt's tokens; CaptureError if so many more exceed the context."""
    ids = loaded.tokens_of(prompt, label)
    if loaded.context is not None and len(ids) + tokens > loaded.context:
        raise CaptureError(
            f"{label}: {len(ids)} tokens and {tokens} more exceed the model's context of"
            f" {loaded.context}; shorten it or lower --tokens.",
        )
    return ids


def check_continuing(loaded: LoadedModel, paths: Sequence[Path], positions: int | None) -> None:
    """CaptureError if a path cannot generate after so many tokens (None: any)."""
    for path in paths:
        if reason := path.cannot_continue(loaded, positions):
            raise CaptureError(f"path '{path}': {reason}.")
