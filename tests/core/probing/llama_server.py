"""A real llama.cpp server in a process of its own: MODEL.gguf PORT. It prints its address and stays."""

from __future__ import annotations

import sys
import threading

import xllamacpp


def main(path: str, port: int) -> None:
    asked = xllamacpp.CommonParams()
    asked.model.path = path
    asked.n_ctx = 4096
    asked.n_parallel = 4
    asked.warmup = False
    asked.verbosity = 0
    asked.port = port
    asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(asked)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
