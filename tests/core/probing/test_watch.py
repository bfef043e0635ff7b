"""Watched endpoints: a real llama.cpp server under load and with other weights, and a server whose answers are made."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.probing import watch
from core.probing.client import Client, ProbeError
from core.probing.plan import ProbeRequest
from core.probing.servers import OPENAI, Ask, find_server
from core.runs.store.store import Store
from core.runs.topk.records import ListSide, Response
from tests.core.probing import odd_server as odd
from tests.core.probing.conftest import llama_of
from tests.core.runs.topk.made_sides import response, run_of, store_run
from tests.serving import free_port


@contextmanager
def loading(address: str) -> Iterator[None]:
    """Four requests of another client in flight, of other lengths, with their answers."""
    is_over = threading.Event()

    def send(number: int) -> None:
        server = find_server(Client(address))
        while not is_over.is_set():
            server.ask(Ask("The quick brown fox jumps. " * (1 + number), 24, 1, "warm"))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    yield
    is_over.set()
    for one in threads:
        one.join()


def accept(handler: Any, _: dict[str, Any]) -> None:
    odd.reply(handler, b"", 204)


@pytest.mark.model
def test_load_is_silent_and_other_weights_of_the_same_name_are_not(
    cli: Any, tmp_path: Path, small_gguf: Path, quantized_gguf: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("ULPSCOPE_PROBE_KEY", "sk-very-secret")
    monkeypatch.setattr(watch, "_PAUSE_SECONDS", 0)
    port, live = free_port(), tmp_path / "live.gguf"

    def watched(rounds: int, *more: str) -> tuple[int, list[dict[str, Any]]]:
        done = cli("probe", f"http://127.0.0.1:{port}", "--watch", "1s", "--rounds", rounds, "--json", *more)
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]

    live.symlink_to(small_gguf)
    with odd.serving(accept) as (hook, seen), llama_of(live, port) as address:
        assert watched(1, "--webhook", hook)[0] == 0
        with loading(address):
            code, rounds = watched(3, "--webhook", hook)
    assert (code, len(rounds), seen.asked) == (0, 3, [])
    assert all(one["distance_nats"] <= one["limit_nats"] < 1e-3 for one in rounds)
    live.unlink()
    live.symlink_to(quantized_gguf)
    with odd.serving(accept) as (hook, seen), llama_of(live, port):
        code, rounds = watched(2, "--webhook", f"{hook}/services/T0?token=1")
    assert code == 1
    assert [one["since"] for one in rounds] == [rounds[0]["at"]] * 2
    assert rounds[0]["distance_nats"] > 1e-3  # of 8-bit weights
    assert [one["run"] for one in seen.asked] == [rounds[0]["run"]]
    assert seen.keys == [None]
    run = run_of(tmp_path / "runs" / f"{rounds[0]['run']}.duckdb")
    assert [side.name for side in run.sides] == ["baseline", "now"]
    differences = run.pairs[0].figures.squares.sum() / run.pairs[0].common_values
    assert rounds[0]["distance_nats"] == pytest.approx(np.sqrt(differences))


class MadeServer:
    """A server in this process. noise: size of that of an answer, common to its values as a batch has it."""

    kind, version, model = OPENAI, "1", "made"

    def __init__(self, noise: float = 0.0) -> None:
        self.noise, self.shift, self.sends, self.is_away, self.first_token = noise, 0.0, 0, False, 0
        self.random = np.random.default_rng(7)

    def ask(self, request: Ask) -> Response:
        if self.is_away:
            raise ProbeError("http://made cannot be reached.")
        self.sends += 1
        values = -np.arange(1.0, 21.0) + self.noise * self.random.exponential() * self.random.normal(size=20)
        values[0] += self.shift
        row = dict(enumerate(values.tolist(), self.first_token))
        return response([self.first_token] * 5, {4: row}, prompt=5, settings={"system_fingerprint": "fp"})


@contextmanager
def watching(store: Store, server: MadeServer) -> Iterator[Callable[[], Iterator[watch.Round]]]:
    request = ProbeRequest(url="http://made", watch="1s")

    def begin() -> Iterator[watch.Round]:
        def write(_: object, sides: Sequence[ListSide], what: str) -> str:
            return store_run(store, what, *sides[:2])  # judging all sixteen takes seconds

        return watch.watch(Client("http://made"), request, ("one", "two"), store, write, sleep=lambda _: None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "find_server", lambda *_: server)
        yield begin


def test_noise_is_silent_for_hundreds_of_rounds_and_a_shift_is_dated(tmp_path: Path) -> None:
    store, server = Store(tmp_path), MadeServer(noise=0.01)
    with watching(store, server) as begin:
        rounds = begin()
        first = next(rounds)
        assert 0.01 < first.noise_nats < 0.1
        assert first.limit_nats == 3 * first.noise_nats
        assert not any(one.since for one in itertools.islice(rounds, 500))
        server.shift = -2.0
        moved = list(itertools.islice(rounds, 3))
        server.shift = 0.0
        back = next(one for one in rounds if one.since is None)
    assert [one.since for one in moved] == [moved[0].at] * 3
    assert moved[0].distance_nats == pytest.approx(2 / np.sqrt(20), rel=0.2)  # one value of twenty
    assert (moved[0].run, back.run) == (moved[2].run, "")
    (history,) = watch.read_rounds(store)
    assert history[501:504] == moved
    assert history[-1] == back


def test_a_restart_goes_on_and_an_endpoint_that_is_away_is_a_note(tmp_path: Path) -> None:
    server = MadeServer()
    with watching(Store(tmp_path), server) as begin:
        first = next(begin())
        assert first.limit_nats == 1e-5  # of a server without noise
        server.shift, sent = -1e-4, server.sends
        rounds = begin()
        assert next(rounds) == first
        moved = next(rounds)
        assert moved.since is not None
        assert server.sends - sent == 3 * 2  # three sends of two prompts, and no new baseline
        server.is_away = True
        away = next(rounds)
    assert (away.distance_nats, away.since, away.notes) == (None, moved.since, ("http://made cannot be reached.",))


def test_other_tokens_have_moved_and_another_name_is_a_note(tmp_path: Path) -> None:
    server = MadeServer()
    with watching(Store(tmp_path), server) as begin:
        rounds = begin()
        assert next(rounds).server == "OpenAI-compatible 1 made fp, 10 prompt tokens"
        server.version = "2"
        named = next(rounds)
        server.first_token = 100
        other = next(rounds)
    assert (named.since, len(named.notes)) == (None, 1)
    assert (other.since, other.distance_nats, other.run) == (other.at, None, "")


def test_a_webhook_that_fails_is_tried_again_and_no_redirect_is_followed(cli: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(watch, "_PAUSE_SECONDS", 0)
    act = [odd.good]
    with (
        odd.serving(lambda *sent: act[0](*sent)) as (address, _),
        odd.serving(odd.redirect, odd.error_500, accept) as (hook, seen),
    ):
        words = ("probe", address, "--prompt", "x", "--watch", "1s", "--top", "3", "--webhook", hook)
        assert cli(*words, "--rounds", "1").returncode == 0
        act[0] = odd.moved
        done = cli(*words, "--rounds", "4")
    assert done.returncode == 1
    assert len(seen.asked) == 3
    assert seen.asked[0] == seen.asked[2]
    assert seen.asked[0]["since"] == seen.asked[0]["at"]
    assert "(307)" in done.stderr
    assert "(500)" in done.stderr


@pytest.mark.parametrize(
    "words",
    [("--watch", "5x"), ("--watch", "10m", "--tests", "echo"), ("--watch", "10m", "--webhook", "ftp://h/secret")],
)
def test_what_cannot_be_watched_is_refused(cli: Any, words: tuple[str, ...]) -> None:
    done = cli("probe", "http://127.0.0.1:1", *words)
    assert done.returncode == 2
    assert "expected" in done.stderr or "remove" in done.stderr
    assert "secret" not in done.stderr
