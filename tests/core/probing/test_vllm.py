"""Probes of a real vLLM on a CPU, by `make engines`: what it gives, and that what differs is what
can.
"""

from dataclasses import replace

import pytest

from core.checks.state import BEYOND, BITWISE, WITHIN
from core.judging import axes
from core.judging.axes import AXES
from core.judging.lists import judge_probe
from core.probing import probe as probing
from core.probing.client import Client
from core.probing.plan import Plan
from core.probing.probe import Probe
from core.probing.servers import VLLM, Ask, find_server
from core.responses.pairing import compare_sides, pairs_of
from tests.core.probing.test_state import accuse_nothing, judged
from tests.core.probing.vllm_server import PYTHON, vllm
from tests.places import MODEL

pytestmark = [
    pytest.mark.engine,
    pytest.mark.thorough,
    pytest.mark.skipif(
        not PYTHON.exists(),
        reason="no engines: `make engines` installs vLLM",
    ),
]
PROMPTS = (
    "def area(shape):\n    if isinstance(shape, Circle):\n        return 3.14 * shape.radius ** 2\n"
    * 8,
    (
        "class Queue:\n    def put(self, item):\n        self.items.append(item)\n\n    def"
        " get(self):\n"
    ),
)

ROUNDS = 50
FAULTS = {  # axes that are beyond
    "": set(),
    "another_block": {"warm", "other prompt"},
    "off_by_one": {"warm", "other prompt"},
    "stale": {"pressure"},
    "no_adapter": {"other adapter"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    log = tmp_path_factory.mktemp("vllm") / "log"
    with vllm(MODEL, log) as address:
        yield find_server(Client(address))


def test_every_test_of_a_probe(server):
    tests = ("rerun", "warm", "load", "walk", "echo")
    assert server.kind == VLLM
    assert server.model == "small"
    plan = Plan(
        (PROMPTS[0][:400], PROMPTS[1]),
        tests,
        3,
        6,
        20,
    )
    found = Probe(plan, [server]).run()
    names = [side.name for side in found.sides]
    assert names == ["cold", "cold again", "warm", "warm again", "echo", "load:3", "load:3 again"]
    sides = {side.name: side for side in found.sides}
    assert compare_sides(sides["cold"], sides["cold again"]).differing == 0
    pairs = pairs_of(found.sides)
    assert {pair.compute_dtype for pair in pairs} == {"bfloat16"}
    assert all(meeting.is_prompt_checked for pair in pairs for meeting in pair.meetings)
    verdicts = {pairs[one.pair].variant: one.name for one in judge_probe(found.sides, pairs)}
    assert verdicts["cold again"] == "identical"
    assert set(verdicts.values()) <= {"identical", "undecided"}
    walk = compare_sides(*found.walks)
    walked = [len(response.rows) for response in found.walks[0].responses]
    assert len(walk.positions) == sum(walked)
    echo = next(pair for pair in pairs if pair.variant == "echo")
    assert set(echo.positions.tolist()) >= set(pairs[0].positions.tolist())


def test_a_salt_of_its_own_is_cold_and_the_same_one_is_warm(server):
    ids = server.tokenize(PROMPTS[0] * 2)[:400]
    first = server.ask(Ask(ids, 1, 5, salt="a"))
    again = server.ask(Ask(ids, 1, 5, salt="a"))
    other = server.ask(Ask(ids, 1, 5, salt="b"))
    assert first.cached == 0
    assert other.cached == 0
    assert again.cached > 0


@pytest.mark.parametrize("is_busy", [False, True])
def test_fifty_rounds_of_a_sound_vllm(server, monkeypatch, is_busy):
    fewer = [replace(axis, fillers=min(axis.fillers, 6)) for axis in AXES]
    monkeypatch.setattr(probing, "AXES", fewer)
    monkeypatch.setattr(axes, "LENGTHS", (3, 17, 33, 65, 129))
    accuse_nothing(server.client.url, "small", rounds=ROUNDS, is_busy=is_busy)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """The address of a server, and the file that names its fault."""
    folder = tmp_path_factory.mktemp("faulty")
    fault = folder / "fault"
    fault.touch()
    with vllm(MODEL, folder / "log", fault=fault) as address:
        yield address, fault


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_its_prefix_cache_is_found_on_its_axis(fault, faulty, monkeypatch):
    address, file = faulty
    names = {"continuation", "warm", "other prompt", "pressure", "other adapter"}
    kept = [replace(axis, fillers=min(axis.fillers, 12)) for axis in AXES if axis.name in names]
    monkeypatch.setattr(probing, "AXES", kept)
    # pages have 32 tokens
    monkeypatch.setattr(axes, "LENGTHS", (5, 33, 65, 97, 129))
    file.write_text(fault)
    figures = judged(address, model="small").values()
    results = {each.axis: each.result for each in figures if each.requests}
    assert set(results) == names
    assert {name for name, result in results.items() if result == BEYOND} == FAULTS[fault]
    assert set(results.values()) <= {BEYOND, BITWISE, WITHIN}
