"""Kinds of faults in files: dumps without a floor, and answers of servers whose mask leaves out the
prompt's own token. Each is ingested and judged by the commands that a user types.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.verdicts.causes import BF16, Values, pair_of
from benchmarks.verdicts.engines import Engine, prefill
from benchmarks.verdicts.kinds import START, half_a_block_overwritten
from benchmarks.verdicts.mutations import FAULTS, HARMLESS
from benchmarks.verdicts.rollouts import log_softmax, restricted
from benchmarks.verdicts.variations import in_two_halves
from core.inference.models.dtypes import in_float32
from core.inference.models.model import LoadedModel
from core.verdict import UNDECIDED

LISTED = 20
Controls = dict[str, list[Path]]


@dataclass(frozen=True)
class FileCase:
    """Files to be judged. write(folder, model, prompts): the files of the pair, and of its controls
    by option; says: a word that the sentence of a bug has to hold; position: where it has to begin.
    """

    name: str
    write: Callable[[Path, LoadedModel, Sequence[Sequence[int]]], tuple[list[Path], Controls]]
    verdicts: tuple[str, ...] = FAULTS
    says: str = ""
    position: int | None = None
    is_undeclared: bool = False

    def place(self, _: Any, module: str, position: int | None) -> tuple[str, int | None]:
        """As of a Mutation."""
        return module, position if self.position is None else self.position


def judged_files(case: FileCase, loaded: LoadedModel, prompts: Sequence[Sequence[int]]) -> Any:
    """The verdict that `ulpscope verdict --json` prints, with the attributes of a Verdict;
    `refused` if files are.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths, controls = case.write(folder, loaded, prompts)
        store = ["--store", str(folder / "store"), "--json"]
        run = _run("ingest", *paths, *store)
        if isinstance(run, str):
            return SimpleNamespace(
                name="refused",
                because=run,
                evidence=(),
                noise_ratio=None,
                first_place=None,
            )
        options = []
        for option, files in controls.items():
            for path in files:
                options += [option, path]
        result = _run("verdict", run["run_id"], *options, *store)
        assert isinstance(result, dict), result
    (pair,) = result["pairs"]
    rows = [
        SimpleNamespace(**{**row, "figures": SimpleNamespace(**row["figures"])})
        for row in pair["evidence"]
    ]
    first = pair.get("first_place")
    return SimpleNamespace(
        name=pair["verdict"],
        because=pair["because"],
        evidence=rows,
        noise_ratio=pair["noise_ratio"],
        first_place=None if first is None else tuple(first),
    )


def _run(*arguments: Any) -> dict[str, Any] | str:
    """What a command prints as JSON, or its error."""
    done = subprocess.run(
        # as a user types it: exit codes and printed JSON are part of what is tried
        [sys.executable, "-m", "core", *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    # a verdict of a bug has exit code 1 and prints JSON too
    return json.loads(done.stdout) if done.stdout.strip() else done.stderr.strip()


def dump(engine: Engine) -> Callable[..., tuple[list[Path], Controls]]:
    """A dump of the engine compared with a plain forward, and the same pair in float32."""

    def write(
        folder: Path,
        loaded: LoadedModel,
        prompts: Sequence[Sequence[int]],
    ) -> tuple[list[Path], Controls]:
        about = {
            "token_ids": np.concatenate(prompts),
            "prompt_lengths": [len(ids) for ids in prompts],
        }

        def saved(path: Path, model: Any) -> Path:
            with torch.inference_mode():
                tokens = [torch.tensor(ids, device=model.device) for ids in prompts]
                sides = {
                    name: torch.cat([side(model, ids) for ids in tokens]).float().cpu().numpy()
                    for name, side in (("reference", prefill), ("variant", engine))
                }
            # upcast, as dumps of bfloat16 often are: numpy has no bfloat16
            np.savez(path, **about, **sides)
            return path

        own = saved(folder / "own.npz", loaded.model)
        with in_float32(loaded) as wide:
            return [own], {"--float32": [saved(folder / "float32.npz", wide.model)]}

    return write


def lists(
    mask: Callable[[Values], NDArray[np.bool_]],
) -> Callable[..., tuple[list[Path], Controls]]:
    """What vLLM sends of a prompt, top tokens and the prompt's own: plain, and after a mask, which
    leaves the prompt's own token out wherever it masks it.
    """

    def write(folder: Path, *_: Any) -> tuple[list[Path], Controls]:
        pair = pair_of(BF16)
        output = np.where(mask(pair.y), pair.y, -np.inf)
        paths = []
        for name, logits in (("plain", pair.x), ("masked", output)):
            rows = [_row(values, own) for values, own in zip(logits, pair.tokens[1:], strict=False)]
            choice = {
                "index": 0,
                "text": "",
                "prompt_token_ids": pair.tokens,
                # vLLM has no entry for the first token, which nothing precedes
                "prompt_logprobs": [None, *rows],
            }
            paths.append(folder / f"{name}.json")
            paths[-1].write_text(
                json.dumps({"object": "text_completion", "model": "m", "choices": [choice]}),
            )
        return paths, {}

    return write


def _row(values: Values, own: int) -> dict[str, dict[str, Any]]:
    order = np.argsort(-values, kind="stable")
    ranks = dict(zip(order[:LISTED].tolist(), range(1, LISTED + 1), strict=True))
    # vLLM appends the prompt's own token if it is not among the top tokens
    ranks.setdefault(own, int(np.flatnonzero(order == own)[0]) + 1)
    logprobs = log_softmax(values[None])[0].astype(np.float32)
    return {
        str(token): {"logprob": float(logprobs[token]), "rank": rank}
        for token, rank in ranks.items()
        if np.isfinite(values[token])
    }


def _top_p(logits: Values) -> NDArray[np.bool_]:
    return np.isfinite(restricted(logits, top_p=0.5))


def _grammar(logits: Values) -> NDArray[np.bool_]:
    # one set of tokens for all rows, as a grammar that stays in one state
    allowed = np.random.default_rng(0).random(logits.shape[1]) < 0.3
    return np.broadcast_to(allowed, logits.shape)


FILE_CASES = (
    FileCase(
        "dump: a block overwritten when half full",
        dump(half_a_block_overwritten),
        position=START,
    ),
    FileCase("dump: products in two halves", dump(in_two_halves), verdicts=(*HARMLESS, UNDECIDED)),
    FileCase("lists: top-p without the prompt's token", lists(_top_p), says="mask"),
    FileCase("lists: a grammar without the prompt's token", lists(_grammar), says="mask"),
    FileCase("lists: no mask", lists(np.isfinite), verdicts=(*HARMLESS, UNDECIDED)),
)
