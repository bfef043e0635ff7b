"""Write the corpus: dumps of every kind, a run file and one of probes.

`python -m tests.fuzz.make_corpus`.
"""

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from core.checks.rerun import AGAIN, RerunFigures
from core.evidence import PASSED, Evidence
from core.runs.file.records import Generation
from core.runs.ops_run import write_ops_run
from core.runs.store.store import Store
from core.runs.writer import RunWriter
from core.verdict import Verdict
from tests.core.responses.made_sides import engine_side, store_run
from tests.core.runs.made_runs import calm_sides, header_of
from tests.core.runs.test_ops_run import header as ops_header
from tests.core.runs.test_ops_run import row_of

CORPUS = Path(__file__).parent / "corpus"


def write_dumps(folder):
    chance = np.random.default_rng(7)
    logits = chance.standard_normal((4, 8)).astype(np.float32)
    pair = {"reference": logits, "variant": logits + np.float32(1e-4)}
    bits = {name: side.astype(ml_dtypes.bfloat16).view(np.uint16) for name, side in pair.items()}
    words = {"token_ids": np.arange(4), "tokens": np.array(["a", " b", "\n", "日"])}
    np.savez(folder / "plain.npz", **pair)
    np.savez_compressed(folder / "deflated.npz", **pair, **words)
    np.savez(
        folder / "bits.npz",
        **bits,
        **words,
        compute_dtype="bfloat16",
        meta=json.dumps({"engine": "x"}),
    )
    np.savez(folder / "fortran.npz", a=np.asfortranarray(logits), b=np.asfortranarray(logits[::-1]))
    np.savez(folder / "prompts.npz", **pair, prompt_lengths=np.array([1, 3]))
    emitted = np.array([-1, 3, 5, 1])
    np.savez(
        folder / "emitted.npz",
        **pair,
        **words,
        **{"emitted:reference": emitted, "emitted:variant": emitted},
    )
    np.save(folder / "single.npy", logits.astype(np.float16))
    save_file(pair, folder / "plain.safetensors")
    save_file(
        {name: side.astype(np.float16) for name, side in pair.items()},
        folder / "half.safetensors",
        {"compute_dtype": "float16"},
    )


def write_runs(folder):
    header = header_of(lengths=(3, 2), vocab=128)
    with TemporaryDirectory() as place:
        store = Store(Path(place))
        write_ops_run(store, ops_header(), [row_of(), row_of(dtype="float32")], run_id="ops")
        _write_run(store, header)
        sides = [engine_side(name, seed, 6) for name, seed in (("alone", 1), ("beside eight", 2))]
        store_run(store, "lists", *sides, run_id="lists")
        for path in store.paths():
            (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))


def _write_run(store, header):
    with RunWriter(store, header, run_id="run") as writer:
        for side, bits in enumerate(calm_sides(header)):
            writer.write(side, 0, bits)
        writer.write_generation(Generation(0, 2, 2, ((1, 2), (1, 3)), ("ab", "ac")))
        evidence = Evidence(
            AGAIN,
            "prefill",
            RerunFigures(not_repeatable=()),
            PASSED,
            "The same call gives the same bits.",
        )
        writer.write_verdict(Verdict("rounding", "It stays below the floor.", (evidence,), 0.5))
        writer.finish()


if __name__ == "__main__":
    write_dumps(CORPUS)
    write_runs(CORPUS)
