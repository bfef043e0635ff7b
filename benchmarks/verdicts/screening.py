"""The screening on trial: what the arrays alone say of harmless paths and of bugs
(docs/explanation/calibration.md).

# every tiny model and the sample model, three dtypes
python -m benchmarks.verdicts.screening
# one of them; several may be given
python -m benchmarks.verdicts.screening --model "gpt2 float32"
# a real model, as SmolLM2
python -m benchmarks.verdicts.screening --folder DIR --dtype bfloat16
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from benchmarks.verdicts.tiny_models import CONFIGS
from benchmarks.verdicts.trial import MODELS, cases_of, model_named, registered
from core.errors import CaptureError
from core.evidence import FAILED, NOTED, PASSED
from core.inference.models.devices import bits_of
from core.inference.models.model import LoadedModel, load_model
from core.inference.models.torch_errors import quiet
from core.inference.paths.engines import Engine, side_of, whole_side
from core.judging.validity import NAMED, screen
from core.numerics.divergence import compare
from core.numerics.formats import LOGIT_FORMATS, format_named
from core.numerics.metrics import METRICS

IN_FLOAT16 = tuple(f"{name} float16" for name in CONFIGS)
TOKENS = 64
PROMPTS = {
    "code": (
        "import heapq\n\n\nclass Queue:\n    def __init__(self):\n        self.heap = []\n\n"
        "    def push(self, item):\n        heapq.heappush(self.heap, item)\n"
    ),
    "prose": (
        "The ferry left at ten past six, and the lamps along the quay were still lit. Nobody on"
        " deck had slept; the captain had read the weather twice and said nothing."
    ),
    "German": (
        "Der Zug hielt auf freier Strecke, und niemand wusste, warum. Eine Frau am Fenster las"
        " ihrem Kind vor."
    ),
}
EQUAL = "equal"


@dataclass(frozen=True)
class Screened:
    """One case on one model. kind: same function, injected bug or lower precision; outcome: of the
    screening.
    """

    model: str
    case: str
    kind: str
    outcome: str
    rms_row_ulps: float


def screened(
    name: str,
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    *,
    is_named: bool = True,
) -> Iterator[Screened]:
    """Screen every case that applies to the model, but those of samplers, whose logits are right.
    is_named: the dump names its compute dtype.
    """
    references: dict[str, list[NDArray]] = {}
    header = SimpleNamespace(
        compute_dtype=loaded.dtype,
        lengths=[len(ids) for ids in prompts],
        provenance=SimpleNamespace(note=NAMED[0] if is_named else ""),
    )
    for case in (case for case in cases_of(loaded) if case.sample is None):
        try:
            with registered(case):
                # most cases have the same reference, so it is computed once
                if case.reference not in references:
                    references[case.reference] = logits_of(loaded, prompts, case.reference)
                sides = (
                    references[case.reference],
                    logits_of(loaded, prompts, case.path or case.engine or "prefill"),
                )
        except CaptureError:
            # not possible on this model
            continue
        table = positions_of(*sides, loaded.dtype)
        is_bug = case.changes(loaded) and not case.is_precision
        if is_bug:
            kind = "injected bug"
        elif case.is_precision:
            kind = "lower precision"
        else:
            kind = "same function"
        if not table["neq"].any():
            yield Screened(name, case.name, kind, EQUAL, 0.0)
            continue
        size = float(np.sqrt(np.nanmean(table["rms_row_ulps"].to_numpy(float) ** 2)))
        # validity names NaN and infinity before anything is screened
        is_broken = table["nonfinite_mismatch"].any()
        yield Screened(
            name,
            case.name,
            kind,
            FAILED if is_broken else screen(header, table).outcome,
            size,
        )


def logits_of(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    side: str | Engine,
) -> list[NDArray]:
    """Bits of a side, an array [positions, vocab] a prompt."""
    with torch.inference_mode(), side_of(side).open(loaded, None) as run:
        # a dump has the model's dtype, whatever an engine returns
        return [bits_of(whole_side(run, ids).to(loaded.torch_dtype)) for ids in prompts]


def positions_of(
    reference: Sequence[NDArray],
    variant: Sequence[NDArray],
    dtype: str,
) -> pd.DataFrame:
    """Figures by position, as a run has them."""
    tables = []
    for prompt, (a, b) in enumerate(zip(reference, variant, strict=True)):
        figures = compare(a, b, format_named(dtype))
        columns = {metric.name: metric.of(figures) for metric in METRICS}
        tables.append(pd.DataFrame(columns | {"prompt": prompt, "position": np.arange(len(a))}))
    return pd.concat(tables, ignore_index=True)


def table_of(outcomes: Sequence[Screened]) -> Iterator[str]:
    """Lines of Markdown: one line per model and kind."""
    yield (
        "| model | kind | cases | bug suspected | undecided | likely rounding | changed nothing |"
        " rms, row ULPs |"
    )
    yield f"|{'---|' * 8}"
    for model, kind in dict.fromkeys((each.model, each.kind) for each in outcomes):
        own = [each for each in outcomes if (each.model, each.kind) == (model, kind)]
        counts = Counter(each.outcome for each in own)
        sizes = [
            each.rms_row_ulps
            for each in own
            if each.outcome != EQUAL and np.isfinite(each.rms_row_ulps)
        ]
        span = f"{min(sizes):.2g} to {max(sizes):.2g}" if sizes else ""
        cells = " | ".join(str(counts[outcome]) for outcome in (FAILED, NOTED, PASSED, EQUAL))
        yield f"| {model} | {kind} | {len(own)} | {cells} | {span} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", action="append", default=[], choices=(*MODELS, *IN_FLOAT16))
    parser.add_argument("--folder", help="of a transformers model, in place of the small ones")
    parser.add_argument("--dtype", default="bfloat16", choices=tuple(LOGIT_FORMATS))
    parser.add_argument(
        "--unnamed",
        action="store_true",
        help="as if the dumps did not name their compute dtype",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    outcomes: list[Screened] = []
    with quiet():
        if options.folder:
            loaded = load_model(options.folder, dtype=options.dtype, device="cpu")
            prompts = [
                tuple(loaded.tokenizer(text)["input_ids"][:TOKENS])
                for text in list(PROMPTS.values())[:2]
            ]
            outcomes += screened(
                f"{options.folder} {options.dtype}",
                loaded,
                prompts,
                is_named=not options.unnamed,
            )
        for name in () if options.folder else options.model or (*MODELS, *IN_FLOAT16):
            outcomes += screened(name, *model_named(name), is_named=not options.unnamed)
    print(*table_of(outcomes), sep="\n")
    accused = [each for each in outcomes if each.kind == "same function" and each.outcome == FAILED]
    print(*(f"ACCUSED {each}" for each in accused), sep="\n")
    return int(bool(accused))


if __name__ == "__main__":
    raise SystemExit(main())
