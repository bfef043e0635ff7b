"""What engines send, read by content: real answers of llama.cpp and vLLM, other engines' as their
sources say.
"""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from core.errors import DumpError
from core.judging.lists import judge_responses
from core.responses import bounded_json
from core.responses.alignment import align
from core.responses.bounded_json import is_payload
from core.responses.files import sides_of
from core.responses.formats import read_payload, read_responses
from core.responses.pairing import pairs_of
from core.responses.records import ResponseSide
from core.verdict import IDENTICAL, UNDECIDED
from tests.core.responses.made_sides import by_text, pair_of, places_of, row_of, sent
from tests.places import PAYLOADS


def one(payload):
    (found,) = read_payload(payload, "here")
    return found


def test_a_real_answer_of_llama_cpp_chat():
    """Three tokens after a prompt of 32, of which the template's ids are not said."""
    (found,) = read_responses(PAYLOADS / "llamacpp_chat.json")
    assert found.format == "OpenAI chat"
    assert found.keys == "token_id"
    assert found.tokens == (-1,) * 32 + (57, 5248, 18948)
    assert places_of(found) == [31, 32, 33]
    assert row_of(found, 0) == {
        57: -2.2564542293548584,
        19556: -2.3952271938323975,
        10813: -2.975816488265991,
    }
    assert found.text == "I'm glad"
    assert found.cached == 0


def test_a_real_answer_of_llama_cpp_completion():
    (found,) = read_responses(PAYLOADS / "llamacpp_completion.json")
    assert found.format == "llama.cpp completion"
    assert found.top_logprobs == 3
    assert len(found.tokens) == 23
    assert found.generated_from == 19
    assert found.rows.targets.tolist() == [30, 15664, 1000]


def test_a_real_answer_of_vllm_with_prompt_logprobs():
    """127 tokens of the prompt have 126 rows, each of the three best and its own token; then eight
    generated ones.
    """
    path = PAYLOADS / "vllm_completions.json"
    (found,) = read_responses(path)
    choice = json.loads(path.read_text())["choices"][0]
    assert places_of(found) == list(range(134))
    assert found.generated_from == 126
    for index, row in enumerate(choice["prompt_logprobs"][1:]):
        entries = row.values()
        assert by_text(found, index) == {e["decoded_token"]: e["logprob"] for e in entries}
        # the prompt's own token is the fourth best, or from further down
        is_fourth = any(entry["rank"] == 4 for entry in entries)
        assert found.rows.best[index] == (4 if is_fourth else 3)
    for index, top in enumerate(choice["logprobs"]["top_logprobs"], start=126):
        assert by_text(found, index) == top
        assert found.rows.best[index] == 5


def test_a_real_answer_is_equal_to_itself_in_all_that_was_sent():
    for path in PAYLOADS.glob("*.json"):
        (found,) = read_responses(path)
        pair = pair_of(found, found)
        assert len(pair.positions) == len(found.rows)
        assert pair.differing == 0


def test_echoed_completions_begin_without_a_row():
    found = one(sent("echoed"))
    assert places_of(found) == [0, 1]
    assert by_text(found, 0) == {" b": -1.0, " x": -0.75}
    assert found.generated_from == 1
    assert found.keys == "text"


def test_sglang():
    found = one(sent("sglang"))
    assert found.tokens == (4, 5, 6, 9)
    assert row_of(found, 0) == {7: -0.75, 5: -1.0}
    assert row_of(found, 1) == {6: -0.5, 8: -2.0}
    assert row_of(found, 2) == {9: -0.125, 1: -3.0}
    assert places_of(found) == [0, 1, 2]
    assert found.generated_from == 2
    assert found.cached == 2


def test_sglang_from_a_later_start():
    """`logprob_start_len` 2 of four tokens: the rows given end at the last token of the prompt."""
    found = one(sent("sglang_from_2"))
    assert places_of(found) == [2, 3]
    assert found.rows.targets.tolist() == [7, 9]
    # chosen tokens alone say nothing of the best
    assert found.rows.best.tolist() == [0, 0]


def test_ollama():
    ollama = one(sent("ollama"))
    assert ollama.keys == "text"
    assert not ollama.start_known
    assert by_text(ollama, 0) == {"b": -0.5, "<0xF0><0x9F>": -1.0}


def test_a_request_beside_its_response_says_tokens_and_settings():
    logprobs = {"content": [{"id": 7, "logprob": -1.0}]}
    response = {"choices": [{"text": "", "logprobs": logprobs}]}
    found = one({"request": {"prompt": [4, 5], "logprobs": 1}, "response": response})
    assert found.tokens == (4, 5, 7)
    assert found.top_logprobs == 1


TWO = {"a": -1.0, "b": -2.0}


@pytest.mark.parametrize(
    ("lists", "best"),
    [
        # the first of each is chosen: greedy
        ([TWO, TWO], [2, 2]),
        # one more, from further down
        (
            [{"b": -1.0, "c": -2.0, "a": -3.0}, TWO],
            [2, 2],
        ),
        # the chosen token, or the best: undecidable
        (
            [{"a": -1.0}, {"a": -2.0}],
            [0, 0],
        ),
        # a token is lost: two print alike
        ([TWO | {"c": -3.0}, TWO], [3, 0]),
    ],
)
def test_lists_by_text_count_as_best_only_what_must_be(lists, best):
    values = [each["a"] for each in lists]
    found = one(completions(["a"] * len(lists), values, lists))
    assert found.rows.best.tolist() == best


def test_lines_lists_and_several_choices_are_several_responses(tmp_path):
    answer = sent("vllm")
    lines = tmp_path / "lines.bin"
    lines.write_text(
        "\n".join(
            [
                json.dumps(answer),
                "",
                json.dumps(answer),
            ]
        )
    )
    assert is_payload(lines)
    assert len(read_responses(lines)) == 2
    lines.write_text(json.dumps([answer, {"choices": answer["choices"] * 2}]))
    assert len(read_responses(lines)) == 3
    lines.write_text(json.dumps(answer, indent=1))
    assert len(read_responses(lines)) == 1


HOSTILE = {
    "no JSON": ("{nonsense", "no JSON"),
    "deep": ("[" * 100_000 + "]" * 100_000, "nested too deeply|no JSON"),
    "deep lists": ("[" * 950 + "]" * 950, "nested too deeply|no JSON"),
    "NaN": (
        '{"choices": [{"logprobs": {"content": [{"id": 1, "logprob": NaN}]}}]}',
        "a value is nan",
    ),
    "no response": ('{"a": 1}', "keys are 'a'"),
    "null": ("[null]", "expected a JSON object"),
    "an error": ('{"error": {"message": "out of memory"}}', "out of memory"),
    "choices that are none": ('{"choices": 7}', "Expected `array`, got `int`"),
    "without values": ('{"choices": [{"text": "a"}]}', "without log-probabilities"),
    "a text as value": (
        '{"choices": [{"logprobs": {"content": [{"id": 1, "logprob": "x"}]}}]}',
        "a value is x",
    ),
    "a negative id": (
        '{"choices": [{"logprobs": {"content": [{"id": -1, "logprob": 0}]}}]}',
        "Expected `int` >= 0",
    ),
    "a huge value": (
        '{"choices": [{"logprobs": {"content": [{"id": 1, "logprob": 1e400}]}}]}',
        "finite number",
    ),
    "a huge integer": (
        '{"choices": [{"logprobs": {"content": [{"id": 1, "logprob": 1' + "0" * 400 + "}]}}]}",
        "out of range",
    ),
    "lists of other lengths": (
        '{"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [], "top_logprobs": []}}]}',
        "expected as many",
    ),
    "texts that print alike": (
        (
            '{"logprobs": [{"token": "a", "logprob": -1, "top_logprobs": '
            '[{"token": "a", "logprob": -1}, {"token": "a", "logprob": -2}]}]}'
        ),
        "a token has two values",
    ),
    "a flat array": (
        (
            '{"meta_info": {"output_token_logprobs": [[-1, 1, null]], "output_top_logprobs_shape":'
            " [1, 1]}}"
        ),
        "flat array",
    ),
    "probabilities after sampling": (
        (
            '{"completion_probabilities": [{"id": 5, "prob": 0.75, "top_probs": [{"id": 5, "prob":'
            " 0.75}]}]}"
        ),
        "post_sampling_probs",
    ),
    "a prompt of two billion tokens": (
        (
            '{"usage": {"prompt_tokens": 2000000000}, "choices": [{"logprobs": {"content": [{"id":'
            ' 1, "logprob": -1}]}}]}'
        ),
        "declares a prompt of",
    ),
    "a text as content": (
        '{"object": "response", "output": [{"content": ["x"]}]}',
        "Expected `object`, got `str`",
    ),
    "a first token with a row": (
        '{"choices": [{"prompt_logprobs": [{"1": {"logprob": -1}}]}]}',
        "expected null for the first token",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_response_gets_one_sentence(tmp_path, name):
    text, sentence = HOSTILE[name]
    path = tmp_path / "payload.json"
    path.write_text(text)
    with pytest.raises(DumpError, match=sentence) as refused:
        read_responses(path)
    assert "\n" not in str(refused.value)
    assert "payload.json" in str(refused.value)


def test_a_document_beyond_the_bound_is_not_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_json, "MAX_BYTES", 100)
    path = tmp_path / "payload.json"
    path.write_text(json.dumps({"choices": ["x" * 200]}))
    with pytest.raises(DumpError, match="more than 100 bytes"):
        read_responses(path)


def test_a_name_that_is_not_utf8_can_be_read(tmp_path):
    path = tmp_path / "\udcff.json"
    path.write_bytes(b'{"a": 1}')
    with bounded_json.open_plain(path) as file:
        assert file.read() == b'{"a": 1}'


def test_is_payload_looks_at_the_beginning(tmp_path):
    path = tmp_path / "x.npz"
    for data, expected in (
        (b" \n{}", True),
        (b"\xef\xbb\xbf[", True),
        (b"PK\x03\x04", False),
        (b"", False),
    ):
        path.write_bytes(data)
        assert is_payload(path) is expected


def test_a_real_answer_of_vllm_by_token_ids_scores_its_prompt_and_what_it_made():
    """A probe of vLLM 0.32 was answered so: ids in and out, rows of the prompt with the generated
    ones.
    """
    path = PAYLOADS / "vllm_token_ids.json"
    (found,) = read_responses(path)
    log = json.loads(path.read_text())
    prompt = log["request"]["prompt"]
    choice = log["response"]["choices"][0]
    made = choice["token_ids"]
    assert found.keys == "token_id"
    assert list(found.tokens) == prompt + made
    assert places_of(found) == list(range(len(prompt) + 2))
    assert found.rows.targets.tolist() == prompt[1:] + made
    first = len(prompt) - 1
    assert found.generated_from == first
    assert found.top_logprobs == 4
    assert found.cached == 0
    for position, row in enumerate(choice["prompt_logprobs"][1:]):
        assert row_of(found, position) == {int(key): e["logprob"] for key, e in row.items()}
    generated = {f"token_id:{token}": value for token, value in row_of(found, first).items()}
    assert generated == choice["logprobs"]["top_logprobs"][0]


def test_an_offline_output_of_vllm_is_the_servers_answer():
    """A `RequestOutput` written with `default=vars` has the answer's rows as those of the prompt:
    by token id.
    """
    served = PAYLOADS / "vllm_token_ids.json"
    choice = json.loads(served.read_text())["response"]["choices"][0]
    rows = [
        {key.removeprefix("token_id:"): {"logprob": value} for key, value in row.items()}
        for row in choice["logprobs"]["top_logprobs"]
    ]
    offline = {
        "request_id": "0",
        "prompt_token_ids": choice["prompt_token_ids"],
        "prompt_logprobs": choice["prompt_logprobs"],
        "outputs": [choice | {"logprobs": rows}],
    }
    found = one([offline])
    (expected,) = read_responses(served)
    assert found.tokens == expected.tokens
    assert found.generated_from == expected.generated_from
    assert places_of(found) == places_of(expected)
    for index in range(len(expected.rows)):
        assert row_of(found, index) == row_of(expected, index)


def test_a_real_stream_of_vllm_is_the_answer_in_one_piece():
    stream = (PAYLOADS / "vllm_stream.txt").read_text()
    (streamed,) = read_payload(stream, "stream", {"logprobs": 4})
    (whole,) = read_responses(PAYLOADS / "vllm_token_ids.json")
    assert streamed.tokens == whole.tokens
    assert streamed.text == whole.text
    first = whole.generated_from
    assert places_of(streamed) == places_of(whole)[first:]
    for index in range(len(streamed.rows)):
        assert row_of(streamed, index).keys() == row_of(whole, first + index).keys()


def completions(tokens, values, tops, **more):
    lists = {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, **more}
    return {"choices": [{"text": "".join(tokens), "logprobs": lists}]}


def test_a_token_that_ties_with_the_emitted_one_stays_in_the_list():
    found = one(
        completions(
            ["token_id:5"],
            [-1.0],
            [{"token_id:5": -1.0, "token_id:6": -1.0}],
        )
    )
    assert row_of(found, 0) == {5: -1.0, 6: -1.0}


def test_a_token_that_prints_like_another_has_a_value_beside_its_list():
    """Four rows, of which the second lists \ufffd with a value that is not the emitted one's."""
    tops = [
        {"a": -0.1, "b": -3.0},
        {"\ufffd": -1.1, "c": -1.5},
        {"d": -0.2, "\ufffd": -2.0},
        {"\ufffd": -0.5, "e": -1.0},
    ]
    texts = ["a", "\ufffd", "d", "\ufffd"]
    values = [-0.1, -1.2, -0.2, -0.5]
    found = one(completions(texts, values, tops, token_ids=[64, 240, 68, 241]))
    assert places_of(found) == [0, 1, 2, 3]
    none = math.nan
    np.testing.assert_array_equal(found.rows.chosen, [none, -1.2, none, none])
    assert by_text(found, 1) == {"\ufffd": -1.1, "c": -1.5}
    assert [found.texts[token] for token in found.tokens[1:]] == texts
    pair = pair_of(found, found)
    assert len(pair.positions) == 4
    assert pair.differing == 0
    assert pair.common_values == 9
    assert not any("ask the server" in note for note in pair.notes)


def test_a_token_listed_with_two_values_costs_the_values_of_its_row():
    rows = [
        unsorted_row((4, "a", -1.0), (5, "b", -2.0)),
        unsorted_row((6, "c", -1.0), (6, "c", -2.0)),
    ]
    found = one(chat_of(rows, text="ac"))
    assert found.rows.counts.tolist() == [2, 0]
    assert found.tokens[1:] == (4, 6)
    assert "at position 1 a token has two values" in found.warnings[0]


def test_ids_beside_texts_name_tokens_where_no_lists_were_sent():
    sent = {
        "tokens": ["a", "\ufffd"],
        "token_logprobs": [-0.1, -1.2],
        "token_ids": [64, 240],
    }
    found = one({"choices": [{"text": "a\ufffd", "logprobs": sent}]})
    assert found.keys == "token_id"
    assert found.tokens[1:] == (64, 240)


def unsorted_row(*entries):
    """A row as mlx-lm sends it: the list in any order, and its first as if it were the emitted
    token.
    """
    top = [
        {
            "id": token,
            "token": text,
            "logprob": value,
        }
        for token, text, value in entries
    ]
    return {**top[0], "top_logprobs": top}


def chat_of(rows, text):
    return {"choices": [{"message": {"content": text}, "logprobs": {"content": rows}}]}


GREEDY = [
    unsorted_row((1, "Ġno", -3.0), (2, "An", -0.2), (3, "Ġof", -3.5), (4, "A", -2.0)),
    unsorted_row((5, "Ġapple", -0.3), (6, "Ġear", -2.5), (7, "Ġant", -1.5)),
    unsorted_row((8, "Ċ", -2.0), (9, "Ã©", -0.1), (10, "!", -3.0)),
    unsorted_row((11, "x", -4.0), (12, "<|end|>", -0.1), (13, "y", -5.0)),
]


def test_lists_in_no_order_have_the_top_tokens_emitted_if_these_spell_the_text():
    found = one(chat_of(GREEDY, text="An apple\u00e9"))
    assert found.rows.targets.tolist() == [2, 5, 9, 12]
    assert found.rows.best.tolist() == [4, 3, 3, 3]
    assert "in no order" in found.warnings[0]
    with pytest.raises(DumpError, match="temperature 0"):
        one(chat_of(GREEDY, text="An apple pie"))


# vLLM puts the sampled token first, and the best after it in order
SAMPLED = [
    unsorted_row((1, " no", -3.0), (2, "An", -0.2), (3, "A", -2.0)),
    unsorted_row((5, " apple", -0.3), (7, " ant", -1.5), (6, " ear", -2.5)),
]
WITH_A_WRONG_VALUE = [
    unsorted_row((1, "An", -0.2), (2, "no", -100.0), (3, "of", -3.5)),
    unsorted_row((5, " a", -0.4), (4, " b", -2.0), (6, " c", -3.0)),
]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        *((SAMPLED, text) for text in ("no apple", "something else", "")),
        # the text may lack what was thought before
        (SAMPLED, " no apple\nx"),
        (WITH_A_WRONG_VALUE, "another text"),
    ],
)
def test_a_first_token_that_is_not_the_best_stays_emitted(rows, text):
    found = one(chat_of(rows, text=text))
    assert found.rows.targets.tolist() == [1, 5]
    assert found.warnings == ()


REQUEST = {
    "prompt": ["Once", "Twice"],
    "n": 2,
    "max_tokens": 1,
}


def choices_at(*indices):
    return [
        {"index": index, "logprobs": {"content": [{"id": index, "logprob": -1.0}]}}
        for index in indices
    ]


def test_choices_of_several_prompts_answer_these_prompts():
    """Two prompts with n = 2: choices 0 and 1 are of the first.

    Usage counts the tokens of both prompts.
    """
    payload = {"choices": choices_at(3, 1, 0, 2), "usage": {"prompt_tokens": 9}}
    found = read_payload({"request": REQUEST, "response": payload}, "here")
    targets = [response.rows.targets.tolist() for response in found]
    assert targets == [[0], [1], [2], [3]]
    prompts = [json.loads(response.prompt_key) for response in found]
    assert prompts == ["Once", "Once", "Twice", "Twice"]
    assert not any(response.start_known or response.warnings for response in found)
    assert [len(each.responses) for each in sides_of(found, "here")] == [2, 2]
    with pytest.raises(DumpError, match="2 answers to 2 prompts"):
        sides_of([found[0], found[2]], "here")
    unknown = read_payload(payload, "here")
    assert all("if the request had several" in response.warnings[0] for response in unknown)


def test_prompts_of_ids_are_each_choices_own():
    payload = {"choices": choices_at(0, 1)}
    found = read_payload(payload, "here", {"prompt": [[4, 5], [6]]})
    assert [response.tokens for response in found] == [(4, 5, 0), (6, 1)]


def spelled(text):
    """The text as GPT-2's byte-level vocabulary spells it: a blank is \u0120, a line end \u010a,
    \u00e9 two letters.
    """
    return text.replace(" ", "\u0120").replace("\n", "\u010a").replace("\u00e9", "\u00c3\u00a9")


def spelled_answer(of_list, of_chosen):
    rows = [
        (" the", " a"),
        ("\n", "!"),
        ("caf\u00e9", " tea"),
        ("sat", " sat"),
    ]
    content = []
    for at, (first, second) in enumerate(rows):
        value = -0.3 - 0.1 * at
        top = [
            {"token": of_list(first), "logprob": value},
            {"token": of_list(second), "logprob": -1.9},
        ]
        content.append(
            {
                "token": of_chosen(first),
                "logprob": value,
                "top_logprobs": top,
            }
        )
    return chat_of(content, " the\ncaf\u00e9sat")


@pytest.mark.parametrize("of_chosen", [str, spelled])
def test_lists_that_spell_tokens_as_bytes_are_those_of_the_texts(of_chosen):
    found = one(spelled_answer(spelled, of_chosen))
    plain = one(spelled_answer(str, str))
    pair = pair_of(plain, found)
    assert pair.common_values == 8
    assert pair.differing == 0
    assert pair.flips == 0
    assert pair.placeholders == ()


def test_sentencepieces_spelling_is_the_text_and_plain_texts_stay():
    answer = spelled_answer(
        lambda text: "<0x0A>" if text == "\n" else text.replace(" ", "\u2581"),
        str,
    )
    assert by_text(one(answer), 0) == {" the": -0.3, " a": -1.9}
    assert by_text(one(answer), 1) == {"\n": -0.4, "!": -1.9}
    top = {" \u0120": -1.0, "\u0120x": -2.0}
    assert by_text(one(completions([" \u0120"], [-1.0], [top])), 0) == top


def test_half_a_character_is_spelled_and_whole_ones_stay(tmp_path):
    path = tmp_path / "half.json"
    path.write_text(
        r"""{"meta_info": {"output_token_logprobs": [
            [-1.5, 0, "\ud800"],
            [-2.5, 1, "\ud83d\ude00"],
            [-3.5, 2, "\\ud800"],
            [-4.5, 3, "\udc00\ud800"]
        ]}}"""
    )
    (found,) = read_responses(path)
    assert found.texts == {
        0: r"\ud800",
        1: "\U0001f600",
        2: r"\ud800",
        3: r"\udc00\ud800",
    }


@pytest.mark.parametrize(
    ("counted", "reasoning", "unsent"),
    [
        (3, 0, "2"),
        (1, 0, None),
        (2, 0, None),
        (50, 48, None),
        (50, 40, "9"),
    ],
)
def test_generated_tokens_without_a_row_are_counted(counted, reasoning, unsent):
    """The end of the text may have no row, and reasoning has none."""
    payload = completions([" c"], [-0.5], [{" c": -0.5, " d": -1.5}])
    payload["usage"] = {
        "completion_tokens": counted,
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }
    found = one(payload)
    assert found.settings.get("tokens_without_row") == unsent
    sides = align([ResponseSide("A", (found,)), ResponseSide("B", (found,))])
    (verdict,) = judge_responses(sides, pairs_of(sides))
    assert verdict.name == (UNDECIDED if unsent else IDENTICAL)


def test_a_row_that_one_side_lacks_is_counted_once():
    """A gateway kept three of ten."""
    rows = []
    for row in range(10):
        text = f" {row}"
        rows.append((text, -0.5, {text: -0.5, " c": -1.5}))
    whole, kept = (one(completions(*zip(*rows[:count], strict=True))) for count in (10, 3))
    kept = replace(kept, settings={"tokens_without_row": "7"})
    pair = pair_of(whole, kept)
    assert pair.compared == 3
    assert pair.sent == 10


def test_lists_of_id_and_value_of_an_older_mlx_server():
    found = one(sent("mlx"))
    assert found.keys == "token_id"
    assert found.rows.targets.tolist() == [5, 6]
    assert row_of(found, 0) == {5: -0.25, 9: -2.0}
    assert row_of(found, 1) == {6: -0.5, 7: -1.5}
