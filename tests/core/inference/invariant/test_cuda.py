"""`invariant` on CUDA: what its Triton kernels promise (claims_on_cuda.py), what they are compiled to, and who may use
them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from core.errors import CaptureError
from core.inference.invariant import cpu, library, mode, products
from tests.core.inference.conftest import MODELS
from tests.core.inference.invariant.test_invariant import _drawn
from tests.covering import thorough

ROOT = Path(__file__).resolve().parents[4]
CLAIMS = "tests/core/inference/invariant/claims_on_cuda.py"


def _hold(*marks: str, **environment: str) -> None:
    """Triton decides when it is imported whether kernels are compiled or interpreted, so the claims have a process of
    their own.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        CLAIMS,
        "-q",
        "-x",
        "--confcutdir=tests/core/inference",
        "-p",
        "no:cacheprovider",
        *marks,
    ]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout or re.search(r"^\.", done.stdout, re.MULTILINE), done.stdout


@pytest.fixture
def triton() -> Any:
    return pytest.importorskip("triton", reason="Triton is for Linux only")


@pytest.mark.thorough
@pytest.mark.model
def test_the_claims_hold_by_the_interpreter(triton: Any) -> None:
    _hold("-m", "not thorough", TRITON_INTERPRET="1")


OF_MODELS = "(every_path_of_a_model or exact_as_torch)"


@pytest.mark.thorough
def test_the_further_claims_hold_by_the_interpreter(triton: Any) -> None:
    _hold("-m", "thorough", "-k", f"not {OF_MODELS}", TRITON_INTERPRET="1")


@pytest.mark.model
@pytest.mark.thorough
@pytest.mark.timeout(3600)  # an interpreter takes minutes for a model
@pytest.mark.parametrize("name", MODELS)
def test_the_claims_on_a_model_hold_by_the_interpreter(name: str, triton: Any) -> None:
    _hold("-m", "thorough", "-k", f"{OF_MODELS} and {name}", TRITON_INTERPRET="1")


@pytest.mark.gpu
@pytest.mark.model
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_claims_hold_on_cuda() -> None:
    _hold(TRITON_INTERPRET="0")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_kernel_is_compiled_once_whatever_the_rows_and_keys() -> None:
    from core.inference.invariant.cuda import kernels

    def compiled() -> int:
        return sum(
            len(cache[0])
            for one in (kernels.dots, kernels.scores, kernels.chain, kernels.softmax)
            for cache in one.device_caches.values()
        )

    def run(rows: int, keys: int) -> None:
        x, w = _drawn(rows, 64, dtype="bfloat16").cuda(), _drawn(96, 64, dtype="bfloat16").cuda()
        query, key = _drawn(1, 4, rows, 64).cuda(), _drawn(1, 2, keys, 64).cuda()
        products.linear(x, w)
        products.attention(query, key, key)

    run(1, 1)
    before = compiled()
    for rows, keys in ((2, 3), (16, 16), (17, 33), (48, 160)):
        run(rows, keys)
    assert compiled() == before


@pytest.mark.gpu
@pytest.mark.model
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_what_it_keeps_of_the_throughput_on_cuda(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.invariant import measured, one_block

    loaded = one_block("8b", "bfloat16", device="cuda")
    with capsys.disabled():
        for base in ("prefill", "decode"):
            for one in measured(loaded, base, tokens=128, rounds=5, batches=(1, 8)):
                print(
                    f"\n{one.path}, batch {one.batch}: {one.tokens_per_second:,.0f} tokens a second, {one.share:.2f}",
                    end="",
                )
                assert one.tokens_per_second > 0


# What the kernels are compiled to: no GPU is needed for that.

_POINTERS = {
    "x": "T",
    "w": "T",
    "bias": "T",
    "q": "T",
    "k": "T",
    "weight": "T",
    "mask": "fp32",
    "mean_out": "fp32",
    "rstd_out": "fp32",
}
_FLOATS = ("scale", "epsilon")
_NO_SUM = r"\b(?:atom|red)\.|(?<!rcp)\.approx|tf32|(?<![\w.])(?:add|mul|sub)\.(?:ftz\.)?f(?:32|64)|fma\.(?!rn)"
"""Sums shared by programs, functions of unknown accuracy, rounded operands, and what the assembler may join to one
instruction.

(The logarithm in float64 refines a reciprocal.)
"""
KERNELS: dict[str, dict[str, Any]] = {
    "dots": {"HAS_BIAS": True, "w_k": 1},
    "chain": {"IS_CAUSAL": True, "BLOCK_M": 16, "BLOCK_N": 64},
    "scores": {"MASK": 2, "IS_CAUSAL": True, "IS_ALIGNED": True, "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_D": 64},
    "softmax": {"IS_LOG": True, "IS_ATTENTION": False, "ROWS": 4, "BLOCK": 512},
    "row_sums": {"BLOCK": 1024},
    "layer_norm": {"HAS_WEIGHT": True, "HAS_BIAS": True, "BLOCK": 1024},
}


def _assembler(kernel: Any, constants: dict[str, Any], dtype: str, capability: int, **options: Any) -> str:
    """A kernel compiled for a GPU of this compute capability -> PTX, after the assembler has taken it too."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        pointed = {
            **_POINTERS,
            "out": "T" if "bias" in kernel.arg_names or kernel.fn.__name__ == "chain" else "fp32",
        }.get(name)
        return f"*{dtype if pointed == 'T' else pointed}" if pointed else "fp32" if name in _FLOATS else "i32"

    signature = {name: kind(name) for name in kernel.arg_names}
    free = {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
    aligned = [name for name, of in signature.items() if (of.startswith("*") or of == "i32") and name not in free]
    attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert found.asm["cubin"]
    return found.asm["ptx"]


def _tile(dtype: str, columns: int = 4096) -> tuple[dict[str, Any], dict[str, Any]]:
    from core.inference.invariant.cuda.launch import _tile_of

    chosen = _tile_of(torch.float32 if dtype == "fp32" else torch.bfloat16, columns)
    return ({k: v for k, v in chosen.items() if k.isupper()}, {k: v for k, v in chosen.items() if not k.isupper()})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.thorough
@pytest.mark.parametrize(("dtype", "capability"), [("bf16", 80), *thorough([("bf16", 90), ("fp32", 80)])])
def test_compiled_kernels_keep_their_order(triton: Any, cache: None, dtype: str, capability: int) -> None:
    from core.inference.invariant.cuda import kernels, launch

    for name, constants in KERNELS.items():
        if capability == 90 and name not in ("dots", "scores"):
            continue
        own, options = _tile(dtype) if name == "dots" else ({}, {"num_warps": 4})
        ptx = _assembler(getattr(kernels, name), {**constants, **own}, dtype, capability, **options, **launch._PLAIN)
        assert not re.findall(_NO_SUM, ptx), name
        products_by = set(re.findall(r"\b(w?gmma\.mma_async|mma)\.sync[\w.]*(m\d+n\d+k\d+)", ptx))
        if name in ("dots", "scores"):
            assert len(products_by) == (0 if dtype == "fp32" else 1), (name, products_by)
            assert ("fma.rn.f32" in ptx) == (dtype == "fp32")


def test_a_kernel_that_does_not_is_caught(triton: Any, cache: None) -> None:
    from core.inference.invariant.cuda import launch
    from tests.core.inference.invariant import faulty_kernels

    for kernel, found in (
        (faulty_kernels.split, "atom."),
        (faulty_kernels.quick, ".approx"),
        (faulty_kernels.rounded, "tf32"),
    ):
        ptx = _assembler(kernel, {"BLOCK": 64}, "fp32", 80)
        assert any(found in hit for hit in re.findall(_NO_SUM, ptx)), found
    joined, apart = (
        _assembler(faulty_kernels.joined, {"BLOCK": 64}, "fp32", 80, **options)
        for options in ({"enable_fp_fusion": True}, launch._PLAIN)
    )
    assert "fma.rn.f32" in joined
    assert "fma" not in apart
    assert "mul.rn.f32" in apart


def test_nothing_that_grows_with_the_prompt_is_specialised_on(triton: Any) -> None:
    from core.inference.invariant.cuda import kernels

    grows = {"rows", "keys", "queries", "first", "inner"}
    of_the_model = {"columns", "length", "w_k", "w_n", "heads", "group", "width", "scale", "epsilon", *_POINTERS, "out"}
    for name in KERNELS:
        specialised = {
            one.name for one in getattr(kernels, name).params if not one.do_not_specialize and not one.is_constexpr
        }
        assert not specialised & grows, name
        assert specialised <= of_the_model, name
    for name, also in (("chain", {"length", "columns"}), ("softmax", {"length"})):  # there they are keys
        assert also <= {one.name for one in getattr(kernels, name).params if one.do_not_specialize}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_tile_of_a_product_knows_no_rows(triton: Any, dtype: str) -> None:
    from inspect import signature

    from core.inference.invariant.cuda import launch

    assert list(signature(launch._tile_of).parameters) == ["dtype", "columns"]
    assert launch._tile_of(getattr(torch, dtype), 4096)["BLOCK_M"] >= 16


# As operations of torch.

OPERATIONS: dict[str, tuple[Any, ...]] = {
    "product": (_drawn(3, 20), _drawn(7, 20, seed=1).t(), _drawn(7, seed=2), torch.bfloat16),
    "batched": (_drawn(2, 3, 5), _drawn(2, 5, 7, seed=1), torch.float32),
    "attention": (_drawn(1, 4, 3, 8), _drawn(1, 2, 5, 8, seed=1), _drawn(1, 2, 5, 6, seed=2), None, False, 0.35),
    "softmax": (_drawn(3, 20), torch.bfloat16, True),
    "row_sums": (_drawn(3, 20, dtype="bfloat16"),),
    "layer_norm": (_drawn(3, 20), _drawn(20, seed=1), None, 1e-5, torch.bfloat16),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_known_to_torch_with_its_shapes(name: str) -> None:
    operation, arguments = getattr(torch.ops.ulpscope, name).default, OPERATIONS[name]
    torch.library.opcheck(operation, arguments, test_utils=("test_schema", "test_faketensor"))
    found, direct = operation(*arguments), getattr(cpu, name)(*arguments)
    for one, other in zip(*((found, direct) if isinstance(found, tuple) else ((found,), (direct,))), strict=True):
        assert torch.equal(one, other)
    assert getattr(library, name)._backend_fns.keys() >= {"cpu", "cuda"}


# Who may use them.


def test_without_triton_cuda_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode, "find_spec", lambda name: None)
    assert mode._no_kernels_on(torch.device("cpu")) is None
    sentence = mode._no_kernels_on(torch.device("cuda"))
    assert "not installed; pip install triton" in sentence


@pytest.mark.parametrize(("capability", "is_refused"), [((7, 5), True), ((8, 0), False), ((9, 0), False)])
def test_a_gpu_without_products_of_bfloat16_is_refused(
    capability: tuple[int, int], is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mode, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    refusal = mode._no_kernels_on(torch.device("cuda"))
    assert (refusal is not None) is is_refused
    if refusal:
        assert "Tesla T4; choose --device cpu" in refusal


def test_tensors_elsewhere_are_refused() -> None:
    x = torch.ones(2, 2)
    with pytest.raises(CaptureError, match="meta have no kernel"):
        products.product(x, x.to("meta"))
    assert "CPU or on CUDA" in (mode._no_kernels_on(torch.device("mps")) or "")


@pytest.mark.parametrize("name", ["flash", "efficient", "cudnn", "fused_attention_overrideable"])
def test_every_attention_of_torch_on_cuda_is_taken_over(name: str) -> None:
    """Outside inference mode torch has chosen one of these before the mode sees it; their results are tuples of
    different kinds.
    """
    full = name if name.startswith("fused") else f"{name}_attention"
    operation = getattr(torch.ops.aten, f"_scaled_dot_product_{full}").default
    query = _drawn(1, 2, 3, 8)
    mask = _drawn(1, 2, 3, 3, seed=3)
    given: dict[str, Any] = {"attn_bias": mask, "compute_log_sumexp": False, "scale": 0.5}
    named = {one.name for one in operation._schema.arguments}
    with torch.no_grad(), mode.invariant(torch.nn.Linear(1, 1)):
        found = operation(query, query, query, **{key: value for key, value in given.items() if key in named})
    assert len(found) == len(operation._schema.returns)
    assert torch.equal(
        found[0], products.attention(query, query, query, mask if "attn_bias" in named else None, scale=0.5)
    )
