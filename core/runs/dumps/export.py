"""Runs back to npz, bit for bit, as numpy.load and `open_dump` read it.

One prompt is `[positions, vocab]` under each side's name, several of equal length `[prompts,
positions, vocab]`. Prompts of unequal lengths stand one after another as `[all positions, vocab]`,
with the reserved key `prompt_lengths` (int64, one a prompt). bfloat16 is uint16 bits of
`compute_dtype`, or numpy's 2-byte void if the run's is different.
"""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy_format

from ...disk import writing
from ...errors import DumpError, StoreError, UsageError, os_errors
from ...numerics.arrays import Array, Bits
from ...numerics.formats import BFLOAT16, FLOAT16, FLOAT32, format_named
from ..file.records import RunHeader, SideHeader
from ..reader import RunReader
from .containers import check_key
from .reserved_keys import EMITTED, TEXT_BYTES, is_reserved
from .source_dtype import convert


def export_npz(run: RunReader, path: Path, *, overwrite: bool = False) -> None:
    """Write every side in the bits and dtype it came in, with `compute_dtype`, and `token_ids` and
    `tokens` if all are known.

    Emitted tokens of a dump are written as `emitted:SIDE`. A capture's continuations are no such
    tokens: each side continued its own, while its logits here are of the reference's.

    `reference_side` names the run's reference if opening the file would choose another side. The
    file appears complete or not at all; StoreError if it cannot be written or would replace
    another.
    """
    header = run.header
    if path.suffix != ".npz":
        raise UsageError(f"{path.name}: export writes an npz; expected a name that ends in .npz.")
    for side in header.sides:
        try:
            check_key("export", side.name)
        except DumpError as error:
            raise UsageError(f"side '{side.name}' cannot be a key of an npz: {error}") from None
        if is_reserved(side.name):
            raise UsageError(
                f"side '{side.name}' cannot be exported: its name is a reserved key of a dump;"
                " expected another name.",
            )
    if not run.has_all_logits:
        raise StoreError(header.without_logits)
    with (
        exporting(path, overwrite=overwrite) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        lengths = header.lengths
        # [n, 1, vocab] are steps
        has_lengths = len(set(lengths)) > 1 or (len(lengths) > 1 and lengths[0] == 1)
        leading: tuple[int, ...] = (len(lengths), lengths[0])
        if len(lengths) == 1 or has_lengths:
            leading = (header.rows,)
        for place, side in enumerate(header.sides):
            source = format_named(side.source_dtype)
            bfloat16 = "<u2" if source is header.format else "|V2"
            descr = {FLOAT32: "<f4", FLOAT16: "<f2", BFLOAT16: bfloat16}[source]
            about = {"descr": descr, "fortran_order": False, "shape": (*leading, header.vocab)}
            with archive.open(_member(side.name), "w", force_zip64=True) as member:
                # np.save would need all rows in memory at once
                npy_format.write_array_header_1_0(member, about)
                for _, bits in run.chunks(place):
                    member.write(_restored(bits, header, side).tobytes())
        if has_lengths:
            _write_array(archive, "prompt_lengths", np.array(lengths, np.int64))
        if all(each.token_ids for each in header.prompts):
            ids = np.concatenate([each.token_ids for each in header.prompts], dtype=np.int64)
            _write_array(archive, "token_ids", ids.reshape(leading))
        if all(each.token_texts for each in header.prompts):
            texts = [text for each in header.prompts for text in each.token_texts]
            # A unicode array gives every text the room of the longest; one absurdly long text is
            # not worth gigabytes of padding.
            if 4 * max(map(len, texts)) * len(texts) <= TEXT_BYTES and any(texts):
                _write_array(archive, "tokens", np.array(texts, np.str_).reshape(leading))
        if header.provenance.kind == "upload" and run.generations:
            ends = np.cumsum(lengths)
            for place, side in enumerate(header.sides):
                # -1 for every row whose next token was given
                tokens = np.full(header.rows, -1, np.int64)
                for prompt, generation in run.generations.items():
                    generated = generation.tokens[place]
                    tokens[ends[prompt] - len(generated) : ends[prompt]] = generated
                _write_array(archive, f"{EMITTED}:{side.name}", tokens.reshape(leading))
        _write_array(archive, "compute_dtype", np.array(header.compute_dtype))
        if not header.has_tokens:
            _write_array(archive, "holds", np.array("values"))
        if any(side.name == "reference" for side in header.sides[1:]):
            _write_array(archive, "reference_side", np.array(header.sides[0].name))


@contextmanager
def exporting(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Yield a file that appears at `path` when it is complete; StoreError if it cannot, or would
    replace another.
    """
    if path.exists() and not overwrite:
        raise StoreError(
            f"{path}: already exists; expected a new file name, or --overwrite to replace it.",
        )
    need = "; expected a new file in a folder with room and permission"
    with (
        os_errors(StoreError, f"{path}: cannot be written", need),
        writing(path, is_new=not overwrite) as file,
    ):
        yield file


def _write_array(archive: zipfile.ZipFile, key: str, array: Array) -> None:
    with archive.open(_member(key), "w") as member:
        npy_format.write_array(member, array, allow_pickle=False)


def _member(key: str) -> zipfile.ZipInfo:
    """Return a member without a date, so that every export of a run has the same bytes and
    downloads can resume.
    """
    return zipfile.ZipInfo(f"{key}.npy", (1980, 1, 1, 0, 0, 0))


def _restored(bits: Bits, header: RunHeader, side: SideHeader) -> Bits:
    """Return bits of the compute dtype in the dtype that their side came in."""
    restored = convert(bits, header.format, format_named(side.source_dtype))
    if restored is None:
        raise StoreError(
            f"side '{side.name}' holds values that are no {side.source_dtype}, the dtype it came"
            " in; expected a run from one dump.",
        )
    return restored
