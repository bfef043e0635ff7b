"""Starting a dashboard and driving a page of it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import BrowserContext, Error, Page

from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = Path(__file__).parent / "screenshots"


def chromium() -> str:
    """The browser to drive: ULPSCOPE_CHROMIUM, else the first of the usual names; the tests fail without one, they
    never skip.
    """
    for name in (
        os.environ.get("ULPSCOPE_CHROMIUM", ""),
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
    ):
        if name and (found := shutil.which(name)):
            return found
    raise RuntimeError("no Chromium was found; install one or set ULPSCOPE_CHROMIUM to its path")


# `streamlit` as app/__main__.py starts it, which writes the stacks of its threads to its log when it is asked.
STREAMLIT = "import faulthandler, signal; faulthandler.register(signal.SIGUSR1); from app.__main__ import main; main()"


@dataclass(frozen=True)
class Dashboard:
    """A running server: its address, its store, its process."""

    url: str
    store: Path
    process: subprocess.Popen
    ready_seconds: float


def start(store: Path, script: Path = Path("app/main.py"), port: int = 0, **environment: str) -> Dashboard:
    if not port:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    began = time.perf_counter()
    command = [
        sys.executable,
        "-c",
        STREAMLIT,
        "run",
        str(script),
        "--server.port",
        str(port),
        "--server.headless",
        "true",
    ]
    store.parent.mkdir(parents=True, exist_ok=True)
    log = (store.parent / "server.log").open("wb")
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "ULPSCOPE_STORE": str(store), **environment}
    )
    try:
        until(lambda: _answers(port), seconds=60)
    except AssertionError:
        process.kill()
        raise RuntimeError("the dashboard did not start within a minute") from None
    dashboard = Dashboard(f"http://127.0.0.1:{port}", store, process, time.perf_counter() - began)
    started.append(dashboard)
    return dashboard


def _answers(port: int) -> bool:
    """Whether a dashboard is there yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=1) as answer:
            return answer.status == 200
    except urllib.error.HTTPError as error:
        return error.code == 401  # it asks who is there
    except OSError:
        return False


started: list[Dashboard] = []  # by this process


def what_servers_do() -> str:
    """The end of the log of every server that runs, with the stacks of its threads."""
    said = []
    for dashboard in started:
        if dashboard.process.poll() is None:
            log = dashboard.store.parent / "server.log"
            before = log.stat().st_size
            dashboard.process.send_signal(signal.SIGUSR1)
            with suppress(AssertionError):  # a server that does not answer even to that
                until(lambda log=log, before=before: log.stat().st_size > before, seconds=10, every=0.5)
            said.append(f"{dashboard.url}:\n{log.read_text(errors='replace')[-20_000:]}")
    return "\n".join(said)


_homes: dict[tuple[BrowserContext, str], Page] = {}  # the first tab of a dashboard in a browser profile


def new_tab(context: BrowserContext, dashboard: Dashboard) -> Page:
    """A tab without history, in the process of a first one that stays open: what that has compiled of the dashboard's
    scripts is not compiled again, half of what a page takes to open. Every dashboard has a first tab of its own: what
    was asked of one that had just gone from one server to another was now and then never answered.
    """
    if (context, dashboard.url) not in _homes:
        home = _homes[context, dashboard.url] = context.new_page()
        home.goto(f"{dashboard.url}/_stcore/health")  # of the same origin, and runs nothing
    home = _homes[context, dashboard.url]
    with home.expect_popup() as opened:
        home.evaluate("() => void window.open('about:blank')")
    return opened.value


def close_tabs(context: BrowserContext) -> None:
    """All but the first tab of each dashboard."""
    for page in context.pages:
        if page not in _homes.values():
            page.close()


# Resolves when no script runs and nothing of the page has changed for a while: what a click starts is begun by then,
# charts are drawn. What is evaluated in a page is waited for without an end by the browser's driver, so this has one of
# its own.
QUIET = """() => new Promise((resolve, reject) => {
  let timer;
  const begun = performance.now();
  const wait = () => { clearTimeout(timer); timer = setTimeout(look, 250); };
  const look = () => {
    const state = document.querySelector("[data-testid=stApp]")?.getAttribute("data-test-script-state");
    const late = performance.now() - begun > 120000;
    if (state !== "notRunning" && !late) return wait();
    clearInterval(patience);
    observer.disconnect();
    if (late) reject(new Error(`the page is not at rest after two minutes: its script is ${state}`));
    else resolve();
  };
  const observer = new MutationObserver(wait);
  observer.observe(document.documentElement, { subtree: true, childList: true, characterData: true, attributes: true });
  const ends = performance.now() + 4000;  // something may change for ever: a bar of progress
  const patience = setInterval(() => { if (performance.now() > ends) { observer.disconnect(); look(); } }, 250);
  wait();
})"""


def settle(page: Page) -> None:
    """Wait until no script runs, the code of every kind of element is there, every figure is drawn and the page has
    come to rest. Where it does not, what the servers do then is printed.
    """
    try:
        page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=120_000)
        # in the place of an element whose code is on its way
        page.wait_for_selector("[data-testid=stSkeleton]", state="detached", timeout=120_000)
        page.evaluate(QUIET)
        page.wait_for_selector(".ulpscope-figure[data-state=waiting]", state="detached", timeout=120_000)
    except Error:
        print(what_servers_do())
        raise


def pause(page: Page, milliseconds: int) -> None:
    """Wait by the page's own clock and two frames more, so that what it had to do by then is done, however busy its
    machine is. A page that nobody sees draws no frames: it fails after a minute.
    """
    page.evaluate(
        """(ms) => new Promise((done, fail) => {
          setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), ms);
          setTimeout(() => fail(new Error("the page draws no frames")), ms + 60000);
        })""",
        milliseconds,
    )


def picture(page: Page, name: str) -> None:
    """Keep a screenshot of the whole page for people to look at, where `make thorough` or a person asks for them: each
    takes seconds.
    """
    if not os.environ.get("ULPSCOPE_PICTURES"):
        return
    SCREENSHOTS.mkdir(exist_ok=True)
    width = page.viewport_size["width"] if page.viewport_size else 1280
    height = int(page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight"))
    page.set_viewport_size({"width": width, "height": min(max(900, height + 20), 3000)})
    page.wait_for_timeout(500)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")
    page.set_viewport_size({"width": width, "height": 900})


def open_saved(page: Page, name: str) -> None:
    """On the upload page: wait until an upload was saved as the run `name`, and open it."""
    job = page.locator("[class*='st-key-job_']").filter(has_text=f"{name} — done").first
    job.get_by_role("button", name="Open run").click(timeout=300_000)
