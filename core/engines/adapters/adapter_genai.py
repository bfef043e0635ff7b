"""ONNX Runtime GenAI as an engine: a graph of its builder, or the folder's own, on a CPU."""

import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from adapter_ort import LEVELS, require
from ulpscope_engine import (
    BASES,
    BATCH,
    THREADS,
    Refused,
    chunks,
    is_installed,
    modifier,
    parts_in,
    serve,
    version_of,
    with_neighbors,
)

PRECISIONS = {"f32": "fp32", "int8": "int8", "int4": "int4"}  # as the builder calls them
ACCURACY = {"f32": 1, "int8": 4}  # accuracy_level of MatMulNBits
HELLO = {
    "engine": "ONNX Runtime GenAI",
    "version": version_of("onnxruntime-genai"),
    "is_here": is_installed("onnxruntime_genai"),
    "dtypes": ["float32"],
    "logits": "float32",
    "modules": True,
    "refuses": [
        {
            "where": {"base": ["decode", "chunked", "reuse"], "batch": []},
            "says": (
                "its generator appends to a batch only once, so batch:N works with prefill only;"
                " leave it out"
            ),
        },
        {
            "where": {"activations": ["int8"], "weights": [None, "f32"]},
            "says": "activations:int8 needs quantized matrices; add weights:int8 or weights:int4",
        },
    ],
    "bases": BASES,
    "modifiers": {
        "weights": modifier(
            "type of the matrices",
            list(PRECISIONS),
            widest="f32",
            bits={"int8": 5, "int4": 2},
        ),
        "activations": modifier(
            "activations that quantized matrices are multiplied by",
            ["f32", "int8"],
            default="f32",
            widest="f32",
            bits={"int8": 5},
        ),
        "graph": modifier(
            "built from the weights, or own: the one in the model's folder; with weights:f32 it is"
            " built if its matrices are quantized",
            ["built", "own"],
            default="built",
        ),
        "optimize": modifier("optimization of the graph", list(LEVELS), default="all"),
        "threads": THREADS,
        "batch": BATCH,
    },
}
NEEDED = ("onnx", "onnx_ir", "torch", "transformers")  # by the builder
# outputs of the builder's nodes, by what transformers calls the modules; the stream after a block
# leaves the norm that follows it
OF_BLOCK = {
    "input_layernorm": "input_layernorm/output_0",
    "self_attn.q_proj": "attn/q_proj/MatMul/output_0",
    "self_attn.k_proj": "attn/k_proj/MatMul/output_0",
    "self_attn.v_proj": "attn/v_proj/MatMul/output_0",
    "self_attn.o_proj": "attn/o_proj/MatMul/output_0",
    "self_attn": "attn/o_proj/MatMul/output_0",
    "post_attention_layernorm": "post_attention_layernorm/output_0",
    "mlp.gate_proj": "mlp/gate_proj/MatMul/output_0",
    "mlp.up_proj": "mlp/up_proj/MatMul/output_0",
    "mlp.act_fn": "mlp/act_fn/Mul/output_0",
    "mlp.down_proj": "mlp/down_proj/MatMul/output_0",
    "mlp": "mlp/down_proj/MatMul/output_0",
}
MERGED = "attn/qkv_proj/MatMul/output_0"
CONFIG = "genai_config.json"
NOT_OF_GRAPH = shutil.ignore_patterns("*.safetensors", "*.bin", "*.gguf", "*.pt")


def kinds_of(options):
    """Return the requested (type of matrices, of activations)."""
    return options.get("weights", "f32"), options["activations"]


def check(request):
    """Refuse if the folder or a package is incomplete.

    Return whether to use the folder's own graph.
    """
    options = request["modifiers"]
    kinds = kinds_of(options)
    if request["modules"] and (options["batch"] > 1 or kinds[0] != "f32"):
        raise Refused("modules can be followed with weights:f32 and without batch:N only.")
    is_own = options["graph"] == "own" and _is_own(Path(request["model"]), options, kinds)
    if not is_own:
        require(NEEDED)
    elif request["modules"]:
        require(["onnx"])
    return is_own


def _is_own(folder, options, kinds):
    """Return whether the folder's graph has these kinds; Refused if it does not and float32 is not
    requested.
    """
    if not (folder / CONFIG).is_file():
        raise Refused(f"graph:own needs {CONFIG} in the model's folder; leave it out.")
    own = matrices_of(folder / model_of(folder)["decoder"]["filename"])
    if own == kinds:
        return True
    if "weights" in options and kinds == ("f32", "f32"):
        return False
    words = f"graph:own+weights:{own[0]}"
    if own[1] != "f32":
        words += f"+activations:{own[1]}"
    raise Refused(f"the folder's graph has other matrices; write {words}.")


def matrices_of(path):
    """Return (type of a graph's matrices, of their activations), read from its nodes without the
    package onnx.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data.find(b"MatMulNBits") < 0:
            return "f32", "f32"
        activations = "int8" if data.find(b"\x0eaccuracy_level\x18\x04") >= 0 else "f32"
        for bits in (4, 8):
            if data.find(b"\x04bits\x18" + bytes([bits])) >= 0:
                return f"int{bits}", activations
    raise Refused("the matrices of the folder's graph have neither 4 nor 8 bits.")


def model_of(folder):
    """Return the section of genai_config.json that describes the model."""
    return json.loads((Path(folder) / CONFIG).read_text(encoding="utf-8"))["model"]


def build(folder, target, kind, activations):
    """Run the model builder on a transformers folder, in its own process."""
    builder = ["-m", "onnxruntime_genai.models.builder", "-e", "cpu", "-p"]
    command = [sys.executable, *builder, PRECISIONS[kind], "-i", folder, "-o", target, "-c", target]
    if kind != "f32":
        command += ["--extra_options", f"accuracy_level={ACCURACY[activations]}"]
    done = subprocess.run(
        command,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode or not (Path(target) / CONFIG).is_file():
        sys.stderr.write(done.stdout[-4000:])
        last = [line.strip() for line in done.stdout.splitlines() if line.strip()][-1:]
        raise Refused(
            f"its model builder failed on this folder: {last[0] if last else 'no output'}",
        )


def show(path, modules, decoder):
    """Make the outputs of these modules outputs of the graph.

    Return module -> (output, first feature, end).
    """
    import onnx

    size = decoder["head_size"]
    keys = decoder["num_attention_heads"] * size
    values = keys + decoder["num_key_value_heads"] * size
    ends = {
        "q_proj": (0, keys),
        "k_proj": (keys, values),
        "v_proj": (values, 2 * values - keys),
    }
    model = onnx.load(path, load_external_data=False)
    # an output that a node leaves out has the empty name
    outputs = {output for node in model.graph.node for output in node.output} - {""}
    nodes = [node for node in model.graph.node if node.op_type.startswith("Skip")]
    # norms that can give the sum too, which nothing uses after the last block
    norms = {node.output[0]: node for node in nodes if len(node.output) == 1}
    count = decoder["num_hidden_layers"]
    last = f"/model/layers.{count}/final_norm_layernorm"
    slices = {
        "model.embed_tokens": ("/model/embed_tokens/Gather/output_0", 0, None),
        "model.norm": (f"{last}/output_0", 0, None),
    }
    for block in range(count):
        stem, own = f"model.layers.{block}", f"/model/layers.{block}"
        for part, output in OF_BLOCK.items():
            slices[f"{stem}.{part}"] = f"{own}/{output}", 0, None
        if f"{own}/{MERGED}" in outputs:
            for part, ends_of_part in ends.items():
                slices[f"{stem}.self_attn.{part}"] = f"{own}/{MERGED}", *ends_of_part
        # the stream after a block
        norm = last if block + 1 == count else f"/model/layers.{block + 1}/input_layernorm"
        output = f"{norm}/output_3"
        slices[stem] = output, 0, None
        if stem in modules and f"{norm}/output_0" in norms:
            norms[f"{norm}/output_0"].output.extend(["", "", output])
            outputs.add(output)
    slices = {name: slices[name] for name in modules if slices.get(name, ("",))[0] in outputs}
    for output in dict.fromkeys(output for output, _, _ in slices.values()):
        shape = ["batch_size", "sequence_length", f"features of {output}"]
        model.graph.output.append(
            onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, shape),
        )
    onnx.save(model, path)
    return slices


def load(request):
    """Build the folder's graph if it has none, and open it."""
    is_own = check(request)
    import onnxruntime_genai

    options, slices = request["modifiers"], {}
    kind, activations = kinds_of(options)
    with tempfile.TemporaryDirectory() as target:
        folder = request["model"]
        if not is_own:
            build(folder, target, kind, activations)
            folder = target
        elif request["modules"]:
            # modules change the graph, so it is changed in a copy
            folder = shutil.copytree(folder, target, ignore=NOT_OF_GRAPH, dirs_exist_ok=True)
        about = model_of(folder)
        decoder = about["decoder"]
        if request["modules"]:
            slices = show(Path(folder) / decoder["filename"], request["modules"], decoder)
        config = onnxruntime_genai.Config(str(folder))
        settings = {
            "intra_op_num_threads": options["threads"] or len(os.sched_getaffinity(0)),
            "graph_optimization_level": LEVELS[options["optimize"]],
        }
        config.overlay(json.dumps({"model": {"decoder": {"session_options": settings}}}))
        model = onnxruntime_genai.Model(config)

    def step(generator, ids, start, rows, most=None):
        """Append tokens of the prompt, and send the first `most` of their positions."""
        generator.append_tokens(np.array(with_neighbors(ids, options["batch"]), np.int32))
        logits = generator.get_output("logits")
        if logits.shape[1] != len(ids) or logits.dtype != np.float32:
            raise Refused(
                f"the graph gives logits of {logits.shape[1]} of {len(ids)} positions in"
                f" {logits.dtype}; expected all in float32. Build it with -p fp32 and without"
                " prune_lm_head.",
            )
        for module, (output, begin, end) in slices.items():
            rows.module(module, start, generator.get_output(output)[0][:most, begin:end])
        rows(start, logits[0][:most])

    def run(ids, rows):
        params = onnxruntime_genai.GeneratorParams(model)
        # with room for the prompt
        params.set_search_options(
            batch_size=options["batch"], max_length=len(ids) + 1, do_sample=False
        )
        generator = onnxruntime_genai.Generator(model, params)
        for start, tokens in chunks(request, ids):
            if request["base"][0] == "reuse" and start:
                step(generator, ids, 0, rows, start)
                generator.rewind_to(start)
            step(generator, tokens, start, rows)

    wide = {"f32": "float32"}
    parts = parts_in(
        "float32",
        weights=wide.get(kind, kind),
        kv="own" if is_own else "float32",
        activations=wide.get(activations, activations),
        accumulation="float32",
    )
    return {"vocab": int(about["vocab_size"]), "parts": parts}, run


if __name__ == "__main__":
    serve(HELLO, load)
