"""What a dry run says is run beside the sides, against the forwards that are really made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from benchmarks.verdicts.precisions import ON_TOP, PRECISIONS
from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from core.inference.capture.capture import CapturePlan, plan_capture, run_capture
from core.inference.capture.extra_costs import StageCost, Work, stages_of
from core.inference.controls.judge_model import judge_pair
from core.inference.controls.judging_session import JudgingSession
from core.inference.controls.precisions.catalogue import catalogue
from core.inference.controls.precisions.search import most_precisions_offered, precisions_offered
from core.inference.controls.remedies import floor_of, prices_of, remedies_of
from core.inference.models.model import LoadedModel
from core.inference.paths.engines import digests_of, side_of
from core.inference.watching.kernels import kernels_of
from core.numerics.metrics import Summary
from core.runs.reader import RunReader
from core.runs.store.store import Store
from core.runs.views.layers import modules_of
from core.runs.writer import RunWriter
from tests.covering import few

pytestmark = pytest.mark.model


def planned(loaded: LoadedModel, reference: str, variant: str, *, prompts: int = 1, tokens: int = 10) -> CapturePlan:
    given = [list(ids)[: tokens - number] for number, ids in enumerate(tiny_prompts(loaded)[:prompts])]
    return plan_capture(loaded, given, reference, [variant], kv=False)


@contextmanager
def counting(loaded: LoadedModel) -> Iterator[list[int]]:
    """Tokens of every forward."""
    seen: list[int] = []
    hook = loaded.model.get_input_embeddings().register_forward_hook(lambda _, given, __: seen.append(given[0].numel()))
    try:
        yield seen
    finally:
        hook.remove()


class Ticking:
    """A clock on which every walk takes a second: as calm as a machine can be, and slow enough for the shortest
    walks.
    """

    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


ZERO = Summary(**dict.fromkeys(Summary.__dataclass_fields__, 0))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("dtype", "variant"),
    [pytest.param("float32", "decode+batch:2", marks=pytest.mark.thorough), ("bfloat16", "chunked:3")],
)
def test_remedies_make_the_forwards_that_were_foreseen_on_a_calm_machine(dtype: str, variant: str):
    loaded = tiny_model("llama", dtype)
    plan = planned(loaded, "decode", variant)
    (stage,) = stages_of(plan, ["remedies"])
    with counting(loaded) as seen:
        clock = Ticking()
        floor = floor_of(JudgingSession(loaded, plan.token_ids), "decode")
        remedies_of(loaded, plan.token_ids, "decode", variant, floor_rms=floor, as_it_is=ZERO, clock=clock)
        prices_of(loaded, plan.paths, clock=clock)
    assert Work(len(seen), sum(seen)) == stage.least
    assert stage.most.forwards > 3 * stage.least.forwards > 0  # the twin: a clock that is never sure


@pytest.mark.parametrize("path", few(["prefill", "decode+batch:3", "reuse:7"], "decode+batch:3"))
def test_kernels_are_watched_in_as_many_forwards_as_were_foreseen(path: str):
    loaded = tiny_model("llama")
    plan = planned(loaded, path, "decode", prompts=2)
    (stage,) = stages_of(plan, ["kernels"])
    with counting(loaded) as seen:
        for each in plan.paths:
            kernels_of(loaded, side_of(str(each)), plan.token_ids[0])
    assert Work(len(seen), sum(seen)) == stage.least == stage.most


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("dtype", "reference", "variant"), [("bfloat16", "prefill", "decode+batch:2"), ("float32", "decode", "prefill")]
)
def test_judging_makes_no_more_forwards_than_were_foreseen(dtype: str, reference: str, variant: str):
    loaded = tiny_model("llama", dtype)
    plan = planned(loaded, reference, variant, prompts=2, tokens=8)
    stage, _ = stages_of(plan, ["judge"])
    captured = tuple(digests_of(loaded, plan.token_ids, [side_of(reference), side_of(variant)]))
    with counting(loaded) as seen:
        judge_pair(loaded, plan.token_ids, reference, variant, captured=captured)
    assert stage.least.forwards <= len(seen) <= stage.most.forwards
    assert stage.least.tokens <= sum(seen) <= stage.most.tokens
    assert len(seen) > stage.most.forwards / 2  # the twin: a bound that is far off would say nothing


def _sum(stages: list[StageCost]) -> int:
    return sum(stage.most.forwards for stage in stages)


@pytest.mark.spread(1)
@pytest.mark.parametrize(("dtype", "reference"), [("bfloat16", "prefill"), ("float32", "chunked:4")])
def test_the_floor_of_the_modules_and_the_judgement_share_their_reorderings(dtype, reference, tmp_path):
    loaded = tiny_model("llama", dtype)
    prompts = [list(ids)[:10] for ids in tiny_prompts(loaded)[:2]]
    plan = plan_capture(loaded, prompts, reference, ["decode"], kv=False, layers=True)
    found, seen = [], []
    for name, session in (("shared", JudgingSession(loaded, prompts)), ("apart", None)):
        store = Store(tmp_path / name)
        with RunWriter(store, plan.header) as writer, counting(loaded) as forwards:
            assert run_capture(plan, writer, session=session) == []
            judged = judge_pair(loaded, plan.token_ids, reference, "decode", session=session)
            with RunReader(store.path_of(writer.finish())) as run:
                layers = modules_of(run.layers(0))
        floors = [(each.compute_dtype, each.pair_rms.tobytes(), each.floor_rms.tobytes()) for each in judged.floors]
        found.append((judged.verdict, floors, layers))
        seen.append(len(forwards))
    assert found[0] == found[1]
    assert plan.layers is not None
    assert seen[1] - seen[0] == len(prompts) * plan.layers.seeds
    shared, apart = (_sum(stages_of(each, ["judge"])) for each in (plan, replace(plan, layers=None)))
    # beside its own reorderings the floor of the modules takes a plain forward, and two where the reference is another
    assert shared - apart == len(prompts) * (1 + (reference != "prefill"))


BOTH = {case.name: case.engine for case in (*PRECISIONS, *ON_TOP)}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("dtype", "path", "case"),
    [
        ("float32", "prefill+dtype:bfloat16", None),
        ("bfloat16", "chunked:8", "weights of 8 bits and an fp8 cache"),
        ("bfloat16", "chunked:8", "a stale slot in an fp8 cache over weights of 8 bits"),
        ("float32", "chunked:8", "all of it in bfloat16 and an fp8 cache"),
    ],
)
def test_a_pair_beyond_its_floor_is_searched_in_no_more_forwards_than_were_foreseen(dtype, path, case):
    """path: as many forwards and tokens as the engine takes. Two precisions at once among them."""
    loaded = tiny_model("llama", dtype)
    plan = planned(loaded, "prefill", path, prompts=2, tokens=20 if case and "stale" in case else 14)
    stage, search = stages_of(plan, ["judge"])
    with counting(loaded) as seen:
        verdict = judge_pair(loaded, plan.token_ids, "prefill", BOTH[case] if case else path).verdict
    assert verdict.name == ("bug suspected" if case and "stale" in case else "lower precision")
    assert (
        stage.most.forwards < len(seen) <= stage.most.forwards + search.most.forwards
    )  # the search is not for nothing
    assert stage.most.tokens < sum(seen) <= stage.most.tokens + search.most.tokens


def test_the_search_for_precisions_is_a_bound_for_each_side_that_may_be_in_one():
    loaded = tiny_model("llama")
    (_, plain), (_, both) = (
        stages_of(planned(loaded, reference, "chunked:3", tokens=8), ["judge"]) for reference in ("prefill", "decode")
    )
    assert plain.is_bound
    assert plain.least == Work()
    assert plain.most.forwards < both.most.forwards <= 3 * plain.most.forwards
    assert 8 * len(catalogue(loaded)) < plain.most.tokens


def test_a_dry_run_that_reads_no_weights_counts_the_search_as_if_they_were_of_16_bits():
    """Precisions of such weights are tried in two arithmetics."""
    tried = {dtype: len(precisions_offered(tiny_model("llama", dtype), ())) for dtype in ("float32", "bfloat16")}
    counted = {dtype: len(most_precisions_offered(tiny_model("llama", dtype))) for dtype in tried}
    assert tried["float32"] < tried["bfloat16"] == counted["bfloat16"] == counted["float32"]


def test_more_variants_of_one_reference_are_foreseen_as_the_session_judges_them():
    loaded = tiny_model("llama")
    variants = ["decode", "chunked:3", "prefill+batch:2"]
    ids = [list(prompt)[:8] for prompt in tiny_prompts(loaded)[:2]]
    plan = plan_capture(loaded, ids, "prefill", variants)
    alone = [stages_of(plan_capture(loaded, ids, "prefill", [each]), ["judge"])[0].most for each in variants]
    stage, _ = stages_of(plan, ["judge"])
    session = JudgingSession(loaded, plan.token_ids)
    with counting(loaded) as seen:
        for each in variants:
            judge_pair(loaded, plan.token_ids, "prefill", each, session=session)
    assert stage.least.forwards <= len(seen) <= stage.most.forwards < sum(work.forwards for work in alone)
    assert stage.least.tokens <= sum(seen) <= stage.most.tokens
    assert len(seen) > stage.most.forwards / 2


def test_the_floor_of_the_modules_is_counted_with_its_plain_prefill():
    loaded = tiny_model("llama")
    ids = list(tiny_prompts(loaded)[0])[:9]
    for reference, forwards in (("decode", 3), ("prefill", 2)):
        plan = plan_capture(loaded, [ids], reference, ["chunked:3"], layers=True)
        assert stages_of(plan, []) == [StageCost("floor of the modules", *[Work(forwards, 9 * forwards)] * 2)]


def test_a_dry_run_counts_what_runs_beside_the_sides_and_reads_no_weights(cli):
    asked = (
        "--model",
        "sample_runs/model",
        "--prompt",
        "def walk(self):",
        "--reference",
        "decode",
        "--variant",
        "decode+invariant",
        "--dry-run",
    )
    done = cli("capture", *asked, "--kernels", "--remedies", "--judge")
    assert done.returncode == 0, done.stderr
    assert "Beside the sides, kernels: " in done.stdout
    assert "Beside the sides, remedies: " in done.stdout
    assert "Beside the sides, judging: " in done.stdout
    assert "lower precisions as well" in " ".join(done.stdout.split())
    told = json.loads(cli("capture", *asked, "--remedies", "--json").stdout)
    (stage,) = told["beside"]
    assert stage["least"]["forwards"] < stage["most"]["forwards"]
    assert json.loads(cli("capture", *asked, "--json").stdout)["beside"] == []
