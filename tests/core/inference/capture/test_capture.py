"""A capture is the model's own bits, all of them, the same at every call."""

import hashlib
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from benchmarks.families import tiny_family
from core.capture_request import CaptureRequest
from core.errors import CaptureError, UsageError
from core.inference.capture.capture import run_capture
from core.inference.models.devices import bits_of
from core.inference.paths import batch
from tests.core.inference.sameness import captured, on_cpu, planned, plant_base, plant_modifier

PROMPTS = ["def walk(self, path): return", "The ferry left at ten past six, café", "x"]


class Collected:
    """A sink that keeps the logits of each side, and refuses gaps."""

    def __init__(self):
        self.sides = []

    def write(self, side, row, bits):
        if side == len(self.sides):
            self.sides.append([])
        assert side == len(self.sides) - 1
        assert row == sum(len(part) for part in self.sides[side])
        self.sides[side].append(bits)

    def write_kv(self, side, part): ...
    def write_generation(self, generation): ...

    def side(self, number):
        return np.concatenate(self.sides[number])

    def digest(self):
        content = b"".join(self.side(n).tobytes() for n in range(len(self.sides)))
        return hashlib.sha256(content).hexdigest()


def collect(plan):
    sink = Collected()
    run_capture(plan, sink)
    return sink


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_capture_holds_the_bits_of_the_models_own_logits(dtype, model_folders):
    loaded = on_cpu(model_folders["llama"], dtype)
    plan = planned(loaded, PROMPTS)
    sink = collect(plan)
    with torch.inference_mode():
        outputs = [loaded.model(torch.tensor([ids])) for ids in plan.token_ids]
        logits = torch.cat([output.logits[0] for output in outputs])
    signed = torch.int32 if dtype == "float32" else torch.int16
    expected = logits.view(signed).numpy().view(plan.header.format.carrier)
    assert sink.side(0).dtype == plan.header.format.carrier
    assert np.array_equal(sink.side(0), expected)
    assert sink.side(1).shape == expected.shape == (plan.header.rows, loaded.vocab_size)
    # one flipped last bit anywhere would show
    assert not np.array_equal(sink.side(0) ^ 1, expected)


def test_bits_keep_nan_payloads_and_the_sign_of_zero():
    # a quiet and a signalling NaN with payloads, -0, 0, the least subnormal and infinity
    patterns = torch.tensor([0x7FC1, 0x7F81, -0x8000, 0, 0x0001, 0x7F80], dtype=torch.int16)
    bits = bits_of(patterns.view(torch.bfloat16))
    assert np.array_equal(bits, patterns.numpy().view(np.uint16))


@pytest.mark.parametrize("rows_a_chunk", [1, 4, 1000])
def test_chunks_of_any_size_give_the_same_bits(rows_a_chunk, llama, monkeypatch):
    plan = planned(llama, PROMPTS)
    expected = collect(plan).digest()
    monkeypatch.setattr(batch, "CHUNK_BYTES", rows_a_chunk * llama.vocab_size * 4)
    sink = collect(plan)
    assert sink.digest() == expected
    assert all(len(part) <= rows_a_chunk for side in sink.sides for part in side)


def test_the_header_tells_tokens_texts_and_provenance(llama):
    plan = planned(
        llama,
        PROMPTS,
        "prefill",
        ["decode", "prefill+batch:2"],
        seed=5,
    )
    header = plan.header
    assert [side.name for side in header.sides] == ["prefill", "decode", "prefill+batch:2"]
    assert [side.path for side in header.sides] == [side.name for side in header.sides]
    assert header.name.endswith(": prefill vs decode, prefill+batch:2")
    assert "".join(header.prompts[0].token_texts) == PROMPTS[0]
    assert [prompt.token_ids for prompt in header.prompts] == list(plan.token_ids)
    assert header.vocab == 384
    assert header.compute_dtype == "float32"
    assert sorted(header.vocabulary) == list(range(384))
    origin = header.provenance
    assert origin.kind == "capture"
    assert origin.device == "cpu"
    assert origin.seed == 5
    assert origin.command == plan.request.typed()
    assert CaptureRequest.from_json(origin.request) == plan.request
    assert {
        "torch",
        "transformers",
        "tokenizers",
        "numpy",
        "python",
        "cpu_capability",
        "threads",
    } <= set(origin.versions)
    assert origin.versions["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("prompts", "variant", "sentence"),
    [
        ([], "decode", "a capture needs at least one prompt"),
        (["x", ""], "decode", "prompt 2 of 2 is empty"),
        (["\ud800"], "decode", "tokenizer cannot read"),
        (
            [[5, 384]],
            "decode",
            "prompt 1 of 1: token 384 at position 1 is outside the vocabulary of 384",
        ),
        ([[-1]], "decode", "token -1 at position 0"),
        ([[1.5, 7.9]], "decode", "prompt 1 of 1 is no list of whole numbers"),
        ([1, 2, 3], "decode", "prompt 1 of 3 is no list of whole numbers"),
        (["x"], "prefill+batch:999999999", "999999999 x 1 positions needs"),
    ],
)
def test_a_plan_that_cannot_be_run_is_one_sentence(prompts, variant, sentence, llama):
    with pytest.raises(CaptureError, match=sentence):
        planned(llama, prompts, "prefill", [variant])


@pytest.mark.parametrize("seed", [-1, 1 << 63])
def test_a_seed_that_torch_does_not_take_is_refused_in_a_sentence(seed, llama):
    # 2^63 is one more than a signed integer of 64 bits holds
    with pytest.raises(UsageError, match=f"--seed {seed}: expected a whole number"):
        planned(llama, ["x"], seed=seed)


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            CaptureError,
            "'odd': out of memory;",
        ),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            CaptureError,
            "'odd': out of memory;",
        ),
        (
            RuntimeError("mat1 and mat2\nhave shapes"),
            CaptureError,
            "'odd': RuntimeError: mat1 and mat2",
        ),
        (KeyboardInterrupt("by hand"), KeyboardInterrupt, "by hand"),
    ],
)
def test_torchs_exceptions_stop_in_the_capture_and_an_interrupt_does_not(
    error,
    kind,
    sentence,
    llama,
    monkeypatch,
):
    def fail(*_):
        raise error

    def base(batch, emit):
        batch.forward(0, batch.positions, fail)

    plant_base(monkeypatch, "odd", base)
    with pytest.raises(kind, match=sentence):
        collect(planned(llama, ["def walk"], "odd", ["decode"]))


class FullDisk(Collected):
    """A sink whose disk is full."""

    def write(self, side, row, bits):
        raise OSError(28, "No space left on device")


def test_modifiers_are_undone_when_a_capture_breaks(llama, monkeypatch):
    events = []

    @contextmanager
    def watched(batch):
        events.append("entered")
        try:
            yield batch
        finally:
            events.append("left")

    plant_modifier(monkeypatch, "watched", watched)
    monkeypatch.setattr(batch, "CHUNK_BYTES", llama.vocab_size * 4)
    with pytest.raises(OSError, match="No space left") as caught:
        run_capture(planned(llama, PROMPTS, "prefill+watched", ["decode"]), FullDisk())
    assert caught.traceback
    # the traceback keeps frames alive: nothing but closing undoes it
    assert events == ["entered", "left"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_head_in_float32_is_stored_in_float32(dtype, store):
    """xLSTM's, whatever dtype the weights have."""
    loaded = tiny_family("xlstm", dtype=dtype)
    ids = tuple(range(5, 29))
    with torch.inference_mode():
        logits = loaded.model(input_ids=torch.tensor([ids])).logits[0]
    assert logits.dtype == torch.float32
    with captured(store, loaded, [ids], "chunked:7", kv="on") as run:
        assert run.header.compute_dtype == "float32"
        assert [side.source_dtype for side in run.header.sides] == [dtype, dtype]
        assert run.read_rows(0, 0, len(ids)).tobytes() == logits.numpy().tobytes()
        # bits of 16 read as float32 would be elsewhere
        assert 0 < run.rows("kv", pair=0)["rms"].max() < 0.1
