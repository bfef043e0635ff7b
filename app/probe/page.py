"""Probe: ask a live server the same in several ways; watch, cancel, open what it sent."""

from app.probe import form
from app.shell import selection, store_changes
from app.shell.job_list import job_list


def draw(_: selection.View | None) -> None:
    """Draw the tab."""
    jobs = store_changes.jobs()
    form.draw()
    job_list(jobs, "probe")
