"""Rebuild everything in this folder from nothing: `python sample_runs/build.py [model] [runs] [dumps] [readme]`
(default: all).

model: trains the offline model (train.py; about 35 minutes on two cores); runs, or runs=ID: captures the sample runs
with it, or one; dumps: writes the npz files to try the upload with; readme: the provenance and digests in README.md.
Nothing here is simulated.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.verdicts.mutations import neighbours_block_at_one_position  # noqa: E402  (the path above comes first)
from core.commands.capture_extras import judge_pairs, try_remedies, watch_kernels  # noqa: E402
from core.inference.capture.capture import plan_capture, run_capture  # noqa: E402
from core.inference.generating.generation import plan_generation  # noqa: E402
from core.inference.models.model import load_model  # noqa: E402
from core.inference.paths.engines import Engine  # noqa: E402
from core.inference.paths.paths import BASES, Base, Emit, PromptBatch  # noqa: E402
from core.prompt_files import GivenPrompt, read_prompts, read_whole  # noqa: E402
from core.runs.dumps.dump import open_dump  # noqa: E402
from core.runs.reader import RunReader  # noqa: E402
from core.runs.store.store import Store  # noqa: E402
from core.runs.writer import RunWriter  # noqa: E402

MODEL = "sample_runs/model"
BUG = "another_requests_block"
STEPS = 4500  # 2.8 passes over the corpus


@dataclass(frozen=True)
class Wanted:
    """One run: its id and name, dtype, prompts (names of text files, or one file of prompts), reference and variants.

    tokens: let every side continue the prompts by so many; bug: a variant of a walk with a planted fault, which no
    command names; is_closer: with the modules' outputs, the kernels and the remedies.
    """

    run_id: str
    name: str
    dtype: str
    prompts: tuple[str, ...]
    reference: str
    variants: tuple[str, ...]
    tokens: int = 0
    bug: tuple[str, Engine] | None = None
    is_closer: bool = False

    @property
    def command(self) -> str:
        """What repeats it."""
        if self.bug is not None:
            return "python sample_runs/build.py runs"
        given = [
            ("--prompts" if p.endswith(".jsonl") else "--prompt-file", f"sample_runs/prompts/{p}") for p in self.prompts
        ]
        files = [part for pair in given for part in pair]
        paths = ["--reference", self.reference, *(part for v in self.variants for part in ("--variant", v))]
        does = ["generate", "--judge"] if self.tokens else ["judge"]
        if self.is_closer:
            does = ["capture", "--judge", "--layers", "--kernels", "--remedies"]
        tokens = ["--tokens", str(self.tokens)] if self.tokens else []
        return shlex.join(
            ["python", "-m", "core", *does, "--model", MODEL, *files, *paths, *tokens, "--dtype", self.dtype]
        )


RUNS = [
    Wanted(
        "fresh-against-cached",
        "Fresh against cached, bfloat16",
        "bfloat16",
        ("scheduler.txt", "parser.txt"),
        "prefill",
        ("decode",),
    ),
    Wanted(
        "batch-1-against-n",
        "Batch 1 against N, bfloat16",
        "bfloat16",
        ("parser.txt",),
        "decode",
        ("decode+batch:2", "decode+batch:8", "prefill"),
    ),
    Wanted(
        "float32-three-paths",
        "Fresh, cached and batched, float32",
        "float32",
        ("short.txt",),
        "prefill",
        ("decode", "decode+batch:4"),
        is_closer=True,
    ),
    Wanted(
        "continuations-that-part",
        "Greedy continuations that part, bfloat16",
        "bfloat16",
        ("parting.jsonl",),
        "prefill",
        ("decode",),
        tokens=40,
    ),
    Wanted(
        "injected-bug",
        "Injected bug: another request's block for one token",
        "bfloat16",
        ("short.txt",),
        "prefill",
        (BUG,),
        bug=(BUG, neighbours_block_at_one_position),
    ),
    Wanted(
        "where-it-starts",
        "Where it starts: layers, kernels, remedies, bfloat16",
        "bfloat16",
        ("short.txt",),
        "decode",
        ("decode+batch:2", "prefill"),
        is_closer=True,
    ),
]


def prompt(name: str) -> str:
    return (HERE / "prompts" / f"{name}.txt").read_text(encoding="utf-8")


def prompts_of(wanted: Wanted) -> list[str]:
    given = [found for name in wanted.prompts for found in _read(HERE / "prompts" / name)]
    return [found.text or "" for found in given]


def _read(path: Path) -> list[GivenPrompt]:
    return read_prompts(path) if path.suffix == ".jsonl" else [read_whole(path)]


def build_model() -> None:
    from train import train

    train(HERE / "model", STEPS)


def build_runs(only: str = "") -> None:
    if only and only not in {wanted.run_id for wanted in RUNS}:
        sys.exit(f"no run '{only}'; runs are {', '.join(wanted.run_id for wanted in RUNS)}.")
    store = Store(HERE)
    for wanted in (wanted for wanted in RUNS if only in ("", wanted.run_id)):
        (HERE / f"{wanted.run_id}.duckdb").unlink(missing_ok=True)
        loaded = load_model(MODEL, dtype=wanted.dtype, device="cpu")
        about = {"name": wanted.name, "command": wanted.command}
        with planted(wanted.bug):
            if wanted.tokens:
                plan = plan_generation(
                    loaded, prompts_of(wanted), wanted.reference, wanted.variants, tokens=wanted.tokens, **about
                )
            else:
                plan = plan_capture(
                    loaded, prompts_of(wanted), wanted.reference, wanted.variants, layers=wanted.is_closer, **about
                )
            with RunWriter(store, plan.header, run_id=wanted.run_id) as writer:
                failures = run_capture(plan, writer)
                for run in (watch_kernels, try_remedies, judge_pairs) if wanted.is_closer else (judge_pairs,):
                    failures += run(plan, writer, lambda *_: None)
                if failures:
                    raise SystemExit(failures[0])
                note = (
                    "A planted fault, not a finding: the variant is wrong on purpose, to show what a suspected bug"
                    " looks like."
                )
                writer.finish(note=note if wanted.bug else "")
        print(f"{wanted.run_id}: captured and judged", flush=True)


@contextmanager
def planted(bug: tuple[str, Engine] | None) -> Iterator[None]:
    """The faulty walk is a base of the grammar for as long as its run is made."""
    if bug is None:
        yield
        return
    name, engine = bug

    def walk(batch: PromptBatch, emit: Emit) -> None:
        emit(0, engine(batch.loaded.model, torch.tensor(batch.prompt)))

    BASES[name] = Base(walk, forwards=lambda positions: positions)
    try:
        yield
    finally:
        del BASES[name]


class _Rows:
    """Keeps the bits of a capture in memory: one list of chunks a side."""

    def __init__(self, sides: int) -> None:
        self.chunks: list[list[np.ndarray]] = [[] for _ in range(sides)]

    def write(self, side: int, row: int, bits: np.ndarray) -> None:  # noqa: ARG002  (the sink's signature)
        self.chunks[side].append(bits)

    def side(self, index: int) -> np.ndarray:
        return np.concatenate(self.chunks[index])


def captured_bits(
    text: str, reference: str, variant: str
) -> tuple[np.ndarray, np.ndarray, tuple[int, ...], tuple[str, ...]]:
    """bfloat16 bits of two paths [positions, vocab], token ids and texts."""
    plan = plan_capture(load_model(MODEL, dtype="bfloat16", device="cpu"), [text], reference, [variant], kv=False)
    rows = _Rows(2)
    run_capture(plan, rows)
    tokens = plan.header.prompts[0]
    return rows.side(0), rows.side(1), tokens.token_ids, tokens.token_texts


def build_dumps() -> None:
    """Two dumps as engines write them: bfloat16 logits upcast to float32, and six calls for one step of one prompt."""

    def upcast(bits: np.ndarray) -> np.ndarray:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)

    folder = HERE / "dumps"
    folder.mkdir(exist_ok=True)
    fresh, cached, ids, texts = captured_bits(prompt("shapes"), "prefill", "decode")
    np.savez_compressed(
        folder / "fresh_and_cached_upcast.npz",
        fresh=upcast(fresh),
        cached=upcast(cached),
        token_ids=np.array(ids, np.int64),
        tokens=np.array(texts),
    )
    # The protocol of report A: six separate calls, the logits of the single generated step. The first call computes the
    # prompt, the later ones find it in a cache and only compute the last token; here the two paths are prefill and
    # decode of the same prompt.
    calls = {}
    for call in range(1, 7):
        reference, variant, _, _ = captured_bits(
            "The quick brown fox jumps over the lazy dog. " * 4, "prefill", "decode"
        )
        calls[f"call_{call}"] = upcast((reference if call == 1 else variant)[-1:])
    np.savez_compressed(folder / "six_calls.npz", **calls)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build_readme() -> None:
    """README.md: where each file comes from, what is in it, and its SHA-256."""
    training = json.loads((HERE / "model" / "training.json").read_text())
    weights = HERE / "model" / "model.safetensors"
    lines = [
        "# Sample runs",
        "",
        (
            "Everything here was computed by real forward passes of the small model in `model/`, and is rebuilt by"
            " `python sample_runs/build.py`."
        ),
        "The dashboard shows the run files read-only; the files in `dumps/` are there to try the upload with.",
        "",
        "## Run files",
        "",
    ]
    for wanted in RUNS:
        name, dtype, path = wanted.name, wanted.dtype, HERE / f"{wanted.run_id}.duckdb"
        with RunReader(path) as run:
            about, header = run.header.provenance, run.header
            versions = about.versions
            lines += [
                f"### {name}",
                "",
                f"`{path.name}`, {path.stat().st_size / 1e6:.1f} MB, SHA-256 `{sha256(path)}`",
                "",
                (
                    f"{header.rows} positions x {header.vocab} tokens, {dtype}, on {about.device}"
                    f" ({versions['cpu_capability']}, {versions['threads']} threads), torch {versions['torch']},"
                    f" transformers {versions['transformers']}."
                ),
                "",
                f"    {about.command}",
                "",
                "| side | SHA-256 of its bits | class |",
                "|---|---|---|",
                *(f"| `{side.name}` | `{side.sha256}` | {side.bit_class} |" for side in run.sides),
                "",
                "| variant | differing logits | max abs | max ULPs | max row ULPs | flips | near ties | verdict | noise"
                " ratio |",
                "|---|---|---|---|---|---|---|---|---|",
            ]
            for pair in run.pairs:
                s = pair.summary
                differing = f"{s.neq:,} ({s.neq_share:.1%})"
                ratio = "" if pair.noise_ratio is None else f"{pair.noise_ratio:.3g}"
                lines.append(
                    f"| `{pair.variant}` | {differing} | {s.max_abs:.6g} | {s.max_ulps:,} | {s.max_row_ulps:.4g} |"
                    f" {s.flips} | {s.near_ties} | {pair.verdict} | {ratio} |"
                )
            if about.note:
                lines += ["", about.note]
            lines.append("")
    lines += ["## Dumps", ""]
    for path in sorted((HERE / "dumps").glob("*.npz")):
        with open_dump([path]) as dump:
            sides = ", ".join(f"`{side.name}`" for side in dump.sides)
            lines.append(
                f"- `dumps/{path.name}`, SHA-256 `{sha256(path)}`: {sides}; {dump.rows} positions x {dump.vocab}"
                " tokens;"
            )
            lines.append(f"  {dump.dtype_reason}.")
    lines += [
        "",
        (
            "`fresh_and_cached_upcast.npz` is `prefill` and `decode` of `prompts/shapes.txt` in bfloat16, saved as"
            " float32 as many engines do."
        ),
        (
            "`six_calls.npz` follows a public report on KV block reuse: one prompt, six calls, one step; call 1 is"
            " computed whole (`prefill`), calls 2 to 6"
        ),
        "from a cache (`decode`), so they form two classes.",
        "",
        "## The model",
        "",
        (
            f"A {training['architecture']} of {training['parameters']:,} parameters (hidden 384, MLP 2048, 3 layers, 6"
            " heads, 2 key/value heads, tied"
        ),
        f"embeddings, byte-level BPE of 4096 tokens), trained from nothing by `train.py` on the {training['corpus']}:",
        (
            f"{training['training_tokens']:,} tokens in {training['steps']} steps, {training['training_minutes']}"
            f" minutes on two shared cores, seed {training['seed']}."
        ),
        (
            f"Loss on held-out modules: **{training['held_out_loss_nats']} nats a token**, in bfloat16. Weights:"
            f" {weights.stat().st_size / 1e6:.1f} MB,"
        ),
        f"SHA-256 `{sha256(weights)}`. Corpus SHA-256 `{training['corpus_sha256']}`.",
        "The corpus is under the PSF licence. Its greedy continuation of `def __init__(self,`:",
        "",
        "```python",
        training["greedy_continuation"],
        "```",
        "",
        "Why this width: see `docs/decisions/0004-offline-model.md`.",
    ]
    (HERE / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


STAGES = {"model": build_model, "runs": build_runs, "dumps": build_dumps, "readme": build_readme}

if __name__ == "__main__":
    chosen = [stage.partition("=") for stage in sys.argv[1:] or STAGES]
    unknown = [stage for stage, _, only in chosen if stage not in STAGES or (only and stage != "runs")]
    if unknown:
        sys.exit(f"no stage '{unknown[0]}'; stages are {', '.join(STAGES)}, and runs=ID for one run.")
    os.chdir(HERE.parent)  # the recorded commands are relative to the repository
    for stage, _, only in chosen:
        STAGES[stage](*([only] if only else []))
