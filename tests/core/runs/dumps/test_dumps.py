"""Dumps open as what they are, in every form they come in; the expected bits come from numpy,
ml_dtypes and the worked cases.
"""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from core.errors import DumpError, UsageError
from core.runs.dumps.dump import open_dump
from tests.core.runs.dumps.made_dumps import (
    ROWS,
    VALUES,
    VOCAB,
    bits_in,
    bits_of,
    logits,
    saved,
    warnings_of,
)

CASES = sorted((Path(__file__).parents[3] / "cases").glob("*.npz"))


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_every_worked_case_opens_with_its_dtype_its_shape_and_its_bits(path: Path) -> None:
    expected = json.loads(path.with_suffix(".json").read_text())
    with np.load(path) as file, open_dump([path]) as dump:
        keys = [key for key in file.files if key not in ("compute_dtype", "token_ids")]
        assert dump.compute_dtype == expected["compute_dtype"]
        assert (dump.rows, dump.vocab) == (expected["positions"], expected["vocab"])
        assert [side.name for side in dump.sides] == keys
        for key, bits in zip(keys, bits_in(dump, max_bytes=5 * 4 * dump.vocab), strict=True):
            array = file[key].reshape(dump.rows, dump.vocab)
            if array.dtype == np.float32:
                array = array.astype(VALUES[dump.compute_dtype])
            assert np.array_equal(bits, array.view(bits.dtype))


# ---- forms


@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize(
    "form",
    ["npz", "npz deflated", "safetensors", "npy", "pair of safetensors", "upcast", ">"],
)
def test_every_form_gives_the_same_bits(tmp_path: Path, dtype: str, form: str) -> None:
    sides: dict[str, Any] = {"reference": logits(1, dtype=dtype), "variant": logits(2, dtype=dtype)}
    paths = [tmp_path / "dump"]
    if form.startswith("npz"):
        with paths[0].open("wb") as file:
            (np.savez_compressed if "deflated" in form else np.savez)(file, **sides)
    elif form == "safetensors":
        save_file(sides, paths[0])
    elif form == "upcast":
        paths = [saved(tmp_path, **{key: side.astype(np.float32) for key, side in sides.items()})]
    elif form == ">":
        swapped = {key: bits_of(side).astype(f">u{side.itemsize}") for key, side in sides.items()}
        if dtype != "bfloat16":
            swapped = {
                key: side.view(VALUES[dtype]).view(f">f{side.itemsize}")
                for key, side in swapped.items()
            }
        paths = [saved(tmp_path, **swapped, compute_dtype=dtype)]
    else:
        paths = [tmp_path / key for key in sides]
        for path, side in zip(paths, sides.values(), strict=True):
            if form == "npy":
                with path.open("wb") as file:
                    np.save(file, side)
            else:
                save_file({"logits": side}, path)
    with open_dump(paths) as dump:
        assert dump.compute_dtype == dtype
        assert [side.name for side in dump.sides] == ["reference", "variant"]
        assert {side.source_dtype for side in dump.sides} == {
            "float32" if form == "upcast" else dtype,
        }
        for bits, side in zip(bits_in(dump), sides.values(), strict=True):
            assert np.array_equal(bits, bits_of(side))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("carrier", [np.uint16, np.int16])
def test_sixteen_bit_integers_are_bits_of_the_declared_dtype(
    tmp_path: Path,
    dtype: str,
    carrier: type,
) -> None:
    a, b = (logits(seed, dtype=dtype).view(carrier) for seed in (1, 2))
    with open_dump([saved(tmp_path, a=a, b=b, compute_dtype=dtype)]) as dump:
        assert (dump.compute_dtype, dump.dtype_reason[:8]) == (dtype, "declared")
        assert np.array_equal(bits_in(dump)[0], a.view(np.uint16))


@pytest.mark.parametrize("shape", [(5, 7), (3, 4, 8), (2, 1, 9)])
@pytest.mark.parametrize("compressed", [False, True])
def test_fortran_order_is_read_in_the_order_of_rows_at_every_pass(
    tmp_path: Path,
    shape: tuple[int, ...],
    compressed: bool,
) -> None:
    a, b = logits(1, shape), logits(2, shape)
    (np.savez_compressed if compressed else np.savez)(
        tmp_path / "d.npz",
        a=np.asfortranarray(a),
        b=b,
    )
    with open_dump([tmp_path / "d.npz"]) as dump:
        for _ in range(2):
            for bits, side in zip(bits_in(dump, max_bytes=64), (a, b), strict=True):
                assert np.array_equal(bits, bits_of(side).reshape(-1, shape[-1]))


@pytest.mark.parametrize("dtype", VALUES)
def test_nan_payloads_and_signed_zeros_survive(tmp_path: Path, dtype: str) -> None:
    size = np.dtype(VALUES[dtype]).itemsize
    patterns = np.array(
        [0, 1 << (8 * size - 1), 1, 0x7FC1FF01 >> (32 - 8 * size), (1 << 8 * size) - 1, 0x3C00],
        f"<u{size}",
    )
    sides = {"a": np.stack([patterns, patterns[::-1]]), "b": np.stack([patterns[::-1], patterns])}
    path = saved(tmp_path, **{key: bits.view(VALUES[dtype]) for key, bits in sides.items()})
    with open_dump([path], compute_dtype=dtype) as dump:
        for bits, side in zip(bits_in(dump), sides.values(), strict=True):
            assert np.array_equal(bits, side)


# ---- the compute dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_single_value_beyond_a_dtype_on_any_side_is_enough_not_to_detect_it(
    tmp_path: Path,
    dtype: str,
) -> None:
    a, b = (logits(seed, dtype=dtype).astype(np.float32) for seed in (1, 2))
    with open_dump([saved(tmp_path, a=a, b=b)]) as dump:
        assert (dump.compute_dtype, dump.dtype_reason[:8]) == (dtype, "detected")
    with open_dump([saved(tmp_path, a=a, b=b)], compute_dtype="fp32") as dump:
        assert (dump.compute_dtype, dump.dtype_reason[:8]) == ("float32", "override")
        assert np.array_equal(bits_in(dump)[0], bits_of(a))
    b[-1, -1] = np.float32(1) + np.float32(2.0**-23)
    with open_dump([saved(tmp_path, a=a, b=b)]) as dump:
        assert (dump.compute_dtype, dump.dtype_reason[:11]) == ("float32", "array dtype")


@pytest.mark.parametrize("how", ["declared", "override"])
def test_a_given_dtype_that_would_round_is_refused_with_the_first_value(
    tmp_path: Path,
    how: str,
) -> None:
    a = logits(1, dtype="bfloat16").astype(np.float32)
    b = a.copy()
    b[2, 3], b[4, 5] = 1.0009765625, 3.1415927
    path = saved(tmp_path, a=a, b=b, **({"compute_dtype": "bfloat16"} if how == "declared" else {}))
    with pytest.raises(DumpError, match=r"dump\.npz: 'b' holds 1\.0009765625"):
        open_dump([path], compute_dtype="bfloat16" if how == "override" else None)


def test_sides_of_different_dtypes_share_the_compute_dtype_that_holds_both(tmp_path: Path) -> None:
    half = logits(1, dtype="float16")
    with open_dump([saved(tmp_path, a=half, b=logits(2))]) as dump:
        assert dump.compute_dtype == "float32"
        assert [side.source_dtype for side in dump.sides] == ["float16", "float32"]
        assert np.array_equal(bits_in(dump)[0], bits_of(half.astype(np.float32)))


def test_float64_is_taken_only_if_it_is_exactly_float32(tmp_path: Path) -> None:
    a = logits(1).astype(np.float64)
    with open_dump([saved(tmp_path, a=a, b=a)]) as dump:
        assert dump.compute_dtype == "float32"
        assert any("float64" in warning for warning in dump.warnings)
        assert np.array_equal(bits_in(dump)[0], bits_of(a.astype(np.float32)))
    a[3, 3] = 0.1
    with pytest.raises(DumpError, match=r"'a' is float64 and holds 0\.1, "):
        open_dump([saved(tmp_path, a=a, b=a)])


# ---- sides, prompts, tokens


def test_the_side_called_reference_comes_first_and_the_others_stay_in_order(tmp_path: Path) -> None:
    names = ("zeta", "alpha", "reference", "beta")
    with open_dump([saved(tmp_path, **{name: logits(i) for i, name in enumerate(names)})]) as dump:
        assert [side.name for side in dump.sides] == ["reference", "zeta", "alpha", "beta"]
        assert np.array_equal(bits_in(dump)[1], bits_of(logits(0)))


def test_two_files_are_a_pair_named_by_their_stems_or_plainly_if_these_are_equal(
    tmp_path: Path,
) -> None:
    paths = [tmp_path / "one" / "x.npy", tmp_path / "two" / "x.npy", tmp_path / "y.npz"]
    for seed, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        if path.suffix == ".npy":
            np.save(path, logits(seed))
        else:
            np.savez(path, logits=logits(seed), token_ids=np.arange(ROWS))
    with open_dump(paths[:2]) as dump:
        assert [side.name for side in dump.sides] == ["reference", "variant"]
    with open_dump(paths[1:]) as dump:
        assert [side.name for side in dump.sides] == ["x", "y"]
        assert dump.prompts[0].token_ids == tuple(range(ROWS))


def test_three_axes_are_prompts_positions_and_vocabulary(tmp_path: Path) -> None:
    a, ids = logits(1, (1, 2, 3, VOCAB)), np.arange(6).reshape(2, 3)
    texts = np.array([["a", " b", "c"], ["d", "é", "\n"]])
    with open_dump(
        [saved(tmp_path, a=a, b=a, token_ids=ids, tokens=texts, meta='{"engine": "x"}')],
    ) as dump:
        assert [prompt.token_ids for prompt in dump.prompts] == [(0, 1, 2), (3, 4, 5)]
        assert dump.prompts[1].token_texts == ("d", "é", "\n")
        assert dump.meta == '{"engine": "x"}'
        header = dump.header("run")
        assert (header.rows, header.vocab, header.vocabulary[4]) == (6, VOCAB, "é")


def test_one_axis_is_one_position_and_prompt_lengths_divide_the_rows(tmp_path: Path) -> None:
    a = logits(1)
    with open_dump([saved(tmp_path, a=a[0], b=a[0], token_ids=np.array([7]))]) as dump:
        assert (dump.rows, dump.prompts[0].token_ids) == (1, (7,))
    with open_dump(
        [saved(tmp_path, a=a, b=a, prompt_lengths=[4, 2], token_ids=np.arange(6))],
    ) as dump:
        assert [prompt.token_ids for prompt in dump.prompts] == [(0, 1, 2, 3), (4, 5)]


def test_safetensors_reserved_texts_come_from_its_metadata(tmp_path: Path) -> None:
    bits = bits_of(logits(1, dtype="bfloat16"))
    texts = [f"t{i}" for i in range(ROWS)]
    save_file(
        {"a": bits, "b": bits, "token_ids": np.arange(ROWS)},
        tmp_path / "d.safetensors",
        metadata={
            "compute_dtype": "bfloat16",
            "meta": "{}",
            "tokens": json.dumps(texts),
            "format": "pt",
        },
    )
    with open_dump([tmp_path / "d.safetensors"]) as dump:
        assert (dump.compute_dtype, dump.meta) == ("bfloat16", "{}")
        assert (dump.prompts[0].token_texts, dump.prompts[0].token_ids) == (
            tuple(texts),
            tuple(range(ROWS)),
        )


def test_byte_tokens_that_are_no_text_are_shown_as_bytes(tmp_path: Path) -> None:
    a = logits(1, (2, VOCAB))
    with open_dump([saved(tmp_path, a=a, b=a, tokens=np.array([b"ok", b"\xe2\x80"]))]) as dump:
        assert dump.prompts[0].token_texts == ("ok", "\\xe2\\x80")


def test_log_probabilities_and_probabilities_are_remarked_on_and_logits_are_not(
    tmp_path: Path,
) -> None:
    raw = logits(1).astype(np.float64)
    logp = raw - np.log(np.exp(raw).sum(-1, keepdims=True))
    coarse = logp.astype(ml_dtypes.bfloat16)
    sides = {"log": logp, "log16": coarse, "prob": np.exp(logp), "raw": raw}
    warnings = warnings_of(
        tmp_path,
        **{key: side.astype(np.float32) for key, side in sides.items()},
    )
    for looks in (
        "'log' looks like log-prob",
        "'log16' looks like log-prob",
        "'prob' looks like probabilities",
    ):
        assert looks in warnings
    assert "'raw' looks" not in warnings


# ---- streaming


@pytest.mark.spread(1)
@pytest.mark.parametrize("upcast", [False, True])
def test_a_dump_is_read_in_a_fraction_of_its_size(tmp_path: Path, upcast: bool) -> None:
    """Chunks of 1 MiB of 64 MiB: the peak may hold two chunks a side and the temporaries of one
    conversion, not the dump.
    """
    a = logits(1, (512, 16384), "bfloat16").astype(np.float32)
    sides = {"a": a, "b": a} if upcast else {"a": bits_of(a.astype(ml_dtypes.bfloat16)), "b": a}
    path = saved(tmp_path, **sides, compute_dtype="bfloat16")
    del a, sides

    def peak(read: object) -> int:
        tracemalloc.start()
        try:
            read()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    def stream() -> None:
        with open_dump([path]) as dump:
            for _ in dump.chunks(max_bytes=1 << 20):
                pass

    assert peak(stream) < 24 << 20
    assert peak(lambda: np.load(path)["b"]) > 24 << 20  # the measure can fail


def test_a_closed_dump_says_so(tmp_path: Path) -> None:
    dump = open_dump([saved(tmp_path, a=logits(1), b=logits(2))])
    dump.close()
    with pytest.raises(UsageError, match="closed"):
        next(dump.chunks())


# ---- sides of different dtypes


def test_sides_of_different_dtypes_are_told_with_what_follows_for_ulps(tmp_path: Path) -> None:
    coarse, fine = logits(1, dtype="bfloat16"), logits(2)
    for side in (coarse, coarse.astype(np.float32)):
        warnings = warnings_of(tmp_path, reference=fine, variant=side)
        assert "'reference' holds float32 values, 'variant'" in warnings
        # a step of bfloat16 is 2^(23 - 7) steps of float32 in every binade, and rounding moves by
        # half of it at most
        assert "up to 32,768 of them" in warnings
    bits, wide = bits_of(coarse), coarse.astype(np.float32)
    assert "saved in different dtypes" in warnings_of(
        tmp_path,
        a=bits,
        b=wide,
        compute_dtype="bfloat16",
    )


@pytest.mark.parametrize("dtype", VALUES)
def test_sides_of_one_dtype_say_nothing_of_dtypes(tmp_path: Path, dtype: str) -> None:
    assert "dtypes" not in warnings_of(tmp_path, a=logits(1, dtype=dtype), b=logits(2, dtype=dtype))
    whole = np.round(logits(1) / 10)  # every dtype holds a few whole numbers
    assert "dtypes" not in warnings_of(tmp_path, a=whole, b=logits(2))


# ---- log-probabilities of chosen tokens


def chosen(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """As a trainer saves them: mostly near 0, a few far below."""
    return -np.random.default_rng(seed).gamma(0.5, 2.0, (rows, columns)).astype(np.float32)


@pytest.mark.parametrize("dtype", VALUES.values())
@pytest.mark.parametrize("shape", [(1000, 64), (300, 7), (65, 64)])
def test_log_probabilities_of_chosen_tokens_are_refused_with_what_to_do(
    tmp_path: Path,
    shape,
    dtype,
) -> None:
    a, b = (chosen(*shape, seed).astype(dtype) for seed in (1, 2))
    looks = (
        rf"chosen-token log-probabilities of {shape[0]:,} sequences of {shape[1]} tokens.*--holds"
        r" logits"
    )
    with pytest.raises(DumpError, match=looks):
        open_dump([saved(tmp_path, reference=a, variant=b)])


def test_one_such_side_is_enough_and_the_user_may_know_better(tmp_path: Path) -> None:
    path = saved(tmp_path, reference=logits(0, (99, 64)), variant=chosen(99, 64))
    with pytest.raises(DumpError, match="'variant' looks like chosen-token"):
        open_dump([path])
    with open_dump([path], holds="logits") as dump:
        (note,) = dump.warnings  # more positions than tokens: are they the other way round?
        assert (dump.rows, dump.vocab, "array.T" in note) == (99, 64, True)
    with pytest.raises(UsageError, match="holds 'logit' is not known"):
        open_dump([path], holds="logit")
    many = chosen(64, 1000)  # as many columns as a vocabulary could have
    assert "looks like chosen-token log-probabilities" in warnings_of(tmp_path, a=many, b=many)


def test_padding_and_an_order_of_columns_hide_nothing(tmp_path: Path) -> None:
    padded = chosen(200, 32)
    padded[:, 20:] = np.nan
    for side in (padded, np.asfortranarray(chosen(200, 32))):
        with pytest.raises(DumpError, match="of 200 sequences of 32 tokens"):
            open_dump([saved(tmp_path, a=side, b=side)])


def rows_of_kinds(rows: int, vocab: int, seed: int) -> dict[str, np.ndarray]:
    raw = np.random.default_rng(seed).standard_normal((rows, vocab)) * 4
    log = raw - np.log(np.exp(raw).sum(axis=1, keepdims=True))
    best = np.argsort(-log, axis=1)[:, : max(1, vocab // 3)]
    cut = np.full_like(log, -np.inf)
    np.put_along_axis(cut, best, np.take_along_axis(log, best, 1), 1)
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


@pytest.mark.parametrize(("rows", "vocab"), [(500, 64), (40, 8), (9, 2), (64, 600)])
def test_nothing_that_is_a_vocabulary_s_is_taken_for_chosen_tokens(
    tmp_path: Path,
    rows: int,
    vocab: int,
) -> None:
    for (kind, a), b in zip(
        rows_of_kinds(rows, vocab, 0).items(),
        rows_of_kinds(rows, vocab, 1).values(),
        strict=True,
    ):
        assert "chosen" not in warnings_of(
            tmp_path,
            a=a.astype(np.float32),
            b=b.astype(np.float32),
        ), kind
