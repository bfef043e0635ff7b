"""A run as Markdown for an issue thread: verdict, one sentence, five figures and the flips; all else is folded.

Every name, path and token comes from somebody's file: it stands in a code span or block or is escaped, so that it stays
text wherever pasted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ... import __version__
from ...text import number, out_of, percent, plural, three_digits
from ..file.kept import note_of
from ..file.records import FAILING
from ..queries.verdicts import Finding, finding, noise_ratios, ulp_percentile
from ..reader import RunReader, StoredPair
from .markdown import block, code, facts, flips_table, plain, table, thread
from .report_json import over_logits, over_positions
from .reproduction import model_of, reproduction

if TYPE_CHECKING:
    import pandas as pd

MOST_FLIPS = 5
_MOST_PROMPTS = 3  # shown in full
LONGEST_PROMPT = 2000  # characters


def issue_text(run: RunReader, pairs: Sequence[StoredPair], address: str) -> str:
    """Markdown, at most 25 lines of it unfolded. address: where the run can be looked at."""
    findings = [(pair, finding(run, pair, run.positions(pair.index))) for pair in pairs]
    findings.sort(key=lambda each: each[1].name not in FAILING)  # what fails is what the thread is about
    pair, found = findings[0]
    header, about = run.header, run.header.provenance
    origin = [f"Run {code(header.name)}", code(model_of(about)) if about.model else "", header.compute_dtype, address]
    others = [[*_pair(run, *other), *_details(run, *other)] for other in findings[1:]]
    how = [*_prompts(run, pair), *reproduction(run), _provenance(run)]
    return thread(_pair(run, pair, found), origin, others, how, _details(run, pair, found))


def _provenance(run: RunReader) -> str:
    header, about = run.header, run.header.provenance
    versions = {"ulpscope": __version__, **about.versions}
    known = {
        "model": code(model_of(about)) if about.model else "",
        "revision": code(about.revision) if about.revision else "",
        "dtype": header.compute_dtype,
        "device": plain(f"{about.device} ({about.device_name})" if about.device_name else about.device),
        "versions": plain(", ".join(f"{name} {version}" for name, version in versions.items())),
        "size": f"{plural(len(header.prompts), 'prompt')}, {plural(header.rows, 'position')}"
        + (f", {header.vocab:,} tokens" if header.vocab else ""),
        "captured" if about.kind == "capture" else "uploaded": f"{run.created:%Y-%m-%d %H:%M} UTC",
        "note": plain(about.note),
    }
    return facts(known)


def _pair(run: RunReader, pair: StoredPair, found: Finding) -> list[str]:
    """Verdict, sentence, figures and flips of a pair."""
    positions = run.positions(pair.index)
    return [
        f"### {code(pair.variant)} vs {code(pair.reference)}: {plain(found.name)}",
        plain(found.because),
        facts(_figures(run, pair), "figure"),
        _flips(run, pair, positions[positions["is_flip"]]) if pair.summary.flips else "",
    ]


def _figures(run: RunReader, pair: StoredPair) -> dict[str, str]:
    """The five figures that say most."""
    summary, header = pair.summary, run.header
    if header.k is not None:
        positions = len(run.positions(pair.index))
        return {
            "flips": f"{summary.flips:,} of {plural(positions, 'position')}",
            "values that differ": out_of(summary.neq, summary.finite),
            "largest difference": f"{number(summary.max_abs)} {header.unit}",
            "could flip": f"{summary.could_flip:,}, of them ties {summary.ties:,}",
            "smallest margin": f"{number(summary.min_margin)} {header.unit}",
        }
    elements = header.rows * header.vocab
    ratios = noise_ratios(run.evidence(pair.index))
    logits, of_kl = (
        f", {over}" if over else "" for over in (over_logits(summary, elements), over_positions(summary, header.rows))
    )
    figures = {
        "flips": f"{summary.flips:,} of {plural(header.rows, 'position')} ({percent(summary.flips / header.rows)})",
        "logits that differ": out_of(summary.neq, elements),
        "rms difference": (
            ratios[0].words
            if ratios
            else f"{number(summary.rms_row_ulps, 3)} row ULPs of {header.compute_dtype}{logits}"
        ),
        "largest difference": f"{number(summary.max_abs)} logits, {number(summary.max_row_ulps, 3)} row ULPs{logits}",
        "KL, nats": f"mean {number(summary.mean_kl, 3)}, max {number(summary.max_kl, 3)}{of_kl}",
    }
    if summary.nonfinite_mismatch:  # five stay five: NaN leaves little of KL
        figures = {"NaN or Inf on one side": plural(summary.nonfinite_mismatch, "logit"), **figures}
        del figures["KL, nats"]
    return figures


def _details(run: RunReader, pair: StoredPair, found: Finding) -> list[str]:
    """All other figures of a pair, and its checks."""
    checks = []
    for rung in found.rungs:
        checks += [(rung.name, row.outcome, plain(row.says), plain(row.control)) for row in rung.rows]
        if not rung.rows:
            checks.append((rung.name, "not run", plain(rung.supply), ""))
    shown_checks = table(("check", "outcome", "result", "control"), checks)
    if run.header.k is not None:
        return [note_of(run.header), shown_checks]
    summary, header = pair.summary, run.header
    histogram = run.histogram(pair.index)
    logits, of_kl = (
        f", {over}" if over else ""
        for over in (over_logits(summary, header.rows * header.vocab), over_positions(summary, header.rows))
    )
    figures = {
        "noise floor": "; ".join(each.words for each in noise_ratios(run.evidence(pair.index))),
        "rms difference": f"{number(summary.rms)} logits, {number(summary.rms_row_ulps, 3)} row ULPs{logits}",
        "ULPs": (
            f"median {number(ulp_percentile(histogram, 0.5))}, 99th percentile"
            f" {number(ulp_percentile(histogram, 0.99))}, mean {three_digits(summary.mean_ulps)},"
            f" max {summary.max_ulps:,} ULPs of {header.compute_dtype}{logits}"
        ),
        "near ties": f"{summary.near_ties:,}, of them ties {summary.ties:,}",
        "KL, nats": f"mean {number(summary.mean_kl, 3)}, max {number(summary.max_kl, 3)}{of_kl}",
    }
    return [plain(found.more), facts(figures, "figure"), shown_checks]


def _prompts(run: RunReader, pair: StoredPair) -> list[str]:
    """Texts of the prompts, those with flips first; their token ids if they have no texts."""
    positions = run.positions(pair.index)
    with_flips = set(positions.loc[positions["is_flip"], "prompt"].tolist())
    prompts = run.header.prompts
    order = sorted(range(len(prompts)), key=lambda place: place not in with_flips)
    parts = []
    for place in order[:_MOST_PROMPTS]:
        prompt = prompts[place]
        text = "".join(prompt.token_texts) or " ".join(map(str, prompt.token_ids))
        if text:
            cut = f", first {LONGEST_PROMPT:,} characters" if len(text) > LONGEST_PROMPT else ""
            kind = "" if prompt.token_texts else ", token ids"
            number_of = f" {place}" if len(prompts) > 1 else ""
            parts += [f"Prompt{number_of}{kind}{cut}:", block(text[:LONGEST_PROMPT])]
    if len(prompts) > _MOST_PROMPTS and parts:
        parts.append(f"{_MOST_PROMPTS} of {len(prompts):,} prompts are shown.")
    return parts


def _flips(run: RunReader, pair: StoredPair, flips: pd.DataFrame) -> str:
    import pandas as pd

    rows = []
    for row in flips.head(MOST_FLIPS).itertuples(index=False):
        place = f"{row.position} of prompt {row.prompt}" if len(run.header.prompts) > 1 else f"{row.position}"
        tokens = []
        for token in (row.reference_token, row.variant_token):
            text = None if pd.isna(token) else run.vocabulary.get(int(token))
            known = f"{token}" if text is None else f"{token} {code(repr(text))}"
            tokens.append("none (all NaN)" if pd.isna(token) else known)
        margins = (row.reference_margin_ulps, row.variant_margin_ulps)
        ulps = ["undefined" if pd.isna(margin) else f"{int(margin):,}" for margin in margins]
        rows.append((place, *tokens, " / ".join(ulps), number(row.max_abs)))
    return flips_table(len(flips), (pair.reference, pair.variant), ("margins, ULPs", "max difference there"), rows)
