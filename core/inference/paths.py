"""Paths: ways to compute the logits of given tokens that are equal in exact arithmetic. `base+modifier+modifier`.

To add a base, write a generator function over a `Setting` and enter it in BASES; to add a modifier, write a context manager
from a `Setting` to the changed one and enter it in MODIFIERS. Nothing else knows their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import torch
from transformers import DynamicCache

from core.errors import CaptureError, UsageError
from core.inference.models import LoadedModel
from core.inference.neighbours import neighbour_rows

CHUNK_BYTES = 8 << 20  # logits leave the device and reach the sink in pieces of about this size

Pieces = Iterator[tuple[int, torch.Tensor]]
"""(first position, logits[rows, vocab] of consecutive positions), in order, in the model's own dtype."""


@dataclass(frozen=True)
class Setting:
    """What a base is to compute: token ids [batch, positions] on the model's device; row `row` of them is the prompt."""

    loaded: LoadedModel
    token_ids: torch.Tensor
    row: int = 0

    @property
    def positions(self) -> int:
        return self.token_ids.shape[1]


@dataclass(frozen=True)
class Argument:
    """One value after a colon. shown: how the grammar writes it; expected: in words; read: None where the text will not do."""

    shown: str
    expected: str
    read: Callable[[str], int | str | None]


@dataclass(frozen=True)
class Base:
    """A way to walk through the prompt.

    keeps_all_positions: its logits of every position and row exist on the device at once; refuse: why this model cannot
    take this path, or None.
    """

    compute: Callable[..., Pieces]
    arguments: tuple[Argument, ...] = ()
    keeps_all_positions: bool = False
    refuse: Callable[[LoadedModel], str | None] = lambda loaded: None


@dataclass(frozen=True)
class Modifier:
    """A change to the setting that lasts while the base runs. rows: sequences in the batch, given the arguments."""

    change: Callable[..., AbstractContextManager[Setting]]
    arguments: tuple[Argument, ...] = ()
    rows: Callable[..., int] = lambda *values: 1


def whole_number(least: int) -> Argument:
    """A count written in decimal digits."""

    def read(text: str) -> int | None:
        is_number = text.isascii() and text.isdigit() and len(text) < 19
        return int(text) if is_number and int(text) >= least else None

    return Argument("N", f"a whole number of at least {least}", read)


def _prefill(setting: Setting) -> Pieces:
    """One forward of the whole prompt."""
    logits = setting.loaded.model(input_ids=setting.token_ids, use_cache=False).logits[setting.row]
    step = rows_of_a_chunk(setting.loaded)
    for position in range(0, setting.positions, step):
        yield position, logits[position : position + step]


def _decode(setting: Setting) -> Pieces:
    """Token by token, teacher-forced: each forward reads the keys and values of the earlier ones from a cache."""
    model = setting.loaded.model
    cache = DynamicCache(config=model.config)
    for position in range(setting.positions):
        token = setting.token_ids[:, position : position + 1]
        yield position, model(input_ids=token, past_key_values=cache, use_cache=True).logits[setting.row]


def _without_cache(loaded: LoadedModel) -> str | None:
    if "past_key_values" in signature(loaded.model.forward).parameters:
        return None
    return f"a {type(loaded.model).__name__} has no key/value cache to decode with"


@contextmanager
def _batch(setting: Setting, rows: int) -> Iterator[Setting]:
    """Other real sequences of the same length in rows 1..N-1: the same work, other shapes."""
    prompt = setting.token_ids[setting.row]
    others = neighbour_rows(setting.loaded.tokenizer, prompt.tolist(), rows - 1)
    yield replace(setting, token_ids=torch.cat([prompt[None], others.to(prompt.device)]), row=0)


BASES: dict[str, Base] = {
    "prefill": Base(_prefill, keeps_all_positions=True),
    "decode": Base(_decode, refuse=_without_cache),
}
MODIFIERS: dict[str, Modifier] = {  # in the order in which they are written and applied
    "batch": Modifier(_batch, (whole_number(1),), rows=lambda rows: rows),
}


@dataclass(frozen=True)
class Step:
    """One part of a path with its values: `batch:8`."""

    name: str
    values: tuple[int | str, ...] = ()

    def __str__(self) -> str:
        return ":".join([self.name, *map(str, self.values)])


@dataclass(frozen=True)
class Path:
    """A base and its modifiers, in canonical order: two ways to write the same path are equal, and `str` gives one of them."""

    base: Step
    modifiers: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return "+".join(map(str, (self.base, *self.modifiers)))

    @property
    def rows(self) -> int:
        """Sequences in the batch."""
        return max([1, *(MODIFIERS[step.name].rows(*step.values) for step in self.modifiers)])

    def logits_bytes(self, loaded: LoadedModel, positions: int) -> int:
        """Bytes of the logits that are on the device at once, for a prompt of `positions` tokens."""
        kept = positions if BASES[self.base.name].keeps_all_positions else 1
        return self.rows * kept * loaded.vocab_size * loaded.torch_dtype.itemsize

    def refusal(self, loaded: LoadedModel) -> str | None:
        """Why this model cannot take the path, or None."""
        return BASES[self.base.name].refuse(loaded)


def parse_path(text: str) -> Path:
    """`prefill+batch:8` -> Path; UsageError says what exists where the text names something else."""
    base_text, *modifier_texts = text.split("+")
    base = _step(text, base_text, "base", BASES)
    modifiers = [_step(text, part, "modifier", MODIFIERS) for part in modifier_texts]
    for number, step in enumerate(modifiers):
        if step.name in [other.name for other in modifiers[:number]]:
            raise UsageError(f"path '{text}': modifier '{step.name}' stands twice; expected it once.")
    order = list(MODIFIERS)
    return Path(base, tuple(sorted(modifiers, key=lambda step: order.index(step.name))))


def _step(path: str, text: str, kind: str, known: dict[str, Any]) -> Step:
    name, *values = (part.strip() for part in text.split(":"))
    name = name.lower()
    if name not in known:
        exist = ", ".join(_shown(key, part.arguments) for key, part in known.items())
        raise UsageError(f"path '{path}': no {kind} '{name}'; {kind}s are {exist}.")
    arguments = known[name].arguments
    if len(values) != len(arguments):
        wanted = _shown(name, arguments)
        raise UsageError(
            f"path '{path}': {kind} '{text.strip()}' has {len(values)} values, not {len(arguments)}; write {wanted}."
        )
    read = []
    for argument, value in zip(arguments, values, strict=True):
        meant = argument.read(value)
        if meant is None:
            raise UsageError(f"path '{path}': {name} takes {argument.expected}, not '{value}'; write {_shown(name, arguments)}.")
        read.append(meant)
    return Step(name, tuple(read))


def _shown(name: str, arguments: tuple[Argument, ...]) -> str:
    return ":".join([name, *(argument.shown for argument in arguments)])


def rows_of_a_chunk(loaded: LoadedModel) -> int:
    """Rows of logits that make about CHUNK_BYTES; at least one."""
    return max(1, CHUNK_BYTES // (loaded.vocab_size * loaded.torch_dtype.itemsize))


def run_path(path: Path, loaded: LoadedModel, token_ids: Sequence[int]) -> Pieces:
    """The logits of one prompt down one path, piece by piece: token ids [positions] -> (position, logits[rows, vocab]).

    Each piece is checked: its dtype is the model's, its width the vocabulary, and no position is left out or given twice.
    """
    where = f"path '{path}'"
    with ExitStack() as stack:
        setting = Setting(loaded, torch.tensor([list(token_ids)], dtype=torch.long, device=loaded.device))
        for step in path.modifiers:
            setting = stack.enter_context(MODIFIERS[step.name].change(setting, *step.values))
        if int(setting.token_ids.max()) >= loaded.token_limit:
            raise CaptureError(f"{where}: token {int(setting.token_ids.max())} is not among the model's {loaded.token_limit}.")
        done = 0
        for position, logits in BASES[path.base.name].compute(setting, *path.base.values):
            if logits.dtype != loaded.torch_dtype:
                came = str(logits.dtype).removeprefix("torch.")
                raise CaptureError(f"{where}: the model gave {came} logits, expected {loaded.dtype}; capture it in {came}.")
            if logits.ndim != 2 or logits.shape[1] != loaded.vocab_size:
                raise CaptureError(f"{where}: logits are {list(logits.shape)}, expected [rows, {loaded.vocab_size}].")
            if position != done:
                raise CaptureError(f"{where}: position {position} came where {done} was expected.")
            done += len(logits)
            yield position, logits
        if done != len(token_ids):
            raise CaptureError(f"{where}: {done} positions came, expected {len(token_ids)}.")
