"""ONNX Runtime GenAI as an engine: against a package with its interface and a real model behind
it.
"""

import importlib

import onnx
import pytest
from onnx import TensorProto, helper

from core.engines import registry
from core.errors import CaptureError
from tests.core.inference.sameness import apart, logits_of

IDS = (5, 9, 200, 0, 77, 9, 1024, 3, 0, 44)  # 0 ends a text, and is a token like any other here

STAND_IN = {
    "onnxruntime_genai-0.18.0.dist-info/METADATA": (
        "Metadata-Version: 2.1\nName: onnxruntime-genai\nVersion: 0.18.0\n"
    ),
    "onnxruntime_genai/models/__init__.py": "",
    "onnxruntime_genai/models/builder.py": (
        """
import argparse, json, pathlib, sys
parser = argparse.ArgumentParser()
for short in "iocep":
    parser.add_argument("-" + short)
parser.add_argument("--extra_options", nargs="*")
asked = parser.parse_args()
print("progress on stdout")
about = json.loads((pathlib.Path(asked.i) / "config.json").read_text())
if about["model_type"] != "llama":
    raise NotImplementedError("The model type is not supported.")
decoder = {"filename": "model.onnx", "built": [asked.i, asked.e, asked.p, asked.extra_options]}
said = {"model": {"vocab_size": 4096, "decoder": decoder}}
(pathlib.Path(asked.o) / "genai_config.json").write_text(json.dumps(said))
"""
    ),
    # what 0.18 was seen to do: logits of the tokens added last; a batch is added to once, and only
    # one row is rewound
    "onnxruntime_genai/__init__.py": (
        """
import json, pathlib
class Config:
    def __init__(self, folder):
        config = json.loads((pathlib.Path(folder) / "genai_config.json").read_text())
        self.decoder = config["model"]["decoder"]
    def overlay(self, text):
        self.session = json.loads(text)["model"]["decoder"]["session_options"]
class Model:
    def __init__(self, config):
        import torch, transformers
        folder, where, precision, more = config.decoder["built"]
        assert where == "cpu"
        level = config.session["graph_optimization_level"]
        assert level in ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL")
        assert (precision, more) in (
            ("fp32", None), ("int4", ["accuracy_level=4"]), ("int8", ["accuracy_level=1"])
        )
        assert config.session["intra_op_num_threads"] >= 1
        auto = transformers.AutoModelForCausalLM
        self.model = auto.from_pretrained(folder, dtype=torch.float32).eval()
class GeneratorParams:
    def __init__(self, model):
        pass
    def set_search_options(self, batch_size, max_length, do_sample):
        self.batch_size, self.max_length = batch_size, max_length
class Generator:
    def __init__(self, model, params):
        self.model, self.params, self.rows = model.model, params, None
    def append_tokens(self, tokens):
        import numpy as np
        assert tokens.dtype == np.int32 and len(tokens) == self.params.batch_size
        if self.rows is not None and len(tokens) > 1:
            raise RuntimeError("AppendTokens can only be called once for batch_size > 1.")
        self.rows = tokens if self.rows is None else np.concatenate([self.rows, tokens], 1)
        assert self.rows.shape[1] <= self.params.max_length
        self.added = tokens.shape[1]
    def rewind_to(self, length):
        assert len(self.rows) == 1
        self.rows = self.rows[:, :length]
    def get_output(self, name):
        import torch
        assert name == "logits"
        with torch.inference_mode():
            return self.model(torch.from_numpy(self.rows).long()).logits[:, -self.added :].numpy()
"""
    ),
}

pytestmark = pytest.mark.model


@pytest.fixture
def stand_in(packages):
    """The engine `genai` is the package above."""
    packages(STAND_IN, "genai")


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    "path",
    [
        "genai:prefill+optimize:off",
        "genai:decode",
        "genai:chunked:4",
        "genai:reuse:4+threads:2",
        "genai:reuse:99",
        "genai:prefill+batch:3",
        "genai:decode+weights:int4+activations:int8",
        "genai:prefill+weights:int8",
    ],
)
def test_rows_stand_at_their_positions(loaded, stand_in, path):
    """A row that stood one position off would be some 10 away: the model's own logits are that
    large.
    """
    reference, found = logits_of("prefill", loaded, IDS), logits_of(path, loaded, IDS)
    assert found.shape == reference.shape
    assert apart(found, reference) < 1e-3


def test_a_folder_without_a_graph_is_refused_before_anything_is_loaded(loaded, packages):
    """The package here cannot even be imported."""
    broken = dict.fromkeys(STAND_IN, "raise RuntimeError('imported')")
    packages(
        {
            **STAND_IN,
            **{name: text for name, text in broken.items() if name.endswith(".py")},
        },
        "genai",
    )
    with pytest.raises(CaptureError, match="graph:own needs genai_config"):
        logits_of("genai:prefill+graph:own", loaded, IDS)


# ---- graphs


@pytest.fixture
def adapter(monkeypatch):
    """The module of the adapter."""
    monkeypatch.syspath_prepend(str(registry.ADAPTERS))
    return importlib.import_module("adapter_genai")


def _graph(path, nodes):
    graph = helper.make_graph(
        nodes,
        "g",
        [],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)],
    )
    onnx.save(helper.make_model(graph), path)
    return path


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        ({"bits": 4, "accuracy_level": 4}, ("int4", "int8")),
        ({"bits": 8, "accuracy_level": 1}, ("int8", "f32")),
        (None, ("f32", "f32")),
    ],
)
def test_the_matrices_of_a_graph_are_read_without_onnx(adapter, tmp_path, attributes, found):
    kind = "MatMul"
    more = {}
    if attributes is not None:
        kind = "MatMulNBits"
        more = {"K": 64, "N": 64, **attributes}
    path = _graph(
        tmp_path / "model.onnx",
        [helper.make_node(kind, ["a", "b"], ["c"], **more)],
    )
    assert adapter.matrices_of(path) == found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weights": "int4"},
        {"weights": "int8"},
    ],
)
def test_a_graph_of_the_folders_own_is_taken_for_what_it_is(adapter, tmp_path, options):
    (tmp_path / "genai_config.json").write_text(
        '{"model": {"vocab_size": 4096, "decoder": {"filename": "m.onnx"}}}',
    )
    _graph(
        tmp_path / "m.onnx",
        [helper.make_node("MatMulNBits", ["a", "b"], ["c"], bits=4, accuracy_level=4)],
    )
    request = {
        "model": str(tmp_path),
        "modules": [],
        "modifiers": {"graph": "own", "activations": "f32", "batch": 1, **options},
    }
    with pytest.raises(
        adapter.Refused,
        match=r"has other matrices; write graph:own\+weights:int4\+activations:int8",
    ):
        adapter.check(request)
    own = {"weights": "int4", "activations": "int8"}
    assert adapter.check({**request, "modifiers": request["modifiers"] | own})
    # as the verdict's widest asks, which is built
    assert not adapter._is_own(tmp_path, {"graph": "own", "weights": "f32"}, ("f32", "f32"))


def test_outputs_are_those_of_the_modules_by_name(adapter, tmp_path):
    """Merged projections are split, and the stream after the last block leaves the last norm."""
    names = [
        ("Gather", ["/model/embed_tokens/Gather/output_0"]),
        ("MatMul", ["/model/layers.0/attn/qkv_proj/MatMul/output_0"]),
        ("MatMul", ["/model/layers.0/mlp/down_proj/MatMul/output_0"]),
        ("SkipSimplifiedLayerNormalization", ["/model/layers.1/final_norm_layernorm/output_0"]),
    ]
    path = _graph(
        tmp_path / "model.onnx",
        [helper.make_node(kind, ["x"], output) for kind, output in names],
    )
    decoder = {
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_size": 64,
        "num_hidden_layers": 1,
    }
    merged = "/model/layers.0/attn/qkv_proj/MatMul/output_0"
    expected = {
        "model.embed_tokens": ("/model/embed_tokens/Gather/output_0", 0, None),
        "model.layers.0.self_attn.q_proj": (merged, 0, 384),
        "model.layers.0.self_attn.k_proj": (merged, 384, 512),
        "model.layers.0.self_attn.v_proj": (merged, 512, 640),
        "model.layers.0.mlp": ("/model/layers.0/mlp/down_proj/MatMul/output_0", 0, None),
        "model.layers.0": ("/model/layers.1/final_norm_layernorm/output_3", 0, None),
        "model.norm": ("/model/layers.1/final_norm_layernorm/output_0", 0, None),
    }
    others = [
        "model.rotary_emb",
        "lm_head",
        "model.layers.0.mlp.gate_proj",
        "model.layers.0.self_attn.q_norm",
    ]
    assert adapter.show(path, [*expected, *others], decoder) == expected
    given = {value.name for value in onnx.load(path).graph.output}
    assert given == {"logits", *(output for output, _, _ in expected.values())}
