"""OpenVINO as an engine: the graph that torch exports for ONNX Runtime, compiled by its CPU
plugin.
"""

from adapter_ort import exported, require, run_of
from ulpscope_engine import (
    THREADS,
    Refused,
    is_installed,
    modifier,
    parts_in,
    serve,
    version_of,
)

HELLO = {
    "engine": "OpenVINO",
    "version": version_of("openvino"),
    "is_here": is_installed("openvino"),
    "dtypes": ["float32"],
    "modules": True,
    "bases": {"prefill": {}},
    "modifiers": {
        "precision": modifier(
            "inference precision (INFERENCE_PRECISION_HINT)",
            ["f32", "bf16", "f16"],
            default="f32",
            widest="f32",
            bits={"bf16": 8, "f16": 11},
        ),
        "threads": THREADS,
    },
}
NEEDED = ("openvino", "onnx", "onnxscript", "torch", "transformers")


def load(request):
    """Export the folder and compile it."""
    require(NEEDED)
    import openvino

    options, core = request["modifiers"], openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": options["precision"]}
    if options["threads"]:
        settings["INFERENCE_NUM_THREADS"] = options["threads"]
    with exported(request) as (path, vocab, output_of):
        compiled = core.compile_model(core.read_model(path), "CPU", settings)
    computes_in = str(compiled.get_property("INFERENCE_PRECISION_HINT").to_string())
    if computes_in != options["precision"]:
        raise Refused(
            f"this CPU has no {options['precision']}: the plugin would compute in {computes_in}.",
        )

    def compute(tokens):
        values = compiled([tokens])
        # the compiler may give an output other names too
        named = {name: values[output] for output in compiled.outputs for name in output.get_names()}
        return values[compiled.outputs[0]], named

    parts = parts_in("float32", activations=computes_in, accumulation="float32")
    return {"vocab": vocab, "parts": parts}, run_of(compute, output_of)


if __name__ == "__main__":
    serve(HELLO, load)
