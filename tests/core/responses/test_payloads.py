"""What engines send, read by content: real answers of llama.cpp and vLLM, other engines' as their
sources say.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from core.errors import DumpError
from core.judging.lists import judge_responses
from core.responses import bounded_json
from core.responses.alignment import align
from core.responses.bounded_json import is_payload
from core.responses.files import sides_of
from core.responses.formats import read_payload, read_responses
from core.responses.pairing import compare_sides, pairs_of
from core.responses.records import Response, ResponseSide
from core.verdict import IDENTICAL, UNDECIDED

PAYLOADS = Path(__file__).with_name("payloads")


def one(payload: object, request: dict[str, Any] | None = None) -> Response:
    (found,) = read_payload(payload, "here", request)
    return found


def row(response: Response, index: int) -> dict[int, float]:
    ids, values = response.rows.row(index)
    return dict(zip(ids.tolist(), values.tolist(), strict=True))


def by_text(response: Response, index: int) -> dict[str, float]:
    return {response.texts[token]: value for token, value in row(response, index).items()}


def test_a_real_answer_of_llama_cpp_chat() -> None:
    """Three tokens after a prompt of 32, of which the template's ids are not said."""
    (found,) = read_responses(PAYLOADS / "llamacpp_chat.json")
    assert (found.format, found.keys) == ("OpenAI chat", "token_id")
    assert found.tokens == (-1,) * 32 + (57, 5248, 18948)
    assert found.rows.positions.tolist() == [31, 32, 33]
    assert row(found, 0) == {
        57: -2.2564542293548584,
        19556: -2.3952271938323975,
        10813: -2.975816488265991,
    }
    assert (found.text, found.cached) == ("I'm glad", 0)


def test_a_real_answer_of_llama_cpp_completion() -> None:
    (found,) = read_responses(PAYLOADS / "llamacpp_completion.json")
    assert (found.format, found.top_logprobs) == ("llama.cpp completion", 3)
    assert (len(found.tokens), found.generated_from) == (23, 19)
    assert found.rows.targets.tolist() == [30, 15664, 1000]


def test_a_real_answer_of_vllm_with_prompt_logprobs() -> None:
    """127 tokens of the prompt have 126 rows, each of the three best and its own token; then eight
    generated ones.
    """
    path = PAYLOADS / "vllm_completions.json"
    (found,) = read_responses(path)
    sent = json.loads(path.read_text())["choices"][0]
    assert found.rows.positions.tolist() == list(range(134))
    assert found.generated_from == 126
    for index in range(126):
        of_prompt = sent["prompt_logprobs"][index + 1]
        assert by_text(found, index) == {
            e["decoded_token"]: e["logprob"] for e in of_prompt.values()
        }
        assert found.rows.best[index] == max(
            rank for rank in range(1, 6) if _has_ranks(of_prompt, rank)
        )
    for index, top in enumerate(sent["logprobs"]["top_logprobs"]):
        assert by_text(found, 126 + index) == top
        assert found.rows.best[126 + index] == 5


def _has_ranks(row: dict[str, Any], most: int) -> bool:
    return set(range(1, most + 1)) <= {entry["rank"] for entry in row.values()}


def test_a_real_answer_is_equal_to_itself_in_all_that_was_sent() -> None:
    for path in PAYLOADS.glob("*.json"):
        (found,) = read_responses(path)
        pair = compare_sides(*align([ResponseSide("A", (found,)), ResponseSide("B", (found,))]))
        assert len(pair.positions) == len(found.rows)
        assert pair.differing == 0


VLLM = {
    "choices": [
        {
            "index": 0,
            "text": " b",
            "token_ids": [9],
            "prompt_token_ids": [4, 5, 6],
            "prompt_logprobs": [
                None,
                {
                    "5": {"logprob": -4.5, "rank": 9, "decoded_token": "five"},
                    "7": {"logprob": -0.5, "rank": 1, "decoded_token": "seven"},
                    "8": {"logprob": -1.5, "rank": 2, "decoded_token": "eight"},
                },
                {
                    "7": {"logprob": -9999.0, "rank": 2, "decoded_token": "seven"},
                    "6": {"logprob": -0.25, "rank": 1, "decoded_token": "six"},
                },
            ],
            "logprobs": {
                "tokens": ["token_id:9"],
                "token_logprobs": [-0.125],
                "top_logprobs": [{"token_id:9": -0.125, "token_id:3": -2.25}],
            },
        },
    ],
}


def test_prompt_rows_score_the_token_after_them() -> None:
    """Entry i of `prompt_logprobs` scores token i: the row of position i - 1; the last row is the
    first generated.
    """
    found = one(VLLM)
    assert found.tokens == (4, 5, 6, 9)
    assert found.rows.positions.tolist() == [0, 1, 2]
    assert row(found, 0) == {7: -0.5, 8: -1.5, 5: -4.5}
    assert found.rows.best.tolist() == [2, 1, 2]  # token 5 is ninth; -9999 is no value
    assert found.rows.missing.tolist() == [0, 1, 0]
    assert found.rows.targets.tolist() == [5, 6, 9]
    assert (found.generated_from, found.keys) == (2, "token_id")


def test_echoed_completions_begin_without_a_row() -> None:
    payload = {
        "choices": [
            {
                "text": "a b c",
                "logprobs": {
                    "tokens": ["a", " b", " c"],
                    "token_logprobs": [None, -1.0, -0.5],
                    "top_logprobs": [None, {" b": -1.0, " x": -0.75}, {" c": -0.5, " y": -2.0}],
                    "text_offset": [0, 1, 3],
                },
            },
        ],
        "usage": {"prompt_tokens": 2},
    }
    found = one(payload)
    assert found.rows.positions.tolist() == [0, 1]
    assert by_text(found, 0) == {" b": -1.0, " x": -0.75}
    assert (found.generated_from, found.keys) == (1, "text")


def test_sglang() -> None:
    meta = {
        "prompt_tokens": 3,
        "cached_tokens": 2,
        "input_token_logprobs": [[None, 4, "a"], [-1.0, 5, "b"], [-0.5, 6, "c"]],
        "output_token_logprobs": [[-0.125, 9, None]],
        "input_top_logprobs": [
            None,
            [[-0.75, 7, "d"], [-1.0, 5, "b"]],
            [[-0.5, 6, "c"], [-2.0, 8, "e"]],
        ],
        "output_top_logprobs": [[[-0.125, 9, None], [-3.0, 1, None]]],
    }
    found = one(
        {"text": "x", "output_ids": [9], "meta_info": meta},
        {"input_ids": [4, 5, 6], "top_logprobs_num": 2},
    )
    assert found.tokens == (4, 5, 6, 9)
    assert [row(found, at) for at in range(3)] == [
        {7: -0.75, 5: -1.0},
        {6: -0.5, 8: -2.0},
        {9: -0.125, 1: -3.0},
    ]
    assert (found.rows.positions.tolist(), found.generated_from, found.cached) == ([0, 1, 2], 2, 2)


def test_sglang_from_a_later_start() -> None:
    """`logprob_start_len` 2 of four tokens: the rows given end at the last token of the prompt."""
    meta = {
        "prompt_tokens": 4,
        "input_token_logprobs": [[None, 6, None], [-0.5, 7, None]],
        "output_token_logprobs": [[-0.25, 9, None]],
    }
    found = one({"meta_info": meta})
    assert found.rows.positions.tolist() == [2, 3]
    assert found.rows.targets.tolist() == [7, 9]
    assert found.rows.best.tolist() == [0, 0]  # chosen tokens alone say nothing of the best


def test_ollama() -> None:
    top = [
        {"token": "b", "logprob": -0.5, "bytes": [98]},
        {"token": "\ufffd", "logprob": -1.0, "bytes": [240, 159]},
    ]
    ollama = one({"model": "m", "response": "b", "logprobs": [{**top[0], "top_logprobs": top}]})
    assert (ollama.keys, ollama.start_known) == ("text", False)
    assert by_text(ollama, 0) == {"b": -0.5, "<0xF0><0x9F>": -1.0}


def test_a_request_beside_its_response_says_tokens_and_settings() -> None:
    response = {"choices": [{"text": "", "logprobs": {"content": [{"id": 7, "logprob": -1.0}]}}]}
    found = one({"request": {"prompt": [4, 5], "logprobs": 1}, "response": response})
    assert (found.tokens, found.top_logprobs) == ((4, 5, 7), 1)


@pytest.mark.parametrize(
    ("lists", "best"),
    [
        # the first of each is chosen: greedy
        ([{"a": -1.0, "b": -2.0}, {"a": -1.0, "b": -2.0}], [2, 2]),
        # one more, from further down
        ([{"b": -1.0, "c": -2.0, "a": -3.0}, {"a": -1.0, "b": -2.0}], [2, 2]),
        ([{"a": -1.0}, {"a": -2.0}], [0, 0]),  # the chosen token, or the best: undecidable
        # a token is lost: two print alike
        ([{"a": -1.0, "b": -2.0, "c": -3.0}, {"a": -1.0, "b": -2.0}], [3, 0]),
    ],
)
def test_lists_by_text_count_as_best_only_what_must_be(
    lists: list[dict[str, float]],
    best: list[int],
) -> None:
    tokens = ["a"] * len(lists)
    found = one(
        {
            "choices": [
                {
                    "logprobs": {
                        "tokens": tokens,
                        "token_logprobs": [each["a"] for each in lists],
                        "top_logprobs": lists,
                    },
                },
            ],
        },
    )
    assert found.rows.best.tolist() == best


def test_lines_lists_and_several_choices_are_several_responses(tmp_path: Path) -> None:
    lines = tmp_path / "lines.bin"
    lines.write_text("\n".join([json.dumps(VLLM), "", json.dumps(VLLM)]))
    assert is_payload(lines)
    assert len(read_responses(lines)) == 2
    lines.write_text(json.dumps([VLLM, {"choices": VLLM["choices"] * 2}]))
    assert len(read_responses(lines)) == 3
    lines.write_text(json.dumps(VLLM, indent=1))
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
def test_what_is_no_response_gets_one_sentence(tmp_path: Path, name: str) -> None:
    text, sentence = HOSTILE[name]
    path = tmp_path / "payload.json"
    path.write_text(text)
    with pytest.raises(DumpError, match=sentence) as refused:
        read_responses(path)
    assert "\n" not in str(refused.value)
    assert "payload.json" in str(refused.value)


def test_a_document_beyond_the_bound_is_not_parsed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounded_json, "MAX_BYTES", 100)
    path = tmp_path / "payload.json"
    path.write_text(json.dumps({"choices": ["x" * 200]}))
    with pytest.raises(DumpError, match="more than 100 bytes"):
        read_responses(path)


def test_is_payload_looks_at_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    for data, expected in (
        (b" \n{}", True),
        (b"\xef\xbb\xbf[", True),
        (b"PK\x03\x04", False),
        (b"", False),
    ):
        path.write_bytes(data)
        assert is_payload(path) is expected


def test_a_real_answer_of_vllm_by_token_ids_scores_its_prompt_and_what_it_made() -> None:
    """A probe of vLLM 0.32 was answered so: ids in and out, rows of the prompt with the generated
    ones.
    """
    (response,) = read_responses(PAYLOADS / "vllm_token_ids.json")
    said = json.loads((PAYLOADS / "vllm_token_ids.json").read_text())
    prompt = said["request"]["prompt"]
    choice = said["response"]["choices"][0]
    assert response.keys == "token_id"
    assert list(response.tokens) == [*prompt, *choice["token_ids"]]
    assert response.rows.positions.tolist() == list(range(len(prompt) + 2))
    assert response.rows.targets.tolist() == [*prompt[1:], *choice["token_ids"]]
    assert (response.generated_from, response.top_logprobs, response.cached) == (
        len(prompt) - 1,
        4,
        0,
    )
    rows = choice["prompt_logprobs"]
    for position in range(len(prompt) - 1):
        ids, values = response.rows.row(position)
        sent = {int(key): one["logprob"] for key, one in rows[position + 1].items()}
        assert dict(zip(ids.tolist(), values.tolist(), strict=True)) == sent
    first = choice["logprobs"]["top_logprobs"][0]
    ids, values = response.rows.row(len(prompt) - 1)
    assert {
        f"token_id:{token}": value
        for token, value in zip(ids.tolist(), values.tolist(), strict=True)
    } == first


def test_an_offline_output_of_vllm_is_the_servers_answer() -> None:
    """A `RequestOutput` written with `default=vars` has the answer's rows as those of the prompt:
    by token id.
    """
    served = json.loads((PAYLOADS / "vllm_token_ids.json").read_text())
    choice = served["response"]["choices"][0]
    rows = [
        {key.removeprefix("token_id:"): {"logprob": value} for key, value in row.items()}
        for row in choice["logprobs"]["top_logprobs"]
    ]
    offline = {
        "request_id": "0",
        "prompt_token_ids": served["request"]["prompt"],
        "prompt_logprobs": choice["prompt_logprobs"],
        "outputs": [
            {
                "index": 0,
                "text": choice["text"],
                "token_ids": choice["token_ids"],
                "logprobs": rows,
            },
        ],
    }
    (found,) = read_payload([offline], "offline")
    (expected,) = read_responses(PAYLOADS / "vllm_token_ids.json")
    assert found.tokens == expected.tokens
    assert found.generated_from == expected.generated_from
    assert found.rows.positions.tolist() == expected.rows.positions.tolist()
    for position in range(len(expected.rows.positions)):
        assert row(found, position) == row(expected, position)


def test_a_real_stream_of_vllm_is_the_answer_in_one_piece() -> None:
    (streamed,) = read_payload(
        (PAYLOADS / "vllm_stream.txt").read_text(),
        "stream",
        {"logprobs": 4},
    )
    (whole,) = read_responses(PAYLOADS / "vllm_token_ids.json")
    assert streamed.tokens == whole.tokens
    assert streamed.text == whole.text
    made = whole.rows.positions >= (whole.generated_from or 0)
    assert streamed.rows.positions.tolist() == whole.rows.positions[made].tolist()
    for index, position in enumerate(streamed.rows.positions.tolist()):
        same = whole.rows.positions.tolist().index(position)
        assert streamed.rows.row(index)[0].tolist() == whole.rows.row(same)[0].tolist()


def completions(
    tokens: list[str],
    values: list[float],
    tops: list[dict[str, float]],
    **more: Any,
) -> dict[str, Any]:
    lists = {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, **more}
    return {"choices": [{"text": "".join(tokens), "logprobs": lists}]}


def test_a_token_that_ties_with_the_emitted_one_stays_in_the_list() -> None:
    found = one(completions(["token_id:5"], [-1.0], [{"token_id:5": -1.0, "token_id:6": -1.0}]))
    assert row(found, 0) == {5: -1.0, 6: -1.0}


def test_a_token_that_prints_like_another_has_a_value_beside_its_list() -> None:
    """Four rows, of which the second lists \ufffd with a value that is not the emitted one's."""
    tops = [
        {"a": -0.1, "b": -3.0},
        {"\ufffd": -1.1, "c": -1.5},
        {"d": -0.2, "\ufffd": -2.0},
        {"\ufffd": -0.5, "e": -1.0},
    ]
    found = one(
        completions(
            ["a", "\ufffd", "d", "\ufffd"],
            [-0.1, -1.2, -0.2, -0.5],
            tops,
            token_ids=[64, 240, 68, 241],
        ),
    )
    assert found.rows.positions.tolist() == [0, 1, 2, 3]
    assert found.rows.chosen.tolist() == pytest.approx(
        [math.nan, -1.2, math.nan, math.nan],
        nan_ok=True,
    )
    assert by_text(found, 1) == {"\ufffd": -1.1, "c": -1.5}
    assert [found.texts.get(token) for token in found.tokens] == [
        None,
        "a",
        "\ufffd",
        "d",
        "\ufffd",
    ]
    pair = compare_sides(*align([ResponseSide("A", (found,)), ResponseSide("B", (found,))]))
    assert (len(pair.positions), pair.differing, pair.common_values) == (4, 0, 9)
    assert not any("ask the server" in note for note in pair.notes)


def test_a_token_listed_with_two_values_costs_the_values_of_its_row() -> None:
    rows = [
        unsorted_row((4, "a", -1.0), (5, "b", -2.0)),
        unsorted_row((6, "c", -1.0), (6, "c", -2.0)),
    ]
    found = one(unsorted_chat(*rows, text="ac"))
    assert found.rows.counts.tolist() == [2, 0]
    assert found.tokens[1:] == (4, 6)
    assert "at position 1 a token has two values" in found.warnings[0]


def test_ids_beside_texts_name_tokens_where_no_lists_were_sent() -> None:
    sent = {"tokens": ["a", "\ufffd"], "token_logprobs": [-0.1, -1.2], "token_ids": [64, 240]}
    found = one({"choices": [{"text": "a\ufffd", "logprobs": sent}]})
    assert (found.keys, found.tokens[1:]) == ("token_id", (64, 240))


def unsorted_row(*entries: tuple[int, str, float]) -> dict[str, Any]:
    """A row as mlx-lm sends it: the list in any order, and its first as if it were the emitted
    token.
    """
    top = [{"id": token, "token": text, "logprob": value} for token, text, value in entries]
    return {**top[0], "top_logprobs": top}


def unsorted_chat(*rows: dict[str, Any], text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}, "logprobs": {"content": list(rows)}}]}


GREEDY = (
    unsorted_row((1, "Ġno", -3.0), (2, "An", -0.2), (3, "Ġof", -3.5), (4, "A", -2.0)),
    unsorted_row((5, "Ġapple", -0.3), (6, "Ġear", -2.5), (7, "Ġant", -1.5)),
    unsorted_row((8, "Ċ", -2.0), (9, "Ã©", -0.1), (10, "!", -3.0)),
    unsorted_row((11, "x", -4.0), (12, "<|end|>", -0.1), (13, "y", -5.0)),
)


def test_lists_in_no_order_have_the_top_tokens_emitted_if_these_spell_the_text() -> None:
    found = one(unsorted_chat(*GREEDY, text="An apple\u00e9"))
    assert found.rows.targets.tolist() == [2, 5, 9, 12]
    assert found.rows.best.tolist() == [4, 3, 3, 3]
    assert "in no order" in found.warnings[0]
    with pytest.raises(DumpError, match="temperature 0"):
        one(unsorted_chat(*GREEDY, text="An apple pie"))


@pytest.mark.parametrize("text", ["no apple", " no apple\nx", "something else", ""])
def test_sampled_tokens_that_come_first_stay_emitted(text: str) -> None:
    """vLLM puts the sampled token first, and the best after it in order; its text may lack what was
    thought before.
    """
    rows = [
        unsorted_row((1, " no", -3.0), (2, "An", -0.2), (3, "A", -2.0)),
        unsorted_row((5, " apple", -0.3), (7, " ant", -1.5), (6, " ear", -2.5)),
    ]
    found = one(unsorted_chat(*rows, text=text))
    assert found.rows.targets.tolist() == [1, 5]
    assert found.warnings == ()


REQUEST = {"prompt": ["Once", "Twice"], "n": 2, "max_tokens": 1}


def test_choices_of_several_prompts_answer_these_prompts() -> None:
    """Two prompts with n = 2: choices 0 and 1 are of the first.

    Usage counts the tokens of both prompts.
    """
    choices = [
        {
            "index": index,
            "text": "a",
            "logprobs": {"content": [{"id": index, "token": "a", "logprob": -1.0}]},
        }
        for index in (3, 1, 0, 2)
    ]
    payload = {"choices": choices, "usage": {"prompt_tokens": 9}}
    found = read_payload({"request": REQUEST, "response": payload}, "here")
    assert [response.rows.targets.tolist() for response in found] == [[0], [1], [2], [3]]
    assert [json.loads(response.prompt_key) for response in found] == [
        "Once",
        "Once",
        "Twice",
        "Twice",
    ]
    assert not any(response.start_known or response.warnings for response in found)
    sides = sides_of(found, "here")
    assert [(side.name, len(side.responses)) for side in sides] == [
        ("answer 1", 2),
        ("answer 2", 2),
    ]
    with pytest.raises(DumpError, match="2 answers to 2 prompts"):
        sides_of([found[0], found[2]], "here")
    unknown = read_payload(payload, "here")
    assert all("if the request had several" in response.warnings[0] for response in unknown)


def test_prompts_of_ids_are_each_choices_own() -> None:
    listed = [
        {"index": index, "logprobs": {"content": [{"id": 7, "logprob": -1.0}]}}
        for index in range(2)
    ]
    found = read_payload({"choices": listed}, "here", {"prompt": [[4, 5], [6]]})
    assert [response.tokens for response in found] == [(4, 5, 7), (6, 7)]


def spelled(text: str) -> str:
    """The text as GPT-2's byte-level vocabulary spells it: a blank is \u0120, a line end \u010a,
    \u00e9 two letters.
    """
    return text.replace(" ", "\u0120").replace("\n", "\u010a").replace("\u00e9", "\u00c3\u00a9")


def spelled_answer(of_list: Any, of_chosen: Any) -> dict[str, Any]:
    rows = [(" the", " a"), ("\n", "!"), ("caf\u00e9", " tea"), ("sat", " sat")]
    content = [
        {
            "token": of_chosen(first),
            "logprob": -0.3 - 0.1 * at,
            "top_logprobs": [
                {"token": of_list(first), "logprob": -0.3 - 0.1 * at},
                {"token": of_list(second), "logprob": -1.9},
            ],
        }
        for at, (first, second) in enumerate(rows)
    ]
    return {
        "choices": [
            {"message": {"content": " the\ncaf\u00e9sat"}, "logprobs": {"content": content}},
        ],
    }


@pytest.mark.parametrize("of_chosen", [str, spelled])
def test_lists_that_spell_tokens_as_bytes_are_those_of_the_texts(of_chosen: Any) -> None:
    found, plain = one(spelled_answer(spelled, of_chosen)), one(spelled_answer(str, str))
    pair = compare_sides(*align([ResponseSide("A", (plain,)), ResponseSide("B", (found,))]))
    assert (pair.common_values, pair.differing, pair.flips, pair.placeholders) == (8, 0, 0, ())


def test_sentencepieces_spelling_is_the_text_and_plain_texts_stay() -> None:
    answer = spelled_answer(lambda text: text.replace(" ", "\u2581"), str)
    assert by_text(one(answer), 0) == {" the": -0.3, " a": -1.9}
    assert by_text(
        one(completions([" \u0120"], [-1.0], [{" \u0120": -1.0, "\u0120x": -2.0}])),
        0,
    ) == {
        " \u0120": -1.0,
        "\u0120x": -2.0,
    }


def test_half_a_character_is_spelled_and_whole_ones_stay(tmp_path: Path) -> None:
    path = tmp_path / "half.json"
    texts = r'["\ud800", "\ud83d\ude00", "\\ud800", "\udc00\ud800"]'
    rows = ", ".join(
        f"[-{number + 1}.5, {number}, {text}]"
        for number, text in enumerate(texts[1:-1].split(", "))
    )
    path.write_text('{"meta_info": {"output_token_logprobs": [' + rows + "]}}")
    (found,) = read_responses(path)
    assert found.texts == {0: r"\ud800", 1: "\U0001f600", 2: r"\ud800", 3: r"\udc00\ud800"}


@pytest.mark.parametrize(
    ("counted", "reasoning", "unsent"),
    [(3, 0, "2"), (1, 0, None), (2, 0, None), (50, 48, None), (50, 40, "9")],
)
def test_generated_tokens_without_a_row_are_counted(
    counted: int,
    reasoning: int,
    unsent: str | None,
) -> None:
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


def test_lists_of_id_and_value_of_an_older_mlx_server() -> None:
    lists = {
        "tokens": [5, 6],
        "token_logprobs": [-0.25, -0.5],
        "top_logprobs": [[[5, -0.25], [9, -2.0]], [[6, -0.5], [7, -1.5]]],
    }
    found = one({"choices": [{"message": {"content": "ab"}, "logprobs": lists}]})
    assert (found.keys, found.rows.targets.tolist()) == ("token_id", [5, 6])
    assert [row(found, at) for at in (0, 1)] == [{5: -0.25, 9: -2.0}, {6: -0.5, 7: -1.5}]
