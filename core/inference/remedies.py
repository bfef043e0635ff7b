"""The same pair with one thing changed at a time: what is left of its divergence, and what throughput is left."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch

from core.errors import CaptureError, UlpscopeError
from core.inference.bits import own_bits
from core.inference.edge import foreign_errors_stop, quiet
from core.inference.floor import in_float32, rounding_floor, whole_side
from core.inference.grammar import Step
from core.inference.layer_capture import is_one_piece
from core.inference.models import LoadedModel
from core.inference.paths import Path, open_path, parse_path
from core.inference.throughput import throughput
from core.numerics.divergence import compare
from core.numerics.formats import format_named
from core.numerics.totals import PairTotal
from core.runs.remedies import PriceRow, RemedyRow

ROUNDS = 3  # of the clock, in which the path as it is and the path with the remedy take turns
FLOOR_SEEDS = 2
BATCHES = (1, 2, 4, 8)
_OF_BATCH = ("batch", "row", "neighbours", "invariant")
Model = Callable[[LoadedModel], AbstractContextManager[LoadedModel]]


@dataclass(frozen=True)
class Remedy:
    """path: the same path with the remedy in it, or a sentence on why there is none; model: the model to compute with meanwhile."""

    name: str
    what: str
    path: Callable[[Path], Path | str] = lambda path: path
    model: Model = nullcontext
    dtype: str | None = None


def remedies_of(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    reference: str,
    variant: str,
    *,
    rounds: int = ROUNDS,
    seeds: Sequence[int] = tuple(range(FLOOR_SEEDS)),
    on_progress: Callable[[str], None] | None = None,
) -> list[RemedyRow]:
    """Every remedy for a pair of paths, the pair as it is first; prompts are token ids.

    Figures are over all prompts; throughput is that of the first. A remedy that this model or device has no use for, or that fails, is a
    row with the reason. CaptureError where the pair itself cannot be run.
    """
    paths = (parse_path(reference), parse_path(variant))
    for path in paths:
        if refusal := path.refusal(loaded, max(map(len, prompts))):
            raise CaptureError(f"path '{path}': {refusal}.")
    tell = on_progress or (lambda _: None)
    tell("rounding floor")
    try:
        floor = rounding_floor(loaded, prompts, seeds, reference).rms if seeds else float("nan")
    except UlpscopeError:
        floor = float("nan")  # the ratios are missing, and the rest is what was asked for
    rows = []
    for remedy in REMEDIES:
        tell(remedy.name)
        rows.append(_row(remedy, loaded, prompts, paths, floor, rounds))
    if not rows[0].is_measured:
        raise CaptureError(rows[0].refusal)
    return rows


def prices_of(loaded: LoadedModel, paths: Sequence[Path], *, on_progress: Callable[[str], None] | None = None) -> list[PriceRow]:
    """Every path without its batch, as it is and with every sum in one order, at BATCHES; none of a path that cannot be run so."""
    plain = dict.fromkeys(
        str(replace(path, modifiers=tuple(s for s in path.modifiers if s.name not in _OF_BATCH))) for path in paths
    )
    found = []
    for name in plain:
        try:
            timed = throughput(loaded, [name, f"{name}+invariant"], BATCHES, rounds=ROUNDS, on_progress=on_progress)
        except UlpscopeError:
            continue  # the remedy's own row says why
        for before, after in zip(timed[::2], timed[1::2], strict=True):
            rate = after.tokens_per_second
            found.append(
                PriceRow(name, after.batch, after.tokens, before.tokens_per_second, rate, rate / before.tokens_per_second)
            )
    return found


def _row(
    remedy: Remedy, loaded: LoadedModel, prompts: Sequence[Sequence[int]], paths: tuple[Path, Path], floor: float, rounds: int
) -> RemedyRow:
    def refused(why: str) -> RemedyRow:
        return RemedyRow(remedy.name, remedy.what, remedy.dtype or loaded.dtype, refusal=why)

    changed: list[Path] = []
    for path in paths:
        made = remedy.path(path)
        refusal = made if isinstance(made, str) else made.refusal(loaded, max(map(len, prompts)))
        if refusal:
            return refused(f"{refusal[:1].upper()}{refusal[1:]}.")
        assert isinstance(made, Path)
        changed.append(made)
    try:
        with quiet(), foreign_errors_stop(f"'{remedy.name}'", "choose shorter prompts"), torch.inference_mode():
            total, dtype = _compared(remedy, loaded, prompts, (changed[0], changed[1]))
            speeds = [_speeds(remedy, loaded, prompts[0], old, new, rounds) for old, new in zip(paths, changed, strict=True)]
    except UlpscopeError as error:
        return refused(str(error))
    found = total.summary()
    is_sized = not found.nonfinite_mismatch  # over the finite elements alone it would look small
    max_abs, rms, max_ulps = (found.max_abs, found.rms, found.max_ulps) if is_sized else (None, None, None)
    ratio = found.rms / floor if floor > 0 and is_sized else None
    elements = sum(map(len, prompts)) * loaded.vocab_size
    (reference_rate, reference_share), (variant_rate, variant_share) = speeds
    return RemedyRow(
        remedy.name, remedy.what, dtype, elements, found.neq, max_abs, rms, max_ulps, found.flips, ratio,
        reference_rate, variant_rate, reference_share, variant_share,
    )  # fmt: skip


def _compared(
    remedy: Remedy, loaded: LoadedModel, prompts: Sequence[Sequence[int]], paths: tuple[Path, Path]
) -> tuple[PairTotal, str]:
    """A prompt at a time: the reference whole, the variant piece by piece against it."""
    total, dtype = PairTotal(), ""
    for ids in prompts:
        with remedy.model(loaded) as model, open_path(paths[0], model) as pieces_of:
            plain = whole_side(pieces_of(ids))
        with remedy.model(loaded) as model, open_path(paths[1], model) as pieces_of:
            for position, logits in pieces_of(ids):
                dtype = str(logits.dtype).removeprefix("torch.")
                rows = plain[position : position + len(logits)].to(logits.dtype)
                total.add(compare(own_bits(rows), own_bits(logits), format_named(dtype)))
    return total, dtype


def _speeds(remedy: Remedy, loaded: LoadedModel, ids: Sequence[int], old: Path, new: Path, rounds: int) -> tuple[float, float]:
    """(tokens of the batch a second with the remedy, median share of those without it), each after a round that does not count."""
    rates, shares = [], []
    for number in range(rounds + 1):
        before = _seconds(loaded, old, ids)
        with remedy.model(loaded) as model:
            after = _seconds(model, new, ids)
        if number:
            rates.append(new.rows * len(ids) / after)
            shares.append(before / after)
    return statistics.median(rates), statistics.median(shares)


def _seconds(loaded: LoadedModel, path: Path, ids: Sequence[int]) -> float:
    with open_path(path, loaded) as pieces_of:
        if is_one_piece(path):  # it is compiled anew in every open path, and what that takes is no throughput
            for _ in pieces_of(ids):
                pass
        began = time.perf_counter()
        for _, logits in pieces_of(ids):
            del logits
        if loaded.device.startswith("cuda"):
            torch.cuda.synchronize(loaded.device)
        return time.perf_counter() - began


def _with(name: str, *values: str) -> Callable[[Path], Path | str]:
    """The path with one more modifier, in place of another of that name."""

    def add(path: Path) -> Path | str:
        kept = [step for step in path.modifiers if step.name != name]
        return parse_path(str(replace(path, modifiers=(*kept, Step(name, values)))))

    return add


def _without_tf32(path: Path) -> Path | str:
    if not any(step.name == "tf32" for step in path.modifiers):
        return f"TF32 is off on '{path}' as it is"
    return replace(path, modifiers=tuple(step for step in path.modifiers if step.name != "tf32"))


@contextmanager
def _widened(loaded: LoadedModel) -> Iterator[LoadedModel]:
    if loaded.dtype == "float32":
        raise CaptureError("The model computes in float32 as it is.")
    with in_float32(loaded) as model:
        yield model


@contextmanager
def _head_in_float32(loaded: LoadedModel) -> Iterator[LoadedModel]:
    """The last product in float32, on the hidden states as they come; the logits stay float32."""
    head = loaded.model.get_output_embeddings()
    if loaded.dtype == "float32":
        raise CaptureError("The model computes in float32 as it is.")
    if not isinstance(head, torch.nn.Linear):
        raise CaptureError(f"The head of a {type(loaded.model).__name__} is no linear map of its own.")
    weight = head.weight.float()
    bias = None if head.bias is None else head.bias.float()
    before = head.__dict__.get("forward")
    head.__dict__["forward"] = lambda hidden: torch.nn.functional.linear(hidden.float(), weight, bias)
    try:
        yield replace(loaded, dtype="float32")  # which is what the logits are
    finally:
        if before is None:
            del head.__dict__["forward"]
        else:
            head.__dict__["forward"] = before


@contextmanager
def _deterministic(loaded: LoadedModel) -> Iterator[LoadedModel]:
    """torch's deterministic algorithms; operations that have none go on as they are."""
    before = (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield loaded
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


REMEDIES = (
    Remedy("as it is", "The two paths, nothing changed."),
    Remedy("float32", "Weights and every step in float32.", model=_widened, dtype="float32"),
    Remedy("float32 head", "The last product, hidden state to logits, in float32; all before it as it is.", model=_head_in_float32, dtype="float32"),
    Remedy("TF32 off", "float32 products with full operands.", path=_without_tf32),
    Remedy("reduced reductions off", "Parts of a 16-bit product are added in float32.", path=_with("reduced", "off")),
    Remedy("math attention", "Attention as plain products and a softmax, no fused kernel.", path=_with("sdpa", "math")),
    Remedy("deterministic algorithms", "torch.use_deterministic_algorithms(True).", model=_deterministic),
    Remedy("invariant", "Every sum in an order that no batch, row, chunk or cache length changes.", path=_with("invariant")),
)  # fmt: skip
