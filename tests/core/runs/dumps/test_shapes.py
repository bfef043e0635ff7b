"""Shapes and dtypes that scripts save: accepted if they are certain, else refused with the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from core.errors import DumpError
from core.runs.dumps.dump import Dump, open_dump

ROWS, VOCAB = 6, 32


def logits(seed: int, shape: tuple[int, ...] = (ROWS, VOCAB)) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 5).astype(np.float32)


def saved(tmp_path: Path, **arrays: Any) -> Path:
    np.savez(tmp_path / "dump.npz", **arrays)
    return tmp_path / "dump.npz"


def values(dump: Dump) -> list[np.ndarray]:
    chunks = [sides for _, sides in dump.chunks(max_bytes=2 * 4 * dump.vocab)]
    return [np.concatenate([sides[place] for sides in chunks]).view(np.float32) for place in range(len(dump.sides))]


# ---- token ids


@pytest.mark.parametrize("key", ["token_ids", "input_ids", "prompt_token_ids", "tokens"])
@pytest.mark.parametrize("shape", [(ROWS,), (1, ROWS), (ROWS, 1)])
def test_whole_numbers_under_a_name_of_token_ids_are_token_ids(tmp_path, key, shape):
    ids = np.arange(5, 5 + ROWS)
    with open_dump([saved(tmp_path, a=logits(1), b=logits(2), **{key: ids.reshape(shape)})]) as dump:
        assert dump.prompts[0].token_ids == tuple(ids)


def test_an_attention_mask_is_left_out_with_a_note(tmp_path):
    mask = np.ones((1, ROWS), np.int64)
    with open_dump([saved(tmp_path, a=logits(1), b=logits(2), attention_mask=mask)]) as dump:
        assert [side.name for side in dump.sides] == ["a", "b"]
        assert any("'attention_mask'" in note for note in dump.warnings)


def test_a_side_of_whole_numbers_is_refused_by_name(tmp_path):
    with pytest.raises(DumpError, match="'b' has the dtype int32"):
        open_dump([saved(tmp_path, a=logits(1), b=np.ones((ROWS, VOCAB), np.int32))])


# ---- steps


@pytest.mark.parametrize("shapes", [[(ROWS, 1, VOCAB)] * 2, [(ROWS, 1, VOCAB), (ROWS, VOCAB)]])
def test_stacked_scores_are_the_positions_of_one_prompt(tmp_path, shapes):
    sides = {name: logits(seed, shape) for seed, (name, shape) in enumerate(zip("ab", shapes, strict=True))}
    with open_dump([saved(tmp_path, **sides, token_ids=np.arange(ROWS))]) as dump:
        assert [prompt.positions for prompt in dump.prompts] == [ROWS]
        assert any("steps of one generation" in note for note in dump.warnings)
        for found, side in zip(values(dump), sides.values(), strict=True):
            assert np.array_equal(found, side.reshape(ROWS, VOCAB))


def test_prompts_of_one_position_each_stay_prompts_where_their_lengths_say_so(tmp_path):
    shape = (ROWS, 1, VOCAB)
    with open_dump(
        [saved(tmp_path, a=logits(1, shape), b=logits(2, shape), prompt_lengths=np.ones(ROWS, int))]
    ) as dump:
        assert len(dump.prompts) == ROWS
        assert dump.warnings == ()


def test_one_prompt_of_many_positions_says_nothing_of_steps(tmp_path):
    shape = (1, ROWS, VOCAB)
    with open_dump([saved(tmp_path, a=logits(1, shape), b=logits(2, shape))]) as dump:
        assert (len(dump.prompts), dump.rows, dump.warnings) == (1, ROWS, ())


# ---- transposed


def test_one_transposed_side_is_refused_with_the_fix(tmp_path):
    with pytest.raises(DumpError, match=r"'b' has shape \(32, 6\).*array\.T"):
        open_dump([saved(tmp_path, a=logits(1), b=logits(2).T)])


def test_sides_whose_last_axis_has_the_length_of_the_token_ids_are_refused_with_the_fix(tmp_path):
    with pytest.raises(DumpError, match=r"'token_ids' has 6 ids.*array\.T"):
        open_dump([saved(tmp_path, a=logits(1).T, b=logits(2).T, token_ids=np.arange(ROWS))])


def test_a_thousand_positions_of_few_tokens_are_asked_about(tmp_path):
    shape = (2000, 24)
    with open_dump([saved(tmp_path, a=logits(1, shape), b=logits(2, shape))]) as dump:
        assert any("array.T" in note for note in dump.warnings)


# ---- padded vocabularies


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("form", ["npz", "npz deflated", "safetensors", "two files"])
def test_a_padded_vocabulary_is_cut_to_the_common_part_where_the_user_says_so(tmp_path, form, order):
    a, b = logits(1), np.asarray(logits(2, (ROWS, VOCAB + 7)), order=order)
    paths = [tmp_path / "dump"]
    if form.startswith("npz"):
        with paths[0].open("wb") as file:
            (np.savez_compressed if "deflated" in form else np.savez)(file, a=a, b=b)
    elif form == "safetensors":
        save_file({"a": a, "b": np.ascontiguousarray(b)}, paths[0])
    else:
        paths = [tmp_path / "a.npy", tmp_path / "b.npy"]
        np.save(paths[0], a)
        np.save(paths[1], b)
    with pytest.raises(DumpError, match=r"7 tokens.*--holds padded"):
        open_dump(paths)
    with open_dump(paths, holds="padded") as dump:
        assert dump.vocab == VOCAB
        assert any("7 of padding" in note for note in dump.warnings)
        assert np.array_equal(values(dump)[0], a)
        assert np.array_equal(values(dump)[1], b[:, :VOCAB])


def test_prompts_are_cut_row_by_row(tmp_path):
    a, b = logits(1, (2, 3, VOCAB)), logits(2, (2, 3, VOCAB + 1))
    with open_dump([saved(tmp_path, a=a, b=b)], holds="padded") as dump:
        assert np.array_equal(values(dump)[1], b[..., :VOCAB].reshape(6, VOCAB))


def test_sides_of_one_vocabulary_are_as_they_are_without_the_option(tmp_path):
    path = saved(tmp_path, a=logits(1), b=logits(2))
    with open_dump([path], holds="padded") as padded, open_dump([path]) as plain:
        assert padded.warnings == plain.warnings == ()
        assert np.array_equal(values(padded), values(plain))


# ---- float8, and the order of safetensors


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_of_safetensors_is_named(tmp_path, dtype):
    narrow = logits(2).astype(getattr(ml_dtypes, dtype))
    save_file({"a": logits(1), "b": narrow}, tmp_path / "dump.safetensors")
    with pytest.raises(DumpError, match=rf"'b' is {dtype}.*upcast"):
        open_dump([tmp_path / "dump.safetensors"])


def test_float8_as_numpy_saves_it_is_named(tmp_path):
    with pytest.raises(DumpError, match=r"float8.*upcast"):
        open_dump([saved(tmp_path, a=logits(1), b=logits(2).astype(ml_dtypes.float8_e4m3fn))])


@pytest.mark.parametrize(
    ("names", "reference"),
    [
        (("cached", "fresh"), "fresh"),
        (("cached", "uncached"), "uncached"),
        (("engine", "reference", "fresh"), "reference"),
        (("candidate", "hf"), "hf"),
        (("engine", "hf"), "engine"),
    ],
)
def test_a_fresh_side_of_safetensors_comes_before_a_cached_one(tmp_path, names, reference):
    save_file({name: logits(seed) for seed, name in enumerate(names)}, tmp_path / "dump.safetensors")
    with open_dump([tmp_path / "dump.safetensors"]) as dump:
        assert dump.sides[0].name == reference
    with open_dump([tmp_path / "dump.safetensors"], reference=names[0]) as dump:
        assert dump.sides[0].name == names[0]


def test_the_order_of_an_npz_is_its_writer_s(tmp_path):
    with open_dump([saved(tmp_path, cached=logits(1), fresh=logits(2))]) as dump:
        assert dump.sides[0].name == "cached"
