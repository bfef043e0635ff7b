"""Runs of chosen tokens: DuckDB compares the sides and fills the tables of a run of lists of one
value, so that memory does not grow with the files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UsageError
from ..numerics.metrics import Summary
from ..numerics.top_tokens import summary_of_counts
from ..progress import STORING, Progress
from ..runs.figures import Figures
from ..runs.file.records import FIGURES, MAX_LISTED_ROWS, Prompt, Provenance, RunHeader, SideHeader
from ..runs.new_run import new_run
from ..runs.store.store import Store
from ..runs.tables.pairs import insert_evidence, insert_pair
from ..runs.tables.responses import digest_of, responses_of
from ..runs.tables.rl import MISMATCH, SEQUENCE
from ..runs.tables.run import VOCABULARY, insert_header, insert_sides
from .figures import SampledTokens
from .formats import LISTS, SIDES, make_plain, read_tokens
from .queries import sample_tokens, summaries

if TYPE_CHECKING:
    from ..verdict import Verdict

FORMAT = "chosen tokens"
TextsOf = Callable[[Sequence[int]], dict[int, str]]
_ROW_GROUP = 122_880
# a row group of Parquet may hold ten million tokens; the lists are copied twice
_MEMORY = "SET memory_limit = '640MB'"
# while Python has responses and the sums of a million sequences
_LESS_MEMORY = "SET memory_limit = '320MB'"


@dataclass(frozen=True)
class TokenPair:
    """Two sides of chosen tokens: positions in all, figures over those with both values (k3: None
    without any), by side its only value, None if it has several, and some of the tokens.
    """

    positions: int
    summary: Summary
    k3: float | None
    constants: tuple[float | None, ...]
    sample: SampledTokens


def write_tokens(
    store: Store,
    paths: Sequence[Path],
    name: str,
    origin: Provenance,
    judge: Callable[[TokenPair], Verdict],
    *,
    run_id: str | None,
    on_progress: Progress,
    texts_of: TextsOf | None,
) -> str:
    """Store the files as a run; it appears when it is whole. -> its id.

    texts_of: texts of token ids, by id; DumpError for what cannot be compared.
    """
    size = sum(path.stat().st_size for path in paths)
    with new_run(store, name, run_id, size, row_group=_ROW_GROUP) as (database, created):
        # Links, for DuckDB takes `*` and `?` in a name for any other file's.
        links = [database.path.with_name(f"sequences-{number}") for number in range(len(paths))]
        for link, path in zip(links, paths, strict=True):
            make_plain(path, link)
        database.execute(_MEMORY)
        names, left_out, masked = read_tokens(database, paths, links)
        database.execute(
            "INSERT INTO prompt SELECT prompt, len(token_ids) FROM arriving ORDER BY prompt",
        )
        (positions,) = database.rows("SELECT sum(positions)::BIGINT FROM prompt")[0]
        if positions > MAX_LISTED_ROWS:
            raise UsageError(
                f"The files hold {positions:,} tokens; a run holds {MAX_LISTED_ROWS:,}.",
            )
        sides = tuple(SideHeader(name, "", "float32") for name in names)
        about = name, "", 0, (Prompt(1),), sides, replace(origin, note=left_out)
        header = RunHeader(*about, keep=FIGURES, k=1, holds="logprob")
        insert_header(database, created, header, positions)
        of_sides = [
            _INSERT_SIDE.format(side=side, values=values) for side, values in enumerate(SIDES)
        ]
        for done, sql in enumerate((_INSERT_TOKENS, *of_sides, _INSERT_POSITIONS), 1):
            on_progress(STORING, done * positions // 6, positions)
            database.execute(sql)
        if texts_of is not None:
            ids = database.rows("SELECT DISTINCT token_id FROM chosen_token WHERE token_id >= 0")
            texts = texts_of(sorted(token for (token,) in ids))
            VOCABULARY.insert(database, token_id=list(texts), text=list(texts.values()))
        database.execute(_LESS_MEMORY)
        digests = [digest_of(responses_of(database, side, "token_id", {})) for side in (0, 1)]
        stored = [(each, "float64") for each in digests]
        insert_sides(database, header, digests, stored, [1, 1], "token_id")
        constants = tuple(database.rows(_CONSTANT, [side])[0][0] for side in (0, 1))
        summary = summary_of_counts(*database.rows(_FIGURES)[0])
        figures = Figures(database, header)
        contents = summaries(figures, masked)
        own = {row["name"]: row["value"] for row in contents.get("figures of ulpscope", ())}
        sample = sample_tokens(figures)
        verdict = judge(TokenPair(positions, summary, own.get("k3"), constants, sample))
        insert_pair(database, 0, summary, verdict)
        insert_evidence(database, 0, np.empty((0, 2), np.int32), verdict.evidence, verdict.floors)
        MISMATCH.insert(
            database,
            name=list(contents),
            content=list(map(json.dumps, contents.values())),
        )
        on_progress(STORING, positions, positions)
    return database.path.stem


_INSERT_TOKENS = f"""
    INSERT INTO sequence BY NAME SELECT prompt, {", ".join(SEQUENCE.names[1:])} FROM arriving;
    INSERT INTO chosen_token BY NAME SELECT prompt, unnest(range(len(token_ids))) AS position,
        unnest(token_ids)::INTEGER AS token_id,
        unnest(coalesce(mask, list_transform(token_ids, lambda t: true))) AS is_trained,
        {", ".join(f"unnest({name}) AS {name}" for name in LISTS)} FROM arriving;
"""
_INSERT_SIDE = f"""
    INSERT INTO response BY NAME SELECT {{side}} AS side, prompt, '{FORMAT}' AS format,
        false AS is_start_known, 0 AS generated_from, 1 AS asked, '' AS model, '' AS text,
        '[]' AS tokens, '[]' AS warnings,
        CASE WHEN name IS NULL THEN '{{{{}}}}' ELSE to_json({{{{sequence: name}}}})::VARCHAR END
            AS settings
        FROM sequence;
    INSERT INTO side_position BY NAME SELECT {{side}} AS side, prompt, position,
        0.0 AS logsumexp, 0 AS best, token_id AS chosen,
        ({{values}} IS NULL AND is_trained)::INTEGER AS missing FROM chosen_token;
    INSERT INTO top_token BY NAME SELECT {{side}} AS side, prompt, position, 0 AS rank, token_id,
        {{values}} AS logit
        FROM chosen_token WHERE {{values}} IS NOT NULL AND is_trained;
"""
_INSERT_POSITIONS = """
    INSERT INTO position BY NAME SELECT 0 AS pair, prompt, position,
        coalesce(delta != 0, false)::INTEGER AS neq,
        CASE WHEN delta != 0 THEN false END AS bit_identical, abs(delta) AS max_abs,
        sqrt(delta * delta) AS rms, 0 AS nonfinite_mismatch
        FROM (SELECT *, variant - reference AS delta FROM chosen_token) WHERE is_trained;
    DROP TABLE arriving;
"""
_CONSTANT = """
    SELECT CASE WHEN count(*) > 1 AND min(logit) = max(logit) THEN min(logit) END
    FROM top_token WHERE side = ?
"""
_FIGURES = """
    SELECT coalesce(sum(neq), 0)::BIGINT, count(max_abs), max(max_abs),
        sqrt(fsum(max_abs * max_abs) / nullif(count(max_abs), 0)) FROM position WHERE pair = 0
"""
