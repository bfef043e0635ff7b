"""A baseline holds every prompt to what it was; what is new, missing, damaged or hostile is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.errors import UsageError
from core.judging.ingest import ingest
from core.runs.file.evidence import FAILED, PASSED
from core.runs.file.records import Prompt, RunHeader
from core.runs.reader import RunReader
from core.runs.reports.baseline import bounds_text, hold, prompt_keys, read_bounds
from core.runs.reports.gate import UNDECIDED, Outcome
from core.runs.reports.report_json import PairReport, report_of_run
from core.runs.store.store import Store
from tests.core.runs.reports.test_gate import made, read

IDS = [[3, 1, 4], [1, 5, 9]]


def arrays(seed: int = 7, scale: float = 0.01) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal((2, 3, 16), dtype=np.float32)
    return {
        "reference": reference,
        "variant": reference + np.float32(scale) * rng.standard_normal((2, 3, 16), dtype=np.float32),
    }


def written(folder: Path, pairs: list[PairReport], header: RunHeader) -> Path:
    path = folder / "bounds.json"
    path.write_text(bounds_text(pairs, header))
    return path


def held(path: Path, pairs: list[PairReport], header: RunHeader, slack: float = 1.0) -> list[Outcome]:
    return hold(read_bounds(path), pairs, header, slack)[0]


def edited(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    told = json.loads(path.read_text())
    change(told)
    path.write_text(json.dumps(told))
    return path


def test_the_file_holds_each_prompts_figures_and_what_it_was_written_from_is_within(tmp_path: Path) -> None:
    given = arrays()
    given["variant"][1, 2, :] = given["variant"][1, 2, ::-1]
    pairs, header = made(tmp_path, **given, token_ids=IDS)
    path = written(tmp_path, pairs, header)
    (pair,) = json.loads(path.read_text())["pairs"]
    apart = given["variant"].astype(float) - given["reference"]
    for line, difference, sides in zip(
        pair["prompts"], apart, zip(given["reference"], given["variant"], strict=True), strict=True
    ):
        p, q = (np.exp(side.astype(float)) / np.exp(side.astype(float)).sum(-1, keepdims=True) for side in sides)
        assert line["rms"] == pytest.approx(float(np.sqrt((difference**2).mean())), rel=1e-12)
        assert line["max_abs"] == np.abs(difference).max()
        assert line["max_kl"] == pytest.approx(float((p * np.log(p / q)).sum(-1).max()), rel=1e-6)
        assert line["flips"] == int((sides[0].argmax(-1) != sides[1].argmax(-1)).sum())
        assert line["neq_share"] == float((difference != 0).mean())
        assert line["kl_undefined"] == line["nonfinite_mismatch"] == 0
    assert [o.outcome for o in held(path, pairs, header)] == [PASSED, PASSED]


def test_a_stored_run_of_the_same_bits_is_exactly_within_the_bounds_of_its_dump(tmp_path: Path) -> None:
    pairs, header = made(tmp_path, **arrays(), token_ids=IDS)
    path = written(tmp_path, pairs, header)
    store = Store(tmp_path / "runs")
    with RunReader(store.path_of(ingest(store, [tmp_path / "dump.npz"]))) as run:
        from_run = report_of_run(run)[0]
        assert [o.outcome for o in held(path, from_run, run.header)] == [PASSED, PASSED]
        assert bounds_text(from_run, run.header) == path.read_text()


def test_the_prompt_that_became_worse_fails_with_its_figures_and_its_worst_position(tmp_path: Path) -> None:
    given = arrays()
    path = written(tmp_path, *made(tmp_path, **given, token_ids=IDS))
    given["variant"][1, 2, 4] += 0.5
    pairs, header = made(tmp_path, **given, token_ids=IDS)
    passed, failed = held(path, pairs, header)
    assert (passed.outcome, failed.outcome, failed.prompt) == (PASSED, FAILED, 1)
    assert "prompt 1 (tokens:" in failed.says
    assert "largest difference 0.5" in failed.says
    assert failed.worst is not None
    assert (failed.worst["prompt"], failed.worst["position"]) == (1, 2)


def test_slack_widens_what_is_a_matter_of_degree(tmp_path: Path) -> None:
    given = arrays()
    pairs, header = made(tmp_path, **given, token_ids=IDS)
    path = written(tmp_path, pairs, header)
    given["variant"] = given["reference"] + (given["variant"] - given["reference"]) * np.float32(
        1.4
    )  # rms and largest: 1.4 times
    pairs, header = made(tmp_path, **given, token_ids=IDS)
    edited(
        path, lambda told: [line.pop("max_kl") for line in told["pairs"][0]["prompts"]]
    )  # which goes with the square
    assert {o.outcome for o in held(path, pairs, header)} == {FAILED}
    assert {o.outcome for o in held(path, pairs, header, slack=1.3)} == {FAILED}
    assert {o.outcome for o in held(path, pairs, header, slack=1.5)} == {PASSED}


@pytest.mark.parametrize("is_line_gone", [False, True])
def test_a_nan_is_no_matter_of_degree_even_where_its_figure_was_taken_out(tmp_path: Path, is_line_gone: bool) -> None:
    given = arrays()
    path = written(tmp_path, *made(tmp_path, **given, token_ids=IDS))
    if is_line_gone:
        edited(path, lambda told: [line.pop("nonfinite_mismatch") for line in told["pairs"][0]["prompts"]])
    given["variant"][0, 1, 3] = np.nan
    pairs, header = made(tmp_path, **given, token_ids=IDS)
    failed, passed = held(path, pairs, header, slack=1e6)
    assert (failed.outcome, passed.outcome) == (FAILED, PASSED)
    assert "side only 1 over 0" in failed.says
    assert failed.worst is not None
    assert failed.worst["position"] == 1


def test_kl_that_is_no_longer_defined_fails_where_kl_is_held(tmp_path: Path) -> None:
    given = arrays()
    path = written(tmp_path, *made(tmp_path, **given, token_ids=IDS))
    given["variant"][0, :, 3] = -np.inf
    edited(
        path, lambda told: [line.update(nonfinite_mismatch=100, kl_undefined=2) for line in told["pairs"][0]["prompts"]]
    )
    pairs, header = made(tmp_path, **given, token_ids=IDS)
    assert "positions of undefined KL 3 over 2" in held(path, pairs, header)[0].says
    edited(path, lambda told: [line.pop("kl_undefined") for line in told["pairs"][0]["prompts"]])
    assert "positions of undefined KL 3 over 0" in held(path, pairs, header)[0].says
    edited(path, lambda told: [line.pop("max_kl") for line in told["pairs"][0]["prompts"]])
    assert held(path, pairs, header, slack=2)[0].outcome == PASSED  # KL is not held any more


def test_a_figure_that_was_taken_out_is_not_held(tmp_path: Path) -> None:
    given = arrays()
    path = written(tmp_path, *made(tmp_path, **given, token_ids=IDS))
    pairs, header = made(tmp_path, **arrays(scale=0.5) | {"reference": given["reference"]}, token_ids=IDS)
    assert FAILED in {o.outcome for o in held(path, pairs, header)}

    def leave_flips(told: dict[str, Any]) -> None:
        told["pairs"][0]["prompts"] = [
            {"key": line["key"], "prompt": line["prompt"], "flips": 3} for line in told["pairs"][0]["prompts"]
        ]

    assert {o.outcome for o in held(edited(path, leave_flips), pairs, header)} == {PASSED}


def test_prompts_are_known_by_their_tokens_wherever_they_stand() -> None:
    """`printf '3 1 4' | sha256sum` and `printf '1 5 9' | sha256sum`."""
    a, b = Prompt(3, (3, 1, 4)), Prompt(3, (1, 5, 9))
    keys = ["tokens:21c0d627db0ce200", "tokens:3592d61d0bb3e6bb"]
    assert prompt_keys([a, b]) == keys
    assert prompt_keys([b, a]) == keys[::-1]
    assert prompt_keys([a, b, a, a]) == [*keys, f"{keys[0]}#2", f"{keys[0]}#3"]
    assert prompt_keys([Prompt(24), Prompt(3)]) == ["index:0:24", "index:1:3"]


def test_prompts_in_another_order_meet_their_own_bounds(tmp_path: Path) -> None:
    given = arrays()
    given["variant"][0] = given["reference"][0]
    path = written(tmp_path, *made(tmp_path, **given, token_ids=IDS))
    turned = {name: array[::-1] for name, array in given.items()}
    assert [o.outcome for o in held(path, *made(tmp_path, **turned, token_ids=IDS[::-1]))] == [PASSED, PASSED]
    assert [o.outcome for o in held(path, *made(tmp_path, **turned, token_ids=IDS))] == [
        FAILED,
        PASSED,
    ]  # the twin: other tokens


def test_new_and_missing_prompts_are_said_and_decide_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, *made(tmp_path, **arrays(), token_ids=IDS))
    pairs, header = made(tmp_path, **arrays(), token_ids=[IDS[0], [7, 7, 7]])
    outcomes = held(path, pairs, header)
    assert [(o.prompt, o.outcome) for o in outcomes] == [(0, PASSED), (1, UNDECIDED), (None, UNDECIDED)]
    assert outcomes[1].says.endswith("has no bounds in bounds.json.")
    assert outcomes[2].says.startswith("prompt 1 of bounds.json (tokens:")
    assert outcomes[2].says.endswith("was not compared.")


def test_bounds_of_none_of_the_prompts_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, *made(tmp_path, **arrays(), token_ids=IDS))
    pairs, header = made(tmp_path, **arrays())
    with pytest.raises(UsageError, match=r"these prompts \(it has tokens"):
        held(path, pairs, header)


def test_another_vocabulary_is_refused_and_another_dtype_is_noted(tmp_path: Path) -> None:
    pairs, header = made(tmp_path, **arrays(), token_ids=IDS)
    path = edited(written(tmp_path, pairs, header), lambda told: told.update(vocab=17, compute_dtype="bfloat16"))
    with pytest.raises(UsageError, match="over a vocabulary of 17"):
        held(path, pairs, header)
    edited(path, lambda told: told.update(vocab=16))
    notes = hold(read_bounds(path), pairs, header)[1]
    assert ["was measured in bfloat16" in note for note in notes] == [True]


def test_one_pair_is_held_whatever_its_files_are_called_and_several_by_their_names(tmp_path: Path) -> None:
    given = arrays()
    path = written(tmp_path, *made(tmp_path, **given))
    for name, side in (("golden", given["reference"]), ("build-1234", given["variant"])):
        np.save(tmp_path / f"{name}.npy", side)
    assert [o.outcome for o in held(path, *read(tmp_path / "golden.npy", tmp_path / "build-1234.npy"))] == [
        PASSED,
        PASSED,
    ]
    path = written(tmp_path, *made(tmp_path, **given, other=given["reference"]))
    assert [o.outcome for o in held(path, *made(tmp_path, **given, other=given["reference"]))] == [PASSED] * 4
    pairs, header = made(tmp_path, **given, another=given["reference"])
    outcomes, notes = hold(read_bounds(path), pairs, header)
    assert [(o.variant, o.outcome) for o in outcomes] == [("variant", PASSED)] * 2 + [("another", UNDECIDED)] * 2
    assert ["has bounds and was not compared" in note for note in notes] == [True]


def test_a_figure_beyond_its_bound_never_reads_as_equal_to_it(tmp_path: Path) -> None:
    pairs, header = made(tmp_path, **arrays())
    path = written(tmp_path, pairs, header)
    edited(
        path,
        lambda told: told["pairs"][0]["prompts"][0].update(rms=np.nextafter(told["pairs"][0]["prompts"][0]["rms"], 0)),
    )
    says = held(path, pairs, header)[0].says
    figure, _, bound = says.partition("rms ")[2].partition(" logits")[0].partition(" over ")
    assert float(figure) > float(bound)


def pair_of(told: dict[str, Any]) -> dict[str, Any]:
    return told["pairs"][0]


DAMAGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "another format": lambda told: told.update(format="something"),
    "a later version": lambda told: told.update(version=2),
    "no pairs": lambda told: told.update(pairs=[]),
    "no vocabulary": lambda told: told.update(vocab="many"),
    "a nameless side": lambda told: pair_of(told).update(variant=None),
    "a pair twice": lambda told: told["pairs"].append(pair_of(told)),
    "a line that is none": lambda told: pair_of(told)["prompts"].append("x"),
    "a prompt twice": lambda told: pair_of(told)["prompts"].append(pair_of(told)["prompts"][0]),
    "a text": lambda told: pair_of(told)["prompts"][0].update(rms="\x1b[2J"),
    "below nothing": lambda told: pair_of(told)["prompts"][0].update(flips=-1),
    "a truth value": lambda told: pair_of(told)["prompts"][0].update(flips=True),
    "beyond all numbers": lambda told: pair_of(told)["prompts"][0].update(max_abs=10**400),
    "null": lambda told: pair_of(told)["prompts"][0].update(max_abs=None),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_file_gets_one_sentence(tmp_path: Path, what: str) -> None:
    path = edited(written(tmp_path, *made(tmp_path, **arrays())), DAMAGED[what])
    with pytest.raises(UsageError) as refused:
        read_bounds(path)
    assert str(refused.value).startswith(f"{path}: holds no bounds")
    assert "\n" not in str(refused.value)
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe{}", b"[" * 100_000, b'{"format": NaN}', b'{"version": ' + b"9" * 5000 + b"}", b"[]"]
)
def test_a_file_that_is_none_gets_one_sentence(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "bounds.json"
    path.write_bytes(body)
    with pytest.raises(UsageError, match="holds no bounds"):
        read_bounds(path)


def test_files_that_are_missing_or_too_large_get_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_bounds(tmp_path / "nothing.json")
    with pytest.raises(UsageError, match="cannot be read"):
        read_bounds(tmp_path)
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(UsageError, match="is larger than 64 MiB"):
        read_bounds(tmp_path / "large.json")
