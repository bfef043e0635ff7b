"""What else is used, as scores: the larger, the less close. Each with the limit it is used with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

_TOP = 5  # of check_logprobs_close


@dataclass(frozen=True)
class Rival:
    """A test: its score of (actual, expected, exact), in float64, and what it is used with."""

    score: Callable[[Tensor, Tensor, Tensor], float]
    limits: tuple[float, ...]


# rtol and atol of torch.testing.assert_close
_TOLERANCES = {"float32": (1.3e-6, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float16": (1e-3, 1e-5)}


def rivals_of(dtype: str) -> Mapping[str, Rival]:
    """Return the tests that are used for a dtype."""
    rtol, atol = _TOLERANCES[dtype]

    def allclose(actual, expected, _):
        return float(((actual - expected).abs() / (atol + rtol * expected.abs())).max())

    return {
        "allclose (torch.testing)": Rival(allclose, (1.0,)),
        "largest error (FlashAttention)": Rival(_largest_error, (2.0,)),
        "RMSE multiplier (torch.compile)": Rival(_rmse, (3.0, 8.0)),
        "ratio of standard deviations (Neuron)": Rival(_deviations, ()),
        "cosine": Rival(_cosine, (1e-3, 1e-2)),
        "check_logprobs_close (vLLM)": Rival(_top_tokens, (0.5,)),
    }


def _largest_error(actual: Tensor, expected: Tensor, exact: Tensor) -> float:
    return _ratio((actual - exact).abs().max(), (expected - exact).abs().max())


def _rmse(actual: Tensor, expected: Tensor, exact: Tensor) -> float:
    return _ratio((actual - exact).norm(), (expected - exact).norm())


def _deviations(actual: Tensor, expected: Tensor, exact: Tensor) -> float:
    """Compare standard deviations of relative errors."""
    usual = exact.abs().clamp_min(exact.square().mean().sqrt())
    return _ratio(((actual - exact) / usual).std(), ((expected - exact) / usual).std())


def _ratio(error: Tensor, of_expected: Tensor) -> float:
    return float(error / of_expected.clamp_min(torch.finfo(torch.float64).tiny))


def _cosine(actual: Tensor, expected: Tensor, _: Tensor) -> float:
    return 1 - float(torch.cosine_similarity(actual.flatten(), expected.flatten(), 0))


def _top_tokens(actual: Tensor, expected: Tensor, _: Tensor) -> float:
    """Return 1 if the largest of a row is not among the other side's largest."""
    rows = [each.reshape(-1, each.shape[-1]) for each in (actual, expected)]
    tops = [each.topk(_TOP, -1).indices for each in rows]
    for one, other in (tops, tops[::-1]):
        if not (one[:, :1] == other).any(-1).all():
            return 1.0
    return 0.0
