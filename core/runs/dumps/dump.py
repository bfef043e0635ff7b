"""Dumps: files of logits from anywhere, understood, checked and read as bits in step over all
sides.

The conventions are those of docs/guides/upload.md. Opening reads headers, the small reserved
arrays, and as much of the logits as it takes to know the compute dtype; `Dump.chunks` then streams.
Memory stays below about 300 MB for any size of the dump.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from ...errors import DumpError, UsageError
from ...numerics.arrays import Bits
from ...numerics.formats import FloatFormat, format_named
from ...progress import Progress, no_progress
from ...text import clean, plural, printable
from ..file.records import MAX_SIDES, VALUE, Generation, Prompt, Provenance, RunHeader, SideHeader
from .arrays import Arrays, StoredArray
from .containers import Container, open_container
from .dump_notes import notes_on
from .reserved_keys import (
    EMITTED,
    EXACT,
    Reserved,
    exact_of,
    holds_values,
    is_reserved,
    prompts_of,
    read_reserved,
    sides_of,
)
from .shapes import (
    LOGITS,
    PADDED,
    VALUES,
    check_layers,
    check_shards,
    common_shape,
    in_rows,
    shape_of,
)
from .source_dtype import DumpSide, convert, settle, side_of

CHUNK_BYTES = 32 << 20  # a side
# all sides; the caller may still hold one chunk while the next is read
CHUNK_BYTES_TOGETHER = 64 << 20
# converted at a time, so that temporaries stay small
CONVERT_ELEMENTS = 1 << 20
LOOKED_AT_BYTES = 8 << 20  # of all sides together, at most an eighth of it a side
# of names of sides: of the reference, and of variants; others come between
_RANKS = {
    **dict.fromkeys(("reference", "ref", "baseline", "base", "fresh", "expected", "golden"), 1),
    **dict.fromkeys(("variant", "cached", "cache", "reused", "candidate", "test", "actual"), 3),
}
_ORIGINS = {"array dtype": "the arrays' own", "declared": "declared", "override": "chosen"}


@dataclass(eq=False)
class Dump:
    """An opened dump; a context manager. Made by `open_dump`.

    sides, vocab, prompts, compute_dtype: as in a RunHeader; rows: positions of all prompts
    together; dtype_reason: 'declared', 'detected', 'array dtype' or 'override', a colon, and words
    to show; meta: the dump's JSON text or ''; warnings: sentences to show; generations: tokens that
    each side emitted, by prompt, if the dump has them; exact: file of the exact result, if there is
    one; has_experts: of a mixture of experts.
    """

    _sides: list[DumpSide]
    vocab: int
    prompts: tuple[Prompt, ...]
    _format: FloatFormat
    dtype_reason: str
    meta: str
    generations: tuple[Generation, ...]
    warnings: tuple[str, ...] = ()
    has_tokens: bool = True
    exact: Path | None = None
    has_experts: bool = False

    def __post_init__(self) -> None:
        self.sides = tuple(SideHeader(side.name, "", side.fmt.name) for side in self._sides)
        self.rows = sum(prompt.positions for prompt in self.prompts)
        self.compute_dtype = self._format.name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the files; what was unpacked goes with them."""
        self._sides = []

    @property
    def nbytes(self) -> int:
        """Bytes of all sides' logits in the compute dtype."""
        return len(self._sides) * self.rows * self.vocab * self._format.itemsize

    def header(self, name: str, model: str = "") -> RunHeader:
        """Return the header of the run that this dump would become; its tokens' texts are the
        vocabulary.
        """
        origin = _ORIGINS.get(self.dtype_reason.partition(":")[0], self.dtype_reason)
        of_dtype = f"Compute dtype: {self.compute_dtype}, {origin}."
        of_exact = f"Exact result: {clean(self.exact.name)}." if self.exact else ""
        meta = f"meta {self.meta}" if self.meta else ""
        note = " ".join(part for part in (of_dtype, of_exact, *self.warnings, meta) if part)
        return RunHeader(
            name,
            self.compute_dtype,
            self.vocab,
            self.prompts,
            self.sides,
            Provenance(kind="upload", model=model, note=note),
            vocabulary=_texts_of(self.prompts),
            holds="logit" if self.has_tokens else VALUE,
        )

    def chunks(self, max_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, list[Bits]]]:
        """(first row, one [n, vocab] array of compute-dtype bits a side), in row order, again from
        the start at each call.

        A chunk takes at most `max_bytes` a side and 64 MiB together, but at least one row. An
        archive's checksums are known good only once the last chunk has been read: what was read
        before a DumpError is void.
        """
        bytes_a_row = self.vocab * self._format.itemsize
        a_side = min(max_bytes, CHUNK_BYTES_TOGETHER // len(self._sides))
        step = max(1, a_side // bytes_a_row)
        streams = [self._stream(side, step) for side in self._sides]
        for first, bits in zip(range(0, self.rows, step), zip(*streams, strict=True), strict=True):
            yield first, list(bits)

    def _stream(self, side: DumpSide, step: int) -> Iterator[Bits]:
        """Return the rows of one side as bits of the compute dtype, `step` at a time. [n, vocab]
        each
        """
        at_once = max(1, CONVERT_ELEMENTS // self.vocab)
        for raw in side.array.checked_rows(step):
            out = np.empty(raw.shape, self._format.carrier)
            for first in range(0, len(raw), at_once):
                bits = side.bits(raw[first : first + at_once])
                converted = convert(bits, side.fmt, self._format)
                # it was checked when opened, so the file has changed
                if converted is None:
                    raise side.lossy(bits, self._format)
                out[first : first + len(converted)] = converted
            yield out


def open_dump(
    paths: Sequence[Path],
    *,
    compute_dtype: str | None = None,
    reference: str | None = None,
    holds: str | None = None,
    exact: Path | None = None,
    has_experts: bool = False,
    fewest_sides: int = 2,
    as_exact: bool = False,
    on_progress: Progress = no_progress,
) -> Dump:
    """Open one npz, safetensors or torch.save file of two or more sides, or two files of one array
    each. DumpError if it cannot be read as logits.

    `reference` names the side to compare with; else it is the one called 'reference', else the
    first; of safetensors, which sort by name, 'fresh' and 'baseline' come before others, and
    'cached' and 'variant' last. `compute_dtype` overrides what the dump declares or what would be
    detected. `holds`: 'logits' takes arrays for [positions, vocab] that look like log-probabilities
    of chosen tokens; 'padded' cuts sides to the first tokens, those that all of them have; 'values'
    takes arrays for [rows, n] or [rows] that are no logits. A dump may declare the last itself.
    `exact`: file of the exact result, if it is not under that key in the dump. `has_experts`: the
    model is a mixture of experts. `fewest_sides`: 1 if a single side is of use, which makes no run.
    `as_exact`: the sides are the exact result of those of another dump, first, and trusted ones;
    float64 is rounded to float32. `on_progress` gets what is read to detect the compute dtype,
    which may be all of it.
    """
    if len(paths) not in (1, 2):
        raise UsageError(
            f"a dump is one file or a pair of files, not {len(paths)}; put more than two sides into"
            " one npz, and join the ranks of a side: np.concatenate(ranks, -1).",
        )
    override = format_named(compute_dtype) if compute_dtype else None
    check_holds(holds)
    containers = [open_container(Path(path)) for path in paths]
    dump_name = " and ".join(container.name for container in containers)
    has_tokens = holds != VALUES and (holds is not None or not any(map(holds_values, containers)))
    arrays, notes = _named_arrays(containers, fewest_sides, has_tokens, as_exact)
    if holds == PADDED:
        arrays = _cut_to_common(arrays, notes)
    if not has_tokens:
        arrays = {name: in_rows(array) for name, array in arrays.items()}
    shape = common_shape(arrays, has_tokens=has_tokens)
    of_steps = [array for array in arrays.values() if len(array.shape) > 2 and array.shape[-2] == 1]
    has_lengths = any("prompt_lengths" in container.named for container in containers)
    if of_steps and len(shape) == 2 and not has_lengths and has_tokens:
        notes.append(  # [steps, 1, vocab], as np.stack makes them of the scores of generate
            f"{of_steps[0].label} has shape {clean(of_steps[0].shape)}: taken as {shape[0]:,} steps"
            " of one generation. Prompts of one position each need 'prompt_lengths'.",
        )
    reserved = [read_reserved(container, shape) for container in containers]
    declared = [extra.compute_dtype for extra in reserved]
    if override is None and len({*filter(None, declared)}) > 1:
        raise DumpError(
            f"{dump_name}: declare different compute_dtypes; expected one, or compute_dtype given"
            " when opening.",
        )
    dtype = next(filter(None, declared), None)
    sides = []
    for place, (name, array) in enumerate(arrays.items()):
        bits_format = declared[place % len(declared)] or dtype or override
        sides.append(side_of(name, array, bits_format, rounds_double=as_exact))
    if as_exact and EXACT in arrays:
        reference = EXACT
    elif len(containers) == 1:
        reference = reference or reserved[0].reference or None
    if reference is not None and reference not in arrays:
        names = ", ".join(clean(name, 40) for name in list(arrays)[:8])
        raise UsageError(f"{dump_name}: no side '{clean(reference, 60)}'; there are {names}.")
    # of two files the first is it, under any name
    if reference is not None or len(containers) == 1:
        # stable: others stay in file order; safetensors sorts its arrays, so theirs says nothing
        sides.sort(key=lambda side: _rank(side.name, reference, containers[0].is_sorted))
    target, reason = settle(sides, override or dtype, on_progress)
    if override:
        reason = "override: chosen when opening"
    elif dtype:
        reason = "declared: the dump's own compute_dtype key"
    prompts = prompts_of(reserved[0], reserved[-1])
    generations: tuple[Generation, ...] = ()
    if has_tokens and not as_exact:
        generations = _generations(dump_name, sides, list(arrays), reserved, prompts)
    if exact is None and any(EXACT in each.named for each in containers) and EXACT not in arrays:
        exact = containers[0].path
    dump = Dump(
        sides,
        shape[-1],
        prompts,
        target,
        reason,
        reserved[0].meta or reserved[-1].meta,
        generations,
        has_tokens=has_tokens,
        exact=exact,
        has_experts=has_experts,
    )
    # notes rest on the first rows: of a large dump the rest is not read yet
    _, first_rows = next(dump.chunks(max_bytes=LOOKED_AT_BYTES // max(8, len(sides))))
    of_rows = notes_on(
        dump_name,
        sides,
        prompts,
        first_rows,
        target,
        has_tokens=has_tokens,
        are_logits=holds == LOGITS,
    )
    dump.warnings = (*notes, *of_rows)
    return dump


def check_holds(holds: str | None) -> None:
    """UsageError for a word that says nothing."""
    if holds not in (None, LOGITS, PADDED, VALUES):
        raise UsageError(
            f"holds '{clean(holds, 40)}' is not known; expected {LOGITS}, {PADDED} or {VALUES}, or"
            " nothing.",
        )


def _rank(name: str, reference: str | None, is_sorted: bool) -> int:
    """Place of a side by its name: the reference first."""
    if reference is not None:
        return int(name != reference)
    if not is_sorted or name == "reference":
        return int(name != "reference")
    return _RANKS.get(name.lower(), 2)


def _texts_of(prompts: Sequence[Prompt]) -> dict[int, str]:
    """Return the known texts of token ids; the first of an id counts."""
    texts: dict[int, str] = {}
    for prompt in prompts:
        for token_id, text in zip(prompt.token_ids, prompt.token_texts, strict=False):
            texts.setdefault(token_id, text)
    return texts


def _generations(
    dump_name: str,
    sides: list[DumpSide],
    names: list[str],
    reserved: list[Reserved],
    prompts: tuple[Prompt, ...],
) -> tuple[Generation, ...]:
    """Return the tokens that each side emitted, by prompt. names: of the sides, in file order."""
    emitted = {}
    for place, extra in enumerate(reserved):
        only = names[place :: len(reserved)]
        for key, tokens in extra.emitted.items():
            name = key or (only[0] if len(only) == 1 else "")
            if name not in only:
                known = ", ".join(clean(side, 40) for side in only[:8])
                raise DumpError(
                    f"{extra.file}: '{EMITTED}{':' if key else ''}{clean(key, 60)}' belongs to no"
                    f" side; expected '{EMITTED}:SIDE', of {known}.",
                )
            emitted[name] = tokens
    if not emitted:
        return ()
    if lacking := [name for name in names if name not in emitted]:
        raise DumpError(
            f"{dump_name}: has '{EMITTED}' tokens of some sides but not of"
            f" '{clean(lacking[0], 60)}'; expected all or none.",
        )
    texts = _texts_of(prompts)
    tokens_of_sides = np.array([emitted[side.name] for side in sides])
    generations = []
    start = 0
    for index, prompt in enumerate(prompts):
        rows = tokens_of_sides[:, start : start + prompt.positions]
        start += prompt.positions
        is_given = rows < 0
        first = int(is_given[0].sum())
        if (is_given != (np.arange(prompt.positions) < first)).any():
            raise DumpError(
                f"{dump_name}: '{EMITTED}' tokens of prompt {index} begin at different positions or"
                " leave some out. Expected on every side: -1 as long as the next token was given,"
                " then tokens to the end.",
            )
        if first < prompt.positions:
            continuations = tuple(map(tuple, rows[:, first:].tolist()))
            words = []
            for row in continuations:
                is_known = texts.keys() >= set(row)
                words.append("".join(texts[token] for token in row) if is_known else "")
            most = prompt.positions - first
            generations.append(Generation(index, first + 1, most, continuations, tuple(words)))
    return tuple(generations)


def _named_arrays(
    containers: list[Container],
    fewest_sides: int,
    has_tokens: bool,
    as_exact: bool,
) -> tuple[Arrays, list[str]]:
    """Return the sides, and notes on arrays that are none."""
    arrays: list[StoredArray] = []
    notes: list[str] = []
    fewest, most = (fewest_sides, MAX_SIDES) if len(containers) == 1 else (1, 1)
    for container in containers:
        sides, others = sides_of(container, fewest)
        if as_exact:
            sides, others = exact_of(container), []
        if has_tokens:
            check_layers(container.name, list(sides), most)
        notes += [
            f"{array.label} holds whole numbers ({array.dtype.name}), no logits: it is left out."
            for array in others
        ]
        if not fewest <= len(sides) <= most:
            keys = ", ".join(f"'{clean(key, 40)}'" for key in list(sides)[:3]) or "none"
            raise DumpError(
                f"{container.name}: holds {plural(len(sides), 'side')} ({keys}); expected"
                f" {fewest} to {most}, each under its own key, or one in each of two files.",
            )
        if len(containers) == 1:
            return sides, notes
        arrays += sides.values()
    names = [printable(container.path.stem, "?")[:200] for container in containers]
    if names[0] == names[1] or any(is_reserved(name) or not name.strip() for name in names):
        names = ["reference", "variant"]
    return dict(zip(names, arrays, strict=True)), notes


def _cut_to_common(arrays: Arrays, notes: list[str]) -> Arrays:
    """Return the sides, each with the tokens that all of them have; a note on every one that had
    more.
    """
    widths = {name: shape_of(array)[-1] for name, array in arrays.items()}
    vocab = min(widths.values())
    check_shards(next(iter(arrays.values())).file, widths)
    common = dict(arrays)
    for name, array in arrays.items():
        if more := widths[name] - vocab:
            common[name] = replace(array, shape=(*array.shape[:-1], vocab), columns=vocab)
            notes.append(
                f"{array.label} is compared in its first {vocab:,} tokens; {more:,} of padding are"
                " left out.",
            )
    return common
