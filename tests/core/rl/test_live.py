"""`ulpscope.rl.check` on one batch."""

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from core.errors import UsageError
from core.rl import MismatchMixin, check, verl_metrics


@pytest.fixture
def batch():
    random = np.random.default_rng(0)
    rollout = -random.gamma(0.6, 0.9, (8, 50))
    return rollout, np.minimum(rollout + random.normal(0, 0.02, rollout.shape), -1e-9)


@pytest.mark.parametrize(
    "kind",
    [np.asarray, torch.tensor, lambda v: torch.tensor(v, requires_grad=True)],
)
def test_a_clean_batch_is_silent_and_has_its_figures(kind, batch):
    rollout, trainer = batch
    mask = np.ones(rollout.shape)
    mask[:, 40:] = mask[3] = 0
    result = check(kind(rollout), kind(trainer), mask)
    r = (trainer - rollout)[mask > 0]
    assert result.warning is None
    assert result.figures["mean_abs"] == pytest.approx(
        np.abs(r).mean(),
        rel=1e-5,
    )
    assert result.figures["k3"] == pytest.approx(
        (np.exp(r) - 1 - r).mean(),
        rel=1e-3,
    )
    assert result.figures["missing"] == 0


def test_a_sentence_names_the_row_of_the_batch_also_if_it_looks_at_some_rows_alone():
    """Every second row of a batch of 49,152 tokens is looked at."""
    random = np.random.default_rng(0)
    rollout = -random.gamma(0.6, 0.9, (96, 512))
    trainer = np.minimum(rollout + random.normal(0, 0.002, rollout.shape), -1e-9)
    trainer[10, 100:105] -= 3
    result = check(rollout, trainer)
    assert result.cause == "some tokens"
    assert "of sequence 10." in result.warning


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.filterwarnings("error")
def test_values_that_are_not_finite_are_missing_whatever_they_are(value, batch):
    rollout, trainer = batch
    holes = np.where(np.arange(50) % 5 == 0, value, rollout)
    every_fifth = check(holes, trainer)
    assert every_fifth.cause == "missing"
    assert every_fifth.figures["missing"] == pytest.approx(0.2)
    # one of 400 tokens is below the 1 % from which on values count as missing
    hole = np.where(np.arange(400).reshape(8, 50) == 77, value, rollout)
    assert check(hole, trainer).warning is None


def test_tokens_far_apart_without_a_simple_cause_are_warned_of(batch):
    rollout, trainer = batch
    # up or down by the token: no shift, scale or constant explains it
    direction = np.sign(rollout + 0.5)
    far = np.random.default_rng(1).gamma(0.5, 2, rollout.shape) * direction
    result = check(rollout, trainer - far)
    assert result.cause is None
    assert result.warning is not None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r, t: (r, t[:, :-1], None), r"\[8, 50\] and \[8, 49\]"),
        (lambda r, t: (r, t, np.ones((8, 49))), r"the mask is \[8, 49\]"),
        (lambda r, t: (r, t, np.zeros((8, 50))), "no token of the loss"),
    ],
)
def test_bad_input_is_refused(change, says, batch):
    rollout, trainer, mask = change(*batch)
    with pytest.raises(UsageError, match=says):
        check(rollout, trainer, mask)


def test_verl_gets_the_figures_among_its_own(batch, caplog):
    rollout, trainer = (torch.tensor(side) for side in batch)
    data = SimpleNamespace(
        batch={
            "rollout_log_probs": rollout,
            "old_log_probs": trainer.roll(1, 1),
            "response_mask": torch.ones(8, 50),
        },
    )
    metrics = verl_metrics(lambda _: {"training/rollout_probs_diff_valid": 1})(data)
    assert metrics["training/rollout_probs_diff_valid"] == 1
    assert metrics["mismatch/mean_abs"] > 0.1
    assert "Off by 1" in caplog.text


class Base:
    """What the mixin needs of TRL's trainer: one scoring forward, then the loss."""

    def __init__(self, scored):
        self.scored = scored
        self._metrics = {"train": defaultdict(list)}
        self.state = SimpleNamespace(global_step=3)

    def _get_per_token_logps_and_entropies(self):
        return self.scored, None, None

    def _compute_loss(self, model, inputs):
        return self._get_per_token_logps_and_entropies()[0].sum()


class Trainer(MismatchMixin, Base):
    """A trainer with the check."""


def test_the_mixin_holds_no_graph_and_never_stops_a_step(batch, caplog):
    rollout, scores = (torch.tensor(side, requires_grad=True) for side in batch)
    trainer = Trainer(scores)
    model = SimpleNamespace(training=True)
    trainer._get_per_token_logps_and_entropies()
    assert not trainer._scored[0].requires_grad
    inputs = {"sampling_per_token_logps": rollout, "completion_mask": torch.ones(8, 50)}
    trainer._compute_loss(model, inputs).backward()
    assert trainer._scored is None
    assert len(trainer._metrics["train"]["mismatch/k3"]) == 1
    assert caplog.text == ""
    masked = inputs | {"completion_mask": torch.zeros(8, 50)}
    # a warning is logged once per cause
    trainer._compute_loss(model, masked)
    trainer._compute_loss(model, masked)
    assert len(trainer._metrics["train"]["mismatch/k3"]) == 1
    assert caplog.text.count("no token of the loss") == 1
