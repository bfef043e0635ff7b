"""A run of sparse sides as Markdown for an issue thread, in the form of `issue_markdown`. Every name and token comes
from somebody's server: it stands in a code span or block or is escaped.
"""

from __future__ import annotations

from ... import __version__
from ...errors import UsageError
from ...text import plural
from ..file.records import FAILING
from ..sparse_run import SparseRun, SparseVerdict
from ..topk.pairing import ListPair
from ..topk.records import UNKNOWN_TOKEN, Response
from .issue_markdown import LONGEST_PROMPT, MOST_FLIPS
from .markdown import block, code, facts, flips_table, plain, thread
from .sparse_json import position_json, side_json, summary_json
from .sparse_wording import (
    grid_lines,
    meeting_lines,
    opening,
    placeholder_words,
    sentence,
    token_words,
    told,
    told_count,
)


def sparse_markdown(run: SparseRun, variant: str | None, address: str) -> str:
    """Markdown of one variant, or of all, at most 25 lines of it unfolded. address: where the run can be looked at.
    UsageError if there is no such variant.
    """
    pairs = [pair for pair in run.pairs if variant in (None, pair.variant)]
    if not pairs:
        raise UsageError(f"no variant '{variant}'; there are {', '.join(pair.variant for pair in run.pairs)}.")
    verdicts = {found.variant: found for found in run.verdicts}
    names = {pair.variant: verdicts[pair.variant].name for pair in pairs if pair.variant in verdicts}
    pairs.sort(key=lambda pair: names.get(pair.variant) not in FAILING)
    header, first = run.header, pairs[0]
    origin = [f"Run {code(header.name)}", code(header.model) if header.model else "", address]
    others = [[*_pair(pair, verdicts.get(pair.variant)), _lines(pair)] for pair in pairs[1:]]
    how = [*_prompt(run.sides[0].responses[0]), *_provenance(run)]
    summary = summary_json(first)
    more = facts({"min margin": told(summary["min_margin"]), "mean KL, nats": told(summary["mean_kl"])}, "figure")
    return thread(_pair(first, verdicts.get(first.variant)), origin, others, how, [more, _lines(first)])


def _prompt(response: Response) -> list[str]:
    """Text of the first prompt, or its token ids."""
    tokens = response.tokens[: None if response.generated_from is None else response.generated_from + 1]
    if not response.start_known or not tokens or UNKNOWN_TOKEN in tokens:
        return []
    is_text = all(token in response.texts for token in tokens)
    text = "".join(response.texts[token] for token in tokens) if is_text else " ".join(map(str, tokens))
    if response.keys == "text" and not is_text:  # ids are places in a list of this response
        return []
    return [f"First prompt{'' if is_text else ', token ids'}:", block(text[:LONGEST_PROMPT])]


def _provenance(run: SparseRun) -> list[str]:
    header, sides = run.header, [side_json(side) for side in run.sides]
    versions = {"ulpscope": __version__, **header.versions}
    known = {
        "model": code(header.model) if header.model else "",
        "sent by": plain(", ".join(sorted({name for side in sides for name in side["formats"]}))),
        "values": plain(
            f"{run.sides[0].values}s of at most {plural(max(side['most_a_row'] for side in sides), 'token')} per row,"
            f" {plural(sides[0]['prompts'], 'prompt')}"
        ),
        "versions": plain(", ".join(f"{name} {version}" for name, version in versions.items())),
        "stored": "" if header.created is None else f"{header.created:%Y-%m-%d %H:%M} UTC",
        "note": plain(header.note),
    }
    command = f"ulpscope export {run.run_id} responses.jsonl   # to attach\nulpscope ingest responses.jsonl"
    return [block(command, "sh"), f"Sent by {code(header.command)}" if header.command else "", facts(known)]


def _pair(pair: ListPair, verdict: SparseVerdict | None) -> list[str]:
    """Verdict, sentence, figures and flips of a pair."""
    told_all = summary_json(pair)
    figures = {
        "flips": f"{told_count(told_all['flips'])} of {plural(len(pair.positions), 'position')}",
        "could flip": f"{told_count(told_all['could_flip'])}, of them ties {told_count(told_all['ties'])}",
        "max change of a value": told(told_all["max_abs"]),
        "max change of a probability": told(told_all["max_probability_change"]),
        "max KL, nats": told(told_all["max_kl"]),
    }
    flips = [position_json(place, pair) for place in pair.positions if place.figures.is_flip]
    rows = []
    for row in flips[:MOST_FLIPS]:
        place = f"{row['position']} of prompt {row['prompt']}" if "prompt" in row else f"{row['position']}"
        tokens, margins, ulps = (
            [say(side) for side in ("reference", "variant")]
            for say in (
                lambda side, row=row: plain(token_words(row, side)),
                lambda side, row=row: told(row[f"{side}_margin"]),
                lambda side, row=row: told(row[f"{side}_margin_ulps"]),
            )
        )
        rows.append((place, *tokens, " / ".join(margins), " / ".join(ulps)))
    title = f"### {code(pair.variant)} vs {code(pair.reference)}"
    return [
        f"{title}: {plain(verdict.name)}" if verdict else title,
        plain(opening(verdict.because)) if verdict else plain(f"{placeholder_words(pair)} {sentence(pair)}".strip()),
        facts(figures, "figure"),
        flips_table(len(flips), (pair.reference, pair.variant), ("margins", "margins, ULPs"), rows) if flips else "",
    ]


def _lines(pair: ListPair) -> str:
    """Lines on the pair's values and texts, as a list."""
    lines = (sentence(pair), *grid_lines(pair), *meeting_lines(pair), *pair.notes)
    return "\n".join(f"- {plain(line)}" for line in lines)
