"""Rows of a run file that stand for the whole run: its provenance and tokens, its sides, its pairs, the coarser levels
of the heatmap.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from ..numerics import pyramid
from ..numerics.totals import COUNTS, PairTotal
from .file.blob_tiles import binary_rows
from .file.database import SCHEMA_VERSION, Database
from .file.figure_tables import tile_table
from .file.records import RunHeader


def insert_provenance(database: Database, header: RunHeader, run_id: str, created: datetime) -> None:
    """What is known before the first logit: `run`, `prompt`, `token` and `vocabulary`."""
    about = header.provenance
    database.execute(
        "INSERT INTO run VALUES (" + ", ".join("?" * 16) + ")",
        [
            run_id,
            header.name,
            created.astimezone(UTC).replace(tzinfo=None),
            about.kind,
            about.model,
            about.revision,
            header.compute_dtype,
            header.vocab,
            header.rows,
            about.device,
            about.device_name,
            about.seed,
            about.command,
            about.note,
            json.dumps(about.versions, sort_keys=True),
            SCHEMA_VERSION,
        ],
    )
    for index, prompt in enumerate(header.prompts):
        database.execute("INSERT INTO prompt VALUES (?, ?)", [index, prompt.positions])
        if prompt.token_ids or prompt.token_texts:
            nothing = (None,) * prompt.positions
            tokens = {
                "prompt": np.full(prompt.positions, index, np.int32),
                "position": np.arange(prompt.positions, dtype=np.int32),
                "token_id": pa.array(prompt.token_ids or nothing, pa.int32()),
                "text": pa.array(prompt.token_texts or nothing, pa.string()),
            }
            database.insert("token", pa.table(tokens))
    if header.vocabulary:
        ids, texts = list(header.vocabulary), list(header.vocabulary.values())
        database.insert(
            "vocabulary", pa.table({"token_id": pa.array(ids, pa.int32()), "text": pa.array(texts, pa.string())})
        )


def insert_sides(
    database: Database, header: RunHeader, digests: Sequence[str], values: Sequence[tuple[str, str]]
) -> None:
    """`side` and `digest`. digests: of the stored bits, the same for sides of one class; values: of each side's values,
    and of which dtype.
    """
    for index, side in enumerate(header.sides):
        bit_class = sorted(set(digests), key=digests.index).index(digests[index])
        database.execute(
            "INSERT INTO side VALUES (?, ?, ?, ?, ?, ?, ?)",
            [index, side.name, side.path, header.compute_dtype, side.source_dtype, digests[index], bit_class],
        )
        digest, dtype = values[index]
        database.execute("INSERT INTO digest VALUES (?, ?, ?)", [index, dtype, digest])


def insert_pair(
    database: Database, pair: int, total: PairTotal, verdict: tuple[str | None, str | None, float | None]
) -> None:
    """`pair` and `ulp_histogram` of one pair; `verdict`: its name, the sentence for it, the noise ratio."""
    summary = {
        name: value for name, value in asdict(total.summary()).items() if name not in COUNTS
    }  # those follow from `position`
    values = {"pair": pair, "reference": 0, "variant": pair + 1, **summary}
    values["is_histogram_exact"] = total.is_histogram_exact
    values["verdict"], values["because"], values["noise_ratio"] = verdict
    database.execute(
        f"INSERT INTO pair ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})", list(values.values())
    )
    histogram = total.histogram
    columns = {
        "pair": np.full(len(histogram), pair, np.int32),
        "distance": np.fromiter(histogram.keys(), np.int64, len(histogram)),
        "elements": np.fromiter(histogram.values(), np.int64, len(histogram)),
    }
    database.insert("ulp_histogram", pa.table(columns))


def insert_levels(database: Database, header: RunHeader, pair: int) -> None:
    """The coarser levels of the heatmap, 4 x 4 cells to one, from level 0 as it lies in the file; 4096 rows at a
    time.
    """
    for level in range(1, pyramid.levels_for(header.rows, header.vocab)):
        span = pyramid.cell_shape(level)[0]
        at_once = max(4096, span)
        for start in range(0, header.rows, at_once):
            found = database.table(
                """SELECT cells FROM ulp_tile
                   WHERE pair = ? AND level = ? AND first_row >= ? AND first_row < ? ORDER BY first_row""",
                [pair, level - 1, start, start + at_once],
            )
            finer = np.stack([np.frombuffer(cells.as_py(), header.format.carrier) for cells in found.column("cells")])
            coarser = pyramid.pool(finer, pyramid.FACTOR, pyramid.FACTOR)
            rows = np.arange(start, start + len(coarser) * span, span, dtype=np.int32)
            cells, _ = binary_rows(coarser, coarser.shape[1] * coarser.itemsize)
            database.insert("ulp_tile", tile_table(pair, level, rows, cells))
