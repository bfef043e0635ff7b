"""What |r| depends on and what `explain` says of it: each quantity is planted in a file; expected
values by numpy.
"""

import json

import numpy as np
import pytest

from core.rl.causes import explain_tokens
from core.rl.queries import by_quantity, mismatch_json, sample_tokens
from core.runs.store.store import Store
from tests.core.runs.made_runs import ingested
from tests.json_lines import write_lines

SEQUENCES, LENGTH, STEP = 24, 60, 9
LARGE = 10  # times the difference elsewhere
TURNS = np.repeat([0, -1, 1, -1, 2], [20, 5, 15, 5, 15])  # of each token, -1: masked
FACTS = {  # of sequence n
    "lag": ("weight_version", lambda n: str(STEP - n % 3)),
    # of two versions the oldest counts
    "weight version": ("weight_version", lambda n: f"{6 + n % 3},{7 + n % 3}"),
    "environment": ("environment", lambda n: ("math", "code", "chat")[n % 3]),
    "rank": ("sampling", lambda n: json.dumps({"rank": n % 4})),
    "stop reason": ("stop_reason", lambda n: ("completed", "truncated")[n % 2]),
}

LARGE_IN = {
    "lag": "7",
    "weight version": "7,8",
    "environment": "code",
    "rank": '{"rank": 2}',
    "stop reason": "truncated",
}
NUMBERS = {
    "lag": lambda key: STEP - int(key),
    "weight version": lambda key: int(key.split(",")[0]),
    "rank": lambda key: json.loads(key)["rank"],
}


def rows_of(sizes, **columns):
    """Rows of a file with noise of these sizes [sequences, tokens]; columns: of a sequence, by its
    number.
    """
    random = np.random.default_rng(7)
    rows = []
    for number, size in enumerate(sizes):
        rollout = -0.5 - random.gamma(0.6, 0.9, LENGTH)
        noise = size * random.standard_normal(LENGTH)
        trainer = rollout + np.clip(noise, -0.5, 0.5)
        values = {
            "rollout": rollout.tolist(),
            "trainer": trainer.tolist(),
            "mask": (TURNS >= 0).astype(int).tolist(),
        }
        about = {name: of(number) for name, of in columns.items()}
        rows.append(
            {
                "token_ids": list(range(LENGTH)),
                "sequence": f"s{number}",
                **values,
                **about,
            }
        )
    return rows


def run_of(tmp_path, rows):
    return ingested(Store(tmp_path / "runs"), write_lines(tmp_path / "a.jsonl", rows))


def planted(quantity):
    """A file in which |r| is large in one group, and the group of each token of the loss.
    [tokens]
    """
    if quantity == "turn":
        groups = np.tile(TURNS, (SEQUENCES, 1))
        sizes = np.where(groups >= 1, 0.02 * LARGE, 0.02)
        return rows_of(sizes), groups[:, TURNS >= 0].ravel()
    if quantity == "token version":
        # the weights are updated while a response is sampled
        switch = 4 * (np.arange(SEQUENCES) % 5)[:, None] + 8
        versions = np.where(np.arange(LENGTH) < switch, 7, 8)
        sizes = np.where(versions == 7, 0.02 * LARGE, 0.02)
        rows = rows_of(sizes, step=lambda _: STEP)
        for row, of_tokens in zip(rows, versions, strict=True):
            row["token_version"] = of_tokens.tolist()
        return rows, versions[:, TURNS >= 0].ravel()
    column, of = FACTS[quantity]
    keys = np.array([of(number) for number in range(SEQUENCES)])
    large = LARGE_IN[quantity]
    usual = 0.02
    if quantity == "lag":
        # one step behind differs a third as much as two: a lag grows
        usual = np.where(keys == "8", 0.02 * LARGE / 3, 0.02)
    of_sequence = np.where(keys == large, 0.02 * LARGE, usual)
    sizes = of_sequence[:, None] * np.ones(LENGTH)
    # without the trainer's step a version has no lag
    steps = {} if quantity == "weight version" else {"step": lambda _: STEP}
    groups = NUMBERS.get(quantity, str)
    of_tokens = np.repeat([groups(key) for key in keys], (TURNS >= 0).sum())
    return rows_of(sizes, **{column: of}, **steps), of_tokens


CAUSES = {
    "turn": ("part of the response", "tokens from turn 2 on"),
    "token version": ("lag", "at a lag of 1 and"),
    "lag": ("lag", "at a lag of 0 and"),
    "weight version": ("part of the sequences", "weight version 7"),
    "environment": ("part of the sequences", "environment 'code'"),
    "rank": ("part of the sequences", "rank 2"),
    "stop reason": ("part of the sequences", "stop reason 'truncated'"),
}


@pytest.mark.parametrize("quantity", CAUSES)
def test_a_planted_quantity_explains_most_and_explain_names_it(quantity, tmp_path):
    rows, groups = planted(quantity)
    name = "weight version" if quantity == "token version" else quantity
    differences = [np.subtract(row["trainer"], row["rollout"]) for row in rows]
    r = np.concatenate([each[TURNS >= 0] for each in differences])
    each = np.unique(groups)
    parts = [np.abs(r[groups == value]) for value in each]
    with run_of(tmp_path, rows) as run:
        table = by_quantity(run, name)
        shares = mismatch_json(run)["explained_by"]
        cause, *_ = explain_tokens(sample_tokens(run))
    assert table["value"].tolist() == each.tolist()
    assert table["tokens"].tolist() == [len(part) for part in parts]
    assert table["mean_abs"].tolist() == pytest.approx(
        [part.mean() for part in parts],
        rel=1e-9,
    )
    mean = np.abs(r).mean()
    between = sum(len(part) * (part.mean() - mean) ** 2 for part in parts)
    within = sum(part.var() * len(part) for part in parts)
    # Kelley's epsilon squared (1935): without what so many groups of noise would explain
    by_chance = (len(parts) - 1) * within / (len(r) - len(parts))
    share = (between - by_chance) / (between + within)
    assert shares[name] == pytest.approx(share, rel=1e-9)
    assert next(iter(shares)) == ("lag" if quantity == "token version" else name)
    expected, words = CAUSES[quantity]
    assert cause.name == expected
    assert words in cause.says
    assert expected == "part of the response" or not cause.is_fault


def test_groups_that_mean_nothing_explain_nothing_and_are_not_named(tmp_path):
    columns = dict(FACTS.values())
    sizes = np.full((SEQUENCES, LENGTH), 0.02)
    rows = rows_of(sizes, step=lambda n: n // 8, **columns)
    with run_of(tmp_path, rows) as run:
        assert max(mismatch_json(run)["explained_by"].values()) < 0.02
        assert explain_tokens(sample_tokens(run)) == []
