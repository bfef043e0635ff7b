"""transformers of another environment as an engine: another version of it or of torch, or a build of one's own. It is
the worked example of docs/engines.md.
"""

from __future__ import annotations

import importlib.util
from importlib import metadata

from ulpscope_engine import modifier, serve

HELLO = {
    "engine": "transformers",
    "model": "folder",
    "dtypes": ["float32", "bfloat16", "float16"],
    "bases": {
        "prefill": {"says": "the whole prompt in one forward"},
        "decode": {"says": "token by token, with the KV cache"},
    },
    "modifiers": {
        "attn": modifier("attention", ["eager", "sdpa"]),
        "run": modifier("how the forward is run", ["eager", "compile", "export"], default="eager"),
        "threads": modifier("threads of the CPU", least=1),
    },
}


def versions():
    """Versions of what computes."""
    return {name: metadata.version(name) for name in ("torch", "transformers")}


def load(request):
    """Load a folder."""
    import torch
    from transformers import AutoModelForCausalLM

    base, options = request["base"][0], request["modifiers"]
    if "threads" in options:
        torch.set_num_threads(int(options["threads"]))
    dtype = getattr(torch, request["dtype"])
    more = {"attn_implementation": options["attn"]} if "attn" in options else {}
    model = AutoModelForCausalLM.from_pretrained(request["model"], dtype=dtype, local_files_only=True, **more).eval()
    model.config.use_cache = base == "decode"

    class Logits(torch.nn.Module):
        """The model as a function of token ids alone, which can be exported."""

        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, tokens):
            return self.model(tokens, use_cache=False).logits

    how = options.get("run", "eager")
    plain = Logits()
    forward = torch.compile(plain) if how == "compile" else plain

    def emit(rows, start, logits):
        if logits.dtype == torch.bfloat16:  # numpy has none: its bits
            rows(start, logits.contiguous().view(torch.int16).numpy(), dtype="bfloat16")
        else:
            rows(start, logits.numpy())

    def run(ids, rows):
        tokens = torch.tensor([ids])
        with torch.inference_mode():
            if base == "prefill":
                whole = torch.export.export(plain, (tokens,)).module() if how == "export" else forward
                emit(rows, 0, whole(tokens)[0])
                return
            cache = None
            for place in range(len(ids)):
                found = model(tokens[:, place : place + 1], past_key_values=cache, use_cache=True)
                cache = found.past_key_values
                emit(rows, place, found.logits[0])

    return {"vocab": model.get_output_embeddings().weight.shape[0], "versions": versions(), "parts": {}}, run


if __name__ == "__main__":
    here = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
    said = " ".join(f"{name} {value}" for name, value in versions().items()) if here else ""
    serve(dict(HELLO, version=said, is_here=here), load)
