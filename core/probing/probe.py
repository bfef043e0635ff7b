"""Probe of a live server: the same prompts cold, rerun, warm, under load, walked; a side per
condition.
"""

import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ..errors import DumpError
from ..judging.axes import (
    ADAPTER,
    AXES,
    CANCELED,
    OTHER,
    SAMPLED,
    TOKENS,
    Axis,
    cases_of,
    neighbors_of,
    with_wrong_block,
)
from ..judging.state import StateAnswers
from ..numerics.top_tokens import concatenate
from ..progress import Progress, no_progress
from ..responses.records import (
    UNKNOWN_TOKEN,
    Response,
    ResponseSide,
    TopTokenRow,
    compress_rows,
)
from ..text import plural, series
from .client import ProbeError, StoppedError
from .plan import ECHO, FILLER_FACTOR, LOAD, RERUN, STATE, WALK, WARM, Plan, Prompt
from .servers import Ask, Server

T = TypeVar("T")
_Answers = dict[str, list[Response]]
_FILLER = (
    "The quick brown fox jumps over the lazy dog while rain falls on the old harbour, and nobody"
    " counts how many boats are still out there tonight. "
)


@dataclass
class ProbeResult:
    """Result of a probe: sides of the generating requests, the reference first, and of the walk,
    likewise.

    state: of `--tests state`, if it was asked for; notes: what could not be requested, or was
    unexpected.
    """

    sides: tuple[ResponseSide, ...] = ()
    walks: tuple[ResponseSide, ...] = ()
    state: StateAnswers | None = None
    notes: list[str] = field(default_factory=list)


class Probe:
    """One probe of a server, or of two on the same prompts."""

    def __init__(self, plan: Plan, servers: Sequence[Server], tell: Progress = no_progress) -> None:
        self._plan = plan
        self._servers = servers
        self._tell = tell
        # of the generating requests, and of the walk
        self._answers: _Answers = {}
        self._walks: _Answers = {}
        self._state: StateAnswers | None = None
        self._notes: dict[str, None] = {}
        self._salt = secrets.token_hex(8)

    def run(self) -> ProbeResult:
        """Send all requests, prompt by prompt. If it is stopped, or the server fails, return the
        answers so far; ProbeError if they are not comparable.
        """
        stopped = ""
        try:
            prompts = [self._ids_of(prompt) for prompt in self._plan.prompts]
            for prompt in prompts:
                for test in (self._alone, self._loaded, self._walk):
                    for server in self._servers:
                        test(server, prompt)
            if STATE in self._plan.tests:
                self._ask_state(self._servers[0], prompts)
        except StoppedError as reason:
            stopped = str(reason)
        except ProbeError as failure:
            with suppress(ProbeError):
                return self.collect_results(str(failure).rstrip("."))
            raise
        return self.collect_results(stopped)

    def collect_results(self, stopped: str = "") -> ProbeResult:
        """Return the sides of the answers so far, even while requests are in flight. stopped:
        reason for not waiting. ProbeError if there is nothing to compare.
        """
        sides, walks = _complete_sides(self._answers), _complete_sides(self._walks)
        # of no axis there is nothing to compare
        if self._state is not None and not self._state.sides:
            stopped = stopped or next(iter(self._state.failed.values()), "").rstrip(".")
            self._state = None
        if len(sides) < 2 and len(walks) < 2 and self._state is None:
            reason = f": {stopped}" if stopped else ""
            raise ProbeError(f"the answers so far cannot be compared{reason}.")
        if stopped:
            answered = sides or walks
            if self._state is not None:
                answered = answered or (self._state.cold,)
                for axis in AXES:
                    self._state.failed.setdefault(axis.name, f"the probe ended early ({stopped})")
            self._note(
                f"The probe ended early ({stopped}); answers to"
                f" {plural(len(answered[0].responses), 'prompt')} are stored.",
            )
        return ProbeResult(
            sides if len(sides) > 1 else (),
            walks if len(walks) > 1 else (),
            self._state,
            list(self._notes),
        )

    def _note(self, sentence: str) -> None:
        self._notes[sentence] = None

    def _put(self, server: Server, name: str, response: Response, is_walk: bool = False) -> None:
        """Add an answer to its side, named by a letter for the server if there are two."""
        letter = "" if len(self._servers) == 1 else f"{'AB'[self._servers.index(server)]} "
        answers = self._walks if is_walk else self._answers
        answers.setdefault(f"{letter}{name}", []).append(response)

    def _ids_of(self, prompt: Prompt) -> Prompt:
        """Return the prompt as token ids if all servers take them, so that they read the same."""
        no_ids = [server.kind.name for server in self._servers if not server.kind.takes_ids]
        if isinstance(prompt, tuple) and no_ids:
            raise ProbeError(f"{series(no_ids)} takes no token ids; give prompts as texts.")
        if isinstance(prompt, tuple) or no_ids:
            return prompt
        tokenizations = [
            ids for server in self._servers if (ids := server.tokenize(prompt)) is not None
        ]
        if len(set(tokenizations)) > 1:
            self._note(
                f"The servers tokenize a prompt differently ({len(tokenizations[0]):,} and"
                f" {len(tokenizations[1]):,} tokens); both get the first server's token ids.",
            )
        return tokenizations[0] if tokenizations else prompt

    def _cold(self, prompt: Prompt, tokens: int | None = None) -> Ask:
        salt = secrets.token_hex(8)
        return Ask(prompt, tokens or self._plan.tokens, self._plan.top, salt=salt)

    def _warm(self, prompt: Prompt, salt: str, tokens: int | None = None) -> Ask:
        request = self._cold(prompt, tokens)
        return replace(request, is_warm=True, salt=f"{self._salt}-{salt}")

    def _send(self, server: Server, stage: str, request: Ask) -> Response:
        budget = server.client.budget
        requests = max(self._plan.requests, budget.requests_sent)
        self._tell(stage, budget.requests_sent, requests, "requests")
        return server.ask(request)

    def _ask(self, server: Server, stage: str, request: Ask) -> Response:
        if request.is_warm:
            return self._send(server, stage, request)
        server.forget()
        response = self._send(server, stage, request)
        if response.cached:
            self._note(
                f"{server.kind.name} read {response.cached:,} tokens of a prompt from its cache for"
                f" a cold request ({server.kind.way_to_be_cold}).",
            )
        return response

    def _alone(self, server: Server, prompt: Prompt) -> None:
        """Send a prompt cold, again, warm, and with its generated tokens as a prompt."""
        kind = server.kind
        tests = self._plan.tests
        first = self._ask(server, "cold", self._cold(prompt))
        self._put(server, "cold", first)
        if RERUN in tests:
            self._put(server, "cold again", self._ask(server, "rerun", self._cold(prompt)))
        if WARM in tests:
            if not kind.way_to_be_cold:
                self._note(
                    f"{kind.name} has no known way to bypass its cache: 'cold' is its first answer"
                    " to a prompt in this probe, which earlier requests may have warmed.",
                )
            request = self._warm(prompt, "warm")
            self._ask(server, "warming", request)
            for name in ("warm", "warm again"):
                response = self._ask(server, name, request)
                if response.cached is None:
                    self._note(
                        f"{kind.name} does not report its cache hits, so it is unknown if 'warm'"
                        f" was warm.{kind.way_to_tell}",
                    )
                if response.cached == 0:
                    self._note(f"{kind.name} read nothing from its cache for the {name} request.")
                self._put(server, name, response)
        if ECHO in tests:
            if (
                not kind.has_prompt_rows
                or first.generated_from is None
                or UNKNOWN_TOKEN in first.tokens
            ):
                self._note(
                    f"{kind.name} does not send a prompt's own rows by token id, so echo was"
                    " skipped.",
                )
            else:
                request = replace(self._cold(first.tokens, tokens=1), rows=True)
                self._put(server, "echo", replace(self._ask(server, "echo", request), text=""))

    def _loaded(self, server: Server, prompt: Prompt) -> None:
        if LOAD not in self._plan.tests:
            return
        for name in (f"load:{self._plan.load}", f"load:{self._plan.load} again"):
            server.forget()
            response = self._under_load(server, self._cold(prompt), name, self._plan.load, 7)
            self._put(server, name, response)

    def _under_load(
        self,
        server: Server,
        request: Ask,
        stage: str,
        others: int,
        lengths: int,
    ) -> Response:
        """Return the answer to a request while others are in flight. lengths: how many different
        ones they have.
        """
        barrier = threading.Barrier(others + 1)

        def fill(number: int) -> None:
            text = f"{number}. " + _FILLER * (1 + number % lengths)
            filler = replace(self._cold(text, request.tokens * FILLER_FACTOR), is_filler=True)
            barrier.wait()
            server.ask(filler)

        def measure() -> Response:
            barrier.wait()
            # after the pause the other requests are in flight
            server.client.budget.pause(0.05)
            return self._send(server, stage, request)

        filling = [start_call(partial(fill, number)) for number in range(others)]
        response = start_call(measure).result()
        finished = sum(one.done() for one in filling)
        wait(filling, return_when=FIRST_EXCEPTION)
        # raises an error before the others end
        for one in sorted(filling, key=lambda one: not one.done()):
            one.result()
        if finished:
            self._note(
                f"At worst, {finished} of the {others} concurrent requests ended before the"
                " measured one.",
            )
        return response

    def _ask_state(self, server: Server, prompts: list[Prompt]) -> None:
        """Ask for the cold reference, and then along every axis."""
        # a server that takes token ids may not tokenize
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        cases: list[Any] = cases_of(texts or prompts)
        reference = []
        for case in cases:
            request = replace(self._cold(case, TOKENS), rows=server.kind.has_prompt_rows)
            reference.append(self._ask(server, "state: cold", request))
        is_cold = bool(server.kind.way_to_be_cold) and not any(one.cached for one in reference)
        blocks = []
        for number, case in enumerate(cases):
            request = self._cold(with_wrong_block(case, cases[number - 1]), TOKENS)
            blocks.append(self._ask(server, "state: another block", request))
        state = StateAnswers(
            ResponseSide("cold", tuple(reference)),
            ResponseSide("wrong block", tuple(blocks)),
            is_cold,
        )
        self._state = state
        for axis in AXES:
            if reason := _why_not(axis, server, cases):
                state.missing[axis.name] = reason
        for axis in AXES:
            if axis.name in state.missing:
                continue
            try:
                answers = self._ask_axis(server, axis, cases, reference)
                state.sides[axis.name] = ResponseSide(axis.name, answers)
            except ProbeError as error:
                state.failed[axis.name] = str(error)

    def _ask_axis(
        self,
        server: Server,
        axis: Axis,
        cases: Sequence[Prompt],
        reference: Sequence[Response],
    ) -> tuple[Response, ...]:
        """Return the answers along one axis, one a prompt."""
        stage = f"state: {axis.name}"
        # a cache of its own: else an entry of an earlier axis is read, not the one of `before`
        server.forget()
        # cold, as llama.cpp has no salt: all of the prompt is written
        warm = self._warm("", axis.name, axis.tokens)
        written = replace(warm, is_warm=False)
        if axis.fillers:
            for case in cases:
                server.send(replace(warm, prompt=case), {})
            for number in range(axis.fillers):
                server.send(replace(warm, prompt=f"{number}. {_FILLER * 8}", tokens=1), {})
        answers = []
        for number, case in enumerate(cases):
            for step in axis.before:
                prompt = cases[number - 1] if step == OTHER else case
                first = replace(written, prompt=prompt, temperature=int(step == SAMPLED))
                fields = server.other_adapter if step == ADAPTER else {}
                server.send(first, fields, is_canceled=step == CANCELED)
            request = replace(warm, prompt=case) if axis.is_warm else self._cold(case, axis.tokens)
            request = replace(request, rows=axis.has_prompt_rows)
            if axis.is_continued:
                end = len(case) + TOKENS // 2
                given = reference[number].tokens[:end]
                request = replace(request, prompt=given, tokens=TOKENS - len(given) + len(case))
            if axis.has_neighbors:
                server.forget()
                answers.append(self._under_load(server, request, stage, neighbors_of(number), 1))
            elif not axis.has_values:
                server.forget()
                answers.append(_of_tokens(reference[number], case, server.generate(request)))
            else:
                answers.append(self._ask(server, stage, request))
        return tuple(answers)

    def _walk(self, server: Server, prompt: Prompt) -> None:
        """Request each row of a prompt by its prefix and one token to generate."""
        if WALK not in self._plan.tests:
            return
        if not server.kind.takes_ids or not isinstance(prompt, tuple):
            name = server.kind.name
            self._note(f"{name} does not take or report token ids, so walk was skipped.")
            return
        for name, is_warm in (("walk cold", False), ("walk warm", True)):
            answers = []
            for end in range(1, len(prompt) + 1):
                prefix = prompt[:end]
                request = self._warm(prefix, "walk", 1) if is_warm else self._cold(prefix, 1)
                answers.append(self._ask(server, name, request))
            self._put(server, name, _walk_response(prompt, answers), is_walk=True)


def start_call(call: Callable[[], T]) -> Future[T]:
    """Run a call in a daemon thread, so that a stopped probe can leave its requests."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="ulpscope-request", daemon=True).start()
    return outcome


def _of_tokens(reference: Response, case: Prompt, tokens: tuple[int, ...]) -> Response:
    """Return a response of generated tokens alone, in place of the reference."""
    rows = [TopTokenRow(place, (), 0, token) for place, token in enumerate(tokens, len(case) - 1)]
    return replace(
        reference,
        tokens=(*case, *tokens),
        rows=compress_rows(rows, "tokens"),
        text="",
    )


def _why_not(axis: Axis, server: Server, cases: Sequence[Prompt]) -> str:
    """Return why a server cannot be asked along an axis, '' if it can."""
    if axis.has_prompt_rows and not server.kind.has_prompt_rows:
        return f"{server.kind.name} does not send a prompt's own rows by token id"
    if ADAPTER in axis.before and not server.other_adapter:
        return "the server tells of no other adapter"
    if (axis.is_continued or not axis.has_values) and isinstance(cases[0], str):
        return f"{server.kind.name} takes or reports no token ids"
    return ""


def _walk_response(prompt: tuple[int, ...], answers: Sequence[Response]) -> Response:
    """Return the first generated rows of all prefixes as the rows of the prompt."""
    if not all(len(answer.rows) for answer in answers):
        raise ProbeError("the server generated nothing for a prefix of the prompt.")
    rows = concatenate([answer.rows.part(np.arange(len(answer.rows)) == 0) for answer in answers])
    tokens = (*prompt, int(rows.targets[-1]))
    texts = {token: text for answer in answers for token, text in answer.texts.items()}
    return replace(
        answers[-1],
        tokens=tokens,
        rows=replace(rows, positions=np.arange(len(rows)), targets=np.array(tokens[1:], np.int64)),
        start_known=True,
        generated_from=None,
        texts=texts,
        text="",
        cached=None,
    )


def _complete_sides(answers: _Answers) -> tuple[ResponseSide, ...]:
    """Return the sides with the prompts that all of them answered."""
    # a copy: requests may be in flight
    answers = dict(answers)
    prompts = min((len(responses) for responses in answers.values()), default=0)
    try:
        return tuple(
            ResponseSide(name, tuple(responses[:prompts])) for name, responses in answers.items()
        )
    except DumpError as error:
        raise ProbeError(str(error)) from None
