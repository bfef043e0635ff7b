"""Export gives back what came in, bit for bit, and only whole files."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from core.errors import StoreError, UsageError
from core.runs.dumps.dump import open_dump
from core.runs.dumps.export import export_npz
from core.runs.file.records import Generation, Prompt, Provenance, RunHeader, SideHeader
from core.runs.measured import Measured
from tests.core.runs.dumps.made_dumps import VALUES, bits_in, bits_of
from tests.places import CASES

DUMPS = sorted(CASES.glob("*.npz"))


@dataclass
class HeldRun(Measured):
    """A run held in memory. bits: [rows, vocab] a side, in the compute dtype."""

    header: RunHeader
    bits: list[np.ndarray]
    calls: list[int] = field(default_factory=list)
    generations: dict[int, Generation] = field(default_factory=dict)

    @property
    def raw(self):
        return list(map(_raw, self.bits))

    def read_rows(self, side, start, stop):
        self.calls.append(stop - start)
        return self.bits[side][start:stop]


def _opened(path):
    with open_dump([path]) as dump:
        return HeldRun(
            # its note says how the dtype is known, which an export declares
            replace(dump.header("run"), provenance=Provenance("upload")),
            bits_in(dump),
            generations={made.prompt: made for made in dump.generations},
        )


def _raw(array):
    return np.ascontiguousarray(array).tobytes()


@pytest.mark.parametrize("path", DUMPS, ids=lambda p: p.stem)
def test_what_was_opened_is_exported_bit_for_bit(path, tmp_path):
    run = _opened(path)
    export_npz(run, tmp_path / "out.npz")
    before = np.load(path)
    after = np.load(tmp_path / "out.npz")
    for key in set(before.files) - {"compute_dtype"}:
        assert _raw(before[key]) == _raw(after[key]), key
    again = _opened(tmp_path / "out.npz")
    assert again.header == run.header
    assert again.raw == run.raw


def _run(lengths, compute="float32", **dtypes):
    rng = np.random.default_rng(0)
    vocab = 8
    prompts = []
    for n in lengths:
        texts = tuple(f"t{i}é" for i in range(n))
        prompts.append(Prompt(n, tuple(range(n)), texts))
    dtypes = dtypes or {"reference": compute, "variant": compute}
    sides = tuple(SideHeader(name, "", dtype) for name, dtype in dtypes.items())
    bits = []
    for _ in sides:
        # every dtype holds small whole numbers
        values = rng.integers(-8, 9, (sum(lengths), vocab))
        bits.append(bits_of(values.astype(VALUES[compute])))
    header = RunHeader("run", compute, vocab, tuple(prompts), sides, Provenance("capture"))
    return HeldRun(header, bits)


@pytest.mark.parametrize("compute", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "lengths",
    [(1,), (5,), (3, 3), (1, 1, 1), (4, 1, 2)],
)
def test_prompts_tokens_dtype_and_every_bit_open_again(tmp_path, lengths, compute):
    run = _run(lengths, compute)
    width = 8 * run.bits[0].dtype.itemsize
    minus_zero = 1 << (width - 1)
    nans = 0x7FC1FF01 >> (32 - width), (1 << width) - 1
    subnormal = 1
    run.bits[0][0, :4] = [minus_zero, *nans, subnormal]
    export_npz(run, tmp_path / "out.npz")
    again = _opened(tmp_path / "out.npz")
    assert again.header.prompts == run.header.prompts
    assert again.header.compute_dtype == compute
    assert again.header.sides == run.header.sides
    assert again.raw == run.raw


def test_sides_of_every_source_dtype_come_back_as_they_were(tmp_path):
    run = _run((3,), a="bfloat16", reference="float16", b="float32")
    export_npz(run, tmp_path / "out.npz")
    saved = np.load(tmp_path / "out.npz")
    assert [saved[key].dtype.str for key in ("a", "reference", "b")] == ["|V2", "<f2", "<f4"]
    assert str(saved["compute_dtype"]) == "float32"
    assert str(saved["reference_side"]) == "a"
    again = _opened(tmp_path / "out.npz")
    assert again.header.sides == run.header.sides
    assert again.raw == run.raw


def test_rows_are_written_a_few_at_a_time(tmp_path, monkeypatch):
    # two rows of 8 float32 logits
    monkeypatch.setattr("core.runs.measured.CHUNK_BYTES", 2 * 8 * 4)
    run = _run((5,))
    export_npz(run, tmp_path / "out.npz")
    assert run.calls == [2, 2, 1] * 2


def test_the_same_run_gives_the_same_file(tmp_path):
    for name in ("one.npz", "two.npz"):
        export_npz(_run((4,)), tmp_path / name)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()


def test_an_existing_file_is_replaced_only_when_told_to(tmp_path):
    target = tmp_path / "out.npz"
    target.write_text("mine")
    with pytest.raises(StoreError, match="already exists"):
        export_npz(_run((2,)), target)
    assert target.read_text() == "mine"
    export_npz(_run((2,)), target, overwrite=True)
    assert np.load(target)["reference"].shape == (2, 8)


class BrokenRun(HeldRun):
    def read_rows(self, side, start, stop):
        raise StoreError("the run file is damaged.")


def test_a_failed_export_leaves_nothing_behind(tmp_path):
    whole = _run((2,))
    with pytest.raises(StoreError, match="damaged"):
        export_npz(BrokenRun(whole.header, whole.bits), tmp_path / "out.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"out\.npz: cannot be written"):
        export_npz(_run((2,)), tmp_path / "missing/out.npz")


@pytest.mark.parametrize("side", ["token_ids", "../x", "a\nb", "x" * 300])
def test_sides_that_could_not_be_read_back_are_refused(tmp_path, side):
    with pytest.raises(UsageError):
        export_npz(_run((2,), **{"reference": "float32", side: "float32"}), tmp_path / "out.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "target", ["out.safetensors", "out.duckdb", "out.NPZ", "out.npz.gz", "out"]
)
def test_another_ending_than_npz_is_refused(tmp_path, target):
    with pytest.raises(UsageError):
        export_npz(_run((2,)), tmp_path / target)
    assert list(tmp_path.iterdir()) == []
