"""Dumps open as what they are, in every form they come in; the expected bits come from numpy,
ml_dtypes and the worked cases.
"""

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from scipy.special import log_softmax

from core.errors import DumpError, UsageError
from core.runs.dumps.dump import open_dump
from tests.core.runs.dumps.made_dumps import (
    ROWS,
    VALUES,
    VOCAB,
    bits_in,
    bits_of,
    dump_of,
    logits,
    names_of,
    saved,
    warnings_of,
)

# ---- forms


def big_endian(side):
    """Its bits where numpy has no such dtype, as of bfloat16."""
    letter = "u" if side.dtype == ml_dtypes.bfloat16 else "f"
    return bits_of(side).byteswap().view(f">{letter}{side.itemsize}")


def write_form(form, folder, sides, dtype):
    """Write the sides; -> the files of them"""
    whole = folder / "dump"
    each = {folder / key: side for key, side in sides.items()}
    match form:
        case "npz":
            return [saved(folder, **sides)]
        case "npz deflated":
            np.savez_compressed(folder / "dump.npz", **sides)
            return [folder / "dump.npz"]
        case "upcast":
            upcast = {key: side.astype(np.float32) for key, side in sides.items()}
            return [saved(folder, **upcast)]
        case ">":
            swapped = {key: big_endian(side) for key, side in sides.items()}
            return [saved(folder, **swapped, compute_dtype=dtype)]
        case "safetensors":
            save_file(sides, whole)
            return [whole]
        case "torch":
            # which takes no bfloat16 of numpy
            carriers = {key: torch.from_numpy(bits_of(side)) for key, side in sides.items()}
            torch.save(
                {key: bits.view(getattr(torch, dtype)) for key, bits in carriers.items()}, whole
            )
            return [whole]
        case "pair of safetensors":
            for path, side in each.items():
                save_file({"logits": side}, path)
        case "npy":
            for path, side in each.items():
                with path.open("wb") as file:
                    np.save(file, side)
    return list(each)


@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize(
    "form",
    ["npz", "npz deflated", "safetensors", "torch", "npy", "pair of safetensors", "upcast", ">"],
)
def test_every_form_gives_the_same_bits(tmp_path, dtype, form):
    sides = {"reference": logits(1, dtype=dtype), "variant": logits(2, dtype=dtype)}
    with open_dump(write_form(form, tmp_path, sides, dtype)) as dump:
        assert dump.compute_dtype == dtype
        assert names_of(dump) == ["reference", "variant"]
        source = "float32" if form == "upcast" else dtype
        assert {side.source_dtype for side in dump.sides} == {source}
        for bits, side in zip(bits_in(dump), sides.values(), strict=True):
            assert np.array_equal(bits, bits_of(side))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("carrier", [np.uint16, np.int16])
def test_sixteen_bit_integers_are_bits_of_the_declared_dtype(tmp_path, dtype, carrier):
    a, b = (logits(seed, dtype=dtype).view(carrier) for seed in (1, 2))
    with dump_of(tmp_path, a=a, b=b, compute_dtype=dtype) as dump:
        assert dump.compute_dtype == dtype
        assert dump.dtype_reason[:8] == "declared"
        assert np.array_equal(bits_in(dump)[0], a.view(np.uint16))


@pytest.mark.parametrize(
    "shape",
    [(5, 7), (3, 4, 8), (2, 1, 9)],
)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_fortran_order_is_read_in_the_order_of_rows_at_every_pass(tmp_path, shape, save):
    a = logits(1, shape)
    b = logits(2, shape)
    path = tmp_path / "d.npz"
    save(path, a=np.asfortranarray(a), b=b)
    with open_dump([path]) as dump:
        for _ in range(2):
            first, second = bits_in(dump, max_bytes=64)
            assert np.array_equal(first, bits_of(a).reshape(-1, shape[-1]))
            assert np.array_equal(second, bits_of(b).reshape(-1, shape[-1]))


@pytest.mark.parametrize("dtype", VALUES)
def test_nan_payloads_and_signed_zeros_survive(tmp_path, dtype):
    bits = 8 * np.dtype(VALUES[dtype]).itemsize
    # a NaN with a payload in each of the three formats
    nan = 0x7FC1FF01 >> (32 - bits)
    patterns = [0, 1 << (bits - 1), 1, nan, (1 << bits) - 1, 0x3C00]
    a = np.array([patterns], f"<u{bits // 8}")
    b = a[:, ::-1]
    path = saved(
        tmp_path,
        a=a.view(VALUES[dtype]),
        b=b.copy().view(VALUES[dtype]),
    )
    with open_dump([path], compute_dtype=dtype) as dump:
        first, second = bits_in(dump)
        assert np.array_equal(first, a)
        assert np.array_equal(second, b)


# ---- the compute dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_single_value_beyond_a_dtype_on_any_side_is_enough_not_to_detect_it(tmp_path, dtype):
    a, b = (logits(seed, dtype=dtype).astype(np.float32) for seed in (1, 2))
    with dump_of(tmp_path, a=a, b=b) as dump:
        assert dump.compute_dtype == dtype
        assert dump.dtype_reason[:8] == "detected"
    with open_dump([saved(tmp_path, a=a, b=b)], compute_dtype="fp32") as dump:
        assert dump.compute_dtype == "float32"
        assert dump.dtype_reason[:8] == "override"
        assert np.array_equal(bits_in(dump)[0], bits_of(a))
    # the last element, so that a look at the first ones is not enough
    b[-1, -1] = np.float32(1) + np.float32(2.0**-23)
    with dump_of(tmp_path, a=a, b=b) as dump:
        assert dump.compute_dtype == "float32"
        assert dump.dtype_reason[:11] == "array dtype"


def test_a_given_dtype_that_would_round_is_refused_with_the_first_value(tmp_path):
    a = logits(1, dtype="bfloat16").astype(np.float32)
    b = a.copy()
    # 1 + 2^-10 is between two values of bfloat16, whose step at 1 is 2^-7
    b[2, 3], b[4, 5] = 1.0009765625, 3.1415927
    refusal = r"dump\.npz: 'b' holds 1\.0009765625"
    with pytest.raises(DumpError, match=refusal):
        dump_of(tmp_path, a=a, b=b, compute_dtype="bfloat16")
    with pytest.raises(DumpError, match=refusal):
        open_dump([saved(tmp_path, a=a, b=b)], compute_dtype="bfloat16")


def test_sides_of_different_dtypes_share_the_compute_dtype_that_holds_both(tmp_path):
    half = logits(1, dtype="float16")
    with dump_of(tmp_path, a=half, b=logits(2)) as dump:
        assert dump.compute_dtype == "float32"
        assert [side.source_dtype for side in dump.sides] == ["float16", "float32"]
        assert np.array_equal(bits_in(dump)[0], bits_of(half.astype(np.float32)))


def test_float64_is_taken_only_if_it_is_exactly_float32(tmp_path):
    a = logits(1).astype(np.float64)
    with dump_of(tmp_path, a=a, b=a) as dump:
        assert dump.compute_dtype == "float32"
        assert any("float64" in warning for warning in dump.warnings)
        assert np.array_equal(bits_in(dump)[0], bits_of(a.astype(np.float32)))
    a[3, 3] = 0.1
    with pytest.raises(DumpError, match=r"'a' is float64 and holds 0\.1, "):
        dump_of(tmp_path, a=a, b=a)


# ---- sides, prompts, tokens


def test_the_side_called_reference_comes_first_and_the_others_stay_in_order(tmp_path):
    names = ("zeta", "alpha", "reference", "beta")
    with dump_of(tmp_path, **{name: logits(i) for i, name in enumerate(names)}) as dump:
        assert names_of(dump) == ["reference", "zeta", "alpha", "beta"]
        assert np.array_equal(bits_in(dump)[1], bits_of(logits(0)))


def test_two_files_are_a_pair_named_by_their_stems_or_plainly_if_these_are_equal(tmp_path):
    one = tmp_path / "one" / "x.npy"
    two = tmp_path / "x.npy"
    other = tmp_path / "y.npz"
    one.parent.mkdir()
    np.save(one, logits(0))
    np.save(two, logits(1))
    np.savez(other, logits=logits(2), token_ids=np.arange(ROWS))
    with open_dump([one, two]) as dump:
        assert names_of(dump) == ["reference", "variant"]
    with open_dump([two, other]) as dump:
        assert names_of(dump) == ["x", "y"]
        assert dump.prompts[0].token_ids == tuple(range(ROWS))


def test_three_axes_are_prompts_positions_and_vocabulary(tmp_path):
    a = logits(1, (1, 2, 3, VOCAB))
    ids = np.arange(6).reshape(2, 3)
    texts = np.array([["a", " b", "c"], ["d", "é", "\n"]])
    with dump_of(
        tmp_path,
        a=a,
        b=a,
        token_ids=ids,
        tokens=texts,
        meta='{"engine": "x"}',
    ) as dump:
        assert [prompt.token_ids for prompt in dump.prompts] == [(0, 1, 2), (3, 4, 5)]
        assert dump.prompts[1].token_texts == ("d", "é", "\n")
        assert dump.meta == '{"engine": "x"}'
        header = dump.header("run")
        assert header.rows == 6
        assert header.vocab == VOCAB
        assert header.vocabulary[4] == "é"


def test_one_axis_is_one_position_and_prompt_lengths_divide_the_rows(tmp_path):
    a = logits(1)
    with dump_of(
        tmp_path,
        a=a[0],
        b=a[0],
        token_ids=np.array([7]),
    ) as dump:
        assert dump.rows == 1
        assert dump.prompts[0].token_ids == (7,)
    with dump_of(
        tmp_path,
        a=a,
        b=a,
        prompt_lengths=[4, 2],
        token_ids=np.arange(6),
    ) as dump:
        assert [prompt.token_ids for prompt in dump.prompts] == [(0, 1, 2, 3), (4, 5)]


def test_safetensors_reserved_texts_come_from_its_metadata(tmp_path):
    bits = bits_of(logits(1, dtype="bfloat16"))
    path = tmp_path / "d.safetensors"
    tokens = '["t0", "t1", "t2", "t3", "t4", "t5"]'
    metadata = {
        "compute_dtype": "bfloat16",
        "meta": "{}",
        "tokens": tokens,
        "format": "pt",
    }
    save_file(
        {
            "a": bits,
            "b": bits,
            "token_ids": np.arange(ROWS),
        },
        path,
        metadata,
    )
    with open_dump([path]) as dump:
        assert dump.compute_dtype == "bfloat16"
        assert dump.meta == "{}"
        (prompt,) = dump.prompts
        assert prompt.token_texts == ("t0", "t1", "t2", "t3", "t4", "t5")
        assert prompt.token_ids == tuple(range(ROWS))


def test_byte_tokens_that_are_no_text_are_shown_as_bytes(tmp_path):
    a = logits(1, (2, VOCAB))
    with dump_of(
        tmp_path,
        a=a,
        b=a,
        tokens=np.array([b"ok", b"\xe2\x80"]),
    ) as dump:
        assert dump.prompts[0].token_texts == ("ok", "\\xe2\\x80")


def test_log_probabilities_and_probabilities_are_remarked_on_and_logits_are_not(tmp_path):
    raw = logits(1)
    log = log_softmax(raw, axis=-1)
    coarse = log.astype(ml_dtypes.bfloat16).astype(np.float32)
    warnings = warnings_of(
        tmp_path,
        log=log,
        log16=coarse,
        prob=np.exp(log),
        raw=raw,
    )
    assert "'log' looks like log-prob" in warnings
    assert "'log16' looks like log-prob" in warnings
    assert "'prob' looks like probabilities" in warnings
    assert "'raw' looks" not in warnings


# ---- streaming


@pytest.mark.spread(1)
@pytest.mark.parametrize("upcast", [False, True])
def test_a_dump_is_read_in_a_fraction_of_its_size(tmp_path, upcast):
    """Chunks of 1 MiB of 64 MiB: the peak may hold two chunks a side and the temporaries of one
    conversion, not the dump.
    """
    a = logits(1, (512, 16384), "bfloat16")
    b = a.astype(np.float32)
    path = saved(
        tmp_path,
        a=b if upcast else bits_of(a),
        b=b,
        compute_dtype="bfloat16",
    )
    del a, b
    tracemalloc.start()
    with open_dump([path]) as dump:
        for _ in dump.chunks(max_bytes=1 << 20):
            pass
    assert tracemalloc.get_traced_memory()[1] < 24 << 20
    np.load(path)["b"]
    assert tracemalloc.get_traced_memory()[1] > 24 << 20  # the measure can fail
    tracemalloc.stop()


# ---- sides of different dtypes


def test_sides_of_different_dtypes_are_told_with_what_follows_for_ulps(tmp_path):
    coarse = logits(1, dtype="bfloat16")
    fine = logits(2)
    wide = coarse.astype(np.float32)
    for side in (coarse, wide):
        warnings = warnings_of(tmp_path, reference=fine, variant=side)
        assert "'reference' holds float32 values, 'variant'" in warnings
        # a step of bfloat16 is 2^(23 - 7) steps of float32 in every binade, and rounding moves by
        # half of it at most
        assert "up to 32,768 of them" in warnings
    warnings = warnings_of(
        tmp_path,
        a=bits_of(coarse),
        b=wide,
        compute_dtype="bfloat16",
    )
    assert "saved in different dtypes" in warnings


@pytest.mark.parametrize("dtype", VALUES)
def test_sides_of_one_dtype_say_nothing_of_dtypes(tmp_path, dtype):
    assert "dtypes" not in warnings_of(
        tmp_path,
        a=logits(1, dtype=dtype),
        b=logits(2, dtype=dtype),
    )
    whole = np.round(logits(1) / 10)  # every dtype holds a few whole numbers
    assert "dtypes" not in warnings_of(tmp_path, a=whole, b=logits(2))


# ---- log-probabilities of chosen tokens


def chosen(rows, columns, seed=0):
    """As a trainer saves them: mostly near 0, a few far below."""
    return -np.random.default_rng(seed).gamma(0.5, 2.0, (rows, columns)).astype(np.float32)


@pytest.mark.parametrize("dtype", VALUES.values())
@pytest.mark.parametrize("shape", [(1000, 64), (300, 7), (65, 64)])
def test_log_probabilities_of_chosen_tokens_are_refused_with_what_to_do(tmp_path, shape, dtype):
    a, b = (chosen(*shape, seed).astype(dtype) for seed in (1, 2))
    looks = f"of {shape[0]:,} sequences of {shape[1]} tokens.*--holds logits"
    with pytest.raises(DumpError, match=looks):
        dump_of(tmp_path, reference=a, variant=b)


def test_one_such_side_is_enough_and_the_user_may_know_better(tmp_path):
    path = saved(tmp_path, reference=logits(0, (99, 64)), variant=chosen(99, 64))
    with pytest.raises(DumpError, match="'variant' looks like chosen-token"):
        open_dump([path])
    with open_dump([path], holds="logits") as dump:
        (note,) = dump.warnings  # more positions than tokens: are they the other way round?
        assert dump.rows == 99
        assert dump.vocab == 64
        assert "array.T" in note
    with pytest.raises(UsageError, match="holds 'logit' is not known"):
        open_dump([path], holds="logit")
    many = chosen(64, 1000)  # as many columns as a vocabulary could have
    assert "looks like chosen-token log-probabilities" in warnings_of(tmp_path, a=many, b=many)


def test_padding_and_an_order_of_columns_hide_nothing(tmp_path):
    padded = chosen(200, 32)
    # trainers pad short responses
    padded[:, 20:] = np.nan
    for side in (padded, np.asfortranarray(chosen(200, 32))):
        with pytest.raises(DumpError, match="of 200 sequences of 32 tokens"):
            dump_of(tmp_path, a=side, b=side)


def rows_of_kinds(rows, vocab, seed):
    raw = np.random.default_rng(seed).standard_normal((rows, vocab)) * 4
    log = log_softmax(raw, axis=1)
    # a third of the vocabulary, as after a sampler
    lowest = np.sort(log, axis=1)[:, [-max(1, vocab // 3)]]
    cut = np.where(log >= lowest, log, -np.inf)
    return {
        "logits": raw,
        "negative logits": raw - 40,
        "log-softmax": log,
        "log-softmax in bfloat16": log.astype(ml_dtypes.bfloat16),
        "cut": cut,
        "cut at -1e4": np.maximum(cut, -1e4),
        "less their largest": raw - raw.max(axis=1, keepdims=True),
        "scaled log-softmax": log / 0.7,
        "zeros": np.zeros((rows, vocab)),
    }


@pytest.mark.parametrize(
    ("rows", "vocab"),
    [(500, 64), (40, 8), (9, 2), (64, 600)],
)
def test_nothing_that_is_a_vocabulary_s_is_taken_for_chosen_tokens(tmp_path, rows, vocab):
    others = rows_of_kinds(rows, vocab, 1)
    for kind, a in rows_of_kinds(rows, vocab, 0).items():
        sides = {
            "a": a.astype(np.float32),
            "b": others[kind].astype(np.float32),
        }
        assert "chosen" not in warnings_of(tmp_path, **sides), kind
