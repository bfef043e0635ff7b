"""Records of evidence: every check's figures come back from a run file, and nothing else is taken
for them.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules
from types import UnionType
from typing import get_args, get_origin, get_type_hints

import pytest
from msgspec.structs import fields

from core import checks
from core.checks import CHECKS
from core.checks.pair import OWN_PAIR
from core.checks.shift import SHIFT
from core.errors import UsageError
from core.evidence import (
    CHECK_GROUPS,
    NOTED,
    CheckFigures,
    Evidence,
    RatioFigures,
    Unmeasured,
    labels_of,
)
from core.runs.tables.pairs import figures_of
from tests.core.runs.judged_runs import judged_run
from tests.core.runs.made_runs import opened

RECORDS = [*dict.fromkeys(check.record for check in CHECKS.values()), Unmeasured]
EVERY_CHECK = pytest.mark.parametrize("check", CHECKS.values(), ids=str)
EXAMPLES = {bool: True, str: "text", int: 7, float: 0.125}


def example(kind, *, is_full):
    """A value of this type; is_full: of what may be null or empty, one that is not."""
    parts = get_args(kind)
    if isinstance(kind, UnionType):
        return example(parts[0], is_full=True) if is_full else None
    if get_origin(kind) is tuple:
        count = (2 if is_full else 0) if parts[-1] is Ellipsis else len(parts)
        return tuple(example(parts[0], is_full=is_full) for _ in range(count))
    if get_origin(kind) is Mapping:
        return {"name": example(parts[1], is_full=is_full)} if is_full else {}
    return EXAMPLES[kind]


def figures(check, *, is_full=True):
    kinds = get_type_hints(check.record)
    values = {}
    for each in fields(check.record):
        values[each.name] = example(kinds[each.name], is_full=is_full)
    return check.record(**values)


@pytest.mark.parametrize("is_full", [True, False])
def test_every_checks_figures_come_back_from_a_run_file(store, is_full):
    rows = []
    for number, check in enumerate(CHECKS.values()):
        side = "decode" if number % 2 else None
        about = f"control of {check}", figures(check, is_full=is_full), NOTED, f"{check}."
        rows.append(Evidence(check, *about, side))
    with opened(store, judged_run(store, "rounding", evidence=rows)) as run:
        assert run.evidence(0) == rows
    assert [row.check for row in rows] == list(CHECKS)  # in the order of the groups


@EVERY_CHECK
def test_figures_that_are_no_check_s_are_refused(check):
    whole = json.loads(json.dumps(figures(check).to_json()))
    assert figures_of(check, json.dumps(whole)) == figures(check)
    assert figures_of(check, json.dumps(whole | {"of_a_newer_build": 1})) == figures(check)
    # it could not be made
    for given in ({}, {"tried": ["floor"]}, {"computes_in": {"a": "bfloat16"}}):
        unmeasured = figures_of(check, json.dumps(given))
        assert type(unmeasured) is Unmeasured
        assert json.loads(json.dumps(unmeasured.to_json())) == given
    # an object within an object is a value of no figure
    wrong = [json.dumps(whole | {key: {"a": {}}}) for key in whole]
    # deeper than a recursive parser can go, cut off, and a number that Python reads as infinity
    wrong += ["[" * 100_000, json.dumps(whole)[:-1], '{"a": 1e999}']
    for text in wrong:
        with pytest.raises(
            UsageError,
            match=f"figures of the check '{check}' cannot be read",
        ) as refused:
            figures_of(check, text)
        assert str(refused.value).isprintable()


@EVERY_CHECK
def test_figures_of_another_check_are_refused(check):
    for other in CHECKS.values():
        if other.record in (check.record, Unmeasured):
            continue
        with pytest.raises(UsageError, match="no figures of the check"):
            Evidence(check, "", figures(other), NOTED, "")


def test_an_outcome_that_no_check_has_is_refused():
    with pytest.raises(UsageError, match="check is one of passed"):
        replace(Evidence(SHIFT, "", Unmeasured(), NOTED, ""), outcome="lost")


def test_keys_in_json_stay_what_they_were_and_null_is_told_from_what_was_not_measured():
    shifts = [f"same_argmax_shifted_by_{rows}" for rows in (0, -2, -1, 1, 2)]
    assert list(figures(SHIFT).to_json()) == shifts
    least = figures(OWN_PAIR, is_full=False).to_json()
    assert least["noise_ratio"] is None
    assert "linear_maps" not in least


@pytest.mark.parametrize("record", RECORDS)
def test_every_figure_has_a_label_of_its_own(record):
    labels = list(labels_of(record).values())
    assert all(labels)
    assert len(set(labels)) == len(labels)


def test_every_group_has_a_check_and_every_record_belongs_to_one():
    assert list(dict.fromkeys(check.group for check in CHECKS.values())) == list(CHECK_GROUPS)
    declared = {
        each
        for module in iter_modules(checks.__path__)
        for each in vars(import_module(f"core.checks.{module.name}")).values()
        if isinstance(each, type) and issubclass(each, CheckFigures)
    }
    assert declared - set(RECORDS) == {CheckFigures, RatioFigures}
