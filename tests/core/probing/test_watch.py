"""Watched endpoints: a real llama.cpp server under load and with other weights, and a server whose
answers are made.
"""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest

from core.errors import UsageError
from core.probing import watch
from core.probing.client import Client, ProbeError, StoppedError
from core.probing.plan import ProbeRequest
from core.probing.rounds import FOLDER, read_rounds
from core.probing.servers import OPENAI, Ask, find_server
from core.runs.store.store import Store
from tests.core.probing import odd_server as odd
from tests.core.probing.conftest import llama_of
from tests.core.responses.made_sides import response, run_of, store_run
from tests.serving import free_port

accept = odd.always(b"", 204)


@pytest.mark.model
def test_load_is_silent_and_other_weights_of_the_same_name_are_not(
    cli,
    tmp_path,
    small_gguf,
    quantized_gguf,
    monkeypatch,
):
    monkeypatch.setenv("ULPSCOPE_PROBE_KEY", "sk-very-secret")
    port = free_port()
    live = tmp_path / "live.gguf"

    def watched(rounds, *more):
        done = cli(
            "probe",
            f"http://127.0.0.1:{port}",
            "--watch",
            "1s",
            "--rounds",
            rounds,
            "--json",
            *more,
        )
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]

    live.symlink_to(small_gguf)
    with odd.serving(accept) as (hook, seen), llama_of(live, port) as address:
        assert watched(1, "--webhook", hook)[0] == 0
        with ThreadPoolExecutor(4) as others:
            server = find_server(Client(address))
            # of other lengths, with answers of 24 tokens
            for number in range(500):
                text = "The quick brown fox. " * (1 + number % 9)
                others.submit(server.ask, Ask(text, 24, 1, is_warm=True))
            code, rounds = watched(2, "--webhook", hook)
            others.shutdown(cancel_futures=True)
    assert code == 0
    assert len(rounds) == 2
    assert seen.asked == []
    assert all(one["distance_nats"] <= one["limit_nats"] for one in rounds)
    live.unlink()
    live.symlink_to(quantized_gguf)
    with odd.serving(accept) as (hook, seen), llama_of(live, port):
        code, rounds = watched(2, "--webhook", f"{hook}/services/T0?token=1")
    assert code == 1
    assert [one["since"] for one in rounds] == [rounds[0]["at"]] * 2
    # of 4-bit weights
    assert rounds[0]["distance_nats"] > 0.1
    assert [one["run"] for one in seen.asked] == [rounds[0]["run"]]
    assert seen.keys == [None]
    run = run_of(tmp_path / "runs" / f"{rounds[0]['run']}.duckdb")
    assert [side.name for side in run.sides] == ["baseline", "now"]
    differences = run.pairs[0].figures.squares.sum() / run.pairs[0].common_values
    assert rounds[0]["distance_nats"] == pytest.approx(np.sqrt(differences))


class MadeServer:
    """A server in this process. noise: size of that of an answer, common to its values as a batch
    has it.
    """

    kind, version, model = OPENAI, "1", "made"

    def __init__(self, noise=0.0):
        self.noise = noise
        self.shift = 0.0
        self.sends = 0
        self.is_away = False
        self.first_token = 0
        self.random = np.random.default_rng(7)

    def ask(self, request):
        if self.is_away:
            raise ProbeError("http://made cannot be reached.")
        self.sends += 1
        # one size for all values of an answer, as another batch moves them together
        size = self.noise * self.random.exponential()
        values = -np.arange(1.0, 21.0) + size * self.random.normal(size=20)
        values[0] += self.shift
        row = dict(enumerate(values.tolist(), self.first_token))
        return response(
            [self.first_token] * 5,
            {4: row},
            prompt=5,
            settings={"system_fingerprint": "fp"},
        )


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Begin a watch of a server, or go on with it."""

    def begin(server):
        def write(_, sides, what):
            # judging all sixteen takes seconds
            return store_run(Store(tmp_path), what, *sides[:2])

        monkeypatch.setattr(watch, "find_server", lambda *_: server)
        request = ProbeRequest(url="http://made", watch="1s")
        return watch.watch(
            Client("http://made"),
            request,
            ("one", "two"),
            Store(tmp_path),
            write,
            lambda _: None,
        )

    return begin


def test_noise_is_silent_for_hundreds_of_rounds_and_a_shift_is_dated(begin, tmp_path):
    server = MadeServer(noise=0.01)
    rounds = begin(server)
    first = next(rounds)
    assert 0.01 < first.noise_nats < 0.1
    assert first.limit_nats == 3 * first.noise_nats
    assert not any(one.since for one in itertools.islice(rounds, 200))
    server.shift = -2.0
    moved = list(itertools.islice(rounds, 3))
    server.shift = 0.0
    back = next(one for one in rounds if one.since is None)
    assert [one.since for one in moved] == [moved[0].at] * 3
    # one value of twenty
    assert moved[0].distance_nats == pytest.approx(2 / np.sqrt(20), rel=0.2)
    assert moved[0].run == moved[2].run
    assert back.run == ""
    (history,) = read_rounds(Store(tmp_path))
    assert history[201:204] == moved
    assert history[-1] == back
    # a torn line, bytes that are no UTF-8, and a document nested too deeply
    with next((tmp_path / FOLDER).iterdir()).open("ab") as file:
        file.write(b'\n{"url":"\xc3\n' + b'{"x":' * 10**5)
    assert read_rounds(Store(tmp_path)) == [history]


def test_a_restart_goes_on_and_an_endpoint_that_is_away_is_a_note(begin):
    server = MadeServer()
    first = next(begin(server))
    # of a server without noise
    assert first.limit_nats == 1e-5
    server.shift = -1e-4
    server.sends = 0
    rounds = begin(server)
    assert next(rounds) == first
    moved = next(rounds)
    assert moved.since == moved.at
    # three sends of two prompts, and no new baseline
    assert server.sends == 3 * 2
    server.is_away = True
    away = next(rounds)
    assert away.distance_nats is None
    assert away.since == moved.since
    assert away.notes == ("http://made cannot be reached.",)
    assert "is undecided" in msgspec.structs.replace(away, since=None).text
    assert "is down" in away.text
    assert "had moved since" in away.text
    assert "has moved" not in away.text


def test_a_spent_budget_is_an_error_and_no_endpoint_that_is_down(begin, monkeypatch):
    rounds = begin(MadeServer())
    next(rounds)

    def spent(*_):
        raise StoppedError("the 6 requests of --max-requests are spent")

    monkeypatch.setattr(watch, "find_server", spent)
    with pytest.raises(UsageError, match="up to 3 of each prompt"):
        next(rounds)


def test_an_endpoint_is_back_within_a_third_of_the_limit(begin):
    # whose limit is 1e-5; a shift of one value of twenty counts sqrt(1 / 20)
    server = MadeServer()
    rounds = begin(server)
    next(rounds)
    states = []
    for distance in (0.9e-5, 1.1e-5, 0.9e-5, 0.4e-5, 0.3e-5, 0.9e-5):
        server.shift = -distance * np.sqrt(20)
        states.append(next(rounds).since is not None)
    assert states == [False, True, True, True, False, False]


def test_other_tokens_have_moved_and_another_name_is_a_note(begin):
    server = MadeServer()
    rounds = begin(server)
    assert next(rounds).server == "OpenAI-compatible 1 made fp, 10 prompt tokens"
    server.version = "2"
    named = next(rounds)
    server.first_token = 100
    other = next(rounds)
    assert named.since is None
    assert len(named.notes) == 1
    assert other.since == other.at
    assert other.distance_nats is None
    assert other.run == ""
    assert "is down" not in other.text
    assert "has moved since" in other.text
    server.first_token = 0
    server.shift = -2.0
    beyond = next(rounds)
    assert beyond.since == other.at
    assert bool(beyond.run)


def test_a_webhook_that_fails_is_tried_again_and_no_redirect_is_followed(cli):
    # the server's one act, which changes between two commands
    act = [odd.good]
    with (
        odd.serving(lambda *sent: act[0](*sent)) as (address, _),
        odd.serving(odd.redirect, odd.error_500, accept) as (hook, seen),
    ):
        words = (
            "probe",
            address,
            "--prompt",
            "x",
            "--watch",
            "1s",
            "--top",
            "3",
            "--webhook",
            hook,
        )
        assert cli(*words, "--rounds", "1").returncode == 0
        act[0] = odd.moved
        done = cli(*words, "--rounds", "4")
    assert done.returncode == 1
    assert len(seen.asked) == 3
    assert seen.asked[0] == seen.asked[2]
    assert seen.asked[0]["since"] == seen.asked[0]["at"]
    assert "(307)" in done.stderr
    assert "(500)" in done.stderr


def test_what_cannot_be_watched_is_refused(cli):
    webhook = ("10m", "--webhook", "ftp://host/secret")
    for words in (("5x",), ("10m", "--tests", "echo"), ("10m", "--fail-on", "state"), webhook):
        said = cli("probe", "http://127.0.0.1:1", "--watch", *words).refusal
        assert "--webhook: expected" in said or "--watch" in said
        assert "secret" not in said
