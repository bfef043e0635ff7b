"""Probes of a real llama.cpp server: report A's pattern, every test, what is stored, what ends it
early.
"""

from dataclasses import replace

import pytest

from core.checks.rerun import AGAIN
from core.judging.lists import judge_probe
from core.probing.client import Client
from core.probing.plan import Plan, parsed_tests
from core.probing.probe import Probe
from core.probing.servers import LLAMACPP, Ask, Server, find_server
from core.responses.pairing import compare_sides, pairs_of

pytestmark = pytest.mark.model
PROMPTS = (
    (
        "def area(shape):\n    if isinstance(shape, Circle):\n        return 3.14 * shape.radius"
        " ** 2\n"
    ),
    (
        "class Queue:\n    def put(self, item):\n        self.items.append(item)\n\n    def"
        " get(self):\n"
    ),
)


@pytest.fixture(scope="module")
def server(llama):
    return find_server(Client(llama))


def probed(server, tests, *, prompts=PROMPTS, top=20):
    names, load = parsed_tests(tests)
    client = Client(server.client.url)
    return Probe(Plan(prompts, names, load, 6, top), [replace(server, client=client)]).run()


def sides(found):
    return {side.name: side for side in (*found.sides, *found.walks)}


def test_it_is_known_for_what_it_is(server):
    assert server.kind is LLAMACPP
    assert server.model == "small.gguf"
    assert server.vocab == 4096
    assert server.kind.takes_ids
    ids = server.tokenize(PROMPTS[0])
    assert all(0 <= token < 4096 for token in ids)


def test_a_response_has_ids_rows_and_what_was_asked(server):
    ids = server.tokenize(PROMPTS[0])
    response = server.ask(Ask(ids, 4, 10))
    assert response.tokens[: len(ids)] == ids
    assert response.rows.positions.tolist() == [len(ids) - 1 + step for step in range(4)]
    assert response.rows.best.tolist() == [10] * 4
    assert response.top_logprobs == 10
    assert response.vocab == 4096
    assert response.cached == 0
    assert server.ask(Ask(ids, 1, 4096)).rows.best.tolist() == [4096]


def test_cold_repeats_itself_cached_repeats_itself_and_they_differ(server):
    """The pattern of report A: the first call against every later one. A processor whose kernels
    sum a single row as they sum many would show no difference; those of this model's float32 were
    not seen to.
    """
    found = sides(probed(server, "rerun,warm"))
    assert compare_sides(found["cold"], found["cold again"]).differing == 0
    assert compare_sides(found["warm"], found["warm again"]).differing == 0
    cold_against_warm = compare_sides(found["cold"], found["warm"])
    if not cold_against_warm.differing:
        pytest.skip("this processor's kernels do not depend on how many rows they are given")
    # float32: no bug
    assert cold_against_warm.figures.max_abs.max() < 0.1
    cached = [response.cached for response in found["warm"].responses]
    assert all(count is not None and count > 10 for count in cached)


def test_every_test_gives_its_sides_and_verdicts(server):
    found = probed(server, "rerun,warm,load:3,echo")
    names = ["cold", "cold again", "warm", "warm again", "load:3", "load:3 again"]
    assert [side.name for side in found.sides] == names
    assert any("echo was skipped" in note for note in found.notes)
    pairs = pairs_of(found.sides)
    verdicts = {pairs[one.pair].variant: one for one in judge_probe(found.sides, pairs)}
    assert verdicts["cold again"].name == "identical"
    by_name = {pair.variant: pair for pair in pairs}
    assert verdicts["warm"].name == ("undecided" if by_name["warm"].differing else "identical")
    if by_name["warm"].differing:
        reruns = [row for row in verdicts["warm"].evidence if row.check is AGAIN]
        assert [row.outcome for row in reruns] == ["passed"]
    # the same tokens, slightly different values: no shape of a request changes what is computed
    for pair in pairs:
        for meeting in pair.meetings:
            assert meeting.is_prompt_checked
            assert meeting.parting is None


def test_a_walk_is_teacher_forced_rows_of_the_prompt(server):
    ids = server.tokenize(PROMPTS[0])
    found = probed(server, "walk", prompts=(ids[:12],), top=4096)
    cold, warm = (side.responses[0] for side in found.walks)
    assert cold.tokens[:12] == ids[:12]
    assert cold.rows.positions.tolist() == list(range(12))
    assert cold.rows.targets[:-1].tolist() == list(ids[1:12])
    assert cold.rows.best.tolist() == [4096] * 12
    # the row after five tokens, by itself
    once = server.ask(Ask(ids[:5], 1, 4096))
    _, alone = once.rows.row(0)
    _, walked = cold.rows.row(4)
    assert (alone == walked).all()
    assert len(compare_sides(*found.walks).positions)
    assert len(warm.rows) == 12


def test_two_servers_get_the_same_prompts_and_are_told_apart(llama, server):
    other = Server(
        Client(llama),
        LLAMACPP,
        server.version,
        server.model,
    )
    plan = Plan(PROMPTS, ("rerun",), tokens=3, is_against=True)
    found = Probe(plan, [server, other]).run()
    names = ["A cold", "A cold again", "B cold", "B cold again"]
    assert [side.name for side in found.sides] == names
    pairs = pairs_of(found.sides)
    verdicts = judge_probe(found.sides, pairs)
    assert {one.name for one in verdicts} == {"identical"}


def test_a_dry_run_sends_nothing(cli):
    done = cli(
        "probe",
        "http://127.0.0.1:1",
        "--prompt",
        "abcd" * 10,
        "--tests",
        "rerun,warm,load:2,walk",
        "--dry-run",
    ).succeeded()
    # 1 + 1 + 3 + 2 x 3, and two walks of about ten tokens
    assert "At most 31 requests: about" in done.stdout
