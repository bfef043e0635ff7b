"""The rounding floor of the shipped model against a pair of its paths, and what a reordered forward costs over a plain
one.

python -m benchmarks.verdicts.floor                      # 4 seeds, 48 tokens of three prompts
python -m benchmarks.verdicts.floor --seeds 8 --tokens 256 --path decode
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath

import torch

from benchmarks.timing import Line, interleaved
from core.inference.controls.reordering import reordered
from core.inference.controls.rounding_floor import in_float32, rounding_floor
from core.inference.models.model import LoadedModel, load_model
from core.inference.models.torch_errors import quiet
from core.inference.paths.batch import ignore
from core.inference.paths.engines import divergences_of, side_of
from core.judging.divergence import pooled_rms

SAMPLES = FilePath(__file__).parents[2] / "sample_runs"
PAIR = ("decode", "prefill+attn:eager")
ROUNDS = 9


def prompts_of(loaded: LoadedModel, tokens: int) -> list[list[int]]:
    texts = [file.read_text() for file in sorted((SAMPLES / "prompts").glob("*.txt"))]
    return [loaded.tokenizer(text)["input_ids"][:tokens] for text in texts]


def table(path: str, tokens: int, seeds: int) -> Iterator[str]:
    """Lines of Markdown: the floor and the pairs, in bfloat16 and with the same weights in float32."""
    loaded = load_model(str(SAMPLES / "model"), dtype="bfloat16")
    prompts = prompts_of(loaded, tokens)
    yield (
        f"{loaded.device_name}, torch {torch.__version__}; prompts of {', '.join(str(len(p)) for p in prompts)} tokens."
    )
    yield ""
    yield "| rms of the difference to " + path + " | bfloat16 | float32 | noise ratio |"
    yield "|---|---|---|---|"
    floors = [rounding_floor(loaded, prompts, range(seeds), path, dtype=dtype) for dtype in ("bfloat16", "float32")]
    spans = " | ".join(f"{min(floor.rms_by_seed):.3g} .. {max(floor.rms_by_seed):.3g}" for floor in floors)
    yield f"| {seeds} reorderings of {floors[0].maps} maps | {spans} | 1 |"
    for variant in PAIR:
        if variant == path:
            continue
        sides = (side_of(path), side_of(variant))
        with torch.inference_mode(), quiet():
            rms = [pooled_rms(divergences_of(loaded, prompts, sides))]
            with in_float32(loaded) as widened:
                rms.append(pooled_rms(divergences_of(widened, prompts, sides)))
        ratios = " / ".join(f"{pair / floor.rms:.2f}" for pair, floor in zip(rms, floors, strict=True))
        yield f"| {variant} | {rms[0]:.3g} | {rms[1]:.3g} | {ratios} |"


def run(tokens: int = 48) -> list[Line]:
    """Seconds of a reordered path over those of the plain one."""
    if not (SAMPLES / "model" / "config.json").is_file():
        return [Line("reordered forward", "<= 2x", "not run", "sample_runs/model is not built")]
    lines = []
    for dtype in ("bfloat16", "float32"):
        loaded = load_model(str(SAMPLES / "model"), dtype=dtype)
        for length in (tokens, min(10 * tokens, loaded.context or 10 * tokens)):
            ids = torch.randint(1, loaded.token_limit, (length,), generator=torch.Generator().manual_seed(0)).tolist()
            for path, keep in (("prefill", 0), ("decode", 1 << 40)):
                if path == "decode" and length > tokens:
                    continue
                plain = _walk(loaded, path, ids)

                def turned(loaded: LoadedModel = loaded, keep: int = keep, plain: Callable[[], None] = plain) -> None:
                    with reordered(loaded.model, 0, keep_bytes=keep):
                        plain()

                seconds = interleaved({"plain": plain, "reordered": turned}, ROUNDS)
                lines.append(
                    Line(
                        f"reordered {path}, {length} tokens, {dtype}",
                        "<= 2x",
                        f"{seconds['reordered'] / seconds['plain']:.2f}x",
                        f"{1e3 * seconds['reordered']:.1f} ms over {1e3 * seconds['plain']:.1f} ms, medians of"
                        f" {ROUNDS}",
                    )
                )
    return lines


def _walk(loaded: LoadedModel, path: str, ids: list[int]) -> Callable[[], None]:
    def walk() -> None:
        with torch.inference_mode():
            side_of(path).run_on(loaded)(ids, ignore)

    walk()
    return walk


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=48, help="of each prompt, at most")
    parser.add_argument("--seeds", type=int, default=4, help="how many reorderings")
    parser.add_argument("--path", default="prefill", help="what is reordered")
    given = parser.parse_args()
    with quiet():
        for text in table(given.path, given.tokens, given.seeds):
            print(text, flush=True)
        for line in run(given.tokens):
            print(f"{line.what}: {line.reached} ({line.how})", flush=True)
