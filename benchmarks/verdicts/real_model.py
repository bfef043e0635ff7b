"""The trial of the verdict on a real model, a folder of transformers: slower by far than tiny ones, so every finished
case is kept in a file of JSON lines, and the next call goes on from there (docs/verdict_calibration.md).

python -m benchmarks.verdicts.real_model FOLDER --dtype bfloat16 --keep trial.jsonl   # again to go on
python -m benchmarks.verdicts.real_model --tables trial.jsonl                         # of what is there, run nothing
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, cycle, zip_longest
from pathlib import Path
from time import monotonic

import torch

from benchmarks.verdicts.mutations import Mutation, scaled_value
from benchmarks.verdicts.trial import (
    FACTORS,
    Trial,
    cases_of,
    is_wrong,
    limit_row,
    limits_header,
    line_of,
    margins,
    places,
    summary,
    table,
    try_case,
)
from core.inference.controls.judging_session import JudgingSession
from core.inference.models.model import LoadedModel, load_model
from core.inference.models.torch_errors import quiet

TOKENS = 32
PROMPTS = {
    "code": "import heapq\n\n\nclass Queue:\n    def __init__(self):\n        self.heap = []\n\n"
    "    def push(self, item):\n        heapq.heappush(self.heap, item)\n",
    "prose": "The ferry left at ten past six, and the lamps along the quay were still lit. Nobody on deck had slept;"
    " the captain had read the weather twice and said nothing.",
    "German": "Der Zug hielt auf freier Strecke, und niemand wusste, warum. Eine Frau am Fenster las ihrem Kind vor.",
}
LIMIT = "one cached value vector x "
# What a real model was asked about first: faults that are small, or that the shipped model's attention could not show.
FIRST = (
    "int8 cache in one layer only",
    "int8 cache",
    "prefill",
    "keys of two groups swapped in one layer",
    "norm epsilon x 10 in one layer",
    "rotary frequencies scaled by parts",
    "fp8 cache",
    "tied head left untied",
    "chunked:5",
    "one row of an untied head stale",
    "rotary positions halved",
    "products in two halves",
    f"{LIMIT}1.0001",
    f"{LIMIT}1.00001",
    f"{LIMIT}1.001",
    "one cached value of one head x 1.01",
    "prefill+attn:eager",
    "one stale slot of an earlier request",
    "reordering of seed 101",
    "fp8 cache in one layer only",
    "one head's output x 1.01",
    "rotary base 1 % off",
    "decode",
    "one future key visible to one query",
    "weights in fp8",
    "cached slots in another order",
    "a stale slot in an fp8 cache",
    "float64, rounded at the end",
    "left padding not masked",
    "left padding without position ids",
    "head in bfloat16 where float32 was promised",
    "TF32 where float32 was promised",
    "all of it in bfloat16",
    "sums in another order at every call",
    "norm epsilon 1e-5 for 1e-6",
    "norms in float64",
)


@dataclass(frozen=True)
class Kept:
    """A finished case as it lies in the file. prompt: of PROMPTS, its name; seconds: that the judgement took."""

    trial: Trial
    prompt: str
    seconds: float

    def line(self) -> str:
        return json.dumps({**asdict(self.trial), "prompt": self.prompt, "seconds": round(self.seconds, 1)}) + "\n"


def kept_in(file: Path) -> list[Kept]:
    """Finished cases of a file, none where there is no such file; half a line that an interrupted run left behind is
    cut off.
    """
    if not file.exists():
        return []
    text = file.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole)
    found = []
    for line in whole.splitlines():
        row = json.loads(line)
        prompt, seconds = row.pop("prompt"), row.pop("seconds")
        found.append(Kept(Trial(**row), prompt, seconds))
    return found


def in_turn(loaded: LoadedModel) -> list[Mutation]:
    """Every case of the trial and the detection limits: those of FIRST, then bugs and other ways by turns, so that
    whenever it is stopped both are there.
    """
    known = [*cases_of(loaded), *(Mutation(f"{LIMIT}{factor:g}", scaled_value(factor)) for factor in FACTORS)]
    by_name = {case.name: case for case in known}
    rest = [case for case in known if case.name not in FIRST]
    bugs, others = ([case for case in rest if case.changes(loaded) is is_bug] for is_bug in (True, False))
    by_turns = [case for case in chain.from_iterable(zip_longest(bugs, others)) if case is not None]
    return [*(by_name[name] for name in FIRST if name in by_name), *by_turns]


def run_trial(folder: str, dtype: str, file: Path, tokens: int = TOKENS, wanted: Sequence[str] = ()) -> Iterator[Kept]:
    """Judges what `file` does not hold yet, and appends it, case after case, on one prompt each by turns. wanted: names
    of cases, all where it is empty.
    """
    loaded = load_model(folder, dtype=dtype, device="cpu")
    name = f"{Path(folder).name} {dtype}"
    done = {kept.trial.case for kept in kept_in(file) if kept.trial.model == name}
    sessions: dict[str, JudgingSession] = {}
    for case, prompt in zip(in_turn(loaded), cycle(PROMPTS), strict=False):
        if case.name in done or (wanted and case.name not in wanted):
            continue
        started = monotonic()
        if prompt not in sessions:
            ids = tuple(loaded.tokenizer(PROMPTS[prompt])["input_ids"][:tokens])
            sessions[prompt] = JudgingSession(loaded, [ids])
        trial = try_case(case, name, loaded, sessions[prompt].prompts, sessions[prompt])
        kept = Kept(trial, prompt, monotonic() - started)
        with file.open("a") as lines:
            lines.write(kept.line())
        yield kept


def tables(found: Sequence[Kept]) -> Iterator[str]:
    """Lines of Markdown of what is there."""
    trials = [kept.trial for kept in found if not kept.trial.case.startswith(LIMIT)]
    yield from (*summary(trials), "", *margins(trials), "", *places(trials), "", *table(trials))
    yield from limits_header()
    for kept in found:
        if kept.trial.case.startswith(LIMIT):
            yield limit_row(kept.trial, kept.trial.case.removeprefix(LIMIT))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="of a transformers model")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--keep", type=Path, metavar="FILE", help="JSON lines: a finished case each, not run again")
    parser.add_argument("--case", action="append", default=[], help="only this one; may be given several times")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a prompt, at most")
    parser.add_argument("--tables", type=Path, nargs="+", metavar="FILE", help="instead: tables of what these hold")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    if given.tables:
        print(*tables([kept for file in given.tables for kept in kept_in(file)]), sep="\n")
        return 0
    if given.folder is None or given.keep is None:
        parser.error("expected a FOLDER and --keep FILE, or --tables FILE.")
    torch.set_num_threads(given.threads)
    wrong = 0
    with quiet():
        for kept in run_trial(given.folder, given.dtype, given.keep, given.tokens, given.case):
            is_limit = kept.trial.case.startswith(LIMIT)  # what is not seen below one is no miss
            said = limit_row(kept.trial, kept.trial.case) if is_limit else line_of(kept.trial)
            print(f"{kept.seconds:6.0f} s  {said}", flush=True)
            wrong += is_wrong(kept.trial) and not is_limit
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
