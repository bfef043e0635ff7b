"""Randomized rounding: what the same function might as well have come out as in the same dtype."""

from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

# bits of a float32 significand that the dtype does not have
_SPARE_BITS = {torch.bfloat16: 16, torch.float16: 13}
DTYPES = tuple(_SPARE_BITS)


class _Draws(TorchDispatchMode):
    """Draw what operations return anew for one forward, alike for the same seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._calls = 0

    @property
    def _seed_of_call(self) -> int:
        return self._seed * 1_000_003 + self._calls

    def _is_view(self, func: Any) -> bool:
        """Return whether an operation returns no new numbers."""
        return any(each.alias_info for each in func._schema.returns)


class DrawnRounding(_Draws):
    """Draw every rounding to `dtype` anew for one forward, alike for the same seed; not in-place
    operations.

    weights: of the model in float32, kept from one forward to the next; None if they change.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        seed: int,
        weights: dict[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        super().__init__(seed)
        self._dtype = dtype
        self._weights = weights
        self.roundings = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        kwargs = kwargs or {}
        self._calls += 1
        if self._is_view(func) or func._schema.is_mutable:
            return func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        floats = [
            each
            for each in leaves
            if isinstance(each, torch.Tensor) and each.is_floating_point() and each.ndim
        ]
        has_dtype = any(isinstance(each, torch.dtype) for each in leaves)
        if floats and not has_dtype and all(each.dtype == self._dtype for each in floats):
            # the operation's own 16 bits are not needed
            result = wide = self._wide(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
            first = _first(result)
            if not isinstance(first, torch.Tensor) or first.dtype != self._dtype:
                return result
            wide = self._wide(func, args, kwargs)
            if _first(wide).shape != first.shape:
                return result
        first = _first(wide)
        if not isinstance(first, torch.Tensor) or first.dtype != torch.float32:
            # indices and comparisons have nothing to round
            return result
        return _with_first(result, self._round(first))

    def _wide(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute the same operation in float32."""
        return func(*tree_map(self._widen, args), **tree_map(self._widen, kwargs))

    def _widen(self, value: Any) -> Any:
        if (
            isinstance(value, torch.nn.Parameter)
            and value.dtype == self._dtype
            and self._weights is not None
        ):
            if value not in self._weights:
                self._weights[value] = value.float()
            return self._weights[value]
        return _convert(value, self._dtype, torch.float32)

    def _round(self, wide: torch.Tensor) -> torch.Tensor:
        """Move values by up to a quarter of a unit in the last place and round; what is exact in 16
        bits stays.

        The move is a hash of the value's bits, alike for the same: multiply and shift, as in
        splitmix.
        """
        bits = wide.contiguous().view(torch.int32)
        spare = _SPARE_BITS[self._dtype]
        moves = bits.mul(-1640531535).add_((self._seed_of_call * 0x9E3779B1) & 0x7FFFFFFF)
        moves = moves.bitwise_xor_(moves >> 15).mul_(-2048144777).bitwise_right_shift_(33 - spare)
        # copies, gathered rows and infinities need no rounding
        is_exact = bits.bitwise_and((1 << spare) - 1) == 0
        self.roundings += 1
        return moves.masked_fill_(is_exact, 0).add_(bits).view(torch.float32).to(self._dtype)


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple | list) and result else result


def _with_first(result: Any, first: Any) -> Any:
    return type(result)((first, *result[1:])) if isinstance(result, tuple | list) else first


def _convert(value: Any, narrow: torch.dtype, wide: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype == narrow:
        return value.to(wide)
    return wide if value is narrow else value


_aten = torch.ops.aten
# arguments whose sums run over a common axis, and that axis of each
_SUMMED = {
    _aten.mm: ((0, 1), (1, 0)),
    _aten.bmm: ((0, 2), (1, 1)),
    _aten.addmm: ((1, 1), (2, 0)),
    _aten.baddbmm: ((1, 2), (2, 1)),
}
# operations along the axes that are their second argument; True if the result has these axes
_ALONG = {
    _aten.sum: False,
    _aten.mean: False,
    _aten.logsumexp: False,
    _aten._softmax: True,
    _aten._log_softmax: True,
}


class DrawnErrors(_Draws):
    """Draw the errors of float32 operations anew for one call, alike for the same seed.

    Sums run in another order; the error of each result, compared with float64, gets another sign.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        kwargs = kwargs or {}
        self._calls += 1
        if self._is_view(func):
            return func(*args, **kwargs)
        result = self._reordered(func, args, kwargs)
        first = _first(result)
        if not isinstance(first, torch.Tensor) or first.dtype != torch.float32:
            return result
        in_float64 = partial(_convert, narrow=torch.float32, wide=torch.float64)
        wide = _first(func(*tree_map(in_float64, args), **tree_map(in_float64, kwargs)))
        if wide.shape != first.shape or wide.dtype != torch.float64:
            return result
        error = first.double() - wide
        drawn = wide + error * self._signs(wide)
        # infinities and what is exact stay
        is_rounded = error.isfinite() & (error != 0)
        return _with_first(result, torch.where(is_rounded, drawn.float(), first))

    def _reordered(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute an operation with its sums in another order, if it has any."""
        operation = func.overloadpacket
        changed = list(args)
        if operation in _SUMMED:
            (number, axis), _ = _SUMMED[operation]
            order = self._order(args[number], axis)
            for number, axis in _SUMMED[operation]:
                changed[number] = args[number].index_select(axis, order)
            return func(*changed, **kwargs)
        if operation in _ALONG and len(args) > 1 and isinstance(args[0], torch.Tensor):
            axes = [args[1]] if isinstance(args[1], int) else list(args[1] or ())
            orders = [self._order(args[0], axis) for axis in axes]
            for axis, order in zip(axes, orders, strict=True):
                changed[0] = changed[0].index_select(axis, order)
            result = func(*changed, **kwargs)
            if not _ALONG[operation]:
                return result
            return result.index_select(axes[0], orders[0].argsort())
        return func(*args, **kwargs)

    def _order(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self._seed_of_call)
        return torch.randperm(tensor.shape[axis], generator=generator).to(tensor.device)

    def _signs(self, wide: torch.Tensor) -> torch.Tensor:
        """Return -1 or 1 by a hash of each value's bits: equal values have equal errors."""
        hashes = wide.contiguous().view(torch.int64).mul(-7046029254386353131)
        hashes = hashes.add_(self._seed_of_call * 0x9E3779B9)
        hashes = hashes.bitwise_xor_(hashes >> 31).mul_(-4658895280553007687)
        return torch.where(hashes < 0, -1.0, 1.0).double()
