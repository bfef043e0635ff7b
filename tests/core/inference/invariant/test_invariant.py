"""Under `invariant` every path gives the same bits; without it they do not, and a fault under it is
seen.
"""

import itertools

import pytest
import torch
from transformers import DynamicCache

from core.errors import CaptureError
from core.inference.invariant import products
from core.inference.invariant.operations import Invariant, invariant_forwards, invariant_refusal
from core.inference.paths.paths import parse_path
from tests.core.inference.conftest import MODELS
from tests.core.inference.sameness import exact_logits, logits_of, on_cpu, tokens
from tests.covering import covering, few

DTYPES = ["float32", "bfloat16"]
PATHS = [
    "decode",
    "static",
    "chunked:5",
    "reuse:7",
    "reuse:31",
    "blocks:8",
    "prefill+batch:4",
    "decode+batch:3+row:2",
    "decode+batch:8+row:5+neighbours:random",
    "chunked:7+batch:3+neighbours:same",
    "decode+pad:left:5",
    "prefill+pad:right:3",
    "decode+batch:3+threads:2",
]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def _drawn(*shape, dtype="float32", seed=0):
    """Values over 12 powers of two, so that another order of a sum shows."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.exp2(torch.randint(-6, 6, shape, generator=generator).float())
    return (torch.randn(shape, generator=generator) * scale).to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", [*DTYPES, "float16"])
@pytest.mark.parametrize(("length", "columns"), [(1, 5), (31, 7), (100, 130), (2100, 33)])
@pytest.mark.parametrize("lies", ["by row", "by column"])
def test_a_row_of_a_product_does_not_depend_on_the_others(dtype, length, columns, lies):
    x, by_row = _drawn(17, length, dtype=dtype), _drawn(columns, length, dtype=dtype, seed=1).t()
    w = by_row if lies == "by row" else by_row.contiguous()
    alone = torch.cat([products.product(x[row : row + 1], w) for row in range(len(x))])
    for rows in (1, 2, 3, 4, 5, 6, 7, 11, 16, 17):
        assert torch.equal(products.product(x[:rows], w), alone[:rows])
    assert torch.equal(products.product(x[5:], w), alone[5:])
    exact = x.double() @ w.double()
    # Higham, Accuracy and Stability, 3.5
    bound = length * 2.0**-24 * (x.double().abs() @ w.double().abs())
    assert bool(((alone.double() - exact).abs() <= bound + 1e-30).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["boolean", "added"])
def test_masked_keys_change_no_bit_of_attention_wherever_they_stand(dtype, mask):
    query, key, value = (
        _drawn(2, heads, 37, 24, dtype=dtype, seed=heads + n)
        for n, heads in ((0, 4), (1, 2), (2, 2))
    )
    plain = products.attention(query, key, value, is_causal=True)
    spread = torch.tensor([n for n in range(60) if n % 3 != 1][:37])  # every third key is masked
    keys, values = (
        torch.full((2, 2, 60, 24), 3.0, dtype=key.dtype),
        torch.full((2, 2, 60, 24), 1e4, dtype=key.dtype),
    )
    keys[:, :, spread], values[:, :, spread] = key, value
    allowed = torch.zeros(37, 60, dtype=torch.bool)
    allowed[:, spread] = torch.ones(37, 37, dtype=torch.bool).tril()
    given = (
        allowed
        if mask == "boolean"
        else torch.where(allowed, 0.0, torch.finfo(key.dtype).min).to(key.dtype)
    )
    assert torch.equal(products.attention(query, keys, values, given), plain)
    by_token = [
        products.attention(query[:, :, n : n + 1], key[:, :, : n + 1], value[:, :, : n + 1])
        for n in range(37)
    ]
    assert torch.equal(torch.cat(by_token, dim=2), plain)
    exact = torch.nn.functional.scaled_dot_product_attention(
        query.double(),
        key.double(),
        value.double(),
        is_causal=True,
        enable_gqa=True,
    )
    rtol, atol = (1e-4, 1e-3) if dtype == "float32" else (1e-2, 0.3)
    torch.testing.assert_close(plain.double(), exact, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_and_softmax_are_torchs_within_rounding_and_know_no_other_row(dtype):
    x, weight, bias = (
        _drawn(19, 100, dtype=dtype),
        _drawn(100, dtype=dtype, seed=1),
        _drawn(100, dtype=dtype, seed=2),
    )
    functional = torch.nn.functional
    computed = {
        "softmax": lambda x: torch.softmax(x, -1),
        "log-softmax": lambda x: torch.log_softmax(x, -1),
        "layer norm": lambda x: functional.layer_norm(
            x,
            (100,),
            weight.to(x.dtype),
            bias.to(x.dtype),
        ),
        "rms norm": lambda x: functional.rms_norm(x, (100,), weight.to(x.dtype), 1e-6),
        "mean": lambda x: x.mean(-1, keepdim=True),
        "sum over the first axis": lambda x: x.T.contiguous().sum(0),
    }
    for name, compute in computed.items():
        with Invariant(), torch.inference_mode():
            together = compute(x)
            alone = torch.cat([compute(x[row : row + 1]) for row in range(len(x))])
        assert torch.equal(together, alone), name
        rtol, atol = (2e-6, 2e-4) if dtype == "float32" else (1e-2, 0.5)
        torch.testing.assert_close(together.double(), compute(x.double()), rtol=rtol, atol=atol)


# Elementwise functions: torch's own loops have another branch for what fills no pair of vectors.

FUNCTIONS = {
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
    "softplus": torch.nn.functional.softplus,
    "gelu": torch.nn.functional.gelu,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "cos": torch.cos,
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 0.01),
}


@pytest.mark.spread(3)
@pytest.mark.parametrize(("name", "dtype"), covering(list(FUNCTIONS), [*DTYPES, "float16"]))
def test_an_element_does_not_depend_on_its_place(name, dtype, threads):
    """Nor on how many others stand around it, or on the number of threads."""
    x, compute = (_drawn(70_001, dtype=dtype) / 16).contiguous(), FUNCTIONS[name]
    with Invariant(), torch.inference_mode():
        threads(1)
        whole = compute(x[:69_952])  # a multiple of every vector
        pieces = torch.cat([compute(part.clone()) for part in x[:69_952].split(61)])
        threads(3)
        shared = compute(x[:40_001].clone())
    assert torch.equal(pieces, whole)
    assert torch.equal(shared, whole[:40_001])


def _differing(loaded, paths, modifiers):
    """The paths that do not give the bits of prefill."""
    plain = logits_of(f"prefill{modifiers}", loaded)
    return [
        path for path in paths if not torch.equal(logits_of(f"{path}{modifiers}", loaded), plain)
    ]


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "dtype"),
    few(itertools.product(MODELS, DTYPES), ("mixtral", "bfloat16"), ("mistral-window", "float32")),
)
def test_every_path_gives_the_bits_of_prefill(name, dtype, model_of):
    loaded = model_of(name, dtype)
    assert _differing(loaded, PATHS, "+invariant") == []
    assert (
        _differing(
            loaded,
            ["decode", "prefill+batch:4", "decode+pad:left:5"],
            "+attn:eager+invariant",
        )
        == []
    )


@pytest.mark.spread(3)
@pytest.mark.model
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_as_exact_as_torch(name, dtype, model_of):
    """Root mean square to a float64 forward of the same weights: at most half as much again."""
    loaded = model_of(name, dtype)
    exact = exact_logits(loaded)
    plain, fixed = (
        float((logits_of(f"prefill{way}", loaded).double() - exact).square().mean().sqrt())
        for way in ("", "+invariant")
    )
    assert fixed <= 1.5 * plain


@pytest.mark.model
@pytest.mark.parametrize("dtype", few(DTYPES, "bfloat16"))
def test_it_holds_at_the_width_of_a_trained_model(dtype, shipped_model, threads):
    """Wide enough for products to be shared by threads."""
    if not (shipped_model / "config.json").is_file():
        pytest.skip("sample_runs/model is not built")
    loaded = on_cpu(shipped_model, dtype)
    threads(2)
    assert (
        _differing(loaded, ["decode", "prefill+batch:3", "prefill+threads:1"], "+invariant") == []
    )


@pytest.mark.model
def test_a_sum_that_depends_on_the_batch_is_caught(llama, monkeypatch):
    monkeypatch.setattr(products, "linear", torch.nn.functional.linear)
    assert _differing(llama, ["decode", "prefill+batch:4"], "+invariant")


@pytest.mark.model
def test_a_wrong_cache_still_shows(llama):
    """What makes the group of the verdict mean something: a fault is no matter of order."""
    ids = torch.tensor([tokens(llama)])
    plain = logits_of("prefill+invariant", llama)
    for scale, is_same in ((1.0, True), (1.01, False)):
        cache = DynamicCache(config=llama.model.config)
        with torch.inference_mode(), Invariant():
            llama.model(ids[:, :-1], past_key_values=cache)
            cache.layers[0].values[0, 0, 3] *= scale
            last = llama.model(ids[:, -1:], past_key_values=cache).logits[0, -1]
        assert torch.equal(last, plain[-1]) is is_same


@pytest.mark.model
def test_nothing_of_it_is_left(llama):
    before = logits_of("decode", llama)
    assert not torch.equal(before, logits_of("prefill", llama))  # without it they differ
    assert not torch.equal(before, logits_of("decode+invariant", llama))
    with pytest.raises(RuntimeError, match="planted"), invariant_forwards(llama.model):
        raise RuntimeError("planted")
    with (
        pytest.raises(ValueError, match="exactly one of input_ids"),
        invariant_forwards(llama.model),
    ):
        llama.model(nothing=1)
    assert not llama.model._forward_hooks
    assert not llama.model._forward_pre_hooks
    assert torch.equal(logits_of("decode", llama), before)


@pytest.mark.parametrize(
    ("compute", "operation"),
    [
        (lambda x: torch.cumsum(x, -1), "aten.cumsum.default"),
        (lambda x: torch.nn.functional.conv1d(x[:, None], x[:1, None]), "aten.conv.*"),
        (lambda x: torch.cdist(x, x), "aten._cdist_forward.default"),
        (lambda x: torch.add(x, x, alpha=3), "aten.add.Tensor"),
        (lambda x: x.index_add_(0, torch.tensor([1, 1]), x[:2].clone()), "aten.index_add_.default"),
        (
            lambda x: x.index_put_((torch.tensor([1, 1]),), x[:2].clone(), accumulate=True),
            "aten.index_put_.default",
        ),
        (lambda x: x.double() @ x.double().T, "product of float64 by float64"),
    ],
)
def test_an_operation_whose_order_is_not_known_is_refused(compute, operation):
    with torch.inference_mode(), Invariant(), pytest.raises(CaptureError, match=operation):
        compute(_drawn(4, 8))


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "path", "sentence"),
    [
        (
            "lfm2",
            "prefill+invariant",
            "'model.layers.0.conv.conv' (Conv1d) sums over neighboring tokens",
        ),
        (
            "mamba",
            "prefill+invariant",
            "'backbone.layers.0.mixer.conv1d' (Conv1d) sums over neighboring tokens",
        ),
        (
            "llama",
            "prefill+sdpa:math+invariant",
            "invariant and sdpa both replace kernels; leave one out",
        ),
        (
            "llama",
            "prefill+invariant+compile",
            "invariant and compile both replace kernels; leave one out",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_first(name, path, sentence, model_of):
    refusal = parse_path(path).refusal(model_of(name))
    assert refusal.startswith(sentence)


def test_another_device_and_a_quantised_weight_are_refused(monkeypatch):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    model[0].weight = torch.nn.Parameter(model[0].weight.data.to(torch.int8), requires_grad=False)
    assert "'0.weight' is int8" in str(invariant_refusal(model))
    monkeypatch.setattr(torch.nn.Parameter, "device", torch.device("cuda:0"), raising=False)
    assert "the model is on cuda:0" in str(invariant_refusal(torch.nn.Linear(1, 1)))
