"""A run as one HTML file that opens from a disk: no script, no request, every text of the run
escaped.
"""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from ..checks.state import axes_of, axis_texts, scale_of
from ..command_name import UNSTORED
from ..markup import HEAT, Markup, element, facts, fold, inline, join, table
from ..runs.file.records import StoredPair
from ..runs.queries.verdicts import Answer
from ..runs.reader import RunReader
from ..runs.reports.issue_markdown import gravest_first, origin
from ..runs.requests import repeat_command
from ..text import clip, known, legible, percent, plural
from .charts import ULPS
from .sections import CELL, FILE, Explain, Size, sections

_STYLE = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")


def html_file(run: RunReader, explain: Explain | None = None) -> str:
    """Return a run as an HTML file of at most FILE.bytes. explain: of `sections`, for the gravest
    pair.
    """
    heat = "".join(f".{level}{{{style}}}" for level, style in HEAT.items())
    stops = ", ".join(f"{color} {percent(place)}" for place, color in ULPS)
    style = f"{_STYLE}{heat}.ulps{{background:linear-gradient(to right, {stops})}}"
    digest = hashlib.sha256(style.encode()).digest()
    checksum = base64.b64encode(digest).decode()
    # without a policy a text that escapes its element could load what it names
    policy = (
        f"default-src 'none'; img-src data:; style-src 'sha256-{checksum}'; base-uri 'none';"
        " form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer"'
        ' content="no-referrer">'
        f"{element('title', clip(run.header.name, 200))}<style>{style}</style></head>\n"
        f"<body><main>{_content(run, FILE, explain)}{_foot(run)}</main></body></html>\n"
    )


def html_cell(run: RunReader) -> str:
    """Return a run as the output of a notebook's cell, of at most CELL.bytes."""
    return inline(_content(run, CELL))


def _content(run: RunReader, most: Size, explain: Explain | None = None) -> Markup:
    """Return the pairs of a run, the gravest first, as many as fit."""
    answers = gravest_first(run, run.pairs)
    parts = [_head(run, answers)]
    size = len(parts[0].encode())
    is_open: str | None = ""  # the first one
    for pair, answer in answers:
        titled = sections(
            run,
            pair,
            answer,
            most,
            explain,
        )
        part = fold(
            element(
                "h2",
                element("code", pair.variant),
                " vs ",
                element("code", pair.reference),
            ),
            *(
                element("section", element("h3", name) if name else "", content)
                for name, content in titled
            ),
            id=f"pair{pair.index}",
            open=is_open,
            class_="pair",
        )
        size += len(part.encode())
        # the gravest pair is shown whatever its size
        if is_open is None and size > most.bytes:
            break
        parts.append(part)
        is_open = explain = None
    rest = len(answers) + 1 - len(parts)
    note = f"{plural(rest, 'variant')} left out: more than {most.bytes / 10**6:g} MB."
    return join(*parts, element("p", note) if rest else "")


def _head(run: RunReader, answers: Sequence[tuple[StoredPair, Answer]]) -> Markup:
    header = run.header
    line = [origin(run)["model"], header.compute_dtype, header.provenance.device]
    if run.run_id != UNSTORED:
        line += f"{run.created:%Y-%m-%d}", run.run_id
    note = header.kept_note
    parts = [
        element("h1", header.name),
        element("p", " · ".join(filter(None, line)), class_="note"),
        element("p", note) if note else "",
    ]
    if len(answers) > 1:
        columns = 3 if header.has_tokens else 2
        titles = f"variant, vs {answers[0][0].reference}", "verdict", "flips"
        rows = []
        for pair, answer in answers:
            link = element("a", pair.variant, href=f"#pair{pair.index}")
            rows.append((link, answer.name, known(pair.summary.flips))[:columns])
        parts.append(table(titles[:columns], rows, "Variants"))
    if axes := axes_of(row for _, answer in answers for row in answer.checks):
        lines = [axis_texts(axis) for axis in axes]
        rows = [tuple(line.values()) for line in lines]
        parts.append(element("p", scale_of(axes)))
        parts.append(table([*lines[0]], rows, "Server state", class_="box stack"))
    return element("header", *parts)


def _foot(run: RunReader) -> Markup:
    command = repeat_command(run.header.provenance)
    sides = [
        (side.name, side.path, side.source_dtype, f"class {side.bit_class}", side.sha256)
        for side in run.sides
    ]
    return element(
        "footer",
        fold(
            "Provenance and sides",
            facts(origin(run)),
            element("pre", legible(command), tabindex="0") if command else "",
            table(("side", "path", "saved as", "equal bits", "sha256"), sides, "Sides"),
        ),
    )
