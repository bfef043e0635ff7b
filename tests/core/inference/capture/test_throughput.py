"""Throughput: what is counted, what is refused, and what a share is on a machine that drifts or is busy, by a clock of
the tests.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from core.errors import CaptureError, UsageError
from core.inference.capture import throughput
from core.inference.models.model import LoadedModel
from core.runs.tables.remedies import Kept


def test_every_path_is_measured_at_every_batch_size_in_turn(llama: LoadedModel) -> None:
    found = throughput.throughput(llama, ["decode", "decode+invariant"], [1, 3], tokens=8, rounds=2)
    assert [(one.path, one.batch, one.tokens) for one in found] == [
        ("decode", 1, 8),
        ("decode+invariant", 1, 8),
        ("decode", 3, 24),
        ("decode+invariant", 3, 24),
    ]
    for one in found:
        assert len(one.round_seconds) == 2
        assert one.seconds == pytest.approx(sum(one.round_seconds) / 2)
        assert one.tokens_per_second == pytest.approx(one.tokens / one.seconds)
    assert [one.share for one in found if one.path == "decode"] == [1, 1]
    assert all(one.share_low is None for one in found if one.path != "decode")  # two turns say nothing of their spread


class Machine:
    """A clock, and work that moves it: `slowness(now)` seconds take one unit of work at a time."""

    def __init__(self, slowness: Callable[[float], float]) -> None:
        self.now, self.slowness, self.ran = 0.0, slowness, []

    def __call__(self) -> float:
        return self.now

    def contender(self, name: str, work: float) -> Callable[[], float]:
        def run() -> float:
            began = self.now
            self.now += work * self.slowness(self.now)
            self.ran.append(name)
            return self.now - began

        return run

    def timed(self, **work: float) -> list[throughput.Timing]:
        """The first is what the others are held against."""
        return throughput.by_turns(
            [self.contender(name, each) for name, each in work.items()], [0] * len(work), clock=self
        )


def drifting(now: float) -> float:
    """Twice as slow every 30 s, as when others come to a machine."""
    return 2.0 ** (now / 30)


def test_on_a_drifting_machine_what_is_twice_as_slow_keeps_a_half_and_what_costs_nothing_keeps_all():
    plain, same, slow = Machine(drifting).timed(plain=0.1, same=0.1, slow=0.2)
    assert (plain.share, plain.low, plain.high) == (1.0, 1.0, 1.0)
    assert same.share == pytest.approx(1, abs=0.02)
    assert slow.share == pytest.approx(0.5, abs=0.02)
    for timing in (same, slow):
        assert timing.low <= timing.share <= timing.high
        assert timing.is_narrow


def test_contenders_take_turns_after_one_that_does_not_count():
    machine = Machine(lambda now: 1.0 if now > 3 else 50.0)  # a cold start
    timings = machine.timed(a=1.0, b=1.0, c=1.0)
    assert machine.ran == ["a", "b", "c"] * (1 + throughput.LEAST_TURNS)
    assert [timing.share for timing in timings] == [1, 1, 1]


def noisy(seed: int, spread: float) -> Machine:
    chance = np.random.default_rng(seed)
    return Machine(lambda _: float(np.exp(chance.normal(0, spread))))


def test_turns_go_on_until_the_share_is_narrow_and_no_further():
    calm, restless, hopeless = (noisy(3, spread).timed(plain=0.01, other=0.02)[1] for spread in (0.005, 0.06, 1.0))
    assert len(calm.seconds) == throughput.LEAST_TURNS
    assert throughput.LEAST_TURNS < len(restless.seconds) < throughput.MOST_TURNS
    assert restless.is_narrow
    assert len(hopeless.seconds) == throughput.MOST_TURNS
    assert not hopeless.is_narrow
    kept = Kept(hopeless.share, hopeless.low, hopeless.high)
    assert not kept.is_told
    assert kept.in_words().startswith("too noisy to say (")


def test_a_share_is_the_ratio_of_the_rates_beside_it_whatever_the_turns():
    for seed in range(50):
        plain, other = noisy(seed, 0.7).timed(plain=0.01, other=0.01)
        assert other.share == pytest.approx(plain.median_seconds / other.median_seconds, rel=1e-15)
        assert other.low <= other.share <= other.high


def test_the_interval_is_that_of_the_sign_test():
    """Places among the sorted ratios by scipy's binomial distribution; and how often it misses, by drawing."""
    for turns in range(6, 21):
        ratios = np.arange(1.0, turns + 1)
        timing = throughput.timing_of(ratios.tolist(), [1.0] * turns)
        outside = int(stats.binom.ppf(0.025, turns, 0.5))
        outside -= stats.binom.cdf(outside - 1, turns, 0.5) > 0.025
        assert (timing.low, timing.high) == (outside or 1, turns + 1 - (outside or 1))
    chance = np.random.default_rng(5)
    missed = 0
    for _ in range(2000):
        timing = throughput.timing_of(np.exp(chance.normal(0, 0.3, 9)).tolist(), [1.0] * 9)
        missed += not timing.low <= 1 <= timing.high
    assert missed / 2000 < 0.05 + 3 * (0.05 * 0.95 / 2000) ** 0.5


@pytest.mark.parametrize(
    ("given", "batches", "error", "sentence"),
    [
        (["decode+batch:4"], [1], UsageError, "has a batch of its own"),
        ([], [1], UsageError, "at least one path and one batch size"),
        (["decode"], [], UsageError, "at least one path and one batch size"),
        (["decode"], [0], UsageError, "whole numbers of at least 1"),
        (["prefill", "reuse:9"], [1], CaptureError, "nothing left to compute"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_runs(
    given, batches, error, sentence, llama, monkeypatch
) -> None:
    monkeypatch.setattr(throughput, "walk_seconds", lambda *_: pytest.fail("it ran"))
    with pytest.raises(error, match=sentence):
        throughput.throughput(llama, given, batches, tokens=8, rounds=1)
