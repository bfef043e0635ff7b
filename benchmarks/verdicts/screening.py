"""Arrays alone on trial: what a dump of harmless paths and of bugs is called with nothing else, and
with an exact result (docs/explanation/calibration.md).

# every tiny model and the sample model, three dtypes
python -m benchmarks.verdicts.screening
# one of them; several may be given
python -m benchmarks.verdicts.screening --model gpt2
# every dense tiny model in 16 bits, also with one exact result, and with trusted results too
python -m benchmarks.verdicts.screening --exact
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.verdicts.tiny_models import CONFIGS
from benchmarks.verdicts.trial import MODELS, cases_of, model_named, registered
from core.errors import CaptureError, UlpscopeError
from core.evidence import SCREENING
from core.inference.models.devices import bits_of
from core.inference.models.dtypes import in_float32
from core.inference.models.model import LoadedModel
from core.inference.models.torch_errors import quiet
from core.inference.paths.engines import Engine, side_of, whole_side
from core.judging.in_memory import compare_arrays
from core.numerics.formats import format_named
from core.progress import no_progress
from core.runs.dumps.torch_files import as_array
from core.verdict import BUG_SUSPECTED, IDENTICAL, INVALID_DUMP, UNDECIDED, Verdict

NAMES = (*MODELS, *(f"{name} float16" for name in CONFIGS))
DENSE_16_BITS = [
    f"{name} {dtype}"
    for name in CONFIGS
    if not name.startswith("mixtral")
    for dtype in ("bfloat16", "float16")
]
TRUSTED = (
    "prefill",
    "chunked:5",
    "prefill+attn:eager",
    "prefill+batch:3",
    "decode",
    "decode+batch:3",
)
SOUND, FAULT, PRECISION = "same function", "injected bug", "lower precision"
FOUND = (BUG_SUSPECTED, INVALID_DUMP)
REFUSED = "refused"  # as a dump of nothing but NaN


@dataclass(frozen=True)
class Screened:
    """One case on one model. given: what the dump came with; size: row ULPs (rms), if screened."""

    model: str
    given: str
    kind: str
    verdict: str
    size: float = np.inf


def array_of(loaded: LoadedModel, prompts: Sequence[Sequence[int]], side: str | Engine) -> NDArray:
    """Logits of a side as a dump holds them, in the model's dtype. [positions, vocab]"""
    with torch.inference_mode(), side_of(side).open(loaded, None) as run:
        # a dump has the model's dtype, whatever an engine returns
        rows = [whole_side(run, ids).to(loaded.torch_dtype) for ids in prompts]
    return bits_of(torch.cat(rows)).view(format_named(loaded.dtype).values)


def screened(name: str, folder: Path, *, is_named: bool, has_exact: bool) -> Iterator[Screened]:
    """Screen every case that applies to a model, but those of samplers, whose logits are right.
    is_named: the dump names its compute dtype; has_exact: it comes with exact results too.
    """
    loaded, prompts = model_named(name)
    files = {"nothing": None}
    if has_exact:
        files |= _exact_files(loaded, prompts, folder)
    references = {}
    pair = folder / "pair.npz"
    for case in (case for case in cases_of(loaded) if case.sample is None):
        # not every path is possible on every model
        with suppress(CaptureError), registered(case):
            # most cases have the same reference, so it is computed once
            if case.reference not in references:
                references[case.reference] = array_of(loaded, prompts, case.reference)
            reference = references[case.reference]
            variant = array_of(loaded, prompts, case.path or case.engine or "prefill")
            kind = FAULT if case.changes(loaded) else SOUND
            if case.is_precision:
                kind = PRECISION
            lengths = [len(ids) for ids in prompts]
            np.savez(pair, reference=reference, variant=variant, prompt_lengths=lengths)
            for given, exact in files.items():
                if reference.tobytes() == variant.tobytes():
                    yield Screened(name, given, kind, IDENTICAL)
                else:
                    dtype = loaded.dtype if is_named else None
                    yield Screened(name, given, kind, *_verdict(pair, exact, dtype))


def _exact_files(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], folder: Path
) -> dict[str, Path]:
    with in_float32(loaded) as wide:
        exact = array_of(wide, prompts, "prefill")
    trusted = {}
    for path in TRUSTED:
        with suppress(CaptureError):
            trusted[f"trusted:{path}"] = array_of(loaded, prompts, path)
    files = {"exact": folder / "exact.npz", "exact and trusted": folder / "trusted.npz"}
    np.savez(files["exact"], exact=exact)
    np.savez(files["exact and trusted"], exact=exact, **trusted)
    return files


def _verdict(pair: Path, exact: Path | None, dtype: str | None) -> tuple[str, float]:
    options = {"holds": "logits", "exact": exact, "compute_dtype": dtype}
    try:
        with compare_arrays([pair], on_progress=no_progress, **options) as run:
            verdict = run.verdicts[0]
    except UlpscopeError:
        return REFUSED, np.inf
    rows = [row.figures for row in verdict.evidence if row.group == SCREENING]
    return verdict.name, rows[0].rms_row_ulps if rows else np.inf


def verdict_of_arrays(
    reference: torch.Tensor,
    variant: torch.Tensor,
    lengths: Sequence[int],
    dtype: str,
) -> Verdict:
    """Judge two sides and nothing else. reference, variant: [positions, vocab]"""
    with TemporaryDirectory() as folder:
        pair = Path(folder) / "pair.npz"
        sides = {"reference": as_array(reference), "variant": as_array(variant)}
        np.savez(pair, **sides, prompt_lengths=lengths)
        about = {"compute_dtype": dtype, "holds": "logits"}
        with compare_arrays([pair], on_progress=no_progress, **about) as run:
            return run.verdicts[0]


def table_of(outcomes: Sequence[Screened]) -> Iterator[str]:
    """Lines of Markdown: one line per model, what it came with, and kind."""
    yield (
        "| model | given | kind | cases | bug suspected | undecided | rounding | refused |"
        " changed nothing | rms, row ULPs |"
    )
    yield f"|{'---|' * 10}"
    for key in dict.fromkeys((each.model, each.given, each.kind) for each in outcomes):
        own = [each for each in outcomes if (each.model, each.given, each.kind) == key]
        verdicts = [each.verdict for each in own]
        found = sum(verdict in FOUND for verdict in verdicts)
        undecided, refused, same = map(verdicts.count, (UNDECIDED, REFUSED, IDENTICAL))
        rounding = len(own) - found - undecided - refused - same
        counts = len(own), found, undecided, rounding, refused, same
        sizes = [each.size for each in own if np.isfinite(each.size)]
        span = f"{min(sizes):.2g} to {max(sizes):.2g}" if sizes else ""
        yield f"| {' | '.join([*key, *map(str, counts), span])} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", action="append", choices=NAMES)
    parser.add_argument("--exact", action="store_true", help="with exact and trusted results too")
    parser.add_argument("--unnamed", action="store_true", help="dumps name no compute dtype")
    options = parser.parse_args()
    torch.set_num_threads(1)
    outcomes = []
    with quiet(), TemporaryDirectory() as folder:
        for name in options.model or (DENSE_16_BITS if options.exact else NAMES):
            about = {"is_named": not options.unnamed, "has_exact": options.exact}
            outcomes += screened(name, Path(folder), **about)
    print(*table_of(outcomes), sep="\n")
    return int(any(each.kind == SOUND and each.verdict in FOUND for each in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
