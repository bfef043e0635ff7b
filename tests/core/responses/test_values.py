"""Answers of embeddings, scores and rankings are dumps of values: float32, rows by index."""

import base64
import json
import time

import numpy as np
import pytest

from core.errors import DumpError
from core.judging.ingest import describe, headers_of, temporary_run
from core.responses.files import are_payloads
from core.responses.values import read_values

ROWS = np.random.default_rng(2).normal(size=(20, 24)).astype(np.float32)


def embeddings(rows, form=np.ndarray.tolist, order=None):
    """As vLLM 0.32 and OpenAI answer `/v1/embeddings`."""
    entries = []
    for n, row in enumerate(rows):
        entries.append(
            {
                "index": n,
                "object": "embedding",
                "embedding": form(row),
            }
        )
    data = [entries[n] for n in order or range(len(entries))]
    return {
        "id": "embd-1",
        "object": "list",
        "model": "bge-m3",
        "data": data,
    }


def in_base64(row):
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def scores(values):
    """As vLLM answers `/score`."""
    data = [
        {
            "index": n,
            "object": "score",
            "score": float(v),
        }
        for n, v in enumerate(values)
    ]
    return {
        "id": "score-1",
        "object": "list",
        "model": "bge-reranker",
        "data": data,
    }


def ranking(values):
    """As vLLM and Jina answer `/rerank`, and Cohere without documents: best first."""
    results = [
        {
            "index": n,
            "document": {"text": f"text {n}"},
            "relevance_score": float(v),
        }
        for n, v in enumerate(values)
    ]
    results.sort(key=lambda one: -one["relevance_score"])
    return {
        "id": "rerank-1",
        "model": "bge-reranker",
        "results": results,
    }


def written(path, *answers):
    path.write_text("\n".join(map(json.dumps, answers)))
    return path


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([embeddings(ROWS)], ROWS),
        ([embeddings(ROWS, in_base64)], ROWS),
        ([embeddings(ROWS, order=[3, 2, 1, 0, *range(4, 20)])], ROWS),
        ([embeddings(ROWS[:5]), embeddings(ROWS[5:])], ROWS),
        ([scores(ROWS[:, 0])], ROWS[:, :1]),
        ([ranking(ROWS[:, 0])], ROWS[:, :1]),
    ],
    ids=["floats", "base64", "other order", "two requests", "scores", "ranking"],
)
def test_values_are_read_bit_for_bit_in_the_order_of_what_was_sent(tmp_path, answers, expected):
    path = written(tmp_path / "a.json", *answers)
    assert not are_payloads([path])
    np.testing.assert_array_equal(read_values(path), expected)
    assert headers_of(path) == ("array", {"values": f"float32 {list(expected.shape)}"})


def test_a_null_is_the_nan_that_json_cannot_say(tmp_path):
    rows = embeddings(ROWS, lambda row: [None, *row.tolist()[1:]])
    assert np.isnan(read_values(written(tmp_path / "a.json", rows))[:, 0]).all()


def test_two_answers_are_a_pair(tmp_path):
    near = np.nextafter(ROWS, np.float32(9))
    cold = written(tmp_path / "cold.json", embeddings(ROWS))
    warm = written(tmp_path / "warm.json", embeddings(near, in_base64))
    assert describe([cold, warm])["holds"] == "values"
    with temporary_run([cold, warm]) as run:
        assert [side.name for side in run.sides] == ["cold", "warm"]
        assert (run.header.holds, run.pairs[0].summary.max_ulps) == ("value", 1)
        np.testing.assert_array_equal(run.read_rows(1, 0, 20).view(np.float32), near)


def test_an_answer_is_compared_with_arrays_of_values_too(tmp_path):
    np.save(tmp_path / "own.npy", ROWS)
    with temporary_run(
        [tmp_path / "own.npy", written(tmp_path / "a.json", embeddings(ROWS))]
    ) as run:
        assert run.pairs[0].verdict == "identical"


TOKENS = {
    "choices": [
        {
            "text": " a",
            "logprobs": {
                "tokens": [" a"],
                "top_logprobs": [{" a": -0.5}],
            },
        }
    ]
}


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        ([embeddings(ROWS)], [TOKENS], "no tokens"),
        ([embeddings(ROWS), TOKENS], [embeddings(ROWS)], "holds no values"),
        ([embeddings(ROWS)], [embeddings(ROWS[:7])], "has shape"),
        ([embeddings(ROWS)], [scores(ROWS[:, 0])], "has shape"),
        ([embeddings(ROWS), embeddings(ROWS[:, :9])], [embeddings(ROWS)], "one length"),
        ([embeddings(ROWS, lambda row: "%%%")], [embeddings(ROWS)], "not a number"),
        ([embeddings(ROWS, lambda row: [[1.0], [2.0]])], [embeddings(ROWS)], "shape"),
        ([ranking(ROWS[:, 0]) | {"results": ranking(ROWS[:, 0])["results"][:3]}], [], "top_n"),
        ([embeddings(ROWS)], [], "expected 2"),
    ],
)
def test_what_is_no_pair_of_values_is_refused_by_one_sentence(tmp_path, one, other, says):
    paths = [written(tmp_path / "one.json", *one)]
    if other:
        paths.append(written(tmp_path / "other.json", *other))
    with pytest.raises(DumpError, match=says), temporary_run(paths):
        pass


def test_an_answer_costs_no_more_after_thousands_of_others(tmp_path):
    def seconds(answers):
        path = written(tmp_path / f"{answers}.jsonl", *[scores([0.5])] * answers)
        began = time.process_time()
        assert read_values(path).shape == (answers, 1)
        return time.process_time() - began

    assert seconds(16_000) < 30 * seconds(2_000)  # 8 times as many; all pairs would be 64
