"""Kernels of a path: counted as torch's dispatcher counts them, placed in modules, read from
printed lines.
"""

from collections import Counter
from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from core.inference.paths import sliced_head
from core.inference.paths.batch import ignore
from core.inference.paths.engines import side_of
from core.inference.paths.paths import parse_path
from core.inference.paths.sliced_head import attribute_replaced
from core.inference.watching.kernels import FORWARDS, Launches, _add_library_lines, kernels_of
from core.runs.queries.kernels import in_words, side_by_side
from tests.core.inference.sameness import logits_of
from tests.core.runs.kernel_runs import kernel_run
from tests.core.runs.made_runs import opened

# As oneDNN's documentation of its verbose mode and MKL's developer guide show them, with other
# numbers.
PRINTED = [
    "onednn_verbose,v1,info,oneDNN v3.7.1",
    (
        "onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,"
        "prop_kind,memory_descriptors,...,exec_time"
    ),
    "\x1eenter model.layers.0.mlp",
    "\x1eenter model.layers.0.mlp.up_proj",
    (
        "onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,undef,"
        "src:bf16::blocked:ab::f0 wei:bf16::blocked:ba::f0 dst:bf16::blocked:ab::f0,"
        "attr-scratchpad:user attr-post-ops:sum,,13x384:384x2048,23.4282"
    ),
    (
        "onednn_verbose,v1,primitive,create:cache_hit,cpu,matmul,brg_matmul:avx512_core_bf16,"
        "undef,src:bf16::blocked:ab::f0,,,1x2:2x3,0.01"
    ),
    "\x1eleave",
    "MKL_VERBOSE oneMKL 2024.0 Update 2 Product build 20240605 for Intel(R) 64 architecture",
    (
        "MKL_VERBOSE"
        " SGEMM(T,N,2048,13,384,0x7fffb75320e0,0x7f1dbc314040,384,0x55b8,384,0x7fff,0x55b8,2048)"
        " 9.75ms CNR:OFF Dyn:1 TID:0 NThr:2"
    ),
    (
        "MKL_VERBOSE SGEMM(T,N,2048,13,384,0x1,0x2,384,0x3,384,0x4,0x5,2048) 250.00us CNR:OFF Dyn:1"
        " FastMM:1 TID:0  NThr:2"
    ),
    "\x1eleave",
    "what a model itself prints",
]


def test_lines_of_the_libraries_are_read_into_the_module_that_ran():
    found = Launches(list)
    _add_library_lines(PRINTED, found)
    up_proj = (
        "model.layers.0.mlp.up_proj",
        "oneDNN",
        "matmul brg_matmul:avx512_core_bf16",
        "bf16 13x384:384x2048",
    )
    mlp = ("model.layers.0.mlp", "MKL", "SGEMM", "T,N,2048,13,384")
    assert list(found) == [up_proj, mlp]
    assert found[up_proj] == pytest.approx([23428.2])
    assert found[mlp] == pytest.approx([9750.0, 250.0])


@pytest.fixture(scope="module", params=["llama", "gpt2", "mixtral"])
def loaded(request):
    return tiny_model(request.param)


class _Counting(TorchDispatchMode):
    """The dispatcher's own count of products."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[f"aten::{func.overloadpacket.__name__}"] += 1
        return func(*args, **(kwargs or {}))


def launches(listed, name):
    return sum(row.launches for row in listed.rows if row.name == name)


@pytest.mark.spread(3)
@pytest.mark.model
@pytest.mark.parametrize("path", ["prefill", "prefill+batch:3", "prefill+attn:eager"])
def test_products_are_counted_as_the_dispatcher_counts_them(loaded, path):
    ids = tiny_prompts(loaded)[0]
    listed = kernels_of(loaded, parse_path(path), ids)
    with _Counting() as counting:
        side_of(path).run_on(loaded)(ids, ignore)
    assert counting.seen["aten::mm"] + counting.seen["aten::addmm"] > 0
    names = ["mm", "addmm", "bmm", "embedding", "_softmax", "native_layer_norm"]
    for name in (f"aten::{name}" for name in names):
        assert launches(listed, name) == counting.seen[name], name
    assert not {"aten::view", "aten::t", "aten::linear"} & {row.name for row in listed.rows}
    modules = {name for name, _ in loaded.model.named_modules()}
    assert {row.module for row in listed.rows} <= modules


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_operations_shapes_and_dtypes_are_those_of_its_tensors(dtype):
    loaded = tiny_model("llama", dtype)
    ids = tiny_prompts(loaded)[0][:5]
    weight = loaded.model.model.layers[1].mlp.up_proj.weight
    rows = kernels_of(loaded, parse_path("prefill"), ids).rows
    name = "model.layers.1.mlp.up_proj"
    (row,) = (row for row in rows if (row.module, row.name) == (name, "aten::mm"))
    assert row.detail == f"{dtype} 5x{weight.shape[1]}, {weight.shape[1]}x{weight.shape[0]}"


@contextmanager
def _another_kernel_at_larger_batches(loaded, name):
    """At a batch above one, two more products and a function that is called nowhere else."""
    module = loaded.model.get_submodule(name)
    plain = module.forward

    def forward(x):
        if x.shape[0] == 1:
            return plain(x)
        # twice more, and times 0: the values stay as they are
        return torch.logaddexp2(plain(x), plain(-x)) * 0 + plain(x)

    with attribute_replaced(module, "forward", forward):
        yield


@pytest.mark.model
def test_a_kernel_that_only_a_larger_batch_launches_is_named_with_its_module(store):
    loaded = tiny_model("llama")
    sides = "prefill", "prefill+batch:2"
    prompt = tiny_prompts(loaded)[0]
    with _another_kernel_at_larger_batches(loaded, "model.layers.1.mlp.up_proj"):
        lists = [kernels_of(loaded, parse_path(side), prompt, n) for n, side in enumerate(sides)]
    with opened(store, kernel_run(store, lists=tuple(lists))) as run:
        table = side_by_side(run, 0)
        split = side_by_side(run, 0, "place")
    only = table[(table["only"] == "variant") & (table["library"] == "torch")]
    named = list(zip(only["name"], only["places"], strict=True))
    assert ("aten::logaddexp2", ["model.layers.*.mlp.up_proj"]) in named
    split = split[split["is_multiplied"] & (split["name"] == "aten::mm")]
    layers = loaded.model.config.num_hidden_layers
    assert split["places"].tolist() == [["model.layers.*.mlp.up_proj"]]
    assert split["ratio"].tolist() == [(layers + 2) / layers]
    assert "`aten::logaddexp2`" in in_words(table, sides)


@pytest.mark.model
def test_watching_leaves_standard_output_and_the_bits_as_they_were(capfd):
    loaded = tiny_model("llama")
    ids = tiny_prompts(loaded)[0]
    before = logits_of("prefill", loaded, ids)
    kernels_of(loaded, parse_path("prefill"), ids)
    after = logits_of("prefill", loaded, ids)
    print("still here")
    assert capfd.readouterr().out == "still here\n"
    assert torch.equal(before, after)
    assert not loaded.model._forward_hooks
    assert not any(module._forward_pre_hooks for module in loaded.model.modules())


@pytest.mark.model
def test_a_forward_whose_logits_come_in_slices_is_one_forward(monkeypatch):
    """The model is called once a slice (core.inference.paths.sliced_head), its body once; the twin:
    without that each slice would be a forward.
    """
    loaded = tiny_model("llama")
    ids = tiny_prompts(loaded)[0]
    whole = kernels_of(loaded, parse_path("prefill"), ids)
    calls = []
    # two columns of float32 at a time
    monkeypatch.setattr(sliced_head, "SLICE_BYTES", 2 * 4 * loaded.vocab_size)
    with loaded.model.register_forward_pre_hook(lambda *_: calls.append(1)):
        sliced = kernels_of(loaded, parse_path("prefill"), ids)
    assert len(calls) == -(-len(ids) // 2) > FORWARDS
    for listed in (sliced, whole):
        assert listed.forwards == 1
        assert listed.forwards_of == 1
    for name in ("aten::embedding", "aten::silu"):
        assert launches(sliced, name) == launches(whole, name) > 0
    # the earlier call and the fresh rest
    reused = kernels_of(loaded, parse_path("reuse:7"), ids)
    assert reused.forwards == 2
    assert reused.forwards_of == 2
