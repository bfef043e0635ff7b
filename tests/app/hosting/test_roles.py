"""What a viewer sees and may not do, on the pages and behind them, and what is written down of what an editor does."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.hosting import identity, page_guard
from app.hosting.identity import LOCAL, NOBODY, Identity
from app.shell import store_changes
from app.shell.jobs import Job, Jobs
from core.errors import AccessError
from core.runs.store import audit, labels
from core.runs.store.store import Store
from tests.app.hosting.serving import set_up
from tests.app.opening import opened, said
from tests.core.runs.judged_runs import judged_run

ROOT = Path(__file__).resolve().parents[3]
GRACE = Identity("grace@example.org", "viewer", "oidc")
ADA = Identity("ada <b>@example.org", "editor", "oidc")
RUN = "batch-1-against-n"


@pytest.fixture
def run(store: Path) -> str:
    """One's own copy of a sample run."""
    store.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "tests" / "runs" / f"{RUN}.duckdb", store / "mine.duckdb")
    return "mine"


@pytest.fixture
def unjudged(store: Path) -> str:
    return judged_run(Store(store), None, run_id="unjudged")


def sits(monkeypatch: pytest.MonkeyPatch, who: Identity) -> None:
    for module in (identity, page_guard):
        monkeypatch.setattr(module, "current", lambda: who)


@pytest.fixture
def submitted(monkeypatch) -> list[tuple]:
    found: list[tuple] = []
    monkeypatch.setattr(
        Jobs, "submit", lambda self, arguments, **about: found.append((arguments, about)) or Job(1, "", "", ())
    )
    return found


CHANGES = {
    "label": lambda: store_changes.label("mine", labels.Labels(), labels.labels_of(["tag"], "")),
    "discard": lambda: store_changes.discard("mine"),
    "delete": lambda: store_changes.delete("mine"),
    "restore": lambda: store_changes.restore("x"),
    "purge": lambda: store_changes.purge("x"),
    "submit": lambda: store_changes.submit(["capture"], title="t", device="cpu"),
    "cancel": lambda: store_changes.cancel(1),
    "forget": lambda: store_changes.forget(1),
}


@pytest.mark.parametrize("who", [GRACE, NOBODY])
@pytest.mark.parametrize("change", CHANGES)
def test_a_viewer_changes_nothing_even_where_a_page_calls_it(change, who, run, store, submitted, monkeypatch):
    sits(monkeypatch, who)
    with pytest.raises(AccessError, match="viewer"):
        CHANGES[change]()
    assert [path.name for path in store.iterdir()] == ["mine.duckdb"]
    assert submitted == []


def test_what_an_editor_does_is_done_and_written_down_under_their_name(run, store, submitted, monkeypatch):
    sits(monkeypatch, ADA)
    store_changes.label("mine", labels.Labels(), labels.labels_of(["tag"], ""))
    entry = store_changes.discard("mine")
    store_changes.restore(entry)
    store_changes.purge(store_changes.discard("mine"))
    store_changes.submit(["capture", "--prompt", "a secret prompt"], title="a title", device="cpu")
    found = audit.read(store, 20)
    assert {event["who"] for event in found} == {ADA.name}
    assert [event["what"] for event in found] == ["label", "delete", "restore", "delete", "delete for good", "capture"]
    assert [event.get("run_id") for event in found[:4]] == ["mine"] * 4
    assert submitted[0][1]["who"] == ADA.name
    assert "a secret prompt" not in (store / ".audit" / "audit.jsonl").read_text()


def test_who_is_not_known_is_a_viewer_where_a_sign_in_is_configured(monkeypatch):
    """A page's script without the gate's header: something is wrong, and that is no reason to let somebody change
    things.
    """
    assert identity.current() == LOCAL
    set_up(monkeypatch, sign_in_tokens="1")
    assert identity.current() == NOBODY
    assert identity.identity_of({}) == NOBODY
    assert not NOBODY.may_edit
    monkeypatch.setenv("ULPSCOPE_SIGN_IN_TOKENS", "perhaps")
    assert identity.current() == NOBODY


def buttons(app: AppTest) -> set[str]:
    return {button.label for button in app.button}


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("page", "link", "missing", "sentence"),
    [
        ("capture", {}, "Capture", "editors capture runs"),
        ("ops", {}, "Probe this machine", "editors probe this machine"),
        ("probe", {}, "Probe", "editors probe servers"),
        ("overview", {"run": "unjudged"}, "Judge it here", "editors can judge it here"),
        ("runs", {"run": "mine"}, "Delete", "viewers do not tag or delete"),
        ("upload", {}, "Save as a run", "editors upload dumps"),
    ],
)
def test_a_viewer_gets_a_sentence_in_place_of_what_changes_something(
    page, link, missing, sentence, run, unjudged, monkeypatch
):
    sits(monkeypatch, GRACE)
    app = opened(page, **link)
    assert missing not in buttons(app)
    assert sentence in said(app)
    assert not app.get("file_uploader")
    if page != "upload":  # the twin: an editor is offered it (to save, a file must have come first)
        sits(monkeypatch, ADA)
        app = opened(page, **link)
        assert missing in buttons(app)
        assert sentence not in said(app)


def test_the_sidebar_says_who_is_signed_in_and_how_to_leave(monkeypatch):
    def sidebar() -> str:
        app = opened("runs")
        return "\n".join([*(text.value for text in app.sidebar.text), *(text.value for text in app.sidebar.markdown)])

    assert "Signed in" not in sidebar()  # nobody is asked here
    sits(monkeypatch, ADA)
    assert f"Signed in: {ADA.name}, editor" in sidebar()  # as text: no name is markup
    assert 'href="/sign-out"' in sidebar()
    sits(monkeypatch, Identity("viewer", "viewer", "password"))
    assert "Signed in: viewer\n" in sidebar() + "\n"
    sits(monkeypatch, Identity("ada", "viewer", "header"))
    assert "/sign-out" not in sidebar()


# Whatever a page submits goes through store_changes, which asks who it is.
MAY_SUBMIT = {"app/shell/store_changes.py", "app/uploads/ingest_jobs.py", "app/shell/jobs.py"}
_CALLS = ("submit", "cancel", "forget", "discard", "restore", "purge_trash", "delete")


def past_the_asking(path: str, source: str) -> list[str]:
    """Calls of the jobs or the store that change something, outside the modules that ask."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in _CALLS and path not in MAY_SUBMIT:
            of = ast.unparse(node.value)
            if of.endswith(("jobs", "jobs()", "store()", "open_store()", "target")):
                found.append(f"{path}:{node.lineno} {of}.{node.attr}")
    return found


def test_no_page_changes_anything_without_asking_who_it_is():
    sources = [path for folder in ("app", "pages") for path in (ROOT / folder).rglob("*.py")]
    pages_only = [
        path for path in sources if "api" not in path.parts and "uploads" not in path.parts
    ]  # those ask by require_editor
    assert [
        each for path in pages_only for each in past_the_asking(path.relative_to(ROOT).as_posix(), path.read_text())
    ] == []


@pytest.mark.parametrize(
    "planted",
    [
        "jobs.submit([], title='')",
        "reading.jobs().submit([])",
        "st.button('x', on_click=jobs.cancel)",
        "reading.store().discard('x')",
    ],
)
def test_a_planted_call_past_the_asking_is_found(planted):
    assert len(past_the_asking("pages/x.py", planted)) == 1
    assert past_the_asking("app/shell/store_changes.py", planted) == []
    assert past_the_asking("pages/x.py", "reading.submit([])\npool.submit(f)") == []
