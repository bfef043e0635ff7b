"""Waiting in tests ends, with what was seen last, and sees what comes and what should not come."""

from __future__ import annotations

import asyncio

import pytest

from tests import waiting
from tests.waiting import throughout, until, until_beside


def test_the_first_answer_that_is_true_is_returned():
    answers = iter([0, [], "", 7, 8])
    assert until(lambda: next(answers), every=0.0) == 7


def test_a_wait_that_is_over_says_what_it_saw_last_and_what_it_is_about(monkeypatch):
    with pytest.raises(AssertionError, match=r"^still \[\] after 0 seconds of a server$"):
        until(lambda: [], seconds=0.0, about=lambda: "of a server")
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(AssertionError, match=r"^still None after 0 seconds$"):
        asyncio.run(until_beside(lambda: None))


def test_while_one_task_waits_the_others_go_on():
    async def both() -> bool:
        come = asyncio.Event()
        asyncio.get_running_loop().call_soon(come.set)
        return await until_beside(come.is_set)

    assert asyncio.run(both())


def test_what_happens_within_the_time_or_in_its_last_moment_is_seen():
    throughout(0.0, lambda: True)
    answers = iter([True, True, False])
    with pytest.raises(AssertionError, match="it was False"):
        throughout(60.0, lambda: next(answers))
    with pytest.raises(AssertionError, match="it was None"):
        throughout(0.0, lambda: None)
