"""A real llama.cpp server in a process of its own: MODEL.gguf PORT [ADAPTER.gguf]. It prints its
address and stays. Entries of its cache are saved next to the model; the adapter is off.
"""

import sys
import threading
from pathlib import Path

import xllamacpp


def main(path, port, *adapters):
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = 4096
    params.n_parallel = 4
    params.warmup = False
    params.verbosity = 0
    params.port = port
    params.slot_save_path = f"{Path(path).parent}/"
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(each, 0.0) for each in adapters]
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
