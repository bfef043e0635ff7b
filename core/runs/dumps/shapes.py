"""Shapes of a dump's sides: the one that all of them have, or what to do about another one."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...errors import DumpError
from ...numerics.formats import values_of
from ...text import clean, plural
from ..file.records import MAX_ROWS, MAX_VOCAB
from .arrays import Arrays, Shape, StoredArray, rows_of
from .source_dtype import side_of

LOGITS = "logits"  # what a user may say that arrays hold which look like something else
PADDED = "padded"  # or that the last tokens of wider sides are padding
VALUES = "values"  # or that rows are no logits: embeddings, hidden states, scores
HOLDS = "--holds {} (under New run, 'Holds')"
# Padding fills a vocabulary up to a multiple of 64 to 1,024, times the ranks that share it.
_MOST_PADDING, _PADDING_SHARE = 1024, 0.02
_MOST_RANKS = 64
# Rows fit from a half of equal argmaxes on, if no other place has half as many; fewer tokens say
# nothing.
_AGREES, _LEAST_TOKENS = 0.5, 4
# A side may be called layer_3_fp8, block_32 or h100.
_LAYER = re.compile(
    r"(.*[./])?(layers?[._/]?\d+|(h|blocks?)[./]\d+)([./].*)?|.*hidden[._]?(states?|\d+).*",
    re.IGNORECASE,
)
_MOST_COMPARED = 1 << 28  # pairs of rows, about 1 s


def check_layers(file: str, names: Sequence[str], most: int) -> None:
    """DumpError if the sides of a file are layers of a model, or several lists of tensors, by their
    names. most: sides of a file
    """
    stems = [
        stem for stem, _, number in (name.rpartition("/") for name in names) if number.isdecimal()
    ]
    lists = [stem for stem, count in Counter(stems).items() if count > 1]
    layers = [name for name in names if _LAYER.fullmatch(name)]
    if len(lists) > 1 or (lists and len(stems) > most):
        name = clean(lists[0], 60) or "outputs"
        says = (
            f"'{name}' is a list of {stems.count(lists[0])} tensors. Save steps as"
            f" torch.stack({name}, 1)"
        )
    elif len(layers) > 1 and 2 * len(layers) >= len(names):
        says = f"'{clean(layers[0], 60)}' and others are tensors of layers. Save logits alone"
    else:
        return
    raise DumpError(f"{file}: {says}; for layers see Tensor dumps in docs/guides/engines.md.")


def common_shape(
    arrays: Arrays,
    *,
    has_tokens: bool,
) -> Shape:
    """Return the shape all sides have once axes of size 1 are dropped: 1 to 3 axes, the last the
    vocabulary, or the values of a row.
    """
    shapes = {name: shape_of(array, has_tokens=has_tokens) for name, array in arrays.items()}
    first, common = next(iter(shapes.items()))
    for name, shape in shapes.items():
        array = arrays[name]
        if shape == common:
            continue
        problem = f"has shape {clean(array.shape)}"
        need = f"{clean(arrays[first].shape)} as '{clean(first)}' has"
        if not has_tokens:
            raise array.refusal(problem, need)
        if shape[:-1] == common[:-1]:
            check_shards(array.file, {name: shape[-1], first: common[-1]})
            sizes = (
                f"{array.file}: '{clean(name)}' has {shape[-1]:,} tokens, '{clean(first)}'"
                f" {common[-1]:,}"
            )
            least, most = sorted((shape[-1], common[-1]))
            more = most - least
            if more > max(_MOST_PADDING, _PADDING_SHARE * least):
                raise DumpError(f"{sizes}: more than padding. Save the logits of one vocabulary.")
            how = f"{HOLDS.format(PADDED)} compares the first {least:,}"
            raise DumpError(f"{sizes}. A vocabulary padded by {plural(more, 'token')}? {how}.")
        # a single row has no axis of positions left
        other_length = len(shape) == len(common) and shape[:-2] == common[:-2]
        if other_length and shape[-1] == common[-1]:
            both = {name: array, first: arrays[first]}
            raise _other_length(both, {name: shape, first: common})
        fix = "save the same positions of both"
        if len(shape) == 2 and shape == common[::-1]:
            fix = "one of them is [vocab, positions]; save it transposed (array.T)"
        raise array.refusal(problem, f"{need}: {fix}")
    return common


def in_rows(array: StoredArray) -> StoredArray:
    """Return values with an axis for those of a row: of [rows] there is one a row."""
    if len(array.shape) != 1:
        return array
    shape = array.size, 1
    return replace(array, shape=shape, rows=rows_of(lambda: array.rows(0, 1).reshape(shape)))


def shape_of(array: StoredArray, *, has_tokens: bool = True) -> Shape:
    """Return the shape of a side without axes of size 1."""
    if not array.shape:
        raise array.refusal("is a single number", "logits of shape [..., vocab]")
    problem = f"has shape {clean(array.shape)}"
    shape = (*(n for n in array.shape[:-1] if n != 1), array.shape[-1])
    if len(shape) > 3:
        raise array.refusal(problem, "(positions, vocab) or (prompts, positions, vocab)")
    fewest, what = (2, "tokens, the vocabulary") if has_tokens else (1, "values")
    if not fewest <= shape[-1] <= MAX_VOCAB:
        raise array.refusal(problem, f"a last axis of {fewest} to {MAX_VOCAB} {what}")
    if array.size // shape[-1] > MAX_ROWS:
        raise array.refusal(problem, f"at most {MAX_ROWS} positions")
    return shape


def check_shards(file: str, widths: Mapping[str, int]) -> None:
    """DumpError if a side has the share of a vocabulary that one rank of tensor parallelism has.
    widths: by name.
    """
    narrow, wide = min(widths, key=widths.__getitem__), max(widths, key=widths.__getitem__)
    least, most = widths[narrow], widths[wide]
    ranks = math.ceil(most / least)
    padding = max(min(_MOST_PADDING, most // 8), int(_PADDING_SHARE * most))
    if 1 < ranks <= _MOST_RANKS and ranks * least - most <= padding:
        raise DumpError(
            f"{file}: '{clean(narrow)}' has {least:,} tokens, '{clean(wide)}' {most:,}: one rank of"
            f" {ranks}? Join the ranks: np.concatenate(ranks, -1).",
        )


def _other_length(
    arrays: Arrays,
    shapes: Mapping[str, Shape],
) -> DumpError:
    """Error about two sides of different numbers of positions that says which rows fit, if some
    do.
    """
    (name, shape), (first, common) = shapes.items()
    sizes = (
        f"{arrays[name].file}: '{clean(name)}' has {plural(shape[-2], 'position')},"
        f" '{clean(first)}' {common[-2]:,}"
    )
    shorter, longer = sorted(shapes, key=lambda each: shapes[each][-2])
    length, total = shapes[shorter][-2], shapes[longer][-2]
    start = None
    if all(array.dtype.kind in "fV" for array in arrays.values()):
        argmaxes = []
        for one in (longer, shorter):
            side = side_of(one, arrays[one], None)
            parts = []
            for raw in arrays[one].blocks():
                values = values_of(side.bits(raw), side.fmt)
                parts.append(np.where(np.isnan(values), -np.inf, values).argmax(axis=1))
            argmaxes.append(np.concatenate(parts).reshape(-1, shapes[one][-2]))
        tokens, fewer = argmaxes
        last = total - length
        starts = list(range(last + 1))
        if len(starts) * fewer.size > _MOST_COMPARED:
            starts = [0, 1, last - 1, last]
        shares = [(tokens[:, at : at + length] == fewer).mean() for at in starts]
        *_, second, best = sorted(shares)
        is_clear = best >= _AGREES and best > 2 * second
        if is_clear and len(np.unique(fewer)) >= _LEAST_TOKENS:
            start = starts[shares.index(best)]
    if start is None:
        return DumpError(f"{sizes}. Save the same positions of both.")
    ends = f"{start or ''}:{'' if start + length == total else start + length}"
    part = f"{clean(longer)}[{':, ' * (len(shape) - 2)}{ends}]"
    return DumpError(
        f"{sizes}. Rows {start} to {start + length - 1} of '{clean(longer)}' fit: pass {part}.",
    )
