"""Changes that viewers make in the store, by runs, labels and jobs: each asks who it is and is logged."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from app.hosting import members
from app.shell import link
from app.shell.jobs import Job, Jobs, PromptFile
from app.shell.once import Once
from app.shell.store_cache import leaving, store
from core.runs.store import labels
from core.text import shown

_audit = logging.getLogger("ulpscope.audit")


@Once
def jobs() -> Jobs:
    """The captures of this server, one list for all viewers."""
    return Jobs(store().directory)


def label(run_id: str, seen: labels.Labels, wanted: labels.Labels) -> None:
    """Change the labels of a run that a viewer has `seen`; what had to be put aside for that, or stands beside it, is
    said.
    """
    who = members.changing_member()
    changed = store().label(run_id, wanted, seen)
    _audit.info("%a labelled run %a", who, run_id)
    if changed.aside:
        link.complain(f"The damaged labels of run '{shown(run_id, 60)}' were put aside as {shown(changed.aside, 60)}.")
    if changed.has_both_notes:
        link.complain("Somebody else changed the note while you wrote yours: both are kept, one below the other.")


def delete(run_id: str) -> None:
    """Delete a run for good and let go of its file, or the disk would not get its space back."""
    who = members.changing_member()
    with leaving(store().path_of(run_id)):
        store().delete(run_id)
    _audit.info("%a deleted run %a for good", who, run_id)


def discard(run_id: str) -> str:
    """Move a run into the trash; returns the entry. Its file is let go of, for the day on which the trash is
    emptied.
    """
    who = members.changing_member()
    with leaving(store().path_of(run_id)):
        entry = store().discard(run_id)
    _audit.info("%a deleted run %a", who, run_id)
    return entry


def restore(entry: str) -> str:
    """Put a discarded run back; returns its id."""
    who = members.changing_member()
    run_id = store().restore(entry)
    _audit.info("%a restored run %a", who, run_id)
    return run_id


def purge(entry: str) -> None:
    """Remove a discarded run for good."""
    who = members.changing_member()
    if store().purge_trash(entry=entry):
        _audit.info("%a deleted %a for good", who, entry)


def submit(
    arguments: Sequence[str],
    *,
    title: str,
    device: str,
    prompts: PromptFile | None = None,
    secrets: Mapping[str, str] | None = None,
    judges: str = "",
) -> Job:
    """Line up a job of this server for whoever looks at the page; see Jobs.submit. judges: the run that the job's run
    replaces in lists.
    """
    who, where = members.changing_member(), store()

    def replace_in_lists(job: Job) -> None:
        if judges and job.run_id and not job.message:
            where.mark_judged(judges, job.run_id)

    job = jobs().submit(
        arguments, title=title, device=device, prompts=prompts, who=who, secrets=secrets, on_over=replace_in_lists
    )
    _audit.info("%a started job %d: %s", who, job.number, arguments[0])
    return job


def cancel(number: int) -> None:
    """Stop a job of anybody's."""
    who = members.changing_member()
    if jobs().cancel(number):
        _audit.info("%a canceled job %d", who, number)


def forget(number: int) -> None:
    """Take a finished job off the list."""
    members.changing_member()
    jobs().forget(number)
