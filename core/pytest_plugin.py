"""The pytest plugin: fixtures `judge` (a model's two paths), `compare` (two dumps), `judge_op` (a
function) and `compare_errors` (three tensors), and their evidence in the report of every failed
test that used them (docs/guides/test_suite.md).

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
    from .closeness.comparison import ErrorComparison
    from .closeness.operation import OperationVerdict
    from .runs.reports.gate import GateReport
    from .verdict import Verdict

# results, whose texts are the evidence
_FOUND = pytest.StashKey[list[Any]]()


def _with_evidence(request: pytest.FixtureRequest, function: Callable[..., Any]) -> Any:
    """Return a function whose results are shown if the test fails."""
    evidence = request.node.stash.setdefault(_FOUND, [])

    @wraps(function)
    def remember(*arguments: Any, **options: Any) -> Any:
        evidence.append(function(*arguments, **options))
        return evidence[-1]

    return remember


@pytest.fixture
def judge(request: pytest.FixtureRequest) -> Callable[..., Verdict]:
    """`judge` of the package: `judge(model, prompts, variant=mine).check()` fails unless the pair
    is rounding.
    """
    from .inference import judge

    return _with_evidence(request, judge)


@pytest.fixture
def judge_op(request: pytest.FixtureRequest) -> Callable[..., OperationVerdict]:
    """`judge_op` of the package: `judge_op(kernel, reference, x).check()` fails unless the errors
    of the kernel are those of rounding.
    """
    from .closeness.operation import judge_op

    return _with_evidence(request, judge_op)


@pytest.fixture
def compare_errors(request: pytest.FixtureRequest) -> Callable[..., ErrorComparison]:
    """`compare_errors` of the package: `compare_errors(actual, expected, exact).check()`."""
    from .closeness.comparison import compare_errors

    return _with_evidence(request, compare_errors)


@pytest.fixture
def compare(request: pytest.FixtureRequest) -> Callable[..., GateReport]:
    """Gate of `compare`: `compare("golden.npz", "today.npz", fail_on="flips,kl>0.01").check()`
    fails like it.
    """
    from .judging.ingest import temporary_run
    from .runs.reports.conditions import parse_conditions
    from .runs.reports.gate import gate_of
    from .runs.reports.report_json import report_of_run

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
            return gate_of(run, report_of_run(run)[0], conditions)

    return _with_evidence(request, compare_dumps)


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
        table = str(result)
        # `check` raised it, with its table in the message
        if table in message:
            continue
        if (add := getattr(report.longrepr, "addsection", None)) is not None:
            add("evidence", table)
        else:
            # a failure that is a text without a traceback
            report.sections.append(("evidence", table))
