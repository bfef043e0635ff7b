"""vLLM's own server on a CPU, in the virtual environment of `make engines`: a context that yields
its address.
"""

import json
import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
import numpy as np
from safetensors.numpy import save_file

from tests.places import ROOT
from tests.serving import free_port

PYTHON = Path(os.environ.get("ULPSCOPE_ENGINES", ROOT / ".engines")) / "bin" / "python"
_FAULTY = Path(__file__).with_name("vllm_faults.py")
# 4,096 tokens, so that a few prompts evict others
_SMALL_CACHE = ["--block-size", "32", "--num-gpu-blocks-override", "128"]
_PATIENCE_SECONDS = 300.0


def adapter_of(model, folder):
    """Write an adapter of rank 8 of all queries, keys and values of a model, of random numbers."""
    config = json.loads((model / "config.json").read_text())
    random = np.random.default_rng(0)
    inputs = config["hidden_size"]
    keys = inputs * config["num_key_value_heads"] // config["num_attention_heads"]
    outputs = {"q_proj": inputs, "k_proj": keys, "v_proj": keys}
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, size in outputs.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            down = random.normal(size=(8, inputs)) / np.sqrt(inputs)
            tensors[f"{at}.lora_A.weight"] = down.astype(np.float32)
            tensors[f"{at}.lora_B.weight"] = random.normal(size=(size, 8)).astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    about = {
        "peft_type": "LORA",
        "r": 8,
        "lora_alpha": 8,
        "target_modules": [*outputs],
    }
    (folder / "adapter_config.json").write_text(json.dumps(about))
    return folder


@contextmanager
def vllm(model, log, fault=None):
    """The address of a server that answers. fault: file that names the one of its small cache; it
    has an adapter then.

    RuntimeError, with the end of its log, if none came up.
    """
    port = free_port()
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server"]
    if fault is not None:
        adapter = adapter_of(model, fault.with_name("adapter"))
        command = [str(PYTHON), str(_FAULTY), *_SMALL_CACHE]
        command += ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"adapter={adapter}"]
    command += [
        "--model",
        str(model),
        "--served-model-name",
        "small",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--dtype",
        "bfloat16",
        "--max-model-len",
        "512",
        "--enforce-eager",
        "--max-logprobs",
        "-1",
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
    ]
    more = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
        "PLANTED_FAULT": str(fault),
    }
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            env={**os.environ, **more},
            stdout=output,
            stderr=output,
            cwd=log.parent,
            start_new_session=True,
        ) as process,
    ):
        try:
            address = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while not _answers(address):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(
                        f"no vLLM came up: {log.read_text(errors='replace')[-3000:]}",
                    )
                process_waits(process)
            yield address
        finally:
            os.killpg(process.pid, 9)


def process_waits(process):
    """Half a second, or less if the process ends."""
    try:
        process.wait(0.5)
    except subprocess.TimeoutExpired:
        return


def _answers(address):
    try:
        return httpx.get(f"{address}/health", timeout=2.0).status_code == 200
    except httpx.TransportError:
        return False
