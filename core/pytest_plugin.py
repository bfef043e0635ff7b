"""The pytest plugin: fixtures `judge` (a model's two paths) and `compare` (two dumps), and their
evidence in the report of every failed test that used them (docs/guides/test_suite.md).

Every test run of an environment with the package loads this module, so heavy imports stand in the
fixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .runs.reports.gate import GateReport
    from .verdict import Verdict

_FOUND = pytest.StashKey[list["Verdict | GateReport"]]()


@pytest.fixture
def judge(request: pytest.FixtureRequest) -> Callable[..., Verdict]:
    """`judge` of the package: `judge(model, prompts, variant=mine).check()` fails unless the pair
    is rounding.
    """
    from .inference import judge as judge_pair

    evidence = request.node.stash.setdefault(_FOUND, [])

    @wraps(judge_pair)
    def judge_with_evidence(*arguments: Any, **options: Any) -> Verdict:
        evidence.append(judge_pair(*arguments, **options))
        return evidence[-1]

    return judge_with_evidence


@pytest.fixture
def compare(request: pytest.FixtureRequest) -> Callable[..., GateReport]:
    """Gate of `compare`: `compare("golden.npz", "today.npz", fail_on="flips,kl>0.01").check()`
    fails like it.
    """
    from .judging.ingest import temporary_run
    from .runs.reports.conditions import parse_conditions
    from .runs.reports.gate import gate_of
    from .runs.reports.report_json import report_of_run

    evidence = request.node.stash.setdefault(_FOUND, [])

    def compare_dumps(
        *dumps: str | Path,
        fail_on: str | Sequence[str],
        compute_dtype: str | None = None,
        reference: str | None = None,
    ) -> GateReport:
        conditions = parse_conditions(fail_on)
        with temporary_run(
            [Path(dump) for dump in dumps],
            compute_dtype=compute_dtype,
            reference=reference,
        ) as run:
            evidence.append(gate_of(run, report_of_run(run)[0], conditions))
        return evidence[-1]

    return compare_dumps


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
    call: pytest.CallInfo[None],
) -> Generator[None, Any, None]:
    """Add the evidence of the fixtures to the report of a failed test, below its traceback."""
    outcome = yield
    report = outcome.get_result()
    if call.when != "call" or not report.failed:
        return
    message = str(call.excinfo.value) if call.excinfo is not None else ""
    for result in item.stash.get(_FOUND, []):
        table = result.table()
        # `check` raised it, with its table in the message
        if table in message:
            continue
        if (add := getattr(report.longrepr, "addsection", None)) is not None:
            add("evidence", table)
        else:
            # a failure that is a text without a traceback
            report.sections.append(("evidence", table))
