"""A baseline for `compare`: the figures of every prompt, written once, that no later comparison may exceed.

The file is JSON for people to read and edit: a line a prompt. A figure that somebody takes out of a line is not held
any more.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...text import shown, three_digits
from ..file.evidence import FAILED, PASSED
from ..file.records import Prompt
from .gate import UNDECIDED, Outcome, Row, by_flip, by_kl, by_rms, by_share, is_kl_lost, worst_row
from .report_json import PairReport

FORMAT, VERSION = "ulpscope bounds", 1
_MOST_BYTES = 64 << 20  # a line a prompt of some 300 bytes: two hundred thousand prompts

Figures = dict[str, float | None]


@dataclass(frozen=True)
class _Held:
    """Figure of a prompt that is held to a bound: its name for people, its unit, the worst position by it, and whether
    slack widens it.
    """

    words: str
    unit: str
    key: Callable[[Row], tuple[float, ...]]
    has_slack: bool = True


def _by_max_abs(row: Row) -> tuple[float, ...]:
    return (row["max_abs"] or 0,)


def _by_mismatch(row: Row) -> tuple[float, ...]:
    return (row["nonfinite_mismatch"],)


# What can only be counted has no slack: one NaN more is no matter of degree.
_FIGURES = {
    "flips": _Held("flips", "positions", by_flip),
    "neq_share": _Held("share of elements that differ", "", by_share),
    "rms": _Held("rms", "logits", by_rms),
    "max_abs": _Held("largest difference", "logits", _by_max_abs),
    "max_kl": _Held("largest KL", "nats", by_kl),
    "kl_undefined": _Held("positions of undefined KL", "", by_kl, has_slack=False),
    "nonfinite_mismatch": _Held("values NaN or infinite on one side only", "", _by_mismatch, has_slack=False),
}


@dataclass(frozen=True)
class _Bound:
    """One line of a file. `number`: the prompt's index when it was measured."""

    number: int
    figures: Figures


@dataclass(frozen=True)
class Bounds:
    """A file of bounds that was read: of each (reference, variant), the prompts by key."""

    file: str
    compute_dtype: str
    vocab: int
    pairs: dict[tuple[str, str], dict[str, _Bound]]


def prompt_keys(prompts: Sequence[Prompt]) -> list[str]:
    """Keys by which the prompts are recognised: token ids where they are known, else index and length.

    `tokens:` and the first 16 hexadecimal digits of the SHA-256 of the ids, in decimal with single spaces; or
    `index:3:24`, the prompt with index 3, of 24 positions. The same tokens a second time get `#2`.
    """
    keys: list[str] = []
    seen: dict[str, int] = {}
    for number, prompt in enumerate(prompts):
        key = f"index:{number}:{prompt.positions}"
        if prompt.token_ids:
            key = f"tokens:{hashlib.sha256(' '.join(map(str, prompt.token_ids)).encode()).hexdigest()[:16]}"
        seen[key] = seen.get(key, 0) + 1
        keys.append(key if seen[key] == 1 else f"{key}#{seen[key]}")
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


def _by_prompt(pair: PairReport, prompts: Sequence[Prompt]) -> list[list[Row]]:
    found: list[list[Row]] = [[] for _ in prompts]
    for row in pair.rows:
        found[row["prompt"]].append(row)
    return found


def bounds_text(pairs: Sequence[PairReport], prompts: Sequence[Prompt], compute_dtype: str, vocab: int) -> str:
    """The file that holds every prompt of every pair to what it is now."""
    keys = prompt_keys(prompts)
    of_pairs = []
    for pair in pairs:
        lines = [
            json.dumps({"key": key, "prompt": number, "positions": len(rows), **_figures(rows, vocab)}, allow_nan=False)
            for number, (key, rows) in enumerate(zip(keys, _by_prompt(pair, prompts), strict=True))
        ]
        names = f'"reference": {json.dumps(pair.reference)}, "variant": {json.dumps(pair.variant)}'
        of_pairs.append("  {" + names + ', "prompts": [\n   ' + ",\n   ".join(lines) + "\n  ]}")
    head = (
        f' "format": "{FORMAT}", "version": {VERSION}, "compute_dtype": {json.dumps(compute_dtype)}, "vocab": {vocab},'
    )
    return "{\n" + head + '\n "pairs": [\n' + ",\n".join(of_pairs) + "\n ]\n}\n"


def read_bounds(path: Path) -> Bounds:
    """A file of bounds, from anybody; UsageError with one sentence where it is none."""
    try:
        with path.open("rb") as file:
            body = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror or error}); expected a file that --write-bounds wrote."
        ) from error
    if len(body) > _MOST_BYTES:
        raise _refusal(path, f"is larger than {_MOST_BYTES >> 20} MiB", "a file that --write-bounds wrote")
    try:
        told = json.loads(body.decode("utf-8"), parse_constant=_no_number, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        reason = shown(error, 120).rstrip(". ") or type(error).__name__
        raise _refusal(path, f"is no JSON that can be read ({reason})", "a file that --write-bounds wrote") from error
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise _refusal(path, "holds no bounds", f"a JSON object whose 'format' is '{FORMAT}'")
    version = told.get("version")
    if version != VERSION:
        which = f"version {shown(version, 20)}" if _is_count(version) else "no version"
        raise _refusal(path, f"is of {which}", f"version {VERSION}, which this ULPscope reads")
    compute_dtype, vocab, listed = told.get("compute_dtype"), told.get("vocab"), told.get("pairs")
    if not isinstance(compute_dtype, str) or not isinstance(vocab, int) or not isinstance(listed, list) or not listed:
        raise _refusal(path, "lacks 'compute_dtype', 'vocab' or 'pairs'", "all three, as --write-bounds writes them")
    pairs: dict[tuple[str, str], dict[str, _Bound]] = {}
    for place, pair in enumerate(listed):
        where = f"pair {place}"
        if not isinstance(pair, dict) or not isinstance(pair.get("prompts"), list):
            raise _refusal(
                path, f"has no list of prompts for {where}", "an object with 'reference', 'variant' and 'prompts'"
            )
        names = (pair.get("reference"), pair.get("variant"))
        if not all(isinstance(name, str) for name in names) or names in pairs:
            raise _refusal(
                path, f"does not name the sides of {where}, or names them twice", "two texts, each pair once"
            )
        pairs[names] = _prompts_of(path, where, pair["prompts"])  # type: ignore[index]
    return Bounds(path.name, compute_dtype, vocab, pairs)


def _prompts_of(path: Path, where: str, listed: list[Any]) -> dict[str, _Bound]:
    found: dict[str, _Bound] = {}
    for place, line in enumerate(listed):
        here = f"{where}, line {place}"
        if not isinstance(line, dict) or not isinstance(line.get("key"), str) or not _is_count(line.get("prompt")):
            raise _refusal(path, f"has no prompt at {here}", "an object with 'key', 'prompt' and figures")
        figures = {name: line[name] for name in _FIGURES if name in line}
        for name, value in figures.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e300
            if not is_number and not (value is None and name == "max_kl"):
                what = shown(value, 40) if isinstance(value, str | int | float) else "something else"
                raise _refusal(path, f"holds {what} as '{name}' at {here}", "a number from 0 up")
        if not figures:
            raise _refusal(path, f"holds no figure at {here}", f"one at least of {', '.join(_FIGURES)}")
        if line["key"] in found:
            raise _refusal(path, f"has the key '{shown(line['key'])}' twice in {where}", "each prompt once")
        found[line["key"]] = _Bound(line["prompt"], figures)
    return found


def hold(
    bounds: Bounds,
    pairs: Sequence[PairReport],
    prompts: Sequence[Prompt],
    compute_dtype: str,
    vocab: int,
    slack: float = 1.0,
) -> tuple[list[Outcome], list[str]]:
    """One outcome a pair and prompt, and sentences about what cannot be held. UsageError where nothing can.

    A prompt fails where a figure exceeds its bound times `slack`; without a bound it is undecided, and so is a bound
    whose prompt was not compared. One pair is held to one pair whatever its sides are called, several by their names.
    """
    if bounds.vocab != vocab:
        raise UsageError(
            f"{bounds.file}: was measured over a vocabulary of {bounds.vocab:,}, this is {vocab:,}: another model."
        )
    notes = []
    if bounds.compute_dtype != compute_dtype:
        notes.append(f"{bounds.file} was measured in {shown(bounds.compute_dtype, 20)}, this is {compute_dtype}.")
    known = dict(bounds.pairs)
    if len(pairs) == 1 and len(known) == 1:
        known = {(pairs[0].reference, pairs[0].variant): next(iter(known.values()))}
    keys = prompt_keys(prompts)
    outcomes: list[Outcome] = []
    held = 0
    for pair in pairs:
        lines = known.pop((pair.reference, pair.variant), {})
        held += len(lines.keys() & set(keys))
        for number, (key, rows) in enumerate(zip(keys, _by_prompt(pair, prompts), strict=True)):
            outcomes.append(_held(bounds.file, pair, number, key, rows, lines.get(key), vocab, slack))
        for key, bound in lines.items():
            if key not in keys:
                says = f"prompt {bound.number} of {bounds.file} ({shown(key)}) was not compared"
                outcomes.append(
                    Outcome(pair.reference, pair.variant, "bounds", UNDECIDED, None, "", f"{says}.", key=key)
                )
    if not held:
        whose = (
            f"it knows {shown(', '.join(key for lines in bounds.pairs.values() for key in list(lines)[:1]), 60)}, this"
            f" holds {keys[0]}"
        )
        raise UsageError(
            f"{bounds.file}: has bounds for none of these prompts ({whose}, ...); --write-bounds writes new ones."
        )
    notes += [
        f"{bounds.file}: '{shown(v, 60)}' against '{shown(r, 60)}' has bounds and was not compared." for r, v in known
    ]
    return outcomes, notes


def _held(
    file: str,
    pair: PairReport,
    number: int,
    key: str,
    rows: Sequence[Row],
    bound: _Bound | None,
    vocab: int,
    slack: float,
) -> Outcome:
    name = f"prompt {number} ({key}) of '{shown(pair.variant, 200)}' against '{shown(pair.reference, 200)}'"
    if bound is None:
        says = f"{name} has no bounds in {file}."
        return Outcome(pair.reference, pair.variant, "bounds", UNDECIDED, None, "", says, None, number, key)
    beyond, times = [], 0.0
    for figure, value in _figures(rows, vocab).items():
        has_slack = _FIGURES[figure].has_slack
        is_asked = has_slack or figure == "nonfinite_mismatch" or "max_kl" in bound.figures
        limit = bound.figures.get(figure, 0 if is_asked and not has_slack else None)
        if limit is None or value is None:  # not held, or of no position: `kl_undefined` counts those
            continue
        allowed = limit * slack if has_slack else limit
        if value > allowed:
            beyond.append((figure, value, limit))
            times = max(times, value / limit if limit else math.inf)
    if not beyond:
        return Outcome(
            pair.reference, pair.variant, "bounds", PASSED, None, "", f"{name} is within its bounds.", None, number, key
        )
    said = ", ".join(_exceeds(*one) for one in beyond)
    widened = f" times {slack:.15g}" if slack != 1 else ""
    worst = worst_row(rows, _FIGURES[beyond[0][0]].key)
    times_said = three_digits(times) if math.isfinite(times) else "infinite"
    says = f"{name} exceeds its bounds{widened}: {said}."
    return Outcome(
        pair.reference, pair.variant, "bounds", FAILED, times_said, "times its bound", says, worst, number, key
    )


def _exceeds(figure: str, value: float, limit: float) -> str:
    held = _FIGURES[figure]
    unit = f" {held.unit}" if held.unit else ""
    digits = 6
    while (
        f"{value:.{digits}g}" == f"{limit:.{digits}g}" and digits < 17
    ):  # a figure that is beyond its bound never reads as equal to it
        digits += 1
    return f"{held.words} {value:.{digits}g} over {limit:.{digits}g}{unit}"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON lets a key stand twice, and the last one would win in silence."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _refusal(path: Path, found: str, expected: str) -> UsageError:
    return UsageError(f"{path}: {found}; expected {expected}.")
