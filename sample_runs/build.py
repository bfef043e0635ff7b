"""Rebuild everything in this folder from nothing: `python sample_runs/build.py [STAGE]...`, by
default all stages.

model: trains the small model (train.py; about an hour on two cores); runs, or runs=ID: captures the
sample runs with SmolLM2-135M-Instruct, which `ulpscope model smollm2` gets (those of vLLM and
llama.cpp with the small model, where `ULPSCOPE_ENGINE_VLLM` names an interpreter that has vLLM), or
one of them; rollout: six steps of a trainer whose responses vLLM samples; dumps: writes the npz
files to try the upload with, of the small model; readme: the provenance and digests in README.md.
Nothing here is simulated.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.verdicts.mutations import (  # noqa: E402
    neighbours_block_at_one_position,
)
from core.capture_request import CaptureRequest  # noqa: E402
from core.commands.capturing import capture_to_store, load, plan_of, run_extras  # noqa: E402
from core.engines.registry import ADAPTER_OF, describe  # noqa: E402
from core.inference.capture.capture import CapturePlan, plan_capture, run_capture  # noqa: E402
from core.inference.models.chat import plan_inputs  # noqa: E402
from core.inference.models.model import save_model, texts_by  # noqa: E402
from core.inference.paths.bases import BASES, Base  # noqa: E402
from core.inference.paths.batch import Emit, PromptBatch  # noqa: E402
from core.inference.paths.engines import Engine  # noqa: E402
from core.inference.paths.grammar import BASE_ARGUMENTS  # noqa: E402
from core.judging.ingest import ingest  # noqa: E402
from core.numerics.formats import values_of  # noqa: E402
from core.runs.dumps.dump import open_dump  # noqa: E402
from core.runs.file.records import Prompt  # noqa: E402
from core.runs.reader import RunReader  # noqa: E402
from core.runs.store.store import Store  # noqa: E402
from core.runs.writer import RunWriter  # noqa: E402

SMALL = "sample_runs/model"
ROLLOUT = "trainer-against-rollout"
ROLLOUT_NAME = "Trainer vs. rollout: vLLM in bfloat16, temperature at step 5"
BUG = "another_requests_block"
STEPS = 4500  # 1.2 passes over the corpus


@dataclass(frozen=True)
class Wanted:
    """One run: its id, and how it is asked for; bug: a variant of a walk with a planted fault,
    which no command names.
    """

    run_id: str
    request: CaptureRequest
    bug: tuple[str, Engine] | None = None


def wanted(
    run_id: str,
    name: str,
    prompts: tuple[str, ...],
    variants: tuple[str, ...],
    bug: tuple[str, Engine] | None = None,
    **asked: Any,
) -> Wanted:
    """A run of SmolLM2, or another model, over files of `prompts/smollm2/`, judged."""
    files = tuple(f"sample_runs/prompts/smollm2/{file}" for file in prompts)
    is_list = files[0].endswith(".jsonl")
    usual = {"model": "smollm2", "judge": True, "device": "cpu"}
    request = CaptureRequest(
        prompt_files=() if is_list else files,
        prompt_lists=files if is_list else (),
        variants=variants,
        name=name,
        **usual | asked,
    )
    return Wanted(run_id, request, bug)


RUNS = [
    wanted(
        "fresh-against-cached",
        "Prefill vs. decode with a KV cache: prose, German, code; bfloat16",
        ("bridge.txt", "harbour.txt", "merge.txt"),
        ("decode",),
    ),
    wanted(
        "batch-1-against-n",
        "Decode alone vs. batches, float32",
        ("tea.txt",),
        ("decode+batch:2", "decode+batch:8"),
        reference="decode",
        dtype="float32",
    ),
    wanted(
        "continuations-that-part",
        "Greedy continuations that diverge: a chat and a sentence, bfloat16",
        ("answers.jsonl",),
        ("decode",),
        tokens=16,
    ),
    wanted(
        "injected-bug",
        "Injected bug: another request's block for one token",
        ("clock.txt",),
        (BUG,),
        layers=True,
        bug=(BUG, neighbours_block_at_one_position),
    ),
    wanted(
        "where-it-starts",
        "Where it starts: layers, kernels, mitigations, bfloat16",
        ("committee.txt",),
        ("decode",),
        layers=True,
        kernels=True,
        mitigations=True,
    ),
    wanted(
        "batches-on-an-h100",
        "Decode alone vs. batches and prefill on an H100, bfloat16",
        ("tea.txt",),
        ("decode+batch:8", "prefill"),
        reference="decode",
        dtype="bfloat16",
        device="cuda",
        layers=True,
        kernels=True,
    ),
    wanted(
        "vllm-against-transformers",
        "vLLM vs. transformers, bfloat16",
        ("merge.txt",),
        ("vllm:prefill",),
        model=SMALL,
    ),
    wanted(
        "llamacpp-kv-float16",
        "llama.cpp with a float16 KV cache, all else in float32",
        ("cache.txt",),
        ("llamacpp:decode+kv:f16+flash:off",),
        model=SMALL,
        dtype="float32",
    ),
]


def prompt(name: str) -> str:
    return (HERE / "prompts" / f"{name}.txt").read_text(encoding="utf-8")


def build_model() -> None:
    from train import train

    train(HERE / "model", STEPS)


def build_runs(only: str = "") -> None:
    if only and only not in {each.run_id for each in RUNS}:
        sys.exit(f"no run '{only}'; runs are {', '.join(each.run_id for each in RUNS)}.")
    store = Store(HERE)
    # the bits of a run do not hang on how many cores a machine has
    torch.set_num_threads(1)
    for each in RUNS:
        if only not in ("", each.run_id):
            continue
        if missing := missing_part(each):
            print(f"{each.run_id}: left as it is, there is no {missing} here", flush=True)
            continue
        (HERE / f"{each.run_id}.duckdb").unlink(missing_ok=True)
        with planted(each.bug):
            plan = planned(each)
            with RunWriter(store, plan.header, run_id=each.run_id) as writer:
                failures = run_capture(plan, writer) + run_extras(plan, writer, say)
                if failures:
                    raise SystemExit(failures[0])
                note = (
                    "A planted fault, not a finding: the variant is wrong on purpose, to show what"
                    " a suspected bug looks like."
                )
                writer.finish(note=note if each.bug else "")
        pack(HERE / f"{each.run_id}.duckdb")
        print(f"{each.run_id}: captured and judged", flush=True)


def build_rollout() -> None:
    """Sample by vLLM in bfloat16, train in float32; at the last step vLLM's values include a
    temperature.
    """
    if not describe("vllm").is_here:
        print(f"{ROLLOUT}: left as it is, there is no vllm here", flush=True)
        return
    from benchmarks.verdicts.sampling import Rollout, Sampler, sample_vllm, update

    with TemporaryDirectory() as scratch:
        path, sampler, rows = Path(scratch) / "rollout.jsonl", Sampler(Path(scratch)), []
        trainer = sampler.load("float32")
        for step in range(6):
            sampling = {"temperature": 0.8} if step == 5 else {}
            rollout = Rollout(f"step-{step}", "vllm", sampling=sampling)
            folder = Path(scratch) / rollout.name
            save_model(trainer, folder)
            (responses,) = sample_vllm(folder, rollout.weights, [rollout], sampler.prompts)
            rows += [{**row, "step": step} for row in sampler.rows(rollout, responses, trainer)]
            update(trainer, sampler.prompts, responses, 1e-6)
            print(f"  step {step}", flush=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (HERE / f"{ROLLOUT}.duckdb").unlink(missing_ok=True)
        ingest(
            Store(HERE),
            [path],
            name=ROLLOUT_NAME,
            model="smollm2",
            texts_of=texts_by("smollm2"),
            run_id=ROLLOUT,
        )
    pack(HERE / f"{ROLLOUT}.duckdb")
    print(f"{ROLLOUT}: sampled and scored", flush=True)


def pack(path: Path) -> None:
    """Copy a run file table by table into row groups of DuckDB's own size: 5 to 9 % less of a file
    as small as these. Bits and figures stay.
    """
    beside = path.with_suffix(".packed")
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{path}' AS grown (READ_ONLY)")
        connection.execute(f"ATTACH '{beside}' AS packed (BLOCK_SIZE 16384)")
        connection.execute("COPY FROM DATABASE grown TO packed")
    beside.replace(path)


def missing_part(each: Wanted) -> str | None:
    """Return the GPU or the name of the engine that a run needs, None if all is here."""
    if each.request.device == "cuda" and not torch.cuda.is_available():
        return "GPU"
    for path in each.request.variants:
        name = path.partition(":")[0]
        if name in ADAPTER_OF and not describe(name).is_here:
            return name
    return None


def planned(each: Wanted) -> CapturePlan:
    if each.bug is None:
        return plan_of(each.request)
    loaded = load(each.request)
    return plan_capture(
        loaded,
        plan_inputs(loaded, each.request),
        each.request,
        command="python sample_runs/build.py runs",
    )


def say(stage: str, done: int = 0, total: int = 0, unit: str = "positions") -> None:
    print(f"  {stage}", f"{done}/{total} {unit}" if total else "", flush=True)


@contextmanager
def planted(bug: tuple[str, Engine] | None) -> Iterator[None]:
    """The faulty walk is a base of the grammar for as long as its run is made."""
    if bug is None:
        yield
        return
    name, engine = bug

    def walk(batch: PromptBatch, emit: Emit) -> None:
        emit(0, engine(batch.loaded.model, torch.tensor(batch.prompt, device=batch.loaded.device)))

    BASES[name] = Base(walk)
    BASE_ARGUMENTS[name] = ()
    try:
        yield
    finally:
        del BASES[name], BASE_ARGUMENTS[name]


def captured(text: str) -> tuple[list[np.ndarray], Prompt]:
    """Logits of `prefill` and `decode`, computed in bfloat16 and saved as float32, as many engines
    do [positions, vocab], and the prompt.
    """
    request = CaptureRequest(
        model=SMALL, prompts=(text,), variants=("decode",), kv=False, device="cpu"
    )
    with TemporaryDirectory() as scratch:
        run_id, _ = capture_to_store(request, "bar", scratch)
        with RunReader(Path(scratch) / f"{run_id}.duckdb") as run:
            bits = [run.read_rows(side, 0, run.header.rows) for side in (0, 1)]
            return [values_of(each, run.header.format) for each in bits], run.header.prompts[0]


def build_dumps() -> None:
    """Two dumps as engines write them: bfloat16 logits upcast to float32, and six calls for one
    step of one prompt.
    """
    folder = HERE / "dumps"
    folder.mkdir(exist_ok=True)
    (fresh, cached), tokens = captured(prompt("shapes"))
    np.savez_compressed(
        folder / "fresh_and_cached_upcast.npz",
        fresh=fresh,
        cached=cached,
        token_ids=np.array(tokens.token_ids, np.int64),
        tokens=np.array(tokens.token_texts),
    )
    # The protocol of report A: six separate calls, the logits of the single generated step. The
    # first call computes the prompt, the later ones find it in a cache and only compute the last
    # token; here the two paths are prefill and decode of the same prompt.
    calls = {}
    for call in range(1, 7):
        sides, _ = captured("The quick brown fox jumps over the lazy dog. " * 4)
        calls[f"call_{call}"] = sides[call > 1][-1:]
    np.savez_compressed(folder / "six_calls.npz", **calls)


_RUN = """\
### {name}

`{path.name}`, {megabytes:.1f} MB, SHA-256 `{sha256}`

{header.rows} positions x {header.vocab} tokens, {dtype}, on {about.device} \
({versions[cpu_capability]}, {versions[threads]} threads), torch {versions[torch]}, \
transformers {versions[transformers]}.

    {command}

| side | SHA-256 of its bits | class |
|---|---|---|
{sides}

| variant | differing logits | max abs | max ULPs | max row ULPs | flips | near ties | verdict \
| noise ratio |
|---|---|---|---|---|---|---|---|---|
{pairs}
"""
_ROLLOUT = """\
### {name}

`{file}`, SHA-256 `{sha256}`: {tokens:,} sampled tokens of {responses} responses.
vLLM 0.32 samples SmolLM2 in bfloat16, transformers in float32 scores the tokens and takes a step \
of AdamW (1e-6), six times. At the last
step vLLM samples at a temperature of 0.8 and returns log-probabilities that include it. `python \
sample_runs/build.py rollout`.

{sides}
"""
_README = """\
# Sample runs

Everything here was computed by real forward passes, and is rebuilt by `python \
sample_runs/build.py`: the run files by SmolLM2-135M-Instruct (Apache-2.0; `ulpscope model \
smollm2` gets it), those of vLLM and llama.cpp and the dumps by the small model in `model/`.
The dashboard shows the run files read-only; the files in `dumps/` are there to try the upload with.

## Run files

{runs}
## Dumps

{dumps}

`fresh_and_cached_upcast.npz` is `prefill` and `decode` of `prompts/shapes.txt` in bfloat16, saved \
as float32 as many engines do.
`six_calls.npz` follows a public report on KV block reuse: one prompt, six calls, one step; call 1 \
is computed whole (`prefill`), calls 2 to 6
from a cache (`decode`), so they form two classes.

## The model

A {architecture} of {parameters:,} parameters (hidden 384, MLP 2048, 3 layers, 6 heads, 2 \
key/value heads, tied
embeddings, byte-level BPE of 4096 tokens), trained from nothing by `train.py` on the {corpus}:
{training_tokens:,} tokens in {steps} steps, {training_minutes} minutes on two shared cores, seed \
{seed}.
Loss on held-out modules: **{held_out_loss_nats} nats a token**, in bfloat16; mean entropy of a \
head's attention over 200 tokens of them: median {head_entropies_nats[median]} nats, smallest \
{head_entropies_nats[smallest]}. Weights: {megabytes:.1f} MB,
SHA-256 `{sha256}`. Corpus SHA-256 `{corpus_sha256}`.
The corpus is under the PSF's and BSD licences. Its greedy continuation of `def __init__(self,`:

```python
{greedy_continuation}
```

Why this width: see `docs/contributing/decisions/0004-offline-model.md`.
"""


def build_readme() -> None:
    """README.md: where each file comes from, what is in it, and its SHA-256."""
    runs = "\n".join([*map(of_run, RUNS), of_rollout()])
    dumps = "\n".join(map(of_dump, sorted((HERE / "dumps").glob("*.npz"))))
    training = json.loads((HERE / "model" / "training.json").read_text())
    text = _README.format(
        runs=runs, dumps=dumps, **training, **of_file(HERE / "model" / "model.safetensors")
    )
    (HERE / "README.md").write_text(text, encoding="utf-8")


def of_file(path: Path) -> dict[str, Any]:
    body = path.read_bytes()
    return {"megabytes": len(body) / 1e6, "sha256": hashlib.sha256(body).hexdigest()}


def of_run(each: Wanted) -> str:
    path = HERE / f"{each.run_id}.duckdb"
    with RunReader(path) as run:
        about, pairs = run.header.provenance, []
        for pair in run.pairs:
            s = pair.summary
            ratio = "" if pair.noise_ratio is None else f"{pair.noise_ratio:.3g}"
            pairs.append(
                f"| `{pair.variant}` | {s.neq:,} ({s.neq_share:.1%}) | {s.max_abs:.6g} |"
                f" {s.max_ulps:,} | {s.max_row_ulps:.4g} | {s.flips} | {s.near_ties} |"
                f" {pair.verdict} | {ratio} |",
            )
        sides = [f"| `{side.name}` | `{side.sha256}` | {side.bit_class} |" for side in run.sides]
        text = _RUN.format(
            name=each.request.name,
            path=path,
            header=run.header,
            dtype=each.request.dtype,
            about=about,
            versions=about.versions,
            command=each.request.typed() if each.bug is None else about.command,
            sides="\n".join(sides),
            pairs="\n".join(pairs),
            **of_file(path),
        )
    return f"{text}\n{about.note}\n" if about.note else text


def of_rollout() -> str:
    path = HERE / f"{ROLLOUT}.duckdb"
    with RunReader(path) as run:
        sides = [f"- `{side.name}`: SHA-256 of its bits `{side.sha256}`" for side in run.sides]
        return _ROLLOUT.format(
            name=run.header.name,
            file=path.name,
            tokens=run.compared_positions(0),
            responses=len(run.header.prompts),
            sides="\n".join(sides),
            **of_file(path),
        )


def of_dump(path: Path) -> str:
    sha256 = of_file(path)["sha256"]
    with open_dump([path]) as dump:
        sides = ", ".join(f"`{side.name}`" for side in dump.sides)
        return (
            f"- `dumps/{path.name}`, SHA-256 `{sha256}`: {sides}; {dump.rows} positions x"
            f" {dump.vocab} tokens;\n  {dump.dtype_reason}."
        )


STAGES = {
    "model": build_model,
    "runs": build_runs,
    "rollout": build_rollout,
    "dumps": build_dumps,
    "readme": build_readme,
}

if __name__ == "__main__":
    chosen = [stage.partition("=") for stage in sys.argv[1:] or STAGES]
    for stage, _, only in chosen:
        if stage not in STAGES or (only and stage != "runs"):
            sys.exit(
                f"no stage '{stage}'; stages are {', '.join(STAGES)}, and runs=ID for one run."
            )
    # the recorded commands are relative to the repository
    os.chdir(HERE.parent)
    for stage, _, only in chosen:
        STAGES[stage](*filter(None, [only]))
