"""Watch of an endpoint: the first tokens of fixed prompts on a schedule, compared with its first
answers.

After log-probability tracking (Chauvin et al., arXiv:2512.03816). Its permutation test is not used:
a batch of another size moves all answers alike, so answers of an idle and of a busy server are not
exchangeable.
"""

import hashlib
import itertools
import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import httpx2 as httpx
import msgspec

from ..errors import DumpError, UlpscopeError, UsageError
from ..numerics.top_tokens import summary_of
from ..responses.alignment import align
from ..responses.pairing import compare_sides
from ..responses.records import ResponseSide
from ..runs.reader import RunReader
from ..runs.store.store import Store
from ..text import clean
from .client import Client, StoppedError
from .plan import ProbeRequest, Prompt
from .rounds import FOLDER, Round, read_rounds
from .servers import Ask, Server, find_server

REPEATS = 8  # alone, and as many at once
SENDS = 3  # of a round beyond the limit
# so far above the noise, because other users' requests make batches that the own load did not have
FACTOR = 3.0
# in nats: float32 rounds a log-probability of -20 to 1e-6
_LEAST_LIMIT = 1e-5


def watch(
    client: Client,
    request: ProbeRequest,
    prompts: Sequence[Prompt],
    store: Store,
    write_run: Callable[[Server, Sequence[ResponseSide], str], str],
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Round]:
    """Yield the baseline or the last stored round, then round after round. write_run: stores sides
    as a run.
    """
    about = repr([request.url, request.model, request.top, prompts])
    path = store.directory / FOLDER / f"{hashlib.sha256(about.encode()).hexdigest()[:16]}.jsonl"

    def ask(server: Server, name: str) -> ResponseSide:
        """Ask for one token of each prompt. No cache is cleared: others use the endpoint."""
        takes_ids = server.kind.takes_ids
        answers = []
        for one in prompts:
            ids = server.tokenize(one) if takes_ids and isinstance(one, str) else None
            answers.append(server.ask(Ask(ids or one, 1, request.top, salt=secrets.token_hex(8))))
        return ResponseSide(name, tuple(answers))

    def append(one: Round) -> Round:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            # a line begins with its end: one that was cut off by a kill spoils none after it
            file.write(b"\n" + msgspec.json.encode(one))
        if store.mirror is not None:
            store.mirror.send_small(f"{FOLDER}/{path.name}")
        return one

    last = next((rounds[-1] for rounds in read_rounds(store, path.name)), None)
    if last is None or not store.has(last.baseline):
        server = find_server(client, request.model)
        sides = [ask(server, f"alone {number}") for number in range(1, REPEATS + 1)]
        with ThreadPoolExecutor(REPEATS) as pool:
            sides += pool.map(
                partial(ask, server),
                [f"at once {number}" for number in range(1, REPEATS + 1)],
            )
        noise = max(distance(sides[0], side) for side in sides)
        limit = max(_LEAST_LIMIT, FACTOR * noise)
        run_id = write_run(server, sides, "baseline")
        last = append(
            Round(request.url, called(server, sides[0]), run_id, noise, limit, datetime.now(UTC)),
        )
    with RunReader(store.path_of(last.baseline)) as run:
        first = run.responses()[0]
    yield last
    for count in itertools.count():
        sleep(request.every if count else 0)
        client.budget.requests_sent = 0
        at = datetime.now(UTC)
        nats = math.inf
        since = last.since
        try:
            server = find_server(client, request.model)
            for _ in range(SENDS):
                side = ask(server, "now")
                nats = min(nats, distance(first, side))
                if nats <= last.limit_nats:
                    break
            # An endpoint near the limit does not come and go: it has returned if it is within the
            # noise itself.
            has_moved = nats > (last.limit_nats / FACTOR if since else last.limit_nats)
            name = called(server, side)
            run_id = last.run if has_moved else ""
            # earlier rounds with other tokens have stored no run
            if has_moved and not run_id:
                run_id = write_run(server, [replace(first, name="baseline"), side], "moved")
            since = (since or at) if has_moved else None
            notes = () if name == last.server else (f"The server was {last.server}; it is {name}.",)
            changes = {
                "server": name,
                "distance_nats": nats,
                "since": since,
                "run": run_id,
                "notes": notes,
            }
            is_down = False
        except StoppedError as error:
            if client.budget.cancelled.is_set():
                raise
            raise UsageError(f"{error}; a round takes up to {SENDS} of each prompt.") from None
        except UlpscopeError as error:
            # a DumpError means that there are answers, with other tokens
            is_down = not isinstance(error, DumpError)
            since = since or (None if is_down else at)
            changes = {"distance_nats": None, "since": since, "notes": (str(error),)}
        last = append(msgspec.structs.replace(last, at=at, is_down=is_down, **changes))
        yield last


def distance(first: ResponseSide, side: ResponseSide) -> float:
    """Return the RMS difference of the log-probabilities that both sent, nats.

    DumpError if there are none.
    """
    rms = summary_of(compare_sides(*align([first, side])).figures).rms
    if rms is None:
        raise DumpError("no token has a log-probability on both sides.")
    return rms


def called(server: Server, side: ResponseSide) -> str:
    """Return what a server and its answers say of themselves, with the number of tokens of the
    prompts.
    """
    one = side.responses[0]
    tokens = sum(1 + (each.generated_from or 0) for each in side.responses)
    parts = [
        server.kind.name,
        server.version,
        one.model or server.model,
        one.settings.get("system_fingerprint", ""),
    ]
    return f"{clean(' '.join(filter(None, parts)), 200)}, {tokens:,} prompt tokens"


def post(url: str, message: object) -> str:
    """POST JSON, without a key and through no redirect. Return why it failed, '' if it did not."""
    try:
        # its body is not read
        with httpx.stream("POST", url, json=message, timeout=30) as answer:
            return "" if answer.is_success else f"{answer.status_code}"
    # their sentences have the URL, which may be a secret
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return type(error).__name__
