"""SGLang as an engine: logits of its model runner, as `sglang.bench_one_batch` drives it; 0.5.23,
never run.
"""

import numpy as np
from ulpscope_engine import (
    BATCH,
    is_installed,
    modifier,
    parts_in,
    serve,
    version_of,
    with_neighbors,
)

HELLO = {
    "engine": "SGLang",
    "version": version_of("sglang"),
    "is_here": is_installed("sglang"),
    "dtypes": ["float32", "bfloat16", "float16"],
    "bases": {
        "walk": {},  # a prefill of every prefix, and the row of its last token
        "decode": {},  # a prefill of the first token, then token by token out of the cache
    },
    "modifiers": {
        "attn": modifier(
            "attention kernels; SGLang's choice by default",
            ["triton", "flashinfer", "torch_native", "fa3"],
        ),
        "run": modifier(
            "eager, or decoding by recorded CUDA graphs",
            ["eager", "graphs"],
            default="eager",
        ),
        "batch": BATCH,
    },
}


def load(request):
    """Load the model runner without a scheduler, so that no request reuses another's cache."""
    import torch
    from sglang import bench_one_batch as bench
    from sglang.srt.server_args import PortArgs, ServerArgs

    options, base = request["modifiers"], request["base"][0]
    settings = {"attention_backend": options["attn"]} if "attn" in options else {}
    args = ServerArgs(
        model_path=request["model"],
        dtype=request["dtype"],
        disable_cuda_graph=options["run"] == "eager",
        disable_radix_cache=True,
        random_seed=0,
        **settings,
    )
    runner, _ = bench.load_model(args, PortArgs.init_new(args), 0, 0)

    def extend(prompts):
        runner.clear()
        requests = bench.prepare_synthetic_inputs_for_latency_test(
            len(prompts),
            len(prompts[0]),
            prompts,
        )
        _, logits, batch = runner.extend(requests)
        return logits, batch

    def hand_on(emit, place, logits):
        row = logits[:1].detach().to("cpu", torch.float32).numpy()
        emit(place, np.ascontiguousarray(row))

    def run(ids, emit):
        prompts = with_neighbors(ids, options["batch"])
        if base == "walk":
            for place in range(len(ids)):
                hand_on(emit, place, extend([prompt[: place + 1] for prompt in prompts])[0])
            return
        logits, batch = extend([prompt[:1] for prompt in prompts])
        hand_on(emit, 0, logits)
        for place in range(1, len(ids)):
            fed = torch.tensor([prompt[place] for prompt in prompts], device=logits.device)
            hand_on(emit, place, runner.decode(fed, batch)[1])
        runner.cleanup(batch)

    # the width of a row, padding of the vocabulary included, is known from a row only
    probe, _ = extend([[0]])
    return {"vocab": int(probe.shape[1]), "parts": parts_in(request["dtype"])}, run


if __name__ == "__main__":
    serve(HELLO, load)
