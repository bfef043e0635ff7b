"""Two apps on one store are one app to their viewers; an app that is killed loses nothing, and the next one goes on
without a hand.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.serving.viewer_session import Session
from core.runs.store import labels
from core.runs.store.store import Store
from tests.browser.driving import Dashboard, start
from tests.core.runs.made_runs import copied, made
from tests.faults.whole import Watched
from tests.waiting import until_beside

APP_KILLS = 12


def _stop(dashboard: Dashboard) -> None:
    dashboard.process.terminate()
    dashboard.process.wait(30)


@pytest.fixture(scope="module")
def two_apps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Dashboard, Dashboard]]:
    folder = tmp_path_factory.mktemp("two")
    first = start(folder / "runs", ULPSCOPE_SAMPLES="")
    second = start(folder / "runs", ULPSCOPE_SAMPLES="")
    yield first, second
    _stop(first)
    _stop(second)


async def _until(session: Session, holds: Callable[[], bool]) -> None:
    """Wait for what arrives by itself, without anything being asked of the page."""
    await until_beside(holds, about=lambda: session.drawn.texts)


async def _note(session: Session, text: str) -> None:
    """Write the note of the run that the gallery shows as selected."""
    if not any(key.startswith("note_") for key in session.drawn.widgets):
        await session.set("labelling", True)
    note = next(key for key in session.drawn.widgets if key.startswith("note_"))
    save = next(key for key in session.drawn.widgets if "labels_" in key)
    await session.press(save, **{note: text})


async def _share(first: Dashboard, second: Dashboard) -> None:
    async with Session(first.url) as ada, Session(second.url) as ben:
        await ada.open("", run="mine")
        await ben.open("", run="mine")
        await _note(ada, "written on the first")
        await _until(ben, lambda: ben.drawn.says("written on the first"))  # no click of Ben's
        await _note(ben, "answered on the second")
        await _until(ada, lambda: ada.drawn.says("answered on the second"))

        await ben.open("overview", run="mine", position="2")
        assert not ben.drawn.exceptions
        await ada.press("delete")
        await ben.set("position", 3.0)
        assert ben.drawn.says("was deleted meanwhile")
        assert not ben.drawn.exceptions
        await ada.press("undo_delete")
        await ben.open("overview", run="mine", position="4")
        assert not ben.drawn.says("deleted meanwhile")
        assert "position" in ben.drawn.widgets

        made(Store(first.store), run_id="from-a-third-process")
        for session in (ada, ben):
            await session.open("overview", run="from-a-third-process")
            assert not session.drawn.says("There is no run")
            assert "position" in session.drawn.widgets
        assert ada.drawn.exceptions == ben.drawn.exceptions == []


@pytest.mark.thorough
def test_what_one_app_does_the_other_shows(two_apps: tuple[Dashboard, Dashboard]) -> None:
    for run_id in ("mine", "other"):
        copied(two_apps[0].store / f"{run_id}.duckdb")
    asyncio.run(_share(*two_apps))
    assert labels.read(two_apps[0].store, "mine").note == "answered on the second"


@pytest.mark.thorough
def test_an_app_on_another_store_would_not_pass_for_one_on_this(
    two_apps: tuple[Dashboard, Dashboard], tmp_path: Path
) -> None:
    copied(two_apps[0].store / "mine.duckdb")
    copied(tmp_path / "runs" / "mine.duckdb")
    elsewhere = start(tmp_path / "runs", ULPSCOPE_SAMPLES="")
    try:
        with pytest.raises(AssertionError):
            asyncio.run(_share(two_apps[0], elsewhere))
    finally:
        _stop(elsewhere)


# ---- an app that is killed


async def _work(dashboard: Dashboard, chance: random.Random, seconds: float) -> None:
    """Viewers who write notes, delete and undo until the server is gone."""

    async def viewer(run_id: str) -> None:
        async with Session(dashboard.url) as session:
            while True:
                await session.open("", run=run_id)
                if "undo_delete" in session.drawn.widgets:
                    await session.press("undo_delete")
                elif chance.random() < 0.3 and "delete" in session.drawn.widgets:
                    await session.press("delete")
                elif any(key.startswith("note_") for key in session.drawn.widgets):
                    await _note(session, f"note {chance.random()}")
                else:
                    await session.open("overview", run=run_id)

    async def kill() -> None:
        await asyncio.sleep(seconds)  # the moment at which it dies
        dashboard.process.send_signal(signal.SIGKILL)

    await asyncio.gather(*(viewer(run_id) for run_id in ("mine", "other")), kill(), return_exceptions=True)


@pytest.mark.thorough
def test_an_app_killed_while_it_works_comes_back_with_everything(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    for run_id in ("mine", "other", "kept"):
        copied(store.directory / f"{run_id}.duckdb")
    watched = Watched(store)
    watched.check()
    chance = random.Random(11)
    for _ in range(APP_KILLS):
        dashboard = start(store.directory, ULPSCOPE_SAMPLES="")
        asyncio.run(_work(dashboard, chance, chance.uniform(0.5, 4.0)))
        assert dashboard.process.wait(30) == -signal.SIGKILL
        watched.check()
    for entry in store.discarded():
        store.restore(entry.entry)
    dashboard = start(store.directory, ULPSCOPE_SAMPLES="")
    try:
        asyncio.run(_open_each(dashboard, ("mine", "other", "kept")))
    finally:
        _stop(dashboard)
    watched.check_that_it_goes_on()


async def _open_each(dashboard: Dashboard, run_ids: tuple[str, ...]) -> None:
    async with Session(dashboard.url) as session:
        for run_id in run_ids:
            await session.open("overview", run=run_id, position="1")
            assert "position" in session.drawn.widgets
            assert not session.drawn.exceptions
