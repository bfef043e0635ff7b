"""Dumps as an engine with a known fault would save them, made of numbers: a linear 'model' whose
rounding is real and whose bugs are planted.

Logits are products of states and a head, states as a trained model has them: each position leans to
one token. 16-bit sides round the products; float32 sides compute them in float32, in another order
on each side.
"""

import ml_dtypes
import numpy as np

ROWS, WIDTH, VOCAB = 48, 512, 600


def rounded(values):
    """The nearest bfloat16 values, in float64."""
    return values.astype(ml_dtypes.bfloat16).astype(np.float64)


def states(seed=0):
    """(states [ROWS, WIDTH], head [WIDTH, VOCAB]), every value a bfloat16 one, so that both
    precisions compute one function.
    """
    random = np.random.default_rng(seed)
    head = rounded(random.standard_normal((WIDTH, VOCAB)) / 16)
    leaning = head[:, random.integers(0, VOCAB, ROWS)].T * 8
    noise = random.standard_normal((ROWS, WIDTH)) * 0.5
    return rounded(leaning + noise), head


def parts_of(x, head, order, count):
    """The product as addends, of columns of x in a drawn order. [ROWS, VOCAB] each"""
    places = np.random.default_rng(order).permutation(x.shape[1])
    for part in np.array_split(places, count):
        yield x[:, part] @ head[part]


def in_float32(x, head, order):
    """The product in float32, summed in a drawn order. [ROWS, VOCAB]"""
    return sum(parts_of(x.astype(np.float32), head.astype(np.float32), order, 16))


def in_bfloat16(x, head, order):
    """Partial sums rounded to bfloat16, as a split reduction does, in float32 clothing. [ROWS,
    VOCAB]
    """
    total = 0.0
    for part in parts_of(x, head, order, 8):
        total = rounded(total + part)
    return total.astype(np.float32)


def with_fault(x, rows=slice(None), factor=1.02):
    """Another function: an eighth of some states scaled."""
    faulty = x.copy()
    faulty[rows, : WIDTH // 8] *= factor
    return faulty


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


def changed(array, *places):
    """A copy with other values at these (index, value)."""
    array = array.copy()
    for place, value in places:
        array[place] = value
    return array
