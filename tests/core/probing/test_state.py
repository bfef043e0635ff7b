"""The state of a real llama.cpp server: sound it is accused of nothing, and each fault that a proxy
plants is found on its axis.
"""

import re
import shlex
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from core.checks.state import BEYOND, BITWISE, NOT_AVAILABLE, UNDECIDED, WITHIN, axes_of
from core.judging import axes
from core.judging.axes import AXES, cases_of
from core.judging.state import StateAnswers, judge_state, noise_of, sizes_of
from core.probing import probe as probing
from core.probing.client import Client
from core.probing.plan import WATCH_PROMPTS, Plan
from core.probing.probe import Probe
from core.probing.servers import Ask, find_server
from core.responses.alignment import align
from core.responses.pairing import compare_sides
from core.responses.records import ResponseSide
from core.runs.store.store import Store
from tests.core.probing import faulty_proxy, odd_server
from tests.core.probing.conftest import adapter_of, llama_of
from tests.core.probing.faulty_proxy import planted
from tests.core.probing.made_state import changed, made_state, stored
from tests.core.responses.made_sides import response, run_of
from tests.places import ROOT
from tests.serving import free_port

pytestmark = pytest.mark.model
# of 9 and 12 tokens
PROMPTS = WATCH_PROMPTS[1:3]
LENGTHS = (3, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)


@pytest.fixture(autouse=True)
def less_work(monkeypatch):
    """Fewer prompts, and fewer others before `pressure`."""
    monkeypatch.setattr(axes, "LENGTHS", LENGTHS)
    fewer = [replace(axis, fillers=min(axis.fillers, 6)) for axis in AXES]
    monkeypatch.setattr(probing, "AXES", fewer)


@pytest.fixture(scope="module")
def answers():
    """What the server has answered: a later test asks for the same again."""
    return {}


def judged(address, prompts=PROMPTS, model=""):
    """Figures of every axis of a server, by name."""
    probe = Probe(Plan(prompts, ("state",)), [find_server(Client(address), model)])
    state = probe.run().state
    sides = align([state.cold, *state.sides.values()])
    _, _, verdicts = judge_state(state, sides)
    figures = axes_of(row for verdict in verdicts for row in verdict.evidence)
    return {each.axis: each for each in figures}


def accuse_nothing(address, model="", *, rounds, is_busy):
    """Ask a sound server along every axis, round by round, with texts that no limit was chosen on.
    is_busy: beside 150 other requests in each.
    """
    server = find_server(Client(address), model)
    text = (ROOT / "sample_runs" / "prompts" / "scheduler.txt").read_text(encoding="utf-8")
    results = []
    ratios = []
    for number in range(rounds):
        with ThreadPoolExecutor(3) as others:
            for each in range(150 * is_busy):
                prompt = "The quick brown fox. " * (1 + (each + number) % 9)
                others.submit(server.ask, Ask(prompt, 24, 1, is_warm=True))
            found = judged(address, (text[number : number + 120],), model)
            others.shutdown(cancel_futures=True)
        results += [each.result for each in found.values()]
        ratios += [each.noise_ratio or 0.0 for each in found.values()]
    counts = {result: results.count(result) for result in dict.fromkeys(results)}
    print(f"busy: {is_busy}, {counts}, largest ratio {max(ratios):.2f}")
    assert BEYOND not in results
    assert results.count(UNDECIDED) <= 0.05 * len(results)


def only(monkeypatch, *names):
    """Ask along these axes, and along those that show the noise and a sound cache."""
    kept = [axis for axis in AXES if axis.name in ("continuation", "warm", *names)]
    monkeypatch.setattr(probing, "AXES", kept)


def test_a_sound_server_is_accused_of_nothing(llama, monkeypatch):
    monkeypatch.setattr(axes, "LENGTHS", (5, 17, 33, 129))
    found = judged(llama)
    assert set(found) == {axis.name for axis in AXES}
    assert found["rerun"].result == BITWISE
    assert found["prompt rows"].result == NOT_AVAILABLE
    assert found["other adapter"].result == NOT_AVAILABLE
    missing = ("prompt rows", "other adapter")
    others = {each.result for name, each in found.items() if name not in missing}
    assert others <= {BITWISE, WITHIN}
    warm = found["warm"]
    assert warm.requests == 6
    # its cache has 16 bits
    assert 0 < warm.noise_nats < 0.01
    assert warm.wrong_block_nats > 10 * warm.noise_nats


NEIGHBORS = "only if at least 4 other requests are in flight"
# axes that are beyond, and what the requests have in common
FAULTS = {
    "another_block": (("warm", "other prompt"), ""),
    "long_hits": (("warm",), "only if at least 32 tokens come from the cache"),
    "page_edges": (("warm",), "only if the prompt's length is 1 modulo 16"),
    "stale": (("other prompt",), ""),
    "not_written": (("continuation", "next turn"), ""),
    "sampler_stays": (("sampled",), ""),
    "other_sampler": (("tokens alone",), ""),
    "half_written": (("canceled",), ""),
    "leak": (("neighbors",), NEIGHBORS),
}


@pytest.mark.spread(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_on_its_axis(fault, llama, answers, monkeypatch):
    beyond, where = FAULTS[fault]
    only(monkeypatch, *beyond)
    with planted(llama, answers, getattr(faulty_proxy, fault)) as address:
        found = judged(address)
    assert {name for name, each in found.items() if each.result == BEYOND} == set(beyond)
    assert [found[name].where for name in beyond] == [where] * len(beyond)


@pytest.mark.parametrize(
    ("fault", "result"),
    [
        ("own_entry", WITHIN),
        ("another_entry", BEYOND),
        ("one_off", BEYOND),
    ],
)
def test_a_fault_in_the_cache_itself_is_found(fault, result, small_gguf, tmp_path, monkeypatch):
    """Keys and values are changed, and the server computes what follows from them."""
    only(monkeypatch)
    monkeypatch.setattr(axes, "LENGTHS", (5, 17, 33, 129))
    own = shutil.copy(small_gguf, tmp_path)
    # of its own: wrong entries stay in its cache
    with (
        llama_of(own, free_port()) as server,
        planted(server, {}, getattr(faulty_proxy, fault), tmp_path) as address,
    ):
        found = judged(address)
    assert found["continuation"].result == WITHIN
    assert found["warm"].result == result


def test_an_entry_that_another_adapter_wrote_is_found(small_gguf, tmp_path, monkeypatch):
    """Nothing is planted: a request without `lora` reads what one with an adapter wrote, as in
    llama.cpp's issue 26207.
    """
    only(monkeypatch, "sampled", "other adapter")
    monkeypatch.setattr(axes, "LENGTHS", (5, 17, 33, 129))
    adapter = adapter_of(small_gguf, tmp_path / "adapter.gguf")
    with llama_of(small_gguf, free_port(), adapter) as address:
        found = judged(address)
    results = {name: each.result for name, each in found.items() if each.requests}
    assert results.pop("other adapter") == BEYOND
    assert set(results) == {"continuation", "warm", "sampled"}
    assert set(results.values()) <= {BITWISE, WITHIN}


def test_the_answer_is_a_run_with_a_gate(llama, answers, cli, tmp_path, monkeypatch):
    only(monkeypatch)
    words = ("--tests", "state", "--fail-on", "state", "--store", tmp_path)
    prompts = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    with planted(llama, answers) as address:
        sound = cli("probe", address, *prompts, *words, "--json")
    with planted(llama, answers, faulty_proxy.another_block) as address:
        faulty = cli("probe", address, *prompts, *words, "--json")
    assert sound.returncode == 0
    assert faulty.returncode == 1
    runs = [done.json["runs"] for done in (sound, faulty)]
    assert [len(each) for each in runs] == [1, 1]
    gates = []
    for (run_id,) in runs:
        done = cli("compare", run_id, "--fail-on", "state", "--store", tmp_path)
        gates.append(done.returncode)
    assert gates == [0, 1]
    run = run_of(tmp_path / f"{runs[1][0]}.duckdb")
    assert [verdict.name for verdict in run.verdicts] == ["bug suspected", "rounding"]
    shown = cli("show", runs[1][0], "--store", tmp_path)
    assert "beyond" in shown.stdout


def test_without_cold_requests_a_difference_of_texts_is_undecided(monkeypatch):
    only(monkeypatch)
    # a trial, and two answers to each case: what comes after them differs
    acts = [odd_server.good] * (1 + 2 * (1 + len(LENGTHS)))
    with odd_server.serving(*acts, odd_server.moved) as (address, _):
        found = judged(address, ("Hello there",))
    assert found["continuation"].result == NOT_AVAILABLE
    assert found["warm"].result == UNDECIDED


@pytest.mark.parametrize(
    ("guide", "runs"),
    [
        ("prefix_cache", 1),
        ("probe", 3),
    ],
)
def test_the_commands_of_a_guide(guide, runs, llama, answers, cli, tmp_path, monkeypatch):
    only(monkeypatch)
    monkeypatch.setenv("ULPSCOPE_STORE", str(tmp_path))
    monkeypatch.setattr(axes, "LENGTHS", (5, 17, 33))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(PROMPTS))
    text = (ROOT / "docs" / "guides" / f"{guide}.md").read_text(encoding="utf-8")
    lines = "".join(re.findall(r"```text\n(ulpscope .*?)```", text, re.DOTALL)).splitlines()
    with planted(llama, answers) as address:
        servers = ("http://127.0.0.1:8000", "http://old:8000", "http://new:8000")
        known = dict.fromkeys(servers, address) | {"prompts.txt": prompts}
        for line in lines:
            known["RUN"] = "".join(path.stem for path in tmp_path.glob("*.duckdb"))
            command = [known.get(word, word) for word in shlex.split(line, comments=True)[1:]]
            once = ("--rounds", "1") if "--watch" in command else ()
            cli(*command, *once).succeeded()
    assert len([*tmp_path.glob("*.duckdb")]) == runs


# sizes of cold noise and of a warm difference, its share of the prompts: result
CASES = {
    "noise": (1e-3, 1e-3, 1, WITHIN),
    "a cache of 8 bits": (1e-3, 0.08, 1, UNDECIDED),
    "a fault of all": (1e-3, 0.9, 1, BEYOND),
    "a small fault of few": (1e-3, 0.1, 0.2, UNDECIDED),
    "a fault of few": (1e-3, 0.9, 0.1, BEYOND),
    "no noise": (0.0, 0.01, 1, UNDECIDED),
    "as much noise as a block does": (0.5, 0.5, 1, UNDECIDED),
    "a fault as far beyond as noise goes": (0.08, 0.35, 1, UNDECIDED),
}


def results_of(state):
    """Result of every axis of a made server."""
    _, _, verdicts = judge_state(state, align([state.cold, *state.sides.values()]))
    found = axes_of(row for verdict in verdicts for row in verdict.evidence)
    return {each.axis: each.result for each in found}


@pytest.mark.parametrize("case", CASES)
def test_a_difference_is_judged_by_two_scales(case):
    noise, size, share, result = CASES[case]
    assert results_of(made_state(noise, size, share))["warm"] == result


@pytest.mark.parametrize(
    ("size", "result"),
    [
        (1e-3, UNDECIDED),
        (0.1, BEYOND),
    ],
)
def test_a_group_is_a_fault_if_its_size_is_none_of_rounding(size, result):
    """A kernel for long prefixes may round 100 times more than others."""
    state = made_state(1e-5, size, 0.25)
    answers = state.sides["warm"].responses
    long = [replace(answer, cached=64) for answer in answers[:5]]
    state.sides["warm"] = ResponseSide("warm", (*long, *answers[5:]))
    assert results_of(state)["warm"] == result


def test_a_block_that_changes_nothing_would_not_be_seen():
    state = made_state(1e-3, 1e-3)
    cold = state.cold.responses[:18]
    same = [replace(one, tokens=(9, *one.tokens[1:])) for one in cold]
    answers = (*same, *state.wrong_blocks.responses[18:])
    state.wrong_blocks = ResponseSide("wrong block", answers)
    assert results_of(state)["warm"] == UNDECIDED


def two_rows(name, first, second, tokens=(5, 0, 0)):
    """Answers of two generated rows to 20 prompts, which differ from the plain ones by these sizes,
    nats. tokens: the last one of the prompt and the generated ones.
    """
    answers = []
    for number in range(20):
        plain = np.random.default_rng(number).normal(size=8) - 5
        signs = np.random.default_rng(number + 20).choice([-1, 1], 8)
        rows = {}
        for position, size in ((7, first), (8, second)):
            rows[position] = dict(enumerate((plain + size * signs).tolist()))
        answers.append(response([number] * 7 + [*tokens], rows, prompt=8, cached=8))
    return ResponseSide(name, tuple(answers))


@pytest.mark.parametrize(
    ("generated", "result"),
    [
        (0, WITHIN),
        (9, UNDECIDED),
    ],
)
def test_a_wrong_block_is_as_large_as_its_largest_row_before_other_tokens(generated, result):
    state = StateAnswers(
        two_rows("cold", 0.0, 0.0),
        two_rows("wrong block", 0.1, 1.0, (6, generated, 0)),
        is_cold=True,
        # 5 times the noise is more than 0.1 nats
        sides={name: two_rows(name, 0.05, 0.05) for name in ("continuation", "warm")},
    )
    assert results_of(state)["warm"] == result


@pytest.mark.parametrize(
    ("size", "result"),
    [
        (1e-3, NOT_AVAILABLE),
        (0.9, BEYOND),
    ],
)
def test_a_fault_is_one_even_if_the_server_says_that_it_read_no_cache(size, result):
    state = made_state(1e-3, size)
    answers = [replace(answer, cached=0) for answer in state.sides["warm"].responses]
    state.sides["warm"] = ResponseSide("warm", tuple(answers))
    assert results_of(state)["warm"] == result


def without_values(answer):
    """An answer whose server sent NaN."""
    return replace(answer, rows=answer.rows.without_values(np.array([True])))


def without_rows(answer):
    """An answer that ends at once."""
    return replace(answer, rows=answer.rows.part(np.array([False])))


def with_another_token(answer):
    """An answer that emits another token for equal values."""
    rows = replace(answer.rows, targets=np.array([5]))
    return replace(answer, tokens=(*answer.tokens[:-1], 5), rows=rows)


@pytest.mark.parametrize("change", [without_values, without_rows, with_another_token])
def test_what_was_not_compared_is_undecided(change):
    state = made_state(1e-3, 0.0)
    first, *others = state.sides["warm"].responses
    state.sides["warm"] = ResponseSide("warm", (change(first), *others))
    assert results_of(state)["warm"] == UNDECIDED


def test_a_tie_hides_no_other_token():
    tie = {0: -1.0, 1: -1.0, 2: -4.0}
    plain = {0: -1.0, 1: -3.0}
    second = response([7, 8, 1], {1: tie}, prompt=2)
    cold = ResponseSide("cold", (second, response([7, 8, 0], {1: plain}, prompt=2)))
    warm = ResponseSide("warm", (second, response([7, 8, 1], {1: plain}, prompt=2)))
    assert sizes_of(compare_sides(cold, warm)).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("own", "others", "result"),
    [
        (0.05, 1e-3, UNDECIDED),
        (5e-3, 1e-3, WITHIN),
        (1e-3, 1e-5, WITHIN),
    ],
)
def test_noise_of_one_cold_axis_is_a_fault_or_rounding_of_float16(own, others, result):
    state = made_state(others, 0.0)
    state.sides["neighbors"] = ResponseSide("neighbors", changed(own, seed=4))
    found = results_of(state)
    assert found["neighbors"] == result
    assert found["continuation"] == WITHIN


def test_an_axis_that_failed_does_not_pass_the_gate(cli, tmp_path):
    outcomes = []
    for failed in ({}, {"pressure": "the probe ended early"}):
        state = made_state(1e-3, 1e-3)
        state.failed |= failed
        for axis in failed:
            del state.missing[axis]
        run_id = stored(Store(tmp_path), state)
        done = cli("compare", run_id, "--fail-on", "state", "--json", "--store", tmp_path)
        gate = done.json["gate"]
        outcomes.append(sorted(each["outcome"] for each in gate["conditions"]))
    assert outcomes == [["passed", "passed"], ["passed", "undecided"]]


@pytest.mark.parametrize(
    ("requests", "code"),
    [
        (40, 2),
        (50, 0),
    ],
)
def test_a_probe_that_ends_early_passes_no_gate(requests, code, cli, tmp_path):
    words = (
        "--prompt",
        "Hello there",
        "--tests",
        "rerun,state",
        "--fail-on",
        "state",
        "--json",
    )
    limit = ("--max-requests", str(requests), "--store", tmp_path)
    with odd_server.serving(odd_server.good) as (address, _):
        done = cli("probe", address, *words, *limit)
    assert done.returncode == code
    answer = done.json
    assert len(answer["runs"]) == 1 + (code == 0)
    assert answer.get("gate", {}).get("outcome") == (None if code else UNDECIDED)


def test_a_fault_among_the_cold_requests_is_no_noise():
    noise = np.geomspace(1e-3, 4e-3, 20)
    fault = np.full(12, 0.5)
    # a cache in float16
    halves = np.append(np.full(9, 1e-6), noise[:8])
    assert noise_of(noise, 0.2) == pytest.approx(4e-3)
    assert noise_of(np.append(noise, fault), 0.2) == pytest.approx(4e-3)
    assert noise_of(np.append(noise, fault[:2] / 10), 0.2) == pytest.approx(4e-3)
    assert noise_of(halves, 0.2) == noise[7]
    assert noise_of(np.array([0.0, np.nan]), 0.2) is None


@pytest.mark.parametrize(
    "prompts",
    [
        ["abc" * 9, "defg"],
        [tuple(range(50)), (7, 8)],
    ],
)
def test_cases_have_the_lengths_and_begin_differently(prompts):
    cases = cases_of(prompts)
    # a text has about four letters a token
    unit = 4 if isinstance(prompts[0], str) else 1
    assert cases[:2] == prompts
    assert [len(case) for case in cases[2:]] == [length * unit for length in LENGTHS]
    long = [case[: 8 * unit] for case in cases[2:] if len(case) >= 8 * unit]
    assert len(set(long)) > len(long) // 2


@pytest.mark.thorough
@pytest.mark.parametrize("is_busy", [False, True])
def test_fifty_rounds_of_a_sound_server(llama, monkeypatch, is_busy):
    monkeypatch.setattr(axes, "LENGTHS", (3, 17, 33, 65, 129))
    accuse_nothing(llama, rounds=50, is_busy=is_busy)
