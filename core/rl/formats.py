"""Files of chosen tokens: which framework wrote them, and their rows in one form
(docs/guides/rl.md).
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from ..errors import DumpError, StoreError, UsageError
from ..numerics.recorded_choices import (
    check_choices,
    read_choices,
    repeated_rows,
)
from ..responses.bounded_json import MAX_FILE_BYTES, escape_lone_surrogates, open_plain
from ..responses.files import side_names
from ..responses.placeholders import ROUNDING
from ..responses.records import MAX_POSITIONS
from ..runs.file.database import Database
from ..runs.tables.rl import CHOSEN_TOKEN, SEQUENCE
from ..text import clean, number, plural
from .array_files import is_batch, read_batch
from .torch_files import is_rollout, read_responses

_PARQUET = b"PAR1"
# a line of a million tokens with both values has fewer bytes
_LONGEST_LINE = 64 << 20
# below it a probability is 0 in float64, so values are placeholders
_LOWEST = -745
# A certain token's logit less the log-sum, both rounded to bfloat16, is above 0 by up to a step:
# 0.125 at logits of 16 to 32, 0.25 above. What is farther above 0 is no log-probability.
_HIGHEST = 0.25
_COPIED = 1 << 20  # bytes at a time
_MOST_NOTES = 8  # on recorded experts
_ESCAPED = ".escaped"
SIDES = ("reference", "variant")
# a value per token, or null
LISTS = [name for name, kind in CHOSEN_TOKEN.types.items() if kind == "DOUBLE"]
# a list after the prompt's, if that has one of its own
_AFTER_PROMPT = "list_concat(coalesce(try_cast(prompt_token_ids AS INTEGER[]), []), {})"
# one per sequence, or null
_FACTS = {name: kind for name, kind in SEQUENCE.types.items() if name != "prompt"}


@dataclass(frozen=True)
class Layout:
    """Form of a file. types: its columns; needs: those by which it is known; columns: SQL of ours
    over them; refused_if: SQL of all rows that is an error, for this reason.
    """

    types: Mapping[str, str]
    needs: frozenset[str]
    columns: Mapping[str, str]
    names: tuple[str, str] = ("rollout", "trainer")
    refused_if: str = "false"
    reason: str = ""

    @property
    def is_of_one_side(self) -> bool:
        return "variant" not in self.columns

    def own_name(self, column: str) -> str:
        """Return the name of a column of ours in the file."""
        source = self.columns.get(column, "")
        return next((own for own in self.types if re.search(rf"\b{own}\b", source)), column)


def _by_name(text: str) -> dict[str, str]:
    """Return what a text with a line for each column, `name: what it is`, says of each."""
    return dict(line.strip().split(": ", 1) for line in text.strip().splitlines())


def _documented(*sides: str, names: tuple[str, str] = ("rollout", "trainer")) -> Layout:
    """Return the layout of documented columns. sides: those of the rollout and the trainer."""
    lists = dict(zip(SIDES, sides, strict=False))
    lists |= {name: name for name in ("token_ids", "mask", *LISTS) if name not in SIDES}
    facts = {name: "sequence" if name == "name" else name for name in _FACTS}
    types = dict.fromkeys(lists.values(), "DOUBLE[]")
    types |= {facts[name]: kind for name, kind in _FACTS.items()}
    return Layout(
        types,
        frozenset({"token_ids", *sides}),
        lists | facts,
        names,
    )


# NeMo-RL, train_data_step{N}.jsonl: batches of one, padded; value t belongs to token t
_NEMO_RL = Layout(
    _by_name("""
        token_ids: DOUBLE[][]
        token_loss_mask: DOUBLE[][]
        advantages: DOUBLE[][]
        generation_logprobs: DOUBLE[][]
        prev_logprobs: DOUBLE[][]
        sample_loss_mask: DOUBLE[]
        rewards: DOUBLE[]
        input_lengths: BIGINT[]
        routed_experts: INTEGER[][][][]
        idx: BIGINT
        agent_ref: STRUCT(name VARCHAR)[]
    """),
    frozenset({"token_ids", "generation_logprobs", "prev_logprobs", "input_lengths"}),
    _by_name("""
        token_ids: token_ids[1][:input_lengths[1]]
        mask: [m * coalesce(sample_loss_mask[1], 1) FOR m IN token_loss_mask[1][:input_lengths[1]]]
        reference: generation_logprobs[1][:input_lengths[1]]
        variant: prev_logprobs[1][:input_lengths[1]]
        advantage: advantages[1][:input_lengths[1]]
        routed_experts: to_json(routed_experts[1][:input_lengths[1]])
        name: idx
        reward: rewards[1]
        environment: agent_ref[1].name
    """),
    refused_if="bool_and(list_min(prev_logprobs[1]) = 0 AND list_max(prev_logprobs[1]) = 0)",
    reason=(
        "every `prev_logprobs` is 0: with force_on_policy_ratio NeMo-RL does not compute the"
        " trainer's side"
    ),
)
# prime-rl, token_exports/step_N/rank_R.jsonl
_PRIME_RL = Layout(
    _by_name("""
        token_ids: DOUBLE[]
        loss_mask: DOUBLE[]
        advantages: DOUBLE[]
        inference_logprobs: DOUBLE[]
        trainer_logprobs: DOUBLE[]
        entropy: DOUBLE[]
        schema_version: BIGINT
        step: BIGINT
        rank: BIGINT
        export_sequence_idx: BIGINT
        env_name: VARCHAR
    """),
    frozenset({"token_ids", "inference_logprobs", "trainer_logprobs"}),
    _by_name("""
        token_ids: token_ids
        mask: loss_mask
        reference: inference_logprobs
        variant: trainer_logprobs
        entropy: entropy
        advantage: advantages
        step: step
        environment: env_name
        name: concat_ws('/', rank, export_sequence_idx)
        sampling: CASE WHEN rank IS NOT NULL THEN json_object('rank', rank) END
    """),
    refused_if="bool_or(schema_version != 1)",
    reason="has another `schema_version` than 1, which is the one known",
)
# miles, dashboard_columns/rollout_{N}.parquet: the rollout alone
_MILES_DASHBOARD = Layout(
    _by_name("""
        tokens: DOUBLE[]
        loss_mask: DOUBLE[]
        rollout_log_probs: DOUBLE[]
        sample_index: BIGINT
    """),
    frozenset({"tokens", "loss_mask", "rollout_log_probs", "sample_index"}),
    {},
    refused_if="true",
    reason="holds the rollout's side alone; give the files of `train_data`, which have both",
)
LAYOUTS = (
    _NEMO_RL,
    _PRIME_RL,
    _documented(*SIDES, names=SIDES),
    _documented("rollout", "trainer"),
    _documented("logprobs", names=("", "")),  # a file per side
    _MILES_DASHBOARD,
)


def layout_of(path: Path) -> Layout | None:
    """Return the layout of a file of JSON lines or Parquet by its first bytes, None if it has none
    of them.
    """
    try:
        with open_plain(path) as file:
            line = file.readline(_LONGEST_LINE)
    except DumpError:
        return None
    if line.startswith(_PARQUET):
        try:
            names = _parquet_columns(path)
        except DumpError:
            # token ids are read, and then refused
            names = {"token_ids", *SIDES}
    else:
        try:
            row = json.loads(line)
            names = set(row) if isinstance(row, dict) else set()
            match row:
                # a server's response has entries or lists of top tokens there
                case {"logprobs": [*values]} if any(
                    isinstance(each, dict | list) for each in values
                ):
                    return None
        except (ValueError, RecursionError):
            # JSON that is cut off, or nested too deep
            names = {
                name.decode("ascii", "replace") for name in re.findall(rb'"(\w{1,40})": ?\[', line)
            }
    return next((layout for layout in LAYOUTS if layout.needs <= names), None)


def _parquet_columns(path: Path) -> set[str]:
    """Return the names of a Parquet file's columns; DumpError if its footer cannot be read."""
    import pyarrow.parquet as pq

    try:
        return set(pq.read_schema(path).names)
    except (pa.ArrowException, OSError, ValueError) as error:
        # a ValueError is of a name that is no UTF-8
        raise DumpError(
            f"{clean(path.name)}: its Parquet footer is damaged or cut off"
            f" ({clean(error, 120).rstrip('.')}).",
        ) from error


def are_tokens(paths: Sequence[Path]) -> bool:
    """Return whether the files hold chosen tokens, by their first bytes; False if one is not
    there.
    """
    if not paths or not all(path.is_file() for path in paths):
        return False
    if len(paths) == 1 and is_batch(paths[0]):
        return True
    are_of_torch = all(map(is_rollout, paths))
    return are_of_torch or all(_is_parquet(path) or layout_of(path) for path in paths)


def files_in(names: Sequence[str | Path]) -> list[Path]:
    """Return the paths, for a folder the files of chosen tokens below it: those of torch if there
    are some, as miles writes other columns of the same tokens next to them.

    Raises:
        DumpError: a folder holds no such file.
        UsageError: a name is empty, which would be the current folder.
    """
    if "" in names:
        raise UsageError("a file's name is empty; give one.")
    files = []
    for path in map(Path, names):
        if not path.is_dir():
            files.append(path)
            continue
        shown = [each for each in path.rglob("*") if not _is_hidden(each.relative_to(path))]
        below = [each for each in sorted(shown, key=_in_order) if are_tokens([each])]
        if not below:
            raise DumpError(
                f"{clean(path.name or path)}: is a folder without a file of sampled tokens"
                " (docs/guides/rl.md).",
            )
        files += [each for each in below if is_rollout(each)] or below
    return files


def make_plain(path: Path, target: Path) -> None:
    """Make `target` the file, unpacked: a link if it is plain, else a copy.

    DumpError if it cannot be unpacked.
    """
    with path.open("rb") as file, open_plain(path) as plain:
        part = plain.read(_COPIED)
        if file.read(len(part)) == part:
            target.symlink_to(path.resolve())
            return
        with target.open("wb") as copy:
            while part:
                copy.write(part)
                if copy.tell() > MAX_FILE_BYTES:
                    raise DumpError(
                        f"{clean(path.name)}: unpacks to over {MAX_FILE_BYTES:,} bytes; split it.",
                    )
                part = plain.read(_COPIED)


def _is_hidden(path: Path) -> bool:
    """Return whether it is below a folder of tools, such as `.git` or `.venv`, or is theirs."""
    return any(part.startswith(".") for part in path.parts)


def _in_order(path: Path) -> list[str | int]:
    """Key by which step 10 comes after step 9."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", str(path))]


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == _PARQUET


def read_tokens(
    database: Database,
    paths: Sequence[Path],
    links: Sequence[Path],
) -> tuple[tuple[str, str], str, int]:
    """Make the temporary table `arriving` of all files, checked: prompt, token_ids, mask, lists and
    facts.

    Returns:
        names of the sides, a note on what was left out, and how many sequences had no token in the
        loss.

    Raises:
        DumpError: a file cannot be read or joined; one sentence names the row.
    """
    names = ("rollout", "trainer")
    notes = []
    order = ""
    layouts = []
    if is_rollout(paths[0]) or is_batch(paths[0]):
        tables = [_table_of_responses(database, paths)]
    else:
        for path in paths:
            layout = layout_of(path)
            if layout is None:
                raise DumpError(
                    f"{clean(path.name)}: lacks a column; expected `token_ids`, `reference` and"
                    " `variant`.",
                )
            layouts.append(layout)
        names = layouts[0].names
        tables = [
            _table_of_file(database, *each, number)
            for number, each in enumerate(zip(paths, links, layouts, strict=True))
        ]
    for table in tables:
        notes += _check_experts(database, table)
    are_of_one_side = [layout.is_of_one_side for layout in layouts]
    if any(are_of_one_side):
        if are_of_one_side != [True, True]:
            raise DumpError(
                "`logprobs` are of one side; expected two files, the rollout's and the trainer's.",
            )
        first, second = side_names(paths)
        names = first, second
        rows, left_out = _join(database, paths)
        notes.append(left_out)
        order = "ORDER BY prompt"
    else:
        rows = " UNION ALL BY NAME ".join(
            f"SELECT * EXCLUDE (prompt) FROM {each}" for each in tables
        )
        twice = database.rows(
            f"SELECT name, step FROM ({rows}) WHERE name IS NOT NULL"
            " GROUP BY name, step, environment HAVING count(*) > 1 LIMIT 1",
        )
        for name, step in twice:
            at = "" if step is None else f" of step {step}"
            raise DumpError(f"sequence '{clean(name)}'{at} occurs twice; expected each once.")
    trimmed, dropped = _trim(database, rows, names, order)
    for table in tables:
        database.execute(f"DROP TABLE {table}")
    return names, " ".join(filter(None, [*notes, trimmed])), dropped


def _check_experts(database: Database, table: str) -> list[str]:
    """Check the recorded experts of a table's sequences, and leave out those that cannot be
    compared. -> notes
    """
    with_experts = f"FROM {table} WHERE routed_experts IS NOT NULL"
    prompts = database.rows(f"SELECT prompt {with_experts} ORDER BY prompt")
    clauses: Counter[str] = Counter()
    seen: dict[bytes, list[int]] = {}
    # one at a time: the experts of a token may take more bytes than all else
    for (prompt,) in prompts:
        ((tokens, text),) = database.rows(
            f"SELECT {_AFTER_PROMPT.format('token_ids')}, routed_experts {with_experts}"
            f" AND prompt = {prompt}",
        )
        try:
            ids = read_choices(text)
            clauses.update(check_choices(ids, len(tokens)))
            clauses.update(repeated_rows(seen, tokens, ids))
        except DumpError as error:
            clauses[f"{error}, left out"] += 1
            database.execute(f"UPDATE {table} SET routed_experts = NULL WHERE prompt = {prompt}")
    return [
        f"`routed_experts`: {clause} ({count:,} of {plural(len(prompts), 'sequence')})."
        for clause, count in clauses.most_common(_MOST_NOTES)
    ]


def _trim(database: Database, rows: str, names: Sequence[str], order: str) -> tuple[str, int]:
    """Make `arriving` of a query, each sequence cut to its response, from the first to the last
    token of the loss. -> a note, and how many have no such token
    """
    places = f"""(
        SELECT *, coalesce(list_position(mask, true), 1) AS first_token,
            len(token_ids) + 1 - coalesce(list_position(list_reverse(mask), true), 1) AS last_token,
            len(token_ids) > 0 AND (mask IS NULL OR list_contains(mask, true)) AS is_trained
        FROM ({rows}))"""
    ((dropped, used),) = database.rows(
        f"SELECT count(*) FILTER (NOT is_trained), count(*) FILTER (is_trained) FROM {places}",
    )
    if not used:
        raise DumpError("every token is masked out; expected some with a mask of 1.")
    notes = []
    if dropped:
        notes.append(f"{plural(dropped, 'sequence')} without a token in the loss left out.")
    notes += _impossible(database, rows, names)
    lists = {name: name for name in ("token_ids", "mask", *LISTS)}
    lists |= {side: f"[CASE WHEN v >= {_LOWEST} THEN v END FOR v IN {side}]" for side in SIDES}
    cut = [f"list_slice({each}, first_token, last_token) AS {name}" for name, each in lists.items()]
    facts = [name for name in _FACTS if name != "prompt_token_ids"]
    masked = "token_ids[:first_token - 1]"
    database.execute(f"""
        CREATE TEMP TABLE arriving AS
        SELECT row_number() OVER ({order}) - 1 AS prompt, {", ".join([*cut, *facts])},
            CASE WHEN first_token > 1
                THEN to_json({_AFTER_PROMPT.format(masked)}::INTEGER[])::VARCHAR
                ELSE prompt_token_ids END AS prompt_token_ids
        FROM {places} WHERE is_trained""")
    return " ".join(notes), dropped


# SQL of a side's values at tokens of the loss for which a condition on `v` holds
_OF_LOSS = "list_filter({}, lambda v, place: {} AND coalesce(mask[place], true))"


def _impossible(database: Database, rows: str, names: Sequence[str]) -> list[str]:
    """Return a note for each side on values just above 0, and on those that are far too low."""
    notes = []
    for side, name in zip(SIDES, names, strict=True):
        high = _OF_LOSS.format(side, f"v > {ROUNDING}")
        low = _OF_LOSS.format(side, f"v < {_LOWEST}")
        ((positive, highest, negative, lowest),) = database.rows(f"""
            SELECT sum(len({high}))::BIGINT, max(list_max({high})),
                sum(len({low}))::BIGINT, min(list_min({low})) FROM ({rows})""")
        if positive:
            notes.append(
                f"{plural(positive, 'value')} of '{name}' above 0, up to {number(highest)}, as"
                " rounding of a logit less its log-sum makes.",
            )
        if negative:
            notes.append(
                f"{plural(negative, 'value')} of '{name}' below {_LOWEST}, the lowest is"
                f" {number(lowest)}: placeholders, taken as missing.",
            )
    return notes


def _join(database: Database, paths: Sequence[Path]) -> tuple[str, str]:
    """Join two files of one side each by the names of their sequences, or by their order. -> a
    query, and a note
    """
    counts = [
        database.rows(f"SELECT count(*), count(name), count(DISTINCT name) FROM file_{n}")[0]
        for n in (0, 1)
    ]
    rows = [count[0] for count in counts]
    is_named = all(count == named for count, named, _ in counts)
    for path, (count, _, distinct) in zip(paths, counts, strict=True):
        if is_named and distinct < count:
            raise DumpError(f"{clean(path.name)}: a `sequence` occurs twice; expected each once.")
    if not is_named and rows[0] != rows[1]:
        raise DumpError(
            f"the files hold {rows[0]:,} and {rows[1]:,} sequences without a `sequence` to join"
            " them by; expected as many.",
        )
    both = f"file_0 a JOIN file_1 b USING ({'name' if is_named else 'prompt'})"
    (shared,) = database.rows(f"SELECT count(*) FROM {both}")[0]
    if not shared:
        raise DumpError(
            "the files share no `sequence`; expected log-probabilities of the same sequences.",
        )
    for row, other, place in database.rows(f"""
        SELECT a.prompt + 1, b.prompt + 1, list_position(list_transform(
            range(1, 1 + least(len(a.token_ids), len(b.token_ids))),
            lambda n: a.token_ids[n] != b.token_ids[n]), true)
        FROM {both} WHERE a.token_ids != b.token_ids ORDER BY a.prompt LIMIT 1"""):
        at = f" from token {place - 1} on" if place else "; one is longer"
        raise DumpError(
            f"row {row:,} of {clean(paths[0].name)} and row {other:,} of {clean(paths[1].name)}"
            f" have other `token_ids`{at}; expected values of the same tokens.",
        )
    more = [name for name in ("mask", *LISTS, *_FACTS) if name not in SIDES]
    merged = ", ".join(f"coalesce(a.{name}, b.{name}) AS {name}" for name in more)
    alone = sum(rows) - 2 * shared
    return (
        f"SELECT a.prompt, a.token_ids, a.reference, b.reference AS variant, {merged} FROM {both}",
        f"{plural(alone, 'sequence')} of one file alone left out." if alone else "",
    )


def _table_of_file(database: Database, path: Path, link: Path, layout: Layout, number: int) -> str:
    """Make a temporary table of a file's rows in our columns. -> its name"""
    name = clean(path.name)
    place = str(link).replace("'", "''")
    table = f"file_{number}"
    step = re.search(r"step_?(\d{1,12})", f"{path.parent.name}/{path.name}")
    columns = {"step": step[1] if step else "NULL", **layout.columns}
    try:
        if _is_parquet(path):
            present = _parquet_columns(path)
            fields = [
                f"{own if own in present else 'NULL'}::{kind} AS {own}"
                for own, kind in layout.types.items()
            ]
            source = f"(SELECT {', '.join(fields)} FROM read_parquet('{place}'))"
        else:
            kinds = ", ".join(f"{own}: '{kind}'" for own, kind in layout.types.items())
            options = f"format = 'newline_delimited', maximum_object_size = {_LONGEST_LINE}"
            source = f"read_json('{place}', {options}, compression = 'none', columns = {{{kinds}}})"
        if database.rows(f"SELECT {layout.refused_if} FROM {source}")[0][0]:
            raise DumpError(f"{name}: {layout.reason}.")
        _create(database, table, source, columns)
    except StoreError as error:
        reason = str(error.__cause__).splitlines()[0].replace(str(link), path.name)
        # DuckDB reads no text with half a character, which json.dumps writes
        if "surrogate" in reason and link.suffix != _ESCAPED:
            escaped = link.with_suffix(_ESCAPED)
            with link.open("rb") as lines, escaped.open("wb") as copy:
                copy.writelines(map(escape_lone_surrogates, lines))
            return _table_of_file(database, path, escaped, layout, number)
        raise DumpError(
            f"{name}: cannot be read as rows of tokens, or is cut off ({clean(reason, 160)}).",
        ) from error
    _check(database, table, name, layout)
    return table


def _table_of_responses(database: Database, paths: Sequence[Path]) -> str:
    """Make a temporary table of the responses in files of slime or miles, or of a batch. -> its
    name
    """
    responses = read_responses(paths) if is_rollout(paths[0]) else read_batch(paths[0])
    trained = [each for each in responses if "variant" in each]
    if not any("reference" in each for each in trained):
        side = "rollout_log_probs" if trained else "log_probs"
        raise DumpError(
            f"no sample has `{side}`; expected the train data of slime or miles, which has both"
            " sides.",
        )
    layout = _documented(*SIDES)
    fields = ", ".join(f"{name} {kind}" for name, kind in layout.types.items())
    database.execute(f"CREATE TEMP TABLE saved ({fields})")
    table = pa.table({name: [each.get(name) for each in trained] for name in layout.types})
    database.insert("saved", table)
    _create(database, "file_0", "saved", layout.columns)
    database.execute("DROP TABLE saved")
    _check(database, "file_0", clean(paths[0].name), _documented("rollout", "trainer"))
    return "file_0"


def _create(database: Database, table: str, source: str, columns: Mapping[str, str]) -> None:
    own = {name: columns.get(name, "NULL") for name in ("mask", *LISTS, *_FACTS)}
    values = [
        f"[CASE WHEN isfinite(v) THEN v END FOR v IN {own[name]}::DOUBLE[]]::DOUBLE[] AS {name}"
        for name in LISTS
    ]
    facts = [f"({own[name]})::{kind} AS {name}" for name, kind in _FACTS.items()]
    database.execute(
        # a masked token may have no id: -100 in labels
        f"CREATE TEMP TABLE {table} AS SELECT * REPLACE (list_transform(token_ids, lambda t, place:"
        " CASE WHEN t < 0 AND NOT coalesce(mask[place], true) THEN 0 ELSE t END) AS token_ids)"
        " FROM (SELECT row_number() OVER () - 1 AS prompt,"
        f" ({columns['token_ids']})::DOUBLE[] AS token_ids,"
        f" [coalesce(v, 0) != 0 FOR v IN {own['mask']}::DOUBLE[]]::BOOLEAN[] AS mask,"
        f" {', '.join(values)}, {', '.join(facts)} FROM {source})",
    )


def _check(database: Database, table: str, name: str, layout: Layout) -> None:
    """DumpError for the first row that cannot be one of tokens."""
    wrong = {
        f"expected `token_ids`, a list of at most {MAX_POSITIONS:,} token ids from 0 on": (
            f"coalesce(len(token_ids), -1) NOT BETWEEN 0 AND {MAX_POSITIONS}"
            " OR len(token_ids) != list_count(token_ids) OR list_min(token_ids) < 0"
            " OR list_max(token_ids) >= 2147483648 OR token_ids != [floor(t) FOR t IN token_ids]"
        ),
    }
    for side in SIDES[:1] if layout.is_of_one_side else SIDES:
        wrong[f"expected a list `{layout.own_name(side)}`"] = f"{side} IS NULL"
    for column in (*LISTS, "mask"):
        says = f"`{layout.own_name(column)}` and `token_ids` have other lengths"
        wrong[says] = f"len({column}) != len(token_ids)"
    for side in SIDES:
        says = f"`{layout.own_name(side)}` has a value above {_HIGHEST}, so no log-probability"
        wrong[says] = f"len({_OF_LOSS.format(side, f'v > {_HIGHEST}')}) > 0"
    first = ", ".join(f"min(prompt) FILTER ({condition})" for condition in wrong.values())
    rows, *first_rows = database.rows(f"SELECT count(*), {first} FROM {table}")[0]
    if not rows:
        raise DumpError(f"{name}: holds no row.")
    for what, row in zip(wrong, first_rows, strict=True):
        if row is not None:
            raise DumpError(f"{name}: row {row + 1:,}: {what}.")
