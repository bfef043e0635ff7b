"""Mismatch of a trainer and its rollout engine over the sampled tokens, as RL frameworks define it.

r is the trainer's log-probability of a token minus the rollout's, ratio is exp(r), and a sequence
is one response. A figure is made of sums by sequence, so that tokens are read once, in parts, and a
bootstrap draws sequences again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import methodcaller
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.integer]
Flags = NDArray[np.bool_]
# verl, slime and ms-swift clamp log-ratios so before exp
CLAMP = 20.0
# bars in the frameworks' references
TIS = 2.0
ICEPOP = (0.5, 5.0)
DPPO = 0.2
GEOMETRIC = (0.999, 1.002)
VETO = 1e-4
_LARGEST = 700.0  # of which float64 has the exponential
_TRL_CAP = 3.0  # vllm_importance_sampling_clip_max
_LAGGED = 3.0  # times mean |r| of the best step


@dataclass(frozen=True)
class SampledTokens:
    """Tokens of the loss, sequence after sequence. [tokens] each; values NaN if missing.

    position: index in the sequence; turn: masked stretches before it; groups: step and others, NaN
    or '' if unknown.
    """

    sequence: Integers
    position: Integers
    rollout: Floats
    trainer: Floats
    turn: Integers | None = None
    entropy: Floats | None = None
    lag: Floats | None = None
    groups: Mapping[str, NDArray] = field(default_factory=dict)
    names: tuple[str, str] = ("rollout", "trainer")

    @property
    def r(self) -> Floats:
        return self.trainer - self.rollout

    @property
    def starts(self) -> Integers:
        """Index of each sequence's first token. [sequences]"""
        return np.flatnonzero(np.append(True, self.sequence[1:] != self.sequence[:-1]))

    @property
    def lengths(self) -> Integers:
        """Tokens of each sequence. [sequences]"""
        return np.diff(np.append(self.starts, len(self.r)))

    def select(self, selection: Flags) -> SampledTokens:
        """Return some of the tokens."""
        values: dict[str, Any] = {
            name: each[selection]
            for name, each in vars(self).items()
            if isinstance(each, np.ndarray)
        }
        groups = {name: each[selection] for name, each in self.groups.items()}
        return replace(self, groups=groups, **values)


_SQUARED = (
    "rollout",
    "trainer",
    "r",
    "ratio",
    "truncated",
    "k3",
    "p rollout",
    "p trainer",
    "dp",
)
_MAXIMA = ("r", "-r", "|r|", "|dp|", "k3")


def _k3(r: Floats) -> Floats:
    """exp(r) - 1 - r, an estimate of KL(rollout ‖ trainer) that is never negative."""
    with np.errstate(over="ignore"):
        return np.expm1(r) - r


def _quantities(rollout: Floats, trainer: Floats) -> Iterator[tuple[str, NDArray]]:
    """Yield what figures are sums of, by its name, one after another: only sums stay in memory.
    [tokens] each
    """
    r = trainer - rollout
    clamped = np.clip(r, -CLAMP, CLAMP)
    ratio = np.exp(clamped)
    p_rollout = np.exp(rollout)
    p_trainer = np.exp(trainer)
    change = p_trainer - p_rollout
    yield "tokens", np.ones(len(r))
    yield "rollout", rollout
    yield "trainer", trainer
    yield "r", r
    yield "-r", -r
    yield "|r|", np.abs(r)
    yield "exp|r|", np.exp(np.abs(r))
    yield "ratio", ratio
    yield "exp r", np.exp(np.minimum(r, _LARGEST))
    yield "truncated", np.minimum(ratio, TIS)
    yield "chi2", ratio**2 - 1
    yield "k2", r**2 / 2
    yield "k3", _k3(r)
    yield "k3<=10", np.minimum(ratio - 1 - clamped, 10)
    yield "k3 reverse", _k3(-r)
    # Jensen-Shannon divergence by k3 of either side against their mean
    mixture = np.logaddexp(trainer, rollout) - np.log(2)
    yield "js", 0.5 * (_k3(trainer - mixture) + _k3(rollout - mixture))
    yield "p rollout", p_rollout
    yield "p trainer", p_trainer
    yield "dp", change
    yield "|dp|", np.abs(change)
    yield "above TIS", ratio > TIS
    yield "below 1/TIS", ratio < 1 / TIS
    yield "outside IcePop", (ratio < ICEPOP[0]) | (ratio > ICEPOP[1])
    yield "beyond DPPO", np.abs(change) > DPPO
    yield "below veto", r < np.log(VETO)
    yield "rollout*trainer", rollout * trainer
    yield "p rollout*p trainer", p_rollout * p_trainer


@dataclass(frozen=True, eq=False)
class Sequences:
    """Sums of the tokens by sequence; of one without a token of the loss they are 0, and its maxima
    are -inf.

    sums: of a quantity by its name, of its square as `name^2`; its maximum as `max name`; `tokens`:
    how many. [sequences] each
    """

    sums: Mapping[str, Floats]

    @classmethod
    def of(cls, rollout: Floats, trainer: Floats, lengths: Integers) -> Sequences:
        """Sequences of `lengths` tokens, one after another, those of 0 left out. rollout, trainer:
        log-probabilities of the same tokens, finite. [tokens] each
        """
        lengths = lengths[lengths > 0]
        starts = np.cumsum(lengths) - lengths
        sums = {}
        for name, values in _quantities(rollout, trainer):
            sums[name] = np.add.reduceat(values, starts, dtype=np.float64)
            if name in _SQUARED:
                sums[f"{name}^2"] = np.add.reduceat(np.square(values), starts)
            if name in _MAXIMA:
                sums[f"max {name}"] = np.maximum.reduceat(values, starts)
        return cls(sums)

    def __len__(self) -> int:
        return len(self.sums["tokens"])

    def means(self, name: str) -> Floats:
        """Return the means of a quantity. [sequences]"""
        return self.sums[name] / np.maximum(self.sums["tokens"], 1)

    @cached_property
    def values(self) -> dict[str, NDArray]:
        """What figures say of whole sequences, by its name. [sequences] each"""
        ratio = np.exp(np.clip(self.sums["r"], -CLAMP, CLAMP))
        geometric = np.exp(np.clip(self.means("r"), -CLAMP, CLAMP))
        unclamped = np.exp(np.minimum(self.sums["r"], _LARGEST))
        minus_r = self.means("-r")
        truncated = self.means("truncated")
        mean_ratio = self.means("ratio")
        values = {
            "ratio": ratio,
            "chi2": ratio**2 - 1,
            "geometric ratio": geometric,
            "geometric chi2": geometric**2 - 1,
            "outlying": (geometric < GEOMETRIC[0]) | (geometric > GEOMETRIC[1]),
            "vetoed": self.sums["below veto"] > 0,
            # TRL's `sequence_mask`
            "kept ratio": np.where(unclamped > _TRL_CAP, 0.0, unclamped),
            "sum dp": self.sums["dp"],
            "mean -r": minus_r,
            "|mean -r|": np.abs(minus_r),
            "exp mean -r": np.exp(minus_r),
            "mean truncated": truncated,
            "|mean truncated - 1|": np.abs(truncated - 1),
            "above TIS": mean_ratio > TIS,
            "below 1/TIS": mean_ratio < 1 / TIS,
        }
        for side in ("rollout", "trainer"):
            log_perplexity = -self.means(side)
            perplexity = np.exp(log_perplexity)
            values[f"log ppl {side}"] = log_perplexity
            values[f"ppl {side}"] = perplexity
            values[f"trained ppl {side}"] = perplexity * (self.sums["tokens"] > 0)
        return values


class Batch:
    """Sequences with how often each one counts: once, or as often as a bootstrap drew it."""

    def __init__(self, sequences: Sequences, weights: Floats | None = None) -> None:
        self.sequences = sequences
        self.weights = np.ones(len(sequences)) if weights is None else weights
        # a draw may hold masked sequences alone
        self.tokens = self.sum("tokens") or np.nan

    def sum(self, name: str) -> float:
        """Return the sum over all tokens."""
        return float(self.weights @ self.sequences.sums[name])

    def mean(self, name: str) -> float:
        """Return the mean over all tokens."""
        return self.sum(name) / self.tokens

    def mean_of_means(self, name: str) -> float:
        """Return the mean over sequences of the mean over their tokens."""
        return self._over_sequences(self.sequences.means(name))

    def mean_of(self, name: str) -> float:
        """Return the mean of a value of each sequence."""
        return self._over_sequences(self.sequences.values[name])

    def _over_sequences(self, values: NDArray) -> float:
        return float(self.weights @ values / self.weights.sum())

    def largest(self, name: str) -> float:
        """Return the largest value of a sequence, each of which counts once also in a draw."""
        return float(self.sequences.values[name].max())

    def least(self, name: str) -> float:
        """Return the least value of a sequence."""
        return float(self.sequences.values[name].min())

    def deviation_of(self, name: str) -> float:
        """Return the standard deviation of a value of each sequence, over their number less one."""
        values = self.sequences.values[name]
        return float(np.std(values, ddof=1)) if len(values) > 1 else np.nan

    def max(self, name: str) -> float:
        """Return the maximum over all tokens, NaN if there is none."""
        largest = float(self.sequences.sums[f"max {name}"][self.weights > 0].max())
        return largest if largest > -np.inf else np.nan

    def largest_truncated(self) -> float:
        """Return the largest ratio, at most 2."""
        return float(min(np.exp(self.max("r")), TIS))

    def least_truncated(self) -> float:
        """Return the least ratio, clamped."""
        return float(min(np.exp(max(-self.max("-r"), -CLAMP)), TIS))

    def _variance(self, name: str, square: str) -> float:
        # never negative: of equal values the difference of the means rounds to either side of 0
        return max(self.mean(square) - self.mean(name) ** 2, 0.0)

    def spread(self, name: str) -> float:
        """Return the standard deviation over all tokens, over their number."""
        return float(np.sqrt(self._variance(name, f"{name}^2")))

    def deviation(self, name: str, square: str) -> float:
        """Return the standard deviation over all tokens, over their number less one."""
        squares = self._variance(name, square) * self.tokens
        return float(np.sqrt(squares / (self.tokens - 1))) if self.tokens > 1 else np.nan

    def pearson(self, a: str, b: str) -> float:
        """Return the correlation of two quantities over all tokens."""
        spreads = self.spread(a) * self.spread(b)
        product = self.mean(f"{a}*{b}") - self.mean(a) * self.mean(b)
        return product / spreads if spreads else np.nan

    def sample_size(self, name: str) -> float:
        """Return the effective sample size of importance weights as a share of the tokens."""
        return self.sum(name) ** 2 / (self.tokens * self.sum(f"{name}^2"))


Value = Callable[[Batch], float]


@dataclass(frozen=True)
class Figure:
    """Figure of a batch under its framework's name. unit: '' of what has none."""

    name: str
    definition: str
    value: Value
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


# the mean of exp(r) is 1 over all tokens that the rollout may sample, not over those it sampled
_ESTIMATE = "(estimate, can be negative)"
# of verl, taken over by ms-swift but for k3 and chi2 of sequences
_OFF_POLICY = """
kl                mean -r                  mean of -r
k3_kl             {k3}
training_ppl      mean_of ppl trainer      mean over sequences of exp(-mean)
training_log_ppl  mean_of log ppl trainer  mean of sequence means
rollout_ppl       mean_of ppl rollout      mean over sequences of exp(-mean)
rollout_log_ppl   mean_of log ppl rollout  mean of sequence means
log_ppl_diff      mean_of_means -r         mean of sequence means of -r
log_ppl_abs_diff  mean_of |mean -r|        the same, absolute
log_ppl_diff_max  largest mean -r          largest of them
log_ppl_diff_min  least mean -r            least of them
ppl_ratio         mean_of exp mean -r      mean over sequences of exp(mean of -r)
chi2_token        mean chi2                mean of exp(r)² - 1 {estimate}
chi2_seq          {chi2}
"""
_OF_VERL = _OFF_POLICY.format(
    k3="mean k3  mean of exp(r) - 1 - r",
    chi2=f"mean_of chi2  mean over sequences of exp(sum of r)² - 1 {_ESTIMATE}",
    estimate=_ESTIMATE,
)
_OF_SWIFT = _OFF_POLICY.format(
    k3="mean k3<=10  mean of exp(r) - 1 - r, at most 10",
    chi2=f"mean_of geometric chi2  mean over sequences of exp(mean of r)² - 1 {_ESTIMATE}",
    estimate=_ESTIMATE,
)
# Figures of each framework, after a line with its name, whether its means over sequences count
# those without a token of the loss, and the version and files that define them.
# A row has a figure's name, its value, and its definition with its unit; in brackets is what names
# begin with. A value is a method of Batch with the names of quantities, or of values of sequences.
_TABLES = f"""
= ulpscope
mean_abs             mean |r|                      mean of |r| over tokens, nats
max_abs              max |r|                       largest |r|, nats
k1                   mean -r                       mean of -r, nats
k2                   mean k2                       mean of r² / 2, nats
k3                   mean k3                       mean of exp(r) - 1 - r, nats
ratio                mean ratio                    mean of exp(r) over tokens
ratio_sequence       mean_of ratio                 mean over sequences of exp(sum of r)
ratio_geometric      mean_of geometric ratio       mean over sequences of exp(mean of r)
ess  sample_size ratio  effective sample size of exp(r), share of the tokens
ess_truncated        sample_size truncated         the same of exp(r), at most 2
chi2                 mean chi2                     mean of exp(r)² - 1 {_ESTIMATE}
chi2_sequence   mean_of chi2            mean over sequences of exp(sum of r)² - 1 {_ESTIMATE}
chi2_geometric  mean_of geometric chi2  mean over sequences of exp(mean of r)² - 1 {_ESTIMATE}
perplexity_rollout   mean_of ppl rollout           mean over sequences
perplexity_trainer   mean_of ppl trainer           mean over sequences
pearson              pearson rollout, trainer      correlation of log-probabilities
pearson_probability  pearson p rollout, p trainer  correlation of probabilities
above_tis            mean above TIS                share of tokens with exp(r) above 2
outside_icepop       mean outside IcePop           share of tokens with exp(r) outside 0.5 to 5
beyond_dppo  mean beyond DPPO  share of tokens whose probability moves by over 0.2
outside_geometric  mean_of outlying  share of sequences with exp(mean of r) outside 0.999 to 1.002
vetoed  mean_of vetoed  share of sequences with a token whose exp(r) is below 1e-4

= verl, counts masked: 0.9.1, trainer/ppo/rollout_corr_helper.py, utils/debug/metrics.py
[rollout_corr/]
{_OF_VERL}
[rollout_corr/rollout_is_]
mean                 mean truncated                mean of exp(r), at most 2
max                  largest_truncated             largest, at most 2
min                  least_truncated               least, at least exp(-20)
std                  spread truncated              standard deviation over the tokens
eff_sample_size      sample_size truncated         of exp(r), at most 2; share of the tokens
ratio_fraction_high  mean above TIS                share of tokens with exp(r) above 2
ratio_fraction_low   mean below 1/TIS              share of tokens with exp(r) below 0.5
seq_mean             mean_of_means truncated       mean of sequence means
seq_std              deviation_of mean truncated   their standard deviation
seq_max              largest mean truncated        largest of them
seq_min              least mean truncated          least of them
seq_max_deviation    largest |mean truncated - 1|  largest distance from 1
seq_fraction_high    mean_of above TIS             share of sequences with a mean of exp(r) above 2
seq_fraction_low     mean_of below 1/TIS           share of sequences with one below 0.5
[training/rollout_]
probs_diff_max            max |dp|                      largest change of probability
probs_diff_mean           mean |dp|                     mean of |change of probability|
probs_diff_std            deviation |dp|, dp^2          its standard deviation
actor_probs_pearson_corr  pearson p rollout, p trainer  correlation of probabilities

= trl, counts masked: 1.16.0, trainer/grpo_trainer.py
[sampling/sampling_logp_difference/]
mean  mean |r|  mean of |r| over tokens, nats
max   max |r|   largest |r|, nats
[sampling/importance_sampling_ratio/]
min   least kept ratio    min over sequences of exp(sum of r), 0 above 3
mean  mean_of kept ratio  mean over sequences of exp(sum of r), 0 above 3
max   largest kept ratio  max over sequences of exp(sum of r), 0 above 3

= slime, counts masked: 624b824a8, backends/megatron_utils/loss.py, \
examples/train_infer_mismatch_helper/mis.py
[train/]
train_rollout_logprob_abs_diff  mean_of_means |r|  mean of sequence means of |r|, nats
mis_kl            mean_of_means -r             mean of sequence means of -r, nats
mis_k3_kl         mean_of_means k3             mean of sequence means of exp(r) - 1 - r, nats
mis_training_ppl  mean_of trained ppl trainer  mean over sequences of exp(-mean), 0 if all is masked
mis_rollout_ppl   mean_of trained ppl rollout  mean over sequences of exp(-mean), 0 if all is masked
mis_chi2_token    mean_of_means chi2           mean of sequence means of exp(r)² - 1 {_ESTIMATE}

= miles, counts masked: 31f1ca961, backends/training_utils/loss_hub/losses.py
[train/]
train_rollout_logprob_abs_diff  mean_of_means |r|  mean of sequence means of |r|, nats

= nemo-rl: 7ea279abf, algorithms/loss/loss_functions.py
token_mult_prob_error      mean exp|r|      mean of exp|r|; alarm at 1.05
gen_kl_error               mean k3          mean of exp(r) - 1 - r, nats
policy_kl_error            mean k3 reverse  mean of exp(-r) - 1 + r, nats
js_divergence_error        mean js          mean of half the k3 of either side to their mean, nats
sampling_importance_ratio  mean exp r       mean of exp(r)

= prime-rl: 559b44772, trainer/rl/loss.py
[mismatch_kl/all/]
mean  mean k3             mean of exp(r) - 1 - r, nats
std   deviation k3, k3^2  its standard deviation, nats
max   max k3              largest, nats

= openrlhf: 0.11.2, models/loss.py
vllm_kl  mean -r  mean of -r, nats

= ms-swift, counts masked: 4.6.0, rlhf_trainers/grpo_trainer.py
[rollout_correction/]
{_OF_SWIFT}

= roll: utils/train_infer_corrections.py
[actor/train_infer_]
ratio_token_mean      mean_of_means ratio      mean of sequence means of exp(r)
ratio_geometric_mean  mean_of geometric ratio  mean over sequences of exp(mean of r)
ratio_sequence_mean   mean_of ratio            mean over sequences of exp(sum of r)
diff_token_mean       mean_of_means dp         mean of sequence means of the change of probability
diff_sequence_mean    mean_of sum dp           mean over sequences of its sum

= areal: 1.0.4, utils/functional/functional.py
behave_imp_weight  mean exp r  mean of exp(r)
behave_approx_kl   mean r      mean of r, nats
"""
_MASKED = ", counts masked"


def _framework(table: str) -> Framework:
    head, *lines = filter(None, table.splitlines())
    owner, _, source = head.partition(": ")
    prefix = ""
    figures = []
    for line in lines:
        if line.startswith("["):
            prefix = line.strip("[]")
            continue
        name, value, definition = re.split(r" {2,}", line)
        method, _, of = value.partition(" ")
        compute = methodcaller(method, *filter(None, of.split(", ")))
        unit = "nats" if definition.endswith(", nats") else ""
        figures.append(Figure(prefix + name, definition.removesuffix(", nats"), compute, unit))
    name = owner.removesuffix(_MASKED)
    return Framework(name, source, tuple(figures), counts_masked=owner != name)


FRAMEWORKS = {each.name: each for each in map(_framework, _TABLES.split("\n= ")[1:])}


@dataclass(frozen=True)
class Bar:
    """What a framework takes for normal of some figures."""

    framework: str
    low: float
    high: float

    def holds(self, value: float | None) -> bool:
        return value is not None and self.low <= value <= self.high

    def state(self, value: float | None) -> str:
        """`within what NeMo-RL calls normal`, or beyond it."""
        return f"{'within' if self.holds(value) else 'beyond'} what {self.framework} calls normal"

    @property
    def span(self) -> str:
        """`at most 0.001`."""
        if self.low == -np.inf:
            return f"at most {self.high:g}"
        if self.high == np.inf:
            return f"at least {self.low:g}"
        return f"{self.low:g} to {self.high:g}"


# framework, from, to, figures: ULPscope's, and the framework's own. NeMo-RL: its GRPO guide;
# verl: its docs on rollout correction; slime and miles: their CI
_BARS = """
NeMo-RL  -inf  0.001  k3, gen_kl_error
NeMo-RL  -inf  1.05   token_mult_prob_error
verl     0.3   inf    ess, ess_truncated, {is}eff_sample_size
verl     0.5   2      ratio, {is}mean
verl     -0.1  0.1    k1, rollout_corr/kl
verl     -inf  1      chi2, rollout_corr/chi2_token, {is}std
slime    -inf  0.1    train/train_rollout_logprob_abs_diff
miles    -inf  0.03   train/train_rollout_logprob_abs_diff
""".replace("{is}", "rollout_corr/rollout_is_")


def bar_of(figure: str, framework: str = "ulpscope") -> Bar | None:
    """Return the bar of a figure, that of its own framework if it has one."""
    bars = []
    for line in _BARS.strip().splitlines():
        owner, low, high, names = re.split(r" {2,}", line)
        if figure in names.split(", "):
            bars.append(Bar(owner, float(low), float(high)))
    return max(bars, key=lambda bar: bar.framework.lower() == framework, default=None)


PERCENTILES = {f"p{100 * share:g}": share for share in (0.5, 0.9, 0.99, 0.999)}  # of |r|
FIGURE_NAMES = {
    *PERCENTILES,
    *(figure.name for framework in FRAMEWORKS.values() for figure in framework.figures),
}


def stands_out(means: Floats) -> Flags:
    """Return which means of |r| of steps, environments and so on are far above the least."""
    return (means > 0) & (means >= _LAGGED * means.min(initial=np.inf))


def intervals(
    sequences: Sequences,
    figures: Sequence[Figure],
    *,
    draws: int = 200,
) -> list[tuple[float, float]]:
    """Return the 95 % interval of each figure by a bootstrap over sequences. [figures]

    Maxima have none worth the name: theirs is at most the maximum itself.
    """
    random = np.random.default_rng(0)
    count = len(sequences)
    values = np.empty((draws, len(figures)))
    for draw in range(draws):
        weights = np.bincount(random.integers(0, count, count), minlength=count).astype(np.float64)
        batch = Batch(sequences, weights)
        values[draw] = [figure.value(batch) for figure in figures]
    low, high = np.nanquantile(values, (0.025, 0.975), axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))
