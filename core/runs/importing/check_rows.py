"""Rows of a run file from outside that its logits do not prove: are they in range, whole, each there once, and finite?

What is computed from the logits is not checked here but computed anew (core.runs.importing.check_figures).
"""

from __future__ import annotations

from ...errors import StoreError
from ...text import shown
from ..file.database import Database
from ..file.records import RunHeader
from ..tables.schema import TABLES

_COUNTED = "neq BETWEEN 0 AND elements AND finite BETWEEN 0 AND elements AND nonfinite_mismatch BETWEEN 0 AND elements"
_SIZED = "max_abs >= 0 AND rms >= 0 AND max_ulps >= 0 AND mean_ulps >= 0"
_IN_ROW_ULPS = {name: f"({name} IS NULL OR {name} >= 0)" for name in ("max_row_ulps", "rms_row_ulps")}
_PLACE = "pair BETWEEN 0 AND {pairs} AND prompt BETWEEN 0 AND {prompts}"
_LENGTH = "(SELECT positions FROM run_file.main.prompt p WHERE p.prompt = t.prompt)"
# Table -> (the columns of which each row has its own, what must be true of every row). {pairs}, {sides}, {prompts}: the
# highest index.
_RULES: dict[str, tuple[str, str]] = {
    "prompt": ("prompt", "prompt BETWEEN 0 AND {prompts} AND positions >= 1"),
    "token": (
        "prompt, position",
        (
            f"prompt BETWEEN 0 AND {{prompts}} AND position >= 0 AND position < {_LENGTH} AND (token_id IS NULL OR"
            " token_id >= 0)"
        ),
    ),
    "vocabulary": ("token_id", "token_id >= 0"),
    "side": ("side", "side BETWEEN 0 AND {sides}"),
    "pair": ("pair", "pair BETWEEN 0 AND {pairs} AND reference = 0 AND variant = pair + 1"),
    "floor_position": (
        "pair, compute_dtype, prompt, position",
        f"{_PLACE} AND position >= 0 AND position < {_LENGTH} AND pair_rms >= 0 AND floor_rms >= 0",
    ),
    "evidence": ("pair, rung, checked, outcome", "pair BETWEEN 0 AND {pairs}"),
    "kv": (
        "pair, prompt, layer, kind, head",
        (
            f"{_PLACE} AND layer >= 0 AND kind IN ('key', 'value') AND head >= 0 AND {_COUNTED} AND {_SIZED} "
            f"AND (first_position IS NULL OR (first_position >= 0 AND first_position < {_LENGTH}))"
        ),
    ),
    "kv_position": (
        "pair, prompt, layer, kind, position",
        (
            f"{_PLACE} AND layer >= 0 AND kind IN ('key', 'value') AND position >= 0 AND position < {_LENGTH} AND neq"
            " >= 0 AND rms >= 0 AND max_ulps >= 0"
        ),
    ),
    "layer": (
        "pair, prompt, ordinal",
        (
            f"{_PLACE} AND ordinal >= 0 AND positions BETWEEN 1 AND {_LENGTH} AND elements >= 1 AND {_COUNTED} AND"
            f" {_SIZED} AND (first_position IS NULL OR (first_position >= 0 AND first_position < {_LENGTH})) AND"
            " (floor_rms IS NULL OR floor_rms >= 0)"
        ),
    ),
    "layer_position": (
        "pair, prompt, ordinal, position",
        (
            f"{_PLACE} AND ordinal >= 0 AND position >= 0 AND position < {_LENGTH} AND neq >= 0 AND rms >= 0 AND"
            " max_ulps >= 0 AND (floor_rms IS NULL OR floor_rms >= 0)"
        ),
    ),
    "generation": (
        "side, prompt",
        (
            "side BETWEEN 0 AND {sides} AND prompt BETWEEN 0 AND {prompts} AND given_positions BETWEEN 1 AND"
            f" {_LENGTH} AND asked >= 0"
        ),
    ),
    "generated_token": (
        "side, prompt, step",
        "side BETWEEN 0 AND {sides} AND prompt BETWEEN 0 AND {prompts} AND step >= 0 AND token_id >= 0",
    ),
    "kernel": ("side, ordinal", "side BETWEEN 0 AND {sides} AND ordinal >= 0 AND launches >= 0 AND microseconds >= 0"),
    "kernel_side": ("side", "side BETWEEN 0 AND {sides} AND forwards BETWEEN 0 AND forwards_of"),
    "remedy": ("pair, ordinal", "pair BETWEEN 0 AND {pairs} AND ordinal >= 0"),
    "price": (
        "ordinal",
        (
            "ordinal >= 0 AND batch >= 1 AND tokens >= 1 AND plain_tokens_per_second > 0 AND tokens_per_second > 0 AND"
            " share > 0"
        ),
    ),
}
COPIED = (
    "kv",
    "kv_position",
    "layer",
    "layer_position",
)  # tables that no record of ours stands for, and that are copied row by row
# Computed anew.
_UNBOUNDED = {"logits", "side_position", "top_token", "position", "ulp_tile", "row_ulp_tile", "ulp_histogram"}


def check_rows(database: Database, header: RunHeader) -> None:
    """StoreError for the first row that no run of this header has."""
    highest = {"pairs": len(header.sides) - 2, "sides": len(header.sides) - 1, "prompts": len(header.prompts) - 1}
    for table in TABLES:
        if table in _UNBOUNDED:
            continue
        key, rule = _RULES.get(table, ("", ""))
        _check_finite(database, table)
        if rule:
            in_row_ulps = TABLES[table].types.keys() & _IN_ROW_ULPS.keys()
            rule = " AND ".join([rule, *(_IN_ROW_ULPS[column] for column in sorted(in_row_ulps))])
            _check_rule(database, table, key, rule.format(**highest))
    _check_whole_tokens(database)


def _check_finite(database: Database, table: str) -> None:
    for column in (each.name for each in TABLES[table].columns if each.type == "DOUBLE"):
        if database.rows(f"SELECT 1 FROM run_file.main.{table} WHERE NOT isfinite({column}) LIMIT 1"):
            raise StoreError(
                f"{shown(database.path.name)}: {table}.{column} holds a number that is not finite; nothing was"
                " taken in."
            )


def _check_rule(database: Database, table: str, key: str, rule: str) -> None:
    file = shown(database.path.name)
    wrong = database.rows(f"SELECT {key} FROM run_file.main.{table} t WHERE ({rule}) IS NOT TRUE LIMIT 1")
    if wrong:
        raise StoreError(
            f"{file}: table {table} has a row that no run has, at {_place(key, wrong[0])}; nothing was taken in."
        )
    twice = database.rows(f"SELECT {key} FROM run_file.main.{table} GROUP BY ALL HAVING count(*) > 1 LIMIT 1")
    if twice and table != "evidence":
        raise StoreError(f"{file}: table {table} has a row twice, at {_place(key, twice[0])}; nothing was taken in.")


def _check_whole_tokens(database: Database) -> None:
    """All tokens of a prompt or none."""
    short = database.rows("""SELECT prompt FROM run_file.main.token JOIN run_file.main.prompt p USING (prompt)
           GROUP BY prompt HAVING count(*) <> any_value(p.positions) LIMIT 1""")
    if short:
        raise StoreError(
            f"{shown(database.path.name)}: prompt {short[0][0]} has some of its tokens and not all; the file is"
            " damaged."
        )


def _place(key: str, row: tuple) -> str:
    return ", ".join(f"{name} {shown(value, 60)}" for name, value in zip(key.split(", "), row, strict=True))
