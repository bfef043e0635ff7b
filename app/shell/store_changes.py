"""Changes of members in the store: runs, labels and jobs. Each is authorized and logged."""

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

from app.hosting import members
from app.shell import selection
from app.shell.jobs import Job, Jobs
from app.shell.store_cache import close, store
from core.capture_request import CaptureRequest
from core.runs.store import labels
from core.runs.store.store import SUFFIX

_audit = logging.getLogger("ulpscope.audit")


@cache
def jobs() -> Jobs:
    """Return the jobs of this server, one list for all viewers."""
    return Jobs(store().directory)


def label(run_id: str, old: labels.Labels, new: labels.Labels) -> None:
    """Change the labels of a run. old: those that the member saw."""
    who = members.changing_member()
    stored = store().label(run_id, new, old)
    _audit.info("%a labeled run %a", who, run_id)
    if new.note and new.note not in (old.note, stored.note):
        selection.complain(
            "Another member changed the note meanwhile. Both are stored, yours second.",
        )


def delete(run_id: str) -> None:
    """Delete a run; `restore` brings it back within a week."""
    who = members.changing_member()
    store().delete(run_id)
    _audit.info("%a deleted run %a", who, run_id)


def restore(run_id: str) -> None:
    who = members.changing_member()
    store().restore(run_id)
    _audit.info("%a restored run %a", who, run_id)


def purge(run_id: str) -> None:
    """Remove a deleted run for good."""
    who = members.changing_member()
    close(store().directory / f"{run_id}{SUFFIX}")
    store().purge(run_id)
    _audit.info("%a deleted run %a for good", who, run_id)


def submit(work: Sequence[str] | CaptureRequest, *, judges: str = "", **about: Any) -> Job:
    """Line up a job, see Jobs.submit. judges: the run that the job's run replaces in lists."""
    who = members.changing_member()
    runs = store()

    def replace_in_lists(job: Job) -> None:
        if judges and job.run_id and not job.message:
            runs.mark_judged(judges, job.run_id)

    job = jobs().submit(work, on_over=replace_in_lists, **about)
    _audit.info("%a started job %d: %s", who, job.number, job.arguments[0])
    return job


def cancel(number: int) -> None:
    """Cancel a job of any member."""
    who = members.changing_member()
    if jobs().cancel(number):
        _audit.info("%a canceled job %d", who, number)


def forget(*numbers: int) -> None:
    """Take finished jobs off the list."""
    members.changing_member()
    for number in numbers:
        jobs().forget(number)
