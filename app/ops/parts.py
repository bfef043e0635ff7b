"""Parts of the Ops page: the choice of machines, the table of answers, one operation's classes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pandas as pd
import streamlit as st

from app.components import plots
from app.hosting.error_details import told
from app.ops import charts
from app.ops.charts import letters_of
from app.shell import exports, store_cache, widgets
from core.errors import UlpscopeError
from core.runs.ops_run import KIND, OpsRun
from core.runs.reports.ops_wording import (
    NO,
    NOT_ASKED,
    NOT_AVAILABLE,
    QUESTIONS,
    YES,
    ProbeComparison,
    answer,
    batch_says,
    distance_says,
    machine,
    says,
    title,
)
from core.runs.store.cards import RunCard
from core.text import legible, plural, shown

MOST = 4  # machines beside each other
SHOWN = ("all", "with a no", "where machines disagree")
COMMAND = "ulpscope ops --quick"
_ANSWERS = {YES: "green", NO: "orange", NOT_ASKED: "gray", NOT_AVAILABLE: "gray"}
_MEANINGS = {
    "repeat": "the same call gives the same bits every time",
    "batch": "row 0 has the same bits alone and among N rows",
    "position": "a row has the same bits at every index of a batch",
}
_CLASSES = "row 0 over batch sizes"
_HEIGHT = 560  # of the table, pixels: with more rows it scrolls


def cards() -> list[RunCard]:
    """Runs of probes, newest first."""
    return [card for card in store_cache.cards()[0] if card.kind == KIND]


def pick(found: Sequence[RunCard]) -> list[OpsRun]:
    """Draw the choice of machines and return those chosen; the newest where none is."""
    names = [f"{card.name} · {card.device} · {card.created:%Y-%m-%d %H:%M}" for card in found]
    labels = {
        card.run_id: name if names.count(name) == 1 else f"{name} · {card.run_id}"
        for card, name in zip(found, names, strict=True)
    }
    wanted = [part for part in str(st.session_state.get("ops_runs", "")).split(",") if part]
    gone = [run_id for run_id in wanted if run_id not in labels]
    if gone:
        st.warning(f"There are no probes {widgets.escaped(shown(', '.join(gone), 60))} here (any more).")
    chosen = [run_id for run_id in wanted if run_id in labels][:MOST] or [found[0].run_id]
    st.session_state["ops_chosen"] = chosen

    def changed() -> None:
        st.session_state["ops_runs"] = ",".join(st.session_state["ops_chosen"])

    st.multiselect(
        "Machines",
        list(labels),
        format_func=labels.__getitem__,
        key="ops_chosen",
        max_selections=MOST,
        on_change=changed,
        placeholder="The newest is shown; choose one or more",
    )
    runs = []
    for run_id in chosen:
        try:
            runs.append(store_cache.ops_run(run_id))
        except UlpscopeError as error:
            st.error(widgets.escaped(told(error)))
    return runs


def summary(runs: Sequence[OpsRun]) -> None:
    """Draw a sentence on each machine's answers, and where it is from."""
    for number, run in enumerate(runs):
        counts = {question: sum(answer(row, question) == NO for row in run.rows) for question in QUESTIONS}
        refused = sum(bool(row.refusal) for row in run.rows)
        many = {question: f"{count:,}" if count else "none" for question, count in counts.items()}
        parts = [
            f"{many['repeat']} {'differs' if counts['repeat'] < 2 else 'differ'} from run to run",
            f"{many['batch']} {'changes' if counts['batch'] < 2 else 'change'} with the batch size",
            f"{many['position']} with the row's position",
            *([f"{refused:,} not available"] if refused else []),
        ]
        name = f"{_letter(number)}: " if len(runs) > 1 else ""
        st.markdown(
            f"{name}**{widgets.escaped(machine(run))}** — {plural(len(run.rows), 'probe')}: {', '.join(parts)}."
            + (f" {widgets.escaped(run.header.note)}" if run.header.note else "")
        )


def ask(found: Sequence[ProbeComparison]) -> list[ProbeComparison]:
    """Draw the filters and return the probes they leave."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        names = list(dict.fromkeys(one.first.op for one in found))
        op = st.selectbox(
            "Operation",
            _offered(["", *names], "ops_op"),
            format_func=lambda name: name or "any",
            key="ops_op",
            width=190,
        )
        dtypes = list(dict.fromkeys(one.first.dtype for one in found))
        dtype = st.selectbox("dtype", _offered(["any", *dtypes], "ops_dtype"), key="ops_dtype", width=130)
        shown = st.segmented_control("Show", SHOWN, required=True, key="ops_shown") or SHOWN[0]
    return [
        one
        for one in found
        if op in ("", one.first.op)
        and dtype in ("any", one.first.dtype)
        and (shown == SHOWN[0] or _is_worth(one, shown))
    ]


def _offered(options: list[str], key: str) -> list[str]:
    """The filter's options, with what a link asks for although no probe has it."""
    chosen = st.session_state.get(key)
    return options if chosen is None or chosen in options else [*options, chosen]


def _is_worth(one: ProbeComparison, shown: str) -> bool:
    if shown == SHOWN[1]:
        return any(row is not None and answer(row, question) == NO for row in one.rows for question in QUESTIONS)
    return bool(one.disagreement)


def table(found: Sequence[ProbeComparison], runs: Sequence[OpsRun]) -> None:
    """Draw one row a probe; a click opens its classes."""
    keys = [key_words(one) for one in found]
    known = hashlib.sha256(
        "\0".join([*(run.run_id for run in runs), *keys]).encode("utf-8", "backslashreplace")
    ).hexdigest()
    key = f"ops_table_{known[:16]}"

    def choose() -> None:
        rows = st.session_state[key]["selection"]["rows"]
        st.session_state["ops_row"] = keys[rows[0]] if rows and rows[0] < len(keys) else ""

    at = [place for place, name in enumerate(keys) if name == st.session_state.get("ops_row")]
    st.dataframe(
        _rows(found, runs),
        key=key,
        hide_index=True,
        on_select=choose,
        selection_mode="single-row",
        column_config=_columns(runs),
        selection_default={"selection": {"rows": at[:1]}},
        placeholder="–",
        height="content" if len(found) < 14 else _HEIGHT,
        alt="operations, one row each, with three answers a machine",
    )


def key_words(one: ProbeComparison) -> str:
    """Name of a probe in the address."""
    return "~".join(one.key)


def _rows(found: Sequence[ProbeComparison], runs: Sequence[OpsRun]) -> pd.DataFrame:
    shown: dict[str, list] = {
        "operation": [title(one.first) for one in found],
        "size": [one.first.size for one in found],
        "dtype": [one.first.dtype for one in found],
    }
    if len(runs) > 1:
        shown["they disagree on"] = [one.disagreement or None for one in found]
    of_runs = [[one.rows[number] for one in found] for number in range(len(runs))]
    for number, rows in enumerate(of_runs):
        for question, called in _called(runs).items():
            shown[_of(called, number, runs)] = [[] if row is None else [answer(row, question)] for row in rows]
    for number, rows in enumerate(of_runs):  # behind all answers, which are to be seen beside each other
        shown[_of(_CLASSES, number, runs)] = [None if row is None else (batch_says(row) or None) for row in rows]
    if len(runs) == 1:
        shown["from batch 1"] = [None if row is None else (distance_says(row) or None) for row in of_runs[0]]
        shown["rms to float64"] = [None if row is None else row.relative_rms for row in of_runs[0]]
    if len(runs) > 1:
        shown["same bits, row 0 alone"] = [
            None if one.same_bits is None else "yes" if one.same_bits else "no" for one in found
        ]
    shown["modules"] = [one.first.modules or None for one in found]
    return pd.DataFrame(shown)


def _of(column: str, number: int, runs: Sequence[OpsRun]) -> str:
    return column if len(runs) == 1 else f"{_letter(number)} {column}"


def _called(runs: Sequence[OpsRun]) -> dict[str, str]:
    """Headings of the questions' columns: short where there are several machines."""
    return QUESTIONS if len(runs) == 1 else {"repeat": "runs", "batch": "batch", "position": "row"}


def _letter(number: int) -> str:
    return f"M{number + 1}"


def _columns(runs: Sequence[OpsRun]) -> dict:
    found: dict = {
        "operation": st.column_config.TextColumn(pinned=True, width=112),
        "size": st.column_config.TextColumn(width=132),
        "dtype": st.column_config.TextColumn(width=76),
        "they disagree on": st.column_config.TextColumn(width=112),
        "rms to float64": st.column_config.NumberColumn(
            format="%.2g", help="rms of row 0 alone to the same in float64, over that one's rms"
        ),
        "from batch 1": st.column_config.TextColumn(
            help="how far row 0 goes from batch size 1 in the worst class; ULPs of the dtype"
        ),
        "same bits, row 0 alone": st.column_config.TextColumn(
            help="row 0 alone has the same bits on every machine that measured it"
        ),
    }
    for number in range(len(runs)):
        for question, called in _called(runs).items():
            found[_of(called, number, runs)] = st.column_config.MultiselectColumn(
                options=list(_ANSWERS),
                color=list(_ANSWERS.values()),
                help=_MEANINGS[question],
                width=104 if len(runs) == 1 else 84,
            )
        found[_of(_CLASSES, number, runs)] = st.column_config.TextColumn(width=250)
    return found


def detail(one: ProbeComparison, runs: Sequence[OpsRun]) -> None:
    """Draw the three sentences of every machine, and the batch sizes as groups of equal bits."""
    st.subheader(widgets.escaped(f"{title(one.first)}, {one.first.dtype}, {one.first.size}"))
    if one.disagreement:
        st.markdown(f"These machines disagree on: **{one.disagreement}**.")
    lines = []
    for number, (run, row) in enumerate(zip(runs, one.rows, strict=True)):
        name = f"{_letter(number)}: {machine(run)}" if len(runs) > 1 else machine(run)
        if row is None:
            st.markdown(f"**{widgets.escaped(name)}**: not probed.")
            continue
        said = (
            [f"- {widgets.escaped(says(row, 'repeat'))}."]
            if row.refusal
            else [f"- {called}: {widgets.escaped(says(row, question))}." for question, called in QUESTIONS.items()]
        )
        said += [f"- {widgets.escaped(row.note)}."] if row.note and row.classes else []
        st.markdown("\n".join([f"**{widgets.escaped(name)}**", "", *said]))
        if row.classes:
            called = _letter(number) if len(runs) > 1 else "row 0"
            lines.append((called, {size: found.digest for found in row.classes for size in found.batches}))
    if not lines:
        return
    plots.draw(
        charts.batch_classes(lines),
        key="ops_classes",
        picture=exports.picture("batch-classes", [machine(run) for run in runs]),
    )
    st.caption(
        f"Row 0's bits at each batch size{_over(one.first.rows_tried)}squares of one letter and colour are equal bit"
        " for bit" + (", across machines too: the inputs are the same bits everywhere." if len(lines) > 1 else ".")
    )
    if sum(len(row.classes) for row in one.rows if row is not None) > 1:
        letters = letters_of(lines)
        st.dataframe(
            _classes(one, letters, len(runs) > 1),
            hide_index=True,
            key="ops_class_table",
            column_config={
                name: st.column_config.NumberColumn(format="localized") for name in ("elements that differ", "max ULPs")
            },
        )
        st.caption(
            f"Against the same machine's batch size 1; {one.first.elements * one.first.rows_tried:,} elements,"
            f" distances in ULPs of {widgets.escaped(one.first.dtype)}."
        )


def _over(rows: int) -> str:
    return f", over {rows} different rows that were row 0 in turn: " if rows > 1 else ": "


def _classes(one: ProbeComparison, letters: dict[str, str], has_several: bool) -> pd.DataFrame:
    rows = []
    for number, row in enumerate(one.rows):
        for found in row.classes if row is not None else ():
            rows.append(
                ({"machine": _letter(number)} if has_several else {})
                | {
                    "class": letters[found.digest],
                    "batch sizes": ", ".join(map(str, found.batches)),
                    "elements that differ": found.neq,
                    "max ULPs": found.max_ulps,
                    "digest of the bits": found.digest,
                }
            )
    return pd.DataFrame(rows)


def listed(found: Sequence[ProbeComparison], runs: Sequence[OpsRun]) -> pd.DataFrame:
    """Table for a download: one row a probe and machine, answers and figures as they are."""
    rows = []
    for one in found:
        for run, row in zip(runs, one.rows, strict=True):
            if row is None:
                continue
            repeats = row.repeats
            rows.append(
                {
                    "run": run.run_id,
                    "device": run.header.device,
                    "device_name": run.header.device_name,
                    "op": row.op,
                    "backend": row.backend,
                    "size": row.size,
                    "dtype": row.dtype,
                    "modules": row.modules,
                    **{f"{called.replace(' ', '_')}": answer(row, question) for question, called in QUESTIONS.items()},
                    "says_repeat": says(row, "repeat"),
                    "says_batch": says(row, "batch"),
                    "says_position": says(row, "position"),
                    "calls": repeats.calls if repeats else None,
                    "differing_calls": repeats.differing if repeats else None,
                    "elements": row.elements,
                    "rows_tried": row.rows_tried,
                    "batch_neq": max((c.neq for c in row.classes), default=None),
                    "batch_max_ulps": max((c.max_ulps for c in row.classes), default=None),
                    "relative_rms": row.relative_rms,
                    "refusal": row.refusal,
                }
            )
    integers = dict.fromkeys(("calls", "differing_calls", "batch_neq", "batch_max_ulps"), "Int64")
    return pd.DataFrame(rows).astype(integers)


def provenance(runs: Sequence[OpsRun]) -> pd.DataFrame:
    """Versions and settings that may choose another kernel, a column a machine. As plain text: names are of others."""
    found = {}
    for number, run in enumerate(runs):
        about = run.header
        facts = {
            "device": about.device,
            "chip": about.device_name,
            **about.versions,
            "seed": str(about.seed),
            "command, as the file states it": about.command,
        }
        found[_letter(number)] = {
            widgets.escaped(name): widgets.escaped(legible(value)) for name, value in facts.items()
        }
    return pd.DataFrame(found).fillna("–")
