"""Remedies of a divergence: the same pair with one thing changed at a time, what is left of its divergence, and what
throughput is left.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch

from ...errors import CaptureError, UlpscopeError
from ...numerics.divergence import compare
from ...numerics.formats import format_named
from ...numerics.metrics import Summary
from ...numerics.totals import PairTotal
from ...runs.tables.remedies import PriceRow, RemedyRow
from ..capture.throughput import LONGEST_SECONDS, Clock, Contender, Timing, by_turns, throughput, walk_seconds
from ..models.bits import own_bits
from ..models.model import LoadedModel
from ..models.torch_errors import foreign_errors_stop, quiet
from ..paths.grammar import Step
from ..paths.neighbours import neighbour_rows
from ..paths.paths import Path, open_path, parse_path
from .judging_session import JudgingSession
from .rounding_floor import in_float32, whole_side

WALK_FORWARDS = 16  # of a path on the clock, at most: twenty turns of all remedies shall be no hour
LEAST_FORWARDS, LEAST_TOKENS = 4, 32  # whichever is less
# that a walk is to take, between these; a clock tells a tenth of a second apart from a hundredth more
WALK_SECONDS = 0.15
FLOOR_SEEDS = 2
BATCHES = (1, 2, 4, 8)
PRICE_TOKENS = 8  # a row
_OF_BATCH = ("batch", "row", "neighbours", "invariant")
Model = Callable[[LoadedModel], AbstractContextManager[LoadedModel]]


@dataclass(frozen=True)
class Remedy:
    """Remedy that is tried on a pair. path: the same path with the remedy in it, or a sentence on why there is none;
    model: the model to compute with meanwhile.
    """

    name: str
    what: str
    path: Callable[[Path], Path | str] = lambda path: path
    model: Model = nullcontext
    dtype: str | None = None

    def lacks(self, loaded: LoadedModel, path: Path) -> str:
        """Reason why this model cannot take the path with the remedy in it, as far as that is known without its
        weights; '' where it can.
        """
        made = self.path(path)
        if isinstance(made, str) or self.model is nullcontext:
            return made if isinstance(made, str) else made.refusal(loaded) or ""
        return (
            "The model computes in float32 as it is."
            if loaded.dtype == "float32" and self.model is not _deterministic
            else ""
        )


def remedies_of(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    reference: str,
    variant: str,
    *,
    turns: int | None = None,
    floor_rms: float | None = None,
    as_it_is: Summary | None = None,
    on_progress: Callable[[str], None] | None = None,
    clock: Clock = time.perf_counter,
) -> list[RemedyRow]:
    """Every remedy for a pair of paths, the pair as it is first; prompts are token ids.

    Figures are over all prompts; throughput is that of the first, of as many of its tokens as `_cut` says, all
    remedies taking turns (throughput.by_turns, which `turns` and `clock` are for). floor_rms: of `floor_of`, and
    as_it_is: the pair as a capture found it, where they are known; else they are measured. A remedy that this model or
    device has no use for, or that fails, is a row with the reason. CaptureError where the pair itself cannot be run.
    """
    paths = (parse_path(reference), parse_path(variant))
    for path in paths:
        if refusal := path.refusal(loaded, max(map(len, prompts))):
            raise CaptureError(f"path '{path}': {refusal}.")
    tell = on_progress or (lambda _: None)
    if floor_rms is None:
        tell("rounding floor")
        floor_rms = floor_of(JudgingSession(loaded, prompts), reference)
    rows: list[RemedyRow] = []
    timed: dict[int, tuple[Remedy, tuple[Path, Path]]] = {}
    for number, remedy in enumerate(REMEDIES):
        tell(remedy.name)
        row, changed = _row(remedy, loaded, prompts, paths, floor_rms, None if number else as_it_is)
        rows.append(row)
        if changed is not None:
            timed[number] = remedy, changed
        elif not number:
            raise CaptureError(row.refusal)
    try:
        timings = _timings(
            loaded, prompts[0], list(timed.values()), turns, clock, lambda turn: tell(f"throughput, turn {turn}")
        )
    except UlpscopeError:
        return rows  # without shares: what is left of the difference is what was asked for first
    for number, pair in zip(timed, timings, strict=True):
        rows[number] = _with_throughput(rows[number], pair)
    return rows


def floor_of(session: JudgingSession, reference: str) -> float:
    """rms of reorderings of the reference, in logits; NaN where there is no such floor: the ratios are missing then,
    and the rest is there.
    """
    try:
        return session.floor(session.loaded, range(FLOOR_SEEDS), reference).rms
    except UlpscopeError:
        return float("nan")


def prices_of(
    loaded: LoadedModel,
    paths: Sequence[Path],
    *,
    turns: int | None = None,
    on_progress: Callable[[str], None] | None = None,
    clock: Clock = time.perf_counter,
) -> list[PriceRow]:
    """Every path without its batch, as it is and with every sum in one order, at BATCHES; none of a path that cannot be
    run so. All share the time that the turns of remedies_of may take.
    """
    found = []
    names = without_batch(paths)
    for name in names:
        try:
            text = neighbour_rows(loaded.tokenizer, [0] * PRICE_TOKENS, 1)[0].tolist()
            tokens = len(_cut(loaded, parse_path(name), text, clock))
            timed = throughput(
                loaded,
                [name, f"{name}+invariant"],
                BATCHES,
                tokens=tokens,
                rounds=turns,
                longest=LONGEST_SECONDS / (len(names) * len(BATCHES)),
                on_progress=on_progress,
                clock=clock,
            )
        except UlpscopeError:
            continue  # the remedy's own row says why
        for before, after in zip(timed[::2], timed[1::2], strict=True):
            found.append(
                PriceRow(
                    name,
                    after.batch,
                    after.tokens,
                    before.tokens_per_second,
                    after.tokens_per_second,
                    after.share,
                    after.share_low,
                    after.share_high,
                    len(after.round_seconds),
                )
            )
    return found


def without_batch(paths: Sequence[Path]) -> list[str]:
    """Each path less what its batch and its order of sums are, once."""
    bare = (
        replace(path, modifiers=tuple(step for step in path.modifiers if step.name not in _OF_BATCH)) for path in paths
    )
    return list(dict.fromkeys(map(str, bare)))


def _row(
    remedy: Remedy,
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    paths: tuple[Path, Path],
    floor: float,
    known: Summary | None,
) -> tuple[RemedyRow, tuple[Path, Path] | None]:
    """(what is left of the difference, the paths with the remedy in them; None where it was refused)."""

    def refused(why: str) -> tuple[RemedyRow, None]:
        return RemedyRow(remedy.name, remedy.what, remedy.dtype or loaded.dtype, refusal=why), None

    changed: list[Path] = []
    for path in paths:
        made = remedy.path(path)
        refusal = made if isinstance(made, str) else made.refusal(loaded, max(map(len, prompts)))
        if refusal:
            return refused(f"{refusal[:1].upper()}{refusal[1:]}.")
        assert isinstance(made, Path)
        changed.append(made)
    both = (changed[0], changed[1])
    found, dtype = known, loaded.dtype
    if found is None:
        try:
            with quiet(), foreign_errors_stop(f"'{remedy.name}'", "choose shorter prompts"), torch.inference_mode():
                total, dtype = _compared(remedy, loaded, prompts, both)
        except UlpscopeError as error:
            return refused(str(error))
        found = total.summary()
    is_sized = not found.nonfinite_mismatch  # over the finite elements alone it would look small
    max_abs, rms, max_ulps = (found.max_abs, found.rms, found.max_ulps) if is_sized else (None, None, None)
    ratio = found.rms / floor if floor > 0 and is_sized else None
    elements = sum(map(len, prompts)) * loaded.vocab_size
    return (
        RemedyRow(remedy.name, remedy.what, dtype, elements, found.neq, max_abs, rms, max_ulps, found.flips, ratio),
        both,
    )


@dataclass(frozen=True)
class _Walk:
    """A path on the clock. tokens: of the whole batch."""

    tokens: int
    timing: Timing


def _timings(
    loaded: LoadedModel,
    ids: Sequence[int],
    timed: Sequence[tuple[Remedy, tuple[Path, Path]]],
    turns: int | None,
    clock: Clock,
    on_turn: Callable[[int], None],
) -> list[tuple[_Walk, _Walk]]:
    """Timings of reference and variant under each remedy, held against those of the first; what is the same for both is
    run once a turn.
    """
    plain = timed[0][1]
    cuts = [_cut(loaded, path, ids, clock) for path in plain]
    places: dict[tuple[str, Path, int], int] = {}
    contenders: list[Contender] = []
    against: list[int] = []
    found: list[tuple[tuple[int, int], tuple[int, int]]] = []  # (tokens, place among the contenders) of both sides
    for number, (remedy, changed) in enumerate(timed):
        pair = []
        for side, path in enumerate(changed):
            cut = cuts[side] if plain[0] != plain[1] else cuts[0]
            key = (remedy.name, path, len(cut))
            if key not in places:
                places[key] = len(contenders)
                contenders.append(partial(_seconds, remedy, loaded, path, cut, clock))
                against.append(found[0][side][1] if number else places[key])
            pair.append((path.rows * len(cut), places[key]))
        found.append((pair[0], pair[1]))
    timings = by_turns(contenders, against, turns=turns, clock=clock, on_turn=on_turn)
    return [
        (_Walk(reference[0], timings[reference[1]]), _Walk(variant[0], timings[variant[1]]))
        for reference, variant in found
    ]


def _cut(loaded: LoadedModel, path: Path, ids: Sequence[int], clock: Clock) -> Sequence[int]:
    """Cut the tokens to those that the path is timed over: WALK_SECONDS long, between least_tokens and most_tokens, by
    one walk of it.
    """
    longest = ids[: most_tokens(path, len(ids))]
    seconds = walk_seconds(loaded, path, longest, clock)
    wanted = math.ceil(WALK_SECONDS * len(longest) / seconds) if seconds > 0 else len(longest)
    return longest[: max(least_tokens(path, len(ids)), wanted)]


def most_tokens(path: Path, positions: int) -> int:
    """Number of a prompt's tokens over which the path is timed at most: WALK_FORWARDS forwards."""
    return _tokens_of(path, positions, WALK_FORWARDS)


def least_tokens(path: Path, positions: int) -> int:
    """Number of a prompt's tokens over which the path is timed at least, however long that takes."""
    return min(_tokens_of(path, positions, LEAST_FORWARDS), LEAST_TOKENS)


def _tokens_of(path: Path, positions: int, most: int) -> int:
    """Number of a prompt's tokens that make at most so many forwards of the path."""
    forwards = path.forwards(positions)
    return positions if forwards <= most else max(1, positions * most // forwards)


def _seconds(remedy: Remedy, loaded: LoadedModel, path: Path, ids: Sequence[int], clock: Clock) -> float:
    with quiet(), remedy.model(loaded) as model:
        return walk_seconds(model, path, ids, clock)


def _with_throughput(row: RemedyRow, pair: tuple[_Walk, _Walk]) -> RemedyRow:
    reference, variant = (walk.timing for walk in pair)
    rates = [walk.tokens / walk.timing.median_seconds for walk in pair]
    return replace(
        row,
        reference_tokens_per_second=rates[0],
        variant_tokens_per_second=rates[1],
        reference_share=reference.share,
        variant_share=variant.share,
        reference_share_low=reference.low,
        reference_share_high=reference.high,
        variant_share_low=variant.low,
        variant_share_high=variant.high,
        turns=len(reference.seconds),
    )


def _compared(
    remedy: Remedy, loaded: LoadedModel, prompts: Sequence[Sequence[int]], paths: tuple[Path, Path]
) -> tuple[PairTotal, str]:
    """A prompt at a time: the reference whole, the variant piece by piece against it."""
    total, dtype = PairTotal(), ""
    for ids in prompts:
        with remedy.model(loaded) as model, open_path(paths[0], model) as run:
            plain = whole_side(run, ids)

        def add(position: int, logits: torch.Tensor, plain: torch.Tensor = plain) -> None:
            nonlocal dtype
            dtype = str(logits.dtype).removeprefix("torch.")
            rows = plain[position : position + len(logits)].to(logits.dtype)
            total.add(compare(own_bits(rows), own_bits(logits), format_named(dtype)))

        with remedy.model(loaded) as model, open_path(paths[1], model) as run:
            run(ids, add)
    return total, dtype


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
    Remedy(
        "float32 head",
        "The last product, hidden state to logits, in float32; all before it as it is.",
        model=_head_in_float32,
        dtype="float32",
    ),
    Remedy("TF32 off", "float32 products with full operands.", path=_without_tf32),
    Remedy("reduced reductions off", "Parts of a 16-bit product are added in float32.", path=_with("reduced", "off")),
    Remedy("math attention", "Attention as plain products and a softmax, no fused kernel.", path=_with("sdpa", "math")),
    Remedy("deterministic algorithms", "torch.use_deterministic_algorithms(True).", model=_deterministic),
    Remedy(
        "invariant", "Every sum in an order that no batch, row, chunk or cache length changes.", path=_with("invariant")
    ),
)
