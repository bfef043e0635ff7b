"""What the modules of a model put out while a path runs, at chosen positions of a prompt: kept, or compared with what
was kept.

Modules are watched by forward hooks, which read and change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Cache

from ...errors import CaptureError
from ..models.bits import row_sums


@dataclass
class Forwards:
    """Which of the chosen positions of a prompt each forward of a model computes, and where in its batch.

    prompt: token ids; positions: which of them, ascending. is_ambiguous: nobody told which positions a forward
    computes, and its tokens do not tell: several rows hold them, or they were computed before.
    """

    prompt: Sequence[int]
    positions: Sequence[int]
    is_ambiguous: bool = field(default=False, init=False)
    _is_inferred: bool = field(default=False, init=False)
    _expected: tuple[int, int, int, int] | None = field(
        default=None, init=False
    )  # row, first column, first position, end
    _is_told: bool = field(default=False, init=False)

    def expect(self, row: int, skipped: int, start: int, stop: int) -> None:
        """Until `done`, forwards compute positions start..stop-1 of the prompt, in columns from `skipped` on of batch
        row `row`.

        They may be several: above a number of logits the model is called once more for each slice of its head.
        """
        self._expected = (row, skipped, start, stop)
        self._is_told = True

    def done(self) -> None:
        """What was expected is over; whoever calls the model next has to be followed by its tokens."""
        self._expected = None
        self._is_told = False

    def begin(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """A forward of the model begins. If nobody told which positions it computes (a callable's own), its tokens and
        its cache do: the row that holds the prompt's tokens from the cache's length on; of any other forward nothing is
        kept.
        """
        self._is_inferred = not self._is_told
        if self._is_told:
            return
        self._expected = None
        ids, cache = named.get("input_ids", arguments[0] if arguments else None), named.get("past_key_values")
        if not isinstance(ids, torch.Tensor) or ids.ndim != 2:
            return
        start = int(cache.get_seq_length()) if isinstance(cache, Cache) else 0
        stop = start + ids.shape[1]
        rows = [row for row, tokens in enumerate(ids.tolist()) if tokens == list(self.prompt[start:stop])]
        self.is_ambiguous = self.is_ambiguous or len(rows) > 1
        if rows:
            self._expected = (rows[0], 0, start, stop)


@dataclass
class LayerTrace(Forwards):
    """What modules put out for a prompt, at chosen positions: kept, or compared with what another trace kept.

    against: the trace to compare with, None to keep. kept: by module, [chosen, width]; squares: by module, mean squares
    of the difference [chosen]; seen: by module, positions that a forward has computed [chosen]; modules in the order in
    which they ran.
    """

    against: LayerTrace | None = None
    kept: dict[str, torch.Tensor] = field(default_factory=dict)
    squares: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    seen: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    def see(self, name: str, output: Any) -> None:
        """What a module put out. What is no [rows, columns, width] of this forward is left out, at every call alike."""
        first = output[0] if isinstance(output, tuple) and output else output
        if self._expected is None or not isinstance(first, torch.Tensor) or first.ndim != 3:
            return
        row, skipped, start, stop = self._expected
        if first.shape[0] <= row or first.shape[1] < skipped + stop - start:
            return
        places = [place for place, position in enumerate(self.positions) if start <= position < stop]
        if not places:
            return
        seen = self.seen.setdefault(name, np.zeros(len(self.positions), bool))
        self.is_ambiguous = self.is_ambiguous or (self._is_inferred and bool(seen[places].any()))
        seen[places] = True
        columns = torch.tensor([skipped + self.positions[place] - start for place in places], device=first.device)
        self._take(name, places, first[row].index_select(0, columns).detach())

    def hand_in(self, name: str, output: torch.Tensor, start: int) -> None:
        """What an engine says that a module put out, at positions from `start` on. [positions, width]"""
        places = [place for place, position in enumerate(self.positions) if start <= position < start + len(output)]
        seen = self.seen.setdefault(name, np.zeros(len(self.positions), bool))
        self.is_ambiguous = self.is_ambiguous or bool(seen[places].any())
        seen[places] = True
        rows = torch.tensor([self.positions[place] - start for place in places], dtype=torch.long, device=output.device)
        self._take(name, places, output.detach().index_select(0, rows))

    def width_of(self, name: str) -> int | None:
        """Of what the other trace kept of a module; None where there is nothing to compare with."""
        kept = self.against.kept.get(name) if self.against is not None else None
        return None if kept is None else int(kept.shape[1])

    def _take(self, name: str, places: list[int], found: torch.Tensor) -> None:
        """Keeps or compares rows of a module at chosen positions. [places, width]"""
        if not places:
            return
        if self.against is None:
            if name not in self.kept:
                self.kept[name] = found.new_full((len(self.positions), found.shape[1]), float("nan"))
            self.kept[name][places] = found
            return
        plain = self.against.kept.get(name)
        if plain is None or plain.shape[1] != found.shape[1]:
            return
        apart = found.double() - plain[places].to(found.device, torch.float64)
        squares = row_sums(apart.square()) / found.shape[1]
        self.squares.setdefault(name, np.full(len(self.positions), np.nan))[places] = squares


def traced_modules(model: Any) -> dict[str, torch.nn.Module]:
    """Embedding, every block with its direct parts (norms, attention, MLP), what follows the blocks; by name, in the
    model's order.
    """
    count = int(getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", 0) or 0)
    lists = ((name, part) for name, part in model.named_modules() if isinstance(part, torch.nn.ModuleList))
    name, module = next(((name, part) for name, part in lists if len(part) == count), ("", None))
    if module is None or not count:
        raise CaptureError(f"a {type(model).__name__} has no list of {count} blocks to look into.")
    owner_name = name.rpartition(".")[0]
    owner = model.get_submodule(owner_name)
    found = {}
    for child_name, child in owner.named_children():
        path = f"{owner_name}.{child_name}".lstrip(".")
        if child is not module:
            found[path] = child
            continue
        for index, block in enumerate(module):
            for part_name, part in block.named_children():
                found[f"{path}.{index}.{part_name}"] = part
            found[f"{path}.{index}"] = block
    return found


@contextmanager
def watched(model: Any, trace: LayerTrace) -> Iterator[None]:
    """The trace sees every output of the traced modules meanwhile."""
    handles = [model.register_forward_pre_hook(lambda _, given, named: trace.begin(given, named), with_kwargs=True)]
    try:
        for name, module in traced_modules(model).items():
            handles.append(module.register_forward_hook(lambda _, __, output, name=name: trace.see(name, output)))
        yield
    finally:
        for handle in handles:
            handle.remove()
