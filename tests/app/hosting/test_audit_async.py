"""Failed sign-ins in the audit log: the first few are lines, a flood is a number."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.hosting import audit_async
from app.hosting.audit_async import ALONE, MOST_ADDRESSES, Folded
from core.runs.store import audit
from tests.app.hosting.servers import ROOT
from tests.app.hosting.serving import client, set_up
from tests.waiting import until

ADDRESS = "198.51.100.7"


def numbers(store: Path) -> list[tuple[str, int]]:
    """(address, how many it stands for) of every line."""
    return [(event["address"], event.get("times", 1)) for event in audit.read(store, 10_000)]


def test_of_a_flood_the_first_have_a_line_each_and_the_rest_one_with_their_number(store):
    folded = Folded()
    for _ in range(1000):
        assert folded.record(store, "nobody", "failed sign-in", way="token", address=ADDRESS)
    assert numbers(store) == [(ADDRESS, 1)] * ALONE  # at once
    folded.record(
        store, "nobody", "failed sign-in", way="token", address="198.51.100.8"
    )  # another address, another line
    folded.settle()
    assert numbers(store) == [(ADDRESS, 1)] * ALONE + [("198.51.100.8", 1), (ADDRESS, 1000 - ALONE)]
    assert audit.read(store, 1)[0] | {"time": ""} == {
        "time": "",
        "who": "nobody",
        "what": "failed sign-in",
        "way": "token",
        "address": ADDRESS,
        "times": 1000 - ALONE,
    }
    folded.record(store, "nobody", "failed sign-in", way="token", address=ADDRESS)  # the next minute
    folded.settle()
    assert len(numbers(store)) == ALONE + 3


def test_a_flood_from_many_addresses_is_some_lines_and_none_is_uncounted(store):
    folded = Folded()
    for _ in range(5):
        for number in range(400):
            folded.record(store, "nobody", "failed sign-in", address=f"10.0.{number // 250}.{number % 250}")
    folded.settle()
    assert len(numbers(store)) == MOST_ADDRESSES * (ALONE + 1) + 1
    assert sum(number for _, number in numbers(store)) == 2000
    assert numbers(store)[-1] == ("others", 5 * (400 - MOST_ADDRESSES))


def test_a_disk_that_cannot_be_written_is_said_as_before(store, caplog):
    store.write_text("no directory")
    folded = Folded()
    assert folded.record(store, "nobody", "failed sign-in", address=ADDRESS) is False
    assert "not in the audit log" in caplog.text
    folded.settle()


def test_the_numbers_are_written_when_the_minute_is_over(store, monkeypatch):
    monkeypatch.setattr(audit_async, "FOLDED_SECONDS", 0.01)
    folded = Folded()
    for _ in range(ALONE + 2):
        folded.record(store, "nobody", "failed sign-in", address=ADDRESS)
    until(lambda: sum(number for _, number in numbers(store)) == ALONE + 2)


_ENDS = """
import asyncio, sys
from pathlib import Path
from app.hosting.audit_async import tell
for _ in range(9):
    asyncio.run(tell(Path(sys.argv[1]), "nobody", "failed sign-in", address="198.51.100.7"))
"""


def test_the_numbers_are_written_when_the_process_ends(store):
    subprocess.run([sys.executable, "-c", _ENDS, str(store)], cwd=ROOT, check=True)
    assert numbers(store) == [(ADDRESS, 1)] * ALONE + [(ADDRESS, 9 - ALONE)]


@pytest.mark.parametrize("attempts", [20])
def test_wrong_tokens_are_folded_and_what_people_do_is_not(attempts, store, monkeypatch):
    set_up(monkeypatch, sign_in_tokens="1", sign_in_attempts=str(attempts))
    for _ in range(attempts):
        client().get("/api/x", headers={"authorization": "Bearer ulp_" + "A" * 43})
    audit_async.failures.settle()
    assert [event.get("times", 1) for event in audit.read(store, 99)] == [1] * ALONE + [attempts - ALONE]
