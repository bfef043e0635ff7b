"""Probe of a live server: the same prompts cold, again, warm, under load, walked; a side for each condition."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from ..errors import DumpError
from ..runs.topk.records import UNKNOWN_TOKEN, ListRow, ListSide, Response, list_rows
from ..text import joined as listed
from ..text import plural
from .client import ProbeError, StoppedError
from .plan import ECHO, FILLER_FACTOR, LOAD, RERUN, WALK, Plan, Prompt
from .plan import WARM as WARM_TEST
from .servers import COLD, WARM, Ask, Server

Tell = Callable[[str, int, int], None]
T = TypeVar("T")
_FILLER = (
    "The quick brown fox jumps over the lazy dog while rain falls on the old harbour, and nobody counts how many boats"
    " are still out there tonight. "
)


@dataclass
class Probed:
    """Result of a probe: sides of the requests that generate, the reference first, and of the walk, likewise.

    notes: what could not be asked, or was not as it should be. stopped: why it ended before all was asked.
    """

    sides: tuple[ListSide, ...] = ()
    walks: tuple[ListSide, ...] = ()
    notes: list[str] = field(default_factory=list)
    stopped: str = ""


class Probe:
    """One probe of a server, or of two on the same prompts."""

    def __init__(self, plan: Plan, servers: Sequence[Server], tell: Tell | None = None) -> None:
        self._plan, self._servers, self._tell = plan, servers, tell
        self._answers: dict[str, list[Response]] = {}
        self._walks: dict[str, list[Response]] = {}
        self._notes: dict[str, None] = {}
        self._salt, self._salted = secrets.token_hex(8), itertools.count(1)

    def run(self) -> Probed:
        """Ask everything, prompt by prompt. What had come when it was stopped, or the server failed, is kept;
        ProbeError if that is nothing that could be compared.
        """
        stopped = ""
        try:
            for prompt in [self._ids_of(prompt) for prompt in self._plan.prompts]:
                for test in (self._alone, self._loaded, self._walk):
                    for server in self._servers:
                        test(server, prompt)
        except StoppedError as reason:
            stopped = str(reason)
        except ProbeError as failure:
            with suppress(ProbeError):
                return self.come(str(failure).rstrip("."))
            raise
        return self.come(stopped)

    def come(self, stopped: str = "") -> Probed:
        """Return the sides of the answers so far, also while requests are in flight. stopped: why no more is waited
        for. ProbeError if nothing that could be compared has come.
        """
        sides, walks = _whole(dict(self._answers)), _whole(dict(self._walks))
        if len(sides) < 2 and len(walks) < 2:
            ended = f": {stopped}" if stopped else ""
            raise ProbeError(f"nothing that could be compared has come{ended}.")
        if stopped:
            kept = plural(len((sides or walks)[0].responses), "prompt")
            self._note(f"The probe ended early ({stopped}); what had come of {kept} is kept.")
        return Probed(sides if len(sides) > 1 else (), walks if len(walks) > 1 else (), list(self._notes), stopped)

    def _note(self, sentence: str) -> None:
        self._notes[sentence] = None

    def _put(self, server: Server, name: str, response: Response, is_walk: bool = False) -> None:
        """Add an answer to its side, which has a letter for the server if there are two."""
        letter = "" if len(self._servers) == 1 else f"{'AB'[self._servers.index(server)]} "
        (self._walks if is_walk else self._answers).setdefault(f"{letter}{name}", []).append(response)

    def _ids_of(self, prompt: Prompt) -> Prompt:
        """Return the prompt as token ids if every server takes them, so that both read the same."""
        no_ids = [server.kind.name for server in self._servers if not server.kind.takes_ids]
        if isinstance(prompt, tuple) and no_ids:
            raise ProbeError(f"{listed(no_ids)} takes no token ids; give prompts as texts.")
        if isinstance(prompt, tuple) or no_ids:
            return prompt
        known = [ids for server in self._servers if (ids := server.tokenized(prompt)) is not None]
        if len(set(known)) > 1:
            self._note(
                f"The servers tokenize a prompt differently, {len(known[0]):,} and {len(known[1]):,} tokens; both were"
                " given the first one's."
            )
        return known[0] if known else prompt

    def _cold(self, prompt: Prompt, tokens: int | None = None) -> Ask:
        salt = f"{self._salt}-{next(self._salted)}"
        return Ask(prompt, tokens or self._plan.tokens, self._plan.top, COLD, salt)

    def _ask(self, server: Server, stage: str, asked: Ask) -> Response:
        budget = server.client.budget
        if self._tell is not None:
            self._tell(stage, budget.sent, max(self._plan.requests, budget.sent))
        return server.ask(asked)

    def _ask_cold(self, server: Server, stage: str, asked: Ask) -> Response:
        server.forget()
        response = self._ask(server, stage, asked)
        if response.cached:
            self._note(
                f"{server.kind.name} read {response.cached:,} tokens of a prompt from its cache although it was asked"
                f" to be cold ({server.kind.way_to_be_cold})."
            )
        return response

    def _alone(self, server: Server, prompt: Prompt) -> None:
        """Ask for a prompt cold, again, warm, and its generated tokens as the end of a prompt."""
        kind, tests = server.kind, self._plan.tests
        first = self._ask_cold(server, "cold", self._cold(prompt))
        self._put(server, "cold", first)
        if RERUN in tests:
            self._put(server, "cold again", self._ask_cold(server, "rerun", self._cold(prompt)))
        if WARM_TEST in tests:
            if not kind.way_to_be_cold:
                self._note(
                    f"No way is known to have {kind.name} answer without its cache: 'cold' is its first answer to a"
                    " prompt in this probe, which an earlier one may have warmed."
                )
            asked = replace(self._cold(prompt), cache=WARM, salt=f"{self._salt}-warm")
            self._ask(server, "warming", asked)
            for name in ("warm", "warm again"):
                response = self._ask(server, name, asked)
                if response.cached is None:
                    self._note(
                        f"{kind.name} does not say how much it read from its cache, so whether 'warm' was warm is not"
                        f" known.{kind.way_to_tell}"
                    )
                if response.cached == 0:
                    self._note(f"{kind.name} read nothing from its cache for a request that was to be {name}.")
                self._put(server, name, response)
        if ECHO in tests:
            if not kind.has_prompt_rows or first.generated_from is None or UNKNOWN_TOKEN in first.tokens:
                self._note(f"{kind.name} does not give a prompt's own rows by token id, so echo was not asked.")
            else:
                asked = replace(self._cold(first.tokens, tokens=1), rows=True)
                self._put(server, "echo", replace(self._ask_cold(server, "echo", asked), text=""))

    def _loaded(self, server: Server, prompt: Prompt) -> None:
        if LOAD not in self._plan.tests:
            return
        for name in (f"load:{self._plan.load}", f"load:{self._plan.load} again"):
            server.forget()
            self._put(server, name, self._under_load(server, prompt, name))

    def _under_load(self, server: Server, prompt: Prompt, stage: str) -> Response:
        """Return the answer to a prompt asked while others are in flight, each of another length."""
        others = self._plan.load
        started = threading.Barrier(others + 1)

        def fill(number: int) -> None:
            text = f"{number}. " + _FILLER * (1 + number % 7)
            asked = replace(self._cold(text, self._plan.tokens * FILLER_FACTOR), is_filler=True)
            started.wait()
            server.ask(asked)

        def measured() -> Response:
            started.wait()
            server.client.budget.pause(0.05)  # the others are on their way
            return self._ask(server, stage, self._cold(prompt))

        filling = [begun(partial(fill, number)) for number in range(others)]
        response = begun(measured).result()
        in_flight = sum(not one.done() for one in filling)
        wait(filling, return_when=FIRST_EXCEPTION)
        for one in sorted(filling, key=lambda one: not one.done()):  # an error first, however long the others take
            one.result()
        if ended := others - in_flight:
            self._note(f"Of the {others} requests beside a measured one, {ended} had ended before it at the worst.")
        return response

    def _walk(self, server: Server, prompt: Prompt) -> None:
        """Ask for the rows of a prompt, one request each: the prefix up to a token, and one token to generate."""
        if WALK not in self._plan.tests:
            return
        if not server.kind.takes_ids or not isinstance(prompt, tuple):
            name = server.kind.name
            self._note(f"{name} takes no token ids, or does not say those of a text, so no prompt was walked.")
            return
        for name, cache in (("walk cold", COLD), ("walk warm", WARM)):
            answers = []
            for end in range(1, len(prompt) + 1):
                asked = self._cold(prompt[:end], 1)
                if cache == WARM:
                    answers.append(self._ask(server, name, replace(asked, cache=WARM, salt=f"{self._salt}-walk")))
                else:
                    answers.append(self._ask_cold(server, name, asked))
            self._put(server, name, _walked(prompt, answers), is_walk=True)


def begun(call: Callable[[], T]) -> Future[T]:
    """Run a call in a thread that the caller need not wait for: a probe that is stopped leaves its requests."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="ulpscope-request", daemon=True).start()
    return outcome


def _walked(prompt: tuple[int, ...], answers: Sequence[Response]) -> Response:
    """The first generated rows of every prefix as the rows of the prompt."""
    rows = []
    for position, answer in enumerate(answers):
        if not len(answer.rows):
            raise ProbeError("the server generated nothing for a prefix of the prompt.")
        tokens, values = answer.rows.row(0)
        given = prompt[position + 1] if position + 1 < len(prompt) else int(answer.rows.targets[0])
        entries = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
        best = int(answer.rows.best[0])
        rows.append(ListRow(position, entries, best, given, int(answer.rows.missing[0]), bool(answer.rows.full[0])))
    texts = {token: text for answer in answers for token, text in answer.texts.items()}
    last = answers[-1]
    return replace(
        last,
        tokens=(*prompt, int(last.rows.targets[0])),
        rows=list_rows(rows, "walk"),
        start_known=True,
        generated_from=None,
        texts=texts,
        text="",
        cached=None,
    )


def _whole(answers: dict[str, list[Response]]) -> tuple[ListSide, ...]:
    """Sides of the prompts that all of them have answered. A side that has answered none is left out."""
    prompts = min((len(found) for found in answers.values()), default=0)
    try:
        return tuple(ListSide(name, tuple(found[:prompts])) for name, found in answers.items())
    except DumpError as error:
        raise ProbeError(str(error)) from None
