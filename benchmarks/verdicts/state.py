"""Faults of a cache or of a running state, planted after a prefix, in families of transformers.

python -m benchmarks.verdicts.state                    # five minutes
python -m benchmarks.verdicts.state --family mamba
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.families import tiny_family, tiny_prompts
from benchmarks.verdicts.mutations import FAULTS, HARMLESS
from core.inference.controls.judge_model import JudgingSession, judge
from core.inference.models.model import LoadedModel
from core.inference.models.module_state import restore_state
from core.inference.models.torch_errors import quiet
from core.inference.paths.batch import PromptBatch
from core.inference.paths.caches import (
    AnyCache,
    ReturnedState,
    keys_of_layer,
    new_cache,
    running_states,
)

PREFIX = 24  # tokens of the first forward; each later one has a forward of its own
_OTHER = 7  # a token that the prompts do not have there
Tokens = Callable[[Sequence[int]], tuple[int, ...]]


@dataclass(frozen=True)
class Fault:
    """Parts of a cache are those that other tokens left: keys (and values), conv, recurrent, or
    states for both.

    tokens: of a prompt, None for zeros; slots: first and end, of keys; shift: of the positions
    after the prefix.
    """

    parts: str = ""
    tokens: Tokens | None = None
    slots: tuple[int, int | None] = (0, None)
    shift: int = 0


def _another_prompt(ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(reversed(ids[:PREFIX]))


def _one_token_ago(ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(ids[: PREFIX - 1])


def _after_a_draft(ids: Sequence[int]) -> tuple[int, ...]:
    return (*ids[:PREFIX], _OTHER, _OTHER)


def _another_token(ids: Sequence[int]) -> tuple[int, ...]:
    return (*ids[: PREFIX - 1], _OTHER)


_NEWEST = (-1, None)
PLANTED = {
    "a block of another prompt": Fault("keys", _another_prompt, (-4, None)),
    "the newest slot never written": Fault("keys", None, _NEWEST),
    "the oldest key forgotten": Fault("keys", None, (0, 1)),
    "a slot of a rejected draft": Fault("keys", _another_token, _NEWEST),
    "positions one off after the prefix": Fault(shift=1),
    "the state of another prompt": Fault("states", _another_prompt),
    "the state one token old": Fault("states", _one_token_ago),
    "the conv state one token old": Fault("conv", _one_token_ago),
    "the recurrent state one token old": Fault("recurrent", _one_token_ago),
    "the state after a rejected draft": Fault("states", _after_a_draft),
    "the state not carried": Fault("states"),
}
_BLOCK, _UNWRITTEN, _OLDEST, _DRAFT, _SHIFTED, _OTHERS, _OLD, _CONV, _RECURRENT, _UNDONE, _LOST = (
    PLANTED
)
PLANTED_IN = {
    "llama": (_BLOCK, _SHIFTED),
    "gpt2": (_SHIFTED,),
    "gemma3_text": (_OLDEST, _DRAFT),
    "gpt_oss": (_UNWRITTEN, _SHIFTED),
    "deepseek_v3": (_BLOCK, _UNWRITTEN),
    "mamba": (_CONV, _RECURRENT),
    "mamba2": (_OTHERS, _LOST),
    "falcon_mamba": (_OLD, _UNDONE),
    "rwkv": (_OTHERS, _OLD),
    "xlstm": (_OLD, _LOST),
    "recurrent_gemma": (_LOST,),
    "jamba": (_BLOCK, _CONV),
    "lfm2_moe": (_DRAFT, _CONV),
    "qwen3_next": (_RECURRENT, _UNDONE),
    "falcon_h1": (_OLDEST, _OLD),
    "kimi_linear": (_RECURRENT,),
    "bamba": (_SHIFTED,),
}


def _tensors(loaded: LoadedModel, cache: AnyCache, parts: str) -> list[Tensor]:
    """The tensors themselves, to be written to."""
    if parts == "keys":
        value = cache.value if isinstance(cache, ReturnedState) else cache
        every = [keys_of_layer(loaded, layer) for layer in value.layers]
        slots = [each for kinds in every for each in kinds.values()]
        return [each for each in slots if each is not None]
    states = [
        (name, each) for _, name, tensors in running_states(loaded, cache) for each in tensors
    ]
    is_conv = parts == "conv"
    return [each for name, each in states if parts == "states" or is_conv == ("conv" in name)]


def _left_by(batch: PromptBatch, tokens: Sequence[int], parts: str, size: int) -> list[Any]:
    """Copies of what forwards of `size` of these tokens leave."""
    other = replace(batch, prompt=tuple(tokens))
    cache = new_cache(batch.loaded)
    for start in range(0, len(tokens), size):
        other.forward(start, min(start + size, len(tokens)), lambda *_: None, cache)
    copies = [each.clone() for each in _tensors(batch.loaded, cache, parts)]
    restore_state(batch.loaded.start)
    return copies


def engine_of(
    loaded: LoadedModel,
    fault: Fault,
    *,
    is_sound: bool,
) -> Callable[[Any, Tensor], Tensor]:
    """The side with the fault, or its sound twin: the same parts are written, with what forwards of
    one token each left of the prompt's own prefix.
    """

    def side(model, ids):
        prompt = tuple(ids.tolist())
        # a Bamba's own positions are wrong, others have none to give
        has_positions = fault.shift > 0 or model.config.model_type == "bamba"
        batch = PromptBatch(
            replace(loaded, model=model), prompt=prompt, gives_positions=has_positions
        )
        other = None
        if is_sound and fault.parts:
            other = _left_by(batch, prompt[:PREFIX], fault.parts, size=1)
        elif fault.tokens is not None:
            other = _left_by(batch, fault.tokens(prompt), fault.parts, size=len(prompt))
        pieces = []

        def keep(_, logits):
            pieces.append(logits.clone())

        cache = new_cache(batch.loaded)
        batch.forward(0, PREFIX, keep, cache)
        tensors = _tensors(batch.loaded, cache, fault.parts) if fault.parts else []
        for number, own in enumerate(tensors):
            written = torch.zeros_like(own) if other is None else other[number]
            if fault.parts == "keys":
                slots = slice(*fault.slots)
                own[:, :, slots] = written[:, :, slots]
            else:
                own.copy_(written)
        if not is_sound:
            batch.position_ids.add_(fault.shift)
        for position in range(PREFIX, len(prompt)):
            batch.forward(position, position + 1, keep, cache)
        return torch.cat(pieces)

    return side


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", action="append", choices=PLANTED_IN, help="only these")
    families = parser.parse_args().family or list(PLANTED_IN)
    planted = found = placed = accused = 0
    print("| family | fault | verdict | from position | sound twin |\n|---|---|---|---|---|")
    for family in families:
        with quiet():
            loaded = tiny_family(family)
            prompts = tiny_prompts(loaded)[1:]
            session = JudgingSession(loaded, prompts)
            for name in PLANTED_IN[family]:
                sides = [engine_of(loaded, PLANTED[name], is_sound=each) for each in (False, True)]
                bug, twin = (
                    judge(loaded, prompts, variant=side, session=session) for side in sides
                )
                position = bug.first_place[1] if bug.first_place else None
                planted += 1
                found += bug.name in FAULTS
                placed += position == PREFIX
                accused += twin.name not in HARMLESS
                cells = (family, name, bug.name, position, twin.name)
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    print(f"\n{found} of {planted} found, {placed} from position {PREFIX} on, where they are.")
    print(f"Of {planted} sound twins {accused} are not called rounding.")


if __name__ == "__main__":
    main()
