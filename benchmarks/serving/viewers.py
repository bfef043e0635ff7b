"""Many viewers at once: real websocket sessions that open pages and step along a prompt, while an ingest and a capture
run beside them.

    python -m benchmarks.serving.viewers --viewers 50 --beside-ingest --beside-capture

Not among `python -m benchmarks`: it takes minutes and all cores. The viewers themselves run on the same machine, in
this process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from app.hosting.authentication import cookie_value
from app.hosting.live_settings import AuthStore
from app.shell.jobs import NICENESS
from benchmarks.scratch import scratch
from benchmarks.serving.viewer_session import Session
from benchmarks.timing import Line, table
from core.hosting import tokens
from tests.browser.driving import ROOT, Dashboard, start

RUN, POSITIONS = "fresh-against-cached", 40
PAGES = ("overview", "near_ties", "flips", "heatmap", "repeats", "layers", "kv_cache", "")
STEPS_A_PAGE = 5
THINK_SECONDS = (3.0, 9.0)
DUMP_ROWS, DUMP_VOCAB = 512, 65536  # 268 MB
PROMPT = ("--prompt-file", "sample_runs/prompts/scheduler.txt")


@dataclass
class Seen:
    """Seconds of every step, by kind, and what went wrong."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    faults: list[str] = field(default_factory=list)
    received_bytes: int = 0
    cpu_seconds: float = 0.0


async def _viewer(number: int, dashboard: Dashboard, until: float, seen: Seen, headers: dict[str, str]) -> None:
    """One viewer: open a page, step along the prompt with time to think, go to the next page."""
    chance = random.Random(number)
    await asyncio.sleep(chance.uniform(0, 1.5 * THINK_SECONDS[1]))
    try:
        async with Session(dashboard.url, headers) as session:
            while time.monotonic() < until:
                page = chance.choice(PAGES)
                seconds = await session.open(page, run=RUN, position=str(chance.randrange(POSITIONS)))
                seen.seconds["page opened"].append(seconds)
                for _ in range(STEPS_A_PAGE):
                    await asyncio.sleep(chance.uniform(*THINK_SECONDS))
                    if time.monotonic() >= until:
                        break
                    seconds = await session.set("position", float(chance.randrange(POSITIONS)))
                    seen.seconds["rerun"].append(seconds)
                    seen.seconds[f"rerun of {page or 'runs'}"].append(seconds)
                    seen.faults += session.drawn.exceptions
            seen.received_bytes += session.received_bytes
    except (OSError, TimeoutError) as error:
        seen.faults.append(f"viewer {number}: {type(error).__name__} {error}")


async def _heavy(dashboard: Dashboard, until: float, seen: Seen, headers: dict[str, str]) -> None:
    """A viewer who asks for what is expensive, over and over: a whole run as npz, built for each request."""
    while time.monotonic() < until:
        command = ["curl", "-sf", "-o", os.devnull, f"{dashboard.url}/files/{RUN}.npz"]
        for name, value in headers.items():
            command += ["-H", f"{name}: {value}"]
        began = time.perf_counter()
        code = await (await asyncio.create_subprocess_exec(*command)).wait()
        seen.seconds["npz of a run"].append(time.perf_counter() - began)
        if code:
            seen.faults.append(f"npz of a run: curl says {code}")
            return


def _dump(folder: Path) -> Path:
    path = folder / "dump.npz"
    logits = np.random.default_rng(0).standard_normal((DUMP_ROWS, DUMP_VOCAB), np.float32)
    np.savez(path, reference=logits, variant=logits + np.float32(1e-4))
    return path


async def _repeat(arguments: list[str], store: Path, until: float, seen: Seen, name: str) -> None:
    """One command after another for as long as the viewers are there, as a job of the app runs it."""
    while time.monotonic() < until:
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "core",
            *arguments,
            "--store",
            str(store),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        try:
            code = await asyncio.wait_for(process.wait(), max(1.0, until + 30 - time.monotonic()))
        except TimeoutError:
            process.terminate()
            await process.wait()
            return
        seen.seconds[name].append(time.perf_counter() - began)
        if code:
            seen.faults.append(f"{name}: exit code {code}")
            return


async def _freezing(url: str, until: float, seen: Seen) -> None:
    """How long the server's event loop leaves anybody waiting: its health, asked four times a second over one
    connection.
    """
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    while time.monotonic() < until:
        began = time.perf_counter()
        writer.write(f"GET /health HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
        )
        await reader.readexactly(length)
        seen.seconds["health"].append(time.perf_counter() - began)
        await asyncio.sleep(0.25)
    writer.close()


def _rss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1e3


def _cpu_seconds(pid: int) -> float:
    """Of the process and its threads, in user and system mode."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


async def _all(
    dashboard: Dashboard, asked: argparse.Namespace, dump: Path | None, who: list[dict[str, str]]
) -> tuple[Seen, list[float]]:
    seen, memory = Seen(), []
    async with Session(dashboard.url, who[0]) as first:  # what every viewer shares is read once
        for page in PAGES:
            await first.open(page, run=RUN)
    memory.append(_rss_mb(dashboard.process.pid))
    busy = _cpu_seconds(dashboard.process.pid)
    until = time.monotonic() + asked.seconds
    work = [_viewer(number, dashboard, until, seen, who[number % len(who)]) for number in range(asked.viewers)]
    work.append(_freezing(dashboard.url, until, seen))
    if asked.heavy:
        work.append(_heavy(dashboard, until, seen, who[0]))
    if dump is not None:
        work.append(
            _repeat(
                ["ingest", str(dump), "--name", "beside the viewers"], dashboard.store, until, seen, "ingest of 268 MB"
            )
        )
    if asked.beside_capture:
        arguments = [
            "capture",
            "--model",
            "sample_runs/model",
            *PROMPT,
            "--reference",
            "prefill",
            "--variant",
            "decode",
        ]
        work.append(_repeat(arguments, dashboard.store, until, seen, "capture"))

    async def watch() -> None:
        while time.monotonic() < until:
            await asyncio.sleep(min(5.0, max(0.1, until - time.monotonic())))
            memory.append(_rss_mb(dashboard.process.pid))

    await asyncio.gather(*work, watch())
    seen.cpu_seconds = _cpu_seconds(dashboard.process.pid) - busy
    return seen, memory


def _line(what: str, seconds: list[float], target: str = "") -> Line:
    ordered = sorted(seconds)
    if not ordered:
        return Line(what, target, "none", "nobody got that far")
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    reached = f"p50 {statistics.median(ordered):.2f} s, p95 {p95:.2f} s, longest {ordered[-1]:.2f} s"
    return Line(what, target, reached, f"{len(ordered)} of them")


def lines_of(seen: Seen, memory: list[float], viewers: int) -> list[Line]:
    shown = [_line("rerun", seen.seconds["rerun"], "p95 <= 1 s"), _line("page opened", seen.seconds["page opened"])]
    shown += [
        _line(name, seconds) for name, seconds in sorted(seen.seconds.items()) if name not in ("rerun", "page opened")
    ]
    runs = max(1, len(seen.seconds["rerun"]) + len(seen.seconds["page opened"]))
    traffic = f"all of it; {seen.received_bytes / runs / 1e3:.0f} kB to the viewer"
    shown.append(
        Line("server's processor time a rerun or page", "", f"{seen.cpu_seconds / runs * 1e3:.0f} ms", traffic)
    )
    half = len(memory) // 2
    grown = (
        f"{memory[0]:.0f} MB with one viewer, {max(memory):.0f} MB at the most; the second half of the time adds"
        f" {memory[-1] - memory[half]:+.0f} MB"
    )
    shown.append(Line("memory a viewer", "", f"{(max(memory) - memory[0]) / max(1, viewers - 1):.1f} MB", grown))
    return shown


def _signed_in(store: Path, by: str, viewers: int) -> list[dict[str, str]]:
    """The headers of viewers whom the server on that store lets in: a token they share, or a session of each one's
    own.
    """
    text, token = tokens.add(store, "viewers", "viewer", 1)
    if by == "token":
        return [{"Authorization": f"Bearer {text}"}]
    place = AuthStore(store)
    name = place.cookie("session", is_secure=False)
    begun = [place.sessions.begin(token.name, "token", token.sha256, 12.0) for _ in range(viewers)]
    return [{"Cookie": f"{name}={cookie_value(place, said)}"} for said in begun]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--beside-ingest", action="store_true", help="store 268 MB again and again meanwhile")
    parser.add_argument("--beside-capture", action="store_true", help="capture again and again meanwhile")
    parser.add_argument("--heavy", action="store_true", help="and one viewer who downloads whole runs as npz")
    parser.add_argument(
        "--header", action="append", default=[], help="'Name: value' of every request, such as a cookie"
    )
    parser.add_argument(
        "--signed-in",
        choices=("token", "cookie"),
        help="the server asks who is there, and every viewer brings a token, or a cookie as people do",
    )
    asked = parser.parse_args()
    headers = dict(text.split(": ", 1) for text in asked.header)
    environment, who = {}, [headers]
    load = os.getloadavg()[0]
    with scratch() as folder:
        dump = _dump(folder) if asked.beside_ingest else None
        store = folder / "server" / "runs"
        if asked.signed_in:
            store.mkdir(parents=True)
            who = [headers | each for each in _signed_in(store, asked.signed_in, asked.viewers)]
            environment["ULPSCOPE_SIGN_IN_TOKENS"] = "true"
        dashboard = start(store, **environment)
        try:
            seen, memory = asyncio.run(_all(dashboard, asked, dump, who))
        finally:
            dashboard.process.terminate()
            dashboard.process.wait(30)
    think = " to ".join(f"{seconds:.0f}" for seconds in THINK_SECONDS)
    print(
        f"{asked.viewers} viewers for {asked.seconds:.0f} s, {think} s to think, {len(os.sched_getaffinity(0))} cores, "
        f"load {load:.1f} before and {os.getloadavg()[0]:.1f} after"
    )
    print(table(lines_of(seen, memory, asked.viewers)))
    for fault in seen.faults[:10]:
        print(f"fault: {fault}")
    return 1 if seen.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
