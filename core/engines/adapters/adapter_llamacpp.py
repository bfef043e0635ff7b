"""llama.cpp as an engine: libllama through ctypes, of xllamacpp, llama-cpp-python or
LLAMA_CPP_LIB.
"""

import ctypes
import importlib.util
import os
import re
from pathlib import Path

import numpy as np
from ulpscope_engine import (
    BASES,
    BATCH,
    THREADS,
    Refused,
    chunks,
    modifier,
    serve,
    version_of,
    with_neighbors,
)

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}  # enum ggml_type
NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
FLASH = {"auto": -1, "off": 0, "on": 1}
# what llama.cpp calls the tensors of its graph, by what transformers calls the modules that put
# them out
IN_BLOCK = re.compile(r"model\.layers\.(\d+)\.?(.*)")
OF_BLOCK = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "Qcur",
    "self_attn.k_proj": "Kcur",
    "self_attn.v_proj": "Vcur",
    "self_attn.o_proj": "attn_out",
    "self_attn": "attn_out",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_out",
    "mlp": "ffn_out",
    "": "l_out",
}
# architectures whose tensors are known to be these, and the operation that ends a projection (ADD:
# of a bias)
PROJECTS_BY = {"llama": b"MUL_MAT", "qwen3": b"MUL_MAT", "gemma": b"MUL_MAT", "qwen2": b"ADD"}
OF_MODEL = {"model.embed_tokens": ("inp_embd", "embd"), "model.norm": ("result_norm",)}
# as transformers' embedding of a Gemma puts it out
OF_GEMMA = {**OF_MODEL, "model.embed_tokens": ("inp_scaled",)}
EVALUATED = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)
# more bytes than any version's parameters take
ROOM = 4096


def library():
    """Return the path of libllama, without loading it; None if there is none."""
    for package, pattern in (
        ("xllamacpp", "*.so"),
        ("llama_cpp", "lib/libllama.*"),
        ("xllamacpp", "*.dylib"),
    ):
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for path in Path(folder).glob(pattern):
                return str(path)
    return None


OWN = os.environ.get("LLAMA_CPP_LIB")
LIBRARY = OWN or library()
HELLO = {
    "engine": "llama.cpp",
    "version": Path(OWN).name if OWN else version_of("xllamacpp", "llama-cpp-python"),
    "is_here": LIBRARY is not None,
    "model": "gguf",
    "dtypes": ["float32", "float16", "bfloat16"],
    "logits": "float32",
    "modules": True,
    # a table of float16 on a CPU, ggml_table_gelu_f16; SiLU is float32
    "activations": {"gelu": "float16"},
    "refuses": [
        {
            "where": {"kv": ["q8_0", "q4_0"], "flash": ["off"]},
            "says": "a quantized V cache needs flash attention; leave flash:off out",
        },
        {
            "where": {"swap": ["on"], "base": ["prefill", "decode", "chunked"]},
            "says": "swap:on restores a reused prefix; choose reuse:N",
        },
    ],
    "bases": BASES,
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
        "flash": modifier(
            "flash attention",
            list(FLASH),
            default="auto",
            widest="off",
            bits={"auto": 11, "on": 11},
        ),
        "swap": modifier(
            "another prompt takes the cache between the calls of reuse; the prefix comes back from"
            " host memory",
            ["off", "on"],
            default="off",
        ),
        "ubatch": modifier("tokens a physical batch takes at most (n_ubatch)", least=1),
        "threads": THREADS,
        "batch": BATCH,
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
    """Parameters of a model or context of any version: passed by value, the library reads what it
    knows.
    """

    _fields_ = [("data", ctypes.c_uint8 * ROOM)]


def context_params(params, callback, **values):
    """Set fields of llama_context_params, which change every few months: located by their default
    values, in words of 32 bits. callback: an EVALUATED, called with every tensor of the graph.
    """
    # a view, so that writing a word changes the parameters
    view = np.frombuffer(params, np.int32)
    words = view[:64].tolist()
    if words[:4] != [512, 2048, 512, 1]:
        raise Refused(
            "this build's llama_context_params begin differently; expected n_ctx 512, n_batch"
            " 2048.",
        )
    # n_threads, n_threads_batch, the context's type, then -1 for rope, pooling, attention and
    # flash attention
    at = [
        n for n in range(4, 14) if words[n] == words[n + 1] > 0 and words[n + 3 : n + 7] == [-1] * 4
    ]
    # type_k and type_v, float16 both
    caches = [n for n in range(20, 40) if words[n : n + 2] == [1, 1]]
    if len(at) != 1 or len(caches) != 1:
        raise Refused(
            "this build lays llama_context_params out differently from the builds that ULPscope"
            " knows.",
        )
    (threads,), (cache,) = at, caches
    places = {
        "n_ctx": 0,
        "n_batch": 1,
        "n_ubatch": 2,
        "n_seq_max": 3,
        "threads": threads,
        "threads_batch": threads + 1,
        "flash": threads + 6,
        "type_k": cache,
        "type_v": cache + 1,
    }
    for name, value in values.items():
        view[places[name]] = value
    if callback is not None:
        # cb_eval and its data come before the cache's types
        pointers = view[cache - 4 : cache].view(np.uint64)
        if pointers.any():
            raise Refused(
                "this build's llama_context_params have no callback at the place that ULPscope"
                " knows.",
            )
        pointers[0] = ctypes.cast(callback, ctypes.c_void_p).value or 0
    return params


class LlamaCppEngine:
    """A model and its context."""

    def __init__(self, request):
        self.lib = lib = ctypes.CDLL(LIBRARY)
        pointer, number = ctypes.c_void_p, ctypes.c_int32
        text, size = ctypes.c_char_p, ctypes.c_size_t
        for name, gives, *takes in (
            ("llama_backend_init", None),
            ("llama_model_default_params", Params),
            ("llama_context_default_params", Params),
            ("llama_model_load_from_file", pointer, text, Params),
            ("llama_init_from_model", pointer, pointer, Params),
            ("llama_model_get_vocab", pointer, pointer),
            ("llama_vocab_n_tokens", number, pointer),
            ("llama_get_memory", pointer, pointer),
            ("llama_memory_clear", None, pointer, ctypes.c_bool),
            ("llama_memory_seq_rm", ctypes.c_bool, pointer, number, number, number),
            ("llama_state_seq_get_size", size, pointer, number),
            ("llama_state_seq_get_data", size, pointer, ctypes.c_char_p, size, number),
            ("llama_state_seq_set_data", size, pointer, ctypes.c_char_p, size, number),
            ("llama_batch_init", Batch, number, number, number),
            ("llama_batch_free", None, Batch),
            ("llama_decode", number, pointer, Batch),
            ("llama_get_logits", ctypes.POINTER(ctypes.c_float), pointer),
            ("llama_free", None, pointer),
            ("llama_model_n_head", number, pointer),
            ("llama_model_n_head_kv", number, pointer),
            ("llama_model_meta_val_str", number, pointer, text, text, size),
            ("ggml_get_name", text, pointer),
            ("ggml_op_desc", text, pointer),
            ("ggml_backend_tensor_get", None, pointer, pointer, size, size),
        ):
            function = getattr(lib, name)
            function.restype, function.argtypes = gives, takes
        lib.llama_backend_init()
        if hasattr(lib, "ggml_backend_load_all"):
            lib.ggml_backend_load_all()
        self.request, self.room, self.context = request, 0, None
        self.model = lib.llama_model_load_from_file(
            request["model"].encode(),
            lib.llama_model_default_params(),
        )
        if not self.model:
            raise Refused(f"llama.cpp cannot load {Path(request['model']).name}.")
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.options = request["modifiers"]
        self.rows = self.options["batch"]
        kind = self.options["kv"]
        self.modules = GraphTensors(self, request["modules"]) if request["modules"] else None
        has_own = self.options.get("weights") == "own"
        is_wide = self.options["flash"] == "off"
        self.said = {
            "vocab": self.vocab,
            "parts": {
                "weights": "own" if has_own else request["dtype"],
                "kv": NAMES.get(kind, kind),
                "attention": "float32" if is_wide else "float16 where it is flash attention",
                "activations": request["dtype"],
                "accumulation": "float32",
            },
        }

    def open(self, positions):
        """Make or clear a context with room for the prompt."""
        needed = positions * self.rows
        if self.context is None or needed > self.room:
            if self.context is not None:
                self.lib.llama_free(self.context)
            kind = TYPES[self.options["kv"]]
            room = max(256, -(-positions // 256) * 256) * self.rows
            threads = self.options["threads"] or len(os.sched_getaffinity(0))
            params = context_params(
                self.lib.llama_context_default_params(),
                None if self.modules is None else self.modules.callback,
                n_ctx=room,
                n_batch=room,
                n_ubatch=min(room, self.options.get("ubatch", room)),
                n_seq_max=self.rows,
                type_k=kind,
                type_v=kind,
                flash=FLASH[self.options["flash"]],
                threads=threads,
                threads_batch=threads,
            )
            self.context = self.lib.llama_init_from_model(self.model, params)
            if not self.context:
                raise Refused("llama.cpp cannot make a context with these settings.")
            self.memory = self.lib.llama_get_memory(self.context)
            self.room = room
        self.lib.llama_memory_clear(self.memory, True)

    def step(self, sequences, start, rows, most=None):
        """Evaluate tokens of every sequence from `start` on; send the first `most` rows of the
        first one.
        """
        tokens = [
            (token, start + n, row)
            for row, ids in enumerate(sequences)
            for n, token in enumerate(ids)
        ]
        batch = self.lib.llama_batch_init(len(tokens), 0, 1)
        try:
            batch.n_tokens = len(tokens)
            for n, (token, position, row) in enumerate(tokens):
                batch.token[n], batch.pos[n], batch.n_seq_id[n] = token, position, 1
                batch.seq_id[n][0] = row
                # logits of every row: the request must not change what is computed
                batch.logits[n] = 1
            if self.modules is not None:
                self.modules.begin(rows, start, len(tokens) if most is None else most)
            code = self.lib.llama_decode(self.context, batch)
            if self.modules is not None:
                self.modules.end()
            if code:
                raise RuntimeError(f"llama_decode returned {code}")
            # of every row, in the order of the tokens
            logits = self.lib.llama_get_logits(self.context)
            logits = np.ctypeslib.as_array(logits, (len(sequences[0]), self.vocab))
            if most != 0:
                rows(start, logits[:most])
        finally:
            self.lib.llama_batch_free(batch)

    def run(self, ids, rows):
        """Compute one prompt. Other rows of a batch hold its tokens in another order."""
        self.open(len(ids))
        others = with_neighbors(ids, self.rows)
        for start, tokens in chunks(self.request, ids):
            if self.request["base"][0] == "reuse":
                # an earlier call of the same prompt; what follows its first tokens is let go, as a
                # server does
                self.step(others, 0, rows, start)
                if self.options["swap"] == "on":
                    self.swap(others, rows)
                for row in range(self.rows):
                    self.lib.llama_memory_seq_rm(self.memory, row, start, -1)
            self.step([row[start : start + len(tokens)] for row in others], start, rows)

    def swap(self, sequences, rows):
        """Move the cache of every sequence to host memory and back, as a server does whose cache is
        full; meanwhile another prompt overwrites it.
        """
        saved = [self.saved(row) for row in range(self.rows)]
        self.lib.llama_memory_clear(self.memory, True)
        self.step([row[::-1] for row in sequences], 0, rows, 0)
        self.lib.llama_memory_clear(self.memory, False)
        for row, state in enumerate(saved):
            if not self.lib.llama_state_seq_set_data(self.context, state, len(state), row):
                raise RuntimeError("llama_state_seq_set_data restored nothing")

    def saved(self, row):
        """Return the bytes of a sequence's cache."""
        size = self.lib.llama_state_seq_get_size(self.context, row)
        data = ctypes.create_string_buffer(size)
        self.lib.llama_state_seq_get_data(self.context, data, size, row)
        return data.raw


class GraphTensors:
    """Tensors of the graph, sent as they are computed under the names of transformers' modules.

    The graph is evaluated up to each of these tensors, which changes no bit. names: as transformers
    calls them; those without a tensor in llama.cpp are left out.
    """

    def __init__(self, engine, names):
        if engine.rows > 1:
            raise Refused("modules of a batch cannot be followed; leave batch:N out.")
        self.lib, self.model = engine.lib, engine.model
        self.architecture = self.meta(b"general.architecture")
        if self.architecture not in PROJECTS_BY:
            raise Refused(f"modules of a '{self.architecture}' cannot be followed in llama.cpp.")
        self.names: dict[str, list[str]] = {}
        for name in names:
            for tensor in self.tensors(name):
                self.names.setdefault(tensor, []).append(name)
        self.callback = EVALUATED(self.see)
        self.rows, self.failed = None, None

    def meta(self, key):
        text = ctypes.create_string_buffer(256)
        self.lib.llama_model_meta_val_str(self.model, key, text, len(text))
        return text.value.decode()

    def tensors(self, name):
        """Return the names of the tensor that is this module's output."""
        of_model = OF_GEMMA if self.architecture == "gemma" else OF_MODEL
        if name in of_model:
            return of_model[name]
        inside = IN_BLOCK.fullmatch(name)
        if inside is None or inside[2] not in OF_BLOCK:
            return ()
        return (f"{OF_BLOCK[inside[2]]}-{inside[1]}",)

    def begin(self, rows, start, most):
        """Prepare for a call that computes positions from `start` on and sends the first `most`."""
        self.rows, self.failed, self.done = rows, None, dict.fromkeys(self.names, start)
        self.end_of_sent = start + most

    def end(self):
        self.rows = None
        if self.failed is not None:
            raise self.failed

    def see(self, tensor, is_asked, _):
        """Answer the scheduler whether a tensor is needed; then send its values."""
        try:
            name = self.lib.ggml_get_name(tensor).decode(errors="replace")
            if self.rows is None or name not in self.names:
                # any other tensor is computed with those that follow it
                return not is_asked
            if is_asked:
                return self.is_output(tensor, name)
            features, positions = (ctypes.c_int64 * 2).from_address(tensor + 16)
            values = np.empty((positions, features), np.float32)
            self.lib.ggml_backend_tensor_get(tensor, values.ctypes.data, 0, values.nbytes)
            values, start = self.in_order(name, values), self.done[name]
            rows = values[: max(0, self.end_of_sent - start)]
            for module in self.names[name] if len(rows) else ():
                self.rows.module(module, start, rows)
            self.done[name] += len(values)
        except Exception as error:
            # nothing may leave a callback of C
            self.failed = error
        return True

    def is_output(self, tensor, name):
        """Return whether this is the output of the module: tensors made of it, or before its bias,
        share its name.
        """
        kind = ctypes.c_int32.from_address(tensor).value
        size = tuple((ctypes.c_int64 * 4).from_address(tensor + 16))
        step = tuple((ctypes.c_size_t * 2).from_address(tensor + 48))
        if kind != TYPES["f32"] or size[2:] != (1, 1) or step != (4, 4 * size[0]):
            return False
        if name.partition("-")[0] not in ("Qcur", "Kcur", "Vcur"):
            return True
        return self.lib.ggml_op_desc(tensor) == PROJECTS_BY[self.architecture]

    def in_order(self, name, values):
        """Reorder queries and keys of a Llama as transformers has them: halves of each head, not
        neighbors.
        """
        stem = name.partition("-")[0]
        if self.architecture != "llama" or stem not in ("Qcur", "Kcur"):
            return values
        count = self.lib.llama_model_n_head if stem == "Qcur" else self.lib.llama_model_n_head_kv
        by_head = values.reshape(len(values), count(self.model), -1, 2)
        return np.ascontiguousarray(by_head.swapaxes(2, 3)).reshape(values.shape)


def load(request):
    """Load a GGUF."""
    engine = LlamaCppEngine(request)
    return engine.said, engine.run


if __name__ == "__main__":
    serve(HELLO, load)
