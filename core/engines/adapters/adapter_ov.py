"""OpenVINO as an engine: the graph that torch exports for ONNX Runtime, compiled by its CPU
plugin.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from adapter_ort import export, require, show
from ulpscope_engine import Refused, is_installed, modifier, serve, version_of

HELLO = {
    "engine": "OpenVINO",
    "dtypes": ["float32"],
    "modules": True,
    "bases": {"prefill": {"says": "the whole prompt in one call"}},
    "modifiers": {
        "precision": modifier(
            "inference precision (INFERENCE_PRECISION_HINT)",
            ["f32", "bf16", "f16"],
            default="f32",
            widest="f32",
            bits={"bf16": 8, "f16": 11},
        ),
        "threads": modifier("threads of the CPU", least=1),
    },
}
NEEDED = ("openvino", "onnx", "onnxscript", "torch", "transformers")


def load(request):
    """Export the folder and compile it."""
    require(NEEDED)
    import numpy as np
    import openvino

    options, core = request["modifiers"], openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": options.get("precision", "f32")}
    if "threads" in options:
        settings["INFERENCE_NUM_THREADS"] = int(options["threads"])
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        vocab = export(request["model"], path)
        output_of = show(path, request["modules"]) if request.get("modules") else {}
        compiled = core.compile_model(core.read_model(path), "CPU", settings)
    computes_in = str(compiled.get_property("INFERENCE_PRECISION_HINT").to_string())
    if computes_in != options.get("precision", "f32"):
        raise Refused(
            f"this CPU has no {options['precision']}: the plugin would compute in {computes_in}.",
        )

    def run(ids, rows):
        # the graph takes two positions at least; none sees the next
        padded = ids if len(ids) > 1 else [*ids, ids[0]]
        outputs = compiled([np.array([padded], np.int64)])
        values = [outputs[output] for output in compiled.outputs]
        # the compiler may give an output other names too
        named = {
            name: one
            for output, one in zip(compiled.outputs, values, strict=True)
            for name in output.get_names()
        }
        for module, name in output_of.items():
            rows.module(module, 0, named[name][0][: len(ids)])
        rows(0, values[0][0][: len(ids)])

    parts = {
        "weights": "float32",
        "kv": "float32",
        "activations": computes_in,
        "accumulation": "float32",
    }
    return {"vocab": vocab, "versions": {"openvino": version_of("openvino")}, "parts": parts}, run


if __name__ == "__main__":
    serve(dict(HELLO, version=version_of("openvino"), is_here=is_installed("openvino")), load)
