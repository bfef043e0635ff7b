"""Values that are no values of a model: recognised, named, and in no figure."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax

from core.checks.responses import PLACEHOLDERS
from core.errors import DumpError
from core.judging.explain.causes import explain_lists
from core.judging.lists import judge_responses
from core.numerics.top_tokens import summary_of
from core.responses.alignment import align
from core.responses.files import read_sides
from core.responses.formats import read_payload
from core.responses.pairing import ResponsePair, pairs_of
from core.responses.placeholders import without_placeholders
from core.verdict import IDENTICAL, INVALID_DUMP, UNDECIDED, Verdict
from tests.core.judging.test_degenerate_lists import answer, chosen, sides_of

Token = tuple[str, Any, dict[str, Any]]
WORDS = ("It", " is", " so", " warm", " here", ".", " And", " dry")


def sound(count: int = 8, shift: float = 0.0) -> list[Token]:
    """Tokens with lists of three, as an engine sends them."""
    rows = []
    for at, word in enumerate(WORDS[:count]):
        first = -0.1713 - 0.0917 * at + shift
        rows.append(
            (word, first, {word: first, " the": -1.9012 - 0.11 * at, " a": -3.3307 - 0.07 * at}),
        )
    return rows


def drafted(at: set[int], value: Any = 0.0) -> list[Token]:
    """The same tokens, some without a list and with a value that stands for nothing."""
    return [
        (word, value, {}) if row in at else (word, first, top)
        for row, (word, first, top) in enumerate(sound())
    ]


def judged(*payloads: dict[str, Any]) -> tuple[ResponsePair, Verdict]:
    sides = sides_of(*payloads)
    (pair,) = pairs_of(sides)
    (verdict,) = judge_responses(sides, [pair])
    return pair, verdict


def kinds(pair: ResponsePair) -> list[tuple[str, str, int, int]]:
    return [(one.side, one.kind, one.tokens, one.of) for one in pair.placeholders]


def test_drafted_tokens_without_a_list_are_placeholders_and_the_verdict() -> None:
    pair, verdict = judged(answer(*sound()), answer(*drafted({1, 2, 3, 5, 6, 7})))
    assert kinds(pair) == [("B", "no list", 6, 8)]
    assert (pair.common_values, pair.differing) == (6, 0)
    assert verdict.name == INVALID_DUMP
    assert verdict.because.startswith("Placeholders at 6 of 8 tokens of 'B': 0.0")


def test_timings_of_speculative_decoding_are_named() -> None:
    payload = {
        "content": "a b c",
        "tokens": [5, 6, 7],
        "tokens_evaluated": 4,
        "generation_settings": {"n_probs": 2},
        "timings": {"draft_n": 4, "draft_n_accepted": 2},
        "completion_probabilities": [
            {
                "id": 5,
                "token": "a",
                "logprob": -0.3,
                "top_logprobs": [
                    {"id": 5, "token": "a", "logprob": -0.3},
                    {"id": 9, "token": "z", "logprob": -1.7},
                ],
            },
            {"id": 6, "token": "b", "logprob": 0.0, "top_logprobs": []},
            {"id": 7, "token": "c", "logprob": 0.0, "top_logprobs": []},
        ],
    }
    pair, verdict = judged(payload, payload)
    assert kinds(pair) == [("A", "no list", 2, 3), ("B", "no list", 2, 3)]
    assert verdict.because.startswith("Placeholders at 2 of 3 tokens of 'A'")
    assert "turn speculative decoding off" in verdict.because
    assert verdict.name == INVALID_DUMP


def test_a_few_placeholders_are_left_out_and_the_rest_is_compared() -> None:
    pair, verdict = judged(answer(*sound()), answer(*drafted({2})))
    assert kinds(pair) == [("B", "no list", 1, 8)]
    assert pair.common_values == 3 * 7
    assert (verdict.name, pair.differing) == (UNDECIDED, 0)
    pair, verdict = judged(
        answer(*sound()),
        answer(*drafted({2})[:2], drafted({2})[2], *sound(shift=-0.001)[3:]),
    )
    assert (verdict.name, pair.differing) == (UNDECIDED, 5)
    assert verdict.because.startswith("Placeholders at 1 of 8 tokens")
    summary = summary_of(pair.figures)
    assert summary.max_abs == pytest.approx(0.001)


@pytest.mark.parametrize(
    "value",
    [None, -9999, -9999.0, -3.4e38, -1e30, "-inf", "-Infinity", -math.inf, -10_000.0],
)
def test_every_spelling_of_no_probability_is_one(value: Any) -> None:
    pair, verdict = judged(answer(*sound()), answer(*drafted({0, 1, 2, 3, 4}, value)))
    assert kinds(pair) == [("B", "missing", 5, 8)]
    assert verdict.name == INVALID_DUMP
    top = {" a": -0.5, " b": value}
    pair, verdict = judged(
        answer((" a", -0.5, top)),
        answer((" a", -0.5, {" a": -0.5, " b": -9999.0})),
    )
    assert (pair.placeholders, pair.common_values, pair.zeros) == ((), 1, 2)
    assert verdict.name == IDENTICAL
    assert "2 tokens of probability 0" in verdict.evidence[0].says


def test_json_with_minus_infinity_is_read_and_other_words_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, word in zip(paths, ("-Infinity", "-1e400"), strict=True):
        text = json.dumps(
            answer(
                (" a", -0.5, {" a": -0.5, " b": -77.0}),
                (" c", -0.25, {" c": -0.25, " b": -2.0}),
            ),
        )
        path.write_text(text.replace("-77.0", word))
    (pair,) = pairs_of(align(read_sides(paths)))
    assert (pair.common_values, pair.differing, pair.zeros) == (3, 0, 2)
    for word, sentence in (("NaN", "a value is nan"), ("Infinity", "expected a finite number")):
        paths[1].write_text(json.dumps(answer((" a", -0.5, {}))).replace("-0.5", word))
        with pytest.raises(DumpError, match=sentence):
            read_sides(paths)


def test_a_positive_value_is_no_log_probability_and_in_no_bound() -> None:
    values = (-0.357, -0.5015, -0.02, -0.0001)
    sent = [(word, value) for word, value in zip(WORDS, values, strict=False)]
    pair, verdict = judged(chosen(*sent), chosen((WORDS[0], 0.6997), *sent[1:]))
    assert kinds(pair) == [("B", "out of range", 1, 4)]
    assert verdict.name == UNDECIDED
    assert "+0.6997 is no log-probability (position 3)" in verdict.because
    assert summary_of(pair.figures).max_abs == 0


def test_rounding_above_0_is_a_log_probability() -> None:
    pair, _ = judged(chosen(("a", 4.8e-7), ("b", -0.5)), chosen(("a", -1e-7), ("b", -0.5)))
    assert (pair.placeholders, pair.differing) == ((), 1)


def test_probabilities_in_place_of_their_logarithms_are_named() -> None:
    logs = [
        ("x", -0.2231, {"x": -0.2231, "y": -1.7148}),
        ("z", -0.1054, {"z": -0.1054, "y": -2.5257}),
    ]
    probabilities = [
        (text, math.exp(value), {t: math.exp(v) for t, v in top.items()})
        for text, value, top in logs
    ]
    pair, verdict = judged(answer(*logs), answer(*probabilities))
    assert kinds(pair) == [("B", "probabilities", 2, 2)]
    assert (verdict.name, pair.common_values) == (INVALID_DUMP, 0)
    assert "Probabilities in place of log-probabilities" in verdict.because
    negated = [(text, -value, {t: -v for t, v in top.items()}) for text, value, top in logs]
    pair, verdict = judged(answer(*logs), answer(*negated))
    assert kinds(pair) == [("B", "out of range", 2, 2)]


@pytest.mark.parametrize("value", [0.0, -1.0, -0.25, -11.7619])
def test_one_value_for_all_tokens_is_a_placeholder(value: float) -> None:
    tokens = [(word, value) for word in WORDS]
    pair, verdict = judged(chosen(*tokens), chosen(*tokens))
    assert kinds(pair) == [("A", "constant", 8, 8), ("B", "constant", 8, 8)]
    assert verdict.name == INVALID_DUMP
    assert f"every value is {value}" in verdict.because


def test_two_tokens_of_probability_1_are_impossible() -> None:
    rows = [*sound(3), (" warm", 0.0, {" warm": 0.0, " a": 0.0})]
    pair, verdict = judged(answer(*sound(4)), answer(*rows))
    assert kinds(pair) == [("B", "sum above 1", 1, 4)]
    assert "add up to 2" in verdict.because


def test_zeros_of_chosen_tokens_are_values_of_a_sure_model() -> None:
    values = (-0.3571, 0.0, 0.0, -0.9113, 0.0, -2.1e-6, -0.00043, -0.0417)
    (side, _) = sides_of(*[chosen(*zip(WORDS, values, strict=True))] * 2)
    assert without_placeholders(side)[1] == ()


def test_a_token_with_probability_1_and_a_list_is_sound() -> None:
    """A forced token: nothing else is possible."""
    rows = [*sound(2), ("}", 0.0, {"}": 0.0, " a": -9999.0, " the": -9999.0})]
    pair, verdict = judged(answer(*rows), answer(*rows))
    assert (pair.placeholders, verdict.name) == ((), IDENTICAL)


def test_a_certain_row_on_one_side_alone_is_not_compared() -> None:
    lowest = -3.4028234663852886e38
    rows = sound()
    for at in (1, 2, 4, 5, 7):
        word = rows[at][0]
        rows[at] = (word, 0.0, {word: 0.0, " a": lowest, " the": lowest})
    pair, verdict = judged(answer(*sound()), answer(*rows))
    assert kinds(pair) == [("B", "certain", 5, 8)]
    assert (verdict.name, pair.common_values, pair.differing) == (INVALID_DUMP, 9, 0)
    pair, verdict = judged(answer(*rows), answer(*rows))
    assert (pair.placeholders, pair.certain, verdict.name) == ((), 5, UNDECIDED)


PAYLOADS = Path(__file__).with_name("payloads")


def vllm(change: Any = None) -> dict[str, Any]:
    """A real answer of vLLM with rows of its prompt, each changed by `change(own token, row)`."""
    payload = json.loads((PAYLOADS / "vllm_token_ids.json").read_text())
    (choice,) = payload["response"]["choices"]
    if change is not None:
        own = choice["prompt_token_ids"]
        choice["prompt_logprobs"][1:] = map(change, own[1:], choice["prompt_logprobs"][1:])
    return payload


def moved(_: int, row: dict[str, Any]) -> dict[str, Any]:
    return {token: {**entry, "logprob": entry["logprob"] + 1e-3} for token, entry in row.items()}


def as_a_grammar(own: int, row: dict[str, Any]) -> dict[str, Any]:
    """Tokens without letters alone are allowed, and others sent as vLLM clamps -inf."""
    return {
        token: {
            **entry,
            "logprob": entry["logprob"]
            if not entry["decoded_token"].strip().isalpha()
            else -9999.0,
        }
        for token, entry in row.items()
    }


@pytest.mark.parametrize(("payload", "tokens"), [("vllm_masked.json", 5), (as_a_grammar, 3)])
def test_a_side_that_masks_the_prompts_own_tokens_is_a_run_that_names_the_mask(
    payload: Any,
    tokens: int,
) -> None:
    """vllm_masked.json has the rows of the real answer after top-p 0.5, which leaves five of twelve
    own tokens out.
    """
    masked = (
        json.loads((PAYLOADS / payload).read_text()) if isinstance(payload, str) else vllm(payload)
    )
    sides = sides_of(vllm(), masked)
    (pair,) = pairs_of(sides)
    (verdict,) = judge_responses(sides, [pair])
    first = pair.placeholders[0]
    assert (first.side, first.kind, first.tokens) == ("B", "masked", tokens)
    assert verdict.name == INVALID_DUMP
    assert "top-p or a grammar" in verdict.because
    assert explain_lists(pair, *sides).causes[0].name == "masking"
    assert len(pair.positions) == 15


def test_a_mask_of_both_sides_and_a_difference_of_values_are_no_finding() -> None:
    pair, verdict = judged(*[json.loads((PAYLOADS / "vllm_masked.json").read_text())] * 2)
    assert (verdict.name, pair.differing) == (UNDECIDED, 0)
    pair, verdict = judged(vllm(), vllm(moved))
    assert (verdict.name, pair.placeholders) == (UNDECIDED, ())
    pair, verdict = judged(vllm(), vllm())
    assert (verdict.name, pair.placeholders) == (IDENTICAL, ())


def test_masked_rows_of_other_formats_are_kept() -> None:
    """SGLang's prompt without a value for its second token; a list by text of a token that has no
    text.
    """
    top = [[-0.5, 7, "d"], [-1.0, 8, "e"]]
    meta = {
        "prompt_tokens": 2,
        "output_token_logprobs": [[-0.1, 9, "f"]],
        "output_top_logprobs": [[[-0.1, 9, "f"]]],
    }
    own = {
        "input_token_logprobs": [[None, 4, "a"], [None, 5, "b"]],
        "input_top_logprobs": [None, top],
    }
    (found,) = read_payload({"text": "f", "meta_info": meta | own}, "A")
    assert (found.rows.positions.tolist(), found.rows.missing.tolist()) == ([0, 1], [1, 0])
    payload = vllm(
        lambda own, row: {token: entry for token, entry in row.items() if token != str(own)} or row,
    )
    choice = payload["response"]["choices"][0]
    del choice["token_ids"]
    lists = choice["logprobs"]
    lists["tokens"] = ["x", "y", "z"]
    lists["top_logprobs"] = [{"x": -0.5}, {"y": -0.5}, {"z": -0.5}]
    lists["token_logprobs"] = [-0.5] * 3
    (found,) = read_payload(payload, "A")
    assert (found.keys, int(found.rows.missing.sum())) == ("text", 12)


def test_an_emitted_value_that_its_list_contradicts_is_left_out() -> None:
    rows = [(word, 0.0, top) for word, _, top in sound(3)]
    pair, verdict = judged(answer(*sound(3)), answer(*rows))
    assert (pair.differing, pair.common_values, verdict.name) == (0, 9, IDENTICAL)
    assert any("3 emitted tokens" in note for note in pair.notes)


def test_placeholders_come_first_among_causes_and_in_the_report() -> None:
    sides = sides_of(answer(*sound()), answer(*drafted({1, 3, 4, 6, 7})))
    (pair,) = pairs_of(sides)
    assert explain_lists(pair, *sides).causes[0].name == "placeholders"
    rows = [row for row in judge_responses(sides, [pair])[0].evidence if row.check is PLACEHOLDERS]
    assert [(row.side, row.outcome, row.figures.to_json()) for row in rows] == [
        ("B", "failed", {"kind": "no list", "tokens": 5, "of": 8}),
    ]


def test_what_was_sent_stays_in_the_run() -> None:
    side, _ = sides_of(answer(*drafted({1, 2})), answer(*sound()))
    cleaned, _ = without_placeholders(side)
    assert (len(side.rows.values), len(cleaned.values)) == (20, 18)


def restricted(
    logits: np.ndarray,
    size: int,
    *,
    keep: str = "",
    temperature: float = 1.0,
) -> dict[str, Any]:
    """A chat answer: the `size` top tokens of each row, -9999.0 for those that a sampler leaves
    out.
    """
    rows: list[Token] = []
    for row in log_softmax(logits / temperature, axis=1):
        order = np.argsort(-row, kind="stable")
        shares = np.exp(row[order])
        is_kept = {
            "": np.ones(len(row), bool),
            "top-p": np.cumsum(shares) - shares < 0.9,
            "top-k": np.arange(len(row)) < 5,
            "min-p": shares >= 0.1 * shares[0],
        }[keep.removesuffix(", masked")]
        kept = 0.0 if keep.endswith("masked") else np.log(shares[is_kept].sum())
        values = np.where(is_kept, row[order] - kept, -9999.0)
        top = {
            f"t{token}": float(value) for token, value in zip(order[:size], values, strict=False)
        }
        rows.append((f"t{order[0]}", float(values[0]), top))
    return answer(*rows)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("spread", [3.0, 6.0])
@pytest.mark.parametrize("keep", ["top-p", "top-k", "min-p"])
def test_lists_after_a_sampler_are_renormalized_and_a_mask_is_not(
    keep: str,
    spread: float,
    temperature: float,
) -> None:
    """Of a spread of 3 a nucleus is often more than the 20 listed tokens, of 6 often one."""
    logits = np.random.default_rng(3).normal(0, spread, (32, 400))
    plain = restricted(logits, 20)
    sides = sides_of(plain, restricted(logits + 1e-3, 20, keep=keep, temperature=temperature))
    (pair,) = pairs_of(sides)
    names = [cause.name for cause in explain_lists(pair, *sides).causes]
    assert "renormalized" in names
    assert "placeholders" not in names[: names.index("renormalized")]
    if (keep, spread) != ("min-p", 6.0):  # which leaves too few values for a temperature
        assert ("temperature" in names) == (temperature != 1.0)
    sides = sides_of(plain, restricted(logits, 20, keep=f"{keep}, masked"))
    (pair,) = pairs_of(sides)
    assert "renormalized" not in [cause.name for cause in explain_lists(pair, *sides).causes]
