"""Dumps open as what they are, in every form they come in; the expected bits come from numpy, ml_dtypes and the worked
cases.
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
from core.runs.dumps.dump import Dump, open_dump
from core.runs.file.records import Provenance

CASES = sorted((Path(__file__).parents[3] / "cases").glob("*.npz"))
FORMS = ("float32", "float16", "bfloat16")
VALUES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
ROWS, VOCAB = 6, 32


def _logits(dtype: str, seed: int = 0, shape: tuple[int, ...] = (ROWS, VOCAB)) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 5).astype(VALUES[dtype])


def _bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(f"<u{values.dtype.itemsize}")


def _all_bits(dump: Dump, **options: int) -> list[np.ndarray]:
    chunks = list(dump.chunks(**options))
    assert [first for first, _ in chunks] == list(np.cumsum([0, *(len(sides[0]) for _, sides in chunks)])[:-1])
    return [np.concatenate([sides[i] for _, sides in chunks]) for i in range(len(dump.sides))]


def _save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


# ---- the worked cases


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_every_worked_case_opens_with_its_dtype_its_shape_and_its_bits(path: Path) -> None:
    expected = json.loads(path.with_suffix(".json").read_text())
    saved = np.load(path)
    keys = [key for key in saved.files if key not in ("compute_dtype", "token_ids")]
    with open_dump([path]) as dump:
        assert dump.compute_dtype == expected["compute_dtype"]
        assert (dump.rows, dump.vocab) == (expected["positions"], expected["vocab"])
        assert [side.name for side in dump.sides] == keys
        for key, bits in zip(keys, _all_bits(dump, max_bytes=5 * 4 * dump.vocab), strict=True):
            array = saved[key].reshape(dump.rows, dump.vocab)
            if array.dtype == np.float32:
                array = array.astype(VALUES[dump.compute_dtype])
            assert np.array_equal(bits, array.view(bits.dtype))


# ---- forms


@pytest.mark.parametrize("dtype", FORMS)
@pytest.mark.parametrize(
    "form", ["npz", "npz deflated", "safetensors", "pair of npy", "pair of safetensors", "upcast", "big-endian"]
)
def test_every_form_gives_the_same_bits(tmp_path: Path, dtype: str, form: str) -> None:
    sides: dict[str, Any] = {"reference": _logits(dtype, 1), "variant": _logits(dtype, 2)}
    paths = [tmp_path / "dump"]
    if form.startswith("npz"):
        with paths[0].open("wb") as file:
            (np.savez_compressed if "deflated" in form else np.savez)(file, **sides)
    elif form == "safetensors":
        save_file(sides, paths[0])
    elif form == "upcast":
        paths = [_save(tmp_path / "dump.npz", **{key: side.astype(np.float32) for key, side in sides.items()})]
    elif form == "big-endian":
        if dtype == "bfloat16":
            swapped = {key: side.view("<u2").astype(">u2") for key, side in sides.items()}
            paths = [_save(tmp_path / "dump.npz", **swapped, compute_dtype=np.array("bfloat16"))]
        else:
            paths = [
                _save(
                    tmp_path / "dump.npz",
                    **{key: side.astype(side.dtype.newbyteorder(">")) for key, side in sides.items()},
                )
            ]
    else:
        paths = [tmp_path / key for key in sides]
        for path, side in zip(paths, sides.values(), strict=True):
            if "npy" in form:
                with path.open("wb") as file:
                    np.save(file, side)
            else:
                save_file({"logits": side}, path)
    with open_dump(paths) as dump:
        assert dump.compute_dtype == dtype
        assert [side.name for side in dump.sides] == ["reference", "variant"]
        assert {side.source_dtype for side in dump.sides} == {"float32" if form == "upcast" else dtype}
        for bits, side in zip(_all_bits(dump, max_bytes=2 * 4 * VOCAB), sides.values(), strict=True):
            assert np.array_equal(bits, _bits(side))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("carrier", [np.uint16, np.int16])
def test_sixteen_bit_integers_are_bits_of_the_declared_dtype(tmp_path: Path, dtype: str, carrier: type) -> None:
    a, b = _logits(dtype, 1), _logits(dtype, 2)
    path = _save(tmp_path / "d.npz", a=a.view(carrier), b=b.view(carrier), compute_dtype=dtype)
    with open_dump([path]) as dump:
        assert (dump.compute_dtype, dump.dtype_reason[:8]) == (dtype, "declared")
        assert np.array_equal(_all_bits(dump)[0], _bits(a))


@pytest.mark.parametrize("shape", [(5, 7), (3, 4, 8), (1, 5, 7), (2, 1, 9)])
@pytest.mark.parametrize("compressed", [False, True])
def test_fortran_order_is_read_in_the_order_of_rows(tmp_path: Path, shape: tuple[int, ...], compressed: bool) -> None:
    a, b = _logits("float32", 1, shape), _logits("float32", 2, shape)
    (np.savez_compressed if compressed else np.savez)(tmp_path / "d.npz", a=np.asfortranarray(a), b=b)
    with open_dump([tmp_path / "d.npz"]) as dump:
        for _ in range(2):
            bits = _all_bits(dump, max_bytes=64)
            assert np.array_equal(bits[0], _bits(a).reshape(-1, shape[-1]))
            assert np.array_equal(bits[1], _bits(b).reshape(-1, shape[-1]))


@pytest.mark.parametrize("dtype", FORMS)
def test_nan_payloads_and_signed_zeros_survive(tmp_path: Path, dtype: str) -> None:
    size = np.dtype(VALUES[dtype]).itemsize
    patterns = np.array(
        [0, 1 << (8 * size - 1), 1, 0x7FC1FF01 >> (32 - 8 * size), (1 << 8 * size) - 1, 0x3C00], f"<u{size}"
    )
    sides = {"a": np.stack([patterns, patterns[::-1]]), "b": np.stack([patterns[::-1], patterns])}
    path = _save(tmp_path / "d.npz", **{key: bits.view(VALUES[dtype]) for key, bits in sides.items()})
    with open_dump([path], compute_dtype=dtype) as dump:
        for bits, side in zip(_all_bits(dump), sides.values(), strict=True):
            assert np.array_equal(bits, side)


def test_a_renamed_archive_opens_as_what_it_is(tmp_path: Path) -> None:
    made = _save(tmp_path / "d.npz", a=_logits("float32", 1), b=_logits("float32", 2))
    with open_dump([made.rename(tmp_path / "d.npy")]) as dump:
        assert len(dump.sides) == 2


# ---- the compute dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_single_value_beyond_a_dtype_on_any_side_is_enough_not_to_detect_it(tmp_path: Path, dtype: str) -> None:
    a, b = (_logits(dtype, seed).astype(np.float32) for seed in (1, 2))
    with open_dump([_save(tmp_path / "before.npz", a=a, b=b)]) as dump:
        assert dump.compute_dtype == dtype
        assert "float32 arrays whose every value" in dump.dtype_reason
    b[-1, -1] = np.float32(1) + np.float32(2.0**-23)
    with open_dump([_save(tmp_path / "after.npz", a=a, b=b)]) as dump:
        assert (dump.compute_dtype, dump.dtype_reason[:11]) == ("float32", "array dtype")


def test_an_override_wins_over_what_was_detected(tmp_path: Path) -> None:
    a, b = (_logits("bfloat16", seed).astype(np.float32) for seed in (1, 2))
    with open_dump([_save(tmp_path / "d.npz", a=a, b=b)], compute_dtype="fp32") as dump:
        assert (dump.compute_dtype, dump.dtype_reason[:8]) == ("float32", "override")
        assert np.array_equal(_all_bits(dump)[0], _bits(a))


@pytest.mark.parametrize("how", ["declared", "override"])
def test_a_given_dtype_that_would_round_is_refused_with_the_first_value(tmp_path: Path, how: str) -> None:
    a = _logits("bfloat16", 1).astype(np.float32)
    b = a.copy()
    b[2, 3], b[4, 5] = 1.0009765625, 3.1415927
    path = _save(tmp_path / "d.npz", a=a, b=b, **({"compute_dtype": "bfloat16"} if how == "declared" else {}))
    with pytest.raises(DumpError, match=r"d\.npz: 'b' holds 1\.0009765625"):
        open_dump([path], compute_dtype="bfloat16" if how == "override" else None)


def test_sides_of_different_dtypes_share_the_compute_dtype_that_holds_both(tmp_path: Path) -> None:
    half, single = _logits("float16", 1), _logits("float32", 2)
    with open_dump([_save(tmp_path / "d.npz", a=half, b=single)]) as dump:
        assert dump.compute_dtype == "float32"
        assert [side.source_dtype for side in dump.sides] == ["float16", "float32"]
        assert np.array_equal(_all_bits(dump)[0], _bits(half.astype(np.float32)))


def test_float64_is_taken_only_where_it_is_exactly_float32(tmp_path: Path) -> None:
    a = _logits("float32", 1).astype(np.float64)
    with open_dump([_save(tmp_path / "d.npz", a=a, b=a)]) as dump:
        assert dump.compute_dtype == "float32"
        assert any("float64" in warning for warning in dump.warnings)
        assert np.array_equal(_all_bits(dump)[0], _bits(a.astype(np.float32)))
    a[3, 3] = 0.1
    with pytest.raises(DumpError, match=r"'a' is float64 and holds 0\.1, "):
        open_dump([_save(tmp_path / "e.npz", a=a, b=a)])


# ---- sides, prompts, tokens


def test_the_side_called_reference_comes_first_and_the_others_stay_in_order(tmp_path: Path) -> None:
    names = ("zeta", "alpha", "reference", "beta")
    path = _save(tmp_path / "d.npz", **{name: _logits("float32", i) for i, name in enumerate(names)})
    with open_dump([path]) as dump:
        assert [side.name for side in dump.sides] == ["reference", "zeta", "alpha", "beta"]
        assert np.array_equal(_all_bits(dump)[1], _bits(_logits("float32", 0)))


def test_two_files_are_a_pair_named_by_their_stems_or_plainly_where_these_are_equal(tmp_path: Path) -> None:
    paths = [tmp_path / "one" / "x.npy", tmp_path / "two" / "x.npy", tmp_path / "y.npz"]
    for seed, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        if path.suffix == ".npy":
            np.save(path, _logits("float32", seed))
        else:
            np.savez(path, logits=_logits("float32", seed), token_ids=np.arange(ROWS))
    with open_dump(paths[:2]) as dump:
        assert [side.name for side in dump.sides] == ["reference", "variant"]
    with open_dump(paths[1:]) as dump:
        assert [side.name for side in dump.sides] == ["x", "y"]
        assert dump.prompts[0].token_ids == tuple(range(ROWS))


def test_three_axes_are_prompts_positions_and_vocabulary(tmp_path: Path) -> None:
    a = _logits("float32", 1, (1, 2, 3, VOCAB))
    texts = np.array([["a", " b", "c"], ["d", "é", "\n"]])
    ids = np.arange(6).reshape(2, 3)
    path = _save(tmp_path / "d.npz", a=a, b=a, token_ids=ids, tokens=texts, meta='{"engine": "x"}')
    with open_dump([path]) as dump:
        assert [prompt.token_ids for prompt in dump.prompts] == [(0, 1, 2), (3, 4, 5)]
        assert dump.prompts[1].token_texts == ("d", "é", "\n")
        assert dump.meta == '{"engine": "x"}'
        header = dump.header("run", Provenance("upload"))
        assert (header.rows, header.vocab, header.vocabulary[4]) == (6, VOCAB, "é")


def test_one_axis_is_one_position(tmp_path: Path) -> None:
    a = _logits("float32", 1, (VOCAB,))
    with open_dump([_save(tmp_path / "d.npz", a=a, b=a, token_ids=np.array([7]))]) as dump:
        assert (dump.rows, dump.prompts[0].token_ids) == (1, (7,))


def test_prompt_lengths_divide_the_rows(tmp_path: Path) -> None:
    a = _logits("float32", 1)
    with open_dump([_save(tmp_path / "d.npz", a=a, b=a, prompt_lengths=[4, 2], token_ids=np.arange(6))]) as dump:
        assert [prompt.token_ids for prompt in dump.prompts] == [(0, 1, 2, 3), (4, 5)]


def test_safetensors_reserved_texts_come_from_its_metadata(tmp_path: Path) -> None:
    bits = _bits(_logits("bfloat16", 1))
    texts = [f"t{i}" for i in range(ROWS)]
    save_file(
        {"a": bits, "b": bits, "token_ids": np.arange(ROWS)},
        tmp_path / "d.safetensors",
        metadata={"compute_dtype": "bfloat16", "meta": "{}", "tokens": json.dumps(texts), "format": "pt"},
    )
    with open_dump([tmp_path / "d.safetensors"]) as dump:
        assert (dump.compute_dtype, dump.meta) == ("bfloat16", "{}")
        assert (dump.prompts[0].token_texts, dump.prompts[0].token_ids) == (tuple(texts), tuple(range(ROWS)))


def test_byte_tokens_that_are_no_text_are_shown_as_bytes(tmp_path: Path) -> None:
    a = _logits("float32", 1, (2, VOCAB))
    with open_dump([_save(tmp_path / "d.npz", a=a, b=a, tokens=np.array([b"ok", b"\xe2\x80"]))]) as dump:
        assert dump.prompts[0].token_texts == ("ok", "\\xe2\\x80")


# ---- what is worth saying


def test_log_probabilities_and_probabilities_are_remarked_on_and_logits_are_not(tmp_path: Path) -> None:
    logits = _logits("float32", 1).astype(np.float64)
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    sides = {
        "log": logp.astype(np.float32),
        "log16": logp.astype(ml_dtypes.bfloat16).astype(np.float32),
        "prob": np.exp(logp).astype(np.float32),
        "raw": logits.astype(np.float32),
    }
    with open_dump([_save(tmp_path / "d.npz", **sides)]) as dump:
        said = " ".join(dump.warnings)
        assert "'log' looks like log-probabilities" in said
        assert "'log16' looks like log-probabilities" in said
        assert "'prob' looks like probabilities" in said
        assert "'raw' looks" not in said


def test_token_ids_beyond_the_vocabulary_are_remarked_on(tmp_path: Path) -> None:
    a = _logits("float32", 1)
    with open_dump([_save(tmp_path / "d.npz", a=a, b=a, token_ids=np.arange(ROWS) + VOCAB)]) as dump:
        assert any(f"token_ids holds {VOCAB + ROWS - 1}" in warning for warning in dump.warnings)


# ---- streaming


@pytest.mark.spread(1)
@pytest.mark.parametrize("upcast", [False, True])
def test_a_dump_is_read_in_a_fraction_of_its_size(tmp_path: Path, upcast: bool) -> None:
    """Chunks of 1 MiB of 64 MiB: the peak may hold two chunks a side and the temporaries of one conversion, not the
    dump.
    """
    a = _logits("bfloat16", 1, (512, 16384)).astype(np.float32)
    sides = {"a": a, "b": a} if upcast else {"a": _bits(a.astype(ml_dtypes.bfloat16)), "b": a}
    path = _save(tmp_path / "d.npz", **sides, compute_dtype="bfloat16")
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


def test_chunks_start_over_at_every_call_and_two_may_run_at_once(tmp_path: Path) -> None:
    a, b = _logits("float32", 1), _logits("float32", 2)
    with open_dump([_save(tmp_path / "d.npz", a=a, b=b)]) as dump:
        for one, other in zip(dump.chunks(max_bytes=4 * VOCAB), dump.chunks(max_bytes=4 * VOCAB), strict=True):
            assert all(np.array_equal(x, y) for x, y in zip(one[1], other[1], strict=True))
        assert np.array_equal(_all_bits(dump)[1], _bits(b))


def test_a_closed_dump_says_so(tmp_path: Path) -> None:
    dump = open_dump([_save(tmp_path / "d.npz", a=_logits("float32", 1), b=_logits("float32", 2))])
    dump.close()
    with pytest.raises(UsageError, match="closed"):
        next(dump.chunks())


# ---- sides of different dtypes


def _warned(folder: Path, **arrays: Any) -> str:
    with open_dump([_save(folder / "d.npz", **arrays)]) as dump:
        return " ".join(dump.warnings)


@pytest.mark.parametrize("is_upcast", [False, True])
def test_a_bfloat16_side_beside_a_float32_one_is_told_with_what_follows_for_ulps(
    tmp_path: Path, is_upcast: bool
) -> None:
    coarse = _logits("bfloat16", 1)
    sides = {"reference": _logits("float32", 2), "variant": coarse.astype(np.float32) if is_upcast else coarse}
    said = _warned(tmp_path, **sides)
    assert "'reference' holds float32 values, 'variant'" in said
    # a step of bfloat16 is 2^(23 - 7) steps of float32 in every binade, and rounding moves by half of it at most
    assert "up to 32,768 of them" in said
    assert int(np.float32(1 + 2**-7).view(np.uint32)) - int(np.float32(1).view(np.uint32)) == 65_536


def test_sides_saved_in_different_dtypes_that_hold_values_of_one_are_told_gently(tmp_path: Path) -> None:
    coarse = _logits("bfloat16", 1)
    said = _warned(
        tmp_path, reference=_bits(coarse), variant=coarse.astype(np.float32), compute_dtype=np.array("bfloat16")
    )
    assert "different dtypes (bfloat16, float32); ULPs" in said


@pytest.mark.parametrize("dtype", VALUES)
def test_sides_of_one_dtype_say_nothing_of_dtypes(tmp_path: Path, dtype: str) -> None:
    kept = (lambda side: _bits(side)) if dtype == "bfloat16" else (lambda side: side)
    said = _warned(tmp_path, a=kept(_logits(dtype, 1)), b=kept(_logits(dtype, 2)), compute_dtype=np.array(dtype))
    assert "dtypes" not in said


def test_a_side_of_a_few_whole_numbers_is_not_called_bfloat16(tmp_path: Path) -> None:
    """Every dtype holds them, so they say nothing of the one they were computed in."""
    whole = np.round(_logits("float32", 1) / 10)
    assert "dtypes" not in _warned(tmp_path, a=whole, b=_logits("float32", 2))


# ---- log-probabilities of chosen tokens


def _chosen(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """As a trainer saves them: mostly near 0, a few far below."""
    return -np.random.default_rng(seed).gamma(0.5, 2.0, (rows, columns)).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(1000, 64), (300, 7), (65, 64)])
def test_log_probabilities_of_chosen_tokens_are_refused_with_what_they_look_like_and_what_to_do(
    tmp_path: Path, shape, dtype
) -> None:
    a, b = (_chosen(*shape, seed).astype(dtype) for seed in (1, 2))
    with pytest.raises(DumpError) as refused, open_dump([_save(tmp_path / "d.npz", reference=a, variant=b)]):
        pass
    said = str(refused.value)
    assert (
        f"looks like chosen-token log-probabilities of {shape[0]:,} sequences of {shape[1]} tokens, not [positions,"
        " vocab]" in said
    )
    assert "--holds logits" in said
    assert said.count(". ") == 0  # one sentence


def test_one_such_side_is_enough_and_the_user_may_know_better(tmp_path: Path) -> None:
    path = _save(tmp_path / "d.npz", reference=_logits("float32", shape=(99, 64)), variant=_chosen(99, 64))
    with pytest.raises(DumpError, match="'variant' looks like chosen-token"), open_dump([path]):
        pass
    with open_dump([path], holds="logits") as dump:
        assert (dump.rows, dump.vocab, dump.warnings) == (99, 64, ())
    with pytest.raises(UsageError, match="holds 'logit' is not known"):
        open_dump([path], holds="logit")


def test_padding_and_an_order_of_columns_hide_nothing(tmp_path: Path) -> None:
    padded = _chosen(200, 32)
    padded[:, 20:] = np.nan
    for side in (padded, np.asfortranarray(_chosen(200, 32))):
        with (
            pytest.raises(DumpError, match="of 200 sequences of 32 tokens"),
            open_dump([_save(tmp_path / "d.npz", a=side, b=side)]),
        ):
            pass


def test_as_many_columns_as_a_vocabulary_could_have_are_remarked_on(tmp_path: Path) -> None:
    assert "looks like chosen-token log-probabilities" in _warned(tmp_path, a=_chosen(64, 1000), b=_chosen(64, 1000, 1))


def _rows(kind: str, rows: int, vocab: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    logits = random.standard_normal((rows, vocab)) * 4
    log = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    best = np.argsort(-log, axis=1)[:, : max(1, vocab // 3)]
    cut = np.full_like(log, -np.inf)
    np.put_along_axis(cut, best, np.take_along_axis(log, best, 1), 1)
    return {
        "logits": logits,
        "negative logits": logits - 40,
        "log-softmax": log,
        "log-softmax in bfloat16": log.astype(ml_dtypes.bfloat16),
        "cut": cut,
        "cut at -1e4": np.maximum(cut, -1e4),
        "less their largest": logits - logits.max(axis=1, keepdims=True),
        "scaled log-softmax": log / 0.7,
        "zeros": np.zeros((rows, vocab)),
    }[kind].astype(np.float32)


@pytest.mark.parametrize(
    "kind",
    [
        "logits",
        "negative logits",
        "log-softmax",
        "log-softmax in bfloat16",
        "cut",
        "cut at -1e4",
        "less their largest",
        "scaled log-softmax",
        "zeros",
    ],
)
def test_nothing_that_is_a_vocabulary_s_is_taken_for_chosen_tokens(tmp_path: Path, kind: str) -> None:
    for seed, (rows, vocab) in enumerate([(500, 64), (40, 8), (9, 2), (64, 600)]):
        a, b = (_rows(kind, rows, vocab, seed + side) for side in (0, 100))
        assert "chosen" not in _warned(tmp_path, a=a, b=b)
