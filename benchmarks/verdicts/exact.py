"""Dumps in 16 bits on trial with nothing else, with one exact result, and with trusted
results too (docs/explanation/calibration.md).

python -m benchmarks.verdicts.exact                            # every dense tiny model
python -m benchmarks.verdicts.exact --model "llama bfloat16"
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.verdicts.screening import logits_of
from benchmarks.verdicts.tiny_models import CONFIGS
from benchmarks.verdicts.trial import cases_of, model_named, registered
from core.errors import CaptureError, UlpscopeError
from core.inference.models.dtypes import in_float32
from core.inference.models.model import LoadedModel
from core.inference.models.torch_errors import quiet
from core.inference.paths.engines import side_of, whole_side
from core.judging.in_memory import compare_arrays
from core.progress import no_progress
from core.verdict import BUG_SUSPECTED, INVALID_DUMP

MODELS = tuple(
    f"{name} {dtype}"
    for name in CONFIGS
    if not name.startswith("mixtral")
    for dtype in ("bfloat16", "float16")
)
TRUSTED = (
    "prefill",
    "chunked:5",
    "prefill+attn:eager",
    "prefill+batch:3",
    "decode",
    "decode+batch:3",
)
GIVEN = ("nothing", "exact", "exact and trusted")


def outcomes_of(name: str, folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (case, 'sound' or 'fault', verdict with each of GIVEN)."""
    loaded, prompts = model_named(name)

    def rows(side: str) -> np.ndarray:
        bits = np.concatenate(logits_of(loaded, prompts, side))
        return bits.view("V2" if loaded.dtype == "bfloat16" else np.float16)

    trusted = {}
    for path in TRUSTED:
        try:
            trusted[f"trusted:{path}"] = rows(path)
        except CaptureError:
            # not possible on this model
            continue
    exact = _exact(loaded, prompts)
    np.savez(folder / "exact.npz", exact=exact)
    np.savez(folder / "trusted.npz", exact=exact, **trusted)
    for case in cases_of(loaded):
        if case.sample is not None or case.is_precision:
            continue
        try:
            with registered(case):
                reference, variant = (
                    rows(case.reference),
                    rows(case.path or case.engine or "prefill"),
                )
        except CaptureError:
            continue
        if np.array_equal(reference.view(np.uint16), variant.view(np.uint16)):
            continue
        lengths = [len(ids) for ids in prompts]
        np.savez(folder / "pair.npz", reference=reference, variant=variant, prompt_lengths=lengths)
        files = None, folder / "exact.npz", folder / "trusted.npz"
        kind = "fault" if case.changes(loaded) else "sound"
        yield case.name, kind, [_verdict(folder / "pair.npz", file) for file in files]


def _exact(loaded: LoadedModel, prompts: list[tuple[int, ...]]) -> np.ndarray:
    with in_float32(loaded) as wide, side_of("prefill").open(wide, None) as run:
        return np.concatenate([whole_side(run, ids).numpy() for ids in prompts])


def _verdict(pair: Path, exact: Path | None) -> str:
    options = {"holds": "logits", "exact": exact}
    try:
        with compare_arrays([pair], on_progress=no_progress, **options) as run:
            return run.verdicts[0].name
    except UlpscopeError:
        return "refused"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", action="append", choices=MODELS)
    torch.set_num_threads(1)
    is_wrong = False
    print(f"| model | given | {' | '.join(('sound', 'accused', 'faults', 'found', 'undecided'))} |")
    print(f"|{'---|' * 7}")
    for name in parser.parse_args().model or MODELS:
        with tempfile.TemporaryDirectory() as folder, quiet():
            outcomes = list(outcomes_of(name, Path(folder)))
        for place, given in enumerate(GIVEN):
            counts = Counter((kind, verdicts[place]) for _, kind, verdicts in outcomes)
            found = {
                kind: counts[kind, BUG_SUSPECTED] + counts[kind, INVALID_DUMP]
                for kind in ("sound", "fault")
            }
            total = Counter(kind for _, kind, _ in outcomes)
            is_wrong |= found["sound"] > 0
            cells = total["sound"], found["sound"], total["fault"], found["fault"]
            line = (name, given, *cells, counts["fault", "undecided"])
            print(f"| {' | '.join(map(str, line))} |", flush=True)
    return int(is_wrong)


if __name__ == "__main__":
    raise SystemExit(main())
