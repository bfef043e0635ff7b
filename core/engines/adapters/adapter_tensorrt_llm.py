"""TensorRT-LLM as an engine: context or generation logits. Written to 1.2's documentation and never run."""

from __future__ import annotations

from ulpscope_engine import Refused, is_installed, modifier, serve, version_of, with_neighbors

HELLO = {
    "engine": "TensorRT-LLM",
    "dtypes": ["float32", "bfloat16", "float16"],
    "bases": {
        "prefill": {"says": "one request, its context logits"},
        "walk": {"says": "a request for every prefix, and the generation logits of its one token"},
    },
    "modifiers": {
        "prefix": modifier(
            "reuse of cached blocks; reused positions have no context logits", ["off", "on"], default="off"
        ),
        "kv": modifier("type of the cache", ["auto", "fp8"], default="auto", widest="auto", bits={"fp8": 4}),
        "run": modifier("eager, or by recorded CUDA graphs", ["eager", "graphs"], default="eager"),
        "batch": modifier("this request with N - 1 others of other tokens at once", least=1),
        "tensor": modifier("tensor parallel over N devices", least=1),
    },
}


def load(request):
    """Start the PyTorch backend, which gives logits without an engine build."""
    from tensorrt_llm import LLM, SamplingParams
    from tensorrt_llm.llmapi import CudaGraphConfig, KvCacheConfig

    options, base = request["modifiers"], request["base"][0]
    rows = int(options.get("batch", 1))
    llm = LLM(
        model=request["model"],
        dtype=request["dtype"],
        skip_tokenizer_init=True,
        tensor_parallel_size=int(options.get("tensor", 1)),
        cuda_graph_config=CudaGraphConfig() if options.get("run") == "graphs" else None,
        kv_cache_config=KvCacheConfig(
            enable_block_reuse=options.get("prefix", "off") == "on", dtype=options.get("kv", "auto")
        ),
    )

    def ask(prompts, **what):
        sampling = SamplingParams(max_tokens=1, temperature=0.0, end_id=-1, pad_id=-1, detokenize=False, **what)
        return llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)[0]

    def array(logits):
        """Logits of any number of leading axes of length 1 as [positions, vocab] in float32."""
        return logits.detach().float().cpu().reshape(-1, logits.shape[-1]).numpy()

    def run(ids, emit):
        prompts = with_neighbors(ids, rows)
        if base == "walk":
            for place in range(len(ids)):
                answer = ask([prompt[: place + 1] for prompt in prompts], return_generation_logits=True)
                emit(place, array(answer.outputs[0].generation_logits)[:1])
            return
        logits = array(ask(prompts, return_context_logits=True).context_logits)
        if len(logits) != len(ids):
            raise Refused(
                f"TensorRT-LLM sent context logits of {len(logits)} of {len(ids)} positions: it skips reused blocks."
                " Use prefix:off or trtllm:walk."
            )
        emit(0, logits)

    vocab = array(ask([[0]], return_generation_logits=True).outputs[0].generation_logits).shape[1]
    kv = options.get("kv", "auto")
    parts = {"weights": request["dtype"], "kv": request["dtype"] if kv == "auto" else kv}
    return {"vocab": int(vocab), "versions": {"tensorrt_llm": version_of("tensorrt_llm")}, "parts": parts}, run


if __name__ == "__main__":
    serve(dict(HELLO, version=version_of("tensorrt_llm"), is_here=is_installed("tensorrt_llm")), load)
