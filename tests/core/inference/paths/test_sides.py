"""Sides of a capture: repeats, sweeps, and what they find on a model."""

import pytest

from core.capture_request import CaptureRequest
from core.errors import UsageError
from core.inference.paths.paths import sides_of


def sides(reference, *variants, **settings):
    request = CaptureRequest(model="m", reference=reference, variants=variants, **settings)
    return sides_of(request)


def test_the_first_call_with_reuse_is_fresh_and_the_later_ones_read_the_cache():
    repeated = sides("blocks:16+batch:2", repeat=3)
    assert [(side.name, str(side.path)) for side in repeated] == [
        ("blocks:16+batch:2 call 1", "prefill+batch:2"),
        ("blocks:16+batch:2 call 2", "blocks:16+batch:2"),
        ("blocks:16+batch:2 call 3", "blocks:16+batch:2"),
    ]


@pytest.mark.parametrize(
    ("reference", "text", "paths"),
    [
        ("decode", "batch=1,2, 4", ["decode+batch:1", "decode+batch:2", "decode+batch:4"]),
        ("decode+batch:9+threads:1", "batch=2", ["decode+batch:2+threads:1"]),
        ("prefill+batch:2", "chunked=8,16", ["chunked:8+batch:2", "chunked:16+batch:2"]),
        ("chunked:8", "chunked=8,16", ["chunked:16"]),  # the reference is no variant
    ],
)
def test_a_sweep_replaces_the_value_of_its_modifier_or_the_base(reference, text, paths):
    assert [side.name for side in sides(reference, sweeps=(text,))] == [reference, *paths]


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        (("prefill", "prefill"), {}, "given twice"),
        (("prefill", "decode"), {"repeat": 0}, "at least 1"),
        (("prefill", "nonsense"), {}, "bases are"),
    ],
)
def test_impossible_sides_are_refused_in_a_sentence(arguments, options, sentence):
    with pytest.raises(UsageError, match=sentence):
        sides(*arguments, **options)
