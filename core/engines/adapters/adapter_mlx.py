"""MLX as an engine: mlx-lm's own model of the folder, on MLX's default device."""

from pathlib import Path

import numpy as np
from ulpscope_engine import chunks, is_installed, modifier, parts_in, serve, version_of

HELLO = {
    "engine": "MLX",
    "version": f"{version_of('mlx')}, mlx-lm {version_of('mlx-lm')}",
    "is_here": is_installed("mlx_lm"),
    "dtypes": ["float32", "bfloat16", "float16"],
    "modules": True,
    "bases": {"prefill": {}, "decode": {}, "chunked": {"least": 1}},
    "modifiers": {
        "kv": modifier(
            "type of the KV cache; q8 and q4: groups of 64 (mlx-lm's --kv-bits)",
            ["own", "q8", "q4"],
            default="own",
            widest="own",
            bits={"q8": 5, "q4": 2},
        ),
    },
}


def bits_of(array):
    """Return an array in numpy, and its dtype if numpy has none."""
    import mlx.core as mx

    # numpy has no bfloat16, so its bits are sent
    if array.dtype == mx.bfloat16:
        return np.array(array.view(mx.uint16)), "bfloat16"
    return np.array(array), None


def load(request):
    """Load a folder as mlx-lm does, in the request's dtype."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import load_model

    model, _ = load_model(Path(request["model"]))
    model.set_dtype(getattr(mx, request["dtype"]))
    names = set(request["modules"])
    if model.model_type.startswith("gemma"):
        # scaled afterwards here, in the module in transformers
        names.discard("model.embed_tokens")
    place, taker = 0, None

    def follow(name, module):
        """Wrap this one module's calls: Python looks `__call__` up in the class."""
        plain = type(module)

        def call(itself, *arguments, **keywords):
            output = plain.__call__(itself, *arguments, **keywords)
            if taker is not None and output.ndim == 3:
                taker.module(name, place, *bits_of(output[0]))
            return output

        module.__class__ = type(plain.__name__, (plain,), {"__call__": call})

    for name, module in model.named_modules():
        # the names that MLX shares with transformers
        if name in names:
            follow(name, module)
    kind = request["modifiers"]["kv"]

    def run(ids, rows):
        nonlocal place, taker
        taker, cache = rows, make_prompt_cache(model)
        if kind != "own":
            cache = [layer.to_quantized(group_size=64, bits=int(kind[1:])) for layer in cache]
        for place, tokens in chunks(request, ids):
            logits = model(mx.array([tokens]), cache=cache)[0]
            rows(place, *bits_of(logits))

    vocab = int(model(mx.array([[0]])).shape[-1])
    kv = request["dtype"] if kind == "own" else kind
    return {"vocab": vocab, "parts": parts_in(request["dtype"], kv=kv)}, run


if __name__ == "__main__":
    serve(HELLO, load)
