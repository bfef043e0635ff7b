"""Rows of bits to compare: random patterns and the shapes logits take when something is odd about
them.
"""

import numpy as np

from core.numerics.formats import LOGIT_FORMATS


def _finite(rng, vocab, fmt):
    sign = rng.integers(0, 2, vocab).astype(fmt.carrier)
    sign <<= fmt.carrier.type(fmt.bits - 1)
    magnitude = rng.integers(0, fmt.first_nonfinite, vocab)
    return magnitude.astype(fmt.carrier) | sign


def _bits(values, fmt):
    return np.asarray(values).astype(fmt.values).view(fmt.carrier)


def _logits(rng, vocab, fmt):
    return _bits(rng.standard_normal(vocab) * 4, fmt)


def _nudged(rng, bits, fmt, share=0.7):
    """Some values a few steps further from or nearer to zero, never beyond the finite ones."""
    sign = bits & fmt.carrier.type(1 << (fmt.bits - 1))
    magnitude = (bits ^ sign).astype(np.int64)
    step = rng.integers(-3, 4, len(bits))
    step *= rng.random(len(bits)) < share
    return np.clip(magnitude + step, 0, fmt.first_nonfinite - 1).astype(fmt.carrier) | sign


def _with(bits, rng, what, fmt, share):
    is_replaced = rng.random(len(bits)) < share
    return np.where(is_replaced, _bits(what, fmt), bits)


def random_patterns(rng, vocab, fmt):
    """NaN payloads, infinities, subnormals: any bits."""
    return tuple(rng.integers(0, 1 << fmt.bits, (2, vocab), dtype=fmt.carrier))


def random_finite(rng, vocab, fmt):
    return _finite(rng, vocab, fmt), _finite(rng, vocab, fmt)


def close_logits(rng, vocab, fmt):
    a = _logits(rng, vocab, fmt)
    return a, _nudged(rng, a, fmt)


def apart_logits(rng, vocab, fmt):
    return _logits(rng, vocab, fmt), _logits(rng, vocab, fmt)


def one_ulp_somewhere(rng, vocab, fmt):
    a = _logits(rng, vocab, fmt)
    b = a.copy()
    # the last bit's flip carries into no other: a neighbor, one ULP away
    b[rng.integers(vocab)] ^= fmt.carrier.type(1)
    return a, b


def identical(rng, vocab, fmt):
    a = _logits(rng, vocab, fmt)
    return a, a.copy()


def many_ties(rng, vocab, fmt):
    few = _logits(rng, 5, fmt)
    return few[rng.integers(0, 5, vocab)], few[rng.integers(0, 5, vocab)]


def all_equal(rng, vocab, fmt):
    a = np.repeat(_logits(rng, 1, fmt), vocab)
    return a, _nudged(rng, a, fmt, share=0.05)


def tiny_and_signed_zeros(rng, vocab, fmt):
    sign = fmt.carrier.type(1 << (fmt.bits - 1))
    small = rng.integers(0, 3, (2, vocab)).astype(fmt.carrier)
    signs = np.where(rng.random((2, vocab)) < 0.5, sign, fmt.carrier.type(0))
    return small[0] | signs[0], small[1] | signs[1]


def rising(rng, vocab, fmt):
    """The maximum moves in every block, so that sums are rescaled again and again."""
    held = (rng.standard_normal(vocab) * 30).astype(fmt.values)
    a = _bits(np.sort(held.astype(np.float32)), fmt)
    return a, _nudged(rng, a, fmt)


def blocks_far_apart(rng, vocab, fmt):
    """Stretches where one side is hundreds of nats above the other, next to stretches where they
    agree.
    """
    base = rng.standard_normal(vocab)
    # 700 and 350 tokens divide no block of 2048: blocks begin inside a stretch
    lift = 300.0 * (np.arange(vocab) // 700 % 2)
    a = _bits(base + lift, fmt)
    b = _bits(base + np.roll(lift, 350), fmt)
    return a, np.where(rng.random(vocab) < 0.5, a, b)


def mask_part(rng, vocab, fmt):
    """Part of the vocabulary at -inf, on the variant only where the reference is too."""
    a = _with(_logits(rng, vocab, fmt), rng, -np.inf, fmt, 0.3)
    is_masked = a == _bits(-np.inf, fmt)
    return a, np.where(is_masked, a, _nudged(rng, a, fmt))


def masked_on_one_side(rng, vocab, fmt):
    a = _logits(rng, vocab, fmt)
    return a, _with(a, rng, -np.inf, fmt, 0.1)


def masked_all(rng, vocab, fmt):
    nothing = np.full(vocab, _bits(-np.inf, fmt))
    return nothing, nothing.copy() if rng.random() < 0.5 else _logits(rng, vocab, fmt)


def infinite_top(rng, vocab, fmt):
    # two in a row on average: none, one, or a tie of infinities
    return tuple(_with(_logits(rng, vocab, fmt), rng, np.inf, fmt, 2 / vocab) for _ in range(2))


def some_nan(rng, vocab, fmt):
    """NaNs of different payload and sign on both sides; the same places half of the time."""
    top = (1 << (fmt.bits - 1)) - 1
    a = _logits(rng, vocab, fmt)
    signs = rng.integers(0, 2, (2, vocab)).astype(fmt.carrier)
    signs <<= fmt.carrier.type(fmt.bits - 1)
    nans = rng.integers(fmt.first_nonfinite + 1, top + 1, (2, vocab))
    nans = nans.astype(fmt.carrier) | signs
    here = rng.random(vocab) < 0.1
    there = here if rng.random() < 0.5 else rng.random(vocab) < 0.1
    return np.where(here, nans[0], a), np.where(there, nans[1], a)


def all_nan(rng, vocab, fmt):
    nothing = np.full(vocab, (1 << (fmt.bits - 1)) - 1, fmt.carrier)
    return nothing, nothing.copy() if rng.random() < 0.5 else _logits(rng, vocab, fmt)


KINDS = (
    random_patterns,
    random_finite,
    close_logits,
    apart_logits,
    one_ulp_somewhere,
    identical,
    many_ties,
    all_equal,
    tiny_and_signed_zeros,
    rising,
    blocks_far_apart,
    mask_part,
    masked_on_one_side,
    masked_all,
    infinite_top,
    some_nan,
    all_nan,
)
FINITE_KINDS = (
    random_finite,
    close_logits,
    apart_logits,
    many_ties,
    all_equal,
    tiny_and_signed_zeros,
    rising,
    blocks_far_apart,
)
ALL_FORMATS = tuple(LOGIT_FORMATS.values())


def rows_of_all_kinds(
    seed,
    rows,
    vocab,
    fmt,
    kinds=KINDS,
):
    """[rows, vocab] twice, the kinds taking turns from a random first one."""
    rng = np.random.default_rng(seed)
    first = int(rng.integers(len(kinds)))
    pairs = []
    for row in range(rows):
        make = kinds[(first + row) % len(kinds)]
        pairs.append(make(rng, vocab, fmt))
    references, variants = zip(*pairs, strict=True)
    return np.stack(references), np.stack(variants)
