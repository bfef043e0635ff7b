"""Chosen tokens of RL frameworks: tests/cases/rollouts was written by their own code (NeMo-RL
7ea279abf, prime-rl 559b44772, slime 624b824a8, miles 31f1ca961), all with the arrays of
expected.npz.
"""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from core.errors import DumpError
from core.judging.ingest import ingest
from core.numerics.recorded_choices import read_choices
from core.runs.store.store import Store
from tests.core.runs.made_runs import ingested
from tests.json_lines import read_lines, write_lines
from tests.places import ROLLOUTS

EXPECTED = np.load(ROLLOUTS / "expected.npz")
NEMO = ["train_data_step6.jsonl"]
PRIME = ["token_exports/step_4/rank_0.jsonl", "token_exports/step_4/rank_1.jsonl"]
SLIME = ["slime/rollout_data/2.pt", "slime/train_data/2.pt"]
MILES = ["miles/train_data/9_0.pt", "miles/train_data/9_1.pt"]


def read(tmp_path, *files):
    """Tokens and sequences of the run that files become; those of ROLLOUTS by their names."""
    with ingested(Store(tmp_path / "runs"), *[ROLLOUTS / each for each in files]) as run:
        assert run.has_rollouts
        tokens = run.query("SELECT * FROM chosen_token ORDER BY prompt, position")
        return tokens, run.query("SELECT * FROM sequence ORDER BY prompt"), run.pairs[0].summary


@pytest.mark.parametrize(
    ("files", "names", "step"),
    [
        (NEMO, ["0", "1", "2"], 6),
        (PRIME, ["0/0", "0/1", "1/0"], 4),
        (SLIME, ["10", "11", "12"], 2),
        (SLIME[1:], ["10", "11", "12"], 2),
        (MILES, ["20", "21", "22"], 9),
    ],
    ids=[
        "nemo-rl",
        "prime-rl",
        "slime",
        "slime, train data alone",
        "miles, two context-parallel ranks",
    ],
)
def test_a_file_of_a_framework_has_its_arrays(files, names, step, tmp_path):
    tokens, sequences, summary = read(tmp_path, *files)
    assert sequences["name"].tolist() == names
    assert set(sequences["step"]) == {step}
    trained = 0
    for prompt in range(3):
        rows = tokens[tokens["prompt"] == prompt]
        mask = EXPECTED[f"mask{prompt}"].astype(bool)
        trained += mask.sum()
        assert rows["token_id"].tolist() == EXPECTED[f"tokens{prompt}"].tolist()
        assert rows["is_trained"].tolist() == mask.tolist()
        # frameworks leave any value at tokens that are not trained
        for column, name in (("reference", "rollout"), ("variant", "trainer")):
            values = rows[column].to_numpy(float)[mask]
            expected = EXPECTED[f"{name}{prompt}"][mask].astype(float)
            np.testing.assert_array_equal(values, expected)
    assert summary.finite == trained


def test_what_else_the_frameworks_say_of_tokens_and_sequences(tmp_path):
    tokens, sequences, _ = read(tmp_path / "slime", *SLIME)
    assert sequences["reward"].tolist() == [0.0, 1.0, 2.0]
    assert sequences["stop_reason"].tolist() == ["truncated", "completed", "completed"]
    assert sequences["weight_version"].tolist() == ["3", "3,4", "3,4"]
    mask = EXPECTED["mask1"].astype(bool)
    rows = tokens[tokens["prompt"] == 1]
    entropy = rows["entropy"].to_numpy(float)
    # the files were made with the trainer's values as entropies, and half the mask as advantages
    np.testing.assert_array_equal(entropy, -EXPECTED["trainer1"].astype(float))
    assert rows["advantage"].tolist() == (mask * 0.5).tolist()
    _, sequences, _ = read(tmp_path / "prime", *PRIME)
    assert set(sequences["environment"]) == {"gsm8k"}


def test_one_version_for_each_turn_is_the_version_of_its_tokens(tmp_path):
    """slime and miles append a version per call of the engine; `truncated` stands in the train data
    alone.
    """
    turns = torch.tensor([1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1])

    def change(samples):
        samples[0].update(loss_masks=turns, weight_versions=["7", "8", "8"], truncated=1)
        # one turn: at which token the version changed is unknown
        whole = torch.ones_like(samples[1]["loss_masks"])
        samples[1].update(loss_masks=whole, weight_versions=["7", "8"], truncated=0)

    tokens, sequences, _ = read(tmp_path, altered(tmp_path, change))
    versions = tokens[tokens["prompt"] == 0]["token_version"].fillna(-1)
    assert versions.tolist() == [7, 7, -1, -1, 8, 8, 8, -1, 8, 8, 8, 8]
    assert tokens[tokens["prompt"] == 1]["token_version"].isna().all()
    assert sequences["weight_version"].tolist()[:2] == ["7,8,8", "7,8"]
    assert sequences["stop_reason"].tolist()[:2] == ["truncated", "completed"]


def test_the_agent_of_nemo_gym_is_the_environment(tmp_path):
    """Its logger writes batches of one, here `agent_ref` of grpo.py."""
    rows = read_lines(ROLLOUTS / NEMO[0])
    for row, name in zip(rows, ("math", "code", "math"), strict=True):
        row["agent_ref"] = [{"type": "responses_api_agents", "name": name}]
    path = write_lines(tmp_path / "train_data_step6.jsonl", rows)
    assert read(tmp_path, path)[1]["environment"].tolist() == ["math", "code", "math"]


def row(**more):
    return {
        "token_ids": [5, 6, 7],
        "rollout": [-1.0, -2.0, -3.0],
        "trainer": [-1.0, -2.5, -3.0],
        **more,
    }


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_documented_columns_are_read_and_masked_ends_cut(form, tmp_path):
    rest = {
        "step": 3,
        "environment": "code",
        "reward": 0.0,
        "entropy": [0.1, 0.2, 0.3],
    }
    first = {
        "environment": "math",
        "reward": 1.5,
        # the last token has no entropy, the first is cut off with the mask
        "entropy": [0.5, 0.25, None],
    }
    rows = [
        row(sequence="a", mask=[0, 1, 1], **rest | first),
        row(sequence="b", mask=[1, 0, 1], **rest),
        row(sequence="c", mask=[0, 0, 0], **rest),
    ]
    path = tmp_path / f"a.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        write_lines(path, rows)
    tokens, sequences, summary = read(tmp_path, path)
    assert tokens["token_id"].tolist() == [6, 7, 5, 6, 7]
    assert tokens["is_trained"].tolist() == [True, True, True, False, True]
    assert tokens["entropy"].fillna(-1).tolist() == [0.25, -1, 0.1, 0.2, 0.3]
    assert sequences["name"].tolist() == ["a", "b"]
    assert sequences["environment"].tolist() == ["math", "code"]
    assert sequences["reward"].tolist() == [1.5, 0.0]
    assert summary.finite == 4
    assert summary.neq == 1


def altered(folder, change):
    """A copy of slime's train data with a changed sample."""
    target = folder / "a.pt"
    content = torch.load(ROLLOUTS / SLIME[1], weights_only=True)
    change(content["samples"])
    torch.save(content, target)
    return target


@pytest.mark.parametrize(
    "value",
    [
        np.nan,
        -np.inf,
        np.inf,
        -9999.0,
    ],
)
@pytest.mark.parametrize("is_trained", [0, 1])
def test_a_value_that_is_no_log_probability_is_missing_and_of_no_weight_if_masked(
    value,
    is_trained,
    tmp_path,
):
    def change(samples):
        samples[0]["log_probs"][3] = value
        samples[0]["loss_masks"][3] = is_trained

    tokens, _, summary = read(tmp_path, altered(tmp_path, change))
    trained = sum(int(EXPECTED[f"mask{prompt}"].sum()) for prompt in range(3))
    assert summary.finite == trained - 1
    assert np.isnan(tokens["variant"].iloc[3])


def save_npz(path, arrays):
    np.savez(
        path,
        **{name: values.float().numpy() for name, values in arrays.items()},
    )


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("a.npz", save_npz),
        ("a.pt", lambda path, arrays: torch.save(arrays, path)),
    ],
)
@pytest.mark.parametrize(
    "keys",
    [("rollout_log_probs", "old_log_probs"), ("sampling_per_token_logps", "log_probs")],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_arrays_named_as_log_probabilities_are_responses(name, save, keys, dtype, tmp_path):
    """[12, 32], which would pass for logits of 12 positions."""
    *sides, mask = batch().values()
    sides = [side.to(dtype) for side in sides]
    arrays = dict(zip(keys, sides, strict=True))
    save(tmp_path / name, {**arrays, "response_mask": mask.long()})
    tokens, sequences, summary = read(tmp_path, tmp_path / name)
    # of twelve four have no token
    assert len(sequences) == 8
    assert summary.finite == int(mask.sum())
    for column, side in zip(("reference", "variant"), sides, strict=True):
        assert tokens[column].tolist() == side[mask].double().tolist()


def batch(**changes):
    random = torch.Generator().manual_seed(1)
    sides = [-torch.rand(12, 32, generator=random) for _ in range(2)]
    # 20 tokens, all and none, four times
    lengths = torch.tensor([20, 32, 0]).repeat(4)
    mask = torch.arange(32) < lengths[:, None]
    arrays = dict(zip(("rollout_log_probs", "old_log_probs"), sides, strict=True))
    return arrays | {"response_mask": mask} | changes


def test_one_response_is_one_array_of_its_tokens(tmp_path):
    arrays = {name: array[1] for name, array in batch().items()}
    torch.save(arrays, tmp_path / "a.pt")
    tokens, sequences, _ = read(tmp_path, tmp_path / "a.pt")
    assert len(sequences) == 1
    assert tokens["variant"].tolist() == arrays["old_log_probs"].double().tolist()


def test_a_masked_token_needs_no_id_and_entropies_are_read(tmp_path):
    arrays = batch()
    mask = arrays["response_mask"]
    arrays["responses"] = torch.where(mask, 7, -100)
    arrays["entropys"] = torch.rand(12, 32)
    torch.save(arrays, tmp_path / "a.pt")
    tokens, _, _ = read(tmp_path, tmp_path / "a.pt")
    assert set(tokens["token_id"]) == {7}
    assert tokens["entropy"].tolist() == arrays["entropys"][mask].double().tolist()


@pytest.mark.parametrize(
    "mask",
    [
        [0, 1, 1],
        [1, 0, 1],
        [1, 1, 0],
    ],
)
def test_a_masked_token_of_a_row_needs_no_id(mask, tmp_path):
    # -100 is what torch's cross-entropy ignores
    ids = [5 if of_loss else -100 for of_loss in mask]
    path = write_lines(tmp_path / "a.jsonl", [row(token_ids=ids, mask=mask), row()])
    tokens, _, summary = read(tmp_path, path)
    assert summary.finite == 5
    assert tokens["token_id"].min() >= 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"response_mask": torch.ones(12, 40)}, r"'response_mask' has shape \(12, 40\)"),
        ({"old_log_probs": -torch.ones(12, 31)}, r"expected \(12, 32\) like 'rollout_log_probs'"),
        ({"entropy": torch.ones(12)}, r"'entropy' has shape \(12,\)"),
        ({"rollout_log_probs": torch.ones(12, 32)}, "`rollout` has a value above"),
        ({"responses": torch.full((12, 32), -1)}, "token ids from 0 on"),
    ],
)
def test_arrays_that_do_not_fit_are_one_sentence_and_store_nothing(changes, says, store, tmp_path):
    torch.save(batch(**changes), tmp_path / "a.pt")
    refused(store, says, tmp_path / "a.pt")


def test_a_tensor_of_a_graph_is_read(tmp_path):
    def change(samples):
        samples[0]["log_probs"] = samples[0]["log_probs"].requires_grad_()

    _, sequences, _ = read(tmp_path, altered(tmp_path, change))
    assert len(sequences) == 3


@pytest.mark.parametrize(
    ("files", "ranks"),
    [
        (PRIME, [0, 0, 1]),
        (MILES, [0, 0, 0]),
    ],
)
def test_the_rank_is_that_of_the_file(files, ranks, tmp_path):
    _, sequences, _ = read(tmp_path, *files)
    assert [json.loads(each)["rank"] for each in sequences["sampling"]] == ranks


def test_half_a_character_of_a_text_refuses_no_file(tmp_path):
    # JSON escapes half a surrogate pair, and UTF-8 has no bytes for it
    texts = "plain", "\ud800", "\udc00x"
    plain = {
        "token_ids": [1, 2],
        "rollout": [-1, -2],
        "trainer": [-1, -2],
    }
    rows = [plain | {"environment": text} for text in texts]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    _, sequences, _ = read(tmp_path, path)
    assert sequences["environment"].tolist() == ["plain", r"\ud800", r"\udc00x"]


def test_a_response_of_no_tokens_is_left_out(tmp_path):
    def change(samples):
        for name, value in samples[0].items():
            # `tokens` are of prompt and response: with no response they are all of the prompt
            if name != "tokens" and np.ndim(value):
                samples[0][name] = value[:0]
        samples[0]["response_lengths"] = 0

    _, sequences, _ = read(tmp_path, altered(tmp_path, change))
    assert sequences["name"].tolist() == ["11", "12"]


EXPERTS = np.argsort(np.random.default_rng(0).random((40, 2, 8)), axis=-1)[..., :3]


def experts_of(sequences):
    """Recorded experts of each sequence, None if there are none."""
    texts = [text if isinstance(text, str) else None for text in sequences["routed_experts"]]
    return [None if text is None else read_choices(text) for text in texts]


@pytest.mark.parametrize(
    "write",
    [lambda ids: torch.from_numpy(ids).int(), lambda ids: ids.astype(np.int32)],
    ids=["slime, a tensor", "miles, an array"],
)
def test_experts_in_the_files_of_slime_and_miles_are_those_of_the_tokens(write, tmp_path):
    """A row for each token of prompt and response but the last."""

    def change(samples):
        for sample in samples:
            rows = len(sample["tokens"]) - 1
            sample["rollout_routed_experts"] = write(EXPERTS[:rows])
        # three rows too many are a capture of another sequence, and left out
        samples[1]["rollout_routed_experts"] = write(EXPERTS[: rows + 3])

    _, sequences, _ = read(tmp_path, altered(tmp_path, change))
    first, second, third = experts_of(sequences)
    np.testing.assert_array_equal(first, EXPERTS[: len(first)])
    np.testing.assert_array_equal(third, EXPERTS[: len(third)])
    assert second is None


def test_experts_of_nemo_rl_end_with_the_tokens(tmp_path):
    """A batch of one, padded like its tokens."""
    rows = read_lines(ROLLOUTS / NEMO[0])
    for each in rows:
        each["routed_experts"] = [EXPERTS[: len(each["token_ids"][0])].tolist()]
    _, sequences, _ = read(tmp_path, write_lines(tmp_path / "train_data_step6.jsonl", rows))
    lengths = [each["input_lengths"][0] for each in rows]
    for length, experts in zip(lengths, experts_of(sequences), strict=True):
        np.testing.assert_array_equal(experts, EXPERTS[:length])


def test_a_capture_that_lies_is_named_and_the_rest_is_stored(tmp_path):
    ids = EXPERTS[:2]
    rows = [
        row(routed_experts=ids.tolist()),
        row(routed_experts=[[[0] * 3] * 2] * 2),
        row(),
    ]
    path = write_lines(tmp_path / "a.jsonl", rows)
    with ingested(Store(tmp_path / "runs"), path) as run:
        assert "(1 of 2 sequences)" in run.header.provenance.note
        first, *others = experts_of(run.query("SELECT * FROM sequence ORDER BY prompt"))
        np.testing.assert_array_equal(first, ids)
        assert others == [None, None]
        assert run.pairs[0].summary.finite == 9


def test_masked_tokens_before_the_response_follow_the_prompt(tmp_path):
    rows = [
        row(mask=[0, 1, 1], prompt_token_ids=[1, 2]),
        row(mask=[0, 1, 1]),
        row(),
    ]
    _, sequences, _ = read(tmp_path, write_lines(tmp_path / "a.jsonl", rows))
    assert sequences["prompt_token_ids"].fillna("").tolist() == ["[1,2,5]", "[5]", ""]


class Anything:
    """What a pickle may construct."""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s.append(dict(s[0], log_probs=s[0]["log_probs"] - 1)), "occurs twice"),
        (lambda s: s[0].update(loss_masks=torch.ones(3)), "a mask of 3 for 12 tokens"),
        (lambda s: s[0].update(log_probs=torch.ones(3)), "has 3 `log_probs`; expected 12"),
        (lambda s: s[0].update(extra=Anything()), "Anything, and only tensors"),
        # the file's own numbers must not decide how much memory is taken
        (lambda s: s[0].update(cp_size=30_000_000), "at most 4096"),
        (
            lambda s: s[0].update(log_probs=torch.zeros(1).expand(10**13)),
            "more elements than the file",
        ),
        (lambda s: s[0].update(loss_masks="x"), "expected a file of slime or miles"),
    ],
)
def test_a_bad_sample_is_one_sentence_and_stores_nothing(change, says, store, tmp_path):
    refused(store, says, altered(tmp_path, change))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (row(mask=[1, 1]), "row 1: `mask` and `token_ids` have other lengths"),
        (row(mask=[0, 0, 0]), "every token is masked out"),
        ({"token_ids": [1, 2], "logprobs": [-1, -1]}, "expected two files"),
        ("train_data_step7.jsonl", "every `prev_logprobs` is 0"),
        (MILES[1], "the file of context-parallel rank 0 of 2 is missing"),
        (SLIME[0], "no sample has `log_probs`"),
    ],
)
def test_a_bad_row_or_file_is_one_sentence_and_stores_nothing(source, says, store, tmp_path):
    is_row = isinstance(source, dict)
    path = write_lines(tmp_path / "a.jsonl", [source]) if is_row else ROLLOUTS / source
    refused(store, says, path)


def test_files_that_do_not_fit_are_one_sentence_and_store_nothing(store, tmp_path):
    prime = ROLLOUTS / PRIME[0]
    cut = tmp_path / "rank_0.jsonl"
    # within the last row
    cut.write_bytes(prime.read_bytes()[:-700])
    refused(store, "rank_0.jsonl: cannot be read as rows of tokens", cut)
    refused(store, "occurs twice", prime, shutil.copy(prime, tmp_path / "rank_9.jsonl"))
    # the last 9 tokens of 12
    moved = altered(tmp_path, lambda s: s[0]["tokens"][-9:].add_(1))
    refused(store, "has other tokens than in 2.pt from token 3 on", ROLLOUTS / SLIME[0], moved)


def refused(store, says, *files):
    with pytest.raises(DumpError, match=says) as error:
        ingest(store, files)
    assert "\n" not in str(error.value)
    assert list(store.directory.glob("*.duckdb")) == []
