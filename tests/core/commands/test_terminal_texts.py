"""No text of a run or of a server reaches the terminal as an escape sequence or as markup, from any
command.
"""

import pytest

from core.runs.ops_run import write_ops_run
from core.runs.store import labels
from core.runs.store.store import Store
from tests.core.runs.damaging import damaged, with_texts
from tests.core.runs.made_runs import copied
from tests.core.runs.test_ops_run import header, row_of
from tests.places import RUNS

ORDERS = "[red]owned\x1b]0;owned\x07\x1b[31m\x9b31m\u202e"
SAMPLES = {
    "mine": "where-it-starts",
    "said": "continuations-that-part",
    "bare": "fresh-against-cached",
}
COMMANDS = [
    ("list",),
    ("list", "--deleted"),
    ("show", "mine"),
    ("show", "said"),
    ("show", "mine", "--markdown"),
    ("compare", "mine"),
    ("show", "mine", "--kernels"),
    ("show", "mine", "--mitigations"),
    ("show", "mine", "--layers"),
    ("show", "bare", "--layers"),
    ("ops", "--show", "probes"),
    ("inspect", "FILE"),
    ("label", "mine"),
    ("show", ORDERS),
    ("export", "mine", f"/nowhere/{ORDERS}"),
    ("compare", f"{ORDERS}.npz"),
]


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    found = Store(tmp_path_factory.mktemp("filled") / "runs")
    for run_id, sample in SAMPLES.items():
        path = copied(found.directory / f"{run_id}.duckdb")
        path.chmod(0o644)
        path.write_bytes((RUNS / f"{sample}.duckdb").read_bytes())
        with_texts(path, ORDERS)
    about = header(name=ORDERS, device_name=ORDERS, command=ORDERS, note=ORDERS)
    write_ops_run(found, about, [row_of(size=ORDERS, modules=ORDERS, note=ORDERS)], run_id="probes")
    found.label("mine", labels.Labels(("tag",), ORDERS), labels.Labels())
    copied(found.directory / "gone.duckdb")
    damaged(found.directory / "gone.duckdb", f"UPDATE run SET name = '{ORDERS}'")
    found.delete("gone")
    return found


@pytest.fixture
def store(cli, filled, monkeypatch):
    """The filled store; none of these commands changes it."""
    monkeypatch.setenv("ULPSCOPE_STORE", str(filled.directory))
    return filled


@pytest.mark.parametrize(
    "command",
    COMMANDS,
    ids=lambda command: " ".join(command).encode("ascii", "replace").decode()[:30],
)
def test_what_a_command_prints_gives_the_terminal_no_orders(command, cli, store):
    done = cli(*(str(store.path_of("mine")) if part == "FILE" else part for part in command))
    said = done.stdout + done.stderr
    assert said
    assert [c for c in said if not c.isprintable() and c not in "\n\u200b"] == []
    assert "[red]owned" in said or command[0] in ("label", "export")
