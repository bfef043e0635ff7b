"""Judge an operation: its errors compared with those of randomized roundings of a reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import ExtraError, UsageError
from ..verdict import (
    BUG_SUSPECTED,
    IDENTICAL,
    LIKELY_ROUNDING,
    ROUNDING,
    UNDECIDED,
    Checked,
)
from .comparison import ErrorComparison, compare_errors

try:
    import torch
except ModuleNotFoundError as error:
    raise ExtraError("judge_op needs torch: pip install 'ulpscope[capture]'.") from error

from .randomized_rounding import DTYPES, DrawnErrors, DrawnRounding

_DRAWS = 8
_GRAVEST_FIRST = (BUG_SUSPECTED, UNDECIDED, LIKELY_ROUNDING, ROUNDING, IDENTICAL)
_Results = dict[str, torch.Tensor]


@dataclass(frozen=True)
class OperationVerdict(Checked):
    """Verdict of an operation. results: of 'output', or 'output 0', 'output 1'; of 'gradient of
    input 0' for each input that has floating-point numbers.
    """

    results: Mapping[str, ErrorComparison]

    @property
    def verdict(self) -> str:
        """The gravest verdict of all results."""
        return min((each.verdict for each in self.results.values()), key=_GRAVEST_FIRST.index)

    def __str__(self) -> str:
        return "\n\n".join(f"{name}: {each}" for name, each in self.results.items())

    def check(self) -> OperationVerdict:
        """Return the verdict if all errors are those of rounding.

        Raises:
            AssertionError: some are not, or that is undecided; the message has the figures.
        """
        __tracebackhide__ = True
        if self.verdict in (BUG_SUSPECTED, UNDECIDED):
            raise AssertionError(str(self))
        return self


def judge_op(
    function: Callable[..., Any],
    reference: Callable[..., Any],
    *inputs: Any,
    gradients: bool = False,
) -> OperationVerdict:
    """Compare the errors of a function with those of eight randomized roundings of a reference.

    The exact result is the reference in float64.

    Args:
        function: takes the inputs, returns a tensor or several.
        reference: the same in PyTorch's operations, in any dtype.
        inputs: tensors, of float32, bfloat16 or float16 where they hold floating-point numbers;
            anything else is passed as it is.
        gradients: also those of a random projection of the outputs: those of a sum hide faults.

    Raises:
        UsageError: the inputs have no or several floating-point dtypes, or the outputs differ in
            number or shape.
    """
    dtype = _dtype_of(inputs)
    wide = [each.double() if _is_floating(each) else each for each in inputs]
    exact = _run(reference, wide, gradients=gradients)
    draws = draws_of(
        partial(_run, reference, inputs, gradients=gradients),
        dtype,
    )
    actual = _run(function, inputs, gradients=gradients)
    if actual.keys() != exact.keys():
        raise UsageError(
            f"the function returns {', '.join(actual)}, the reference {', '.join(exact)}.",
        )
    return OperationVerdict(
        {
            key: compare_errors(
                actual[key],
                [each[key] for each in draws],
                exact[key],
                dtype=dtype,
                may_be_rounded=False,
            )
            for key in exact
        },
    )


def draws_of(reference: Callable[[], Any], dtype: torch.dtype) -> list[Any]:
    """Return eight randomized roundings of what a reference returns."""
    drawn = []
    for seed in range(_DRAWS):
        with DrawnRounding(dtype, seed) if dtype in DTYPES else DrawnErrors(seed):
            drawn.append(reference())
    return drawn


def _dtype_of(inputs: Sequence[Any]) -> torch.dtype:
    dtypes = {each.dtype for each in inputs if _is_floating(each)}
    if len(dtypes) != 1 or not dtypes <= {torch.float32, *DTYPES}:
        found = ", ".join(sorted(map(str, dtypes))) or "no floating-point numbers"
        raise UsageError(
            f"the inputs hold {found}; expected one of float32, bfloat16 or float16 for all.",
        )
    return dtypes.pop()


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _run(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    gradients: bool,
) -> _Results:
    """Return the outputs by name, and the gradients of a random projection of them."""
    with torch.set_grad_enabled(gradients):
        leaves = [
            each.detach().clone().requires_grad_(gradients) if _is_floating(each) else each
            for each in inputs
        ]
        outputs = function(*leaves)
    outputs = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    if len(outputs) == 1:
        results = {"output": outputs[0]}
    else:
        results = {f"output {number}": each for number, each in enumerate(outputs)}
    for name, output in results.items():
        if not _is_floating(output):
            raise UsageError(f"'{name}' is no tensor of floating-point numbers.")
    if gradients:
        results |= _gradients(outputs, leaves)
    return {name: each.detach() for name, each in results.items()}


def _gradients(outputs: Sequence[torch.Tensor], inputs: Sequence[Any]) -> _Results:
    projections = []
    for number, output in enumerate(outputs):
        # one of its own for each: drawn errors call every operation twice
        normal = torch.randn(output.shape, generator=torch.Generator().manual_seed(number))
        # the same numbers in every dtype, which drawn roundings leave as they are
        projection = (32 * normal).round() / 32
        projections.append(projection.to(output.device, output.dtype))
    leaves = {
        f"gradient of input {number}": each
        for number, each in enumerate(inputs)
        if _is_floating(each)
    }
    found = torch.autograd.grad(
        outputs,
        list(leaves.values()),
        projections,
        allow_unused=True,
    )
    gradients = zip(leaves, found, strict=True)
    return {name: each for name, each in gradients if each is not None}
