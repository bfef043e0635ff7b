"""ONNX Runtime as an engine: the model exported by torch to one graph, which the CPU provider
runs.
"""

import ast
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from ulpscope_engine import (
    THREADS,
    Refused,
    is_installed,
    modifier,
    parts_in,
    serve,
    version_of,
)

LEVELS = {"off": "ORT_DISABLE_ALL", "basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED"}
LEVELS["all"] = "ORT_ENABLE_ALL"
HELLO = {
    "engine": "ONNX Runtime",
    "version": version_of("onnxruntime"),
    "is_here": is_installed("onnxruntime"),
    "dtypes": ["float32"],
    "modules": True,
    "bases": {"prefill": {}},
    "modifiers": {
        "optimize": modifier("optimization of the graph", list(LEVELS), default="all"),
        "threads": THREADS,
    },
}
# of a node: the modules that it was exported from, outermost first
SCOPES = "pkg.torch.onnx.name_scopes"
OWN = "model."  # the name of the model in the wrapper below
NEEDED = ("onnxruntime", "onnxscript", "torch", "transformers")


def require(packages):
    """Refuse if one of these packages is not installed."""
    if missing := [name for name in packages if not is_installed(name)]:
        raise Refused(
            f"the graph needs {missing[0]}; pip install {' '.join(missing).replace('_', '-')}.",
        )


def export(folder, path):
    """Write the model as a graph of token ids to logits. Return the width of the logits."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        local_files_only=True,
        attn_implementation="eager",
    ).eval()

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, tokens):
            return self.model(tokens, use_cache=False).logits

    sizes = {"tokens": {1: torch.export.Dim("positions", min=2, max=4096)}}
    tokens = torch.arange(1, 17)[None]
    torch.onnx.export(
        Logits(),
        (tokens,),
        path,
        dynamo=True,
        dynamic_shapes=sizes,
        external_data=True,
        verbose=False,
    )
    return model.get_output_embeddings().weight.shape[0]


def show(path, modules):
    """Make the outputs of these modules outputs of the graph.

    Return module -> name of the output.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    outputs = {}
    # later nodes replace earlier ones: the last of a module's gives its output
    for node in model.graph.node:
        scopes = next((prop.value for prop in node.metadata_props if prop.key == SCOPES), "[]")
        for scope in ast.literal_eval(scopes):
            name = scope.removeprefix(OWN)
            # has two outputs, and the last is not the first
            if name in modules and "rotary" not in name:
                outputs[name] = node.output[0]
    values = {
        value.name: value
        for value in model.graph.value_info
        if len(value.type.tensor_type.shape.dim) == 3
    }
    outputs = {name: output for name, output in outputs.items() if output in values}
    model.graph.output.extend(values[output] for output in dict.fromkeys(outputs.values()))
    onnx.save(model, path)
    return outputs


@contextmanager
def exported(request):
    """Yield the path of the folder's graph, the width of its logits, and module -> name of the
    output for the modules of the request.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        vocab = export(request["model"], path)
        yield path, vocab, show(path, request["modules"]) if request["modules"] else {}


def run_of(compute, output_of):
    """Return what runs a prompt. compute: tokens -> (logits, outputs by name), each [1, positions,
    features]; output_of: module -> name of its output.
    """

    def run(ids, rows):
        # the graph takes two positions at least; none sees the next
        padded = ids if len(ids) > 1 else [*ids, ids[0]]
        logits, outputs = compute(np.array([padded], np.int64))
        for module, name in output_of.items():
            rows.module(module, 0, outputs[name][0][: len(ids)])
        rows(0, logits[0][: len(ids)])

    return run


def load(request):
    """Export the folder and open a session."""
    require(NEEDED)
    import onnxruntime

    options = request["modifiers"]
    settings = onnxruntime.SessionOptions()
    level = LEVELS[options["optimize"]]
    settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    settings.intra_op_num_threads = options["threads"]
    with exported(request) as (path, vocab, output_of):
        session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])

    names = [one.name for one in session.get_outputs()]

    def compute(tokens):
        arrays = session.run(names, {session.get_inputs()[0].name: tokens})
        return arrays[0], dict(zip(names, arrays, strict=True))

    parts = parts_in("float32", accumulation="float32")
    return {"vocab": vocab, "parts": parts}, run_of(compute, output_of)


if __name__ == "__main__":
    serve(HELLO, load)
