"""What is asked of all pairs of a run is one query, however many there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from core.runs.file.database import Database
from core.runs.reader import RunReader
from core.runs.reports.report_json import report_of_run
from core.runs.reports.run_json import run_json
from core.runs.store.store import Store
from tests.core.runs.made_runs import ROOT, calm_sides, header_of, write_run

ASKED: dict[str, Callable[[RunReader], object]] = {
    "pairs with caches": lambda run: run.pairs_with_kv,
    "pairs with module outputs": lambda run: run.pairs_with_layers,
    "sides with kernels": lambda run: run.sides_with_kernels,
    "a run as JSON": run_json,
}


def queries(run: RunReader, asked: Callable[[RunReader], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """Queries that something takes of an open run."""
    count = 0

    def counting(method: Callable[..., object]) -> Callable[..., object]:
        def called(*given: object, **more: object) -> object:
            nonlocal count
            count += 1
            return method(*given, **more)

        return called

    with monkeypatch.context() as patched:
        for name in ("rows", "table"):
            patched.setattr(Database, name, counting(getattr(Database, name)))
        asked(run)
    return count


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs, of two and of nine pairs."""
    store = Store(tmp_path_factory.mktemp("pairs") / "runs")
    headers = [header_of(vocab=40, sides=sides) for sides in (3, 10)]
    return [write_run(store, header, calm_sides(header)) for header in headers]


@pytest.mark.parametrize("what", ASKED)
def test_as_many_queries_are_made_of_nine_pairs_as_of_two(
    what: str, runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunReader(runs[0]) as few, RunReader(runs[1]) as many:
        assert queries(few, ASKED[what], monkeypatch) == queries(many, ASKED[what], monkeypatch) > 0


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "runs").glob("*.duckdb")), ids=lambda path: path.stem)
def test_the_one_query_finds_what_looking_at_every_pair_does(path: Path) -> None:
    with RunReader(path) as run:
        indices = [pair.index for pair in run.pairs]
        assert run.pairs_with_kv == {pair for pair in indices if not run.rows("kv", pair=pair).empty}
        assert run.pairs_with_layers == {pair for pair in indices if not run.rows("layer", pair=pair).empty}
        assert run.sides_with_kernels == set(run.query("SELECT DISTINCT side FROM kernel")["side"])
        whole, first = report_of_run(run), report_of_run(run, only=0)
        assert (first[1], first[0][0]) == (whole[1], whole[0][0])
        assert [(each.variant, each.summary, each.answer) for each in first[0]] == [
            (each.variant, each.summary, each.answer) for each in whole[0]
        ]
