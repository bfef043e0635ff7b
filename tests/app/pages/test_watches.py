"""Watched endpoints on the Compare page, from planted histories."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from core.probing.rounds import FOLDER, Round
from tests.app.opening import click, figures_of, open_page, page_text
from tests.core.responses.made_sides import engine_side, store_run

BEGUN = datetime(2026, 11, 26, 18, 0, tzinfo=UTC)


def plant(store, name, *distances, moved_at=None):
    """A history with a round a minute; -> id of its runs"""
    run_id = store_run(store, name, engine_side("baseline", 1, 4), engine_side("now", 2, 4))
    rounds = []
    for minute, distance in enumerate(distances):
        has_moved = moved_at is not None and minute >= moved_at
        state = (BEGUN + timedelta(minutes=moved_at), run_id) if has_moved else (None, "")
        at = BEGUN + timedelta(minutes=minute)
        rounds.append(
            Round(
                f"http://{name}",
                f"server of {name}",
                run_id,
                0.01,
                0.03,
                at,
                distance,
                *state,
            ),
        )
    folder = Path(store.directory, FOLDER)
    folder.mkdir(exist_ok=True)
    lines = b"\n".join(map(msgspec.json.encode, rounds))
    # a line that a killed watch was writing
    (folder / f"{name}.jsonl").write_bytes(lines + b'\n{"url": "cut o')
    return run_id


def test_an_endpoint_that_moved_is_first_with_its_time_its_chart_and_its_run(
    bare_store,
):
    store_run(bare_store, "run", engine_side("a", 1, 4), engine_side("b", 2, 4))
    assert "Watched endpoints" not in [tab.label for tab in open_page("compare").tabs]
    plant(bare_store, "steady", None, 0.0, 0.02, None)
    run_id = plant(bare_store, "mo*ved", None, 0.02, 0.5, 0.6, moved_at=2)
    app = open_page("watches")
    text = page_text(app)
    assert "http://mo*ved has moved since 2026-11-26 18:02:00 UTC: 0.6 nats" in text
    assert "http://steady is down, so it is undecided" in text
    moved, steady = (one["figure"]["data"] for one in figures_of(app))
    assert moved[0]["marker"]["color"] == ["#0072B2", "#D55E00", "#D55E00"]
    # the first round is the baseline and has no distance
    assert moved[0]["x"] == [f"2026-11-26T18:0{minute}:00.000000" for minute in (1, 2, 3)]
    assert len(steady[0]["x"]) == 2
    assert steady[1]["name"] == "limit"
    click(app, "watch_run_0")
    assert app.title[0].value == "Overview"
    assert app.query_params["run"] == run_id
