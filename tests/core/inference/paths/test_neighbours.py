"""Neighbours are real, as long as the prompt, and never the prompt."""

from core.inference.paths.batch import neighbour_rows


def assert_proper(rows, ids):
    """Of the prompt's length, different from it and from each other."""
    found = [tuple(row) for row in rows.tolist()]
    assert rows.shape[1] == len(ids)
    assert tuple(ids) not in found
    assert len(set(found)) == len(found)


def test_neighbours_have_the_prompts_length_and_differ_from_it_and_each_other(llama):
    # a prompt may be one of the windows
    window = neighbour_rows(llama, list(range(9)), 1)[0].tolist()
    for ids in (list(range(5, 7)), list(range(5, 101)), window):
        assert_proper(neighbour_rows(llama, ids, 31), ids)
    # longer than the text
    ids = [5] * 20_000
    assert_proper(neighbour_rows(llama, ids, 2), ids)


def test_more_rows_than_windows_repeat_windows(llama):
    rows = neighbour_rows(llama, [5], 400)
    assert rows.shape == (400, 1)
    assert 5 not in rows
