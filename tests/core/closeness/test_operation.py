"""Nine operations: sound kernels are never accused, faults are, in outputs and in gradients."""

import io
import re
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.closeness.operations import OPERATIONS, cast, kernel
from core.closeness.operation import judge_op
from core.errors import UsageError

each_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def inputs_of(operation, dtype):
    generator = torch.Generator().manual_seed(3)
    return cast(operation.inputs(generator), dtype)


@each_dtype
@each_operation
def test_sound_kernels_are_rounding(operation, dtype):
    inputs = inputs_of(operation, dtype)
    for function in (operation.reference, *operation.sound.values()):
        found = judge_op(kernel(function), operation.reference, *inputs)
        assert found.verdict in ("rounding", "identical")


@each_dtype
@pytest.mark.parametrize(
    ("name", "fault"),
    [(name, fault) for name, operation in OPERATIONS.items() for fault in operation.faults],
)
def test_faults_are_suspected(name, fault, dtype):
    operation = OPERATIONS[name]
    function = kernel(operation.faults[fault])
    found = judge_op(function, operation.reference, *inputs_of(operation, dtype))
    assert found.verdict == "bug suspected"


class _Sigmoid(torch.autograd.Function):
    """A sigmoid with its own backward, scaled if faulty."""

    @staticmethod
    def forward(ctx, x, scale):
        y = torch.sigmoid(x)
        ctx.save_for_backward(y)
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        wide = y.float()
        slope = wide * (1 - wide)
        of_input = gradient.float() * slope * ctx.scale
        return of_input.to(y.dtype), None


@pytest.mark.parametrize(
    ("scale", "verdict"),
    [
        (1.0, "rounding"),
        (1.01, "bug suspected"),
    ],
)
@each_dtype
def test_a_fault_of_the_backward_pass_alone_is_found(dtype, scale, verdict):
    x = torch.randn(128, 128, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = judge_op(
        lambda x: _Sigmoid.apply(x, scale),
        torch.sigmoid,
        x,
        gradients=True,
    )
    assert found.results["gradient of input 0"].verdict == verdict
    assert found.results["output"].verdict in ("rounding", "identical")


@each_dtype
def test_gradients_of_sound_kernels_are_rounding(dtype):
    operation = OPERATIONS["SwiGLU"]
    function = kernel(operation.sound["sigmoid"])
    inputs = inputs_of(operation, dtype)
    found = judge_op(function, operation.reference, *inputs, gradients=True)
    assert {each.verdict for each in found.results.values()} <= {"rounding", "identical"}
    assert list(found.results) == ["output", "gradient of input 0", "gradient of input 1"]


class _Two(torch.autograd.Function):
    """Two outputs, with the backward pass of the second scaled."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp(), x.tanh()

    @staticmethod
    def backward(ctx, of_exp, of_tanh):
        wide = ctx.saved_tensors[0].float()
        of_first = of_exp.float() * wide.exp()
        of_second = of_tanh.float() * (1 - wide.tanh() ** 2)
        gradient = of_first + 1.05 * of_second
        return gradient.to(of_exp.dtype)


@each_dtype
def test_gradients_of_several_outputs_have_one_projection_each(dtype):
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = judge_op(
        _Two.apply,
        lambda x: (x.exp(), x.tanh()),
        x,
        gradients=True,
    )
    assert found.results["output 1"].verdict in ("rounding", "identical")
    assert found.results["gradient of input 0"].verdict == "bug suspected"


def test_several_outputs_are_judged_each():
    x = torch.randn(64, 64).bfloat16()

    def reference(x):
        return x.exp(), x.tanh()

    def faulty(x):
        return x.exp(), x.tanh() * 1.02

    found = judge_op(faulty, reference, x)
    assert found.results["output 0"].verdict in ("rounding", "identical")
    assert found.results["output 1"].verdict == found.verdict == "bug suspected"
    with pytest.raises(AssertionError):
        found.check()


@each_dtype
@pytest.mark.parametrize(
    "function", [torch.relu, lambda x: 2 * x, lambda x: x - x.sum(-1)[:, None]]
)
def test_functions_and_gradients_that_round_nothing_are_identical(function, dtype):
    # sums of 16 such integers stay below 256, up to which bfloat16 holds them all
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-8, 8, (8, 16), generator=generator).to(dtype)
    assert judge_op(function, function, x).verdict == "identical"
    # no element is 0, where relu's gradient is a convention
    assert judge_op(torch.relu, torch.relu, x + 0.5, gradients=True).verdict == "identical"
    assert judge_op(lambda x: function(x) + 1, function, x).verdict == "bug suspected"


def test_an_output_of_no_numbers_is_refused_by_name():
    x = torch.randn(4, 8)
    with pytest.raises(UsageError, match="'output 1' is no tensor"):
        judge_op(lambda x: tuple(x.topk(2)), lambda x: tuple(x.topk(2)), x)
    with pytest.raises(UsageError, match="'output' is no tensor"):
        judge_op(lambda x: None, torch.relu, x)


@pytest.mark.parametrize(
    "inputs",
    [
        (torch.zeros(3, 3, dtype=torch.long),),
        (torch.zeros(3), torch.zeros(3).half()),
    ],
)
def test_inputs_without_one_dtype_are_refused(inputs):
    with pytest.raises(UsageError):
        judge_op(partial(sum, start=0), partial(sum, start=0), *inputs)


def test_the_guide_runs_as_written():
    guide = Path(__file__).parents[3] / "docs" / "guides" / "closeness.md"
    text = guide.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 5
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec("\n".join(blocks), {})
    assert printed.getvalue() == "bug suspected\n"
