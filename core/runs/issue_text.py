"""A run as Markdown for an issue thread: where it comes from, figures of a pair, its verdict with all evidence, flips, an address.

Every name, path and token comes from somebody's file: it stands in a code span or is escaped, so that it stays text wherever pasted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pandas as pd

from core.runs.gate import percent
from core.runs.reader import RunReader, StoredPair
from core.runs.report import over_logits, over_positions
from core.runs.verdicts import Finding, finding

MOST_FLIPS = 5


def issue_text(run: RunReader, pairs: Sequence[StoredPair], address: str) -> str:
    """Markdown. `address`: where the run can be looked at."""
    parts = [f"### {_code(run.header.name)}", _provenance(run)]
    for pair in pairs:
        parts += _pair(run, pair)
    return "\n\n".join([*parts, f"Run {_code(run.run_id)}: {address}"]) + "\n"


def _provenance(run: RunReader) -> str:
    header, about = run.header, run.header.provenance
    revision = f" at revision {_code(about.revision)}" if about.revision else ""
    facts = {
        "model": _code(about.model) + revision if about.model else "",
        "dtype": header.compute_dtype,
        "device": _plain(f"{about.device} ({about.device_name})" if about.device_name else about.device),
        "versions": _plain(", ".join(f"{name} {version}" for name, version in about.versions.items())),
        "prompts": f"{_plural(len(header.prompts), 'prompt')}, {_plural(header.rows, 'position')}, vocabulary {header.vocab:,}",
        "captured" if about.kind == "capture" else "uploaded": f"{run.created:%Y-%m-%d %H:%M} UTC",
        "command": _code(about.command) if about.command else "",
        "note": _plain(about.note),
    }
    return _table(("", ""), [(name, value) for name, value in facts.items() if value])


def _pair(run: RunReader, pair: StoredPair) -> list[str]:
    summary, header = pair.summary, run.header
    positions = run.positions(pair.index)
    found = finding(run, pair, positions)
    elements = header.rows * header.vocab
    logits, positions_of_kl = (
        f", {over}" if over else "" for over in (over_logits(summary, elements), over_positions(summary, header.rows))
    )
    figures = {
        "differing logits": f"{summary.neq:,} of {elements:,} ({percent(summary.neq / elements)})",
        "largest difference": f"{summary.max_abs:.6g} logits{logits}",
        "rms of the difference": f"{summary.rms:.4g} logits{logits}",
        "largest distance": f"{summary.max_ulps:,} ULPs of {header.compute_dtype} (mean {summary.mean_ulps:.4g}){logits}",
        "flips": f"{summary.flips:,} of {_plural(header.rows, 'position')}",
        "near ties": f"{summary.near_ties:,}, of them ties {summary.ties:,}",
        "KL, nats": f"mean {_number(summary.mean_kl)}, largest {_number(summary.max_kl)}{positions_of_kl}",
    }
    if summary.nonfinite_mismatch:
        figures["NaN or infinity on one side"] = f"{summary.nonfinite_mismatch:,} logits"
    parts = [
        f"#### {_code(pair.variant)} against {_code(pair.reference)}: {_plain(found.name)}",
        _plain(found.sentence),
        _table(("figure", ""), list(figures.items())),
        _table(("rung", "outcome", "what it says", "control"), list(_evidence(found))),
    ]
    if summary.flips:
        parts.append(_flips(run, pair, positions[positions["is_flip"]]))
    return parts


def _evidence(found: Finding) -> Iterable[tuple[str, ...]]:
    for rung in found.rungs:
        for row in rung.rows:
            yield rung.name, row.outcome, _plain(row.says), _plain(row.control)
        if not rung.rows:
            yield rung.name, "not run", rung.supply, ""


def _flips(run: RunReader, pair: StoredPair, flips: pd.DataFrame) -> str:
    rows = []
    for row in flips.head(MOST_FLIPS).itertuples(index=False):
        place = f"{row.position} of prompt {row.prompt}" if len(run.header.prompts) > 1 else f"{row.position}"
        tokens = [_token(run, token) for token in (row.reference_token, row.variant_token)]
        ulps = [_whole(margin) for margin in (row.reference_margin_ulps, row.variant_margin_ulps)]
        rows.append((place, *tokens, " / ".join(ulps), f"{row.max_abs:.6g}"))
    head = ("position", _code(pair.reference), _code(pair.variant), "margins, ULPs", "largest difference there")
    more = f"The first {MOST_FLIPS} of {len(flips):,} flips:\n\n" if len(flips) > MOST_FLIPS else "Flips:\n\n"
    return more + _table(head, rows)


def _token(run: RunReader, token: int | None) -> str:
    if token is None or pd.isna(token):
        return "none (all NaN)"
    text = run.vocabulary.get(int(token))
    return f"{int(token)}" if text is None else f"{int(token)} {_code(repr(text))}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _one_line(text: str) -> str:
    """Line ends would end a table's row, and other control characters are invisible to whoever pastes them."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+", " ", text).strip()


def _code(text: str) -> str:
    """A code span, fenced with more backticks than the text has in a row; a pipe would end the cell of a table even there."""
    inner = _one_line(text).replace("|", "\\|") or " "
    fence = "`" * (max((len(run) for run in re.findall("`+", inner)), default=0) + 1)
    pad = " " if inner.startswith("`") or inner.endswith("`") else ""
    return f"{fence}{pad}{inner}{pad}{fence}"


def _plain(text: str) -> str:
    """Sentences stay readable where they are not rendered: only what would become markup, a link or a mention is escaped."""
    shown = re.sub(r"([\\`*\[\]|<>#~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", _one_line(text))
    return shown.replace("@", "@\u200b").replace("://", ":\u200b//")


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _number(value: float | None) -> str:
    return "undefined" if value is None or value != value else f"{value:.3g}"


def _whole(value: object) -> str:
    return "undefined" if pd.isna(value) else f"{int(value)}"  # type: ignore[call-overload]
