"""Recorded experts: read in the forms in which engines send them, and captures that lie are refused
or named.
"""

import base64
import io
import json

import numpy as np
import pytest

from core.errors import DumpError
from core.numerics.recorded_choices import (
    check_choices,
    is_choice,
    read_choices,
    repeated_rows,
    write_choices,
)

POSITIONS, LAYERS, K, EXPERTS = 40, 3, 4, 16


@pytest.fixture
def ids():
    scores = np.random.default_rng(0).random((POSITIONS, LAYERS, EXPERTS))
    # k different ones of a row, as a router chooses
    return scores.argsort(axis=-1)[..., :K]


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize(
    "write",
    [
        lambda ids: json.dumps(ids.tolist()),
        lambda ids: npy(ids.astype(np.uint8)),
        lambda ids: npy(ids.astype(np.uint16)),
        write_choices,
    ],
    ids=["lists", "vLLM", "vLLM, more than 256 experts", "ours"],
)
def test_every_form_is_read(write, ids):
    np.testing.assert_array_equal(read_choices(write(ids)), ids)


def test_rows_that_are_missing_are_written_and_read():
    ids = np.full((2, 1, 2), -1)
    # 300 needs 16 bits, and -1 a sign
    ids[0] = 0, 300
    np.testing.assert_array_equal(read_choices(write_choices(ids)), ids)


# the brackets overflow json's recursion: no ValueError
@pytest.mark.parametrize(
    "text",
    [
        "[[1, 2]]",
        "[[[1.5, 2.0]]]",
        "[[[1], [2, 3]]]",
        "no base64!",
        "AAAA",
        npy(np.zeros(3, dtype="f4")),
        "[" * 100_000,
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(DumpError):
        read_choices(text)


# 151,643 is Qwen's end of text: a column of token ids in place of experts
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (np.s_[:], 0),
        (np.s_[:], 7),
        (np.s_[3, 1, 0], 151_643),
        (np.s_[3, 1, 0], -2),
    ],
    ids=["zeros", "one id", "a token id", "below range"],
)
def test_what_no_router_chose_is_refused(place, value, ids):
    check_choices(ids, POSITIONS)
    ids[place] = value
    with pytest.raises(DumpError):
        check_choices(ids, POSITIONS)


@pytest.mark.parametrize(
    ("tokens", "fits"),
    [
        (POSITIONS - 1, False),
        (POSITIONS, True),
        # the last token is sampled and never read: it has no row
        (POSITIONS + 1, True),
        (POSITIONS + 2, False),
    ],
)
def test_a_row_for_each_token_but_maybe_the_last_is_expected(tokens, fits, ids):
    if fits:
        assert check_choices(ids, tokens) == []
    else:
        with pytest.raises(DumpError):
            check_choices(ids, tokens)


@pytest.mark.parametrize(
    ("place", "value", "unusable"),
    [
        (np.s_[5, 2], [1, 2, 2, 3], 1),
        (np.s_[:, 0], 0, POSITIONS),
        (np.s_[:4], -1, 4 * LAYERS),
    ],
    ids=["an id twice", "a layer of zeros", "missing rows"],
)
def test_what_cannot_be_compared_in_part_is_named(place, value, unusable, ids):
    ids[place] = value
    assert len(check_choices(ids, POSITIONS)) == 1
    assert (~is_choice(ids)).sum() == unusable


def test_a_layer_equal_to_another_is_named(ids):
    ids[:, 2] = ids[:, 0]
    assert len(check_choices(ids, POSITIONS)) == 1


def test_rows_of_another_request_are_named_and_those_of_a_shared_prompt_are_not(ids):
    seen = {}
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 1000, POSITIONS).tolist()
    assert repeated_rows(seen, tokens, ids) == []
    other = ids.copy()
    # two whole blocks of 8 rows are the same, which the same tokens explain
    other[16:] = (other[16:] + 1) % EXPERTS
    same_prompt = [*tokens[:16], *rng.integers(0, 1000, POSITIONS - 16).tolist()]
    assert repeated_rows(seen, same_prompt, other) == []
    stale = (ids + 2) % EXPERTS
    # holds one whole block, 24 to 32, that other tokens had
    stale[20:32] = ids[20:32]
    others = rng.integers(0, 1000, POSITIONS).tolist()
    assert len(repeated_rows(seen, others, stale)) == 1
