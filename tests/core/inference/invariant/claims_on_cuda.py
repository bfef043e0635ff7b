"""What the Triton kernels promise: bits that depend on no other row, chunk, cache or padding, and sums as close as the
CPU's.

Not collected by itself: test_cuda.py runs it with TRITON_INTERPRET=1, on CPU tensors by triton's interpreter, and on
CUDA where there is one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from core.inference.invariant import invariant, library, products
from core.inference.invariant.cuda import launch
from core.inference.models.model import LoadedModel, load_model
from tests.core.inference.conftest import MODELS
from tests.core.inference.sameness import exact_logits, logits_of, tokens
from tests.covering import few, thorough

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
THOROUGH = pytest.mark.thorough
DTYPES = ["float32", "bfloat16", pytest.param("float16", marks=THOROUGH)]
ROWS = (1, 2, 3, 5, 16, 17, 33)
Compute = Callable[[torch.Tensor], torch.Tensor]


def _product_in_order(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    """What the interpreter makes of tl.dot: one term after another in float32, for each element alike.

    Its own takes bfloat16's bits for whole numbers (triton 3.7 and 3.9), and leaves the order to numpy's library.
    """
    left, right = (_widened(one.data, one.dtype.scalar) for one in (a, b))
    terms = left.T[:, :, None] * right[:, None, :]  # of 16 bits: exact
    return type(d)(np.add.reduce(np.concatenate([d.data[None], terms]), axis=0), d.dtype.scalar)


def _widened(values: np.ndarray, dtype: Any) -> np.ndarray:
    return values.view(ml_dtypes.bfloat16).astype(np.float32) if dtype.is_bf16() else values.astype(np.float32)


def _rounding(own: Callable[..., Any]) -> Callable[..., Any]:
    """What the interpreter makes of a change of dtype: to the nearest bfloat16, as CUDA; its own cuts off (triton 3.7
    and 3.9).
    """

    def cast(self: Any, values: Any, to: Any) -> Any:
        if to.scalar.is_bf16() and values.dtype.scalar.is_fp32():
            return type(values)(values.data.astype(ml_dtypes.bfloat16).view(np.uint16), to.scalar)
        if to.scalar.is_fp32() and values.dtype.scalar.is_bf16():
            return type(values)(_widened(values.data, values.dtype.scalar), to.scalar)
        return own(self, values, to)

    return cast


def _once_for_each_module(patch: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter exchanges triton's language at every call of a function, 2 ms each; this process needs the real
    one never again.
    """
    done: set[int] = set()

    def patched(function: Any) -> Any:
        if id(function.__globals__) not in done:
            done.add(id(function.__globals__))
            patch(function)
        return SimpleNamespace(restore=lambda: None)

    return patched


@pytest.fixture(scope="session", autouse=True)
def interpreted() -> Iterator[None]:
    """Under the interpreter the operations on a CPU are Triton's, by the same way as on CUDA."""
    if not IS_INTERPRETED:
        yield
        return
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpreterBuilder

    interpreter._patch_lang = _once_for_each_module(interpreter._patch_lang)
    InterpreterBuilder.create_dot = _product_in_order
    InterpreterBuilder.cast_impl = _rounding(InterpreterBuilder.cast_impl)
    launch._SOFTMAX_TILE = (64, 64)  # a program costs 50 ms here
    for name in ("product", "batched", "attention", "softmax", "row_sums", "layer_norm"):
        getattr(library, name).register_kernel("cpu")(getattr(launch, name))
    products._COMPUTED_BY["cpu"] = library
    yield


def _drawn(*shape: int, dtype: str = "float32", seed: int = 0) -> torch.Tensor:
    """Values over 12 powers of two, so that another order of a sum shows."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.exp2(torch.randint(-6, 6, shape, generator=generator).float())
    return (torch.randn(shape, generator=generator) * scale).to(getattr(torch, dtype)).to(DEVICE)


def _depends_on_others(compute: Compute, x: torch.Tensor) -> bool:
    """Do the bits of a row change with how many rows there are, with its place among them, or with what stands in the
    others?
    """
    some = [row for row in (0, 1, 4, 15, 16, 32) if row < len(x)]
    alone = torch.cat([compute(x[row : row + 1]) for row in some])
    others = torch.cat([x[:3], _drawn(*x.shape, seed=9).to(x.dtype)[3:]])

    def differ(found: torch.Tensor, first: int = 0) -> bool:
        rows = [(row - first, at) for at, row in enumerate(some) if first <= row < first + len(found)]
        return not all(torch.equal(found[row], alone[at]) for row, at in rows)

    return (
        any(differ(compute(x[:rows])) for rows in ROWS if rows <= len(x))
        or differ(compute(x[5:]), 5)
        or differ(compute(others)[:3])
    )


# Products with a weight.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("length", "columns", "lies"), [(1, 5, "by row"), (100, 40, "by row"), (100, 33, "by column")])
def test_a_row_of_a_product_does_not_depend_on_the_others(dtype: str, length: int, columns: int, lies: str) -> None:
    x = _drawn(33, length, dtype=dtype)
    w = (
        _drawn(columns, length, dtype=dtype, seed=1).t()
        if lies == "by row"
        else _drawn(length, columns, dtype=dtype, seed=1)
    )
    assert not _depends_on_others(lambda x: products.product(x, w), x)
    found = products.product(x, w).double()
    exact = x.double() @ w.double()
    # Higham, Accuracy and Stability, 3.5; tensor cores truncate where they add (Fasi et al. 2021), which is 2 units
    # where rounding is 1.
    unit = 2.0**-24 if dtype == "float32" or IS_INTERPRETED else 2.0**-22
    bound = length * unit * (x.double().abs() @ w.double().abs())
    assert bool(((found - exact).abs() <= bound + 1e-30).all())


def test_a_product_whose_terms_are_split_where_rows_are_few_is_caught() -> None:
    """What split-K does, or a tile chosen by the number of rows."""
    x, w = _drawn(33, 160, dtype="bfloat16"), _drawn(20, 160, dtype="bfloat16", seed=1).t()

    def split(x: torch.Tensor) -> torch.Tensor:
        if len(x) >= 16:
            return products.product(x, w)
        return products.product(x[:, :80], w[:80]) + products.product(x[:, 80:], w[80:])

    assert _depends_on_others(split, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_is_rounded_once_after_its_bias(dtype: str) -> None:
    x, w, bias = _drawn(5, 100, dtype=dtype), _drawn(40, 100, dtype=dtype, seed=1), _drawn(40, dtype=dtype, seed=2)
    found = products.linear(x, w, bias)
    assert found.dtype is x.dtype
    assert torch.equal(found, (products.product(x, w.t()) + bias.float()).to(x.dtype))


def test_a_view_at_an_odd_address_gives_the_same_bits() -> None:
    x, w = _drawn(4, 64, dtype="bfloat16"), _drawn(40, 64, dtype="bfloat16", seed=1).t()
    shifted = torch.cat([x.new_zeros(3), x.flatten()])[3:].view(4, 64)
    spaced = torch.cat([x, x], dim=1)[:, :64]
    plain = products.product(x, w)
    assert torch.equal(products.product(shifted, w), plain)
    assert torch.equal(products.product(spaced, w), plain)


# Products of two activations.


@pytest.mark.parametrize("dtype", DTYPES)
def test_terms_of_zero_change_no_bit_of_a_product_of_activations_wherever_they_stand(dtype: str) -> None:
    x, w = _drawn(2, 5, 20, dtype=dtype), _drawn(2, 20, 70, dtype=dtype, seed=1)
    plain = products.batched(x, w)
    spread = torch.tensor([n for n in range(40) if n % 3 != 1][:20], device=DEVICE)
    wide, deep = x.new_zeros(2, 5, 40), torch.full((2, 40, 70), 3.0, dtype=w.dtype, device=DEVICE)
    wide[:, :, spread], deep[:, spread] = x, w
    assert torch.equal(products.batched(wide, deep), plain)
    assert torch.equal(products.batched(x, w.transpose(1, 2).contiguous().transpose(1, 2)), plain)
    assert torch.equal(products.batched(x[1:, 3:], w[1:]), plain[1:, 3:])
    bound = 20 * 2.0**-24 * (x.double().abs() @ w.double().abs())
    assert bool(((plain.double() - x.double() @ w.double()).abs() <= bound).all())


# Attention.


def _attention_parts(dtype: str, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tuple(_drawn(2, heads, tokens, 24, dtype=dtype, seed=heads + n) for n, heads in ((0, 4), (1, 2), (2, 2)))


Attention = Callable[..., torch.Tensor]


def _depends_on_the_cache(attention: Attention, dtype: str, mask: str = "boolean", tokens: int = 9) -> list[str]:
    """Which of decoding, chunks, unused slots, left padding and keys that nobody may see, give other bits than one
    causal forward?
    """
    query, key, value = _attention_parts(dtype, tokens)
    plain = attention(query, key, value, is_causal=True)

    def given(allowed: torch.Tensor) -> torch.Tensor:
        return allowed if mask == "boolean" else torch.where(allowed, 0.0, torch.finfo(key.dtype).min).to(key.dtype)

    def placed(places: torch.Tensor, slots: int) -> torch.Tensor:
        """The same keys at other places among `slots`, what nobody may see between them."""
        keys, values = torch.full((2, 2, slots, 24), 3.0), torch.full((2, 2, slots, 24), 1e4)
        keys, values = keys.to(key), values.to(key)
        keys[:, :, places], values[:, :, places] = key, value
        allowed = torch.zeros(tokens, slots, dtype=torch.bool, device=DEVICE)
        allowed[:, places] = torch.ones(tokens, tokens, dtype=torch.bool, device=DEVICE).tril()
        return attention(query, keys, values, given(allowed))

    causal = torch.ones(tokens, tokens, dtype=torch.bool, device=DEVICE).tril()
    by_token = [attention(query[:, :, n : n + 1], key[:, :, : n + 1], value[:, :, : n + 1]) for n in range(tokens)]
    by_chunk = [
        attention(query[:, :, n : n + 4], key[:, :, : n + 4], value[:, :, : n + 4], given(causal[n : n + 4, : n + 4]))
        for n in range(0, tokens, 4)
    ]
    everywhere = torch.arange(tokens, device=DEVICE)
    found = {
        "decoding": torch.cat(by_token, dim=2),
        "chunks": torch.cat(by_chunk, dim=2),
        "unused slots": placed(everywhere, 66),
        "left padding": placed(everywhere + 5, tokens + 5),
        "keys of others between": placed(
            torch.tensor([n for n in range(40) if n % 3 != 1][:tokens], device=DEVICE), 40
        ),
        "another row alone": torch.cat(
            [attention(*(one[n : n + 1] for one in (query, key, value)), is_causal=True) for n in range(2)]
        ),
    }
    return [name for name, bits in found.items() if not torch.equal(bits, plain)]


@pytest.mark.parametrize(
    ("dtype", "mask", "count"),
    [
        ("float32", "boolean", 5),
        *thorough([("float32", "boolean", 9), ("bfloat16", "added", 9), ("float16", "boolean", 9)]),
    ],
)
def test_attention_depends_on_no_chunk_cache_or_padding(dtype: str, mask: str, count: int) -> None:
    assert _depends_on_the_cache(products.attention, dtype, mask, count) == []


def test_attention_that_depends_on_them_is_caught() -> None:
    def in_tiles(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any = None, *, is_causal: bool = False
    ) -> torch.Tensor:
        """Fault: tiles of 4 keys with a running largest score, as flash attention has them."""
        queries, keys = query.shape[2], key.shape[2]
        key, value = (one.float().repeat_interleave(2, dim=1) for one in (key, value))
        allowed = torch.ones(queries, keys, dtype=torch.bool, device=DEVICE).tril() if is_causal else mask
        largest = torch.full((*query.shape[:3], 1), -1e30, device=DEVICE)
        total, out = torch.zeros_like(largest), torch.zeros_like(query, dtype=torch.float32)
        for begin in range(0, keys, 4):
            tile = slice(begin, begin + 4)
            score = query.float() @ key[:, :, tile].mT * 24**-0.5
            score = score if allowed is None else score.masked_fill(~allowed[:, tile], -torch.inf)
            most = torch.maximum(largest, score.amax(-1, keepdim=True))
            weight, scale = torch.exp(score - most), torch.exp(largest - most)
            total, out, largest = (
                total * scale + weight.sum(-1, keepdim=True),
                out * scale + weight @ value[:, :, tile],
                most,
            )
        return (out / total).to(query.dtype)

    for count in (5, 9):
        found = _depends_on_the_cache(in_tiles, "float32", tokens=count)
        assert {"left padding", "keys of others between"} <= set(found)


@pytest.mark.thorough
def test_attention_whose_keys_are_split_is_caught() -> None:
    def split(query: torch.Tensor, key: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        """Fault: keys from the last to the first once there are many and queries few, as where their sum is split."""
        if query.shape[2] > 1 or key.shape[2] < 6:
            return products.attention(query, key, *rest, **named)
        return products.attention(query, key.flip(2), rest[0].flip(2))

    assert "decoding" in _depends_on_the_cache(split, "float32")


@pytest.mark.parametrize("dtype", few(["float32", "bfloat16", "float16"], "float32"))
def test_attention_is_exact_within_rounding(dtype: str) -> None:
    query, key, value = _attention_parts(dtype, 21)
    exact = torch.nn.functional.scaled_dot_product_attention(
        query.double(), key.double(), value.double(), is_causal=True, enable_gqa=True
    )
    rtol, atol = (1e-4, 1e-3) if dtype == "float32" else (1e-2, 0.3)  # as for the CPU's
    torch.testing.assert_close(
        products.attention(query, key, value, is_causal=True).double(), exact, rtol=rtol, atol=atol
    )


@pytest.mark.thorough
def test_queries_are_taken_in_shares_that_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = _attention_parts("float32", 21)
    mask = torch.ones(21, 21, dtype=torch.bool, device=DEVICE).tril()
    plain = products.attention(query, key, value, is_causal=True)
    monkeypatch.setattr(launch, "_MOST_SCORES", 2 * 4 * 21 * 8)
    assert torch.equal(products.attention(query, key, value, is_causal=True), plain)
    assert torch.equal(products.attention(query, key, value, mask), plain)


def test_a_query_that_may_see_nothing_gets_zeros_and_nan_stays() -> None:
    x = _drawn(1, 1, 3, 8)
    found = products.attention(x, x, x, torch.zeros(3, 3, dtype=torch.bool, device=DEVICE))
    assert torch.equal(found, torch.zeros_like(x))
    broken = x.clone()
    broken[0, 0, 1] = torch.nan
    assert products.attention(x, broken, x).isnan().all()


# Rows.

BY_ROW: dict[str, Compute] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log-softmax": lambda x: torch.log_softmax(x, -1),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:], *_affine(x)),
    "rms norm": lambda x: torch.nn.functional.rms_norm(x, x.shape[-1:], _affine(x)[0], 1e-6),
    "mean": lambda x: x.mean(-1, keepdim=True),
    "sum over the first axis": lambda x: x.T.contiguous().sum(0),
}


def _affine(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _drawn(x.shape[-1], seed=1).to(x.dtype), _drawn(x.shape[-1], seed=2).to(x.dtype)


@pytest.mark.parametrize(
    ("name", "dtype", "rows"),
    [
        *((name, "float32", 6) for name in ("softmax", "layer norm", "rms norm")),
        *thorough((name, dtype, 17) for name in BY_ROW for dtype in ("float32", "bfloat16")),
    ],
)
def test_norms_and_softmax_know_no_other_row(name: str, dtype: str, rows: int) -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        with invariant(torch.nn.Linear(1, 1, device=DEVICE)), torch.inference_mode():
            return BY_ROW[name](x)

    x = _drawn(rows, 200 if "softmax" in name else 1100, dtype=dtype)  # more than one block of the kernel's
    assert not _depends_on_others(compute, x)
    is_narrow = dtype == "bfloat16"
    torch.testing.assert_close(
        compute(x).double(), BY_ROW[name](x.double()), rtol=1e-2 if is_narrow else 2e-6, atol=0.5 if is_narrow else 2e-4
    )


def _depends_on_place(softmax: Compute) -> bool:
    """Of what stands in a row, do the masked elements change the others' bits?"""
    x = _drawn(3, 700)
    spread = torch.tensor([n for n in range(1200) if n % 3 != 1][:700], device=DEVICE)
    wide = x.new_full((3, 1200), -torch.inf)
    wide[:, spread] = x
    return not torch.equal(softmax(wide)[:, spread], softmax(x))


@pytest.mark.parametrize("is_log", few([False, True], False))
def test_masked_elements_change_no_bit_of_softmax_wherever_they_stand(
    is_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        return products.softmax(x / 64, -1, torch.float32, is_log=is_log)

    assert not _depends_on_place(compute)
    x = _drawn(5, 700)
    plain = compute(x)
    for tile in ((4, 512), (1, 1024)):  # the first is CUDA's
        monkeypatch.setattr(launch, "_SOFTMAX_TILE", tile)
        assert torch.equal(compute(x), plain)


def test_a_softmax_with_a_sum_in_float32_is_caught() -> None:
    def summed(x: torch.Tensor) -> torch.Tensor:
        x = x / 64  # more than one weight that counts
        weights = torch.exp(x - x.amax(-1, keepdim=True))
        return weights / products.sums_over(weights, [1], keepdim=True)

    assert _depends_on_place(summed)


def test_the_exponential_is_within_two_units_of_the_last_place() -> None:
    x = -torch.rand(2_000, generator=torch.Generator().manual_seed(0)) * 87
    x[:3] = torch.tensor([0.0, -87.0, -1e-9])
    x = x.to(DEVICE)
    columns = torch.stack([torch.zeros_like(x), x], dim=1)  # softmax of (0, x) is 1 : e^x
    exact = torch.softmax(columns.double(), -1)
    # One long row does the same with one program: the largest is 0, the sum divides all of them.
    row = products.softmax(x[None], -1, torch.float32, is_log=False).double()[0]
    shares = torch.exp(x.double()) / torch.exp(x.double()).sum()
    unit = torch.from_numpy(np.spacing(shares.float().cpu().numpy())).double().to(DEVICE)
    assert float(((row - shares).abs() / unit).max()) <= 3  # 2 of the exponential, 1 of sum and division
    few = products.softmax(columns[:40], -1, torch.float32, is_log=False).double()
    assert torch.allclose(few, exact[:40], rtol=4e-7, atol=0)


@pytest.mark.parametrize("is_log", [False, True])
def test_softmax_of_what_is_no_number_is_torchs(is_log: bool) -> None:
    x = torch.zeros(5, 4, device=DEVICE)
    x[0, 1], x[1, 2], x[2, :], x[3, 0], x[4, :] = torch.nan, torch.inf, -torch.inf, -torch.inf, torch.nan
    reference = torch.log_softmax(x, -1) if is_log else torch.softmax(x, -1)
    torch.testing.assert_close(products.softmax(x, -1, torch.float32, is_log=is_log), reference, equal_nan=True)


# Elementwise functions of torch's own.

FUNCTIONS: dict[str, Compute] = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "sigmoid": torch.sigmoid,
    "softplus": torch.nn.functional.softplus,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "cos": torch.cos,
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 0.01),
    "square": lambda x: x.pow(2),
    "product": lambda x: x * x.flip(0),
}


@pytest.mark.skipif(IS_INTERPRETED, reason="torch's own kernels for CUDA")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_element_does_not_depend_on_its_place(name: str, dtype: str) -> None:
    x = (_drawn(69_952, dtype=dtype) / 16).contiguous()

    def compute(x: torch.Tensor) -> torch.Tensor:
        with invariant(torch.nn.Linear(1, 1, device=DEVICE)), torch.inference_mode():
            return FUNCTIONS[name](x)

    whole = compute(x)
    if name != "product":
        assert torch.equal(torch.cat([compute(part.clone()) for part in x.split(61)]), whole)
        assert torch.equal(compute(x[3:]), whole[3:])  # at an address where no vector starts
    assert torch.equal(compute(x.view(-1, 2).t())[0], compute(x.view(-1, 2).t().contiguous())[0])


# Models.

PATHS = [
    "decode",
    "static",
    "chunked:5",
    "decode+batch:2+row:1+neighbours:random",
    "decode+pad:left:5",
    "prefill+pad:right:3",
]
FEW = ["decode", "prefill+batch:3", "decode+pad:left:5"]


def _differing(loaded: LoadedModel, paths: list[str], modifiers: str, count: int) -> list[str]:
    ids = tokens(loaded)[:count]
    plain = logits_of(f"prefill{modifiers}", loaded, ids)
    return [path for path in paths if not torch.equal(logits_of(f"{path}{modifiers}", loaded, ids), plain)]


def _loaded(folders: dict[str, Path], name: str, dtype: str) -> LoadedModel:
    return load_model(str(folders[name]), dtype=dtype, device=DEVICE)


def _one_layer(folders: dict[str, Path], dtype: str) -> LoadedModel:
    """The interpreter takes a second a forward."""
    loaded = _loaded(folders, "llama", dtype)
    model: Any = loaded.model
    model.model.layers, model.config.num_hidden_layers = model.model.layers[:1], 1
    return loaded


@pytest.mark.parametrize(
    ("dtype", "paths", "count"), [("float32", FEW[:1], 2), *thorough([("bfloat16", FEW[:1], 4), ("float32", FEW, 4)])]
)
def test_paths_of_a_model_give_the_bits_of_prefill(
    dtype: str, paths: list[str], count: int, model_folders: dict[str, Path]
) -> None:
    assert _differing(_one_layer(model_folders, dtype), paths, "+invariant", count) == []


def test_a_model_whose_products_depend_on_rows_is_caught(
    model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = _one_layer(model_folders, "float32")
    own = products.linear

    def split(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if x.numel() // x.shape[-1] >= 2 or bias is not None:
            return own(x, weight, bias)
        return own(x[..., ::2], weight[:, ::2]) + own(x[..., 1::2], weight[:, 1::2])

    monkeypatch.setattr(products, "linear", split)
    assert _differing(loaded, ["decode"], "+invariant", 2) == ["decode"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float32") for name in MODELS), *((name, "bfloat16") for name in ("gpt2", "gemma2", "mixtral"))],
)
def test_every_path_of_a_model_gives_the_bits_of_prefill(name: str, dtype: str, model_folders: dict[str, Path]) -> None:
    loaded = _loaded(model_folders, name, dtype)
    assert _differing(loaded, PATHS, "+invariant", 11) == []  # beyond the sliding windows
    assert _differing(loaded, ["decode", "decode+pad:left:5"], "+attn:eager+invariant", 11) == []


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_as_exact_as_torch(name: str, dtype: str, model_folders: dict[str, Path]) -> None:
    """Root mean square to a float64 forward of the same weights: at most half as much again."""
    loaded = _loaded(model_folders, name, dtype)
    exact = exact_logits(load_model(str(model_folders[name]), dtype=dtype, device="cpu"))
    plain, fixed = (
        float((logits_of(f"prefill{way}", loaded).cpu().double() - exact).square().mean().sqrt())
        for way in ("", "+invariant")
    )
    assert fixed <= 1.5 * plain
