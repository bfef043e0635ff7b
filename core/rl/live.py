"""Check a live RL loop: log-probabilities of the sampled tokens, trainer's vs. rollout's
(docs/guides/rl.md).

Nothing is stored. `MismatchMixin` does it at every step of TRL's GRPOTrainer, `verl_metrics` in
verl.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..errors import UsageError
from ..numerics.arrays import Array, Floats, Record
from .causes import explain_tokens
from .figures import CLAMP, SampledTokens

_MOST_EXPLAINED = 1 << 15  # tokens, of whole responses, in which a cause is looked for
_LEAST_ESS, _MOST_K3 = 0.3, 0.1  # bars of verl's docs
log = logging.getLogger("ulpscope")


@dataclass(frozen=True)
class Check:
    """Mismatch of one batch, r = trainer - rollout. warning: one sentence with the likely cause, or
    None.
    """

    figures: dict[str, float]
    warning: str | None = None
    cause: str | None = None


def check(
    rollout: ArrayLike,
    trainer: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    entropy: ArrayLike | None = None,
) -> Check:
    """Compare the log-probabilities of the sampled tokens.

    Args:
        rollout, trainer: [responses, tokens] each, nats; arrays, or tensors on any device. NaN:
            missing.
        mask: [responses, tokens], nonzero for tokens of the loss; all if None.
        entropy: [responses, tokens] of the trainer's distribution; without it no temperature is
            named.

    Returns:
        mean_abs, max_abs, k1, k3, ratio, ess, missing (share of the tokens), and a warning if a
        cause is named, or ESS is below 0.3, or k3 above 0.1 nats.

    Raises:
        UsageError: shapes differ, or no token has both values.
    """
    one, other = _array(rollout), _array(trainer)
    if one.ndim != 2 or one.shape != other.shape:
        raise UsageError(
            f"rollout and trainer are {list(one.shape)} and {list(other.shape)}; expected"
            " [responses, tokens], equal ones.",
        )
    of_loss = np.ones(one.shape, bool) if mask is None else _array(mask) != 0
    if of_loss.shape != one.shape:
        raise UsageError(f"the mask is {list(of_loss.shape)}; expected {list(one.shape)}.")
    is_hole = np.diff(of_loss.astype(np.int8), axis=1, prepend=of_loss[:, :1]) == -1

    def of_tokens(values: ArrayLike) -> Floats:
        own = _array(values)[of_loss].astype(np.float64)
        return np.where(np.isfinite(own), own, np.nan)

    tokens = SampledTokens(
        sequence=np.nonzero(of_loss)[0],
        position=np.cumsum(of_loss, axis=1)[of_loss] - 1,
        rollout=of_tokens(one),
        trainer=of_tokens(other),
        turn=np.cumsum(is_hole, axis=1)[of_loss],
        entropy=None if entropy is None else of_tokens(entropy),
    )
    r = tokens.r[np.isfinite(tokens.r)]
    if not len(r):
        raise UsageError("no token of the loss has a log-probability on both sides.")
    distances = np.abs(r)
    ratio = np.exp(np.clip(r, -CLAMP, CLAMP))
    figures = {
        "mean_abs": float(distances.mean()),
        "max_abs": float(distances.max()),
        "k1": -float(r.mean()),
        "k3": float(ratio.mean() - 1 - r.mean()),  # of clamped ratios; expm1 takes twice the time
        "ratio": float(ratio.mean()),
        "ess": float(ratio.sum() ** 2 / (len(r) * (ratio @ ratio))),
        "missing": 1 - len(r) / len(tokens.r),
    }
    rows = max(1, _MOST_EXPLAINED // one.shape[1])
    tokens = tokens.select(tokens.sequence % -(-len(one) // rows) == 0)
    for cause in explain_tokens(tokens):
        return Check(figures, cause.text, cause.name)
    if figures["ess"] < _LEAST_ESS or figures["k3"] > _MOST_K3:
        sizes = f"ESS {figures['ess']:.2g}, k3 {figures['k3']:.2g} nats"
        lacks = "" if entropy is not None else " A temperature was not looked for: pass `entropy`."
        return Check(
            figures,
            f"{sizes}: the rollout is far from the trainer, and no simple cause is found.{lacks}",
        )
    return Check(figures)


def _array(values: ArrayLike) -> Array:
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values)


def _check_safely(*sides: Any, **options: Any) -> Check:
    """Check a batch without ever stopping the loop: a batch that cannot be compared is a
    warning.
    """
    try:
        return check(*sides, **options)
    except UsageError as error:
        return Check({}, str(error), "not compared")


class MismatchMixin:
    """Check every step of TRL's GRPOTrainer: `class Trainer(MismatchMixin, GRPOTrainer)`.

    Figures go to the trainer's own metrics as `mismatch/...`; a warning is logged once per cause.
    It needs the rollout's log-probabilities: `use_vllm`, or a `rollout_func` that returns
    `logprobs`.
    """

    _scored: Sequence[Any] | None = None
    _warned: frozenset[str | None] = frozenset()

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        scored = super()._get_per_token_logps_and_entropies(*args, **kwargs)  # type: ignore[misc]
        # not the graph
        self._scored = tuple(None if each is None else each.detach() for each in scored[:2])
        return scored

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        loss = super()._compute_loss(model, inputs)  # type: ignore[misc]
        rollout = inputs.get("sampling_per_token_logps")
        if rollout is not None and self._scored is not None:
            (trainer, entropy), self._scored = self._scored, None
            mask = inputs["completion_mask"]
            if (tools := inputs.get("tool_mask")) is not None:
                mask = mask * tools
            result = _check_safely(rollout, trainer, mask, entropy=entropy)
            mode = "train" if model.training else "eval"
            for name, value in result.figures.items():
                self._metrics[mode][f"mismatch/{name}"].append(value)  # type: ignore[attr-defined]
            if result.warning and result.cause not in self._warned:
                self._warned |= {result.cause}
                step = self.state.global_step  # type: ignore[attr-defined]
                log.warning("step %s: %s", step, result.warning)
        return loss


def verl_metrics(
    calculate_debug_metrics: Callable[[Any], Record],
) -> Callable[[Any], Record]:
    """Wrap verl's `calculate_debug_metrics` so that its metrics have `mismatch/...` too, and
    warnings are logged.

    A temperature is named if the batch has `entropy`, as that of verl's v1 trainer has.

    Args:
        calculate_debug_metrics: of `verl.utils.debug.metrics`.
    """

    @wraps(calculate_debug_metrics)
    def with_mismatch(data: Any) -> Record:
        metrics = dict(calculate_debug_metrics(data))
        batch = data.batch
        sides = batch["rollout_log_probs"], batch["old_log_probs"]
        # the latter of the prompt as well
        mask = batch.get("response_mask", batch.get("attention_mask", None))
        mask = None if mask is None else mask[:, -sides[0].shape[1] :]
        result = _check_safely(*sides, mask, entropy=batch.get("entropy", None))
        if result.warning:
            log.warning(result.warning)
        return metrics | {f"mismatch/{name}": value for name, value in result.figures.items()}

    return with_mismatch
