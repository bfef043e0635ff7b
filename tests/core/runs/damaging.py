"""Run files with untrusted rows."""

import json

import duckdb

# Columns that a user may see; the others name what the code knows (dtypes, kinds, outcomes), which
# is checked when it is read.
TEXTS = {
    "run": ("name", "model", "revision", "device", "device_name", "command", "note"),
    "side": ("name", "path"),
    "token": ("text",),
    "vocabulary": ("text",),
    "pair": ("because",),
    "evidence": ("side_name", "control", "says"),
    "generation": ("text",),
    "layer": ("module", "kind", "dtype"),
    "kernel": ("module", "name", "detail"),
    "remedy": ("what", "compute_dtype", "refusal"),
}
_KNOWN = ("compute_dtype",)  # a figure that is looked up


def damaged(path, *statements):
    path.chmod(0o644)
    with duckdb.connect(str(path)) as database:
        for statement in statements:
            database.execute(statement)


def with_texts(path, text):
    """`text` behind every text that a user may see, so that distinct texts stay distinct."""
    path.chmod(0o644)
    with duckdb.connect(str(path)) as database:
        columns_here = database.execute(
            "SELECT table_name, column_name FROM duckdb_columns() WHERE data_type = 'VARCHAR'",
        ).fetchall()
        for table, column in columns_here:
            if column in TEXTS.get(table, ()):
                database.execute(
                    f"UPDATE {table} SET {column} = {column} || ? WHERE {column} IS NOT NULL",
                    [text],
                )
        for (request,) in database.execute(
            "SELECT request FROM run WHERE request IS NOT NULL",
        ).fetchall():
            request_json = json.loads(request)
            request_json |= {"model": request_json["model"] + text, "prompts": [text], "name": text}
            database.execute("UPDATE run SET request = ?", [json.dumps(request_json)])
        for row, figures in database.execute("SELECT rowid, figures FROM evidence").fetchall():
            planted = {
                key: _with_text(value, text)
                for key, value in json.loads(figures).items()
                if key not in _KNOWN
            }
            figures = json.dumps(json.loads(figures) | planted)
            database.execute("UPDATE evidence SET figures = ? WHERE rowid = ?", [figures, row])


def _with_text(value, text):
    """A figure with `text` behind every text in it."""
    if isinstance(value, str):
        return value + text
    if isinstance(value, dict):
        return {key + text: _with_text(each, text) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_text(each, text) for each in value]
    return value
