"""Log-probabilities of chosen tokens, one row per sequence in JSON lines or Parquet: DuckDB reads the files, compares
the sides and fills the tables of a run of lists of one value, so that memory does not grow with the files.

A row has `token_ids`, and of one file with both sides `reference` and `variant`, of one file per side `logprobs`: the
log-probabilities of those tokens, null or NaN if missing. `sequence` names it. Position i scores token i.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...errors import DumpError, StoreError, UsageError
from ...numerics.metrics import Summary
from ...numerics.topk import summary_of_counts
from ...text import clean, plural
from ..file.bounds import MAX_LISTED_ROWS
from ..file.database import Database
from ..file.keep import FIGURES
from ..file.records import Prompt, Provenance, RunHeader, SideHeader
from ..store.store import Store
from ..tables.pairs import insert_pair
from ..tables.sides import insert_sides
from ..tables.verdicts import insert_evidence
from .files import side_names
from .placeholders import ROUNDING
from .reading import digest_of, responses_of
from .records import MAX_POSITIONS
from .tables import About, insert_header, new_run

if TYPE_CHECKING:
    from ..file.evidence import Verdict

FORMAT = "chosen tokens"
_VALUES = {1: ("reference", "variant"), 2: ("logprobs",)}  # columns of log-probabilities, by the number of files
_PARQUET = b"PAR1"
_LONGEST_LINE = 64 << 20  # bytes; of a million tokens with both values
_LOWEST = -745  # below, a probability is 0 in float64: placeholders
_ROW_GROUP = 122_880


@dataclass(frozen=True)
class TokenPair:
    """Two sides of chosen tokens: positions in all, figures over those with both values, and by side its only value,
    None if it has several.
    """

    names: tuple[str, ...]
    positions: int
    summary: Summary
    constants: tuple[float | None, ...]


def are_tokens(paths: Sequence[Path]) -> bool:
    """Return whether one or two files hold chosen tokens, by their first bytes; False if one is not there."""
    return len(paths) in _VALUES and all(path.is_file() and _columns_of(path, len(paths)) for path in paths)


def _columns_of(path: Path, files: int) -> bool:
    with path.open("rb") as file:
        line = file.readline(_LONGEST_LINE)
    if line.startswith(_PARQUET):
        return True
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return b'"token_ids"' in line and any(f'"{name}": ['.encode() in line for name in _VALUES[files])
    if not isinstance(row, dict) or not isinstance(row.get("token_ids"), list):
        return False
    lists = [row[name] for names in _VALUES.values() for name in names if isinstance(row.get(name), list)]
    return bool(lists) and not any(isinstance(value, dict | list) for value in lists[0])


def write_tokens(
    store: Store,
    paths: Sequence[Path],
    about: About,
    judge: Callable[[TokenPair], Verdict],
    *,
    run_id: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> str:
    """Store the files as a run; it appears when it is whole. -> its id. DumpError for what cannot be compared."""
    size, tell = sum(path.stat().st_size for path in paths), on_progress or (lambda *_: None)
    names = ("reference", "variant") if len(paths) == 1 else tuple(side_names(paths))
    with new_run(store, about.name, run_id, size, row_group=_ROW_GROUP) as (database, partial, created):
        # Links, for DuckDB takes `*` and `?` in a name for any other file's.
        links = [partial.directory / f"sequences-{number}" for number in range(len(paths))]
        for link, path in zip(links, paths, strict=True):
            link.symlink_to(path.resolve())
        note = " ".join(filter(None, (about.note, _arrive(database, paths, links))))
        database.execute("INSERT INTO prompt SELECT prompt, len(token_ids) FROM arriving ORDER BY prompt")
        (positions,) = database.rows("SELECT sum(positions)::BIGINT FROM prompt")[0]
        origin = Provenance("upload", about.model, command=about.command, note=note, versions=about.versions)
        sides = tuple(SideHeader(name, "", "float32") for name in names)
        header = RunHeader(about.name, "", 0, (Prompt(1),), sides, origin, keep=FIGURES, k=1, holds="logprob")
        insert_header(database, partial, created, header, positions)
        tell(positions // 5, positions)
        for side, values in enumerate(_VALUES[1]):
            database.execute(_INSERT_SIDE.format(side=side, values=values))
            tell((side + 2) * positions // 5, positions)
        database.execute(_INSERT_POSITIONS)
        tell(4 * positions // 5, positions)
        digests = [digest_of(responses_of(database, side, "token_id", {})) for side in (0, 1)]
        insert_sides(database, header, digests, [(each, "float64") for each in digests], [1, 1], "token_id")
        extremes = "SELECT CASE WHEN count(*) > 1 AND min(logit) = max(logit) THEN min(logit) END FROM top_token"
        constants = tuple(database.rows(f"{extremes} WHERE side = ?", [side])[0][0] for side in (0, 1))
        token_pair = TokenPair(names, positions, summary_of_counts(*database.rows(_FIGURES)[0]), constants)
        verdict = judge(token_pair)
        insert_pair(database, 0, token_pair.summary, verdict)
        insert_evidence(database, 0, np.empty((0, 2), np.int32), verdict.evidence, verdict.floors)
        tell(positions, positions)
    return partial.path.stem


def _arrive(database: Database, paths: Sequence[Path], links: Sequence[Path]) -> str:
    """Make the table `arriving` of the files, checked: prompt, token_ids, reference, variant, sequence. -> a note on
    what was left out
    """
    columns = _VALUES[len(paths)]
    for number, (path, link) in enumerate(zip(paths, links, strict=True)):
        _read(database, path, link, columns, f"file_{number}")
    if len(paths) == 1:
        database.execute("ALTER TABLE file_0 RENAME TO arriving")
        return ""
    columns_of_counts = "count(*), count(sequence), count(DISTINCT sequence)"
    counts = [database.rows(f"SELECT {columns_of_counts} FROM file_{number}")[0] for number in (0, 1)]
    is_named = all(rows == names for rows, names, _ in counts)
    for number, (rows, _, distinct) in enumerate(counts):
        if is_named and distinct < rows:
            raise DumpError(f"{clean(paths[number].name)}: a `sequence` occurs twice; expected each once.")
    if not is_named and counts[0][0] != counts[1][0]:
        both = f"{counts[0][0]:,} and {counts[1][0]:,}"
        raise DumpError(f"the files hold {both} sequences without a `sequence` to join them by; expected as many.")
    key = "sequence" if is_named else "prompt"
    (shared,) = database.rows(f"SELECT count(*) FROM file_0 JOIN file_1 USING ({key})")[0]
    if not shared:
        raise DumpError("the files share no `sequence`; expected log-probabilities of the same sequences.")
    other = database.rows(
        f"SELECT a.prompt + 1, b.prompt + 1 FROM file_0 a JOIN file_1 b USING ({key})"
        " WHERE a.token_ids != b.token_ids ORDER BY a.prompt LIMIT 1"
    )
    if other:
        rows = f"row {other[0][0]:,} of {clean(paths[0].name)} and row {other[0][1]:,} of {clean(paths[1].name)}"
        raise DumpError(f"{rows} have other `token_ids`; expected values of the same tokens.")
    database.execute(
        "CREATE TEMP TABLE arriving AS SELECT row_number() OVER (ORDER BY a.prompt) - 1 AS prompt, a.token_ids,"
        f" a.logprobs AS reference, b.logprobs AS variant, a.sequence FROM file_0 a JOIN file_1 b USING ({key})"
    )
    database.execute("DROP TABLE file_0; DROP TABLE file_1")
    alone = counts[0][0] + counts[1][0] - 2 * shared
    return f"{plural(alone, 'sequence')} of one file alone left out." if alone else ""


def _read(database: Database, path: Path, link: Path, columns: Sequence[str], table: str) -> None:
    """Make a temporary table of a file's rows, and check them. DumpError, one sentence, for the first that is wrong."""
    types = {"token_ids": "DOUBLE[]", **dict.fromkeys(columns, "DOUBLE[]"), "sequence": "VARCHAR"}
    name, place = clean(path.name), str(link).replace("'", "''")
    with path.open("rb") as file:
        is_parquet = file.read(4) == _PARQUET
    try:
        if is_parquet:
            source = f"read_parquet('{place}')"
            stored_columns = {row[0] for row in database.rows(f"DESCRIBE SELECT * FROM {source}")}
            if missing := [column for column in types if column not in stored_columns and column != "sequence"]:
                need = ", ".join(f"`{column}`" for column in ("token_ids", *columns))
                raise DumpError(f"{name}: has no column `{missing[0]}`; expected {need}.")
            types |= {} if "sequence" in stored_columns else {"sequence": ""}
        else:
            kinds = ", ".join(f"{column}: '{kind}'" for column, kind in types.items())
            options = f"format = 'newline_delimited', maximum_object_size = {_LONGEST_LINE}"
            source = f"read_json('{place}', {options}, compression = 'none', columns = {{{kinds}}})"
        values = [
            f"list_transform({column}::DOUBLE[], lambda v: CASE WHEN isnan(v) OR v < {_LOWEST} THEN NULL ELSE v END)"
            f" AS {column}"
            for column in columns
        ]
        sequence = f"{'sequence' if types['sequence'] else 'NULL'}::VARCHAR AS sequence"
        database.execute(
            f"CREATE TEMP TABLE {table} AS SELECT row_number() OVER () - 1 AS prompt, token_ids::DOUBLE[] AS token_ids,"
            f" {', '.join([*values, sequence])} FROM {source}"
        )
    except StoreError as error:
        reason = str(error.__cause__).splitlines()[0].replace(str(link), path.name)
        raise DumpError(f"{name}: cannot be read as rows of tokens, or is cut off ({clean(reason, 160)}).") from error
    wrong = {
        f"expected `token_ids`, a list of 1 to {MAX_POSITIONS:,} token ids": "coalesce(len(token_ids), 0) NOT BETWEEN 1"
        f" AND {MAX_POSITIONS} OR len(token_ids) != list_count(token_ids) OR list_min(token_ids) < 0"
        " OR list_max(token_ids) >= 2147483648 OR token_ids != list_transform(token_ids, lambda t: floor(t))"
    }
    for column in columns:
        wrong[f"expected a list `{column}`"] = f"{column} IS NULL"
        wrong[f"`{column}` and `token_ids` have other lengths"] = f"len({column}) != len(token_ids)"
        wrong[f"`{column}` has a value above 0, so no log-probability"] = f"list_max({column}) > {ROUNDING}"
    first = ", ".join(f"min(prompt) FILTER ({condition})" for condition in wrong.values())
    rows, tokens, *first_rows = database.rows(f"SELECT count(*), sum(len(token_ids))::BIGINT, {first} FROM {table}")[0]
    if not rows:
        raise DumpError(f"{name}: holds no row.")
    for what, row in zip(wrong, first_rows, strict=True):
        if row is not None:
            raise DumpError(f"{name}: row {row + 1:,}: {what}.")
    if tokens > MAX_LISTED_ROWS:
        raise UsageError(f"{name}: holds {tokens:,} tokens; a run holds {MAX_LISTED_ROWS:,}.")


_ELEMENTS = "prompt, unnest(range(len(token_ids))) AS position, unnest(token_ids)::INTEGER AS token"
_INSERT_SIDE = f"""
    INSERT INTO response BY NAME SELECT {{side}} AS side, prompt, '{FORMAT}' AS format, false AS is_start_known,
        0 AS generated_from, 1 AS asked, '' AS model, '' AS text, '[]' AS tokens, '[]' AS warnings,
        CASE WHEN sequence IS NULL THEN '{{{{}}}}' ELSE to_json({{{{sequence: sequence}}}})::VARCHAR END AS settings
        FROM arriving;
    INSERT INTO side_position BY NAME SELECT {{side}} AS side, prompt, position, 0.0 AS logsumexp, 0 AS best,
        token AS chosen, (value IS NULL)::INTEGER AS missing
        FROM (SELECT {_ELEMENTS}, unnest({{values}}) AS value FROM arriving);
    INSERT INTO top_token BY NAME SELECT {{side}} AS side, prompt, position, 0 AS rank, token AS token_id,
        value AS logit FROM (SELECT {_ELEMENTS}, unnest({{values}}) AS value FROM arriving) WHERE value IS NOT NULL;
"""
_INSERT_POSITIONS = f"""
    INSERT INTO position BY NAME SELECT 0 AS pair, prompt, position, coalesce(delta != 0, false)::INTEGER AS neq,
        CASE WHEN delta != 0 THEN false END AS bit_identical, abs(delta) AS max_abs, sqrt(delta * delta) AS rms,
        0 AS nonfinite_mismatch
        FROM (SELECT *, other - value AS delta FROM
            (SELECT {_ELEMENTS}, unnest(reference) AS value, unnest(variant) AS other FROM arriving));
    DROP TABLE arriving;
"""
_FIGURES = """
    SELECT coalesce(sum(neq), 0)::BIGINT, count(max_abs), max(max_abs),
        sqrt(fsum(max_abs * max_abs) / nullif(count(max_abs), 0)) FROM position WHERE pair = 0
"""
