"""A run as the JSON that the command line prints and the HTTP API answers: one shape for both."""

from dataclasses import asdict

import msgspec

from ...numerics.arrays import Record
from ...text import clean
from ..ops_run import OpsRun
from ..queries.caches import caches_json
from ..queries.choices import choices_json
from ..reader import RunReader
from ..requests import repeat_command
from ..store.cards import RunCard
from .report_json import as_json, plain_number, report_of_run

_LONGEST_STATED = 2000  # characters
_FLOATS = ("max_neq_share", "max_row_ulps", "rms_row_ulps", "noise_ratio")  # of a card


def card_json(card: RunCard) -> Record:
    """Card of one run of a list, as JSON."""
    sizes = {name: plain_number(getattr(card, name)) for name in _FLOATS}
    return {**msgspec.to_builtins(card), **sizes, "created": card.created.isoformat() + "Z"}


def provenance_json(run: RunReader) -> Record:
    """Provenance of a run, with its id, name and time; `command` is made of its request."""
    header = run.header
    about = asdict(header.provenance)
    return {
        "run_id": run.run_id,
        "name": header.name,
        "created": run.created.isoformat() + "Z",
        "kept": header.keep,
        **about,
        **_commands(about["command"], repeat_command(header.provenance)),
    }


def _commands(stated: str, command: str) -> dict[str, str]:
    """`command`: made here of typed options, '' if there are none; then `stated_command`: what the
    file's author says it was, which must not be run unread.
    """
    commands = {"command": command}
    if stated and not command:
        commands["stated_command"] = clean(stated, _LONGEST_STATED)
    return commands


def run_json(run: RunReader, *, with_positions: bool = False) -> Record:
    """Provenance, sides, the report of the first pair, caches, choices and
    continuations; figures of every position if asked.
    """
    header = run.header
    if with_positions:
        header.check_short()
    # only rows of the first pair are in the report, and those of all would be read
    pairs, classes = report_of_run(run, only=0)
    report = as_json(pairs, classes, header, with_positions=with_positions)
    verdicts = [
        {
            "variant": pair.variant,
            "verdict": pair.verdict,
            "because": pair.because,
            "noise_ratio": plain_number(pair.noise_ratio),
            "first_place": pair.first_place,
        }
        for pair in run.pairs
    ]
    sides = [asdict(side) for side in run.sides]
    if header.is_list:
        sides = [
            {"name": side.name, "holds": side.holds, "k": side.k, "sha256": side.sha256}
            for side in run.sides
        ]
    return {
        **provenance_json(run),
        "sides": sides,
        **report,
        "verdicts": verdicts,
        "kv": [caches_json(run, pair) for pair in sorted(run.pairs_with_kv)],
        "choices": [choices_json(run, pair) for pair in sorted(run.pairs_with_choices)],
        "generations": list(map(asdict, run.generations.values())),
    }


def ops_json(run: OpsRun) -> Record:
    """Probes of operations: what the run says of itself, and its rows."""
    about = run.header
    created = about.created and about.created.isoformat() + "Z"
    result: Record = {"run_id": run.run_id} if run.run_id else {}
    result |= asdict(about) | _commands(about.command, "")
    return result | {"created": created, "rows": run.rows}
