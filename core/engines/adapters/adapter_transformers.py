"""transformers of another environment as an engine, the worked example of
docs/contributing/engine.md.
"""

from functools import partial
from typing import Any

from ulpscope_engine import (
    THREADS,
    Refused,
    bits_of,
    chunks,
    is_installed,
    modifier,
    serve,
    version_of,
)

PACKAGES = ("torch", "transformers")
HELLO = {
    "engine": "transformers",
    "version": " ".join(f"{name} {version_of(name)}" for name in PACKAGES),
    "is_here": all(map(is_installed, PACKAGES)),
    "dtypes": ["float32", "bfloat16", "float16"],
    "modules": True,
    "bases": {"prefill": {}, "decode": {}},
    "modifiers": {
        "attn": modifier("attention", ["eager", "sdpa"]),
        "run": modifier("mode of the forward", ["eager", "compile"], default="eager"),
        "threads": THREADS,
    },
}


def load(request):
    """Load a folder."""
    import torch
    from transformers import AutoModelForCausalLM

    base, options = request["base"][0], request["modifiers"]
    mode = options["run"]
    if mode == "compile" and base == "decode":
        raise Refused("only prefill is compiled; leave run:compile out of decode.")
    if options["threads"]:
        torch.set_num_threads(options["threads"])
    dtype = getattr(torch, request["dtype"])
    more = {"attn_implementation": options["attn"]} if "attn" in options else {}
    model = AutoModelForCausalLM.from_pretrained(
        request["model"],
        dtype=dtype,
        local_files_only=True,
        **more,
    ).eval()
    model.config.use_cache = base == "decode"

    forward = torch.compile(model) if mode == "compile" else model

    place = 0
    taker: Any = None

    def see(name, _, __, output):
        first = output[0] if isinstance(output, tuple) else output
        if first.ndim == 3:
            taker.module(name, place, *bits_of(first[0].detach()))

    if request["modules"] and mode != "eager":
        raise Refused(
            f"run:{mode} fuses the model into one graph, so its modules cannot be followed.",
        )
    for name in request["modules"]:
        model.get_submodule(name).register_forward_hook(partial(see, name))

    def run(ids, rows):
        nonlocal place, taker
        taker, cache = rows, None
        with torch.inference_mode():
            for place, tokens in chunks(request, ids):
                output = forward(torch.tensor([tokens]), past_key_values=cache)
                cache = output.past_key_values
                rows(place, *bits_of(output.logits[0]))

    return {"vocab": model.get_output_embeddings().weight.shape[0], "parts": {}}, run


if __name__ == "__main__":
    serve(HELLO, load)
