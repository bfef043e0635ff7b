"""A request for a probe: what it types and plans, and that the command that a run keeps names no
place. tests/core/test_capture_request.py has the way through the command line.
"""

from dataclasses import replace

import pytest

from core.errors import UsageError
from core.probing.plan import Plan, ProbeRequest

PLAIN = ProbeRequest(url="http://127.0.0.1:8000", prompts=("one", "two\nlines"))


def test_what_stands_at_its_default_is_not_typed_and_the_address_is_the_servers():
    asked = ProbeRequest(url="http://host/v1/chat/completions", against=" http://host:2/v1/ ")
    assert asked.arguments() == ["probe", "http://host", "--against", "http://host:2"]
    with pytest.raises(UsageError, match="is not a server address"):
        ProbeRequest(url="host")


def test_a_run_keeps_no_folder_and_only_the_beginning_of_a_long_prompt():
    asked = replace(
        PLAIN,
        prompts=("x" * 5000,),
        prompt_files=("/home/ada/p.txt",),
        prompt_lists=("/srv/q.jsonl",),
    )
    kept = asked.to_store().typed()
    assert "/home" not in kept
    assert "/srv" not in kept
    assert "p.txt" in kept
    assert "q.jsonl" in kept
    assert 2000 <= len(kept) < 2200


def test_the_plan_is_what_the_request_says():
    asked = replace(PLAIN, tests="load:3,rerun", tokens=7, top=5, against="http://host")
    assert asked.plan(["a", (1, 2)]) == Plan(
        ("a", (1, 2)),
        ("rerun", "load"),
        3,
        7,
        5,
        is_against=True,
    )
