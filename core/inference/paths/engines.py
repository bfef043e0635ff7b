"""Sides that can be run and judged: a path of the grammar or any callable; and their comparison."""

import difflib
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ...checks.arrays_alone import ROW_ULPS
from ...checks.single_logit import LARGEST_PEAK
from ...errors import CaptureError, UlpscopeError
from ...numerics.arrays import Floats
from ...numerics.formats import LOGIT_FORMATS, FloatFormat, spacings
from ...numerics.side_divergence import ROW_ULP_SHIFT, Divergence, concatenate, peaks_of
from ..models.devices import bits_of, row_sums
from ..models.model import Ids, LoadedModel
from ..models.module_state import restore_state
from ..models.torch_errors import first_line
from ..watching.modules import traced_modules
from .batch import Emit, Run, ignore
from .hooks import ModuleTrace
from .paths import Path, open_path, parse_path

Engine = Callable[..., Tensor]
"""(model, token_ids [positions]) -> logits [positions, vocab]; if it has a third parameter `watch`,
it gets `_watch`.
"""
Prompts = Sequence[Ids]
"""Token ids of each prompt."""
Open = Callable[[LoadedModel, ModuleTrace | None], AbstractContextManager[Run]]


@dataclass(frozen=True)
class RunnableSide:
    """Side that can be run on a model: a path or a callable. block_sizes: values of its base that
    may be block sizes; hands_in: it reports its module outputs, so the model's own need no hooks;
    engine_path: of another engine, in its own process; is_continued: see `continued`.
    """

    name: str
    open: Open
    path: Path | None = None
    hands_in: bool = False
    engine_path: Path | None = None
    is_continued: bool = False

    @property
    def key(self) -> str:
        """What tells its results from those of other sides of a session."""
        return f"{self.name}, continued" if self.is_continued else self.name

    @property
    def block_sizes(self) -> list[int]:
        values = () if self.path is None else self.path.base.values
        return [int(value) for value in values if int(value) > 1]

    @property
    def is_named(self) -> bool:
        """True if the name identifies the computation; a callable may be another one under the same
        name.
        """
        return self.path is not None or self.engine_path is not None

    @property
    def is_plain(self) -> bool:
        """True if it is one forward of the whole prompt and nothing else, as `PLAIN`."""
        return not self.is_continued and str(self.path) in ("prefill", "encode")

    @property
    def is_one_piece(self) -> bool:
        """True if it is compiled, so that hooks do not see its modules."""
        return self.path is not None and self.path.is_one_piece

    def run_on(self, loaded: LoadedModel, trace: ModuleTrace | None = None) -> Run:
        """Return a run of one prompt on the model, which is restored afterwards.

        `trace` follows the forwards.
        """

        def run(ids: Sequence[int], emit: Emit) -> None:
            with self.open(loaded, trace) as compute:
                compute(ids, emit)

        return run


def side_of(source: str | Engine) -> RunnableSide:
    """Return the side of a path's name, or of a callable."""
    if isinstance(source, str):
        path = parse_path(source)
        opening = partial(open_path, path)
        if path.engine is None:
            return RunnableSide(str(path), opening, path)
        return RunnableSide(str(path), opening, hands_in=True, engine_path=path)
    name = getattr(source, "__name__", type(source).__name__)
    hands_in = False
    # some callables have no signature
    with suppress(TypeError, ValueError):
        hands_in = "watch" in inspect.signature(source).parameters

    def open_engine(
        loaded: LoadedModel,
        trace: ModuleTrace | None,
    ) -> AbstractContextManager[Run]:
        def run(ids: Sequence[int], emit: Emit) -> None:
            restore_state(loaded.start)
            keywords = {"watch": _watch(name, loaded, len(ids), trace)} if hands_in else {}
            tokens = torch.tensor(list(ids), dtype=torch.long, device=loaded.device)
            try:
                logits = source(loaded.model, tokens, **keywords)
            except UlpscopeError:
                raise
            # of any kind: a control that fails is missing, and judging continues
            except Exception as error:
                reason = f"{type(error).__name__}: {first_line(error)}"
                raise CaptureError(f"'{name}' failed in {loaded.dtype}: {reason}.") from error
            shape = list(logits.shape) if isinstance(logits, Tensor) else []
            if len(shape) != 2 or shape[0] != len(ids) or shape[1] < 2:
                came = shape or type(logits).__name__
                raise CaptureError(f"'{name}' gave {came}; expected logits [{len(ids)}, vocab].")
            dtype = loaded.torch_dtype
            is_exact = torch.promote_types(logits.dtype, dtype) == dtype
            emit(0, logits.to(loaded.device, dtype if is_exact else logits.dtype))

        return nullcontext(run)

    return RunnableSide(name, open_engine, hands_in=hands_in)


def continued(side: RunnableSide, given: Mapping[Ids, tuple[int, int]]) -> RunnableSide:
    """Return a path's side that reads the tokens after the given ones one by one, as it wrote them.
    given: how many tokens of each prompt were given, and how many were asked for.
    """
    path = side.path
    assert path is not None

    @contextmanager
    def open_continued(loaded: LoadedModel, trace: ModuleTrace | None) -> Iterator[Run]:
        with open_path(path, loaded, trace) as compute:

            def run(ids: Sequence[int], emit: Emit) -> None:
                prompt = tuple(ids)
                # a trace follows forwards by their positions, which single steps do not tell
                if trace is not None or prompt not in given:
                    compute(ids, emit)
                    return
                count, asked = given[prompt]
                rest = iter(ids[count:])
                compute.continue_prompt(ids[:count], asked, lambda _: next(rest, None), emit)

            yield run

    return replace(side, open=open_continued, is_continued=True)


# of an encoder its row of values: `encode` is the same base, and a capture refuses `prefill` there
PLAIN = side_of("prefill")


def _watch(
    engine: str,
    loaded: LoadedModel,
    positions: int,
    trace: ModuleTrace | None,
) -> Callable[..., None]:
    """Return the third argument of a callable: `watch(name, tensor)` reports a module's output,
    [positions, features].

    name: of the embedding, a block, its direct child or a module after the blocks, as in the model;
    start: first position of the tensor. CaptureError for any other name or tensor.
    """
    names: list[str] = []
    # the modules of a model without blocks are not compared
    with suppress(CaptureError):
        names += traced_modules(loaded.model)

    def watch(name: str, tensor: Tensor, start: int = 0) -> None:
        if names and name not in names:
            near = difflib.get_close_matches(str(name), names, 1)
            every = f"they are {', '.join(names[:3])}, ... {names[-1]}."
            hint = f"did it mean '{near[0]}'?" if near else every
            raise CaptureError(
                f"'{engine}' reports '{name}', which is not a compared module of {loaded.kind};"
                f" {hint}",
            )
        came = type(tensor).__name__
        is_float = False
        if isinstance(tensor, Tensor):
            came = f"{list(tensor.shape)} from position {start} on"
            is_float = tensor.is_floating_point() and tensor.ndim == 2
        if not is_float or not 0 <= start < start + len(tensor) <= positions:
            raise CaptureError(
                f"'{engine}' reports '{name}' as {came}; expected numbers [positions, features]"
                f" within {positions} positions.",
            )
        if trace is not None:
            trace.hand_in(name, tensor, start)

    return watch


def whole_side(run: Run, ids: Sequence[int]) -> Tensor:
    """Return all logits of a prompt. [positions, vocab]"""
    pieces: list[Tensor] = []
    # a view would keep its base alive
    run(ids, lambda _, logits: pieces.append(logits.clone()))
    return torch.cat(pieces)


def answering(name: str, prompts: Prompts, answers: Sequence[Tensor]) -> RunnableSide:
    """Return a side that emits the recorded answer to each of these prompts, identified by
    object.
    """
    answer_of = {id(ids): (ids, answer) for ids, answer in zip(prompts, answers, strict=True)}

    def run(ids: Sequence[int], emit: Emit) -> None:
        emit(0, answer_of[id(ids)][1])

    return RunnableSide(name, lambda *_: nullcontext(run))


def divergence(
    plain: Tensor,
    run: Run,
    ids: Sequence[int],
    row_ulps_of: FloatFormat | None = None,
    peaks_in: FloatFormat | None = None,
    check: Callable[[Tensor], None] = ignore,
) -> Divergence:
    """Return the divergence of a prompt's logits from `plain`, in pieces; differences in float64,
    which holds those of float32 values to 2^-53. row_ulps_of, peaks_in: dtype of a histogram in row
    ULPs, of peaks; check: called with each piece first.
    """
    parts: list[Divergence] = []

    def add(position: int, logits: Tensor) -> None:
        check(logits)
        reference = plain[position : position + len(logits)].double()
        variant = logits.double()
        difference = reference - variant
        is_finite = difference.isfinite()
        elements = is_finite.sum(1).cpu()
        mismatches = torch.zeros_like(elements)
        first = row_ulps = peaks = None
        if not is_finite.all():
            difference = torch.where(is_finite, difference, 0.0)
            is_same = (reference == variant) | (reference.isnan() & variant.isnan())
            is_mismatch = ~is_finite & ~is_same
            mismatches = is_mismatch.sum(1).cpu()
            if mismatches.any():
                row, token = is_mismatch.nonzero()[0].tolist()
                first = token, float(reference[row, token]), float(variant[row, token])
        if row_ulps_of is not None:
            # of finite elements, by their difference in row ULPs, as of `Divergence.row_ulps`
            steps = torch.from_numpy(_spacings(reference, row_ulps_of)).to(difference.device)
            bins = (difference.abs() / steps[:, None]).float().view(torch.int32) >> ROW_ULP_SHIFT
            bins = bins.flatten() if is_finite.all() else bins[is_finite]
            counts = torch.bincount(bins).cpu().numpy()
            nonzero = np.flatnonzero(counts)
            row_ulps = np.stack([nonzero, counts[nonzero]])
        if peaks_in is not None:
            # of rows that may have one beyond LARGEST_PEAK, 0 of others
            least = ROW_ULPS[peaks_in.name][2] * _spacings(reference, peaks_in)
            largest = difference.abs().amax(1).cpu().numpy()
            rows = np.flatnonzero(largest > LARGEST_PEAK * least)
            peaks = np.zeros(len(least))
            peaks[rows] = peaks_of(difference[rows].cpu().numpy(), least[rows])
        squares = row_sums(difference.square()) / elements.clamp_min(1).numpy()
        part = Divergence(squares, mismatches.numpy(), first, peaks=peaks, row_ulps=row_ulps)
        parts.append(part)

    run(ids, add)
    return concatenate(parts)


def _spacings(reference: Tensor, fmt: FloatFormat) -> Floats:
    """Return the row ULP of each row."""
    largest = torch.where(reference.isfinite(), reference.abs(), -1.0).amax(1).cpu().numpy()
    return spacings(np.maximum(largest, 0.0), fmt)


def measure(
    loaded: LoadedModel,
    prompts: Prompts,
    sides: tuple[RunnableSide, RunnableSide],
) -> tuple[Divergence, list[str]]:
    """Return (divergence, digest of each side's bits)."""
    hashes = [hashlib.sha256(), hashlib.sha256()]

    def see(side: int, logits: Tensor) -> None:
        hashes[side].update(bits_of(logits).data)

    pair = divergence_of(loaded, prompts, sides, see, LOGIT_FORMATS.get(loaded.dtype))
    return pair, [digest.hexdigest() for digest in hashes]


def divergence_of(
    loaded: LoadedModel,
    prompts: Prompts,
    sides: tuple[RunnableSide, RunnableSide],
    see: Callable[[int, Tensor], None] = ignore,
    peaks_in: FloatFormat | None = None,
) -> Divergence:
    """Compare two sides over all prompts. see: called with (side, its logits); peaks_in: as of
    `divergence`.
    """
    divergences = []
    for ids in prompts:
        plain = whole_side(sides[0].run_on(loaded), ids)
        see(0, plain)

        def check(logits: Tensor, vocab: int = plain.shape[1]) -> None:
            if logits.shape[1] != vocab:
                raise CaptureError(
                    f"'{sides[1].name}' gave logits of {logits.shape[1]} tokens, '{sides[0].name}'"
                    f" of {vocab}; both sides need the same vocabulary.",
                )
            see(1, logits)

        divergences.append(
            divergence(plain, sides[1].run_on(loaded), ids, peaks_in=peaks_in, check=check),
        )
    return concatenate(divergences)


def digest_of(loaded: LoadedModel, prompts: Prompts, side: RunnableSide) -> str:
    """Return the sha256 of a side's bits over all prompts."""
    digest = hashlib.sha256()
    for ids in prompts:
        side.run_on(loaded)(ids, lambda _, logits: digest.update(bits_of(logits).data))
    return digest.hexdigest()
