"""A run as one HTML file that opens from a disk: no script, no request, every text of the run escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from ..runs.file.keep import note_of
from ..runs.queries.verdicts import Answer
from ..runs.reader import RunReader, StoredPair
from ..runs.reports.issue_markdown import gravest_first, origin
from ..runs.requests import repeat_command
from ..text import clip, legible, percent, plural
from .charts import ULPS
from .markup import Markup, element, facts, fold, join, table
from .sections import sections

MOST_BYTES = 3_000_000
_STYLE = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")


def html_file(run: RunReader) -> str:
    """Return a run as an HTML file of at most MOST_BYTES: its pairs, the gravest first, as many as fit."""
    answers = gravest_first(run, run.pairs)
    head, foot = _head(run, answers), _foot(run)
    size, parts = len((head + foot).encode()), list[Markup]()
    for pair, answer in answers:
        part = _pair(run, pair, answer, is_open=not parts)
        size += len(part.encode())
        if parts and size > MOST_BYTES:
            break
        parts.append(part)
    rest = len(answers) - len(parts)
    note = f"{plural(rest, 'variant')} left out: the file would have more than {MOST_BYTES // 10**6} MB."
    return _document(run.header.name, join([head, *parts, element("p", note) if rest else "", foot]))


def _document(title: str, content: Markup) -> str:
    style = _STYLE + _scales()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = (
        '<meta charset="utf-8">',
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta name="referrer" content="no-referrer">',
        element("title", clip(title, 200)),
        Markup(f"<style>{style}</style>"),
    )
    return (
        f'<!doctype html>\n<html lang="en"><head>{"".join(head)}</head>\n<body><main>{content}</main></body></html>\n'
    )


def _scales() -> str:
    """Style sheet of the colors of tokens and of the heatmap's scale."""
    heat = "".join(f".h{level}{{background:rgba(213,94,0,{level * 0.0075:.4f})}}" for level in range(1, 101))
    stops = ", ".join(f"{color} {percent(place)}" for place, color in ULPS)
    return f"{heat}.ulps{{background:linear-gradient(to right, {stops})}}"


def _head(run: RunReader, answers: Sequence[tuple[StoredPair, Answer]]) -> Markup:
    about, header = run.header.provenance, run.header
    facts_line = (origin(run)["model"], header.compute_dtype, about.device, f"{run.created:%Y-%m-%d}", run.run_id)
    parts = [
        element("h1", header.name),
        element("p", " · ".join(filter(None, facts_line)), class_="note"),
        element("p", note_of(header)) if note_of(header) else "",
    ]
    if len(answers) > 1:
        rows = [
            (element("a", pair.variant, href=f"#pair{pair.index}"), answer.name, f"{pair.summary.flips:,}")
            for pair, answer in answers
        ]
        parts.append(table((f"variant, vs {answers[0][0].reference}", "verdict", "flips"), rows, "Variants"))
    return element("header", *parts)


def _pair(run: RunReader, pair: StoredPair, answer: Answer, *, is_open: bool) -> Markup:
    title = element("h2", element("code", pair.variant), " vs ", element("code", pair.reference))
    parts = [join([element("h3", name) if name else "", content]) for name, content in sections(run, pair, answer)]
    return element(
        "details",
        element("summary", title),
        *(element("section", part) for part in parts),
        id=f"pair{pair.index}",
        open="" if is_open else None,
        class_="pair",
    )


def _foot(run: RunReader) -> Markup:
    command = repeat_command(run.header.provenance)
    sides = [(side.name, side.path, side.source_dtype, f"class {side.bit_class}", side.sha256) for side in run.sides]
    return element(
        "footer",
        fold(
            "Provenance and sides",
            facts(origin(run)),
            element("pre", legible(command), tabindex="0") if command else "",
            table(("side", "path", "saved as", "equal bits", "sha256"), sides, "Sides"),
        ),
    )
