"""A server that misbehaves: each way of it one sentence, nothing half stored; and what a probe does
to a sound one.
"""

import os
import signal
import threading

import pytest

from core.errors import UsageError
from core.judging.lists import judge_probe
from core.probing import client as clients
from core.probing.client import Client, ProbeError
from core.probing.plan import Plan, base_of, costs, parsed_tests
from core.probing.probe import Probe
from core.probing.servers import find_server
from core.responses.pairing import pairs_of
from tests.core.probing import odd_server as odd
from tests.core.responses.made_sides import run_of


def probed(address, tests="rerun", **more):
    names, load = parsed_tests(tests)
    client = Client(address, **more)
    try:
        return Probe(Plan(("Hello",), names, load, 3, 3), [find_server(client)]).run()
    finally:
        client.close()


def answers_of(*acts, tests="rerun"):
    """What a probe of a server that behaves so finds."""
    with odd.serving(*acts) as (address, _):
        return probed(address, tests)


TWO = ("--prompt", "one", "--prompt", "two", "--tests", "rerun")


def stored(cli, folder, *acts, words=TWO):
    """The run that a probe leaves, and what it prints."""
    with odd.serving(*acts) as (address, _):
        done = cli("probe", address, *words, "--tokens", "2", "--store", folder, "--json")
    done.succeeded()
    (path,) = folder.glob("*.duckdb")
    return run_of(path), done.json


def judged_of(found):
    return judge_probe(found.sides, pairs_of(found.sides))


def verdicts_of(found):
    return {found.sides[one.pair + 1].name: one.name for one in judged_of(found)}


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (odd.cut_off, "the connection broke"),
        (odd.garbled, "the connection broke"),
        (odd.html, "sends an HTML page; is this the address of the engine"),
        (odd.redirect, r"the server redirects \(307\)"),
        (odd.refused, r"the server needs a key \(401\)"),
        (odd.without, "without log-probabilities"),
        (odd.wrong, "Expected `int` >= 0"),
        (odd.error_500, "the server answers 500: CUDA error"),
        (odd.busy, "the server answers 429: slow down"),
    ],
)
def test_each_misbehaviour_is_one_sentence(act, sentence):
    with pytest.raises(ProbeError, match=sentence) as raised:
        answers_of(odd.good, act)
    assert "\n" not in str(raised.value)
    # an error must not color or clear the terminal
    assert "\x1b" not in str(raised.value)


@pytest.mark.parametrize(
    "models",
    [
        5,
        [
            {
                "id": "m",
                "owned_by": ["x"],
                "meta": [1],
            }
        ],
    ],
)
def test_what_a_server_says_of_itself_may_have_any_form(models, monkeypatch):
    monkeypatch.setitem(odd.MODELS, "data", models)
    with odd.serving(odd.refused) as (address, _), pytest.raises(ProbeError):
        find_server(Client(address))


def test_an_endless_answer_is_ended(monkeypatch):
    monkeypatch.setattr(clients, "MOST_BYTES", 1 << 20)
    with pytest.raises(ProbeError, match="more than 1,048,576 bytes"):
        answers_of(odd.good, odd.endless)


def test_what_a_server_puts_off_is_asked_again():
    with odd.serving(
        odd.good,
        odd.busy,
        odd.away,
        odd.busy,
        odd.good,
    ) as (address, seen):
        found = probed(address)
    assert [side.name for side in found.sides] == ["cold", "cold again"]
    # a trial, three that were put off, two answers
    assert len(seen.asked) == 1 + 3 + 2


def test_a_server_that_is_not_there_is_one_sentence():
    with pytest.raises(ProbeError, match="cannot be reached"):
        probed("http://127.0.0.1:1")


def test_an_answer_that_changes_is_nondeterministic_and_a_steady_one_is_not():
    steady = answers_of(odd.good, tests="rerun,warm")
    assert verdicts_of(steady) == dict.fromkeys(("cold again", "warm", "warm again"), "identical")
    changing = answers_of(odd.good, odd.good, odd.moved, tests="rerun,warm")
    assert set(verdicts_of(changing).values()) == {"nondeterministic"}


def test_an_answer_that_cannot_be_compared_does_not_take_the_others_with_it(cli, tmp_path):
    words = ("--prompt", "one", "--tests", "rerun,warm")
    run, printed = stored(
        cli,
        tmp_path,
        odd.good,
        odd.good,
        odd.echoed,
        odd.good,
        words=words,
    )
    assert [side.name for side in run.sides] == ["cold", "warm", "warm again"]
    assert "'cold again' is left out" in run.header.note
    assert any("'cold again' is left out" in note for note in printed["notes"])


def test_placeholders_are_never_called_identical():
    judged = judged_of(answers_of(odd.speculative, tests="rerun,warm,load:2"))
    assert {one.name for one in judged} == {"invalid dump"}
    assert all(one.because.startswith("Placeholders at 2 of 3 tokens of 'cold'") for one in judged)


def test_the_key_is_sent_and_in_no_sentence_and_in_no_run(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_PROBE_KEY", "sk-secret")
    run, printed = stored(cli, tmp_path, odd.good)
    assert b"sk-secret" not in (tmp_path / f"{printed['run_id']}.duckdb").read_bytes()
    assert "probe" in run.header.command
    with odd.serving(odd.good, odd.refused) as (address, seen):
        with pytest.raises(ProbeError) as raised:
            probed(address, key="sk-secret")
        assert seen.keys[0] == "Bearer sk-secret"
    assert "sk-secret" not in str(raised.value)
    assert "sk-secret" not in repr(Client("http://127.0.0.1:1", key="sk-secret"))


def test_nothing_is_stored_of_a_probe_that_failed(cli, tmp_path):
    with odd.serving(odd.good, odd.html) as (address, _):
        done = cli("probe", address, "--prompt", "x", "--store", tmp_path / "runs")
    assert done.returncode == 2
    assert "error: /v1/completions: the server sends" in done.stderr.splitlines()[-1]
    assert list((tmp_path / "runs").glob("*")) == []


@pytest.mark.parametrize(
    "address",
    [
        "ftp://x",
        "localhost:8000",
        "http://",
        "http://u:secret@h",
        "http://h/?key=1",
        "http://h:0",
        "http://h:99999",
        "http://[::1",
        "http://a..b",
        "http://pasted\u200b:8000",
        "http://u:secret@[::1",
    ],
)
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(UsageError) as raised:
        base_of(address)
    assert "secret" not in str(raised.value)


@pytest.mark.timeout(10)
def test_an_address_of_many_slashes_takes_no_time():
    address = f"http://h{'/' * 5000}x"
    assert base_of(f"{address}//v1/chat/completions//") == address


def test_a_plan_counts_what_is_sent():
    with odd.serving(odd.good) as (address, seen):
        names, load = parsed_tests("rerun,warm,load:3")
        plan = Plan(("Hello", "a longer prompt"), names, load, 3, 3)
        client = Client(address)
        server = find_server(client)
        sent = len(seen.asked)
        Probe(plan, [server]).run()
    assert len(seen.asked) - sent == plan.requests
    assert f"At most {plan.requests} requests" in costs(plan)[-1]


def test_ctrl_c_keeps_what_had_come_and_waits_for_nothing(cli, tmp_path):
    leave = threading.Event()

    def hang(handler, asked):
        # as a terminal sends it, while this request is in flight
        os.kill(os.getpid(), signal.SIGINT)
        leave.wait(60)
        odd.good(handler, asked)

    before = signal.getsignal(signal.SIGINT)
    assert "answers to 1 prompt" in note_of_one_prompt(cli, tmp_path, hang)
    leave.set()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_server_that_fails_later_does_not_take_what_it_had_sent_with_it(cli, tmp_path):
    note = note_of_one_prompt(cli, tmp_path, odd.error_500)
    assert "ended early (/v1/completions: the server answers 500" in note


def note_of_one_prompt(cli, folder, act):
    """The note of a run that has the answers to one of two prompts, as the second's is `act`."""
    run, _ = stored(
        cli,
        folder,
        odd.good,
        odd.good,
        odd.good,
        act,
    )
    assert [len(side.responses) for side in run.sides] == [1, 1]
    return run.header.note
