"""A run as Markdown for an issue thread: verdict, one sentence, figures and the flips; all else is
folded.

Every name, path and token is untrusted: it is in a code span or block or escaped, so that it stays
text after pasting.
"""

from collections.abc import Sequence
from urllib.parse import urlsplit

from ... import __version__
from ...checks.embeddings import EmbeddingFigures, ScoreFigures
from ...evidence import Evidence
from ...hosting.start import is_loopback
from ...numerics.arrays import DataFrame
from ...packaged_models import PACKAGED
from ...text import join_bytes, number, out_of, percent, plural
from ...verdict import UNDECIDED, VERDICTS
from ..file.records import Provenance, StoredPair
from ..queries.flips import margin_texts
from ..queries.verdicts import Answer, answer_of, ulp_percentile
from ..reader import RunReader
from ..requests import command_elsewhere
from .markdown import block, code, facts, fold, plain, table
from .report_json import over_positions, over_some

MOST_FLIPS = 5
_MOST_PROMPTS = 3  # shown in full
LONGEST_PROMPT = 2000  # characters
_LONGEST_PROMPTS = 20_000  # characters of token ids that an issue takes


def issue_text(run: RunReader, pairs: Sequence[StoredPair], address: str) -> str:
    """Markdown, at most 25 lines of it unfolded. address: URL of the run's page."""
    answers = gravest_first(run, pairs)
    pair, answer = answers[0]
    header, about = run.header, run.header.provenance
    line = [
        f"Run {code(header.name)}",
        code(_model_of(about)) if about.model else "",
        header.compute_dtype,
        # for readers on other machines
        "" if is_loopback(urlsplit(address).hostname or "") else address,
    ]
    picture = f"Picture, to drag in here: {code(f'ulpscope export {run.run_id} --png pair.png')}"
    parts = [
        *_pair(run, pair, answer),
        " · ".join(filter(None, line)),
        # the command draws the gravest pair of the whole run
        picture if pairs == run.pairs else "",
    ]
    if others := answers[1:]:
        of_others = []
        for other in others:
            of_others += [*_pair(run, *other), *_details(run, *other)]
        parts.append(fold(plural(len(others), "other variant"), of_others))
    mark = {"model": code, "revision": code}
    origins = {name: mark.get(name, plain)(each) for name, each in origin(run).items() if each}
    details = [*_prompts(run, pair), *_reproduction(run), facts(origins)]
    parts.append(fold("Prompt, how to reproduce, versions", details))
    parts.append(fold("All metrics and checks", _details(run, pair, answer)))
    return "\n\n".join(filter(None, parts)) + "\n"


def gravest_first(run: RunReader, pairs: Sequence[StoredPair]) -> list[tuple[StoredPair, Answer]]:
    """Return pairs with their verdicts, the gravest first: they are what a report is about. One
    that was not judged is as grave as an undecided one.
    """
    answers = [(pair, answer_of(run, pair)) for pair in pairs]

    def place(each: tuple[StoredPair, Answer]) -> int:
        name = each[1].name
        return VERDICTS.index(name if name in VERDICTS else UNDECIDED)

    return sorted(answers, key=place)


def origin(run: RunReader) -> dict[str, str]:
    """Return what a report says of the origin of a run; '' if it is unknown."""
    header, about = run.header, run.header.provenance
    versions = {"ulpscope": __version__, **about.versions}
    shape = f"{plural(len(header.prompts), 'prompt')}, {plural(header.rows, 'position')}"
    if header.vocab:
        shape += f", vocabulary {header.vocab:,}"
    return {
        "model": _model_of(about),
        "revision": about.revision,
        "dtype": header.compute_dtype,
        "device": f"{about.device} ({about.device_name})" if about.device_name else about.device,
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "shape": shape if header.has_tokens else header.size,
        "captured" if about.kind == "capture" else "uploaded": f"{run.created:%Y-%m-%d %H:%M} UTC",
        "note": about.note,
    }


def _is_folder(about: Provenance) -> bool:
    """Return whether the model is a folder or file of the machine that captured it."""
    # a hub revision is a commit, and the digest of files begins with sha256:
    return about.revision.startswith("sha256:") and about.model not in PACKAGED


def _model_of(about: Provenance) -> str:
    """Return the model's id, or the name of its folder."""
    # never the whole path, which is of the user's machine
    return about.model.rstrip("/").rsplit("/", 1)[-1] if _is_folder(about) else about.model


def _reproduction(run: RunReader) -> list[str]:
    """Commands that compute the run on another machine, as Markdown.

    Of an upload: how its arrays are sent.
    """
    about = run.header.provenance
    typed = command_elsewhere(run, "MODEL" if _is_folder(about) else about.model)
    if typed is None:
        what = "An uploaded run has" if about.kind == "upload" else "This run has"
        if run.header.is_list:
            return [
                f"{what} no ulpscope command that reproduces it; attach the run file.",
                block(f"ulpscope ingest {run.path.name}", "sh"),
            ]
        commands = f"ulpscope export {run.run_id} logits.npz\nulpscope compare logits.npz"
        return [
            f"{what} no ulpscope command that reproduces it. Export and attach logits.npz.",
            block(commands, "sh"),
        ]
    command, prompts = typed
    notes, lines = [], []
    if about.model in PACKAGED:
        lines.append(f"ulpscope model {about.model}")
    elif _is_folder(about):
        notes.append(
            f"MODEL is a folder with the weights of {code(about.revision)}; replace it with yours.",
        )
    if len(prompts) <= _LONGEST_PROMPTS:
        # quoted, so that a shell expands nothing in the prompts
        lines += ["cat > prompts.jsonl <<'END'", prompts + "END"]
    else:
        count = plural(len(run.header.prompts), "prompt")
        notes.append(f"prompts.jsonl holds {count} as token ids, too long for here: attach it.")
    return [*notes, block("\n".join([*lines, command]), "sh")]


def _pair(run: RunReader, pair: StoredPair, answer: Answer) -> list[str]:
    """Verdict, sentence, next step, figures and flips of a pair."""
    positions = run.positions(pair.index)
    return [
        f"### {code(pair.variant)} vs {code(pair.reference)}: {plain(answer.name)}",
        plain(answer.sentence),
        f"Next: {code(answer.next_command)}" if answer.next_command else "",
        facts(
            {name: plain(value) for name, value in answer.facts.items()} | headline(run, pair),
            "metric",
        ),
        _flips(run, pair, positions[positions["is_flip"]]) if pair.summary.flips else "",
    ]


def headline(run: RunReader, pair: StoredPair) -> dict[str, str]:
    """Return the figures of a pair that say most."""
    summary, header = pair.summary, run.header
    if header.is_list:
        positions = run.compared_positions(pair.index)
        differences = {
            "values that differ": out_of(summary.neq, summary.finite),
            "largest difference": f"{number(summary.max_abs)} {header.unit}",
        }
        if header.k == 1 or summary.same_top1 is None:
            return differences
        return {
            "flips": f"{summary.flips:,} of {plural(positions, 'position')}",
            **differences,
            "could flip": f"{summary.could_flip:,} ({plural(summary.ties, 'exact tie')})",
            "smallest margin": f"{number(summary.min_margin)} {header.unit}",
        }
    total = header.rows * header.vocab
    elements = over_some(summary.finite, total, header.elements)
    over = over_positions(summary, header.rows)
    logits = elements and f", {elements}"
    figures = {}
    if header.has_tokens:
        figures["flips"] = (
            f"{summary.flips:,} of {plural(header.rows, 'position')}"
            f" ({percent(summary.flips / header.rows)})"
        )
    figures |= {
        f"{header.elements} that differ": out_of(summary.neq, total),
        "RMS difference": (
            f"{number(summary.rms_row_ulps)} row ULPs of {header.compute_dtype}{logits}"
        ),
        "largest difference": (
            f"{number(summary.max_abs)} {header.unit}, {number(summary.max_row_ulps)} row"
            f" ULPs{logits}"
        ),
    }
    if header.has_tokens:
        kl = [f"mean {number(summary.mean_kl)}", f"max {number(summary.max_kl)}", over]
        figures["KL, nats"] = ", ".join(filter(None, kl))
    figures |= order_facts(run.evidence(pair.index))
    if summary.nonfinite_mismatch:
        element = header.elements.removesuffix("s")
        figures["NaN or Inf on one side"] = plural(summary.nonfinite_mismatch, element)
    return figures


def order_facts(evidence: Sequence[Evidence]) -> dict[str, str]:
    """Return the headline figures of embeddings or scores; empty of logits."""
    headlines = {}
    for figures in (row.figures for row in evidence):
        if isinstance(figures, EmbeddingFigures):
            headlines["largest 1 - cosine"] = number(figures.largest_cosine_distance)
            if figures.neighbors_changed is not None:
                changed = out_of(figures.neighbors_changed, figures.neighbors_of or 0)
                headlines["nearest neighbors that change"] = changed
        elif isinstance(figures, ScoreFigures):
            headlines["pairs that change order"] = out_of(figures.pairs_changed, figures.pairs)
            headlines["near ties"] = f"{figures.near_ties:,}"
    return headlines


def _details(run: RunReader, pair: StoredPair, answer: Answer) -> list[str]:
    """Return the checks of a pair, and all other figures."""
    checks = [(row.outcome, plain(title), plain(row.says)) for title, row in answer.titled_checks]
    shown = [table(("outcome", "check", "result"), checks)] if checks else []
    shown.append(answer.not_run_line)
    if run.header.is_list:
        return [*shown, run.header.kept_note]
    summary, dtype = pair.summary, run.header.compute_dtype
    histogram = run.histogram(pair.index)
    median, most = (number(ulp_percentile(histogram, share)) for share in (0.5, 0.99))
    figures = {
        "RMS difference": f"{number(summary.rms)} {run.header.unit}",
        "ULPs": (
            f"median {median}, 99th percentile {most}, mean {number(summary.mean_ulps)}, max"
            f" {summary.max_ulps:,} ULPs of {dtype}"
        ),
    }
    if run.header.has_tokens:
        ties = plural(summary.ties, "exact tie")
        figures["near ties"] = f"{summary.near_ties:,} ({ties})"
    return [*shown, facts(figures, "metric")]


def _prompts(run: RunReader, pair: StoredPair) -> list[str]:
    """Texts of the prompts, those with flips first; their token ids if they have no texts."""
    positions = run.positions(pair.index)
    with_flips = set(positions.loc[positions["is_flip"], "prompt"])
    prompts = run.header.prompts
    order = sorted(enumerate(prompts), key=lambda numbered: numbered[0] not in with_flips)
    parts = []
    for place, prompt in order[:_MOST_PROMPTS]:
        # a character may be spread over several tokens
        text = "".join(join_bytes(prompt.token_texts)) or " ".join(map(str, prompt.token_ids))
        if text:
            limit = f", first {LONGEST_PROMPT:,} characters" if len(text) > LONGEST_PROMPT else ""
            kind = "" if prompt.token_texts else ", token ids"
            number_of = f" {place}" if len(prompts) > 1 else ""
            parts += [f"Prompt{number_of}{kind}{limit}:", block(text[:LONGEST_PROMPT])]
    if len(prompts) > _MOST_PROMPTS and parts:
        parts.append(f"{_MOST_PROMPTS} of {len(prompts):,} prompts are shown.")
    return parts


def _flips(run: RunReader, pair: StoredPair, flips: DataFrame) -> str:
    import pandas as pd

    rows = []
    shown = flips.head(MOST_FLIPS)
    unit, margins = margin_texts(shown, run.header.unit)
    for row, margin in zip(shown.itertuples(index=False), margins, strict=True):
        place = f"{row.position}{run.header.of_prompt(row.prompt)}"
        tokens = []
        for token in (row.reference_token, row.variant_token):
            label = "none (all NaN)"
            if not pd.isna(token):
                text = run.vocabulary.get(token)
                label = f"{token}" if text is None else f"{token} {code(repr(text))}"
            tokens.append(label)
        rows.append((place, *tokens, margin, number(row.max_abs)))
    count = f" ({len(rows)} of {len(flips):,})" if len(rows) < len(flips) else ""
    sides = code(pair.reference), code(pair.variant)
    return table(
        (f"flip at position{count}", *sides, f"margins, {unit}", "largest difference there"),
        rows,
    )
