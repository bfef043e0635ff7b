"""Neighbours are real, as long as the prompt, and never the prompt."""

from __future__ import annotations

import pytest
import torch

from core.inference.models.model import LoadedModel
from core.inference.paths.neighbours import neighbour_rows


def are_proper(rows: torch.Tensor, ids: list[int]) -> bool:
    """Of the prompt's length, different from it and from each other."""
    found = [tuple(row) for row in rows.tolist()]
    return rows.shape[1] == len(ids) and tuple(ids) not in found and len(set(found)) == len(found)


@pytest.mark.parametrize("positions", [2, 17, 96])
def test_neighbours_have_the_prompts_length_and_differ_from_it_and_each_other(
    positions: int, llama: LoadedModel
) -> None:
    ids = list(range(5, 5 + positions))
    assert are_proper(neighbour_rows(llama.tokenizer, ids, 31), ids)


def test_a_prompt_that_is_one_of_the_windows_is_not_its_own_neighbour(llama: LoadedModel) -> None:
    window = neighbour_rows(llama.tokenizer, list(range(9)), 1)[0].tolist()
    assert are_proper(neighbour_rows(llama.tokenizer, window, 8), window)


def test_a_prompt_longer_than_the_text_has_neighbours_too(llama: LoadedModel) -> None:
    ids = [5] * 20_000
    assert are_proper(neighbour_rows(llama.tokenizer, ids, 2), ids)


def test_more_rows_than_windows_repeat_windows(llama: LoadedModel) -> None:
    rows = neighbour_rows(llama.tokenizer, [5], 400)
    assert rows.shape == (400, 1)
    assert 5 not in rows
