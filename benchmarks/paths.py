"""How far every path of the grammar lies from prefill on the shipped model: the tables of docs/paths.md.

python -m benchmarks.paths                                          # 48 tokens of three prompts, every path of a CPU
python -m benchmarks.paths --tokens 49 --reference decode --path decode+batch:2 --path static
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path as FilePath

import torch

from core.errors import UlpscopeError
from core.inference.controls.rounding_floor import whole_side
from core.inference.models.model import LoadedModel, load_model
from core.inference.models.torch_errors import quiet
from core.inference.paths.paths import open_path, parse_path

SAMPLES = FilePath(__file__).parents[1] / "sample_runs"
PATHS = (
    "prefill",
    "decode",
    "static",
    "chunked:7",
    "chunked:16",
    "chunked:64",
    "reuse:8",
    "reuse:16",
    "reuse:31",
    "reuse:32",
    "reuse:47",
    "blocks:8",
    "blocks:16",
    "blocks:32",
    "blocks:47",
    "prefill+batch:2",
    "prefill+batch:8",
    "decode+batch:2",
    "decode+batch:3",
    "decode+batch:8",
    "decode+batch:8+row:5",
    "decode+batch:8+neighbours:same",
    "decode+batch:8+neighbours:random",
    "prefill+pad:left:5",
    "prefill+pad:left:16",
    "prefill+pad:right:5",
    "decode+pad:left:5",
    "prefill+attn:eager",
    "prefill+sdpa:math",
    "prefill+sdpa:flash",
    "prefill+threads:1",
    "prefill+threads:2",
    "prefill+compile",
    "decode+compile",
    "prefill+dtype:bfloat16",
    "prefill+dtype:float16",
)


def logits_of(path: str, loaded: LoadedModel, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Every prompt's logits, one after another. -> [rows, vocab]"""
    with torch.inference_mode(), quiet(), open_path(parse_path(path), loaded) as run:
        return torch.cat([whole_side(run, prompt) for prompt in prompts])


def table(paths: Sequence[str], reference: str, tokens: int, threads: int) -> Iterator[str]:
    """Lines of Markdown, in the order of `paths`."""
    torch.set_num_threads(threads)
    models = {dtype: load_model(str(SAMPLES / "model"), dtype=dtype) for dtype in ("bfloat16", "float32")}
    texts = [file.read_text() for file in sorted((SAMPLES / "prompts").glob("*.txt"))]
    any_model = models["float32"]
    prompts = [any_model.tokenizer(text)["input_ids"][:tokens] for text in texts]
    references = {dtype: logits_of(reference, loaded, prompts) for dtype, loaded in models.items()}
    yield (
        f"{any_model.device_name} ({torch.backends.cpu.get_cpu_capability()}), torch {torch.__version__}, {threads}"
        f" threads; {len(prompts)} prompts of {' / '.join(str(len(prompt)) for prompt in prompts)} tokens, reference"
        f" {reference}."
    )
    yield ""
    yield "| path | bfloat16: differing | max_abs | flips | float32: differing | max_abs | flips |"
    yield "|---|---|---|---|---|---|---|"
    for path in paths:
        cells = []
        for dtype, loaded in models.items():
            try:
                cells += _figures(references[dtype], logits_of(path, loaded, prompts))
            except UlpscopeError:
                cells += ["refused", "", ""]
        yield f"| `{path}` | {' | '.join(cells)} |"


def _figures(reference: torch.Tensor, variant: torch.Tensor) -> list[str]:
    share = float((reference != variant).double().mean())
    apart = float((reference.double() - variant.double()).abs().max())
    flips = int((reference.argmax(-1) != variant.argmax(-1)).sum())
    return [f"{100 * share:.1f} %" if share else "0", f"{apart:.2g}" if share else "0", str(flips)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=48, help="of each prompt, at most")
    parser.add_argument("--reference", default="prefill", help="the path the others are compared with")
    parser.add_argument("--threads", type=int, default=2, help="of torch, where the path does not say otherwise")
    parser.add_argument("--path", action="append", help="only these; may be given several times")
    given = parser.parse_args()
    for line in table(given.path or PATHS, given.reference, given.tokens, given.threads):
        print(line, flush=True)
