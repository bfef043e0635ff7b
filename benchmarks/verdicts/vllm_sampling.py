"""Sample with vLLM: run by the interpreter that has it, requests on standard input, responses on
standard output.

A request: {"model", "dtype", "logprobs": a `logprobs_mode` of vLLM, "tokens", "prompts": [{"ids",
"seed", "sampling"}]}
"""

import json
import os
import sys

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

if __name__ == "__main__":
    request, answer = json.load(sys.stdin), os.fdopen(os.dup(1), "w")
    # vLLM writes to standard output too
    os.dup2(2, 1)
    from vllm import LLM, SamplingParams

    llm = LLM(
        request["model"],
        dtype=request["dtype"],
        logprobs_mode=request["logprobs"],
        max_model_len=256,
        enforce_eager=True,
        disable_log_stats=True,
    )
    prompts = [{"prompt_token_ids": prompt["ids"]} for prompt in request["prompts"]]
    fixed = {"max_tokens": request["tokens"], "logprobs": 0, "detokenize": False}
    params = [
        SamplingParams(seed=prompt["seed"], **prompt["sampling"], **fixed)
        for prompt in request["prompts"]
    ]
    outputs = [each.outputs[0] for each in llm.generate(prompts, params, use_tqdm=False)]
    values = [
        [chosen[token].logprob for token, chosen in zip(one.token_ids, one.logprobs, strict=True)]
        for one in outputs
    ]
    json.dump(
        [[list(one.token_ids), own] for one, own in zip(outputs, values, strict=True)],
        answer,
    )
