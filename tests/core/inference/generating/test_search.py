"""The search finds the flips that are there, keeps to its budget, and says what it did when there are none."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from core.errors import CaptureError
from core.inference.generating import search as module
from core.inference.generating.search import search
from core.inference.models.model import LoadedModel, load_model
from core.inference.paths.paths import parse_path
from tests.core.inference.generating.test_generation import MADE
from tests.core.inference.sameness import logits_of
from tests.covering import thorough

FILES = Path(__file__).resolve().parents[4] / "sample_runs" / "prompts"
TEXTS = [path.read_text() for path in sorted(FILES.glob("*.txt"))]


@dataclass(frozen=True)
class Searched:
    """Prompts of a search, and the positions of each one's flips by a loop as one would write it by hand."""

    loaded: LoadedModel
    prompts: list[str]
    variant: str
    expected: list[list[int]]

    def ids(self, prompt: int) -> list[int]:
        return self.loaded.tokenizer(self.prompts[prompt])["input_ids"]


@pytest.fixture(scope="module", params=["llama in two dtypes", *thorough(["shipped"])])
def searched(request, llama: LoadedModel, shipped_model: Path) -> Searched:
    """A tiny model against itself in bfloat16 flips somewhere on every processor; the shipped one against its cache
    in long prompts.
    """
    if request.param == "shipped":
        loaded = load_model(str(shipped_model), dtype="bfloat16", device="cpu")
        prompts, variant = MADE + TEXTS, "decode"
    else:
        loaded, variant = llama, "decode+dtype:bfloat16"
        prompts = [text[start : start + 60] for text in TEXTS for start in (0, 60, 120, 180)]
    flips = []
    for prompt in prompts:
        ids = loaded.tokenizer(prompt)["input_ids"]
        ours, theirs = logits_of("prefill", loaded, ids), logits_of(variant, loaded, ids)
        flips.append((ours.argmax(-1) != theirs.argmax(-1)).nonzero()[:, 0].tolist())
    return Searched(loaded, prompts, variant, flips)


@pytest.mark.thorough
@pytest.mark.model
def test_every_flip_of_every_prompt_is_found(searched: Searched) -> None:
    prompts = searched.prompts
    found = search(searched.loaded, prompts, "prefill", searched.variant, flips=len(prompts))
    assert found.reason == "all prompts were tried"
    assert found.prompts == len(prompts)
    assert found.positions == sum(len(searched.ids(n)) for n in range(len(prompts)))
    by_prompt = [[flip.position for flip in found.flips if flip.prompt == n] for n in range(len(prompts))]
    assert by_prompt == searched.expected
    assert any(searched.expected)  # this processor does show some
    assert found.closest is None or found.closest >= 0


@pytest.mark.model
def test_margins_are_those_of_the_logits(searched: Searched) -> None:
    found = search(searched.loaded, searched.prompts, "prefill", searched.variant, flips=1)
    flip = found.flips[0]
    ids = searched.ids(flip.prompt)
    for path, margin, token in (
        ("prefill", flip.reference_margin, flip.reference_token),
        (searched.variant, flip.variant_margin, flip.variant_token),
    ):
        logits = logits_of(path, searched.loaded, ids)[flip.position]
        best = logits.topk(2)
        assert margin == float(best.values[0]) - float(best.values[1])
        assert token == int(logits.argmax())


def _parting(monkeypatch) -> None:
    """From the third token on, one path's continuation is another."""
    real = module.continue_all

    def other(loaded_path, *rest, **options):
        for made, margins in real(loaded_path, *rest, **options):
            yield ((*made[:2], made[2] + 1, *made[3:]) if "batch" in str(loaded_path) else made), margins

    monkeypatch.setattr(module, "continue_all", other)


@pytest.mark.model
def test_where_continuations_part_both_margins_are_told(llama: LoadedModel, monkeypatch) -> None:
    ids = llama.tokenizer("def walk(self)")["input_ids"]
    made, margins = next(module.continue_all(parse_path("prefill"), llama, [ids], 4))
    _parting(monkeypatch)
    found = search(llama, ["def walk(self)"], "prefill", "prefill+batch:2", tokens=4)
    (flip,) = found.flips
    assert (flip.position, flip.reference_token, flip.variant_token) == (len(ids) + 1, made[2], made[2] + 1)
    assert flip.reference_margin == margins[2] > 0
    assert flip.variant_margin == pytest.approx(margins[2], abs=1e-4)


@pytest.mark.model
def test_continuations_that_never_part_tell_the_closest_call(llama: LoadedModel) -> None:
    ids = llama.tokenizer("def walk(self)")["input_ids"]
    sides = [next(module.continue_all(parse_path(path), llama, [ids], 4))[1] for path in ("prefill", "prefill+batch:2")]
    found = search(llama, ["def walk(self)"], "prefill", "prefill+batch:2", tokens=4)
    assert found.flips == ()
    assert found.closest == min(map(min, sides))


@pytest.mark.model
def test_identical_paths_have_no_flip_and_the_closest_call_is_told(searched: Searched) -> None:
    found = search(searched.loaded, searched.prompts, "prefill", "prefill+attn:sdpa")
    assert found.flips == ()
    assert found.closest is not None
    smallest = min(
        float(
            (best := logits_of("prefill", searched.loaded, searched.ids(n)).topk(2).values.double())[:, 0]
            .sub(best[:, 1])
            .min()
        )
        for n in range(len(searched.prompts))
    )
    assert found.closest == smallest


@pytest.mark.model
def test_a_planted_fault_at_one_position_of_one_prompt_is_found(llama: LoadedModel, monkeypatch) -> None:
    """The twin: were the sides not really compared, this would come back empty as the one above did."""
    real = module._scores

    def faulty(loaded, path, prompts, seed):
        for n, (tokens, margins) in enumerate(real(loaded, path, prompts, seed)):
            if str(path) == "prefill+batch:2" and n == 1:
                tokens[2] += 1
            yield tokens, margins

    monkeypatch.setattr(module, "_scores", faulty)
    found = search(llama, ["def walk(self)", "def walk(self, path)"], "prefill", "prefill+batch:2")
    assert [(flip.prompt, flip.position) for flip in found.flips] == [(1, 2)]


@pytest.mark.model
def test_the_time_is_kept(llama: LoadedModel, monkeypatch) -> None:
    """By a clock on which each prompt takes 50 ms: the budget of a second ends within the variant's pass, and nobody
    has to be fast.
    """
    real, now = module._scores, [0.0]

    def slow(loaded, path, prompts, seed):
        for scored in real(loaded, path, prompts, seed):
            now[0] += 0.05
            yield scored

    monkeypatch.setattr(module, "_scores", slow)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    found = search(llama, ["def walk(self)"] * 300, "prefill", "prefill+batch:2", minutes=1 / 60)
    assert found.reason == "the 0.0166667 minutes were spent"
    assert 0 < found.prompts < 60
    assert found.seconds < 5  # not twice the budget: the variant's pass is cut short too


@pytest.mark.model
def test_prompts_that_the_model_cannot_take_are_skipped_with_the_reason(llama: LoadedModel) -> None:
    told: list[tuple[int, ...]] = []
    found = search(llama, ["", "def walk", "x " * 400], "prefill", "decode", on_progress=lambda *to: told.append(to))
    assert found.prompts == 1
    assert [number for number, _ in found.skipped] == [0, 2]
    assert "is empty" in found.skipped[0][1]
    assert "context is 96" in found.skipped[1][1]
    assert told[-1][1:] == (1, 1)
    with pytest.raises(CaptureError, match="no prompt can be searched"):
        search(llama, [""], "prefill", "decode")
