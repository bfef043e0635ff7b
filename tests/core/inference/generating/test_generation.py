"""Continuations: each side's tokens are those of transformers' own generate, and the run shows why
they part.
"""

import numpy as np
import pytest
import torch

from core.checks.rerun import AGAIN
from core.commands.capturing import run_extras
from core.errors import CaptureError
from core.inference.capture.capture import run_capture
from core.inference.generating import search
from core.inference.generating.generation import (
    best_and_margin,
    continue_all,
    end_tokens,
)
from core.inference.paths.paths import parse_path
from core.numerics.formats import values_of
from core.progress import no_progress
from core.runs.writer import RunWriter
from tests.core.inference.capture.test_capture import collect
from tests.core.inference.conftest import MODELS
from tests.core.inference.sameness import captured, opened, planned, tokens
from tests.covering import covering

LENGTH = 24
PATHS = [
    "prefill",
    "decode",
    "chunked:5",
    "reuse:7",
    "blocks:8",
    "static",
    "prefill+batch:3+row:1",
    "decode+batch:4+neighbours:same",
    "prefill+batch:2+neighbours:random",
    "prefill+pad:left:5",
    "decode+pad:left:3",
    "static+pad:left:2+batch:2",
]
MADE = [
    "def __init__(self, name, parent=None):\n    self.name = name\n    self.parent =",
    "for index in range(len(values)):\n    total +=",
    "import os\nimport sys\n\ndef main():",
    (
        "class Reader:\n    def read(self, path):\n        with open(path) as file:\n           "
        " return"
    ),
    "if not isinstance(value, str):\n    raise TypeError(",
    "    @property\n    def size(self):",
    "try:\n    result = fetch(url)\nexcept",
    "x = [",
]


def generated(loaded, ids, length):
    """transformers' own greedy search."""
    with torch.inference_mode():
        out = loaded.model.generate(
            torch.tensor([ids]),
            max_new_tokens=length,
            do_sample=False,
            pad_token_id=0,
            attention_mask=torch.ones(1, len(ids)),
        )
    return tuple(out[0, len(ids) :].tolist())


@pytest.mark.spread(8)
@pytest.mark.model
@pytest.mark.parametrize(
    ("loaded", "path"),
    covering(MODELS, PATHS, whole=("llama",)),
    indirect=["loaded"],
)
def test_a_path_continues_a_prompt_as_transformers_does(path, loaded):
    """In float32 the random models of these tests have margins far above rounding, so every path
    must agree with the oracle.
    """
    ids = tokens(loaded)[:20]
    ((found, _),) = continue_all(parse_path(path), loaded, [ids], LENGTH)
    assert found == generated(loaded, ids, LENGTH)


@pytest.mark.model
def test_a_text_ends_with_the_models_own_end_token(llama, monkeypatch):
    ids = tokens(llama)[:20]
    whole = generated(llama, ids, LENGTH)
    stop = whole[5]
    monkeypatch.setattr(llama.model.generation_config, "eos_token_id", [stop, 383])
    assert end_tokens(llama) == {stop, 383}
    ((found, _),) = continue_all(parse_path("prefill"), llama, [ids], LENGTH)
    assert found == whole[: whole.index(stop) + 1] == generated(llama, ids, LENGTH)


def test_the_argmax_is_the_lowest_id_and_never_nan_and_its_margin_is_over_the_runner_up():
    rows = torch.tensor(
        [
            [1.0, torch.nan, 3.0, 3.0],
            [-torch.inf, torch.nan, -torch.inf, 2.0],
            [0.5, 4.0, torch.nan, 1.75],
        ],
    )
    tokens, margins = best_and_margin(rows)
    assert tokens.tolist() == [2, 3, 1]
    assert margins.tolist() == [0.0, torch.inf, 2.25]


@pytest.mark.model
def test_each_token_of_a_continuation_has_the_margin_of_its_own_logits(llama):
    """Against one forward of transformers over the prompt and what was written; float32 orders its
    sums differently by 1e-5.
    """
    ids = tokens(llama)[:20]
    ((found, margins),) = continue_all(parse_path("decode"), llama, [ids], LENGTH)
    with torch.inference_mode():
        whole = llama.model(torch.tensor([[*ids, *found]])).logits[0]
        # the row before a token chose it
        logits = whole[len(ids) - 1 : -1].double()
    best = logits.topk(2).values
    assert margins == pytest.approx((best[:, 0] - best[:, 1]).tolist(), abs=1e-4)
    assert len(set(margins)) == len(found)


@pytest.mark.model
def test_the_run_shows_the_flip_that_made_the_texts_part(llama, store):
    variant = "decode+dtype:bfloat16"
    found = search.search(llama, MADE, "prefill", variant, tokens=LENGTH)
    prompts = [MADE[found.flipped_prompts[0]]]
    with captured(store, llama, prompts, variant, tokens=LENGTH) as run:
        made = run.generations[0]
        parting = made.parting(1)
        (flip, *_) = found.flips
        assert parting == flip.position
        # nothing is captured beyond it
        assert run.header.rows == parting + 1
        table = run.positions(0)
        step = parting - made.given_positions + 1
        here = table.iloc[parting]
        assert here["is_flip"]
        captured_tokens = run.header.prompts[0].token_ids[made.given_positions :]
        # until then every generated token is the argmax of both sides' stored logits
        middle = table.iloc[made.given_positions - 1 : parting]
        for side, name in enumerate(("reference", "variant")):
            margin = getattr(flip, f"{name}_margin")
            assert margin == pytest.approx(here[f"{name}_margin"], abs=1e-4)
            logits = values_of(run.at(side, 0, parting), run.header.format)
            chosen = getattr(flip, f"{name}_token"), here[f"{name}_token"], np.argmax(logits)
            assert set(chosen) == {made.tokens[side][step]}
            assert made.tokens[side][:step] == captured_tokens
            assert middle[f"{name}_token"].tolist() == list(captured_tokens)
        assert made.texts[0] == llama.tokenizer.decode(made.tokens[0])


@pytest.mark.model
@pytest.mark.parametrize("path", ["static", "decode+batch:3", "blocks:8+pad:left:2"])
def test_the_second_pass_repeats_the_first(path, llama_bfloat16):
    """Fed the common tokens, every step has the token and the very margin of the first pass."""
    ids = llama_bfloat16.tokenizer(MADE[1])["input_ids"]
    ((found, margins),) = continue_all(parse_path(path), llama_bfloat16, [ids], 8)
    plan = planned(llama_bfloat16, [MADE[1]], path, ["prefill"], tokens=8)
    values = values_of(collect(plan).side(0), plan.header.format)
    logits = values[len(ids) - 1 :].astype(np.float32)
    again, margins_again = best_and_margin(torch.from_numpy(logits))
    assert again.tolist() == list(found[: len(again)]) != []
    assert margins_again.tolist() == list(margins[: len(again)])


@pytest.mark.model
def test_continuations_are_judged_by_the_bits_that_the_run_shows(llama_bfloat16, store):
    # prefill computes the prompt at once and the continuation token by token, which no path of a
    # whole text does
    variants = ["decode", "static", "decode+batch:2"]
    plan = planned(
        llama_bfloat16,
        MADE[:2],
        "prefill",
        variants,
        tokens=8,
        judge=True,
    )
    with RunWriter(store, plan.header) as writer:
        run_capture(plan, writer)
        assert run_extras(plan, writer, no_progress) == []
        run_id = writer.finish()
    with opened(store, run_id) as run:
        rows = run.query(
            "SELECT pair_rms, rms FROM floor_position JOIN position USING (pair, prompt, position)"
            " WHERE compute_dtype = 'bfloat16'"
        )
        assert len(rows) == run.header.rows * len(variants)
        assert rows["pair_rms"].tolist() == pytest.approx(rows["rms"].tolist(), rel=1e-6)
        assert rows["rms"].any()
        for pair in range(len(variants)):
            again = [row for row in run.evidence(pair) if row.check == AGAIN]
            assert [row.outcome for row in again] == ["passed"]


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "reference", "length", "sentence"),
    [
        (
            "llama",
            "prefill+pad:right:2",
            4,
            "padding after the prompt leaves no place for generated tokens",
        ),
        ("llama", "prefill", 500, "and 500 more exceed the model's context of 96"),
        # the prompt is short enough, the continuation is not: keys cached before would be rotated
        # otherwise
        ("longrope", "prefill", 30, "changes its rotary frequencies beyond"),
    ],
)
def test_what_cannot_be_continued_is_refused_before_anything_is_computed(
    name,
    reference,
    length,
    sentence,
    model_of,
):
    with pytest.raises(CaptureError, match=sentence):
        planned(
            model_of(name),
            ["def walk(self)"],
            reference,
            ["prefill+batch:2"],
            tokens=length,
        )
