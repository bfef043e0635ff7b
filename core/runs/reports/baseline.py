"""A baseline for `compare`: the figures of every prompt, written once, that no later comparison may exceed.

The file is JSON for people to read and edit: a line a prompt. A figure that is taken out of a line is not held.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ...errors import UsageError
from ...text import shown, three_digits
from ..file.evidence import FAILED, PASSED
from ..file.records import Prompt, RunHeader
from .gate import MEASURES, UNDECIDED, Key, Outcome, Row, by_flip, by_kl, is_kl_lost, worst_row
from .report_json import PairReport

_MOST_BYTES = 64 << 20  # a line a prompt of some 300 bytes: two hundred thousand prompts

Figures = Mapping[str, float | None]
# Figure: its name for people, its unit, the rank of a position by it.
_FIGURES: dict[str, tuple[str, str, Key]] = {
    "flips": ("flips", " positions", by_flip),
    "neq_share": ("share of elements that differ", "", MEASURES["share"].key),
    "rms": ("rms", " logits", MEASURES["rms"].key),
    "max_abs": ("largest difference", " logits", lambda row: (row["max_abs"] or 0,)),
    "max_kl": ("largest KL", " nats", by_kl),
    "kl_undefined": ("positions of undefined KL", "", by_kl),
    "nonfinite_mismatch": ("values NaN or infinite on one side only", "", lambda row: (row["nonfinite_mismatch"],)),
}
_COUNTED = ("kl_undefined", "nonfinite_mismatch")  # no slack: one NaN more is no matter of degree
_Figure = Annotated[float, msgspec.Meta(ge=0, lt=1e300)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]


class Bound(msgspec.Struct):
    """One line of a file. prompt: its index when it was measured; a figure that is UNSET is not held."""

    key: str
    prompt: _Count
    flips: _Figure | UnsetType = UNSET
    neq_share: _Figure | UnsetType = UNSET
    rms: _Figure | UnsetType = UNSET
    max_abs: _Figure | UnsetType = UNSET
    max_kl: _Figure | UnsetType | None = UNSET
    kl_undefined: _Figure | UnsetType = UNSET
    nonfinite_mismatch: _Figure | UnsetType = UNSET


class _Pair(msgspec.Struct):
    reference: str
    variant: str
    prompts: list[Bound]


class _File(msgspec.Struct):
    format: Literal["ulpscope bounds"]
    version: Literal[1]
    compute_dtype: str
    vocab: _Count
    pairs: Annotated[list[_Pair], msgspec.Meta(min_length=1)]


@dataclass(frozen=True)
class Bounds:
    """A file of bounds that was read: of each (reference, variant), the prompts by key."""

    file: str
    compute_dtype: str
    vocab: int
    pairs: dict[tuple[str, str], dict[str, Bound]]


def prompt_keys(prompts: Sequence[Prompt]) -> list[str]:
    """Keys by which the prompts are recognised: token ids if they are known, else index and length.

    `tokens:` and the first 16 hexadecimal digits of the SHA-256 of the ids, in decimal with single spaces; or
    `index:3:24`, the prompt with index 3, of 24 positions. The same tokens a second time get `#2`.
    """
    keys: list[str] = []
    counts: dict[str, int] = {}
    for number, prompt in enumerate(prompts):
        key = f"index:{number}:{prompt.positions}"
        if prompt.token_ids:
            key = f"tokens:{hashlib.sha256(' '.join(map(str, prompt.token_ids)).encode()).hexdigest()[:16]}"
        counts[key] = counts.get(key, 0) + 1
        keys.append(key if counts[key] == 1 else f"{key}#{counts[key]}")
    return keys


def _figures(rows: Sequence[Row], vocab: int) -> Figures:
    """Figures of one prompt that are held to bounds, from its rows."""
    kls = [row["kl"] for row in rows if row["kl"] is not None]
    return {
        "flips": sum(row["is_flip"] for row in rows),
        "neq_share": sum(row["neq"] for row in rows) / (len(rows) * vocab),
        "rms": math.sqrt(math.fsum(row["rms"] ** 2 for row in rows) / len(rows)),
        "max_abs": max(row["max_abs"] for row in rows),
        "max_kl": max(kls, default=None),
        "kl_undefined": sum(is_kl_lost(row) for row in rows),
        "nonfinite_mismatch": sum(row["nonfinite_mismatch"] for row in rows),
    }


def _by_prompt(pair: PairReport, header: RunHeader) -> list[list[Row]]:
    by_prompt: list[list[Row]] = [[] for _ in header.prompts]
    for row in pair.rows:
        by_prompt[row["prompt"]].append(row)
    return by_prompt


def bounds_text(pairs: Sequence[PairReport], header: RunHeader) -> str:
    """The file that holds every prompt of every pair to what it is now."""
    keys, dtype, vocab = prompt_keys(header.prompts), header.compute_dtype, header.vocab
    of_pairs = []
    for pair in pairs:
        lines = [
            json.dumps({"key": key, "prompt": number, "positions": len(rows), **_figures(rows, vocab)}, allow_nan=False)
            for number, (key, rows) in enumerate(zip(keys, _by_prompt(pair, header), strict=True))
        ]
        names = f'"reference": {json.dumps(pair.reference)}, "variant": {json.dumps(pair.variant)}'
        of_pairs.append("  {" + names + ', "prompts": [\n   ' + ",\n   ".join(lines) + "\n  ]}")
    head = f' "format": "ulpscope bounds", "version": 1, "compute_dtype": {json.dumps(dtype)}, "vocab": {vocab},'
    return "{\n" + head + '\n "pairs": [\n' + ",\n".join(of_pairs) + "\n ]\n}\n"


def read_bounds(path: Path) -> Bounds:
    """Read a file of bounds; UsageError if it is none."""
    try:
        with path.open("rb") as file:
            body = file.read(_MOST_BYTES + 1)
        if len(body) > _MOST_BYTES:
            raise UsageError(f"{path}: is larger than {_MOST_BYTES >> 20} MiB; expected a file of --write-bounds.")
        content = msgspec.json.decode(body, type=_File)
        pairs = {(pair.reference, pair.variant): {line.key: line for line in pair.prompts} for pair in content.pairs}
        if sum(map(len, pairs.values())) < sum(len(pair.prompts) for pair in content.pairs):
            raise ValueError("a pair or a key stands twice")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (ValueError, RecursionError) as error:
        reason = shown(error, 120).rstrip(". ")
        raise UsageError(f"{path}: holds no bounds ({reason}); expected a file of --write-bounds.") from error
    return Bounds(path.name, content.compute_dtype, content.vocab, pairs)


def hold(
    bounds: Bounds, pairs: Sequence[PairReport], header: RunHeader, slack: float = 1.0
) -> tuple[list[Outcome], list[str]]:
    """One outcome a pair and prompt, and notes on what has no counterpart. UsageError if no prompt has bounds.

    A prompt fails if a figure exceeds its bound times `slack`; without a bound it is undecided, and so is a bound
    whose prompt was not compared. One pair is held to one pair whatever its sides are called, several by their names.
    """
    compute_dtype, vocab = header.compute_dtype, header.vocab
    if bounds.vocab != vocab:
        raise UsageError(
            f"{bounds.file}: was measured over a vocabulary of {bounds.vocab:,}, this is {vocab:,}: another model."
        )
    notes = []
    if bounds.compute_dtype != compute_dtype:
        notes.append(f"{bounds.file} was measured in {shown(bounds.compute_dtype, 20)}, this is {compute_dtype}.")
    unused, keys = dict(bounds.pairs), prompt_keys(header.prompts)
    if len(pairs) == 1 and len(unused) == 1:
        unused = {(pairs[0].reference, pairs[0].variant): next(iter(unused.values()))}
    outcomes: list[Outcome] = []
    for pair in pairs:
        lines = unused.pop((pair.reference, pair.variant), {})
        sides = f"'{shown(pair.variant, 200)}' against '{shown(pair.reference, 200)}'"
        for number, (key, rows) in enumerate(zip(keys, _by_prompt(pair, header), strict=True)):
            outcome, figure, says, worst = UNDECIDED, None, f"has no bounds in {bounds.file}", None
            if key in lines:
                outcome, figure, says, worst = _check(rows, lines[key], vocab, slack)
            unit = "times its bound" if figure else ""
            says = f"prompt {number} ({key}) of {sides} {says}."
            outcomes.append(
                Outcome(pair.reference, pair.variant, "bounds", outcome, figure, unit, says, worst, number, key)
            )
        for key in lines.keys() - set(keys):
            says = f"prompt {lines[key].prompt} of {bounds.file} ({shown(key)}) was not compared."
            outcomes.append(Outcome(pair.reference, pair.variant, "bounds", UNDECIDED, None, "", says, key=key))
    if all(outcome.outcome == UNDECIDED for outcome in outcomes):
        some = shown(next((key for lines in bounds.pairs.values() for key in lines), "none"), 60)
        raise UsageError(
            f"{bounds.file}: has bounds for none of these prompts (it has {some}, this is {keys[0]}); --write-bounds"
            " writes new ones."
        )
    notes += [
        f"{bounds.file}: '{shown(v, 60)}' against '{shown(r, 60)}' has bounds and was not compared." for r, v in unused
    ]
    return outcomes, notes


def _check(rows: Sequence[Row], bound: Bound, vocab: int, slack: float) -> tuple[str, str | None, str, Row | None]:
    """Return the outcome, how many times the bound, a clause and the worst row of one prompt."""
    own = {name: limit for name in _FIGURES if (limit := getattr(bound, name)) is not UNSET}
    limits = {"nonfinite_mismatch": 0, **({"kl_undefined": 0} if "max_kl" in own else {}), **own}
    excesses: list[str] = []
    times, worst = 0.0, None
    for figure, value in _figures(rows, vocab).items():
        limit = limits.get(figure)
        if limit is None or value is None or value <= limit * (1 if figure in _COUNTED else slack):
            continue
        words, unit, key = _FIGURES[figure]
        # A figure beyond its bound never reads as equal to it.
        digits = next(n for n in range(6, 18) if n == 17 or f"{value:.{n}g}" != f"{limit:.{n}g}")
        worst = worst if excesses else worst_row(rows, key)
        excesses.append(f"{words} {value:.{digits}g} over {limit:.{digits}g}{unit}")
        times = max(times, value / limit if limit else math.inf)
    if not excesses:
        return PASSED, None, "is within its bounds", None
    factor = f" times {slack:.15g}" if slack != 1 else ""
    figure = three_digits(times) if math.isfinite(times) else "infinite"
    return FAILED, figure, f"exceeds its bounds{factor}: {', '.join(excesses)}", worst
