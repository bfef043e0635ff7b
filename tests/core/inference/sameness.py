"""The check that every path must pass and every planted fault must fail: does it compute the
model's function?
"""

import copy
import math
from functools import cache

import torch

from core.capture_request import CaptureRequest
from core.inference.capture.capture import plan_capture, run_capture
from core.inference.controls.modules_alone import modules_alone
from core.inference.generating.generation import plan_generation
from core.inference.models.model import load_model
from core.inference.paths import paths
from core.inference.paths.bases import Base
from core.inference.paths.engines import side_of, whole_side
from core.inference.paths.grammar import BASE_ARGUMENTS, MODIFIER_ARGUMENTS
from core.inference.paths.modifiers import Modifier
from core.runs.writer import RunWriter
from tests.core.runs.made_runs import opened

PROMPT = "def walk(self, path): return [step for step in path if step]\nThe ferry left at ten"
POSITIONS = 32


def on_cpu(name, dtype="float32", **more):
    """A model of a folder or a file, loaded on the CPU."""
    return load_model(
        str(name),
        dtype=dtype,
        device="cpu",
        **more,
    )


def drawn(*shape, seed=0):
    """Normal numbers, the same in every process."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def apart(a, b):
    """The largest distance of two elements."""
    return float((a.double() - b.double()).abs().max())


def rms(values):
    return float(values.double().square().mean().sqrt())


def plant_base(monkeypatch, name, compute):
    """A base of paths that computes so."""
    monkeypatch.setitem(paths.BASES, name, Base(compute))
    monkeypatch.setitem(BASE_ARGUMENTS, name, ())


def plant_modifier(monkeypatch, name, change):
    """A modifier of paths that changes batches so."""
    monkeypatch.setitem(paths.MODIFIERS, name, Modifier(change))
    monkeypatch.setitem(MODIFIER_ARGUMENTS, name, ())


def tokens(loaded):
    return loaded.tokenizer(PROMPT)["input_ids"][:POSITIONS]


def logits_of(path, loaded, ids=None):
    """All pieces as one. -> [positions, vocab]"""
    with torch.inference_mode():
        return whole_side(side_of(path).run_on(loaded), tokens(loaded) if ids is None else ids)


def replacing_output(change):
    """A hook that replaces what a module puts out, or the first of it."""

    def hook(_, __, output):
        if isinstance(output, tuple):
            return change(output[0]), *output[1:]
        return change(output)

    return hook


def alone(path, loaded, ids):
    """Each module of a side alone."""
    with torch.inference_mode():
        return modules_alone(loaded, ids, side_of(path))


def planned(
    loaded,
    prompts,
    reference="prefill",
    variants=("decode",),
    *,
    is_dry=False,
    **settings,
):
    """The plan of a request with these settings."""
    settings |= {"reference": reference, "variants": tuple(variants)}
    request = CaptureRequest(model=loaded.name, **settings)
    if request.tokens:
        return plan_generation(
            loaded,
            prompts,
            request,
            is_dry=is_dry,
        )
    return plan_capture(loaded, prompts, request)


def captured(
    store,
    loaded,
    prompts,
    variant,
    **settings,
):
    """The stored run of a capture of prefill and a variant, nothing of which failed."""
    plan = planned(
        loaded,
        prompts,
        "prefill",
        [variant],
        **settings,
    )
    with RunWriter(store, plan.header) as writer:
        assert run_capture(plan, writer) == []
        return opened(store, writer.finish())


@cache
def exact_logits(loaded):
    """The same weights in float64, by a plain forward that knows nothing of paths. -> [positions,
    vocab]
    """
    model = copy.deepcopy(loaded.model).double()
    if hasattr(loaded.model.config, "num_experts_per_tok"):
        model.set_experts_implementation("eager")  # the grouped product of experts knows no float64
    with torch.inference_mode():
        return model(torch.tensor([tokens(loaded)])).logits[0]


def float32_bound(loaded):
    """How far float32 rounding may move a logit.

    A product of length n is off by at most n u relative to its operands' norms (Higham, "Accuracy
    and stability of numerical algorithms", 3.5; u = 2^-24). The residual stream passes 5 of them in
    sequence per layer (query-key, attention-value, output, up, down) and the head; the final norm
    gives a hidden state of norm sqrt(hidden), so by Cauchy-Schwarz a logit moves by at most that
    relative error times sqrt(hidden) * |row of the head|. A soft cap of the logits only brings them
    closer.
    """
    config = loaded.model.config
    longest = max(
        config.hidden_size * (4 if config.model_type in ("gpt2", "bloom") else 2),
        POSITIONS,
    )
    stages = 5 * config.num_hidden_layers + 1
    head = loaded.model.get_output_embeddings().weight
    largest_row = float(head.norm(dim=1).max())
    return stages * longest * 2.0**-24 * math.sqrt(config.hidden_size) * largest_row


def computes_the_same(path, loaded):
    """Within the bound of float32 at every position, and the same argmax."""
    logits = logits_of(path, loaded)
    exact = exact_logits(loaded)
    is_close = apart(logits, exact) <= float32_bound(loaded)
    has_same_tokens = torch.equal(logits.argmax(-1), exact.argmax(-1))
    return is_close and has_same_tokens
