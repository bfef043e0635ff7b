"""A reordered model is the same function with other rounding, and nothing of it is left
afterwards.
"""

import copy
from contextlib import nullcontext
from itertools import combinations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from core.errors import CaptureError
from core.inference.controls import reordering
from core.inference.controls.reordering import reorder
from core.inference.models.torch_errors import quiet
from core.inference.paths.engines import whole_side
from core.inference.paths.paths import open_path, parse_path
from tests.core.inference.paths.test_modifiers import state
from tests.core.inference.sameness import apart, drawn, exact_logits, float32_bound, tokens
from tests.covering import covering

# Linear maps by hand: those of the two layers and the head. Experts held in one parameter are one
# map.
MAPS = {
    "llama": 2 * 7 + 1,  # q k v o, gate up down
    "gpt2": 2 * 4 + 1,  # qkv, o, up, down: Conv1D
    "qwen2": 2 * 7 + 1,  # and the head is the embedding
    "mixtral": 2 * (4 + 1 + 2) + 1,  # router, experts' gate-and-up and down
    "qwen3": 2 * 7 + 1,
    "mistral": 2 * 7 + 1,
    "mistral-window": 2 * 7 + 1,
    "gemma2": 2 * 7 + 1,
    "gemma3": 2 * 7 + 1,
    "gpt-neox": 2 * 4 + 1,
    "qwen2-moe": 2 * (4 + 1 + 2 + 3 + 1) + 1,  # and a shared expert with a gate of its own
    "longrope": 2 * 7 + 1,
    "lfm2": (2 + 3) + (4 + 3) + 1,  # a convolution's in and out; the convolution itself stays
    "bloom": 2 * 4 + 1,
    "mamba": 2 * 4 + 1,  # in, x, dt, out
}
MODES = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "grad": torch.enable_grad,
}


def forward(model, ids, seed=None):
    """Logits of the prompt, plain or reordered. -> [1, positions, vocab]"""
    order = nullcontext() if seed is None else reorder(model, seed)
    with torch.inference_mode(), quiet(), order:
        return model(torch.tensor([ids])).logits


@pytest.mark.model
@pytest.mark.parametrize("name", MAPS)
def test_each_order_is_the_same_function_with_bits_of_its_own(name, model_of):
    loaded = model_of(name)
    ids = tokens(loaded)
    plain = forward(loaded.model, ids)
    sides = [plain, *(forward(loaded.model, ids, seed) for seed in (0, 1, 2))]
    for one, other in combinations(sides, 2):
        assert not torch.equal(one, other)
    assert torch.equal(forward(loaded.model, ids, 1), sides[2])
    wide = copy.deepcopy(loaded.model).double()
    if hasattr(wide.config, "num_experts_per_tok"):
        # the grouped product of experts knows no float64
        wide.set_experts_implementation("eager")
    # of both sides, with the unit of float64
    bound = 2 * float32_bound(loaded) * 2.0 ** (24 - 53)
    difference = apart(forward(wide, ids, seed=0), forward(wide, ids))
    assert difference <= bound < 1e-9 < 1e-2 < float(plain.std())
    # Mamba ends in float32, which hides what float64 rounds
    assert difference > 0 or name == "mamba"


def test_maps_of_equal_weights_have_orders_of_their_own():
    one = torch.nn.Linear(512, 512, bias=False)
    twins = torch.nn.ModuleList([one, copy.deepcopy(one)])
    x = drawn(4, 512)
    with torch.inference_mode(), reorder(twins, 0):
        first, second = (twin(x) for twin in twins)
    assert not torch.equal(first, second)


@pytest.mark.model
@pytest.mark.parametrize("name", MAPS)
def test_every_matrix_is_reordered_but_embeddings_convolutions_and_state_matrices(
    name,
    model_of,
):
    model = model_of(name).model
    with torch.inference_mode(), reorder(model, 0) as found:
        model(torch.tensor([tokens(model_of(name))]))
    embeddings = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    tables = {module.weight.data_ptr() for module in embeddings}
    matrices = {name: matrix for name, matrix in model.named_parameters() if matrix.ndim > 1}
    others = set()
    for name_of, matrix in matrices.items():
        # a head may be the embedding's own table
        is_table = matrix.data_ptr() in tables
        if "conv" in name_of or "A_log" in name_of or is_table:
            others.add(name_of)
    assert matrices.keys() - found <= others
    assert len(found) == MAPS[name]


@pytest.mark.model
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MAPS)
def test_the_order_that_changes_nothing_changes_no_bit(
    name,
    dtype,
    mode,
    model_of,
    monkeypatch,
):
    """So layouts and kernels are those of the plain model, and what a floor measures is the order
    of summation alone.
    """
    monkeypatch.setattr(reordering, "order_of", lambda seed, name, length: torch.arange(length))
    model = model_of(name, dtype).model
    ids = torch.tensor([tokens(model_of(name))] * 2)
    with MODES[mode](), quiet():
        plain = model(ids).logits
        with reorder(model, 0) as found:
            assert torch.equal(model(ids).logits, plain)
    assert len(found) == MAPS[name]


class Factors(TorchDispatchMode):
    """Strides of the factors of every product, and their places among the 64 bytes that kernels
    align to.
    """

    def __init__(self):
        super().__init__()
        self.layouts = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in ("aten::mm", "aten::bmm", "aten::linear"):
            self.layouts += [(each.shape, each.stride(), each.data_ptr() % 64) for each in args[:2]]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "view",
    [
        # of a wider tensor: its rows are further apart, and begin elsewhere
        lambda rows: rows[:, :, 3:8],
        lambda rows: rows.mT[:, :, :5],  # torch expands the weight for it
        lambda rows: rows[:1, :, :5].expand(2, -1, -1),
        lambda rows: rows[:, :, :1].expand(-1, -1, 5),
    ],
    ids=["slice", "transposed", "expanded rows", "expanded terms"],
)
def test_kernels_get_reordered_factors_in_the_layout_of_the_plain_ones(view, mode):
    """Kernels of some processors round by it, so this is checked on every one."""
    inputs = view(drawn(2, 16, 16))
    model = torch.nn.Sequential(torch.nn.Linear(5, 4, bias=False))
    with MODES[mode](), Factors() as plain:
        expected = model(inputs)
    with MODES[mode](), Factors() as reordered, reorder(model, 0):
        assert torch.allclose(model(inputs), expected, atol=1e-5)
    assert reordered.layouts == plain.layouts != []


@pytest.mark.model
@pytest.mark.parametrize("implementation", ["eager", "batched_mm", "grouped_mm"])
@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe"])
def test_experts_are_reordered_whichever_way_they_are_computed(
    name,
    implementation,
    model_of,
):
    loaded = model_of(name)
    model = copy.deepcopy(loaded.model)
    ids = tokens(loaded)
    model.set_experts_implementation(implementation)
    with torch.inference_mode(), reorder(model, 0) as found:
        logits = model(torch.tensor([ids])).logits
    assert len(found) == MAPS[name]
    assert 0 < apart(logits, forward(model, ids)) <= 2 * float32_bound(loaded)


REORDERED = ["llama", "gpt2", "qwen2", "mixtral", "gemma3"]
REORDERED_PATHS = [
    "decode",
    "chunked:7",
    "reuse:9",
    "static",
    "prefill+batch:3+row:1",
    "prefill+attn:eager",
]


@pytest.mark.spread(3)
@pytest.mark.model
@pytest.mark.parametrize(("name", "path"), covering(REORDERED, REORDERED_PATHS))
def test_every_path_can_be_reordered(name, path, model_of):
    loaded = model_of(name)
    ids = tokens(loaded)
    with torch.inference_mode(), open_path(parse_path(path), loaded) as run:
        plain = whole_side(run, ids)
        with reorder(loaded.model, 5) as found:
            logits = whole_side(run, ids)
    assert len(found) == MAPS[name]
    assert not torch.equal(logits, plain)
    assert apart(logits, exact_logits(loaded)) <= float32_bound(loaded)


def full_state(loaded):
    hooks = 0
    for module in loaded.model.modules():
        hooks += len(module._forward_hooks) + len(module._forward_pre_hooks)
    head = loaded.model.get_output_embeddings().weight
    return {
        **state(loaded),
        "hooks": hooks,
        "mode": _get_current_dispatch_mode(),
        "tied": head is loaded.model.get_input_embeddings().weight,
        "identities": [id(p) for p in loaded.model.parameters()],
    }


@pytest.mark.model
@pytest.mark.parametrize("name", ["llama", "qwen2", "mixtral"])
def test_the_model_is_bit_for_bit_what_it_was_even_if_a_forward_is_interrupted(
    name,
    model_of,
):
    loaded = model_of(name)
    ids = tokens(loaded)
    plain = forward(loaded.model, ids)
    before = full_state(loaded)

    def breaks(*_):
        raise KeyboardInterrupt

    with (
        loaded.model.model.layers[1].register_forward_pre_hook(breaks),
        pytest.raises(KeyboardInterrupt),
    ):
        forward(loaded.model, ids, seed=0)
    forward(loaded.model, ids, seed=0)
    assert full_state(loaded) == before
    assert torch.equal(forward(loaded.model, ids), plain)


class Layer(torch.nn.Module):
    """One 'weight' and a forward to try."""

    def __init__(self, shape, compute):
        super().__init__()
        self.weight = torch.nn.Parameter(drawn(*shape, seed=3), requires_grad=False)
        # of no product: it is not to be found
        self.other = torch.nn.Parameter(drawn(32, 32), requires_grad=False)
        self.compute = compute

    def forward(self, x):
        return self.compute(self.weight, x)


F = torch.nn.functional
IN, OUT = 32, 24
EXPERTS = torch.tensor([0, 2, 1, 1, 0])
ENDS = torch.tensor([2, 4, 5], dtype=torch.int32)
# x is [5, IN]
WAYS = {
    "linear": ((OUT, IN), F.linear),
    "a slice of a weight": ((OUT, 2 * IN), lambda w, x: F.linear(x, w[:, ::2])),
    "a weight in another dtype": ((OUT, IN), lambda w, x: F.linear(x.half(), w.half())),
    "a scaled weight": ((OUT, IN), lambda w, x: x @ (w * 0.125).t()),
    "@": ((IN, OUT), lambda w, x: x @ w),
    "a weight on the left": ((OUT, IN), lambda w, x: w @ x.t()),
    "a weight that broadcasts": ((IN, OUT), lambda w, x: x.view(5, 1, IN) @ w),
    "an expanded weight": (
        (IN, OUT),
        lambda w, x: torch.bmm(x.view(5, 1, IN), w.expand(5, IN, OUT)),
    ),
    "addmm": ((IN, OUT), lambda w, x: torch.addmm(torch.ones(OUT, dtype=x.dtype), x, w)),
    "baddbmm": (
        (5, IN, OUT),
        lambda w, x: torch.baddbmm(torch.ones(5, 1, OUT, dtype=x.dtype), x.view(5, 1, IN), w),
    ),
    "mv": ((OUT, IN), lambda w, x: torch.mv(w, x[0])),
    "mm with out": ((IN, OUT), lambda w, x: torch.mm(x, w, out=torch.empty(5, OUT, dtype=x.dtype))),
    "einsum": ((OUT, IN), lambda w, x: torch.einsum("bi,oi->bo", x, w)),
    "one row each": ((3, OUT, IN), lambda w, x: torch.bmm(w[EXPERTS], x.unsqueeze(-1))),
    "groups": ((3, IN, OUT), lambda w, x: F.grouped_mm(x, w, offs=ENDS)),
    "groups without a kernel": (
        (3, IN, OUT),
        lambda w, x: torch.ops.transformers.grouped_mm_fallback(x, w, offs=ENDS),
    ),
}
HAS_NO_FLOAT64 = ("groups", "a weight in another dtype")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_multiply_by_a_weight_is_reordered(way, mode):
    shape, compute = WAYS[way]
    x = drawn(5, IN, seed=4)
    with MODES[mode]():
        narrow = Layer(shape, compute)
        plain = narrow(x)
        others = []
        for seed in range(3):
            with reorder(narrow, seed) as found:
                others.append(narrow(x))
            assert list(found) == ["weight"]
        # in float16 sums this short seldom round elsewhere
        if plain.dtype == torch.float32:
            assert any(not torch.equal(plain, other) for other in others)
        unit = torch.finfo(plain.dtype).eps
        # n u |w||x|, both norms near sqrt(n)
        assert all(apart(plain, other) <= 8 * IN * unit for other in others)
        if way not in HAS_NO_FLOAT64:
            wide = Layer(shape, compute).double()
            x = x.double()
            with reorder(wide, 0):
                difference = apart(wide(x), wide.compute(wide.weight, x))
            assert difference <= 8 * IN * 2.0**-52


class Blocked(torch.nn.Parameter):
    """As libraries of quantisation hold their weights."""


class Packed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("qweight", torch.zeros((8, 384), dtype=torch.int32))


def with_head(weight, kind=torch.nn.Parameter):
    """The model's head holds something else."""
    return lambda model: setattr(
        model.lm_head,
        "weight",
        kind(weight(model.lm_head.weight.data), requires_grad=False),
    )


@pytest.mark.spread(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (with_head(lambda weight: weight.to(torch.float8_e4m3fn)), "'lm_head' .* float8_e4m3fn"),
        (lambda model: model.compile(), "the model .* compiled"),
        (
            lambda model: setattr(model, "lm_head", torch.compile(model.lm_head)),
            "'lm_head' .* compiled",
        ),
        (
            lambda model: setattr(model, "lm_head", torch.ao.nn.quantized.dynamic.Linear(48, 384)),
            "'lm_head' .*no weight",
        ),
        (lambda model: setattr(model, "lm_head", Packed()), "'lm_head' .* int32"),
        (with_head(lambda weight: weight, Blocked), "'lm_head' .* Blocked"),
        (lambda model: model.lm_head.to("meta"), "'lm_head' .* offloaded"),
    ],
)
def test_a_model_that_cannot_be_reordered_is_refused_before_it_runs(change, what, llama):
    model = copy.deepcopy(llama.model)
    change(model)
    with pytest.raises(CaptureError, match=what), reorder(model, 0):
        pytest.fail("entered")
    # the twin: as it was, it is taken
    with reorder(llama.model, 0):
        pass


def test_an_operation_that_is_not_known_is_refused():
    @torch.library.custom_op("ulpscope_test::multiply", mutates_args=())
    def multiply(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w.t()

    layer = Layer((OUT, IN), lambda w, x: multiply(x, w))
    with pytest.raises(CaptureError, match="multiply"), torch.inference_mode(), reorder(layer, 0):
        layer(torch.randn(5, IN))
