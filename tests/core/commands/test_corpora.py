"""Two files of lm-eval's `--log_samples`, as its evaluation tracker writes them (every number in
`filtered_resps` is a text).
"""

import numpy as np
import pytest

from core.commands.corpora import are_samples, compare_samples
from core.errors import DumpError
from tests.json_lines import write_lines

CHOICES = (" yes", " no, never", " it depends")
RANDOM = np.random.default_rng(0)
BASE = RANDOM.normal(-10, 3, (200, 3))
MOVED = BASE + RANDOM.normal(0, 0.05, BASE.shape)
MOVED[7] = BASE[7, [1, 0, 2]]  # no rounding
GOLD = RANDOM.integers(0, 3, 200)


def samples(path, logliks, prompt="p"):
    lines = []
    for number, row in enumerate(logliks):
        arguments = {}
        for n, choice in enumerate(CHOICES):
            arguments[f"gen_args_{n}"] = {"arg_0": "Q", "arg_1": choice}
        # lm-eval divides by the characters of a choice without its leading blank
        lengths = np.array([len(choice) - 1 for choice in CHOICES])
        correct = {"acc": row.argmax(), "acc_norm": (row / lengths).argmax()}
        scores = {name: float(answer == GOLD[number]) for name, answer in correct.items()}
        line = {
            "doc_id": number,
            "doc": {"q": number},
            "target": str(GOLD[number]),
            "arguments": arguments,
            "resps": [],
            "filtered_resps": [[str(each), "False"] for each in row],
            "filter": "none",
            "metrics": list(correct),
            "doc_hash": f"d{number}",
            "prompt_hash": prompt,
            **scores,
        }
        lines.append(line)
    return write_lines(path, lines)


def test_changed_answers_have_margins_and_near_ties(tmp_path):
    paths = [samples(tmp_path / "one.jsonl", BASE), samples(tmp_path / "eight.jsonl", MOVED)]
    assert are_samples(paths)
    changes = compare_samples(paths)
    lengths_of = np.ones(3), [len(each) - 1 for each in CHOICES]
    for score, lengths in zip(changes["scores"], lengths_of, strict=True):
        a = BASE / lengths
        b = MOVED / lengths
        answers = a.argmax(axis=1)
        moved = b.argmax(axis=1)
        is_changed = answers != moved
        change = (moved == GOLD).mean() - (answers == GOLD).mean()
        leads = [np.diff(np.sort(each), axis=1)[:, -1] for each in (a, b)]
        margin = np.min(leads, axis=0)
        # twice the median rms change of the scores of a document
        is_near = margin <= 2 * np.median(np.sqrt(((b - a) ** 2).mean(axis=1)))
        assert score["change"] == pytest.approx(change)
        assert score["changed"] == is_changed.sum()
        assert score["near_ties"] == is_near.sum()
        assert score["changed_near_ties"] == (is_changed & is_near).sum()
        assert score["low"] <= score["change"] <= score["high"]
        rows = [row for row in changes["changed"] if row["metric"] == score["metric"]]
        assert {row["doc_id"]: row["margin"] for row in rows} == pytest.approx(
            {str(doc): margin[doc] for doc in np.flatnonzero(is_changed)},
        )
    assert changes["changed"][0]["doc_id"] == "7"
    assert changes["changed"][0]["near_tie"] is False


@pytest.mark.parametrize("start", ["", "é" * 9000])
def test_generations_change_without_a_margin(start, tmp_path):
    paths = []
    for name, answers in (("a", ("4", "5")), ("b", ("4", "6"))):
        lines = [
            {
                "doc_id": n,
                "target": "5",
                "arguments": {},
                "filtered_resps": [start + text],
                "filter": "strict",
                "metrics": ["exact_match"],
                "exact_match": float(text == "5"),
            }
            for n, text in enumerate(answers)
        ]
        paths.append(write_lines(tmp_path / f"{name}.jsonl", lines))
    changes = compare_samples(paths)
    (row,) = changes["changed"]
    assert (row["doc_id"], row["variant_answer"] == "['6']") == ("1", not start)
    assert len(row["variant_answer"]) < 2100  # of a longer one it has a digest
    assert changes["scores"][0]["change"] == -0.5
    assert changes["scores"][0]["near_ties"] == 0


def test_compare_prints_them(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # long names are cut
    paths = [
        samples(tmp_path / "one.jsonl", BASE),
        samples(tmp_path / "eight.jsonl", MOVED, "other prompt"),
    ]
    report = cli("compare", *paths, "--json").json
    assert report["samples"] == report["other_prompts"] == 200
    assert report["variant"] == "eight"
    (tmp_path / "more").mkdir()
    samples(tmp_path / "more" / "one.jsonl", MOVED)
    of_one_name = cli("compare", "one.jsonl", "more/one.jsonl", "--json").json
    assert of_one_name["variant"] == "more/one.jsonl"
    assert cli("compare", *paths, "--fail-on", "bits").returncode == 2
    with paths[1].open("a") as file:
        file.write(paths[1].read_text().splitlines()[3] + "\n")
    with pytest.raises(DumpError, match="line 201: document 3 occurs twice"):
        compare_samples(paths)
    paths[1].write_text('{"doc_id": 3}\n{"doc_id": 4}\n')
    with pytest.raises(DumpError, match="line 1"):
        compare_samples(paths)


@pytest.mark.parametrize(
    "line",
    [
        "[1]",
        '{"doc_id": 1, "filtered_resps": [], "arguments": {}, "metrics": [], "target": ""}',
    ],
)
def test_lines_that_are_no_scored_samples_are_refused(line, tmp_path):
    (tmp_path / "a.jsonl").write_text(line + "\n")
    with pytest.raises(DumpError):
        compare_samples([tmp_path / "a.jsonl"] * 2)
