"""A run of sparse sides as Markdown for an issue thread. Every name and token comes from somebody's server: it stands
in a code span or is escaped.
"""

from __future__ import annotations

from ...errors import UsageError
from ...text import plural
from ..sparse.pairing import SparsePair
from ..sparse_run import SparseRun, SparseVerdict
from .markdown import code, plain, table
from .sparse_json import position_json, side_json, summary_json
from .sparse_wording import grid_lines, meeting_lines, opening, sentence, token_words, told, told_count

MOST_FLIPS = 5


def sparse_markdown(run: SparseRun, variant: str | None, address: str) -> str:
    """Markdown of one variant, or of all. `address`: where the run can be looked at. UsageError for no such variant."""
    pairs = [pair for pair in run.pairs if variant in (None, pair.variant)]
    if not pairs:
        raise UsageError(f"no variant '{variant}'; there are {', '.join(pair.variant for pair in run.pairs)}.")
    header, sides = run.header, [side_json(side) for side in run.sides]
    created = "" if header.created is None else f"{header.created:%Y-%m-%d %H:%M} UTC"
    facts = {
        "model": code(header.model) if header.model else "",
        "sent by": plain(", ".join(sorted({name for side in sides for name in side["formats"]}))),
        "values": plain(
            f"{run.sides[0].values}s of at most {max(side['most_a_row'] for side in sides)} tokens a row, of"
            f" {plural(sides[0]['prompts'], 'prompt')}"
        ),
        "stored": created,
        "command": code(header.command) if header.command else "",
        "note": plain(header.note),
    }
    parts = [f"### {code(header.name)}", table(("", ""), [(name, value) for name, value in facts.items() if value])]
    verdicts = {found.variant: found for found in run.verdicts}
    for pair in pairs:
        parts += _pair(pair, verdicts.get(pair.variant))
    return "\n\n".join([*parts, f"Run {code(run.run_id)}: {address}"]) + "\n"


def _pair(pair: SparsePair, verdict: SparseVerdict | None) -> list[str]:
    said = summary_json(pair)
    figures = {
        "flips": f"{told_count(said['flips'])} of {plural(len(pair.positions), 'position')}",
        "near ties": f"{told_count(said['near_ties'])}, of them ties {told_count(said['ties'])}",
        "largest change of a value": told(said["max_abs"]),
        "largest change of a probability": told(said["max_probability_change"]),
        "largest KL, nats": told(said["max_kl"]),
    }
    parts = [
        f"#### {code(pair.variant)} against {code(pair.reference)}" + (f": {plain(verdict.name)}" if verdict else ""),
        plain(opening(verdict.because)) if verdict else "",
        plain(sentence(pair)),
        table(("figure", ""), list(figures.items())),
        "\n".join(f"- {plain(line)}" for line in (*grid_lines(pair), *meeting_lines(pair), *pair.notes)),
    ]
    flips = [position_json(place, pair) for place in pair.positions if place.figures.is_flip]
    if flips:
        rows = [
            (
                f"{row['position']} of prompt {row['prompt']}" if "prompt" in row else f"{row['position']}",
                *(plain(token_words(row, side)) for side in ("reference", "variant")),
                " / ".join(told(row[f"{side}_margin"]) for side in ("reference", "variant")),
                " / ".join(told(row[f"{side}_margin_ulps"]) for side in ("reference", "variant")),
            )
            for row in flips[:MOST_FLIPS]
        ]
        more = f"The first {MOST_FLIPS} of {len(flips):,} flips:\n\n" if len(flips) > MOST_FLIPS else "Flips:\n\n"
        head = ("position", code(pair.reference), code(pair.variant), "margins", "margins, ULPs")
        parts.append(more + table(head, rows))
    return [part for part in parts if part]
