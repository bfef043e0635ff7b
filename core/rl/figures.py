"""Mismatch of a trainer and its rollout engine over the sampled tokens, as RL frameworks define it.

r is the trainer's log-probability of a token minus the rollout's, ratio is exp(r), and a sequence
is one response. A figure is made of sums by sequence, so that tokens are read once, in parts, and a
bootstrap draws sequences again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import methodcaller

import numpy as np
from numpy.typing import NDArray

CLAMP = 20.0  # of log-ratios before exp, in verl, slime and ms-swift
# bars in the frameworks' references
TIS, ICEPOP, DPPO, GEOMETRIC, VETO = 2.0, (0.5, 5.0), 0.2, (0.999, 1.002), 1e-4
_LARGEST = 700.0  # of which float64 has the exponential
_TRL_CAP = 3.0  # vllm_importance_sampling_clip_max


class TokenPairs:
    """Log-probabilities of the same tokens on both sides, finite, sequence after sequence. [tokens]
    each
    """

    def __init__(self, rollout: NDArray[np.floating], trainer: NDArray[np.floating]) -> None:
        self.rollout, self.trainer = (np.asarray(side, np.float64) for side in (rollout, trainer))
        self.r = self.trainer - self.rollout

    @cached_property
    def ratio(self) -> NDArray[np.float64]:
        """exp(r), r clamped to 20 on either side."""
        return np.exp(np.clip(self.r, -CLAMP, CLAMP))

    @cached_property
    def k3(self) -> NDArray[np.float64]:
        """exp(r) - 1 - r, an estimate of KL(rollout ‖ trainer) that is never negative."""
        with np.errstate(over="ignore"):
            return np.expm1(self.r) - self.r

    @cached_property
    def rollout_probability(self) -> NDArray[np.float64]:
        return np.exp(self.rollout)

    @cached_property
    def trainer_probability(self) -> NDArray[np.float64]:
        return np.exp(self.trainer)

    @cached_property
    def probability_change(self) -> NDArray[np.float64]:
        """Trainer's probability minus the rollout's."""
        return self.trainer_probability - self.rollout_probability

    @cached_property
    def js(self) -> NDArray[np.float64]:
        """Jensen-Shannon divergence by k3 of either side against their mean."""
        mixture = np.logaddexp(self.trainer, self.rollout) - np.log(2)
        sides = (self.trainer - mixture, self.rollout - mixture)
        return 0.5 * sum(np.expm1(side) - side for side in sides)


@dataclass(frozen=True)
class SampledTokens:
    """Tokens of the loss, sequence after sequence. [tokens] each; values NaN if missing.

    position: index in the sequence; turn: masked stretches before it; groups: step and others, NaN
    or '' if unknown.
    """

    sequence: NDArray[np.integer]
    position: NDArray[np.integer]
    rollout: NDArray[np.float64]
    trainer: NDArray[np.float64]
    turn: NDArray[np.integer] | None = None
    entropy: NDArray[np.float64] | None = None
    lag: NDArray[np.float64] | None = None
    groups: Mapping[str, NDArray] = field(default_factory=dict)

    @property
    def r(self) -> NDArray[np.float64]:
        return self.trainer - self.rollout

    def select(self, selection: NDArray[np.bool_]) -> SampledTokens:
        """Return some of the tokens."""
        values = {
            name: each[selection]
            for name, each in vars(self).items()
            if isinstance(each, np.ndarray)
        }
        return replace(
            self,
            groups={name: each[selection] for name, each in self.groups.items()},
            **values,
        )


Quantity = Callable[[TokenPairs], NDArray]


def _product(one: str, other: str) -> Quantity:
    return lambda t: SUMS[one](t) * SUMS[other](t)


SUMS: dict[str, Quantity] = {
    "rollout": lambda t: t.rollout,
    "trainer": lambda t: t.trainer,
    "r": lambda t: t.r,
    "-r": lambda t: -t.r,
    "|r|": lambda t: np.abs(t.r),
    "exp|r|": lambda t: np.exp(np.abs(t.r)),
    "ratio": lambda t: t.ratio,
    "exp r": lambda t: np.exp(np.minimum(t.r, _LARGEST)),
    "truncated": lambda t: np.minimum(t.ratio, TIS),
    "k3": lambda t: t.k3,
    "k3<=10": lambda t: np.minimum(t.ratio - 1 - np.clip(t.r, -CLAMP, CLAMP), 10),
    "k3 reverse": lambda t: np.expm1(-t.r) + t.r,
    "js": lambda t: t.js,
    "p rollout": lambda t: t.rollout_probability,
    "p trainer": lambda t: t.trainer_probability,
    "dp": lambda t: t.probability_change,
    "|dp|": lambda t: np.abs(t.probability_change),
    "above TIS": lambda t: t.ratio > TIS,
    "below 1/TIS": lambda t: t.ratio < 1 / TIS,
    "outside IcePop": lambda t: (t.ratio < ICEPOP[0]) | (t.ratio > ICEPOP[1]),
    "beyond DPPO": lambda t: np.abs(t.probability_change) > DPPO,
    "below veto": lambda t: t.r < np.log(VETO),
}
_SQUARES = ("rollout", "trainer", "r", "ratio", "truncated", "k3", "p rollout", "p trainer", "dp")
SUMS |= {f"{name}^2": _product(name, name) for name in _SQUARES}
SUMS |= {
    f"{one}rollout*{one}trainer": _product(f"{one}rollout", f"{one}trainer") for one in ("", "p ")
}
MAXIMA = {name: SUMS[name] for name in ("r", "-r", "|r|", "|dp|", "k3")}


@dataclass(frozen=True, eq=False)
class Sequences:
    """Sums and maxima of the tokens by sequence, computed when they are asked for. Sequences
    without a token are left out, unless they are added by `with_masked`.

    tokens: of each sequence; sums, maxima: of the quantities of SUMS and MAXIMA. [sequences] each
    """

    tokens: NDArray[np.integer]
    sums: Mapping[str, NDArray[np.float64]]
    maxima: Mapping[str, NDArray]

    @classmethod
    def of(cls, pairs: TokenPairs, lengths: NDArray[np.integer]) -> Sequences:
        """Sequences of `lengths` tokens, one after another."""
        lengths = lengths[lengths > 0]
        starts = np.cumsum(lengths) - lengths
        sums = _Reduced(
            SUMS,
            lambda values: np.add.reduceat(values, starts, dtype=np.float64),
            pairs,
        )
        return cls(
            lengths,
            sums,
            _Reduced(MAXIMA, lambda values: np.maximum.reduceat(values, starts), pairs),
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def means(self, name: str) -> NDArray[np.float64]:
        """Return the means of a quantity. [sequences]"""
        return self.sums[name] / np.maximum(self.tokens, 1)

    def with_masked(self, count: int) -> Sequences:
        """Return these and `count` sequences without a token of the loss: all of their sums are
        0.
        """
        tokens = np.append(self.tokens, np.zeros(count, self.tokens.dtype))
        sums = {name: np.append(self.sums[name], np.zeros(count)) for name in SUMS}
        maxima = {name: np.append(self.maxima[name], np.full(count, -np.inf)) for name in MAXIMA}
        return Sequences(tokens, sums, maxima)


class _Reduced(dict[str, NDArray]):
    """Quantities of tokens by sequence, each reduced when it is first asked for."""

    def __init__(
        self,
        quantities: Mapping[str, Quantity],
        reduce: Callable[[NDArray], NDArray],
        pairs: TokenPairs,
    ):
        super().__init__()
        self._quantities, self._reduce, self._pairs = quantities, reduce, pairs

    def __missing__(self, name: str) -> NDArray:
        self[name] = self._reduce(self._quantities[name](self._pairs))
        return self[name]


class Batch:
    """Sequences with how often each one counts: once, or as often as a bootstrap drew it."""

    def __init__(self, sequences: Sequences, weights: NDArray[np.float64] | None = None) -> None:
        self.sequences = sequences
        self.weights = np.ones(len(sequences)) if weights is None else weights
        # a draw may hold masked sequences alone
        self.tokens = float(self.weights @ sequences.tokens) or float("nan")

    def sum(self, name: str) -> float:
        """Return the sum over all tokens."""
        return float(self.weights @ self.sequences.sums[name])

    def mean(self, name: str) -> float:
        """Return the mean over all tokens."""
        return self.sum(name) / self.tokens

    def over_sequences(self, values: NDArray) -> float:
        """Return the mean of a value of each sequence."""
        return float(self.weights @ values / self.weights.sum())

    def over_trained(self, values: NDArray) -> float:
        """Return the sum of a value of each sequence with a token of the loss, over the number of
        all.
        """
        return self.over_sequences(values * (self.sequences.tokens > 0))

    def mean_of_means(self, name: str) -> float:
        """Return the mean over sequences of the mean over their tokens."""
        return self.over_sequences(self.sequences.means(name))

    def max(self, name: str) -> float:
        """Return the maximum over all tokens, NaN if there is none."""
        largest = float(self.sequences.maxima[name][self.weights > 0].max())
        return largest if largest > -np.inf else float("nan")

    def deviation(self, name: str, square: str) -> float:
        """Return the standard deviation over all tokens, over their number less one."""
        squares = self.sum(square) - self.sum(name) ** 2 / self.tokens
        return (
            float(np.sqrt(max(squares, 0.0) / (self.tokens - 1)))
            if self.tokens > 1
            else float("nan")
        )

    def pearson(self, a: str, b: str) -> float:
        """Return the correlation of two quantities over all tokens."""
        spreads = [self.mean(f"{name}^2") - self.mean(name) ** 2 for name in (a, b)]
        product = self.mean(f"{a}*{b}") - self.mean(a) * self.mean(b)
        return (
            float(product / np.sqrt(spreads[0] * spreads[1])) if min(spreads) > 0 else float("nan")
        )

    def sample_size(self, name: str) -> float:
        """Return the effective sample size of importance weights as a share of the tokens."""
        return self.sum(name) ** 2 / (self.tokens * self.sum(f"{name}^2"))

    @cached_property
    def log_ratio(self) -> NDArray[np.float64]:
        """Sum of r of each sequence, clamped to 20 on either side."""
        return np.clip(self.sequences.sums["r"], -CLAMP, CLAMP)

    @cached_property
    def geometric_ratio(self) -> NDArray[np.float64]:
        """exp of the mean of r of each sequence."""
        return np.exp(np.clip(self.sequences.means("r"), -CLAMP, CLAMP))

    @cached_property
    def kept_ratio(self) -> NDArray[np.float64]:
        """Ratio of each sequence, 0 above 3: TRL's `sequence_mask`."""
        ratio = np.exp(np.minimum(self.sequences.sums["r"], _LARGEST))
        return np.where(ratio > _TRL_CAP, 0.0, ratio)

    def perplexity(self, side: str) -> float:
        """Return the mean over sequences of the perplexity of a sequence."""
        return self.over_sequences(np.exp(-self.sequences.means(side)))


@dataclass(frozen=True)
class Figure:
    """Figure of a batch under its framework's name. unit: '' of what has none."""

    name: str
    definition: str
    value: Callable[[Batch], float]
    unit: str = ""


@dataclass(frozen=True)
class Framework:
    """Figures of one framework. source: version and file that define them; counts_masked: means
    over sequences count those without a token of the loss.
    """

    name: str
    source: str
    figures: tuple[Figure, ...]
    counts_masked: bool = False


_NATS = "nats"
_Definition = tuple[str, Callable[[Batch], float]]
_mean, _max, _mean_of_means, _sample_size, _perplexity, _pearson, _deviation = (
    partial(methodcaller, name)
    for name in (
        "mean",
        "max",
        "mean_of_means",
        "sample_size",
        "perplexity",
        "pearson",
        "deviation",
    )
)
_K3 = "mean of exp(r) - 1 - r", _mean("k3")
_CHI2: _Definition = "mean of exp(r)² - 1", lambda b: b.mean("ratio^2") - 1
_RATIO_SEQUENCE: _Definition = (
    "mean over sequences of exp(sum of r)",
    lambda b: b.over_sequences(np.exp(b.log_ratio)),
)
_RATIO_GEOMETRIC: _Definition = (
    "mean over sequences of exp(mean of r)",
    lambda b: b.over_sequences(b.geometric_ratio),
)
_CHI2_SEQUENCE: _Definition = (
    "mean over sequences of exp(sum of r)² - 1",
    lambda b: b.over_sequences(np.exp(2 * b.log_ratio)) - 1,
)
_CHI2_GEOMETRIC: _Definition = (
    "mean over sequences of exp(mean of r)² - 1",
    lambda b: b.over_sequences(b.geometric_ratio**2) - 1,
)
_OWN = (
    Figure("mean_abs", "mean of |r| over tokens", _mean("|r|"), _NATS),
    Figure("max_abs", "largest |r|", _max("|r|"), _NATS),
    Figure("k1", "mean of -r", _mean("-r"), _NATS),
    Figure("k2", "mean of r² / 2", lambda b: b.mean("r^2") / 2, _NATS),
    Figure("k3", *_K3, _NATS),
    Figure("ratio", "mean of exp(r) over tokens", _mean("ratio")),
    Figure("ratio_sequence", *_RATIO_SEQUENCE),
    Figure("ratio_geometric", *_RATIO_GEOMETRIC),
    Figure("ess", "effective sample size of exp(r), share of the tokens", _sample_size("ratio")),
    Figure("ess_truncated", "the same of exp(r), at most 2", _sample_size("truncated")),
    Figure("chi2", *_CHI2),
    Figure("chi2_sequence", *_CHI2_SEQUENCE),
    Figure("chi2_geometric", *_CHI2_GEOMETRIC),
    Figure("perplexity_rollout", "mean over sequences", _perplexity("rollout")),
    Figure("perplexity_trainer", "mean over sequences", _perplexity("trainer")),
    Figure("pearson", "correlation of log-probabilities", _pearson("rollout", "trainer")),
    Figure(
        "pearson_probability",
        "correlation of probabilities",
        _pearson("p rollout", "p trainer"),
    ),
    Figure("above_tis", "share of tokens with exp(r) above 2", _mean("above TIS")),
    Figure(
        "outside_icepop",
        "share of tokens with exp(r) outside 0.5 to 5",
        _mean("outside IcePop"),
    ),
    Figure(
        "beyond_dppo",
        "share of tokens whose probability moves by over 0.2",
        _mean("beyond DPPO"),
    ),
    Figure(
        "outside_geometric",
        "share of sequences with exp(mean of r) outside 0.999 to 1.002",
        lambda b: b.over_sequences(
            (b.geometric_ratio < GEOMETRIC[0]) | (b.geometric_ratio > GEOMETRIC[1]),
        ),
    ),
    Figure(
        "vetoed",
        "share of sequences with a token whose exp(r) is below 1e-4",
        lambda b: b.over_sequences(b.sequences.sums["below veto"] > 0),
    ),
)


def _named(prefix: str, definitions: Mapping[str, _Definition]) -> tuple[Figure, ...]:
    return tuple(Figure(prefix + name, *definition) for name, definition in definitions.items())


def _offpolicy(prefix: str, k3: _Definition, chi2: _Definition) -> tuple[Figure, ...]:
    """Figures that verl computes and ms-swift took over, but for k3 and chi2 of sequences."""

    def lead(batch: Batch) -> NDArray[np.float64]:
        return batch.sequences.means("-r")

    rows: dict[str, _Definition] = {
        "kl": ("mean of -r", _mean("-r")),
        "k3_kl": k3,
        "training_ppl": ("mean over sequences of exp(-mean)", _perplexity("trainer")),
        "training_log_ppl": ("mean of sequence means", lambda b: -b.mean_of_means("trainer")),
        "rollout_ppl": ("mean over sequences of exp(-mean)", _perplexity("rollout")),
        "rollout_log_ppl": ("mean of sequence means", lambda b: -b.mean_of_means("rollout")),
        "log_ppl_diff": ("mean of sequence means of -r", _mean_of_means("-r")),
        "log_ppl_abs_diff": ("the same, absolute", lambda b: b.over_sequences(np.abs(lead(b)))),
        "log_ppl_diff_max": ("largest of them", lambda b: float(lead(b).max())),
        "log_ppl_diff_min": ("least of them", lambda b: float(lead(b).min())),
        "ppl_ratio": (
            "mean over sequences of exp(mean of -r)",
            lambda b: b.over_sequences(np.exp(lead(b))),
        ),
        "chi2_token": _CHI2,
        "chi2_seq": chi2,
    }
    return _named(f"{prefix}/", rows)


def _truncated_means(batch: Batch) -> NDArray[np.float64]:
    return batch.sequences.means("truncated")


_VERL = (
    *_offpolicy("rollout_corr", _K3, _CHI2_SEQUENCE),
    *_named(
        "rollout_corr/rollout_is_",
        {
            "mean": ("mean of exp(r), at most 2", _mean("truncated")),
            "max": ("largest, at most 2", lambda b: float(min(np.exp(b.max("r")), TIS))),
            "min": (
                "least, at least exp(-20)",
                lambda b: float(min(np.exp(max(-b.max("-r"), -CLAMP)), TIS)),
            ),
            "std": (
                "standard deviation over the tokens",
                lambda b: np.sqrt(max(b.mean("truncated^2") - b.mean("truncated") ** 2, 0)),
            ),
            "eff_sample_size": (
                "of exp(r), at most 2; share of the tokens",
                _sample_size("truncated"),
            ),
            "ratio_fraction_high": ("share of tokens with exp(r) above 2", _mean("above TIS")),
            "ratio_fraction_low": ("share of tokens with exp(r) below 0.5", _mean("below 1/TIS")),
            "seq_mean": ("mean of sequence means", _mean_of_means("truncated")),
            "seq_std": (
                "their standard deviation",
                lambda b: (
                    float(np.std(_truncated_means(b), ddof=1))
                    if len(b.sequences) > 1
                    else float("nan")
                ),
            ),
            "seq_max": ("largest of them", lambda b: float(_truncated_means(b).max())),
            "seq_min": ("least of them", lambda b: float(_truncated_means(b).min())),
            "seq_max_deviation": (
                "largest distance from 1",
                lambda b: float(np.abs(_truncated_means(b) - 1).max()),
            ),
            "seq_fraction_high": (
                "share of sequences with a mean of exp(r) above 2",
                lambda b: b.over_sequences(b.sequences.means("ratio") > TIS),
            ),
            "seq_fraction_low": (
                "share of sequences with one below 0.5",
                lambda b: b.over_sequences(b.sequences.means("ratio") < 1 / TIS),
            ),
        },
    ),
    *_named(
        "training/rollout_",
        {
            "probs_diff_max": ("largest change of probability", _max("|dp|")),
            "probs_diff_mean": ("mean of |change of probability|", _mean("|dp|")),
            "probs_diff_std": ("its standard deviation", _deviation("|dp|", "dp^2")),
            "actor_probs_pearson_corr": (
                "correlation of probabilities",
                _pearson("p rollout", "p trainer"),
            ),
        },
    ),
)
_SWIFT = _offpolicy(
    "rollout_correction",
    ("mean of exp(r) - 1 - r, at most 10", _mean("k3<=10")),
    _CHI2_GEOMETRIC,
)
_TRL = (
    Figure(
        "sampling/sampling_logp_difference/mean",
        "mean of |r| over tokens",
        _mean("|r|"),
        _NATS,
    ),
    Figure("sampling/sampling_logp_difference/max", "largest |r|", _max("|r|"), _NATS),
    *(
        Figure(
            f"sampling/importance_sampling_ratio/{name}",
            f"{name} over sequences of exp(sum of r), 0 above 3",
            value,
        )
        for name, value in (
            ("min", lambda b: float(b.kept_ratio.min())),
            ("mean", lambda b: b.over_sequences(b.kept_ratio)),
            ("max", lambda b: float(b.kept_ratio.max())),
        )
    ),
)
_SLIME = (
    Figure(
        "train/train_rollout_logprob_abs_diff",
        "mean of sequence means of |r|",
        _mean_of_means("|r|"),
        _NATS,
    ),
    Figure("train/mis_kl", "mean of sequence means of -r", _mean_of_means("-r"), _NATS),
    Figure(
        "train/mis_k3_kl",
        "mean of sequence means of exp(r) - 1 - r",
        _mean_of_means("k3"),
        _NATS,
    ),
    *(
        Figure(f"train/mis_{name}", "mean over sequences of exp(-mean), 0 if all is masked", value)
        for name, value in (
            ("training_ppl", lambda b: b.over_trained(np.exp(-b.sequences.means("trainer")))),
            ("rollout_ppl", lambda b: b.over_trained(np.exp(-b.sequences.means("rollout")))),
        )
    ),
    Figure(
        "train/mis_chi2_token",
        "mean of sequence means of exp(r)² - 1",
        lambda b: b.over_trained(b.sequences.means("ratio^2") - 1),
    ),
)
_NEMO = (
    Figure("token_mult_prob_error", "mean of exp|r|; alarm at 1.05", _mean("exp|r|")),
    Figure("gen_kl_error", *_K3, _NATS),
    Figure("policy_kl_error", "mean of exp(-r) - 1 + r", _mean("k3 reverse"), _NATS),
    Figure(
        "js_divergence_error",
        "mean of half the k3 of either side to their mean",
        _mean("js"),
        _NATS,
    ),
    Figure("sampling_importance_ratio", "mean of exp(r)", _mean("exp r")),
)
_PRIME = (
    Figure("mismatch_kl/all/mean", *_K3, _NATS),
    Figure("mismatch_kl/all/std", "its standard deviation", _deviation("k3", "k3^2"), _NATS),
    Figure("mismatch_kl/all/max", "largest", _max("k3"), _NATS),
)
_ROLL = _named(
    "actor/train_infer_",
    {
        "ratio_token_mean": ("mean of sequence means of exp(r)", _mean_of_means("ratio")),
        "ratio_geometric_mean": _RATIO_GEOMETRIC,
        "ratio_sequence_mean": _RATIO_SEQUENCE,
        "diff_token_mean": (
            "mean of sequence means of the change of probability",
            _mean_of_means("dp"),
        ),
        "diff_sequence_mean": (
            "mean over sequences of its sum",
            lambda b: b.over_sequences(b.sequences.sums["dp"]),
        ),
    },
)
FRAMEWORKS = {
    framework.name: framework
    for framework in (
        Framework("ulpscope", "", _OWN),
        Framework(
            "verl",
            "0.9.1, trainer/ppo/rollout_corr_helper.py, utils/debug/metrics.py",
            _VERL,
            True,
        ),
        Framework("trl", "1.16.0, trainer/grpo_trainer.py", _TRL, True),
        Framework(
            "slime",
            "624b824a8, backends/megatron_utils/loss.py,"
            " examples/train_infer_mismatch_helper/mis.py",
            _SLIME,
            True,
        ),
        Framework(
            "miles",
            "31f1ca961, backends/training_utils/loss_hub/losses.py",
            _SLIME[:1],
            True,
        ),
        Framework("nemo-rl", "7ea279abf, algorithms/loss/loss_functions.py", _NEMO),
        Framework("prime-rl", "559b44772, trainer/rl/loss.py", _PRIME),
        Framework(
            "openrlhf",
            "0.11.2, models/loss.py",
            (Figure("vllm_kl", "mean of -r", _mean("-r"), _NATS),),
        ),
        Framework("ms-swift", "4.6.0, rlhf_trainers/grpo_trainer.py", _SWIFT, True),
        Framework("roll", "utils/train_infer_corrections.py", _ROLL),
        Framework(
            "areal",
            "1.0.4, utils/functional/functional.py",
            (
                Figure("behave_imp_weight", "mean of exp(r)", _mean("exp r")),
                Figure("behave_approx_kl", "mean of r", _mean("r"), _NATS),
            ),
        ),
    )
}


PERCENTILES = {f"p{100 * share:g}": share for share in (0.5, 0.9, 0.99, 0.999)}  # of |r|
FIGURE_NAMES = {
    *PERCENTILES,
    *(figure.name for framework in FRAMEWORKS.values() for figure in framework.figures),
}


def intervals(
    sequences: Sequences,
    figures: Sequence[Figure],
    *,
    draws: int = 200,
) -> list[tuple[float, float]]:
    """Return the 95 % interval of each figure by a bootstrap over sequences. [figures]

    Maxima have none worth the name: theirs is at most the maximum itself.
    """
    random, count = np.random.default_rng(0), len(sequences)
    values = np.empty((draws, len(figures)))
    for draw in range(draws):
        weights = np.bincount(random.integers(0, count, count), minlength=count).astype(np.float64)
        batch = Batch(sequences, weights)
        values[draw] = [figure.value(batch) for figure in figures]
    low, high = np.nanquantile(values, (0.025, 0.975), axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))
