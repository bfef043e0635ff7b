"""Judge a pair of paths or callables on a model that runs here (docs/explanation/verdict.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...checks.arrays_alone import LEAST_VALUES
from ...checks.choices import choices_row
from ...checks.drawn import Exact
from ...checks.lower_precision import PrecisionVerdict
from ...checks.modules_in_16_bits import MODULE_ROUNDING, module_rounding_row
from ...checks.other_rows import OtherPromptsFigures, OtherRowFigures, OtherRows
from ...checks.pair import NoiseFloor, Pair
from ...checks.rerun import Rerun
from ...errors import CaptureError, UsageError
from ...evidence import MISSING, Evidence, Unmeasured
from ...judging import judge as judging
from ...judging.controls import Controls, NotAvailableError, StaysInFloat32Error
from ...judging.values import order_of_rows
from ...numerics.arrays import Floats
from ...numerics.embeddings import MOST_ROWS
from ...numerics.formats import LOGIT_FORMATS
from ...numerics.side_divergence import Divergence
from ...numerics.statistic import BLOCKS, FloorTest
from ...places import NotFinite, of_values, place_of
from ...progress import Progress, no_progress
from ...text import plural
from ...verdict import Verdict
from ..models.dtypes import WIDENING
from ..models.model import Ids, Inputs, LoadedModel, loaded_from, token_texts
from ..models.torch_errors import foreign_errors_stop, model_errors_stop
from ..paths.batch import Emit, Run, rows_of_a_chunk
from ..paths.engine_side import parts_of
from ..paths.engines import (
    PLAIN,
    Engine,
    RunnableSide,
    continued,
    digest_of,
    divergence_of,
    measure,
    side_of,
    whole_side,
)
from ..paths.hooks import ModuleTrace
from .answer_precision import Narrow, narrow_answers
from .choices import Choices, Replay, choices_of, key_choosers
from .drawn_roundings import RoundingDraws
from .modules_alone import first_not_finite, module_rounding, module_row
from .precisions.catalogue import Precision
from .precisions.lowered import Question, at_widest, lowered_in_16_bits, lowered_of_pair
from .rounding_floor import SEEDS, check_prompts, own_rounding_of, rounding_floor

# few reorderings in 16 bits, since they do not decide
_OWN_SEEDS = 2
MEMOIZED_BYTES = 256 << 20  # of the logits of paths, in all dtypes together
# bytes of a logit of another engine, some of which give float32 whatever they compute in
_WIDEST = 4
# pairs of calls of a side that does not repeat itself; the largest difference counts, for races are
# rare
_RERUNS = 4
Computed = TypeVar("Computed")


def judge(
    model: LoadedModel | PreTrainedModel,
    prompts: Sequence[Sequence[int] | Tensor],
    *,
    reference: str | Engine = "prefill",
    variant: str | Engine,
    precisions: Sequence[Precision] = (),
    tokenizer: Any = None,
    on_progress: Progress = no_progress,
    session: JudgingSession | None = None,
    digests: tuple[str, str] | None = None,
) -> Verdict:
    """Judge whether two sides differ by rounding or by a bug; run every control.

    Args:
        model: of transformers, or one that `load_model` gives.
        prompts: token ids, one sequence a prompt.
        reference, variant: a path ("decode+batch:8"), or a callable (model, token_ids [positions])
            -> logits [positions, vocab]. It is called with the model in its own dtype and with the
            same weights in float32. One with a third parameter `watch` may hand in what its modules
            put out, as `watch("model.layers.0.self_attn", tensor [positions, features])`, so that
            the module is named.
        precisions: lower precisions that a side is declared to use; they are tried first.
        tokenizer: of `model`, for the texts of tokens.
        on_progress: gets the name of each step.
        session: of this model and these prompts, if several pairs are judged.
        digests: sha256 of both sides' bits as they were captured before in the model's dtype, which
            counts as one of the two calls that a side has to repeat.

    Returns:
        The verdict with its evidence; `noise_ratio` is the rms of the pair over that of the noise
        floor.

    Raises:
        CaptureError: a side cannot be run at all. A control that cannot be run is evidence that is
            not available.
    """
    if any(isinstance(each, str) for each in (model, *prompts)):
        raise UsageError(
            "judge takes a model and token ids; `ulpscope judge` takes a model's name and texts.",
        )
    loaded = model if isinstance(model, LoadedModel) else loaded_from(model, tokenizer)
    if session is None:
        session = JudgingSession(loaded, prompts)
    elif session.loaded is not loaded or list(session.prompts) != check_prompts(loaded, prompts):
        raise CaptureError("judging: the session is of another model or of other prompts.")
    with model_errors_stop():
        one = session.side_of(reference)
        other = session.side_of(variant)
        # results are kept by name: callables may share one, or have that of a path
        if one.name == other.name:
            if not other.is_named:
                other = replace(other, name=f"{other.name} (variant)")
            elif not one.is_named:
                one = replace(one, name=f"{one.name} (reference)")
        try:
            controls = ModelControls(session, (one, other), precisions, on_progress, digests)
            verdict = judging.judge(controls)
            return verdict if loaded.encoder is None else verdict.worded(of_values)
        finally:
            session.forget(other)


class JudgingSession:
    """One model and the prompts that its pairs are judged on. Results of a path are kept under its
    name; a callable may be another one under the same name, and is run anew for every pair.

    given: of prompts that the sides continued, see `core.inference.paths.engines.continued`.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        prompts: Inputs,
        given: Mapping[Ids, tuple[int, int]] | None = None,
    ) -> None:
        self.loaded = loaded
        self.prompts = check_prompts(loaded, prompts)
        self.given = given or {}
        self._results: dict[Any, Any] = {}
        self._logits: dict[tuple[str, str, Ids], Tensor] = {}

    def once(
        self,
        what: Any,
        compute: Callable[[], Computed],
        side: RunnableSide = PLAIN,
    ) -> Computed:
        """Return what was computed before of a side; of a callable compute it anew."""
        if not side.is_named:
            return compute()
        key = what, side.key
        if key not in self._results:
            self._results[key] = compute()
        result: Computed = self._results[key]
        return result

    @cached_property
    def continues(self) -> bool:
        """Whether sides read what they wrote token by token; not if they are to choose as the model
        does, which is known by position.
        """
        if not self.given or self.loaded.has_experts:
            return False
        with model_errors_stop():
            return not any(self.key_choosers.values())

    def side_of(self, source: str | Engine) -> RunnableSide:
        """Return the side of a path's name, or of a callable."""
        side = side_of(source)
        return side if side.path is None or not self.continues else continued(side, self.given)

    @cached_property
    def key_choosers(self) -> dict[str, bool]:
        """Modules that choose keys, and whether each has a choice in the longest prompt."""
        return key_choosers(self.loaded, max(self.prompts, key=len))

    def replay(self, model: LoadedModel) -> Replay:
        """Return the choices of the plain forward in the dtype of `model`."""
        return self.once(("choices", model.dtype), lambda: Replay(self.choices(model, PLAIN)))

    def choices(self, model: LoadedModel, side: RunnableSide) -> dict[Ids, Choices]:
        """Return what a side chooses by itself, by prompt."""
        return {ids: choices_of(model, side, ids, self.key_choosers) for ids in self.prompts}

    def draws(self, replay: Replay) -> RoundingDraws:
        """Return draws in the model's dtype. replay: choices that they are forced to make."""
        exact = self.memoize(PLAIN)
        return self.once(
            ("draws", bool(replay.choices)),
            lambda: RoundingDraws(self.loaded, self.prompts, exact=exact, replay=replay),
        )

    def floor(self, model: LoadedModel, replay: Replay, times: int = 1) -> NoiseFloor:
        """Noise floor in the dtype of `model`: the session's, or the same weights widened. replay:
        choices that its forwards are forced to make; times: as many draws as usual.
        """
        fmt = LOGIT_FORMATS.get(model.dtype) if model is self.loaded else None
        seeds = range(times * (SEEDS if model.dtype in WIDENING else _OWN_SEEDS))
        return self.once(
            ("floor", model.dtype, bool(replay.choices), times),
            lambda: rounding_floor(
                model,
                self.prompts,
                seeds,
                replay.of_rounding(PLAIN),
                row_ulps_of=fmt,
                plain=self.memoize(PLAIN),
            ),
        )

    def memoize(self, side: RunnableSide) -> RunnableSide:
        """Keep the logits of a path in each dtype, as far as MEMOIZED_BYTES go; not if it is
        followed.
        """
        if not side.is_named:
            return side

        def open_memoized(
            model: LoadedModel,
            trace: ModuleTrace | None,
        ) -> AbstractContextManager[Run]:
            if trace is not None:
                return side.open(model, trace)
            itemsize = model.torch_dtype.itemsize if side.engine_path is None else _WIDEST

            def run(ids: Sequence[int], emit: Emit) -> None:
                key = side.key, model.dtype, tuple(ids)
                if key not in self._logits:
                    size = model.rows_of(ids) * model.vocab_size * itemsize
                    kept = sum(logits.nbytes for logits in self._logits.values())
                    if kept + size > MEMOIZED_BYTES:
                        return side.run_on(model)(ids, emit)
                    self._logits[key] = whole_side(side.run_on(model), ids)
                start = 0
                for piece in self._logits[key].split(rows_of_a_chunk(model)):
                    emit(start, piece)
                    start += len(piece)
                return None

            return nullcontext(run)

        return replace(side, open=open_memoized)

    def forget(self, side: RunnableSide) -> None:
        """Let the logits of a side go, which no other pair has."""
        self._logits = {key: logits for key, logits in self._logits.items() if key[0] != side.key}


class ModelControls(Controls):
    """Controls of two sides that the model runs."""

    def __init__(
        self,
        session: JudgingSession,
        sides: tuple[RunnableSide, RunnableSide],
        precisions: Sequence[Precision],
        say: Progress,
        digests: tuple[str, str] | None = None,
    ) -> None:
        self.session, self.sides, self.say = session, sides, say
        self.loaded = session.loaded
        self.prompts = session.prompts
        self.precisions = precisions
        self.names = sides[0].name, sides[1].name
        self.lengths = self.loaded.lengths_of(session.prompts)
        self.dtype = self.loaded.dtype
        self.has_experts = self.loaded.has_experts
        self.shares_scale = self.loaded.has_few_values
        self.blocks = sorted({*BLOCKS, *sides[0].block_sizes, *sides[1].block_sizes})
        self.changed = [side for side in sides if not side.is_plain]
        # modules are followed over the whole text, where a continued prefill is the plain forward
        self.followed = [side for side in self.changed if side.path != PLAIN.path]
        self.memoized_sides = session.memoize(sides[0]), session.memoize(sides[1])
        self.earlier_digests = digests
        self.digests = ["", ""]
        self.floors: dict[str, NoiseFloor] = {}
        # by dtype: the model's choices, and those that each side would have made
        self.noted: dict[str, tuple[Replay, dict[str, dict[Ids, Choices]]]] = {}
        # rms with the model's choices over rms with each side's own, in the model's dtype
        self.replayed_share: float | None = None

    @cached_property
    def replays(self) -> bool:
        """Whether both sides can be forced to make the choices that the model makes."""
        if not self.has_experts and not any(self.session.key_choosers.values()):
            return False
        # in another process, or compiled
        if any(side.engine_path is not None or side.is_one_piece for side in self.sides):
            return False
        session = self.session
        replay = session.replay(self.loaded)

        def is_followed_by(side: RunnableSide) -> bool:
            return replay.is_followed_by(session.choices(self.loaded, side))

        # a side that fails is for the comparison of the sides to report
        with suppress(CaptureError):
            return all(
                session.once("replays", partial(is_followed_by, side), side) for side in self.sides
            )
        return False

    def replay(self, model: LoadedModel) -> Replay:
        """Return the choices that sides are forced to make in the dtype of `model`, if they can
        be.
        """
        return self.session.replay(model) if self.replays else Replay()

    def sides_in(self, model: LoadedModel) -> tuple[RunnableSide, RunnableSide]:
        """Return the sides as they are compared in the dtype of `model`."""
        replay, noted = self.noted.setdefault(model.dtype, (self.replay(model), {}))
        reference, variant = (
            replay.of(side, noted.setdefault(side.name, {}).__setitem__)
            for side in self.memoized_sides
        )
        return reference, variant

    @cached_property
    def narrow(self) -> list[Narrow]:
        """Sides that compute in 16 bits whatever they are asked."""
        narrow = []
        for side in self.sides:
            # an engine is asked whether it repeats itself
            one = side if side.path is None else self.session.memoize(side)
            plain = self.session.memoize(PLAIN)
            ask = partial(narrow_answers, self.loaded, self.prompts, one, plain)
            # a side that cannot be asked is for the float32 comparison to report
            with suppress(CaptureError):
                narrow.append(self.session.once("narrow", ask, side))
        return [each for each in narrow if each is not None]

    @property
    def only_16_bits(self) -> Mapping[str, str]:
        return {each.side: each.dtype for each in self.narrow}

    @property
    def chooses_keys(self) -> bool:
        return any(self.session.key_choosers.values()) and not self.replays

    def _in(self, dtype: str) -> AbstractContextManager[LoadedModel]:
        return nullcontext(self.loaded) if dtype == self.dtype else WIDENING[dtype](self.loaded)

    def validity(self) -> list[Evidence]:
        if self.loaded.encoder is None or len(self.prompts) > MOST_ROWS:
            return []
        logits = [
            torch.cat([whole_side(side.run_on(self.loaded), ids) for ids in self.prompts])
            for side in self.memoized_sides
        ]
        reference, variant = (each.double().cpu().numpy() for each in logits)
        return [order_of_rows(reference, variant, LOGIT_FORMATS[self.dtype], self.lengths)]

    def pair(self, dtype: str) -> Pair:
        self.say(f"both sides in {dtype}")
        if dtype == self.dtype:
            divergence, self.digests = measure(self.loaded, self.prompts, self.memoized_sides)
            is_identical = self.digests[0] == self.digests[1]
            if self.replays and not is_identical:
                natural_rms = divergence.rms
                divergence = divergence_of(
                    self.loaded,
                    self.prompts,
                    self.sides_in(self.loaded),
                    peaks_in=LOGIT_FORMATS.get(dtype),
                )
                if natural_rms > 0:
                    self.replayed_share = divergence.rms / natural_rms
            return self._pair(divergence, self.names, is_identical=is_identical)
        if dtype == "float32" and self.narrow:
            raise NotAvailableError(self.narrow[0].says)
        for side in self.sides:
            if dtype == "float64" and side.is_one_piece:
                raise NotAvailableError(f"'{side.name}' is compiled.")
        is_wide = [dtype == "float32"] * 2

        def see(side: int, logits: Tensor) -> None:
            if not is_wide[side]:
                # numpy narrows here, because torch would not
                wide = logits.cpu().numpy()
                is_wide[side] = bool((wide.astype(np.float32) != wide).any())

        with self._in(dtype) as model:
            divergence = divergence_of(model, self.prompts, self.sides_in(model), see)
        if not all(is_wide):
            name = self.names[is_wide.index(False)]
            raise StaysInFloat32Error(f"'{name}' computes in float32 whatever it is asked.")
        return self._pair(divergence, self.names)

    def _pair(
        self,
        divergence: Divergence,
        names: tuple[str, str],
        *,
        is_identical: bool = False,
    ) -> Pair:
        not_finite = None
        if divergence.first_mismatch is not None:
            token, *values = divergence.first_mismatch
            tokenizer = self.loaded.tokenizer
            has_text = hasattr(tokenizer, "decode") and self.loaded.encoder is None
            text = token_texts(tokenizer, [token])[token] if has_text else ""
            about = divergence.mismatches, token, text, names
            not_finite = NotFinite(*about, (values[0], values[1]))
        # an embedding has dimensions that are much larger than others
        peaks = None if self.loaded.encoder is not None else divergence.peaks
        return Pair(divergence.squares, not_finite, is_identical, peaks)

    def floor(self, dtype: str) -> NoiseFloor:
        """Reorder every linear map.

        In 16 bits kernels round elsewhere too, as far as a forward is from float32.
        """
        self._check_values()
        if dtype not in self.floors:
            self.floors[dtype] = self._measured_floor(dtype)
        return self.floors[dtype]

    def larger_floor(self, dtype: str) -> NoiseFloor:
        self.floors[dtype] = self._measured_floor(dtype, 4)
        return self.floors[dtype]

    def _measured_floor(self, dtype: str, times: int = 1) -> NoiseFloor:
        self.say(f"reorderings in {dtype}")
        rounding = None
        try:
            with self._in(dtype) as model:
                replay = self.replay(model)
                floor = self.session.floor(model, replay, times)
            if dtype not in WIDENING:
                plain = replay.of_rounding(self.session.memoize(PLAIN))
                measure = partial(own_rounding_of, self.loaded, self.prompts, plain)
                rounding = self.session.once(("rounding", self.replays), measure)
        except CaptureError as error:
            raise NotAvailableError(
                f"The noise floor in {dtype} cannot be measured: {error}",
            ) from error
        squares = floor.squares
        control = floor.control
        if rounding is not None:
            squares = np.maximum(squares, rounding)
            control += f" and rounding to {dtype}"
        for name in self.names:
            if parts := parts_of(name, dtype):
                control += f"; in '{name}' {parts}"
        return replace(floor, squares=squares, control=control)

    def _check_values(self) -> None:
        """NotAvailableError if all values together are too few for a size."""
        values = len(self.prompts) * self.loaded.vocab_size
        if self.shares_scale and values < LEAST_VALUES:
            raise NotAvailableError(
                f"{plural(values, 'value')} of all texts are too few for a noise floor; give texts"
                f" for {LEAST_VALUES}.",
            )

    def _prompt_of(self, row: int) -> tuple[int, int]:
        """(prompt, position in it) of a row."""
        return (row, 0) if self.loaded.encoder is not None else place_of(row, self.lengths)

    def rerun(self) -> Rerun:
        again = self.earlier_digests
        if again is None:
            self.say("both sides once more")
            digest = partial(digest_of, self.loaded, self.prompts)
            first, second = self.sides
            of_first = self.session.once("digest", partial(digest, first), first)
            again = of_first, digest(second)
        unstable = [
            side for side, a, b in zip(self.sides, self.digests, again, strict=True) if a != b
        ]
        control = " and ".join(f"'{name}'" for name in self.names) + ", each called twice"
        if not unstable:
            return Rerun(control, self.names, ())
        self.say("how far a rerun goes")
        calls = []
        for side in map(self.replay(self.loaded).of, unstable * _RERUNS):
            calls.append(divergence_of(self.loaded, self.prompts, (side, side)))
        squares = np.max([call.squares for call in calls], axis=0)
        mismatches = max(call.nonfinite_mismatch for call in calls)
        size = squares if squares.any() or mismatches else None
        names = tuple(side.name for side in unstable)
        return Rerun(control, self.names, names, size, mismatches)

    def neighbours(self) -> list[OtherRows]:
        side = self.sides[1]
        path = side.path
        if path is None or path.rows < 2:
            return []
        self.say("other neighbors, another row")
        row = int(path.settings.get("row", (0,))[0])
        other_row = (row + path.rows // 2) % path.rows if row else path.rows - 1
        neighbours = "same" if path.settings.get("neighbours") == ("random",) else "random"
        with_others = self.session.side_of(str(path.with_modifier("neighbours", neighbours)))
        side_in_row = self.session.side_of(str(path.with_modifier("row", other_row)))
        is_same, is_same_in_row = (
            digest_of(self.loaded, self.prompts, one) == self.digests[1]
            for one in (with_others, side_in_row)
        )
        of_prompts = OtherPromptsFigures(rows=path.rows, bit_identical=is_same)
        of_row = OtherRowFigures(
            rows=path.rows,
            row=row,
            other_row=other_row,
            bit_identical=is_same_in_row,
        )
        dtype = next((name for name in ("float64", "float32") if name in self.floors), "")
        difference = None
        if not is_same_in_row and dtype:
            with suppress(CaptureError), self._in(dtype) as model:
                replay = self.replay(model)
                sides = replay.of(self.memoized_sides[1]), replay.of(side_in_row)
                divergence = divergence_of(model, self.prompts, sides)
                difference = self._pair(divergence, (side.name, side_in_row.name))
        compared = f"compared with '{side.name}'"
        return [
            OtherRows(side.name, f"'{with_others.name}' {compared}", of_prompts),
            OtherRows(side.name, f"'{side_in_row.name}' {compared}", of_row, dtype, difference),
        ]

    def exact(self) -> Exact:
        self._check_values()
        sides = [self.session.memoize(side) for side in self.changed]
        if not sides:
            raise NotAvailableError("")
        return self.session.draws(self.replay(self.loaded)).measure(sides, self.say)

    def choices(self) -> list[Evidence]:
        rows = []
        for dtype, (replay, noted) in self.noted.items():
            # without a floor some are not known
            if not set(self.prompts) <= replay.moved.keys():
                continue
            moved = replay.moved_row_ulps(LOGIT_FORMATS[dtype])
            share = self.replayed_share if dtype == self.dtype else None
            for name in [side.name for side in self.changed]:
                # not of a side that failed, or of a callable that chooses otherwise in this dtype
                if replay.is_followed_by(noted[name]):
                    found = replay.compare(self.prompts, noted[name])
                    rows.append(choices_row(found, self.lengths, name, dtype, moved, share))
        return rows

    def module_rounding(self) -> list[Evidence]:
        # near ties choose other experts or keys; a declared precision is no rounding of 16 bits
        is_torn = (self.has_experts and not self.replays) or self.chooses_keys
        # its limit is that of decoders; BERT's eager attention rounds its scores too, to 2.4 times
        if is_torn or self.precisions or self.loaded.encoder is not None:
            return []
        rows = []
        for side in self.followed:
            control = f"modules of '{side.name}' in {self.dtype}"
            self.say(control)
            replay = self.replay(self.loaded)
            sides = replay.of(side), replay.of(PLAIN)
            measure = partial(module_rounding, self.loaded, self.prompts, *sides)
            try:
                with foreign_errors_stop("torch", "choose a smaller model"):
                    rounding = self.session.once("module rounding", measure, side)
                    rows.append(module_rounding_row(rounding, side.name, self.dtype))
            except CaptureError as error:
                # modules that cannot be followed, or do not fit into memory
                about = MODULE_ROUNDING, control, Unmeasured(), MISSING
                rows.append(Evidence(*about, f"Not run: {error}", side.name))
        return rows

    def lower_precision(
        self,
        dtype: str,
        tests: Mapping[str, FloorTest],
        *,
        also_in_16_bits: bool,
    ) -> Sequence[PrecisionVerdict]:
        session = self.session
        question = Question(
            self.prompts,
            self.blocks,
            self.say,
            self.precisions,
            session.memoize,
            session.draws(self.replay(self.loaded)),
            self.replay,
        )
        if dtype == self.dtype and dtype != "float32":
            return [
                lowered_in_16_bits(question, self.loaded, side, tests[side.name])
                for side in self.sides
                if side.name in tests
            ]
        return lowered_of_pair(
            question,
            self.loaded,
            self.sides,
            self.floors,
            dtype,
            fails_in_own_dtype=also_in_16_bits,
        )

    def modules(self, row: int, bugs: Sequence[str | None], dtype: str) -> list[Evidence]:
        if any(side.is_one_piece for side in self.sides):
            return []
        number, position = self._prompt_of(row)
        rows = []
        # as they were compared: while outputs are replaced, another forward would be recorded
        replay, _ = self.noted.get("float32", (Replay(), {}))
        for side in self.followed:
            self.say(f"each module of '{side.name}' alone")
            sides = [at_widest(side), side] if side.name in bugs else [side]
            about = self.loaded, self.prompts[number], number, position
            forced = [replay.of(each) for each in sides], replay.of(PLAIN)
            rows.append(module_row(*about, *forced, is_below_float32=dtype == "float64"))
        return [each for each in rows if each is not None]

    def differences(self, row: int, dtype: str) -> Floats | None:
        prompt, position = self._prompt_of(row)
        ids = self.prompts[prompt]
        with self._in(dtype) as model:
            reference, variant = (
                whole_side(one.run_on(model), ids)[position].double()
                for one in self.sides_in(model)
            )
        return np.nan_to_num((variant - reference).square().cpu().numpy())

    def source_of(self, mismatch: NotFinite) -> str:
        side = self.sides[int(np.isfinite(mismatch.values[0]))]
        with suppress(CaptureError):
            prompt, _ = self._prompt_of(int(mismatch.rows[0]))
            return first_not_finite(self.loaded, self.prompts[prompt], side) or ""
        return ""
