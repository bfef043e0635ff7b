"""`explain --trainer` on sampled tokens: which checkpoint each side agrees with."""

import copy
import gc
import itertools
import weakref
from functools import partial

import pytest
import torch

from benchmarks.verdicts.tiny_models import tiny_model
from core.commands import verdicts
from core.errors import CaptureError, UsageError
from core.inference.models.model import load_model, save_model
from core.judging.ingest import ingest
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.json_lines import write_lines
from tests.places import MODEL

PROMPT, TOKENS, SEQUENCES = 8, 24, 8


def load(folder, dtype):
    return load_model(str(folder), dtype=dtype, device="cpu")


@torch.no_grad()
def sample(model, temperature=1.0):
    """Responses drawn token by token, and their log-probabilities. [sequences, prompt + tokens],
    [sequences, tokens]
    """
    drawn = ids = torch.randint(0, model.config.vocab_size, (SEQUENCES, PROMPT))
    cache = None
    values = []
    for _ in range(TOKENS):
        output = model(drawn, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        logits = output.logits[:, -1].float()
        logprobs = (logits / temperature).log_softmax(-1)
        drawn = torch.multinomial(logprobs.exp(), 1)
        values.append(logprobs.gather(1, drawn))
        ids = torch.cat([ids, drawn], 1)
    return ids, torch.cat(values, 1)


def score(model, ids):
    """Log-probabilities of the responses' tokens by one forward. [sequences, tokens]"""
    logprobs = model(ids).logits[:, PROMPT - 1 : -1].float().log_softmax(-1)
    return logprobs.gather(2, ids[:, PROMPT:, None])[..., 0]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Checkpoints after 0, 1 and 2 policy-gradient steps of Adam, by learning rate."""
    folders = {}
    # a usual rate, whose step is about as large as rounding in bfloat16, and a far larger one
    for rate in (1e-6, 1e-4):
        torch.manual_seed(0)
        loaded = load(MODEL, "float32")
        loaded.model.requires_grad_(True)
        optimizer = torch.optim.Adam(loaded.model.parameters(), lr=rate)
        for step in range(3):
            folders.setdefault(rate, []).append(
                tmp_path_factory.mktemp(f"rate_{rate:g}") / f"step_{step}",
            )
            save_model(loaded, folders[rate][-1])
            ids, _ = sample(loaded.model)
            optimizer.zero_grad()
            (-torch.randn(SEQUENCES, 1) * score(loaded.model, ids)).mean().backward()
            optimizer.step()
    return folders


def run_of(tmp_path, rollout, trainer, temperature=1.0):
    torch.manual_seed(1)
    ids, values = sample(rollout, temperature)
    with torch.no_grad():
        return stored(tmp_path, ids, {"rollout": values, "trainer": score(trainer, ids)})


def stored(tmp_path, ids, sides, **more):
    """The run of responses: values of each side, and `more` by sequence."""
    rows = []
    for at, row_ids in enumerate(ids.tolist()):
        row = {"token_ids": row_ids, "mask": [0] * PROMPT + [1] * TOKENS}
        for name, side in sides.items():
            row[name] = [0.0] * PROMPT + side[at].tolist()
        for name, values in more.items():
            row[name] = values[at]
        rows.append(row)
    store = Store(tmp_path / "runs")
    return store.path_of(ingest(store, [write_lines(tmp_path / "a.jsonl", rows)]))


def with_experts_in_another_order(model, order):
    """As expert parallelism sums the experts of a token."""
    other = copy.deepcopy(model)
    for layer in other.model.layers:
        for weight in (layer.mlp.gate.weight, *layer.mlp.experts.parameters()):
            weight.data = weight.data[order]
    return other


def explained(path, folders, loads=None):
    loads = loads or {str(folder): partial(load, folder) for folder in folders}
    with RunReader(path) as run:
        (explanation,) = verdicts.explanations_of(run, lambda *_: None, loads=loads).values()
    return explanation


# the cause, and the checkpoints that rollout and trainer agree with
_STALE = "stale weights", "step_1", "step_2"


@pytest.mark.model
@pytest.mark.parametrize(
    ("rate", "trainer", "given", "answers"),
    [
        (1e-4, 1, (0, 1), [("numerics of two settings", "step_1", "step_1")]),
        (1e-4, 2, (1, 2), [_STALE]),
        # in bfloat16 a step so small shows on some processors
        (1e-6, 2, (1, 2), [_STALE, ("numerics of two settings", "step_1", "step_2", "step_2")]),
        (1e-4, 2, (2,), [("one side", "step_2")]),
    ],
)
def test_real_updates_are_told_apart_or_said_to_be_tied(
    rate,
    trainer,
    given,
    answers,
    checkpoints,
    tmp_path,
):
    folders = checkpoints[rate]
    path = run_of(
        tmp_path,
        load(folders[1], "bfloat16").model,
        load(folders[trainer], "float32").model,
    )
    cause = explained(path, [folders[number] for number in given]).causes[0]
    agrees = itertools.chain(*cause.parameters["agrees"].values())
    names = [name.split("/")[-1] for name in agrees]
    assert (cause.name, *names) in answers, cause


@pytest.mark.model
def test_a_side_of_other_weights_or_values_is_named_with_its_cause(checkpoints, tmp_path):
    """Sampled at a temperature of 0.7: no entropy is in the file, the checkpoint has it."""
    folders = checkpoints[1e-6]
    path = run_of(
        tmp_path,
        load(folders[0], "bfloat16").model,
        load(folders[0], "float32").model,
        temperature=0.7,
    )
    side, temperature = explained(path, folders[:1]).causes
    assert side.name == "one side"
    assert temperature.name == "temperature"
    assert side.parameters["agrees"] == {"rollout": [], "trainer": ["step_0"]}
    assert temperature.parameters["temperature"] == pytest.approx(0.7, rel=0.1)


@pytest.mark.model
def test_experts_summed_in_another_order_are_no_other_weights(tmp_path):
    loaded = tiny_model("mixtral", "float32")
    other = with_experts_in_another_order(loaded.model, torch.tensor([2, 0, 3, 1]))
    torch.manual_seed(1)
    ids, _ = sample(loaded.model)
    with torch.no_grad():
        sides = {"rollout": score(loaded.model, ids), "trainer": score(other, ids)}
    # or the order of experts would not have changed a sum
    assert (sides["rollout"] != sides["trainer"]).double().mean() > 0.2
    with RunReader(stored(tmp_path, ids, sides)) as run:
        loads = {"checkpoint": lambda _: loaded}
        found = verdicts.explanations_of(run, lambda *_: None, dtype="float32", loads=loads)
    (explanation,) = found.values()
    assert [cause.name for cause in explanation.causes] == ["rounding"]


@pytest.mark.model
def test_one_model_is_in_memory_at_a_time_and_float32_may_not_fit(checkpoints, tmp_path):
    folders = checkpoints[1e-4][:2]
    living = []
    sides = [load(folder, "bfloat16").model for folder in folders]
    path = run_of(tmp_path, *sides)

    def load_next(folder, dtype):
        if dtype == "float32":
            raise CaptureError("no room.")
        assert all(each() is None for each in living)
        loaded = load(folder, dtype)
        living.append(weakref.ref(loaded.model))
        return loaded

    gc.collect()
    loads = {str(folder): partial(load_next, folder) for folder in folders}
    explanation = explained(path, [], loads)
    assert [cause.name for cause in explanation.causes] == ["stale weights"]
    assert len(living) == 2
    assert explanation.says.count("Not in float32: no room.") == 2


def test_what_no_model_can_rescore_is_refused_before_any_is_loaded(store, tmp_path, cli):
    """A run without its prompts; and folders as a shell's glob gives them: the first is the
    option's, the others follow.
    """
    row = {"token_ids": [1, 2], "rollout": [-1, -2], "trainer": [-1, -3]}
    file = write_lines(tmp_path / "a.jsonl", [row])
    run_id = ingest(store, [file])
    with pytest.raises(UsageError, match="prompt_token_ids"):
        explained(store.path_of(run_id), [MODEL])
    done = cli("explain", run_id, "--trainer", MODEL, file)
    assert "is a file; expected a folder" in done.refusal


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["runs/step_40/actor/", "runs/step_41/actor"], ["step_40/actor", "step_41/actor"]),
        (["/a/runs/step_40"], ["step_40"]),
        (["ckpt", "ckpt/step_40"], ["ckpt", "ckpt/step_40"]),
        (["me/model", "you/model"], ["me/model", "you/model"]),
    ],
)
def test_labels_leave_out_shared_folders(names, labels):
    assert verdicts._labels(names) == labels
