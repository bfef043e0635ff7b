"""Values that are no values of a model: recognised, named, and in no figure."""

import json
import math

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
from core.responses.pairing import pairs_of
from core.responses.placeholders import without_placeholders
from core.verdict import IDENTICAL, INVALID_DUMP, UNDECIDED
from tests.core.evidence import rows_of
from tests.core.judging.test_degenerate_lists import answer, chosen, sides_of
from tests.core.responses.made_sides import sent
from tests.places import PAYLOADS

WORDS = ("It", " is", " so", " warm", " here", ".", " And", " dry")


def sound(count=8, shift=0.0):
    """Tokens with lists of three, as an engine sends them."""
    rows = []
    for at, word in enumerate(WORDS[:count]):
        first = -0.1713 - 0.0917 * at + shift
        top = {
            word: first,
            " the": -1.9012 - 0.11 * at,
            " a": -3.3307 - 0.07 * at,
        }
        rows.append((word, first, top))
    return rows


def drafted(at, value=0.0):
    """The same tokens, some without a list and with a value that stands for nothing."""
    rows = sound()
    for row in at:
        rows[row] = (WORDS[row], value, {})
    return rows


def judged(*payloads):
    sides = sides_of(*payloads)
    (pair,) = pairs_of(sides)
    (verdict,) = judge_responses(sides, [pair])
    return pair, verdict


def kinds(pair):
    return [(one.side, one.kind, one.tokens, one.of) for one in pair.placeholders]


def test_timings_of_speculative_decoding_are_named():
    payload = sent("speculative")
    pair, verdict = judged(payload, payload)
    assert kinds(pair) == [("A", "no list", 2, 3), ("B", "no list", 2, 3)]
    assert "turn speculative decoding off" in verdict.because
    assert verdict.name == INVALID_DUMP


def test_a_few_placeholders_are_left_out_and_the_rest_is_compared():
    pair, verdict = judged(answer(*sound()), answer(*drafted({2})))
    assert kinds(pair) == [("B", "no list", 1, 8)]
    assert pair.common_values == 3 * 7
    assert verdict.name == UNDECIDED
    assert pair.differing == 0
    moved_after = drafted({2})[:3] + sound(shift=-0.001)[3:]
    pair, verdict = judged(answer(*sound()), answer(*moved_after))
    assert verdict.name == UNDECIDED
    assert pair.differing == 5
    assert verdict.because.startswith("Placeholders at 1 of 8 tokens")
    assert summary_of(pair.figures).max_abs == pytest.approx(0.001)


@pytest.mark.parametrize(
    "value",
    [
        None,
        -9999,
        -9999.0,
        -3.4e38,
        -1e30,
        "-inf",
        "-Infinity",
        -math.inf,
        -10_000.0,
    ],
)
def test_every_spelling_of_no_probability_is_one(value):
    pair, verdict = judged(
        answer(*sound()),
        answer(*drafted({0, 1, 2, 3, 4}, value)),
    )
    assert kinds(pair) == [("B", "missing", 5, 8)]
    assert verdict.name == INVALID_DUMP
    listed = answer((" a", -0.5, {" a": -0.5, " b": value}))
    clamped = answer((" a", -0.5, {" a": -0.5, " b": -9999.0}))
    pair, verdict = judged(listed, clamped)
    assert pair.placeholders == ()
    assert pair.common_values == 1
    assert pair.zeros == 2
    assert verdict.name == IDENTICAL


def test_json_with_minus_infinity_is_read_and_other_words_are_refused(tmp_path):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    text = json.dumps(answer((" a", -0.5, {" a": -0.5, " b": -77.0})))
    paths[0].write_text(text.replace("-77.0", "-Infinity"))
    paths[1].write_text(text.replace("-77.0", "-1e400"))
    (pair,) = pairs_of(align(read_sides(paths)))
    assert pair.common_values == 1
    assert pair.differing == 0
    assert pair.zeros == 2
    for word, sentence in (("NaN", "a value is nan"), ("Infinity", "expected a finite number")):
        paths[1].write_text(text.replace("-77.0", word))
        with pytest.raises(DumpError, match=sentence):
            read_sides(paths)


def test_a_positive_value_is_no_log_probability_and_in_no_bound():
    rest = [
        (" is", -0.5015),
        (" so", -0.02),
        (" warm", -0.0001),
    ]
    pair, verdict = judged(
        chosen(("It", -0.357), *rest),
        chosen(("It", 0.6997), *rest),
    )
    assert kinds(pair) == [("B", "out of range", 1, 4)]
    assert verdict.name == UNDECIDED
    assert "+0.6997 is no log-probability (position 3)" in verdict.because
    assert summary_of(pair.figures).max_abs == 0


def test_rounding_above_0_is_a_log_probability():
    pair, _ = judged(
        chosen(("a", 4.8e-7), ("b", -0.5)),
        chosen(("a", -1e-7), ("b", -0.5)),
    )
    assert pair.placeholders == ()
    assert pair.differing == 1


def test_probabilities_in_place_of_their_logarithms_are_named():
    logs = answer(
        ("x", -0.2231, {"x": -0.2231, "y": -1.7148}),
        ("z", -0.1054, {"z": -0.1054, "y": -2.5257}),
    )
    probabilities = answer(
        ("x", 0.8, {"x": 0.8, "y": 0.18}),
        ("z", 0.9, {"z": 0.9, "y": 0.08}),
    )
    negated = answer(
        ("x", 0.2231, {"x": 0.2231, "y": 1.7148}),
        ("z", 0.1054, {"z": 0.1054, "y": 2.5257}),
    )
    pair, verdict = judged(logs, probabilities)
    assert kinds(pair) == [("B", "probabilities", 2, 2)]
    assert verdict.name == INVALID_DUMP
    assert pair.common_values == 0
    pair, _ = judged(logs, negated)
    assert kinds(pair) == [("B", "out of range", 2, 2)]


@pytest.mark.parametrize("value", [0.0, -1.0, -0.25, -11.7619])
def test_one_value_for_all_tokens_is_a_placeholder(value):
    tokens = [(word, value) for word in WORDS]
    pair, verdict = judged(chosen(*tokens), chosen(*tokens))
    assert kinds(pair) == [("A", "constant", 8, 8), ("B", "constant", 8, 8)]
    assert verdict.name == INVALID_DUMP
    assert f"every value is {value}" in verdict.because


def test_two_tokens_of_probability_1_are_impossible():
    rows = [*sound(3), (" warm", 0.0, {" warm": 0.0, " a": 0.0})]
    pair, _ = judged(answer(*sound(4)), answer(*rows))
    assert kinds(pair) == [("B", "sum above 1", 1, 4)]


def test_zeros_of_chosen_tokens_are_values_of_a_sure_model():
    values = (-0.3571, 0.0, 0.0, -0.9113, 0.0, -2.1e-6, -0.00043, -0.0417)
    payload = chosen(*zip(WORDS, values, strict=True))
    side, _ = sides_of(payload, payload)
    assert without_placeholders(side)[1] == ()


def test_a_token_with_probability_1_and_a_list_is_sound():
    """A forced token: nothing else is possible."""
    rows = [
        *sound(2),
        ("}", 0.0, {"}": 0.0, " a": -9999.0, " the": -9999.0}),
    ]
    pair, verdict = judged(answer(*rows), answer(*rows))
    assert pair.placeholders == ()
    assert verdict.name == IDENTICAL


def test_a_certain_row_on_one_side_alone_is_not_compared():
    lowest = -3.4028234663852886e38
    rows = sound()
    for at in (1, 2, 4, 5, 7):
        word = WORDS[at]
        top = {word: 0.0, " a": lowest, " the": lowest}
        rows[at] = (word, 0.0, top)
    pair, verdict = judged(answer(*sound()), answer(*rows))
    assert kinds(pair) == [("B", "certain", 5, 8)]
    assert verdict.name == INVALID_DUMP
    assert pair.common_values == 9
    assert pair.differing == 0
    pair, verdict = judged(answer(*rows), answer(*rows))
    assert pair.placeholders == ()
    assert pair.certain == 5
    assert verdict.name == UNDECIDED


def vllm(change=None):
    """A real answer of vLLM with rows of its prompt, each changed by `change(own token, row)`."""
    payload = stored("vllm_token_ids")
    (choice,) = payload["response"]["choices"]
    if change is not None:
        own = choice["prompt_token_ids"]
        choice["prompt_logprobs"][1:] = map(
            change,
            own[1:],
            choice["prompt_logprobs"][1:],
        )
    return payload


def stored(name):
    return json.loads((PAYLOADS / f"{name}.json").read_text())


def moved(_, row):
    for entry in row.values():
        entry["logprob"] += 1e-3
    return row


def as_a_grammar(_, row):
    """Tokens without letters alone are allowed, and others sent as vLLM clamps -inf."""
    for entry in row.values():
        if entry["decoded_token"].strip().isalpha():
            entry["logprob"] = -9999.0
    return row


def without_own(own, row):
    if len(row) > 1:
        row.pop(str(own), None)
    return row


@pytest.mark.parametrize(
    ("masked", "tokens"),
    # the rows of the real answer after top-p 0.5, which leaves five of twelve own tokens out
    [(stored("vllm_masked"), 5), (vllm(as_a_grammar), 3)],
)
def test_a_side_that_masks_the_prompts_own_tokens_is_a_run_that_names_the_mask(masked, tokens):
    pair, verdict = judged(vllm(), masked)
    first = pair.placeholders[0]
    assert first.side == "B"
    assert first.kind == "masked"
    assert first.tokens == tokens
    assert verdict.name == INVALID_DUMP
    assert causes_of(vllm(), masked)[0] == "masking"
    assert len(pair.positions) == 15


def test_a_mask_of_both_sides_and_a_difference_of_values_are_no_finding():
    pair, verdict = judged(stored("vllm_masked"), stored("vllm_masked"))
    assert verdict.name == UNDECIDED
    assert pair.differing == 0
    pair, verdict = judged(vllm(), vllm(moved))
    assert verdict.name == UNDECIDED
    assert pair.placeholders == ()
    pair, verdict = judged(vllm(), vllm())
    assert verdict.name == IDENTICAL
    assert pair.placeholders == ()


def test_masked_rows_of_other_formats_are_kept():
    """SGLang's prompt without a value for its second token; a list by text of a token that has no
    text.
    """
    payload = sent("sglang")
    payload["response"]["meta_info"]["input_token_logprobs"][1][0] = None
    payload["response"]["meta_info"]["input_top_logprobs"][1].pop()
    (found,) = read_payload(payload, "A")
    assert found.rows.missing.tolist() == [1, 0, 0]
    payload = vllm(without_own)
    choice = payload["response"]["choices"][0]
    del choice["token_ids"]
    choice["logprobs"] = {
        "tokens": ["x", "y", "z"],
        "top_logprobs": [
            {"x": -0.5},
            {"y": -0.5},
            {"z": -0.5},
        ],
        "token_logprobs": [-0.5] * 3,
    }
    (found,) = read_payload(payload, "A")
    assert found.keys == "text"
    assert int(found.rows.missing.sum()) == 12


def test_an_emitted_value_that_its_list_contradicts_is_left_out():
    rows = [(word, 0.0, top) for word, _, top in sound(3)]
    pair, verdict = judged(answer(*sound(3)), answer(*rows))
    assert pair.differing == 0
    assert pair.common_values == 9
    assert verdict.name == IDENTICAL
    assert any("3 emitted tokens" in note for note in pair.notes)


def test_placeholders_come_first_among_causes_and_in_the_report():
    payloads = answer(*sound()), answer(*drafted({1, 3, 4, 6, 7}))
    assert causes_of(*payloads)[0] == "placeholders"
    _, verdict = judged(*payloads)
    (row,) = rows_of(verdict.evidence, PLACEHOLDERS)
    assert row.side == "B"
    assert row.outcome == "failed"
    assert row.figures.to_json() == {
        "kind": "no list",
        "tokens": 5,
        "of": 8,
    }


def test_what_was_sent_stays_in_the_run():
    side, _ = sides_of(answer(*drafted({1, 2})), answer(*sound()))
    cleaned, _ = without_placeholders(side)
    assert len(side.rows.values) == 20
    assert len(cleaned.values) == 18


def restricted(logits, *, keep="", temperature=1.0, renormalize=True):
    """A chat answer: the 20 top tokens of each row, -9999.0 for those that a sampler leaves out."""
    rows = []
    for row in log_softmax(logits / temperature, axis=1):
        order = np.argsort(-row, kind="stable")
        logs = row[order]
        shares = np.exp(logs)
        is_kept = {
            "": np.ones(len(row), bool),
            "top-p": np.cumsum(shares) - shares < 0.9,
            "top-k": np.arange(len(row)) < 5,
            "min-p": shares >= 0.1 * shares[0],
        }[keep]
        if renormalize:
            logs = logs - np.log(shares[is_kept].sum())
        values = np.where(is_kept, logs, -9999.0)[:20].tolist()
        tokens = [f"t{token}" for token in order[:20]]
        rows.append((tokens[0], values[0], dict(zip(tokens, values, strict=True))))
    return answer(*rows)


def causes_of(reference, variant):
    sides = sides_of(reference, variant)
    (pair,) = pairs_of(sides)
    return [cause.name for cause in explain_lists(pair, *sides).causes]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("spread", [3.0, 6.0])
@pytest.mark.parametrize("keep", ["top-p", "top-k", "min-p"])
def test_lists_after_a_sampler_are_renormalized_and_a_mask_is_not(keep, spread, temperature):
    """Of a spread of 3 a nucleus is often more than the 20 listed tokens, of 6 often one."""
    logits = np.random.default_rng(3).normal(0, spread, (32, 400))
    plain = restricted(logits)
    sampled = restricted(logits + 1e-3, keep=keep, temperature=temperature)
    names = causes_of(plain, sampled)
    assert "renormalized" in names
    assert "placeholders" not in names[: names.index("renormalized")]
    # min-p leaves too few values of a wide row for a temperature
    if (keep, spread) != ("min-p", 6.0):
        assert ("temperature" in names) == (temperature != 1.0)
    masked = restricted(logits, keep=keep, renormalize=False)
    assert "renormalized" not in causes_of(plain, masked)
