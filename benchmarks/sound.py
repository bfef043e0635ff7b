"""Sound pairs that no limit was chosen on: accused of how many? (docs/explanation/calibration.md)

python -m benchmarks.sound --results FILE --seeds 1 400            # 90 minutes on one core
python -m benchmarks.sound --results FILE --seeds 1 400 --model    # judged with the model instead

A seed draws the family, its weights, the dtype, twelve prompts of 32 to 2,048 tokens, threads, and
six ways to compute the same. Each prompt is a pair of arrays and of lists; four of them are one of
chosen tokens, and with the model. Pairs of equal bits do not count. Seeds that FILE has are not
run again.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.families import families, tiny_family
from benchmarks.verdicts.mutations import FAULTS, Mutation
from benchmarks.verdicts.rollouts import sampled, with_values
from benchmarks.verdicts.screening import verdict_of_arrays
from benchmarks.verdicts.variations import VARIATIONS
from core.cause import Cause
from core.errors import CaptureError
from core.inference.controls.judge_model import judge
from core.inference.models.dtypes import WIDENING
from core.inference.models.model import LoadedModel
from core.inference.models.torch_errors import foreign_errors_stop, quiet
from core.inference.paths.engines import Engine, side_of, whole_side
from core.judging.lists import judge_responses
from core.responses.files import read_sides
from core.responses.pairing import compare_sides
from core.rl.causes import explain_tokens
from core.verdict import IDENTICAL, LOWER_PRECISION, Verdict

ARRAYS, LISTS, CHOSEN, MODEL = "arrays", "top tokens", "chosen tokens", "with the model"
_ACCUSED = (*FAULTS, LOWER_PRECISION)
_DTYPES = ("float32", "bfloat16", "float16")
_CASES, _PROMPTS = 6, 12
_RESPONSES = 4  # of a pair of chosen tokens, prompts of a judgement with the model
_LISTED = 20
_TOKENS = (32, 2048)
# written for the models of the trial: norms and attention of other families differ
_OF_THE_TRIAL = {
    "attention in parts of 7 keys",
    "cached slots in another order",
    "head one position at a time",
    "norms in float64",
    "fused tanh GELU",
}
# of transformers, wrong when cached, padded or in a batch (docs/explanation/families.md)
_WRONG = {
    "bamba",
    "deepseek_v4",
    "falcon_mamba",
    "jamba",
    "mamba",
    "minimax",
    "moshi",
    "nemotron_h",
    "prophetnet",
    "recurrent_gemma",
    "rwkv",
    "zamba2",
}


@dataclass(frozen=True)
class Outcome:
    """What one way to judge says of a pair. has_experts: a router chooses, so a position may be far
    off; answer: a verdict, or the cause that is named.
    """

    seed: int
    way: str
    has_experts: bool
    family: str
    dtype: str
    tokens: int
    case: str
    answer: str
    is_accused: bool
    because: str


class Draw:
    """A model and prompts of a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.family = str(self.rng.choice([name for name in families() if name not in _WRONG]))
        self.dtype = str(self.rng.choice(_DTYPES))
        self.loaded = tiny_family(self.family, seed, self.dtype, positions=2 * _TOKENS[1])
        torch.set_num_threads(int(self.rng.integers(1, 4)))
        shortest, longest = _TOKENS
        # one in twenty is longer than 100 tokens, one in sixty than 490: some ways take a forward a
        # token
        exponents = self.rng.random(_PROMPTS) ** 24
        sizes = shortest * (longest / shortest) ** exponents
        self.prompts = [self._prompt(int(size)) for size in sizes]

    def _prompt(self, size: int) -> tuple[int, ...]:
        """Draw token ids, some of them far more often than others, as in text."""
        ranks = self.rng.zipf(1.3, size)
        return tuple(int(rank % 299) + 1 for rank in ranks)

    def cases(self) -> list[Mutation]:
        possible = [
            case
            for case in VARIATIONS
            if case.base is None and case.name not in _OF_THE_TRIAL and case.applies(self.loaded)
        ]
        chosen = self.rng.choice(len(possible), _CASES, replace=False)
        return [possible[index] for index in chosen]

    def logits(self, side: str | Engine, loaded: LoadedModel | None = None) -> list[torch.Tensor]:
        """Return the logits of each prompt in the model's dtype. [positions, vocab]"""
        model = loaded or self.loaded
        with torch.inference_mode(), side_of(side).open(model, None) as run:
            return [whole_side(run, ids).to(model.torch_dtype) for ids in self.prompts]

    def outcome(
        self,
        way: str,
        case: Mutation,
        tokens: int,
        answer: str,
        because: str,
        *,
        is_accused: bool,
    ) -> Outcome:
        about = self.seed, way, self.loaded.has_experts, self.family, self.dtype
        return Outcome(*about, tokens, case.name, answer, is_accused, because)

    def without_model(self) -> Iterator[Outcome]:
        """Judge the arrays, lists of top tokens and chosen tokens of each case and prompt."""
        references: dict[str, list[torch.Tensor]] = {}
        wide: list[torch.Tensor] = []
        for case in self.cases():
            try:
                with foreign_errors_stop(case.name, "choose another case"):
                    if case.reference not in references:
                        references[case.reference] = self.logits(case.reference)
                    variants = self.logits(case.path or case.engine or "prefill")
                    if self.dtype != "float32" and not wide:
                        with WIDENING["float32"](self.loaded) as loaded:
                            wide = self.logits("prefill", loaded)
            except CaptureError:
                continue
            for prompt, ids in enumerate(self.prompts):
                reference, variant = references[case.reference][prompt], variants[prompt]
                if torch.equal(reference, variant):
                    continue
                tokens = len(ids)
                of_arrays = verdict_of_arrays(reference, variant, [tokens], self.dtype)
                of_lists = _verdict_of_lists(ids, reference, variant)
                for way, verdict in ((ARRAYS, of_arrays), (LISTS, of_lists)):
                    yield self.verdict(way, case, tokens, verdict)
            trainer = wide if wide and self.seed % 2 else references[case.reference]
            for first in range(0, _PROMPTS, _RESPONSES):
                yield from self._chosen(case, trainer, variants, first)

    def _chosen(
        self,
        case: Mutation,
        trainer: Sequence[torch.Tensor],
        rollout: Sequence[torch.Tensor],
        first: int,
    ) -> Iterator[Outcome]:
        """Look for causes in tokens sampled from the rollout's logits, a response for each of the
        prompts from `first` on.
        """
        group = slice(first, first + _RESPONSES)
        lengths = [len(ids) for ids in self.prompts[group]]
        sides = (torch.cat([*side[group]]).double().numpy() for side in (rollout, trainer))
        drawn = sampled(*sides, self.seed)
        tokens = with_values(
            # one of its several draws
            drawn.select(np.arange(len(drawn.r)) < sum(lengths)),
            sequence=np.repeat(np.arange(len(lengths)), lengths),
            position=np.concatenate([np.arange(length) for length in lengths]),
        )
        if tokens.r.any():
            cause = next(iter(explain_tokens(tokens)), Cause("", ""))
            about = CHOSEN, case, sum(lengths), cause.name, cause.text
            # some causes are places, or what sound sides have too
            yield self.outcome(*about, is_accused=bool(cause.name) and cause.is_fault)

    def with_model(self) -> Iterator[Outcome]:
        """Judge the first case with the model."""
        case = self.cases()[0]
        side = case.path or case.engine or "prefill"
        prompts = self.prompts[:_RESPONSES]
        try:
            verdict = judge(self.loaded, prompts, reference=case.reference, variant=side)
        except CaptureError:
            return
        if verdict.name != IDENTICAL:
            tokens = sum(map(len, prompts))
            yield self.verdict(MODEL, case, tokens, verdict)

    def verdict(self, way: str, case: Mutation, tokens: int, verdict: Verdict) -> Outcome:
        about = way, case, tokens, verdict.name, verdict.because
        return self.outcome(*about, is_accused=verdict.name in _ACCUSED)


def _verdict_of_lists(ids: Sequence[int], *sides: torch.Tensor) -> Verdict:
    """Judge the prompt's top tokens as vLLM sends them."""
    with TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.json" for number in range(len(sides))]
        for file, logits in zip(files, sides, strict=True):
            rows = logits.float().log_softmax(-1)[:-1].numpy()
            # vLLM has no entry for the first token, which nothing precedes
            entries = [None, *(_entry(row, own) for row, own in zip(rows, ids[1:], strict=True))]
            choice = {"index": 0, "text": "", "prompt_token_ids": ids, "prompt_logprobs": entries}
            answer = {"object": "text_completion", "model": "tiny", "choices": [choice]}
            file.write_text(json.dumps(answer))
        responses = read_sides(files)
    (verdict,) = judge_responses(responses, [compare_sides(*responses)])
    return verdict


def _entry(row: NDArray[np.float32], own: int) -> dict[str, dict]:
    order = np.argsort(-row, kind="stable")
    ranks = {int(token): rank for rank, token in enumerate(order[:_LISTED], 1)}
    # the prompt's own token is appended if it is not among the top tokens
    ranks.setdefault(own, int(np.flatnonzero(order == own)[0]) + 1)
    return {
        str(token): {"logprob": float(row[token]), "rank": rank} for token, rank in ranks.items()
    }


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield a line of Markdown for each way to judge."""
    yield "| judged by | sound pairs | accused | bound of the rate (rule of three) | answers |"
    yield "|---|---|---|---|---|"
    for way, is_moe in itertools.product((ARRAYS, LISTS, CHOSEN, MODEL), (False, True)):
        own = [each for each in outcomes if (each.way, each.has_experts) == (way, is_moe)]
        if not own:
            continue
        accused = sum(each.is_accused for each in own)
        bound = "" if accused else f"{3 / len(own):.2%}"
        answers = Counter(each.answer or "no cause" for each in own)
        said = ", ".join(f"{name} {count:,}" for name, count in answers.most_common())
        kind = "experts" if is_moe else "dense"
        yield f"| {way}, {kind} | {len(own):,} | {accused} | {bound} | {said} |"
    yield ""
    for each in outcomes:
        if each.is_accused:
            where = f"seed {each.seed}, {each.family} {each.dtype}, {each.case}, {each.way}"
            yield f"- {where}: {each.answer}: {each.because}"


def main() -> None:
    """Judge the seeds that the results lack, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, required=True, help="JSON lines, read and written")
    parser.add_argument("--seeds", type=int, nargs=2, default=(1, 0), help="first and last")
    parser.add_argument("--model", action="store_true", help="judge with the model")
    options = parser.parse_args()
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    outcomes = [Outcome(**json.loads(line)) for line in lines]
    done = {each.seed for each in outcomes if (each.way == MODEL) == options.model}
    first, last = options.seeds
    for seed in range(first, last + 1):
        if seed in done:
            continue
        with quiet():
            try:
                draw = Draw(seed)
                new = list(draw.with_model() if options.model else draw.without_model())
            except CaptureError:
                # a family without a tiny model
                continue
        outcomes += new
        with options.results.open("a") as file:
            file.writelines(json.dumps(asdict(each)) + "\n" for each in new)
    print(*table(outcomes), sep="\n")


if __name__ == "__main__":
    main()
