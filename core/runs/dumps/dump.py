"""Dumps: files of logits from anywhere, understood, checked and read as bits in step over all sides.

The conventions are DESIGN section 5, "Dumps". Opening reads headers, the small reserved arrays, and as much of the
logits as it takes to know the compute dtype; `Dump.chunks` then streams. Memory stays below some 300 MB whatever the
size of the dump.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ...errors import DumpError, UsageError
from ...numerics.formats import FloatFormat, format_named
from ...text import plural, printable, shown
from ..file.bounds import MAX_ROWS, MAX_SIDES, MAX_VOCAB
from ..file.records import Generation, Provenance, RunHeader, SideHeader
from .arrays import Elements, StoredArray, in_c_order
from .compute_dtype import check_all, detect, lossy
from .containers import Container, open_container
from .dump_notes import notes_on
from .reserved_keys import EMITTED, Layout, Reserved, is_reserved, read_reserved, sides_of
from .source_dtype import DumpSide, source_of

GIB = 1 << 30
MIB = 1 << 20
CHUNK_BYTES = 32 * MIB  # a side
CHUNK_BYTES_TOGETHER = 64 * MIB  # all sides; the caller may still hold one chunk while the next is read
ROW_BYTES_TOGETHER = 256 * MIB  # one position of all sides, the least a chunk can be
CONVERT_ELEMENTS = MIB  # converted at a time, which bounds the temporaries
LOOKED_AT_BYTES = 8 * MIB  # of all sides together, at most an eighth of it a side
LOGITS = "logits"  # what a user may say that arrays hold which look like something else
PADDED = "padded"  # or that the last tokens of wider sides are padding
_REFERENCES = ("reference", "ref", "baseline", "base", "fresh", "expected", "golden")
_VARIANTS = ("variant", "cached", "cache", "reused", "candidate", "test", "actual")


class Dump:
    """An opened dump; a context manager. Made by `open_dump`.

    sides, vocab, prompts, compute_dtype: as in a RunHeader; rows: positions of all prompts together; dtype_reason:
    'declared', 'detected', 'array dtype' or 'override', a colon, and words to show; meta: the dump's JSON text or '';
    warnings: sentences to show; generations: what each side emitted, by prompt, where the dump says so.
    """

    def __init__(
        self,
        stack: ExitStack,
        sides: list[DumpSide],
        layout: Layout,
        fmt: FloatFormat,
        dtype_reason: str,
        meta: str,
        warnings: list[str],
        generations: tuple[Generation, ...] = (),
    ) -> None:
        self._stack, self._sides, self._format = stack, sides, fmt
        self._arrays = [side.source.array for side in sides]
        self._is_closed = False
        self.sides = tuple(side.header for side in sides)
        self.vocab, self.prompts, self.rows = layout.vocab, layout.prompts, layout.rows
        self.compute_dtype, self.dtype_reason = fmt.name, dtype_reason
        self.meta = meta
        self.warnings = tuple(warnings)
        self.generations = generations

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files and removes what was spooled."""
        self._is_closed = True
        self._stack.close()

    def header(self, name: str, provenance: Provenance) -> RunHeader:
        """The header of the run that this dump would become; texts of its tokens become the vocabulary, as far as they
        go.
        """
        vocabulary: dict[int, str] = {}
        for prompt in self.prompts:
            for token_id, text in zip(prompt.token_ids, prompt.token_texts, strict=False):
                vocabulary.setdefault(token_id, text)
        return RunHeader(
            name=name,
            compute_dtype=self.compute_dtype,
            vocab=self.vocab,
            prompts=self.prompts,
            sides=self.sides,
            provenance=provenance,
            vocabulary=vocabulary,
        )

    def chunks(
        self, max_bytes: int = CHUNK_BYTES
    ) -> Generator[tuple[int, list[NDArray[np.unsignedinteger]]], None, None]:
        """(first row, one [n, vocab] array of compute-dtype bits a side), in row order, again from the start at each
        call.

        A chunk takes at most `max_bytes` a side and 64 MiB together, but at least one row. An archive's checksums are
        known good only once the last chunk has been read: what was read before a DumpError is void.
        """
        if self._is_closed:
            raise UsageError("this dump is closed; open it again to read it.")
        bytes_a_row = self.vocab * self._format.itemsize
        at_once = max(1, min(max_bytes // bytes_a_row, CHUNK_BYTES_TOGETHER // (bytes_a_row * len(self._sides))))
        with ExitStack() as streams:
            elements = []
            for place, array in enumerate(self._arrays):
                self._arrays[place] = in_c_order(array, self._stack)  # turned around once, at the first call
                elements.append(Elements(self._arrays[place]))
                streams.callback(elements[-1].close)
            for first in range(0, self.rows, at_once):
                count = min(at_once, self.rows - first)
                yield (
                    first,
                    [self._take(side, stream, count) for side, stream in zip(self._sides, elements, strict=True)],
                )

    def first_rows(self) -> list[NDArray[np.unsignedinteger]]:
        """The first rows of every side, few enough to be looked at when the dump is opened. [n, vocab] each"""
        chunks = self.chunks(max_bytes=LOOKED_AT_BYTES // max(8, len(self.sides)))
        first = next(chunks)[1]
        chunks.close()
        return first

    def _take(self, side: DumpSide, stream: Elements, rows: int) -> NDArray[np.unsignedinteger]:
        """The next rows of one side as bits of the compute dtype. [rows, vocab]"""
        source, dtype = side.source, side.source.array.dtype
        size = rows * self.vocab
        out = np.empty(size, self._format.carrier)
        if source.fmt is self._format and dtype.itemsize == out.itemsize:
            # Read where they stay; only a foreign byte order still needs turning.
            stream.fill(out)
            if dtype.byteorder == ">":
                out.byteswap(inplace=True)
            return out.reshape(rows, self.vocab)
        for first in range(0, size, CONVERT_ELEMENTS):
            bits = source.bits(stream.take(min(CONVERT_ELEMENTS, size - first)))
            moved = source.into(bits, self._format)
            if moved is None:  # it was looked at when opened, so the file has changed
                raise lossy(source, bits, self._format)
            out[first : first + len(moved)] = moved
        return out.reshape(rows, self.vocab)


def open_dump(
    paths: Sequence[Path],
    *,
    compute_dtype: str | None = None,
    reference: str | None = None,
    holds: str | None = None,
    max_bytes: int = 64 * GIB,
    fewest_sides: int = 2,
    on_progress: Callable[[int, int], None] | None = None,
) -> Dump:
    """Opens one npz, safetensors or torch.save file of two or more sides, or two files of one array each. DumpError
    where it cannot be taken.

    `reference` names the side to compare with; else it is the one called 'reference', else the first; of safetensors,
    which sort by name, 'fresh' and 'baseline' come before others, and 'cached' and 'variant' last. `compute_dtype`
    overrides what the dump declares or what would be detected. `max_bytes` limits each file, packed and unpacked.
    `holds`: 'logits' takes arrays for [positions, vocab] that look like log-probabilities of chosen tokens; 'padded'
    cuts sides to the first tokens, those that all of them have.
    `fewest_sides`: 1 where a single side is of use, which makes no run. `on_progress(bytes read, bytes in all)` is told
    of what is read to know the compute dtype, which may be all of it.
    """
    stack = ExitStack()
    try:
        if len(paths) not in (1, 2):
            raise UsageError(
                f"a dump is one file or a pair of files, not {len(paths)}; put more than two sides into one npz."
            )
        override = format_named(compute_dtype) if compute_dtype else None
        check_holds(holds)
        containers = [open_container(Path(path), stack, max_bytes) for path in paths]
        dump = _understand(containers, override, reference, holds, stack, fewest_sides, on_progress or _untold)
        said = [f"{container.name}: {container.warning}" for container in containers if container.warning]
        named = " and ".join(container.name for container in containers)
        notes = notes_on(named, dump._sides, dump.prompts, dump.first_rows(), dump._format, are_logits=holds == LOGITS)
        dump.warnings = (*said, *dump.warnings, *notes)
        return dump
    except BaseException:
        stack.close()
        raise


def check_holds(holds: str | None) -> None:
    """UsageError for a word that says nothing."""
    if holds not in (None, LOGITS, PADDED):
        raise UsageError(f"holds '{shown(holds, 40)}' is not known; expected {LOGITS} or {PADDED}, or nothing.")


def _untold(done: int, total: int) -> None:
    pass


def _understand(
    containers: list[Container],
    override: FloatFormat | None,
    reference: str | None,
    holds: str | None,
    stack: ExitStack,
    fewest_sides: int,
    tell: Callable[[int, int], None],
) -> Dump:
    named, notes = _named_arrays(containers, fewest_sides)
    if holds == PADDED:
        named = _cut_to_common(named, notes)
    layout_of_sides = _common_shape(named)
    if not any("prompt_lengths" in container.arrays for container in containers):
        notes += _steps(named, layout_of_sides)
    reserved = [read_reserved(container, layout_of_sides) for container in containers]
    declared = [extra.compute_dtype for extra in reserved]
    dump_name = " and ".join(container.name for container in containers)
    if override is None and len({fmt.name for fmt in declared if fmt}) > 1:
        raise DumpError(
            f"{dump_name}: declare different compute_dtypes; expected one, or compute_dtype given when opening."
        )
    said = next((fmt for fmt in declared if fmt), None)
    sides = []
    for name, (place, array) in named.items():
        source = source_of(array, reserved[place].side_dtypes.get(name) or declared[place] or said or override)
        sides.append(DumpSide(SideHeader(name=name, path="", source_dtype=source.fmt.name), source))
    if reference is None and len(containers) == 1:
        reference = reserved[0].reference or None
    if reference is not None and reference not in named:
        raise UsageError(
            f"{dump_name}: no side '{shown(reference, 60)}'; there are"
            f" {', '.join(shown(name, 40) for name in list(named)[:8])}."
        )
    if (
        reference is not None or len(containers) == 1
    ):  # of two files the first is the reference, whatever they are called
        is_sorted = containers[0].kind == "safetensors"  # which say nothing by their order
        sides.sort(key=lambda side: _rank(side.header.name, reference, is_sorted))  # stable: others stay in file order
    target, reason = (
        override or said,
        "override: chosen when opening" if override else "declared: the dump's own compute_dtype key",
    )
    sources = [side.source for side in sides]
    check_all(sources, target, tell)
    if target is None:
        target, reason = detect(sources, tell)
    layout = reserved[0].over(reserved[1] if len(reserved) > 1 else None)
    if target.itemsize * layout.vocab * len(sides) > ROW_BYTES_TOGETHER:
        raise DumpError(
            f"{dump_name}: one position of all {len(sides)} sides takes"
            f" {target.itemsize * layout.vocab * len(sides) // MIB} MiB; expected at most {ROW_BYTES_TOGETHER // MIB}:"
            " put the sides into several dumps."
        )
    generations = _generations(dump_name, [side.header.name for side in sides], named, reserved, layout)
    return Dump(
        stack, sides, layout, target, reason, next((r.meta for r in reserved if r.meta), ""), notes, generations
    )


def _rank(name: str, reference: str | None, is_sorted: bool) -> int:
    """Place of a side by its name: the reference first."""
    if reference is not None:
        return int(name != reference)
    if not is_sorted or name == "reference":
        return int(name != "reference")
    plain = name.lower()
    return 1 if plain in _REFERENCES else 3 if plain in _VARIANTS else 2


def _generations(
    dump_name: str,
    sides: list[str],
    named: dict[str, tuple[int, StoredArray]],
    reserved: list[Reserved],
    layout: Layout,
) -> tuple[Generation, ...]:
    """Tokens that each side emitted, by prompt: those from the first that was not given on."""
    emitted: dict[str, tuple[int, ...]] = {}
    for place, extra in enumerate(reserved):
        only = [name for name, (owner, _) in named.items() if owner == place]
        for key, tokens in extra.emitted.items():
            name = key or (only[0] if len(only) == 1 else "")
            if name not in only:
                raise DumpError(
                    f"{extra.file}: '{EMITTED}{':' if key else ''}{shown(key, 60)}' belongs to no side; expected"
                    f" '{EMITTED}:SIDE', of {', '.join(shown(side, 40) for side in only[:8])}."
                )
            emitted[name] = tokens
    lacking = [name for name in sides if name not in emitted]
    if emitted and lacking:
        raise DumpError(
            f"{dump_name}: has '{EMITTED}' tokens of some sides but not of '{shown(lacking[0], 60)}'; expected all or"
            " none."
        )
    texts = {i: text for p in layout.prompts for i, text in zip(p.token_ids, p.token_texts, strict=False)}
    found, start = [], 0
    for index, prompt in enumerate(layout.prompts if emitted else ()):
        rows = [emitted[name][start : start + prompt.positions] for name in sides]
        start += prompt.positions
        given = {next((place for place, token in enumerate(row) if token >= 0), len(row)) for row in rows}
        first = given.pop()
        if given or any(token < 0 for row in rows for token in row[first:]):
            raise DumpError(
                f"{dump_name}: '{EMITTED}' tokens of prompt {index} begin at different positions or leave some out;"
                " expected -1 for every position whose next token was given, the same on every side, and tokens from"
                " there to the end."
            )
        if first < prompt.positions:
            words = tuple(
                "".join(texts[t] for t in row[first:]) if all(t in texts for t in row[first:]) else "" for row in rows
            )
            found.append(
                Generation(index, first + 1, prompt.positions - first, tuple(row[first:] for row in rows), words)
            )
    return tuple(found)


def _named_arrays(
    containers: list[Container], fewest_sides: int
) -> tuple[dict[str, tuple[int, StoredArray]], list[str]]:
    """(side name -> (which file, array) in file order, notes on arrays that are no sides)."""
    found, notes = [], []
    for container in containers:
        sides, others = sides_of(container, fewest_sides if len(containers) == 1 else 1)
        found.append(sides)
        notes += [
            f"{array.where} holds whole numbers ({array.dtype.name}), no logits: it is left out." for array in others
        ]
    if len(containers) == 1:
        only, arrays = containers[0], found[0]
        if only.kind == "npy" and fewest_sides > 1:
            raise DumpError(
                f"{only.name}: holds one array; expected two sides: give a second file, or both arrays in one npz."
            )
        if not fewest_sides <= len(arrays) <= MAX_SIDES:
            keys = ", ".join(f"'{shown(key, 40)}'" for key in list(arrays)[:3]) or "none"
            raise DumpError(
                f"{only.name}: holds {plural(len(arrays), 'side')} ({keys}); expected {fewest_sides} to {MAX_SIDES}:"
                " save every side under its own key, or give a second file."
            )
        return {key: (0, array) for key, array in arrays.items()}, notes
    for container, arrays in zip(containers, found, strict=True):
        if len(arrays) != 1:
            raise DumpError(
                f"{container.name}: holds {plural(len(arrays), 'side')}; expected one array in each of two files that"
                " make a pair."
            )
    names = [printable(container.path.stem, "?")[:200] for container in containers]
    if names[0] == names[1] or any(is_reserved(name) or not name.strip() for name in names):
        names = ["reference", "variant"]
    return {name: (place, next(iter(found[place].values()))) for place, name in enumerate(names)}, notes


def _cut_to_common(named: dict[str, tuple[int, StoredArray]], notes: list[str]) -> dict[str, tuple[int, StoredArray]]:
    """The sides, each with the tokens that all of them have; a note on every one that had more."""
    vocab = min((array.shape[-1] for _, array in named.values() if array.shape), default=0)
    cut = {}
    for name, (place, array) in named.items():
        more = array.shape[-1] - vocab if array.shape else 0
        cut[name] = place, array.first_columns(vocab) if more else array
        if more:
            notes.append(f"{array.where} is compared in its first {vocab:,} tokens; {more:,} of padding are left out.")
    return cut


def _common_shape(named: dict[str, tuple[int, StoredArray]]) -> tuple[int, ...]:
    """The shape all sides have once axes of size 1 are dropped: 1 to 3 axes, the last the vocabulary."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (_, array) in named.items():
        if not array.shape:
            raise array.refusal("is a single number", "logits of shape [..., vocab]")
        shape = (*(n for n in array.shape[:-1] if n != 1), array.shape[-1])
        if len(shape) > 3:
            raise array.refusal(f"has shape {shown(array.shape)}", "(positions, vocab) or (prompts, positions, vocab)")
        if not 2 <= shape[-1] <= MAX_VOCAB:
            raise array.refusal(
                f"has shape {shown(array.shape)}", f"a last axis of 2 to {MAX_VOCAB} tokens, the vocabulary"
            )
        if array.size // shape[-1] > MAX_ROWS:
            raise array.refusal(f"has shape {shown(array.shape)}", f"at most {MAX_ROWS} positions")
        shapes[name] = shape
    first = next(iter(shapes))
    for name, shape in shapes.items():
        if shape != shapes[first]:
            raise _misaligned(named[name][1], shape, first, named[first][1], shapes[first])
    return shapes[first]


def _steps(named: dict[str, tuple[int, StoredArray]], shape: tuple[int, ...]) -> list[str]:
    """A note on [steps, 1, vocab] sides, as np.stack makes them of the scores of generate; shape: without the 1."""
    of_steps = [array for _, array in named.values() if len(array.shape) > 2 and array.shape[-2] == 1]
    if not of_steps or len(shape) != 2:
        return []
    return [
        f"{of_steps[0].where} has shape {shown(of_steps[0].shape)}: taken as {shape[0]:,} steps of one generation."
        " Prompts of one position each need 'prompt_lengths'."
    ]


def _misaligned(
    array: StoredArray, shape: tuple[int, ...], name: str, other: StoredArray, expected: tuple[int, ...]
) -> DumpError:
    """Error about a side of another shape than the first, `name`, has; with the fix where the shapes show it."""
    hint = ": sides align"
    if len(shape) == 2 and shape == expected[::-1]:
        hint = ": one of them is [vocab, positions]; save it transposed (array.T)"
    elif shape[:-1] == expected[:-1]:
        more, common = abs(shape[-1] - expected[-1]), min(shape[-1], expected[-1])
        hint = (
            f": a vocabulary padded by {more:,} tokens? --holds {PADDED} (on the Upload page, 'Holds') compares the"
            f" first {common:,}"
        )
    return array.refusal(f"has shape {shown(array.shape)}", f"{shown(other.shape)} as '{shown(name)}' has{hint}")
