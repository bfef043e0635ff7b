"""Neighbours of equal lengths and other content: a leak is a bug; a schedule that varies is none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from core.judging.judge_sparse import judge_probe
from core.probing.client import Client
from core.probing.plan import Plan
from core.probing.probe import Probe, ways_of
from core.probing.servers import Ask, Server
from core.runs.sparse.records import SparseResponse, SparseRow, sparse_rows
from core.runs.sparse_run import SparseVerdict, pairs_of

PROMPT = tuple(range(5, 25))
LOAD = 3


@dataclass
class Hall:
    """Who is in flight, and how the answer to a measured request depends on them. seen: of every measured request."""

    answer: Callable[[list[tuple[int, ...]], int], float]
    flying: list[tuple[int, ...]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    ready: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    seen: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Made(Server):
    """A server in this process that takes token ids."""

    hall: Hall = field(kw_only=True)
    kind: ClassVar[str] = "made"
    way_to_be_cold: ClassVar[str] = "it has no cache"
    takes_ids: ClassVar[bool] = True

    def ask(self, asked: Ask) -> SparseResponse:
        self.client.budget.take()
        hall = self.hall
        assert isinstance(asked.prompt, tuple)
        if asked.is_filler:
            with hall.lock:
                hall.flying.append(asked.prompt)
                if len(hall.flying) == LOAD:
                    hall.ready.set()
            hall.done.wait(10)
            return self._said(asked.prompt, 0.0)
        if threading.current_thread().name == "ulpscope-request":
            hall.ready.wait(10)
        with hall.lock:
            beside = sorted(hall.flying)
            hall.seen.append(sorted(len(one) for one in beside))
            said = self._said(asked.prompt, hall.answer(beside, len(hall.seen)))
            hall.flying.clear()
        hall.ready.clear()
        hall.done.set()
        hall.done = threading.Event()
        return said

    def _said(self, prompt: tuple[int, ...], shift: float) -> SparseResponse:
        row = SparseRow(len(prompt) - 1, ((7, -0.5 + shift), (8, -1.5)), 2, 7)
        return SparseResponse(
            "made", "logprob", "token_id", (*prompt, 7), sparse_rows([row], "made"), True, len(prompt) - 1, cached=0
        )


def verdicts(answer: Callable[[list[tuple[int, ...]], int], float]) -> tuple[dict[str, SparseVerdict], Hall]:
    hall = Hall(answer)
    server = Made(Client("http://127.0.0.1:1"), hall=hall)
    plan = Plan((PROMPT,), ("rerun", "content"), LOAD, 1, 2)
    found = Probe(plan, [server]).run()
    judged = judge_probe(found.sides, pairs_of(found.sides), ways_of(found.sides, plan, [server]))
    return {one.variant: one for one in judged}, hall


def test_a_neighbours_content_that_reaches_a_request_is_a_bug() -> None:
    found, hall = verdicts(lambda beside, _: 1e-4 * (sum(one[0] for one in beside) % 97))
    assert found["content A"].name == found["content B 3"].name == "bug suspected"
    assert "Another request's content reaches it" in found["content B"].because
    assert found["cold again"].name == "identical"
    assert hall.seen[2:] == [[16, 32, 48]] * 6  # beside the same lengths each time


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (lambda _, __: 0.0, {"identical"}),
        (lambda beside, _: 1e-4 * len(beside), {"undecided"}),  # how many, whatever they say
        (lambda beside, number: 1e-4 * number if beside else 0.0, {"undecided"}),  # the schedule, never the same
    ],
)
def test_what_depends_on_the_number_or_the_moment_is_no_leak(answer: Any, names: set[str]) -> None:
    found, _ = verdicts(answer)
    assert {one.name for name, one in found.items() if name.startswith("content")} == names
