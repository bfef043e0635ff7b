"""Throughput: what is counted, what is refused, and that a slower path is seen to be slower."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from core.errors import CaptureError, UsageError
from core.inference import paths, throughput
from core.inference.models import LoadedModel
from core.inference.paths import Base, Setting


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


def test_a_slower_path_is_seen_to_be_slower(llama: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def resting(setting: Setting) -> Iterator[tuple[int, torch.Tensor]]:
        time.sleep(0.3)
        yield from paths.BASES["prefill"].compute(setting)

    monkeypatch.setitem(paths.BASES, "resting", Base(resting))
    plain, slow = throughput.throughput(llama, ["prefill", "resting"], [2], tokens=8, rounds=1)
    assert plain.share == 1
    assert slow.share < 0.5
    assert slow.seconds > 0.3


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
def test_what_cannot_be_measured_is_refused_before_anything_runs(given, batches, error, sentence, llama, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(throughput, "_seconds", lambda *_: pytest.fail("it ran"))
    with pytest.raises(error, match=sentence):
        throughput.throughput(llama, given, batches, tokens=8, rounds=1)
