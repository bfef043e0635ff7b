"""A run as Markdown for an issue thread: where it comes from, figures of a pair, its verdict with all evidence, flips,
an address.

Every name, path and token comes from somebody's file: it stands in a code span or is escaped, so that it stays text
wherever pasted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...text import number, percent, plural
from ..reader import RunReader, StoredPair
from ..views.request import typed_again
from ..views.verdicts import Finding, finding
from .markdown import code, plain, table
from .report_json import over_logits, over_positions

if TYPE_CHECKING:
    import pandas as pd

MOST_FLIPS = 5


def issue_text(run: RunReader, pairs: Sequence[StoredPair], address: str) -> str:
    """Markdown. `address`: where the run can be looked at."""
    parts = [f"### {code(run.header.name)}", _provenance(run)]
    for pair in pairs:
        parts += _pair(run, pair)
    return "\n\n".join([*parts, f"Run {code(run.run_id)}: {address}"]) + "\n"


def _provenance(run: RunReader) -> str:
    header, about = run.header, run.header.provenance
    revision = f" at revision {code(about.revision)}" if about.revision else ""
    facts = {
        "model": code(about.model) + revision if about.model else "",
        "dtype": header.compute_dtype,
        "device": plain(f"{about.device} ({about.device_name})" if about.device_name else about.device),
        "versions": plain(", ".join(f"{name} {version}" for name, version in about.versions.items())),
        "prompts": (
            f"{plural(len(header.prompts), 'prompt')}, {plural(header.rows, 'position')}, vocabulary {header.vocab:,}"
        ),
        "captured" if about.kind == "capture" else "uploaded": f"{run.created:%Y-%m-%d %H:%M} UTC",
        "command": code(command) if (command := typed_again(about)) else "",
        "note": plain(about.note),
    }
    return table(("", ""), [(name, value) for name, value in facts.items() if value])


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
        "largest distance": (
            f"{summary.max_ulps:,} ULPs of {header.compute_dtype} (mean {summary.mean_ulps:.4g}){logits}"
        ),
        "in row ULPs": f"largest {number(summary.max_row_ulps)}, rms {number(summary.rms_row_ulps, 3)}{logits}",
        "flips": f"{summary.flips:,} of {plural(header.rows, 'position')}",
        "near ties": f"{summary.near_ties:,}, of them ties {summary.ties:,}",
        "KL, nats": f"mean {number(summary.mean_kl, 3)}, largest {number(summary.max_kl, 3)}{positions_of_kl}",
    }
    if summary.nonfinite_mismatch:
        figures["NaN or infinity on one side"] = f"{summary.nonfinite_mismatch:,} logits"
    parts = [
        f"#### {code(pair.variant)} against {code(pair.reference)}: {plain(found.name)}",
        plain(found.sentence),
        table(("figure", ""), list(figures.items())),
        table(("rung", "outcome", "what it says", "control"), list(_evidence(found))),
    ]
    if summary.flips:
        parts.append(_flips(run, pair, positions[positions["is_flip"]]))
    return parts


def _evidence(found: Finding) -> Iterable[tuple[str, ...]]:
    for rung in found.rungs:
        for row in rung.rows:
            yield rung.name, row.outcome, plain(row.says), plain(row.control)
        if not rung.rows:
            yield rung.name, "not run", rung.supply, ""


def _flips(run: RunReader, pair: StoredPair, flips: pd.DataFrame) -> str:
    rows = []
    for row in flips.head(MOST_FLIPS).itertuples(index=False):
        place = f"{row.position} of prompt {row.prompt}" if len(run.header.prompts) > 1 else f"{row.position}"
        tokens = [_token(run, token) for token in (row.reference_token, row.variant_token)]
        ulps = [_whole(margin) for margin in (row.reference_margin_ulps, row.variant_margin_ulps)]
        rows.append((place, *tokens, " / ".join(ulps), f"{row.max_abs:.6g}"))
    head = ("position", code(pair.reference), code(pair.variant), "margins, ULPs", "largest difference there")
    more = f"The first {MOST_FLIPS} of {len(flips):,} flips:\n\n" if len(flips) > MOST_FLIPS else "Flips:\n\n"
    return more + table(head, rows)


def _token(run: RunReader, token: int | None) -> str:
    import pandas as pd

    if token is None or pd.isna(token):
        return "none (all NaN)"
    text = run.vocabulary.get(int(token))
    return f"{int(token)}" if text is None else f"{int(token)} {code(repr(text))}"


def _whole(value: object) -> str:
    import pandas as pd

    return "undefined" if pd.isna(value) else f"{int(value)}"  # type: ignore[call-overload]
