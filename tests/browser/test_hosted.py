"""A server with a sign-in, as people meet it: the deep link, signing out; and what others wrote
stays text.
"""

import json

import numpy as np
import pytest
from playwright.sync_api import expect

from app.main import PAGES
from core.judging.ingest import ingest
from core.runs.store import labels
from core.runs.store.store import Store
from tests.app.hosting.serving import PASSWORD
from tests.browser.driving import settle
from tests.browser.test_accessibility import faults
from tests.serving import serving
from tests.waiting import until

LINK = "flips?run=fresh-against-cached&position=144"


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("hosted") / "runs", sign_in_password=PASSWORD) as running:
        yield running


@pytest.fixture
def viewer(browser):
    """A browser that knows nothing yet. Fails if a page asked anything of the outside or the policy
    stopped anything.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    blocked = []
    page.on(
        "console",
        lambda message: (
            blocked.append(message.text) if "Content Security Policy" in message.text else None
        ),
    )
    page.on("dialog", lambda dialog: (blocked.append(f"dialog {dialog.message}"), dialog.dismiss()))
    yield page
    context.close()
    assert blocked == []


def test_a_link_leads_through_the_sign_in_to_its_view_and_not_back_after_signing_out(
    hosted,
    viewer,
):
    url = hosted.url
    viewer.goto(f"{url}/{LINK}")
    expect(viewer).to_have_title("Sign in · ULPscope")
    assert faults(viewer) == []
    viewer.get_by_label("Password").fill("wrong")
    viewer.keyboard.press("Enter")
    expect(viewer.get_by_role("alert")).to_have_text("Wrong password or token.")
    viewer.get_by_label("Password").fill(PASSWORD)
    viewer.keyboard.press("Enter")
    viewer.wait_for_selector("[data-testid=stApp]")
    settle(viewer)
    assert viewer.url.startswith(f"{url}/flips?run=fresh-against-cached")
    assert "position=144" in viewer.url
    expect(viewer.get_by_test_id("stMain").get_by_text("Margin.")).to_be_visible()
    expect(viewer.get_by_text("Signed in: member")).to_be_visible()
    viewer.get_by_role("link", name="Sign out").click()
    expect(viewer).to_have_title("Sign out · ULPscope")
    assert faults(viewer) == []
    viewer.get_by_role("button", name="Sign out").click()
    expect(viewer).to_have_title("Signed out · ULPscope")
    viewer.go_back()
    expect(viewer).to_have_title("Sign in · ULPscope")
    assert viewer.get_by_test_id("stApp").count() == 0


@pytest.mark.thorough
def test_what_others_wrote_runs_in_no_page_and_the_policy_stops_no_page(hosted, viewer):
    """Names, sides, token texts, metadata, tags and a note, each with a script that would mark the
    window or ask for a dialog.
    """
    url, store = hosted.url, hosted.store
    evil = (
        "<script>window.owned=1</script><img src=x"
        ' onerror="window.owned=1;alert(1)">[x](javascript:alert(1))<svg onload=alert(1)>'
    )
    dump = store.parent / "evil.npz"
    logits = np.random.default_rng(0).standard_normal((3, 8), dtype=np.float32)
    texts = [evil, "`<img src=x onerror=alert(1)>`", "$$\\href{javascript:alert(1)}{x}$$"]
    meta = json.dumps({"model": evil, "device": evil, "note": evil})
    np.savez(
        dump,
        **{"reference": logits, evil[:120]: logits[:, ::-1]},
        token_ids=[1, 2, 3],
        tokens=texts,
        meta=meta,
    )
    run_id = ingest(Store(store), [dump], name=evil)
    Store(store).label(run_id, labels.labels_of(["<img src=x onerror=alert(1)>"], evil))
    viewer.goto(url)
    viewer.get_by_label("Password").fill(PASSWORD)
    viewer.keyboard.press("Enter")
    for name in (page.name for page in PAGES):
        viewer.goto(
            f"{url}/{'' if name == 'runs' else name}?run={run_id}&position=1"
            + (f"&with={run_id}" if name == "compare" else ""),
        )
        settle(viewer)
        assert viewer.evaluate("window.owned") is None, name
        assert viewer.locator("img[onerror], svg[onload], a[href^='javascript']").count() == 0, name
        assert viewer.get_by_test_id("stException").count() == 0, name
    # The twin: the same marks are seen if they are let in.
    viewer.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.owned=1\">')",
    )
    viewer.locator("img[onerror]").wait_for(state="attached")
    # the policy refuses what wait_for_function evaluates
    until(lambda: viewer.evaluate("window.owned") == 1)
