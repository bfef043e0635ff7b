"""CTranslate2 as an engine: a transformers folder, converted by its own converter."""

import tempfile

import numpy as np
from ulpscope_engine import (
    BATCH,
    THREADS,
    Refused,
    is_installed,
    modifier,
    parts_in,
    serve,
    version_of,
    with_neighbors,
)

COMPUTE = ["float32", "int8_float32", "bfloat16", "int8_bfloat16", "float16", "int8_float16"]
HELLO = {
    "engine": "CTranslate2",
    "version": version_of("ctranslate2"),
    "is_here": all(map(is_installed, ("ctranslate2", "torch", "transformers"))),
    "dtypes": ["float32", "bfloat16", "float16"],
    "logits": "float32",
    "bases": {"prefill": {}},
    "modifiers": {
        "compute": modifier(
            "compute type; the run's dtype by default",
            COMPUTE,
            widest="float32",
            bits={
                "bfloat16": 8,
                "float16": 11,
                "int8_float32": 4,
                "int8_bfloat16": 4,
                "int8_float16": 4,
            },
        ),
        "threads": THREADS,
        "batch": BATCH,
    },
}


def load(request):
    """Convert the folder and load it."""
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    options = request["modifiers"]
    kind = options.get("compute", request["dtype"])
    kinds = ctranslate2.get_supported_compute_types("cpu")
    if kind not in kinds:
        raise Refused(
            f"CTranslate2 has no {kind} on this CPU; choose from {', '.join(sorted(kinds))}.",
        )
    with tempfile.TemporaryDirectory() as target:
        TransformersConverter(request["model"]).convert(target, force=True)
        generator = ctranslate2.Generator(
            target,
            device="cpu",
            compute_type=kind,
            intra_threads=options["threads"],
            inter_threads=1,
        )

    def run(ids, emit):
        rows = with_neighbors(ids, options["batch"])
        emit(0, np.asarray(generator.forward_batch(rows))[0])

    vocab = np.asarray(generator.forward_batch([[0]])).shape[-1]
    return {"vocab": vocab, "parts": parts_in(kind, accumulation="float32")}, run


if __name__ == "__main__":
    serve(HELLO, load)
