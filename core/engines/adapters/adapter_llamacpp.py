"""llama.cpp as an engine: libllama through ctypes, out of the package xllamacpp or llama-cpp-python, or a build of
one's own named by LLAMA_CPP_LIB.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import struct
from pathlib import Path

import numpy as np
from ulpscope_engine import Refused, modifier, serve

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}  # enum ggml_type
NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
FLASH = {"auto": -1, "off": 0, "on": 1}
ROOM = 4096  # bytes: more than any version's parameters take
HELLO = {
    "engine": "llama.cpp",
    "model": "gguf",
    "dtypes": ["float32", "float16", "bfloat16"],
    "logits": "float32",
    "bases": {
        "prefill": {"says": "the whole prompt in one call"},
        "decode": {"says": "token by token, with the KV cache"},
        "chunked": {"says": "N tokens a call", "least": 1},
        "reuse": {"says": "the first N tokens' keys and values from an earlier call", "least": 1},
    },
    "modifiers": {
        "weights": modifier(
            "type of the matrices; own: as the model's GGUF has them",
            ["f32", "f16", "bf16", "own"],
            widest="f32",
            bits={"f16": 11, "bf16": 8, "own": 2},
        ),
        "kv": modifier(
            "type of the KV cache",
            list(TYPES),
            default="f16",
            widest="f32",
            bits={"f16": 11, "bf16": 8, "q8_0": 5, "q4_0": 2},
        ),
        "flash": modifier("flash attention", list(FLASH), default="auto", widest="off", bits={"auto": 11, "on": 11}),
        "ubatch": modifier("tokens a physical batch takes at most (n_ubatch)", least=1),
        "threads": modifier("threads of the CPU", least=1),
        "batch": modifier("this prompt with N - 1 others in one batch, each a sequence of its own", least=1),
    },
}


class Batch(ctypes.Structure):
    """struct llama_batch."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


class Params(ctypes.Structure):
    """llama_model_params or llama_context_params of any version: passed by value, of which the library reads what it
    knows.
    """

    _fields_ = [("data", ctypes.c_uint8 * ROOM)]

    def set(self, offset, form, value):
        struct.pack_into(form, self.data, offset, value)


class ContextParams:
    """Places in llama_context_params, which every few months has other fields: found by what the defaults are."""

    def __init__(self, params):
        self.params = params
        data = bytes(params.data)
        words = struct.unpack_from("<64i", data)
        if words[:4] != (512, 2048, 512, 1):
            raise Refused("this build's llama_context_params begin otherwise; expected n_ctx 512, n_batch 2048.")
        # n_threads, n_threads_batch, the context's type, then -1 for rope, pooling, attention and flash attention
        at = [n for n in range(4, 14) if words[n] == words[n + 1] > 0 and words[n + 3 : n + 7] == (-1, -1, -1, -1)]
        cache = [n for n in range(20, 40) if words[n : n + 2] == (1, 1)]  # type_k and type_v, float16 both
        if len(at) != 1 or len(cache) != 1:
            raise Refused("this build's llama_context_params are laid out otherwise than those of the builds known.")
        self.threads, self.flash, self.cache = 4 * at[0], 4 * (at[0] + 6), 4 * cache[0]

    def set(self, **given):
        places = {
            "n_ctx": 0,
            "n_batch": 4,
            "n_ubatch": 8,
            "n_seq_max": 12,
            "threads": self.threads,
            "threads_batch": self.threads + 4,
            "flash": self.flash,
            "type_k": self.cache,
            "type_v": self.cache + 4,
        }
        for name, value in given.items():
            self.params.set(places[name], "<i", value)
        return self.params


def library():
    """Path of libllama, without loading it."""
    own = os.environ.get("LLAMA_CPP_LIB")
    if own:
        return own
    for package, pattern in (("xllamacpp", "*.so"), ("llama_cpp", "lib/libllama.*"), ("xllamacpp", "*.dylib")):
        found = importlib.util.find_spec(package)
        for folder in found.submodule_search_locations or [] if found else []:
            for path in Path(folder).glob(pattern):
                return str(path)
    return None


def version():
    """Name and version of the package that the library is of."""
    from importlib import metadata

    if os.environ.get("LLAMA_CPP_LIB"):
        return Path(os.environ["LLAMA_CPP_LIB"]).name
    for package in ("xllamacpp", "llama-cpp-python"):
        try:
            return f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            pass
    return ""


class Engine:
    """A model and its context."""

    def __init__(self, request):
        path = library()
        if path is None:
            raise Refused("there is no libllama here; pip install xllamacpp, or name a build by LLAMA_CPP_LIB.")
        self.lib = lib = ctypes.CDLL(path)
        pointer, number = ctypes.c_void_p, ctypes.c_int32
        for name, gives, takes in (
            ("llama_backend_init", None, []),
            ("llama_model_default_params", Params, []),
            ("llama_context_default_params", Params, []),
            ("llama_model_load_from_file", pointer, [ctypes.c_char_p, Params]),
            ("llama_init_from_model", pointer, [pointer, Params]),
            ("llama_model_get_vocab", pointer, [pointer]),
            ("llama_vocab_n_tokens", number, [pointer]),
            ("llama_model_n_ctx_train", number, [pointer]),
            ("llama_get_memory", pointer, [pointer]),
            ("llama_memory_clear", None, [pointer, ctypes.c_bool]),
            ("llama_memory_seq_rm", ctypes.c_bool, [pointer, number, number, number]),
            ("llama_batch_init", Batch, [number, number, number]),
            ("llama_batch_free", None, [Batch]),
            ("llama_decode", number, [pointer, Batch]),
            ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), [pointer, number]),
            ("llama_free", None, [pointer]),
        ):
            function = getattr(lib, name)
            function.restype, function.argtypes = gives, takes
        lib.llama_backend_init()
        if hasattr(lib, "ggml_backend_load_all"):
            lib.ggml_backend_load_all()
        self.request, self.room, self.context = request, 0, None
        self.model = lib.llama_model_load_from_file(request["model"].encode(), lib.llama_model_default_params())
        if not self.model:
            raise Refused(f"llama.cpp cannot load {Path(request['model']).name}.")
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.base, *values = request["base"]
        self.value = int(values[0]) if values else 0
        self.options = request["modifiers"]
        self.rows = int(self.options.get("batch", 1))
        kind = self.options.get("kv", "f16")
        if kind.startswith("q") and self.options.get("flash") == "off":
            raise Refused("a quantised V cache needs flash attention; leave flash:off out.")
        self.said = {
            "vocab": self.vocab,
            "versions": {"llama.cpp": version()},
            "parts": {
                "weights": "own" if self.options.get("weights") == "own" else request["dtype"],
                "kv": NAMES.get(kind, kind),
                "activations": request["dtype"],
                "accumulation": "float32",
            },
        }

    def open(self, positions):
        """A context with room for the prompt, with nothing in it."""
        needed = positions * self.rows
        if self.context is None or needed > self.room:
            if self.context is not None:
                self.lib.llama_free(self.context)
            params = ContextParams(self.lib.llama_context_default_params())
            kind = TYPES[self.options.get("kv", "f16")]
            room = max(256, -(-positions // 256) * 256) * self.rows
            given = {"n_ctx": room, "n_batch": room, "n_seq_max": self.rows, "type_k": kind, "type_v": kind}
            given["n_ubatch"] = min(room, int(self.options.get("ubatch", room)))
            given["flash"] = FLASH[self.options.get("flash", "auto")]
            threads = int(self.options.get("threads", 0)) or len(os.sched_getaffinity(0))
            given.update(threads=threads, threads_batch=threads)
            self.context = self.lib.llama_init_from_model(self.model, params.set(**given))
            if not self.context:
                raise Refused("llama.cpp makes no context of these settings.")
            self.room = room
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def step(self, sequences, start, rows):
        """Evaluate tokens of every sequence from position `start` on, in one call; the first one's logits are handed
        on where there are `rows` for them.
        """
        tokens = [(token, start + n, row) for row, ids in enumerate(sequences) for n, token in enumerate(ids)]
        batch = self.lib.llama_batch_init(len(tokens), 0, 1)
        try:
            batch.n_tokens = len(tokens)
            for n, (token, position, row) in enumerate(tokens):
                batch.token[n], batch.pos[n], batch.n_seq_id[n] = token, position, 1
                batch.seq_id[n][0] = row
                batch.logits[n] = 1  # of every row: what is asked for must not change what is computed
            code = self.lib.llama_decode(self.context, batch)
            if code:
                raise RuntimeError(f"llama_decode returned {code}")
            if rows is None:
                return
            first = [self.lib.llama_get_logits_ith(self.context, n) for n in range(len(sequences[0]))]
            logits = np.stack([np.ctypeslib.as_array(row, (self.vocab,)) for row in first])
            rows(start, logits)
        finally:
            self.lib.llama_batch_free(batch)

    def run(self, ids, rows):
        """One prompt; the other rows of a batch hold the same tokens in another order, which none of it may see."""
        self.open(len(ids))
        others = [ids[row % len(ids) :] + ids[: row % len(ids)] for row in range(self.rows)]
        step = {"prefill": len(ids), "decode": 1, "chunked": self.value, "reuse": len(ids)}[self.base]
        begin = 0
        if self.base == "reuse":
            begin = min(self.value, len(ids) - 1)
            # an earlier call of the same prompt; what follows its first tokens is let go, as a server does
            self.step(others, 0, _First(rows, begin))
            for row in range(self.rows):
                self.lib.llama_memory_seq_rm(self.lib.llama_get_memory(self.context), row, begin, -1)
        for start in range(begin, len(ids), step):
            self.step([row[start : start + step] for row in others], start, rows)


class _First:
    """Hands on the first positions only."""

    def __init__(self, rows, count):
        self.rows, self.count = rows, count

    def __call__(self, start, logits):
        self.rows(start, logits[: self.count])


def load(request):
    """Load a GGUF."""
    engine = Engine(request)
    return engine.said, engine.run


if __name__ == "__main__":
    serve(dict(HELLO, version=version(), is_here=library() is not None), load)
