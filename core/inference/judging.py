"""Judge a pair: run its controls, hold it against this model's own rounding floor, and say rounding or bug (docs/verdict.md).

A side is a path of the grammar, or any callable: an engine, a kernel, a cache of one's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from core.errors import CaptureError, UlpscopeError
from core.inference.bits import bits_of
from core.inference.edge import first_line, foreign_errors_stop, quiet
from core.inference.float64 import in_float64
from core.inference.floor import (
    EXACT_BYTES,
    Divergence,
    as_many_as,
    check_prompts,
    divergence,
    in_float32,
    mean_squares,
    own_rounding_of,
    rounding_floor,
    whole_side,
)
from core.inference.grammar import Pieces, Step
from core.inference.models import LoadedModel, loaded_from
from core.inference.modifiers import MODIFIERS
from core.inference.paths import Path, open_path, parse_path
from core.runs.records import (
    FAILED,
    FLOAT32,
    MISSING,
    NEIGHBOURS,
    NOTED,
    OWN_DTYPE,
    PASSED,
    RERUN,
    SYMMETRY,
    Evidence,
    FloorRows,
)
from core.verdict import (
    BLOCKS,
    FloorTest,
    Verdict,
    conclude,
    floor_evidence,
    floor_test,
    is_larger_everywhere,
    structure_evidence,
    structure_of,
)

SEEDS = 4
FLOAT64 = "float64"
_LOPSIDED = 3.0  # one side further from float64 than the other by more than this is worth a word

Engine = Callable[[Any, torch.Tensor], torch.Tensor]
"""(model, token_ids [positions]) -> logits [positions, vocab]"""
Open = Callable[[LoadedModel], AbstractContextManager[Callable[[Sequence[int]], Pieces]]]


@dataclass(frozen=True)
class Judgement:
    """A verdict with what a run keeps of it besides its evidence."""

    verdict: Verdict
    floors: tuple[FloorRows, ...]


def judge(
    model: LoadedModel | PreTrainedModel,
    prompts: Sequence[Sequence[int] | torch.Tensor],
    *,
    reference: str | Engine = "prefill",
    variant: str | Engine,
    seeds: Sequence[int] = range(SEEDS),
    tokenizer: Any = None,
    on_progress: Callable[[str], None] | None = None,
) -> Verdict:
    """Rounding, or a bug? Runs every control by itself.

    A side is a path ("decode+batch:8") or any callable (model, token_ids[positions]) -> logits[positions, vocab]; it is called with
    the model in its own dtype and again with the same weights in float32. `prompts` are token ids. CaptureError where something
    cannot be run at all; what only a control needs is noted as missing instead.
    """
    loaded = model if isinstance(model, LoadedModel) else loaded_from(model, tokenizer)
    ids = [tuple(int(token) for token in prompt) for prompt in prompts]
    return judge_pair(loaded, ids, reference, variant, seeds=seeds, on_progress=on_progress).verdict


def judge_pair(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    reference: str | Engine,
    variant: str | Engine,
    *,
    seeds: Sequence[int] = range(SEEDS),
    on_progress: Callable[[str], None] | None = None,
) -> Judgement:
    """The same, with the figures by position."""
    say = on_progress or (lambda _: None)
    check_prompts(loaded, prompts)
    if len(set(seeds)) < max(2, len(seeds)):
        raise CaptureError(f"judging: seeds are {list(seeds)}; expected at least two, and none twice.")
    sides = (_side(reference), _side(variant))
    evidence: list[Evidence] = []
    floors: list[FloorRows] = []
    lengths = [len(ids) for ids in prompts]
    with quiet(), torch.inference_mode(), foreign_errors_stop("judging", "shorten the prompts or choose a smaller model"):
        say(f"both sides in {loaded.dtype}")
        own, digests = _measure(loaded, prompts, sides)
        say("both sides once more")
        evidence.append(_rerun(sides, digests, _digests(loaded, prompts, sides)))
        evidence += _neighbours(loaded, prompts, sides[1], digests[1], say)
        is_identical = digests[0] == digests[1]
        tests: dict[str, FloorTest] = {}
        if loaded.dtype != "float32":
            say(f"{len(seeds)} reorderings in {loaded.dtype}")
            own_rounding = own_rounding_of(loaded, prompts)
            _against_floor(
                loaded, prompts, own, None, seeds, OWN_DTYPE, sides, evidence, floors, tests, own_rounding=own_rounding
            )
            if own_rounding is None and evidence[-1].outcome == FAILED and not tests[OWN_DTYPE].nonfinite:
                doubt = "Reorderings alone do not show all that rounding to 16 bits does, and float32, which would, does not fit."
                evidence[-1] = replace(evidence[-1], outcome=NOTED, says=f"{evidence[-1].says} {doubt}")
        say(f"both sides and {len(seeds)} reorderings in float32")
        _microscope(loaded, prompts, own, seeds, sides, evidence, floors, tests)
        if FLOAT32 in tests and _asks_for_float64(loaded, tests[FLOAT32]):
            say(f"both sides and {len(seeds)} reorderings in float64")
            _second_microscope(loaded, prompts, seeds, sides, evidence, floors, tests)
        if FLOAT32 in tests:
            say("a forward in float64")
            evidence.append(_symmetry(loaded, prompts, sides))
    deciding = tests.get(FLOAT64, tests.get(FLOAT32))
    blocks = sorted({*BLOCKS, *(int(v) for side in sides for v in side.block_sizes)})
    shown = structure_of(deciding.outliers, lengths, blocks) if deciding is not None else None
    if shown is not None and deciding is not None:
        evidence.append(structure_evidence(shown, deciding, lengths))
    ratio = deciding.ratio if deciding is not None else (tests[OWN_DTYPE].ratio if OWN_DTYPE in tests else None)
    first = shown.first if shown is not None else None
    return Judgement(conclude(evidence, is_bit_identical=is_identical, noise_ratio=ratio, first_place=first), tuple(floors))


def measured_pair(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], reference: str | Engine, variant: str | Engine
) -> list[Divergence]:
    """Two sides against each other in the model's dtype, without a control: one divergence a prompt."""
    return _divergences(loaded, prompts, (_side(reference), _side(variant)))


@dataclass(frozen=True)
class _Side:
    """A path or a callable, made ready the same way. block_sizes: values of its base, which may be those of blocks."""

    name: str
    open: Open
    path: Path | None = None

    @property
    def block_sizes(self) -> tuple[Any, ...]:
        return () if self.path is None else tuple(v for v in self.path.base.values if isinstance(v, int) and v > 1)

    @property
    def is_one_piece(self) -> bool:
        """Does a compiler make its kernels, out of reach of whoever looks on?"""
        return self.path is not None and any(MODIFIERS[step.name].is_one_piece for step in self.path.modifiers)


def _side(given: str | Engine) -> _Side:
    if isinstance(given, str):
        path = parse_path(given)
        return _Side(str(path), lambda loaded: open_path(path, loaded), path)
    name = getattr(given, "__name__", type(given).__name__)
    return _Side(name, lambda loaded: _open_engine(name, given, loaded))


@contextmanager
def _open_engine(name: str, engine: Engine, loaded: LoadedModel) -> Iterator[Callable[[Sequence[int]], Pieces]]:
    def pieces(ids: Sequence[int]) -> Pieces:
        try:
            logits = engine(loaded.model, torch.tensor(list(ids), dtype=torch.long, device=loaded.device))
        except UlpscopeError:
            raise
        except Exception as error:  # whatever an engine raises: a control it cannot run is a missing one, no end of the judgement
            raise CaptureError(f"'{name}' failed in {loaded.dtype}: {type(error).__name__}: {first_line(error)}.") from error
        if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != len(ids) or logits.shape[1] < 2:
            came = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
            raise CaptureError(f"'{name}' gave {came}; expected logits [{len(ids)}, vocab].")
        is_exact = torch.promote_types(logits.dtype, loaded.torch_dtype) == loaded.torch_dtype
        yield 0, logits.to(loaded.device, loaded.torch_dtype if is_exact else logits.dtype)

    yield pieces


def _pieces(side: _Side, loaded: LoadedModel, ids: Sequence[int]) -> Iterator[tuple[int, torch.Tensor]]:
    with side.open(loaded) as pieces_of:
        yield from pieces_of(ids)


def _measure(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], sides: tuple[_Side, _Side]
) -> tuple[list[Divergence], list[str]]:
    """(divergence of each prompt, digest of each side's bits)."""
    found: list[Divergence] = []
    hashes = [hashlib.sha256(), hashlib.sha256()]
    for ids in prompts:
        plain = whole_side(_pieces(sides[0], loaded, ids))
        hashes[0].update(bits_of(plain).data)
        found.append(divergence(plain, _hashed(_as_wide(plain, sides, _pieces(sides[1], loaded, ids)), hashes[1])))
    return found, [digest.hexdigest() for digest in hashes]


def _as_wide(plain: torch.Tensor, sides: tuple[_Side, _Side], pieces: Pieces) -> Pieces:
    for position, logits in pieces:
        if logits.shape[1] != plain.shape[1]:
            raise CaptureError(
                f"'{sides[1].name}' gave logits of {logits.shape[1]} tokens, '{sides[0].name}' of {plain.shape[1]}; "
                "both sides need the same vocabulary."
            )
        yield position, logits


def _hashed(pieces: Pieces, digest: Any) -> Pieces:
    for position, logits in pieces:
        digest.update(bits_of(logits).data)
        yield position, logits


def _digests(loaded: LoadedModel, prompts: Sequence[Sequence[int]], sides: Sequence[_Side]) -> list[str]:
    found = []
    for side in sides:
        digest = hashlib.sha256()
        for ids in prompts:
            for _ in _hashed(_pieces(side, loaded, ids), digest):
                pass
        found.append(digest.hexdigest())
    return found


def _rerun(sides: Sequence[_Side], first: Sequence[str], second: Sequence[str]) -> Evidence:
    moved = [side.name for side, a, b in zip(sides, first, second, strict=True) if a != b]
    control = " and ".join(f"'{side.name}'" for side in sides) + ", each called twice"
    if moved:
        names = " and ".join(f"'{name}'" for name in moved)
        return Evidence(
            RERUN,
            control,
            {"not_repeatable": moved},
            FAILED,
            f"{names} does not give the same bits twice: a kernel in it is nondeterministic.",
        )
    return Evidence(RERUN, control, {"not_repeatable": []}, PASSED, "Each side gives the same bits when it is called again.")


def _neighbours(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], side: _Side, digest: str, say: Callable[[str], None]
) -> list[Evidence]:
    """Other contents in the other rows, their number and length held fixed: the prompt's own bits must not move."""
    if side.path is None or side.path.rows < 2:
        return []
    kinds = {step.name: step.values for step in side.path.modifiers}
    other = "same" if kinds.get("neighbours") == ("random",) else "random"
    steps = tuple(step for step in side.path.modifiers if step.name != "neighbours")
    changed = parse_path(str(replace(side.path, modifiers=(*steps, Step("neighbours", (other,))))))
    say("other neighbours")
    control = f"'{changed}' against '{side.path}'"
    (found,) = _digests(loaded, prompts, [_side(str(changed))])
    figures = {"rows": side.path.rows, "bit_identical": found == digest}
    if found == digest:
        return [Evidence(NEIGHBOURS, control, figures, PASSED, "What the other rows hold does not change a bit of this one's.")]
    if _has_experts(loaded.model):
        says = "What the other rows hold changes this one's bits; in a mixture of experts the rows share the experts' products, so that alone is no leak."
        return [Evidence(NEIGHBOURS, control, figures, NOTED, says)]
    says = "What the other rows hold changes this one's logits, though their number and length are the same: data leaks between rows."
    return [Evidence(NEIGHBOURS, control, figures, FAILED, says)]


def _has_experts(model: Any) -> bool:
    config = model.config.get_text_config(decoder=True)
    return any(
        getattr(config, key, None) for key in ("num_local_experts", "num_experts", "n_routed_experts", "num_experts_per_tok")
    )


def _against_floor(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], pair: Sequence[Divergence], dtype: str | None, seeds: Sequence[int],
    rung: str, sides: tuple[_Side, _Side], evidence: list[Evidence], floors: list[FloorRows], tests: dict[str, FloorTest],
    key: str | None = None, own_rounding: NDArray[np.float64] | None = None,
) -> None:  # fmt: skip
    """Adds the pair's row of the rung, and its test under `key` or the rung; missing where this model's maps cannot be reordered."""
    shown = dtype or loaded.dtype
    control = f"'{sides[1].name}' against '{sides[0].name}' in {shown}, beside {len(seeds)} reorderings of every linear map"
    try:
        floor = rounding_floor(loaded, prompts, list(seeds), "prefill", dtype=dtype)
    except CaptureError as error:
        evidence.append(Evidence(rung, control, {}, MISSING, f"The rounding floor in {shown} cannot be measured: {error}"))
        return
    squares = np.stack([mean_squares(of_seed) for of_seed in floor.divergences])
    if own_rounding is not None:
        control += f", and the same forward in {shown} and in float32"
    mean = mean_squares(pair)
    test = floor_test(
        mean,
        squares,
        nonfinite=sum(one.nonfinite_mismatch for one in pair),
        is_16_bits=shown not in ("float32", FLOAT64),
        own_rounding=own_rounding,
    )
    tests[key or rung] = test
    at_positions = squares.mean(axis=0) if own_rounding is None else np.maximum(squares.mean(axis=0), own_rounding)
    floors.append(FloorRows(shown, np.sqrt(mean), np.sqrt(at_positions)))
    lengths = [len(ids) for ids in prompts]
    evidence.append(floor_evidence(test, rung, shown, control, mean, at_positions, lengths, floor.maps))


def _microscope(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], own: Sequence[Divergence], seeds: Sequence[int],
    sides: tuple[_Side, _Side], evidence: list[Evidence], floors: list[FloorRows], tests: dict[str, FloorTest],
) -> None:  # fmt: skip
    """The deciding rung: the pair in float32."""
    if loaded.dtype == "float32":
        _against_floor(loaded, prompts, own, None, seeds, FLOAT32, sides, evidence, floors, tests)
        return
    try:
        with in_float32(loaded) as widened:
            pair, _ = _measure(widened, prompts, sides)
    except CaptureError as error:
        control = f"'{sides[1].name}' against '{sides[0].name}' in float32"
        evidence.append(Evidence(FLOAT32, control, {}, MISSING, f"The pair cannot be run in float32: {error}"))
        return
    _against_floor(loaded, prompts, pair, "float32", seeds, FLOAT32, sides, evidence, floors, tests)


def _asks_for_float64(loaded: LoadedModel, test: FloorTest) -> bool:
    """May the float32 rung of this model mean nothing, one way or the other?

    A router that chooses experts is no continuous function: where two experts' scores nearly tie, rounding picks another expert and
    the position jumps, in the pair (which then fails) or in the reorderings (whose floor then hides a fault). In float64 such a tie
    has to be 2^29 times nearer, and a fault is as large as it was. What is larger at every position alike is no matter of ties.
    """
    return _has_experts(loaded.model) and not test.nonfinite and not is_larger_everywhere(test)


def _second_microscope(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sides: tuple[_Side, _Side], evidence: list[Evidence],
    floors: list[FloorRows], tests: dict[str, FloorTest],
) -> None:  # fmt: skip
    """The pair and its floor in float64, which take the float32 rung's place; what float32 showed is noted."""
    place = next(number for number, row in enumerate(evidence) if row.rung == FLOAT32)
    single = evidence[place]
    try:
        compiled = next((side.name for side in sides if side.is_one_piece), None)
        if compiled is not None:
            raise CaptureError(f"'{compiled}' is compiled.")
        with in_float64(loaded) as widened:
            pair = _divergences(widened, prompts, sides)
            _against_floor(widened, prompts, pair, None, seeds, FLOAT32, sides, evidence, floors, tests, key=FLOAT64)
    except CaptureError as error:
        outcome, doubt = (
            (PASSED, "hide a fault behind the floor")
            if single.outcome == PASSED
            else (MISSING, "do that to the pair without a fault")
        )
        says = f"{single.says} A near tie of the router between two experts can {doubt}; float64, which would tell, cannot be had: {error}"
        evidence[place] = replace(single, outcome=outcome, says=says)
        return
    says = f"{single.says} Near ties of the router between two experts make that uncertain in a mixture of experts, so float64 decides."
    evidence[place] = replace(single, outcome=NOTED, says=says)


def _divergences(loaded: LoadedModel, prompts: Sequence[Sequence[int]], sides: tuple[_Side, _Side]) -> list[Divergence]:
    found = []
    for ids in prompts:
        plain = whole_side(_pieces(sides[0], loaded, ids))
        found.append(divergence(plain, _as_wide(plain, sides, _pieces(sides[1], loaded, ids))))
    return found


def _symmetry(loaded: LoadedModel, prompts: Sequence[Sequence[int]], sides: tuple[_Side, _Side]) -> Evidence:
    """Which side is further from the truth? Of two that only round, neither."""
    control = "both sides in float32 against a plain forward of the same weights in float64"
    try:
        with foreign_errors_stop("float64", "choose a smaller model"):
            reference, variant = _errors(loaded, prompts, sides)
    except CaptureError as error:
        return Evidence(SYMMETRY, control, {}, MISSING, f"A forward in float64 is not to be had: {error}")
    figures = {"reference_rms_logits": reference, "variant_rms_logits": variant}
    low, high = sorted((reference, variant))
    if high <= _LOPSIDED * max(low, np.finfo(np.float64).tiny):
        return Evidence(
            SYMMETRY, control, figures, PASSED, "Both sides are about equally far from float64: neither is the wrong one."
        )
    further = sides[int(variant > reference)].name
    times = f"{high / low:,.3g} times further from float64 than the other side" if low else "the only one that is not at float64"
    return Evidence(SYMMETRY, control, figures, NOTED, f"'{further}' is {times}.")


def _errors(loaded: LoadedModel, prompts: Sequence[Sequence[int]], sides: tuple[_Side, _Side]) -> tuple[float, float]:
    """rms of each side, computed in float32, to a plain forward of the same weights in float64; over as many prompts as fit."""
    chosen = as_many_as(prompts, EXACT_BYTES // (8 * loaded.vocab_size))
    with in_float64(loaded) as widened:
        model: Any = widened.model
        exact = [model(torch.tensor([list(ids)], device=loaded.device)).logits[0] for ids in chosen]
    with in_float32(loaded) as widened:
        found = [
            [divergence(plain, _pieces(side, widened, ids)) for plain, ids in zip(exact, chosen, strict=True)] for side in sides
        ]
    reference, variant = (float(np.sqrt(mean_squares(of_side).mean())) for of_side in found)
    return reference, variant
