"""What `invariant` costs: tokens a second with and without, by batch size, on the shipped model and at the shapes of an
8B block.

python -m benchmarks.invariant               # the tables of docs/invariant.md python -m benchmarks.invariant --device
cuda # the same on a GPU python -m benchmarks.invariant --trial       # which injected bugs, and which harmless
variations, are equal in one order python -m benchmarks invariant               # one line a model, the share kept
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from benchmarks.capture import model_folder
from benchmarks.timing import Line
from benchmarks.verdicts.random_models import SHAPES, TOKENIZER
from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from benchmarks.verdicts.trial import cases_of, registered
from core.errors import CaptureError
from core.inference.capture.throughput import Throughput, throughput
from core.inference.controls.judging_session import JudgingSession
from core.inference.invariant.rung import one_order_evidence
from core.inference.models.devices import usable_device
from core.inference.models.model import LoadedModel, load_model, loaded_from
from core.inference.models.torch_errors import quiet
from core.inference.paths.engines import digests_of, side_of
from core.runs.file.evidence import OneOrderFigures

BATCHES = (1, 2, 4, 8, 16)
DTYPES = ("float32", "bfloat16")
FEW = (1, 8)  # of the one-line run, which is to take a minute or two
TARGET = 0.75
_VOCAB = 4096  # of the random blocks: their head is not what is measured


def one_block(shape: str, dtype: str, layers: int = 1, device: str = "cpu") -> LoadedModel:
    """Decoder blocks of a published shape with random weights and a small vocabulary."""
    given = {**SHAPES[shape], "num_hidden_layers": layers, "vocab_size": _VOCAB}
    torch.manual_seed(0)
    with quiet(), usable_device(device):
        config = LlamaConfig(**given, bos_token_id=0, eos_token_id=0, pad_token_id=0)
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval().requires_grad_(False)
    return loaded_from(model, AutoTokenizer.from_pretrained(TOKENIZER))


def measured(
    loaded: LoadedModel, base: str, *, tokens: int, rounds: int, batches: tuple[int, ...] = BATCHES
) -> list[Throughput]:
    """A base without and with the modifier, in turn."""
    return throughput(loaded, [base, f"{base}+invariant"], batches, tokens=tokens, rounds=rounds)


def _models(names: list[str], device: str = "cpu") -> dict[str, int]:
    """Name -> tokens of a prompt: few where a forward takes long."""
    tokens = {"shipped": 64, "1b": 32, "8b": 16} if device == "cpu" else {"shipped": 64, "1b": 128, "8b": 128}
    return {name: tokens[name] for name in names}


def _loaded(name: str, dtype: str, device: str = "cpu") -> LoadedModel | None:
    if name != "shipped":
        return one_block(name, dtype, device=device)
    folder = model_folder()
    return None if folder is None else load_model(str(folder), dtype=dtype, device=device)


def run() -> list[Line]:
    """Share of the tokens a second kept, in the middle of two batch sizes, for each model, dtype and base."""
    lines = []
    for name, tokens in _models(["shipped", "8b"]).items():
        for dtype in DTYPES:
            loaded = _loaded(name, dtype)
            if loaded is None:
                lines.append(
                    Line(f"invariant, {name}", f">= {TARGET:.0%} kept", "not run", "sample_runs/model is not built")
                )
                continue
            for base in ("prefill", "decode"):
                kept = [
                    one.share
                    for one in measured(loaded, base, tokens=tokens, rounds=3, batches=FEW)
                    if one.path.endswith("invariant")
                ]
                shares = ", ".join(f"{share:.2f}" for share in kept)
                how = (
                    f"{dtype}, batch sizes {', '.join(map(str, FEW))}: {shares}; {torch.get_num_threads()} threads,"
                    " medians of 3"
                )
                lines.append(
                    Line(f"invariant, {base}, {name}", f">= {TARGET:.0%} kept", f"{statistics.median(kept):.0%}", how)
                )
            del loaded
    return lines


def trial(models: tuple[str, ...] = ("llama", "gpt2", "gemma2")) -> dict[tuple[str, bool, str], list[str]]:
    """(model, is it a bug, outcome) -> cases of the verdict's trial, each run once more with its sums in one order."""
    found: dict[tuple[str, bool, str], list[str]] = {}
    for name in models:
        loaded = tiny_model(name)
        prompts = tiny_prompts(loaded)[:1]
        for case in cases_of(loaded):
            variant = case.path or case.engine
            assert variant is not None
            try:
                with quiet(), torch.inference_mode(), registered(case):
                    sides = (side_of(case.reference), side_of(variant))
                    reference, other = digests_of(loaded, prompts, sides)
                    row = one_order_evidence(loaded, sides, None, JudgingSession(loaded, prompts).digest)
            except CaptureError:
                outcome = "refused"
            else:
                same = row is not None and isinstance(row.figures, OneOrderFigures) and row.figures.bit_identical
                outcome = (
                    "equal anyway"
                    if reference == other
                    else "no row"
                    if row is None
                    else "equal"
                    if same
                    else "not equal"
                )
            found.setdefault((name, case.changes(loaded), outcome), []).append(case.name)
    return found


def main() -> None:
    """The tables, in markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=("shipped", "1b", "8b"))
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu", help="cpu or cuda; there, blocks get longer prompts")
    parser.add_argument("--trial", action="store_true")
    given = parser.parse_args()
    if given.trial:
        for (model, is_bug, outcome), cases in sorted(trial().items()):
            print(f"{model}: {'bugs' if is_bug else 'harmless'}, {outcome}: {len(cases)} ({', '.join(cases)})")
        return
    if given.threads:
        torch.set_num_threads(given.threads)
    print_table(given.model or ["shipped", "1b", "8b"], given.dtype or DTYPES, given.rounds, given.device)


def print_table(models: list[str], dtypes: Sequence[str], rounds: int, device: str = "cpu") -> None:
    """One row a model, dtype and base, in markdown: tokens a second with the modifier, without, and the share kept."""
    print("| model | dtype | path | " + " | ".join(f"batch {batch}" for batch in BATCHES) + " |")
    print("|---" * (3 + len(BATCHES)) + "|")
    for name, tokens in _models(models, device).items():
        for dtype in dtypes:
            loaded = _loaded(name, dtype, device)
            if loaded is None:
                print(f"| {name} | | not built | " + " | " * len(BATCHES))
                continue
            for base in ("prefill", "decode"):
                found = measured(loaded, base, tokens=tokens, rounds=rounds)
                with_it = {one.batch: one for one in found if one.path.endswith("invariant")}
                without = {one.batch: one for one in found if one.batch not in with_it or one is not with_it[one.batch]}
                cells = [
                    f"{with_it[batch].tokens_per_second:,.0f} of {without[batch].tokens_per_second:,.0f},"
                    f" **{with_it[batch].share:.2f}**"
                    for batch in BATCHES
                ]
                print(f"| {name} | {dtype} | `{base}` | " + " | ".join(cells) + " |", flush=True)
            del loaded


if __name__ == "__main__":
    main()
