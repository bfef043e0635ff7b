"""Shapes and dtypes that scripts save: accepted if they are certain, else refused with the fix."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from scipy.special import log_softmax, softmax

from core.errors import DumpError
from core.runs.dumps.dump import open_dump
from tests.core.runs.dumps.made_dumps import ROWS, VOCAB, bits_in, dump_of, logits, names_of, saved


def values(dump):
    return [bits.view(np.float32) for bits in bits_in(dump)]


# ---- token ids


@pytest.mark.parametrize(
    "key",
    ["token_ids", "input_ids", "prompt_token_ids", "tokens"],
)
@pytest.mark.parametrize("shape", [(ROWS,), (1, ROWS), (ROWS, 1)])
def test_whole_numbers_under_a_name_of_token_ids_are_token_ids(tmp_path, key, shape):
    ids = np.arange(5, 5 + ROWS)
    path = saved(
        tmp_path,
        a=logits(1),
        b=logits(2),
        **{key: ids.reshape(shape)},
    )
    with open_dump([path]) as dump:
        assert dump.prompts[0].token_ids == tuple(ids)


def test_an_attention_mask_is_left_out_with_a_note(tmp_path):
    mask = np.ones((1, ROWS), np.int64)
    with dump_of(
        tmp_path,
        a=logits(1),
        b=logits(2),
        attention_mask=mask,
    ) as dump:
        assert names_of(dump) == ["a", "b"]
        assert any("'attention_mask'" in note for note in dump.warnings)


# ---- steps


@pytest.mark.parametrize("shape", [(ROWS, 1, VOCAB), (ROWS, VOCAB)])
def test_stacked_scores_are_the_positions_of_one_prompt(tmp_path, shape):
    a = logits(0, (ROWS, 1, VOCAB))
    b = logits(1, shape)
    with dump_of(tmp_path, a=a, b=b, token_ids=np.arange(ROWS)) as dump:
        assert [prompt.positions for prompt in dump.prompts] == [ROWS]
        assert any("steps of one generation" in note for note in dump.warnings)
        for found, side in zip(values(dump), (a, b), strict=True):
            assert np.array_equal(found, side.reshape(ROWS, VOCAB))


def test_prompts_of_one_position_each_stay_prompts_if_their_lengths_say_so(tmp_path):
    side = logits(1, (ROWS, 1, VOCAB))
    with dump_of(
        tmp_path,
        a=side,
        b=side,
        prompt_lengths=np.ones(ROWS, int),
    ) as dump:
        assert len(dump.prompts) == ROWS
        assert dump.warnings == ()
    side = side.reshape(1, ROWS, VOCAB)
    with dump_of(tmp_path, a=side, b=side) as dump:
        assert len(dump.prompts) == 1
        assert dump.rows == ROWS
        assert dump.warnings == ()


# ---- transposed


def test_one_transposed_side_is_refused_with_the_fix(tmp_path):
    with pytest.raises(DumpError, match=r"'b' has shape \(32, 6\).*array\.T"):
        dump_of(tmp_path, a=logits(1), b=logits(2).T)


@pytest.mark.parametrize(
    ("key", "entries"),
    [("token_ids", np.arange(ROWS)), ("tokens", np.array(list("abcdef")))],
)
def test_sides_whose_last_axis_has_the_length_of_the_tokens_are_refused_with_the_fix(
    tmp_path,
    key,
    entries,
):
    with pytest.raises(DumpError, match=rf"'{key}' has 6 entries.*array\.T"):
        dump_of(
            tmp_path,
            a=logits(1).T,
            b=logits(2).T,
            **{key: entries},
        )


def test_a_thousand_positions_of_few_tokens_are_asked_about(tmp_path):
    shape = (2000, 24)
    with dump_of(tmp_path, a=logits(1, shape), b=logits(2, shape)) as dump:
        assert any("array.T" in note for note in dump.warnings)


@pytest.mark.parametrize("normalize", [softmax, log_softmax])
def test_columns_that_sum_to_1_are_refused_with_the_fix(tmp_path, normalize):
    a = normalize(logits(0), axis=-1)
    b = normalize(logits(1), axis=-1)
    dump_of(tmp_path, a=a, b=b)
    with pytest.raises(DumpError, match=r"array\.T"):
        dump_of(tmp_path, a=a.T, b=b.T)


# ---- other lengths


@pytest.mark.parametrize("shape", [(40, 64), (2, 40, 64)])
@pytest.mark.parametrize(
    ("rows", "part"),
    [((1, 40), "1:"), ((0, 33), ":33"), ((7, 36), "7:36")],
)
@pytest.mark.parametrize("is_shorter", [True, False])
def test_the_rows_of_a_longer_side_that_fit_are_named(tmp_path, shape, rows, part, is_shorter):
    long = logits(1, shape)
    first, stop = rows
    # rows fit by their argmax: engines do not agree in every bit
    short = long[..., first:stop, :] + np.float32(1e-5)
    sides = {"a": long, "b": short} if is_shorter else {"b": short, "a": long}
    axes = ":, " * (len(shape) - 2)
    fix = rf"Rows {first} to {stop - 1} of 'a' fit: pass a\[{axes}{part}\]"
    with pytest.raises(DumpError, match=fix):
        dump_of(tmp_path, **sides)


@pytest.mark.parametrize(
    "other",
    # constant rows have one argmax, which would fit everywhere
    [logits(2, (39, 64)), np.ones((39, 64), np.float32)],
)
def test_no_rows_are_named_if_none_fit(tmp_path, other):
    with pytest.raises(DumpError, match=r"'b' has 39 positions, 'a' 40. Save the same positions"):
        dump_of(tmp_path, a=logits(1, (40, 64)), b=other)


# ---- layers


@pytest.mark.parametrize(
    ("names", "is_refused"),
    [
        (("layers.0", "layers.1", "layers.2"), True),
        (("model.layers.0.mlp", "model.layers.1.mlp", "norm"), True),
        (("transformer.h.0", "transformer.h.1"), True),
        (("hf_hidden_states", "vllm_hidden_states"), True),
        (("hf/0", "hf/1", "vllm/0", "vllm/1"), True),
        (("hidden.0", "hidden.1"), True),
        # names of machines and settings end in numbers too
        (("a100", "h100", "h200"), False),
        (("block_16", "block_32"), False),
        (("layer_3_fp8", "layer_7_fp8"), False),
        (("run/0", "run/1"), False),
    ],
)
def test_tensors_of_layers_are_no_sides(tmp_path, names, is_refused):
    path = saved(tmp_path, **{name: logits(seed) for seed, name in enumerate(names)})
    if not is_refused:
        open_dump([path])
        return
    with pytest.raises(DumpError, match=r"Tensor dumps in docs/guides/engines.md"):
        open_dump([path])


@pytest.mark.parametrize("form", [tuple, lambda parts: {"scores": parts}])
def test_a_list_of_tensors_in_each_of_two_files_says_how_to_stack_it(tmp_path, form):
    paths = [tmp_path / "a.pt", tmp_path / "b.pt"]
    for path in paths:
        torch.save(form([torch.zeros(4, 8), torch.ones(4, 8), torch.ones(4, 8)]), path)
    with pytest.raises(DumpError, match=r"is a list of 3 tensors. Save steps as torch.stack"):
        open_dump(paths)


# ---- vocabularies of other sizes


@pytest.mark.parametrize("holds", [None, "padded"])
@pytest.mark.parametrize(
    ("vocab", "rank"),
    # four ranks of 1,264 pad 5,030 tokens to 5,056
    [(64, 32), (64, 16), (64, 8), (5030, 1264)],
)
def test_the_share_of_one_rank_is_no_padding(tmp_path, vocab, rank, holds):
    whole = logits(1, (ROWS, vocab))
    with pytest.raises(DumpError, match=f"one rank of {round(vocab / rank)}"):
        open_dump([saved(tmp_path, whole=whole, rank=whole[:, :rank])], holds=holds)


def test_padding_is_asked_about_only_if_it_is_likely(tmp_path):
    wide = logits(1, (2, 32_000))
    with pytest.raises(DumpError, match=r"padded by 1 token[?]"):
        dump_of(tmp_path, a=wide, b=wide[:, :-1])
    with pytest.raises(DumpError, match="more than padding"):
        dump_of(tmp_path, a=wide, b=wide[:, :-9000])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "form",
    ["npz", "npz deflated", "two files", "prompts"],
)
def test_a_padded_vocabulary_is_cut_to_the_common_part_if_the_user_says_so(tmp_path, form, order):
    shape = (2, ROWS // 2) if form == "prompts" else (ROWS,)
    a = logits(1, (*shape, VOCAB))
    b = np.asarray(
        logits(2, (*shape, VOCAB + 7)),
        order=order,
    )
    paths = [tmp_path / "dump.npz"]
    if form == "two files":
        paths = [tmp_path / "a.npy", tmp_path / "b.npy"]
        np.save(paths[0], a)
        np.save(paths[1], b)
    elif form == "npz deflated":
        np.savez_compressed(paths[0], a=a, b=b)
    else:
        np.savez(paths[0], a=a, b=b)
    with pytest.raises(DumpError, match=r"7 tokens.*--holds padded"):
        open_dump(paths)
    with open_dump(paths, holds="padded") as dump:
        assert dump.vocab == VOCAB
        assert any("7 of padding" in note for note in dump.warnings)
        for cut, whole in zip(values(dump), (a, b), strict=True):
            assert np.array_equal(cut, whole[..., :VOCAB].reshape(ROWS, VOCAB))


# ---- the order of safetensors


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
    path = tmp_path / "dump.safetensors"
    # safetensors sorts tensors by name, so the order of the file says nothing
    save_file(dict.fromkeys(names, logits(1)), path)
    with open_dump([path]) as dump:
        assert dump.sides[0].name == reference
    with open_dump([path], reference=names[0]) as dump:
        assert dump.sides[0].name == names[0]


def test_the_order_of_an_npz_is_its_writer_s(tmp_path):
    with dump_of(tmp_path, cached=logits(1), fresh=logits(2)) as dump:
        assert dump.sides[0].name == "cached"
