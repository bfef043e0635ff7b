"""Mitigations of a divergence: the same pair with one change at a time, its remaining difference
and throughput.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...errors import CaptureError, UlpscopeError
from ...numerics.divergence import compare
from ...numerics.formats import format_named
from ...numerics.statistic import rms_of
from ...numerics.totals import PairTotal
from ...progress import Progress, no_progress
from ...runs.tables.mitigations import MitigationRow
from ..controls.choices import Replay
from ..controls.judge_model import JudgingSession
from ..models.devices import own_bits
from ..models.dtypes import in_float32
from ..models.model import Ids, LoadedModel
from ..models.torch_errors import model_errors_stop
from ..paths.batch import ignore
from ..paths.engines import Prompts, whole_side
from ..paths.paths import Path, check_path, open_path
from ..paths.sliced_head import attribute_replaced

# the smallest and the largest of six ratios hold their median with 97 % (sign test)
ROUNDS = 6
TIMED_FORWARDS, TIMED_TOKENS = 16, 64  # of a path, at most


@dataclass(frozen=True)
class Mitigation:
    """A change to try, of both paths or of the model, whose logits then have `dtype`."""

    name: str
    what: str
    change: Callable[[Path], Path] = lambda path: path
    model: Callable[[LoadedModel], AbstractContextManager[LoadedModel]] = nullcontext
    dtype: str | None = None


def mitigations_of(
    loaded: LoadedModel,
    prompts: Prompts,
    paths: Sequence[Path],
    *,
    floor_rms: float,
    rounds: int = ROUNDS,
    on_progress: Progress = no_progress,
) -> list[MitigationRow]:
    """Try every mitigation on a reference and a variant; the first row is the unchanged pair.

    Figures cover all prompts, throughput the beginning of the first, timed in rounds over all
    mitigations. One that cannot be used, or fails, is a row with the reason. CaptureError if the
    pair itself cannot run.
    """
    rows: list[MitigationRow] = []
    timed: dict[int, tuple[Mitigation, list[Path]]] = {}
    for mitigation in MITIGATIONS:
        on_progress(mitigation.name)
        row = MitigationRow(mitigation.name, mitigation.what, mitigation.dtype or loaded.dtype)
        try:
            if loaded.dtype == mitigation.dtype:
                raise CaptureError(f"The model already computes in {loaded.dtype}.")
            sides = [mitigation.change(path) for path in paths]
            for path in sides:
                check_path(path, loaded, max(map(len, prompts)))
            with model_errors_stop(f"'{mitigation.name}'", "choose shorter prompts"):
                figures = _compare(mitigation, loaded, prompts, sides, floor_rms)
        except UlpscopeError as error:
            if not rows:
                raise
            rows.append(replace(row, refusal=str(error)))
            continue
        timed[len(rows)] = mitigation, sides
        rows.append(replace(row, **figures))
    on_progress("throughput")
    # the figures do not need it
    with suppress(UlpscopeError):
        for index, figures in _throughput(loaded, prompts[0], timed, rounds).items():
            rows[index] = replace(rows[index], turns=rounds, **figures)
    return rows


def floor_of(session: JudgingSession) -> float:
    """Return the RMS noise floor of prefill, in logits; NaN if there is none."""
    with suppress(UlpscopeError):
        return rms_of(session.floor(session.loaded, Replay()).squares)
    return float("nan")


def _compare(
    mitigation: Mitigation,
    loaded: LoadedModel,
    prompts: Prompts,
    paths: Sequence[Path],
    floor_rms: float,
) -> dict[str, Any]:
    """Compare the sides prompt by prompt. Return figures of a row."""
    total = PairTotal()
    dtype = ""
    for ids in prompts:
        with mitigation.model(loaded) as model, open_path(paths[0], model) as run:
            plain = whole_side(run, ids)

        def add(position: int, logits: Tensor, plain: Tensor = plain) -> None:
            nonlocal dtype
            dtype = str(logits.dtype).removeprefix("torch.")
            rows = plain[position : position + len(logits)].to(logits.dtype)
            total.add(compare(own_bits(rows), own_bits(logits), format_named(dtype)))

        with mitigation.model(loaded) as model, open_path(paths[1], model) as run:
            run(ids, add)
    summary = total.summary()
    figures: dict[str, Any] = {
        "compute_dtype": dtype,
        "elements": sum(map(len, prompts)) * loaded.vocab_size,
        "neq": summary.neq,
        "flips": summary.flips,
    }
    # the finite elements alone would look small
    if not summary.nonfinite_mismatch:
        figures |= {
            "max_abs": summary.max_abs,
            "rms": summary.rms,
            "max_ulps": summary.max_ulps,
            "noise_ratio": summary.rms / floor_rms if floor_rms > 0 else None,
        }
    return figures


def _throughput(
    loaded: LoadedModel,
    ids: Ids,
    timed: dict[int, tuple[Mitigation, list[Path]]],
    rounds: int,
) -> dict[int, dict[str, Any]]:
    """Return tokens per second of both sides by row, and the ratio to row 0 with its range over the
    rounds.
    """
    seconds: dict[tuple[int, int], list[float]] = defaultdict(list)
    most = min(len(ids), TIMED_TOKENS)
    counts = [len(path.forwards(loaded, most)) for path in timed[0][1]]
    tokens = [max(1, min(most, most * TIMED_FORWARDS // count)) for count in counts]
    for number in range(rounds + 1):
        for row, (mitigation, paths) in timed.items():
            for side, path in enumerate(paths):
                with mitigation.model(loaded) as model:
                    took = _seconds(model, path, ids[: tokens[side]])
                # the first round only warms up
                if number:
                    seconds[row, side].append(took)
    figures: dict[int, dict[str, Any]] = defaultdict(dict)
    for (row, side), own in seconds.items():
        plain = seconds[0, side]
        name = ("reference", "variant")[side]
        median = statistics.median(own)
        share = statistics.median(plain) / median
        ratios = [first / second for first, second in zip(plain, own, strict=True)]
        figures[row] |= {
            f"{name}_tokens_per_second": timed[row][1][side].rows * tokens[side] / median,
            f"{name}_share": share,
            f"{name}_share_low": min(share, *ratios),
            f"{name}_share_high": max(share, *ratios),
        }
    return figures


def _seconds(loaded: LoadedModel, path: Path, ids: Ids) -> float:
    """Return the seconds of one run of the path, logits discarded."""

    def now() -> float:
        if loaded.is_on_cuda:
            torch.cuda.synchronize(loaded.device)
        return time.perf_counter()

    advice = "choose a smaller batch"
    with model_errors_stop(f"path '{path}'", advice), open_path(path, loaded) as run:
        if path.is_one_piece:
            run(ids, ignore)  # compiles it
        began = now()
        run(ids, ignore)
        return now() - began


@contextmanager
def _head_in_float32(loaded: LoadedModel) -> Iterator[LoadedModel]:
    """Compute the LM head in float32 on the model's hidden states; the logits are float32."""
    head = loaded.model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        raise CaptureError(f"The head of a {loaded.kind} is not a linear layer.")
    weight = head.weight.float()
    bias = None if head.bias is None else head.bias.float()
    linear = torch.nn.functional.linear
    with attribute_replaced(head, "forward", lambda x: linear(x.float(), weight, bias)):
        # the logits become float32 as well
        yield replace(loaded, dtype="float32")


@contextmanager
def _deterministic(loaded: LoadedModel) -> Iterator[LoadedModel]:
    """Use torch's deterministic algorithms; operations without one are unchanged."""
    is_on = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield loaded
    finally:
        torch.use_deterministic_algorithms(is_on, warn_only=warns)


def _without_tf32(path: Path) -> Path:
    if "tf32" not in path.settings:
        raise CaptureError(f"path '{path}': TF32 is already off.")
    return replace(path, modifiers=tuple(each for each in path.modifiers if each.name != "tf32"))


MITIGATIONS = (
    Mitigation("baseline", "The two paths, unchanged."),
    Mitigation(
        "float32",
        "Weights and every step in float32.",
        model=in_float32,
        dtype="float32",
    ),
    Mitigation(
        "float32 head",
        "The LM head, hidden states to logits, in float32; everything before it unchanged.",
        model=_head_in_float32,
        dtype="float32",
    ),
    Mitigation("TF32 off", "float32 matmuls without TF32.", _without_tf32),
    Mitigation(
        "reduced reductions off",
        "16-bit matmuls accumulate in float32.",
        lambda path: path.with_modifier("reduced", "off"),
    ),
    Mitigation(
        "SDPA math backend",
        "Attention as matmuls and a softmax, no fused kernel.",
        lambda path: path.with_modifier("sdpa", "math"),
    ),
    Mitigation(
        "deterministic algorithms",
        "torch.use_deterministic_algorithms(True).",
        model=_deterministic,
    ),
)
