"""Answers stored as streams, batches and otherwise wrapped, read as the answers that they are."""

import bz2
import gzip
import io
import json
import random
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest

from core.errors import DumpError
from core.responses import bounded_json
from core.responses.alignment import align
from core.responses.files import are_payloads, read_sides
from core.responses.formats import read_responses
from core.responses.pairing import compare_sides
from core.runs.dumps.dump import open_dump
from tests.core.responses.made_sides import by_text, sent

TOKENS = [
    ("Two", -0.25, " One", -1.75),
    (" and", -0.5, " or", -1.5),
    (" two", -0.125, " one", -2.5),
]
TEXT = "Two and two"


def entry(text, value, other, less):
    top = [{"token": text, "logprob": value}, {"token": other, "logprob": less}]
    return {
        "token": text,
        "logprob": value,
        "top_logprobs": top,
    }


ENTRIES = [entry(*token) for token in TOKENS]


def chat(entries=ENTRIES, **more):
    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"content": TEXT},
        "logprobs": {"content": entries},
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [choice],
        **more,
    }


def chat_chunks(stream_id="chatcmpl-1", index=0):
    chunks = json.dumps(STREAMS["chat"]).replace("chatcmpl-1", stream_id)
    return json.loads(chunks.replace('"index": 0', f'"index": {index}'))


# one answer, as each engine streams it
STREAMS = sent("streams")


def as_lines(chunks):
    return "\n".join(json.dumps(chunk) for chunk in chunks)


def as_events(chunks):
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return events + "data: [DONE]\n\n"


def as_named_events(chunks):
    """With a comment, and lines that end as HTTP's do."""
    events = (f"event: x\nid: 1\ndata:{json.dumps(chunk)}\r\n\r\n" for chunk in chunks)
    return ": ping\n\n" + "".join(events)


def as_log(chunks):
    return json.dumps({"request": {"max_tokens": 3}, "response": as_events(chunks)})


def one_after_another(chunks):
    return "".join(json.dumps(chunk, indent=1) for chunk in chunks)


FORMS = (as_lines, as_events, as_named_events, as_log, one_after_another, json.dumps)


def rows_of(response):
    return [by_text(response, index) for index in range(len(response.rows))]


EXPECTED = [{text: value, other: less} for text, value, other, less in TOKENS]


def read(folder, content, name="answer.txt"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert are_payloads([path])
    return read_responses(path)


def refused(folder, content, sentence):
    with pytest.raises(DumpError, match=sentence):
        read(folder, content)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_one_answer(tmp_path, name, form):
    (response,) = read(tmp_path, form(STREAMS[name]))
    assert rows_of(response) == EXPECTED
    assert response.text == TEXT
    emitted = [response.texts[token] for token in response.rows.targets.tolist()]
    assert emitted == ["Two", " and", " two"]


def test_streams_of_several_ids_are_several_answers(tmp_path):
    one = chat_chunks("a")
    other = chat_chunks("b")
    mixed = [chunk for pair in zip(one, other, strict=True) for chunk in pair]
    for chunks, answers in (
        (one + other, 2),
        (mixed, 2),
        ([*one, chat(), *other], 3),
    ):
        found = read(tmp_path, as_lines(chunks))
        assert [rows_of(response) for response in found] == [EXPECTED] * answers
    assert len(read(tmp_path, as_lines(STREAMS["Ollama chat"] * 2))) == 2


def test_a_part_of_a_stream_of_sglang_is_refused(tmp_path):
    meta = {
        "id": "rid",
        "finish_reason": None,
        "output_token_logprobs": [[-0.5, 4, "a"]],
    }
    refused(tmp_path, json.dumps({"text": "a", "meta_info": meta}), "without `stream`")


def test_choices_of_one_stream_are_answers_of_their_own(tmp_path):
    one = chat_chunks(index=0)
    other = chat_chunks(index=1)
    found = read(
        tmp_path,
        as_events([one[0], *other[:3], *one[1:], *other[3:]]),
    )
    assert [rows_of(response) for response in found] == [EXPECTED] * 2


def test_a_stream_that_was_cut_has_the_rows_that_came(tmp_path):
    (response,) = read(tmp_path, as_events(STREAMS["chat"][:3]))
    assert rows_of(response) == EXPECTED[:2]


def test_whole_answers_with_one_id_stay_apart(tmp_path):
    assert len(read(tmp_path, as_lines([chat(), chat()]))) == 2


def test_an_error_in_a_stream_is_reported(tmp_path):
    chunks = [STREAMS["chat"][1], {"error": {"message": "out of memory"}}]
    refused(tmp_path, as_events(chunks), "out of memory")


def zstd(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as packed:
        packed.write(data)
    return bytes(sink.getvalue())


WRAPPINGS = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "zstd": zstd,
    "UTF-8 with a byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "UTF-16": lambda text: text.decode().encode("utf-16"),
    "UTF-16, big end first": lambda text: b"\xfe\xff" + text.decode().encode("utf-16-be"),
    "gzip of UTF-16": lambda text: gzip.compress(text.decode().encode("utf-16")),
    "blank lines before": lambda text: b"\n\n" + text,
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("indent", [None, 2])
def test_what_wraps_an_answer_is_taken_off(tmp_path, wrapping, indent):
    text = json.dumps(chat(error=None), indent=indent)
    (response,) = read(tmp_path, WRAPPINGS[wrapping](text.encode()), "answer.npz")
    assert rows_of(response) == EXPECTED


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (gzip.compress(json.dumps(chat()).encode())[:-20], "cannot be unpacked"),
        (b"\x28\xb5\x2f\xfd" + b"nonsense", "cannot be unpacked"),
        (b"\xff\xfe" + b'{\0"', "cannot be unpacked or decoded"),
        (repr(chat()).encode(), "model_dump_json"),
        (b"ChatCompletion(id='x', choices=[Choice(index=0)])", "model_dump_json"),
        (b"[ChatCompletion(id='x', choices=[])]", "model_dump_json"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, content, sentence):
    refused(tmp_path, content, sentence)


def test_a_compressed_file_may_not_grow_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_json, "MAX_FILE_BYTES", 1 << 20)
    refused(tmp_path, gzip.compress(b"[" + b" " * (8 << 20)), "more than 1,048,576 bytes")


def batch_line(name, body, status=200, error=None):
    response = {"status_code": status, "body": body}
    return {
        "custom_id": name,
        "response": response,
        "error": error,
    }


def written(folder, *sides):
    """A file of JSON lines a side."""
    paths = []
    for at, lines in enumerate(sides):
        path = folder / f"{at}.jsonl"
        path.write_text(as_lines(lines))
        paths.append(path)
    return paths


# the other answer's first row
OTHER = [entry("Three", -0.5, " Two", -1.0), *ENTRIES[1:]]


def test_answers_of_a_batch_are_joined_by_custom_id(tmp_path):
    a = batch_line("a", chat())
    b = batch_line("b", chat(OTHER))
    c = batch_line("c", chat())
    pair = compare_sides(*align(read_sides(written(tmp_path, [a, b], [b, c, a]))))
    assert len(pair.meetings) == 2
    assert len(pair.positions) == 6
    assert pair.differing == 0
    assert any("custom_id c" in note for note in pair.notes)


def test_failed_requests_of_a_batch_are_named_and_left_out(tmp_path):
    too_long = batch_line("b", {"error": {"message": "too long"}}, 400)
    busy = batch_line("c", None, 500, {"message": "busy"})
    expired = {
        "custom_id": "d",
        "response": None,
        "error": {"code": "expired"},
    }
    lines = [batch_line("a", chat()), too_long, busy, expired]
    (response,) = read(tmp_path, as_lines(lines))
    assert rows_of(response) == EXPECTED
    (warning,) = response.warnings
    for reason in ("'b' failed: too long", "'c' failed: busy", "'d' failed: "):
        assert reason in warning
    refused(tmp_path, json.dumps(too_long), "'b' failed: too long")


def test_requests_of_a_batch_are_no_answers(tmp_path):
    request = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/completions",
        "body": {},
    }
    refused(tmp_path, json.dumps(request), "output file")


def test_a_responses_object_has_its_rows_after_the_prompt(tmp_path):
    body = sent("responses")
    (response,) = read(tmp_path, json.dumps(body))
    assert rows_of(response) == EXPECTED
    assert response.rows.positions.tolist() == [6, 7, 8]
    body["output"].insert(0, {"type": "reasoning", "summary": []})
    (thought,) = read(tmp_path, json.dumps(body))
    assert not thought.start_known
    assert thought.rows.positions.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "failure",
    [{"error": "no memory"}, {"object": "error", "message": "no memory"}],
)
def test_only_an_error_that_says_something_is_one(tmp_path, failure):
    refused(tmp_path, json.dumps(failure), "answered with an error: no memory")
    refused(tmp_path, json.dumps({"error": None}), "no response that is known")


def test_an_answer_of_ollama_without_values_says_what_to_ask(tmp_path):
    refused(
        tmp_path,
        json.dumps(
            {
                "model": "m",
                "response": "Two",
                "done": True,
            }
        ),
        "without log-probabilities",
    )


def test_batches_without_a_common_custom_id_are_joined_in_order_and_say_so(tmp_path):
    sides = [[batch_line(name, chat()) for name in names] for names in ("ab", "cd")]
    pair = compare_sides(*align(read_sides(written(tmp_path, *sides))))
    assert len(pair.meetings) == 2
    assert pair.differing == 0
    assert any("joined in their order" in note for note in pair.notes)


def test_answers_are_joined_by_the_prompts_of_their_requests(tmp_path):
    first = {"request": {"messages": [{"content": "first"}]}, "response": chat()}
    second = {"request": {"messages": [{"content": "second"}]}, "response": chat(OTHER)}
    paths = written(tmp_path, [first, second], [second, first])
    assert compare_sides(*align(read_sides(paths))).differing == 0


def test_a_file_that_is_none_is_named_beside_one_that_is(tmp_path):
    good = tmp_path / "good.json"
    bad = tmp_path / "bad.txt"
    good.write_text(json.dumps(chat()))
    bad.write_text("no JSON at all")
    assert are_payloads([good, bad])
    with pytest.raises(DumpError, match="no JSON"):
        read_sides([good, bad])


def test_a_compressed_dump_is_no_payload(tmp_path):
    file = io.BytesIO()
    np.savez(
        file,
        reference=np.ones((1, 2)),
        variant=np.ones((1, 2)),
    )
    path = tmp_path / "dump.npz"
    path.write_bytes(gzip.compress(file.getvalue()))
    assert not are_payloads([path])
    with pytest.raises(DumpError, match="expected an npz"):
        open_dump([path])


ODD = (
    None,
    7,
    "x",
    [],
    {},
    [[]],
    [None],
    True,
    {"a": 1},
    [7],
)


def spoiled(document, chance):
    """The document with one part of it, at any depth, replaced by something odd."""
    if not document or not isinstance(document, dict | list) or chance.random() > 0.8:
        return chance.choice(ODD)
    keys = list(document) if isinstance(document, dict) else range(len(document))
    place = chance.choice(keys)
    made = document.copy()
    made[place] = spoiled(document[place], chance)
    return made


@pytest.mark.parametrize("name", STREAMS)
def test_a_spoiled_stream_is_read_or_refused(tmp_path, name):
    chance = random.Random(name)
    path = tmp_path / "answer.json"
    whole = [chat(), batch_line("a", chat())] if name == "chat" else []
    for _ in range(150):
        path.write_text(json.dumps(spoiled(STREAMS[name] + whole, chance)))
        with suppress(DumpError):
            read_responses(path)
