"""Pages of a long run as people open them: a Chromium with a profile on disk that no debugger listens to, by the page's
own clock.

`benchmarks.serving.pages` drives its browser with Playwright, which listens to the page's errors; the stacks of those
that Streamlit's code throws and catches while it loads make the browser parse that code again. Here a page tells its
times when it is asked, at its end, and is left alone before.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from websockets.sync.client import connect

from benchmarks.scratch import scratch
from benchmarks.serving.pages import NAMES, POSITIONS, long_run
from benchmarks.timing import Line
from tests.browser.driving import chromium, start

COUNTED, BEFORE = 5, 3  # visits that count, and those in which the browser learns the page
STAY, MOST_STAYS = (
    2.5,
    4,
)  # seconds after which a page is asked, and how often one that has not come to rest is asked again
WATCH = """
(() => {
  const told = (window.told = {});
  const look = () => {
    const app = document.querySelector("[data-testid=stApp]");
    if (!app || !document.querySelector("h1") || app.getAttribute("data-test-script-state") !== "notRunning") return;
    told.painted ??= performance.now();
    const isWhole = !document.querySelector("[data-testid=stSkeleton], .ulpscope-figure[data-state=waiting]");
    told.whole = isWhole ? (told.whole ?? performance.now()) : undefined;
  };
  const attributes = ["data-test-script-state", "data-state"];
  new MutationObserver(look).observe(document, { subtree: true, childList: true, attributes: true,
    attributeFilter: attributes });
})()
"""
TOLD = "JSON.stringify({ ...window.told, seen: performance.getEntriesByName('first-contentful-paint')[0]?.startTime })"


class Chromium:
    """A browser and the one connection that opens its pages."""

    def __init__(self, profile: Path) -> None:
        how = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0"]
        command = [chromium() or "chromium", *how, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        found = next(match for line in self._process.stderr if (match := re.search(r"ws://\S+", line)))
        threading.Thread(target=self._process.stderr.read, daemon=True).start()
        self._connection = connect(found[0], max_size=None, proxy=None)
        self._number = 0

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        self._process.terminate()
        self._process.wait(20)

    def _call(self, method: str, session: str | None = None, **parameters: object) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._connection.send(json.dumps(message | ({"sessionId": session} if session else {})))
        while (answer := json.loads(self._connection.recv())).get("id") != self._number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def visit(self, url: str) -> dict[str, float]:
        """Milliseconds since the page was asked for: `seen`, `painted`, `whole`."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable", session)
        self._call("Page.addScriptToEvaluateOnNewDocument", session, source=WATCH)
        self._call("Page.navigate", session, url=url)
        for _ in range(MOST_STAYS):
            time.sleep(STAY)
            told = json.loads(
                self._call("Runtime.evaluate", session, expression=TOLD, returnByValue=True)["result"]["value"]
            )
            if "whole" in told:
                break
        else:
            raise RuntimeError(f"{url} has not come to rest")
        self._call("Target.closeTarget", targetId=target)
        return told


def paints(browser: Chromium, what: str, url: str) -> Line:
    """Line of a page that is opened again and again in a browser that was here before."""
    visits = [browser.visit(url) for _ in range(BEFORE + COUNTED)][BEFORE:]
    seen, painted, whole = (
        statistics.median(one[each] for one in visits) / 1e3 for each in ("seen", "painted", "whole")
    )
    return Line(
        what,
        "<= 1 s",
        f"{painted:.2f} s",
        f"painted in a browser that was here before (median of {COUNTED}); something is seen after {seen:.2f} s, all"
        f" tables and figures after {whole:.2f} s",
    )


def run() -> list[Line]:
    lines = []
    with scratch() as folder:
        dashboard = start(folder / "runs")
        run_id = long_run(folder / "runs")
        with Chromium(folder / "profile") as browser:
            for name in NAMES:
                url = f"{dashboard.url}/{'' if name == 'runs' else name}?run={run_id}&position=36"
                if name == "compare":
                    url += "&with=fresh-against-cached"
                lines.append(paints(browser, f"{name}, {POSITIONS} positions, no debugger", url))
        dashboard.process.terminate()
        dashboard.process.wait(20)
    return lines
