"""Experts that an engine recorded: in the forms in which engines and RL frameworks hand them over,
and checked before anything is compared.

A capture may hold what no router chose: a buffer that was never filled, rows of another request,
one layer in another's place. The row of a token is of the forward that reads this token.
"""

import base64
import hashlib
import io
import json

import numpy as np
from numpy.typing import NDArray

from ..errors import DumpError
from ..text import plural
from .arrays import Flags

Choices = NDArray[np.integer]  # ids of experts [positions, layers, k]; -1: not recorded
MISSING = -1
_MOST_EXPERTS = 1 << 15  # of a layer; token ids are mostly larger
# Rows that are compared together: of 3 layers with 2 of 4 experts, one row equals another at 1 of
# 216 tokens, and 8 in a row never.
_BLOCK = 8


def read_choices(text: str) -> Choices:
    """Read the experts of a sequence, lists as JSON or base64 of a .npy file, as vLLM sends them.
    [positions, layers, k]; DumpError for anything else.
    """
    try:
        if text.startswith("["):
            ids = np.array(json.loads(text))
        else:
            raw = base64.b64decode(text, validate=True)
            ids = np.load(io.BytesIO(raw), allow_pickle=False)
        if ids.ndim != 3 or ids.dtype.kind not in "iu":
            raise ValueError("are no whole numbers [tokens, layers, experts]")
    except (ValueError, EOFError, RecursionError) as error:
        raise DumpError(
            "cannot be read: expected whole numbers [tokens, layers, experts], as lists or base64"
            " of a .npy file",
        ) from error
    return ids


def write_choices(ids: Choices) -> str:
    """Return choices as text that `read_choices` reads, in the fewest bytes that hold -1 too."""
    file = io.BytesIO()
    narrow = np.min_scalar_type(MISSING - int(ids.max(initial=0)))
    np.save(file, ids.astype(narrow, casting="same_kind"))
    return base64.b64encode(file.getvalue()).decode()


def is_choice(ids: Choices) -> Flags:
    """Return whether a router can have chosen so: k different experts. [positions, layers]"""
    ordered = np.sort(ids, axis=-1)
    are_different = (ordered[..., 1:] > ordered[..., :-1]).all(axis=-1)
    return are_different & (ordered[..., 0] > MISSING)


def check_choices(ids: Choices, tokens: int) -> list[str]:
    """Return what is odd about the choices of a sequence, a clause each.

    tokens: of the sequence, whose last one may have no row. DumpError, also a clause, if nothing
    can be compared.
    """
    positions, layers, k = ids.shape
    if positions not in (tokens - 1, tokens):
        raise DumpError(f"has {plural(positions, 'row')} for {plural(tokens, 'token')}")
    if ids.size and (ids == ids.flat[0]).all():
        raise DumpError(f"is {ids.flat[0]} everywhere: never filled")
    outside = ids[(ids < MISSING) | (ids >= _MOST_EXPERTS)]
    if len(outside):
        raise DumpError(f"has the id {outside[0]}; expected 0 to {_MOST_EXPERTS - 1:,}")
    clauses = []
    is_missing = (ids == MISSING).any(axis=-1)
    if is_missing.any():
        clauses.append("no experts (-1) at some positions")
    repeats = ~is_choice(ids) & ~is_missing
    if repeats.any():
        where = np.flatnonzero(repeats.any(axis=0)).tolist()
        clauses.append(f"fewer than {k} different experts in layers {where}, as in dense layers")
    first_with: dict[bytes, int] = {}
    for layer in range(layers):
        earlier = first_with.setdefault(ids[:, layer].tobytes(), layer)
        if earlier != layer and positions >= _BLOCK and not repeats[:, layer].all():
            clauses.append(f"layer {layer} has the experts of layer {earlier}")
    return clauses


def repeated_rows(seen: dict[bytes, list[int]], tokens: list[int], ids: Choices) -> list[str]:
    """Return a clause if several rows in a row were seen with other tokens, as in a buffer of an
    earlier request. seen: digests of blocks of rows and their tokens, to which this adds.
    """
    for start in range(0, len(ids) - _BLOCK + 1, _BLOCK):
        block = ids[start : start + _BLOCK].astype(np.int32)
        read = tokens[start : start + _BLOCK]
        if (block == block[0]).all():
            continue
        earlier = seen.setdefault(hashlib.blake2b(block.tobytes()).digest(), read)
        if 2 * np.not_equal(earlier, read).sum() > _BLOCK:
            return ["rows repeated from other tokens"]
    return []
