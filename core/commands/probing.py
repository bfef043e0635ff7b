"""`probe`: send a live server the same requests under several conditions, and compare the
answers.
"""

from __future__ import annotations

import itertools
import os
import signal
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

import msgspec
from typer import Exit, Option

from ..errors import DumpError, UlpscopeError, UsageError
from ..judging.lists import judge_probe
from ..judging.state import judge_state
from ..probing.plan import KEY_VARIABLE, STATE, WATCH_PROMPTS, ProbeRequest, parsed_tests
from ..prompt_files import collect_prompts
from ..responses.alignment import align
from ..responses.pairing import pairs_of
from ..runs.file.records import Provenance
from ..runs.reader import RunReader
from ..runs.response_run import write_responses
from ..runs.store.store import Store, open_store
from ..text import number
from .comparing import compare_files, end_with
from .options import JsonOption, ProgressOption, StoreOption, takes_request
from .tables import print_pairs
from .terminal.console import (
    announce,
    err,
    print_json,
    print_line,
    print_note,
    print_text,
    steps,
)
from .terminal.stopping import EXIT_CODE, SENTENCE, stoppable, stopping

if TYPE_CHECKING:  # what speaks HTTP takes 0.2 s to load
    from collections.abc import Sequence

    from ..probing.client import Budget
    from ..probing.plan import Prompt
    from ..probing.probe import Probe, ProbeResult
    from ..probing.servers import Server
    from ..responses.records import ResponseSide


_STATE = ", state"  # ends the name of a run of axes


@takes_request(ProbeRequest)
def probe(
    request: ProbeRequest,
    rounds: int | None = Option(None, min=1, help="End --watch after so many rounds."),
    webhook: str = Option("", help="URL that gets JSON when --watch sees a move, and a return."),
    fail_on: list[str] = Option(
        [],
        help="Exit with 1 if a condition fails in the run of --tests state: state, or those of"
        " compare.",
    ),
    dry_run: bool = Option(
        False, "--dry-run", help="Print request and token counts; send nothing."
    ),
    progress: ProgressOption = "bar",
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Probe a live server for nondeterminism: repeated, with a warm cache, under load. Store the
    responses as a run.

    For vLLM, SGLang, llama.cpp, Ollama, and any OpenAI-compatible server with log-probabilities.
    Needs HTTP only, and no model on this machine (docs/guides/probe.md). The API key is that of
    $ULPSCOPE_PROBE_KEY.

    For example:  ulpscope probe http://127.0.0.1:8000 --prompt "def area(shape):" --tests
    rerun,warm,load:8
    """
    from ..probing.client import Budget, Client
    from ..probing.plan import costs
    from ..probing.probe import Probe
    from ..probing.servers import find_server

    if request.watch:
        if fail_on:
            raise UsageError(
                "--fail-on reads the run of --tests state; --watch exits with 1 if the endpoint has"
                " moved.",
            )
        if dry_run:
            print_text(
                "Of each prompt: 16 requests for a new baseline, and 1 to 3 in a round, with one"
                " token to generate.",
            )
            return
        _watch(request, rounds, webhook, open_store(store), as_json_)
    if rounds or webhook:
        raise UsageError("--rounds and --webhook are options of --watch; add --watch 10m.")
    plan = request.plan(_prompts(request))
    if fail_on and STATE not in plan.tests:
        raise UsageError("--fail-on reads the run of --tests state; add state to --tests.")
    if dry_run:
        if as_json_:
            names = ("requests", "tokens_read", "tokens_made")
            print_json({name: getattr(plan, name) for name in names})
        else:
            print_text("\n".join(costs(plan)))
        return
    target, budget = open_store(store), Budget(request.max_requests)
    try:
        with ExitStack() as stack:
            say = stack.enter_context(steps(progress))
            # never an option: the command is stored with the run, the key is not
            key = os.environ.get(KEY_VARIABLE, "")
            clients = [Client(address, key=key, budget=budget) for address in request.addresses]
            for client in clients:
                stack.callback(client.close)
            models = (request.model, request.against_model or request.model)
            servers = list(map(find_server, clients, models))
            for server in servers:
                way = server.kind.way_to_be_cold
                cold = f"cold by {way}" if way else "no cold cache"
                print_text(f"{server.client.url}: {server.describe()}; {cold}", err)
            probed = _cancellable(Probe(plan, servers, say), budget)
    except KeyboardInterrupt:
        err.print(SENTENCE)
        raise Exit(EXIT_CODE) from None
    with stoppable():
        run_ids = _store(target, servers, probed, request)
    gate = None
    if fail_on and probed.state is not None:
        gate = compare_files([run_ids[-1]], store, fail_on=fail_on).gate
    if progress == "json":
        print_line(stage="done", run_id=run_ids[0])
        return
    for note in probed.notes:
        print_note(note)
    if as_json_:
        answer = {"run_id": run_ids[0], "runs": run_ids, "notes": probed.notes}
        print_json(answer | ({"gate": gate.as_json()} if gate is not None else {}))
    else:
        for run_id in run_ids:
            with RunReader(target.path_of(run_id)) as run:
                print_pairs(run)
            announce(run_id, store)
    if gate is not None:
        end_with(gate, None, None, as_json_)
    elif fail_on:
        raise UlpscopeError("--fail-on state decides nothing: no axis was answered.")


def _watch(
    request: ProbeRequest,
    most: int | None,
    webhook: str,
    store: Store,
    as_json_: bool,
) -> NoReturn:
    """Compare an endpoint with its baseline until Ctrl-C or the last round.

    Exit with 1 if it has moved then.
    """
    from ..probing import watch
    from ..probing.client import Budget, Client
    from ..probing.probe import ProbeResult

    def write_run(server: Server, sides: Sequence[ResponseSide], what: str) -> str:
        return _store(store, [server], ProbeResult(tuple(sides)), request, f", {what}")[0]

    if webhook and urlsplit(webhook).scheme not in ("http", "https"):
        raise UsageError("--webhook: expected an address that begins with http:// or https://.")
    client = Client(
        request.url,
        key=os.environ.get(KEY_VARIABLE, ""),
        budget=Budget(request.max_requests),
    )
    rounds = watch.watch(client, request, _prompts(request), store, write_run)
    with stoppable():
        last = next(rounds)
    print_text(
        f"{last.server}; baseline {last.baseline}: noise up to {number(last.noise_nats)} nats",
        err,
    )
    unsent = None
    with suppress(KeyboardInterrupt), stopping(lambda: "stopped."):
        for now in itertools.islice(rounds, most):
            message = msgspec.to_builtins(now) | {"text": now.text}
            if as_json_:
                print_line(**message)
            else:
                print_text(f"{now.at:%H:%M:%S} {now.text} {now.run}")
            if webhook and bool(now.since) != bool(last.since):
                unsent = message
            last = now
            failure = unsent and watch.post(webhook, unsent)
            if failure:
                print_note(
                    f"the webhook failed ({failure}); it is tried again after the next round.",
                )
            else:
                unsent = None
    raise Exit(1 if last.since else 0)


def _prompts(request: ProbeRequest) -> list[Prompt]:
    has_own = request.watch or STATE in parsed_tests(request.tests)[0]
    if has_own and not (request.prompts or request.prompt_files or request.prompt_lists):
        return list(WATCH_PROMPTS)
    prompts = collect_prompts(request.prompts, request.prompt_files, request.prompt_lists)
    chats = [one for one in prompts if one.messages is not None]
    if chats:
        raise UsageError(
            f"{chats[0].source}: a probe sends texts or token ids, not the messages of a chat.",
        )
    return [one.token_ids if one.token_ids is not None else one.text or "" for one in prompts]


def _cancellable(work: Probe, budget: Budget) -> ProbeResult:
    """Run a probe. Ctrl-C and SIGTERM keep the answers so far; KeyboardInterrupt if there are
    none.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {each: signal.signal(each, signal.default_int_handler) for each in numbers}
    try:
        return work.run()
    except KeyboardInterrupt:
        budget.cancelled.set()
        try:
            return work.collect_results("it was cancelled")
        except UlpscopeError:
            raise KeyboardInterrupt from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _comparable(candidates: Sequence[ResponseSide], notes: list[str]) -> tuple[ResponseSide, ...]:
    """Return the sides that are comparable with the first, aligned; note the others.

    DumpError if none is.
    """
    first, *others = candidates
    sides, errors = [first], []
    for side in others:
        try:
            pairs_of(align([first, side]))
            sides.append(side)
        except DumpError as error:
            errors.append(error)
            notes.append(f"'{side.name}' is left out: {error}")
    if len(sides) < 2:
        raise errors[0]
    return align(sides)


def _store(
    target: Store,
    servers: list[Server],
    probed: ProbeResult,
    request: ProbeRequest,
    what: str = "",
) -> list[str]:
    """Store the answers as a run, a walk and the axes of state as others, with the verdict of each
    pair.

    Return the ids.
    """
    state = probed.state
    axes = [] if state is None else [state.cold, *state.sides.values()]
    parts = {what: probed.sides, ", walk": probed.walks, _STATE: axes}
    comparable = {
        part: _comparable(candidates, probed.notes)
        for part, candidates in parts.items()
        if candidates
    }
    hosts = " and ".join(urlsplit(server.client.url).netloc for server in servers)
    kinds = " and ".join(dict.fromkeys(server.describe() for server in servers))
    title = request.name or f"{kinds}, at {hosts}"
    versions = {server.kind.name: server.version for server in servers if server.version}
    sent = f"Probed {hosts} with {servers[0].client.budget.requests_sent:,} requests."
    models = dict.fromkeys(server.model for server in servers if server.model)
    origin = Provenance(
        "upload",
        " and ".join(models),
        # shortened: anyone who may see the run sees its command
        command=request.to_store().typed(),
        note=" ".join([sent, *probed.notes]),
        versions=versions,
    )
    run_ids = []
    for part, sides in comparable.items():
        if state is not None and part == _STATE:
            sides, pairs, verdicts = judge_state(state, sides)
        else:
            pairs = pairs_of(sides)
            verdicts = judge_probe(sides, pairs)
        run_ids.append(write_responses(target, title + part, origin, sides, pairs, verdicts))
    return run_ids
