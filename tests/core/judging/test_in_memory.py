"""A dump compared in memory has the figures, the causes and the verdict of its run file."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from core.judging import in_memory
from core.judging.in_memory import are_arrays, compare_arrays
from core.judging.ingest import temporary_run
from core.progress import no_progress
from core.runs.measured import MemoryRun
from core.runs.reader import RunReader
from core.runs.reports.report_json import as_json, report_of_run
from tests.core.judging.engine_dumps import changed

# more rows than causes are looked for in
ROWS, VOCAB = 60, 96
RANDOM = np.random.default_rng(0)
PLAIN = RANDOM.normal(0, 3, (ROWS, VOCAB)).astype(np.float32)
OTHER = (PLAIN + RANDOM.normal(0, 1e-6, PLAIN.shape)).astype(np.float32)


def bfloat16(logits):
    return logits.astype(ml_dtypes.bfloat16).view("V2")


NOT_FINITE = changed(OTHER, (np.s_[5, 4], np.inf), (np.s_[9], np.nan))
DUMPS = {
    "rounding": {"reference": PLAIN, "variant": OTHER},
    "bfloat16": {"reference": bfloat16(PLAIN), "variant": bfloat16(PLAIN * 1.01)},
    "three sides": {"reference": PLAIN, "b": PLAIN, "a": OTHER},
    "few tokens": {
        "reference": PLAIN[:, :5],
        "variant": np.round(PLAIN[:, :5]),
    },
    "other rows": {"reference": PLAIN, "variant": np.roll(OTHER, 20, axis=0)},
    "shifted": {"reference": PLAIN, "variant": np.roll(OTHER, 1, axis=0)},
    "temperature": {"reference": PLAIN, "variant": PLAIN / np.float32(0.7)},
    "not finite": {
        "reference": changed(PLAIN, (np.s_[3], np.nan), (np.s_[:, -40:], -np.inf)),
        "variant": NOT_FINITE,
    },
    "ties": {
        "reference": changed(PLAIN, (np.s_[2], 1.0)),
        "variant": np.round(OTHER),
    },
    "emitted": {
        "reference": changed(PLAIN, (np.s_[20], 0.5)),
        "variant": OTHER,
        "emitted": np.where(np.arange(ROWS) < 4, -1, PLAIN.argmax(1)),
    },
    "prompts": {
        "reference": PLAIN,
        "variant": changed(OTHER, (np.s_[31:], 0.0)),
        "prompt_lengths": np.array([1, 30, ROWS - 31]),
        "token_ids": np.arange(ROWS),
    },
    "embeddings": {
        "reference": PLAIN,
        "variant": NOT_FINITE,
        "holds": np.array("values"),
    },
    "scores": {
        "reference": PLAIN[:, 0],
        "variant": OTHER[:, 0],
        "holds": np.array("values"),
    },
}


@pytest.mark.parametrize("name", DUMPS)
def test_a_dump_in_memory_is_what_its_run_file_is(name, tmp_path):
    path = tmp_path / "dump.npz"
    sides = dict(DUMPS[name])
    emitted = sides.pop("emitted", None)
    if emitted is not None:
        sides |= {"emitted:reference": emitted, "emitted:variant": emitted}
    np.savez(path, **sides)
    with (
        temporary_run([path]) as stored,
        compare_arrays(
            [path],
            on_progress=no_progress,
        ) as run,
    ):
        assert isinstance(run, MemoryRun)
        reports = []
        for each in (stored, run):
            pairs, classes = report_of_run(each)
            json = as_json(
                pairs,
                classes,
                each.header,
                with_positions=True,
            )
            reports.append((json, [pair.answer for pair in pairs], each.vocabulary))
        assert reports[0] == reports[1]
        for pair in range(len(run.pairs)):
            assert stored.evidence(pair) == run.evidence(pair)
            assert stored.histogram(pair) == run.histogram(pair)
            np.testing.assert_equal(stored.columns(pair), run.columns(pair))


def test_a_dump_that_is_too_large_for_memory_is_compared_in_a_file(tmp_path, monkeypatch):
    np.savez(tmp_path / "dump.npz", **DUMPS["rounding"])
    # one byte less than both sides take
    monkeypatch.setattr(in_memory, "_MOST_BYTES", 2 * PLAIN.nbytes - 1)
    with compare_arrays([tmp_path / "dump.npz"], on_progress=no_progress) as run:
        assert isinstance(run, RunReader)
        assert run.pairs[0].summary.neq == (PLAIN != OTHER).sum()


def test_arrays_are_known_by_their_first_bytes(tmp_path):
    files = {}
    for name in ("a.npy", "a.npz", "tokens.npz", "a.jsonl", "a.zip"):
        files[name] = tmp_path / name
    np.save(files["a.npy"], PLAIN)
    np.savez(files["a.npz"], **DUMPS["rounding"])
    np.savez(files["tokens.npz"], rollout_log_probs=PLAIN, old_log_probs=OTHER)
    files["a.jsonl"].write_text('{"reference": [0.5]}\n')
    files["a.zip"].write_bytes(b"PK\x03\x04")
    assert are_arrays([files["a.npy"], files["a.npz"]])
    for name in ("tokens.npz", "a.jsonl", "a.zip"):
        assert not are_arrays([files[name]])
    assert not are_arrays([tmp_path / "none.npz"])
    assert not are_arrays([tmp_path])


def test_comparing_a_small_dump_loads_no_database(tmp_path):
    np.savez(tmp_path / "dump.npz", **DUMPS["rounding"])
    code = (
        "import sys; from core.commands.comparing import compare_files;"
        f" compare_files([{str(tmp_path / 'dump.npz')!r}]);"
        " sys.exit(len({'duckdb', 'pandas', 'pyarrow'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
