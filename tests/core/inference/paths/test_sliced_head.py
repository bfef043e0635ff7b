"""Logits in slices: the same function on every architecture, one slice in memory at a time."""

from contextlib import contextmanager

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from core.inference.capture.capture import run_capture
from core.inference.paths import batch, sliced_head
from core.inference.paths.engines import divergence, side_of
from core.inference.paths.paths import open_path, parse_path
from core.inference.watching.kernels import kernels_of
from tests.core.inference.sameness import computes_the_same, logits_of, planned, tokens

pytestmark = pytest.mark.model

PATHS = [
    "prefill",
    "prefill+batch:3+row:1",
    "chunked:20",
    "reuse:7",
    "blocks:8",
    "prefill+pad:left:5",
    "prefill+pad:right:3",
]


def in_slices_of(monkeypatch, loaded, columns, rows=1):
    monkeypatch.setattr(
        sliced_head,
        "SLICE_BYTES",
        rows * columns * loaded.vocab_size * loaded.torch_dtype.itemsize,
    )


@pytest.mark.parametrize("path", PATHS)
def test_sliced_paths_compute_the_models_function(path, loaded, monkeypatch):
    in_slices_of(monkeypatch, loaded, 3, parse_path(path).rows)
    assert computes_the_same(path, loaded)


def test_the_body_runs_once_and_the_head_once_a_slice(llama, monkeypatch):
    calls = []
    in_slices_of(monkeypatch, llama, 5)
    with (
        llama.model.model.layers[0].register_forward_hook(lambda *_: calls.append("body")),
        llama.model.lm_head.register_forward_hook(lambda *_: calls.append("head")),
    ):
        logits_of("prefill", llama)
    assert calls.count("body") == 1
    assert calls.count("head") == -(-len(tokens(llama)) // 5)
    assert "forward" not in llama.model.model.__dict__


def test_the_model_is_whole_again_when_a_consumer_stops_in_the_middle(llama, monkeypatch):
    before = logits_of("prefill", llama)
    in_slices_of(monkeypatch, llama, 5)

    def stop(*_):
        raise KeyboardInterrupt

    with torch.inference_mode(), pytest.raises(KeyboardInterrupt):
        side_of("prefill").run_on(llama)(tokens(llama), stop)
    monkeypatch.undo()
    assert torch.equal(logits_of("prefill", llama), before)


# Logits are pushed, and the frame that computes them is the only one that holds them.


@contextmanager
def slices_alive(loaded):
    """How many earlier results of the head still take memory, each time that it computes
    another.
    """
    made = []
    alive = []
    head = loaded.model.get_output_embeddings()
    with (
        head.register_forward_pre_hook(
            lambda *_: alive.append(sum(not each.expired() for each in made)),
        ),
        head.register_forward_hook(
            lambda _, __, output: made.append(StorageWeakRef(output.untyped_storage())),
        ),
        torch.inference_mode(),
    ):
        yield alive


class _Dropping:
    """A sink that keeps nothing."""

    def __getattr__(self, name):
        return lambda *_, **__: self


def _continued(loaded, path):
    with open_path(parse_path(path), loaded) as opened:
        opened.continue_prompt(tokens(loaded), 1, lambda _: 3, batch.ignore)


CONSUMERS = {
    "kept whole": lambda loaded, path: logits_of(path, loaded),
    "compared": lambda loaded, path: divergence(
        torch.zeros(len(tokens(loaded)), loaded.vocab_size),
        side_of(path).run_on(loaded),
        tokens(loaded),
    ),
    "captured with caches": lambda loaded, path: run_capture(
        planned(loaded, [tokens(loaded)] * 2, path, ["chunked:6"], kv=True),
        _Dropping(),
    ),
    "captured with modules": lambda loaded, path: run_capture(
        planned(loaded, [tokens(loaded)] * 2, path, ["chunked:6"], layers=True),
        _Dropping(),
    ),
    "continued": _continued,
    "watched for kernels": lambda loaded, path: kernels_of(
        loaded, parse_path(path), tokens(loaded)
    ),
}


@pytest.mark.spread(5)
@pytest.mark.parametrize("path", ["prefill", "blocks:8", "decode", "chunked:20+batch:2"])
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_a_slice_is_gone_before_the_next_is_computed(consumer, path, llama, monkeypatch):
    in_slices_of(monkeypatch, llama, 5, parse_path(path).rows)
    with slices_alive(llama) as alive:
        CONSUMERS[consumer](llama, path)
    assert len(alive) >= len(tokens(llama)) // 5
    assert not any(alive)
