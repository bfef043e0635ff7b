"""Remedies of a divergence: the same pair with one thing changed at a time, what is left of its difference, and the
throughput of both sides.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...errors import CaptureError, UlpscopeError
from ...numerics.divergence import compare
from ...numerics.formats import format_named
from ...numerics.totals import PairTotal
from ...runs.tables.remedies import RemedyRow
from ..models.bits import own_bits
from ..models.model import LoadedModel
from ..models.torch_errors import foreign_errors_stop, quiet
from ..paths.batch import ignore
from ..paths.engines import whole_side
from ..paths.grammar import Step
from ..paths.paths import Path, open_path, parse_path
from .judging_session import JudgingSession
from .rounding_floor import in_float32

ROUNDS = 6  # the smallest and the largest of six ratios hold their median with 97 % (sign test)
TIMED_FORWARDS, TIMED_TOKENS = 16, 64  # of a path, at most
FLOOR_SEEDS = 2
Model = Callable[[LoadedModel], AbstractContextManager[LoadedModel]]


@dataclass(frozen=True)
class Remedy:
    """A change to try on a pair. path: the same path with the change, or a sentence on why there is none; model: the
    model to compute with meanwhile.
    """

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
    floor_rms: float,
    rounds: int = ROUNDS,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[RemedyRow]:
    """Try every remedy on a pair of paths; the first row is the pair as it is.

    Figures are over all prompts (token ids), throughput over the beginning of the first. All remedies are timed one
    after another, in rounds, so that a busy moment of the machine meets all of them. A remedy that this model or device
    cannot use, or that fails, is a row with the reason. CaptureError if the pair itself cannot run.
    """
    paths = parse_path(reference), parse_path(variant)
    rows: list[RemedyRow] = []
    timed: dict[int, tuple[Remedy, list[Path]]] = {}
    for remedy in REMEDIES:
        on_progress(remedy.name)
        row = RemedyRow(remedy.name, remedy.what, remedy.dtype or loaded.dtype)
        try:
            changed = [_changed(remedy, loaded, path, max(map(len, prompts))) for path in paths]
            with quiet(), foreign_errors_stop(f"'{remedy.name}'", "choose shorter prompts"), torch.inference_mode():
                total, dtype = _compared(remedy, loaded, prompts, changed)
        except UlpscopeError as error:
            if not rows:
                raise
            rows.append(replace(row, refusal=str(error)))
            continue
        summary = total.summary()
        timed[len(rows)] = remedy, changed
        row = replace(
            row,
            compute_dtype=dtype,
            elements=sum(map(len, prompts)) * loaded.vocab_size,
            neq=summary.neq,
            flips=summary.flips,
        )
        if not summary.nonfinite_mismatch:  # over the finite elements alone it would look small
            row = replace(row, max_abs=summary.max_abs, rms=summary.rms, max_ulps=summary.max_ulps)
            row = replace(row, noise_ratio=summary.rms / floor_rms if floor_rms > 0 else None)
        rows.append(row)
    on_progress("throughput")
    with suppress(UlpscopeError):  # the figures are there without it
        for index, figures in _throughput(loaded, prompts[0], timed, rounds).items():
            rows[index] = replace(rows[index], turns=rounds, **figures)
    return rows


def floor_of(session: JudgingSession) -> float:
    """rms of reorderings of prefill, in logits; NaN if there is no such floor."""
    try:
        return session.floor(session.loaded, range(FLOOR_SEEDS)).rms
    except UlpscopeError:
        return float("nan")


def _changed(remedy: Remedy, loaded: LoadedModel, path: Path, positions: int) -> Path:
    changed = remedy.path(path)
    refusal = changed if isinstance(changed, str) else changed.refusal(loaded, positions)
    if refusal or isinstance(changed, str):
        raise CaptureError(f"path '{path}': {refusal}.")
    return changed


def _compared(
    remedy: Remedy, loaded: LoadedModel, prompts: Sequence[Sequence[int]], paths: Sequence[Path]
) -> tuple[PairTotal, str]:
    """Compare the sides, a prompt at a time -> (total, dtype of the logits)."""
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


def _throughput(
    loaded: LoadedModel, ids: Sequence[int], timed: dict[int, tuple[Remedy, list[Path]]], rounds: int
) -> dict[int, dict[str, Any]]:
    """Throughput of both sides by row: tokens per second, and its share of row 0's with the smallest and largest of the
    rounds' own ratios.
    """
    seconds: dict[tuple[int, int], list[float]] = {(row, side): [] for row in timed for side in (0, 1)}
    tokens: dict[int, int] = {}
    for side, path in enumerate(timed[0][1]):
        count = min(len(ids), TIMED_TOKENS)
        tokens[side] = max(1, min(count, count * TIMED_FORWARDS // path.forwards(count)))
    for number in range(rounds + 1):
        for row, side in seconds:
            remedy, paths = timed[row]
            with quiet(), remedy.model(loaded) as model:
                took = _seconds(model, paths[side], ids[: tokens[side]])
            if number:  # the first round warms up
                seconds[row, side].append(took)
    figures: dict[int, dict[str, Any]] = {row: {} for row in timed}
    for (row, side), own in seconds.items():
        plain, name = seconds[0, side], ("reference", "variant")[side]
        share = statistics.median(plain) / statistics.median(own)
        ratios = [before / after for before, after in zip(plain, own, strict=True)]
        count = timed[row][1][side].rows * tokens[side]
        figures[row] |= {
            f"{name}_tokens_per_second": count / statistics.median(own),
            f"{name}_share": share,
            f"{name}_share_low": min(share, *ratios),
            f"{name}_share_high": max(share, *ratios),
        }
    return figures


def _seconds(loaded: LoadedModel, path: Path, ids: Sequence[int]) -> float:
    """Seconds of one walk along the path, its logits thrown away."""
    with (
        foreign_errors_stop(f"path '{path}'", "choose a smaller batch"),
        torch.inference_mode(),
        open_path(path, loaded) as run,
    ):
        if any(step.name == "compile" for step in path.modifiers):
            run(ids, ignore)  # which is when it is compiled
        _wait(loaded)
        began = time.perf_counter()
        run(ids, ignore)
        _wait(loaded)
        return time.perf_counter() - began


def _wait(loaded: LoadedModel) -> None:
    if loaded.device.startswith("cuda"):
        torch.cuda.synchronize(loaded.device)


def _with(name: str, *values: str) -> Callable[[Path], Path | str]:
    """The path with one more modifier, in place of another of that name."""

    def add(path: Path) -> Path | str:
        others = [step for step in path.modifiers if step.name != name]
        return parse_path(str(replace(path, modifiers=(*others, Step(name, values)))))

    return add


def _without_tf32(path: Path) -> Path | str:
    if not any(step.name == "tf32" for step in path.modifiers):
        return "TF32 is off as it is"
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
