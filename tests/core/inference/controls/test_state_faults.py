"""Faults of caches and running states are found where they begin, and their sound twins are not."""

import pytest

from benchmarks.families import tiny_family, tiny_prompts
from benchmarks.verdicts.state import PLANTED, PLANTED_IN, PREFIX, engine_of
from core.inference.controls.judge_model import JudgingSession, judge
from tests.covering import few

pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    ("family", "fault"),
    few(
        [(family, fault) for family, faults in PLANTED_IN.items() for fault in faults],
        ("mamba2", "the state of another prompt"),
        ("xlstm", "the state one token old"),
    ),
)
def test_a_planted_fault_is_found_and_its_sound_twin_is_rounding(family, fault):
    loaded = tiny_family(family)
    prompts = tiny_prompts(loaded)[1:]
    session = JudgingSession(loaded, prompts)
    sides = [engine_of(loaded, PLANTED[fault], is_sound=each) for each in (False, True)]
    bug, twin = (judge(loaded, prompts, variant=side, session=session) for side in sides)
    assert bug.name == "bug suspected"
    assert bug.first_place == (0, PREFIX)
    assert twin.name == "rounding"
