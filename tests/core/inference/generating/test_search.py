"""The search finds the flips that are there, keeps to its budget, and says what it did when there
are none.
"""

import itertools
from types import SimpleNamespace

import pytest

from core.errors import CaptureError
from core.inference.generating import search as module
from core.inference.generating.search import search
from core.inference.paths.paths import parse_path
from tests.core.inference.sameness import logits_of
from tests.places import ROOT

FILES = ROOT / "sample_runs" / "prompts"
TEXTS = [path.read_text() for path in sorted(FILES.glob("*.txt"))]
PROMPTS = [text[start : start + 60] for text in TEXTS for start in (0, 60, 120, 180)]
# flips somewhere on every processor
VARIANT = "decode+dtype:bfloat16"
pytestmark = pytest.mark.model


def ids_of(loaded):
    """Tokens of each prompt."""
    return [loaded.tokenizer(prompt)["input_ids"] for prompt in PROMPTS]


def test_every_flip_of_every_prompt_is_found_with_its_margins(llama):
    """As one would write it by hand."""
    found = search(
        llama,
        PROMPTS,
        "prefill",
        VARIANT,
        # on some processors every prompt has a flip
        flips=len(PROMPTS) + 1,
    )
    assert found.reason == "all prompts were tried"
    assert found.prompts == len(PROMPTS)
    ids = ids_of(llama)
    assert found.positions == sum(map(len, ids))
    assert found.closest is None or found.closest >= 0
    sides = [[logits_of(path, llama, each) for path in ("prefill", VARIANT)] for each in ids]
    flips = []
    for reference, variant in sides:
        differs = reference.argmax(-1) != variant.argmax(-1)
        flips.append(differs.nonzero()[:, 0].tolist())
    by_prompt = [[] for _ in PROMPTS]
    for flip in found.flips:
        by_prompt[flip.prompt].append(flip.position)
    assert by_prompt == flips
    assert any(flips)
    for flip in found.flips:
        ours, theirs = (logits[flip.position] for logits in sides[flip.prompt])
        assert flip.reference_token == int(ours.argmax())
        assert flip.variant_token == int(theirs.argmax())
        for logits, margin in ((ours, flip.reference_margin), (theirs, flip.variant_margin)):
            best, second = logits.topk(2).values
            assert margin == float(best) - float(second)


def test_paths_that_never_part_have_no_flip_and_the_closest_call_is_told(llama):
    found = search(llama, PROMPTS, "prefill", "prefill+attn:sdpa")
    best = [logits_of("prefill", llama, ids).topk(2).values.double() for ids in ids_of(llama)]
    assert found.flips == ()
    gaps = [float((rows[:, 0] - rows[:, 1]).min()) for rows in best]
    assert found.closest == min(gaps)
    paths = ("prefill", "prefill+batch:2")
    ids = llama.tokenizer("def walk(self)")["input_ids"]
    sides = []
    for path in paths:
        _, margins = next(module.continue_all(parse_path(path), llama, [ids], 4))
        sides.append(margins)
    found = search(llama, ["def walk(self)"], *paths, tokens=4)
    assert found.flips == ()
    assert found.closest == min(map(min, sides))


def test_the_time_is_kept(llama, monkeypatch):
    """By a clock that each look at it moves by 50 ms: the budget of a second ends within the
    variant's pass, and nobody has to be fast.
    """
    clock = itertools.count()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 0.05 * next(clock)))
    found = search(
        llama,
        ["def walk(self)"] * 300,
        "prefill",
        "prefill+batch:2",
        minutes=1 / 60,
    )
    assert found.reason == "the 0.0166667 minutes were spent"
    assert 0 < found.prompts < 60
    # not twice the budget: the variant's pass is cut short too
    assert found.seconds < 5


def test_prompts_that_the_model_cannot_take_are_skipped_with_the_reason(llama):
    told = []
    found = search(
        llama,
        ["", "def walk", "x " * 400],
        "prefill",
        "decode",
        on_progress=lambda *to: told.append(to),
    )
    assert found.prompts == 1
    assert [number for number, _ in found.skipped] == [0, 2]
    assert "is empty" in found.skipped[0][1]
    assert "context is 96" in found.skipped[1][1]
    assert told[-1][1:3] == (1, 1)
    with pytest.raises(CaptureError, match="no prompt can be searched"):
        search(llama, [""], "prefill", "decode")
