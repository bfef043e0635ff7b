"""Files that become runs: each by a process of its own, one after another, whoever brought them and whether or not they
still look.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from app.shell.jobs import TAKING_IN, Job, Jobs
from app.uploads import ingest_status
from core.configuration import configuration
from core.errors import LimitError, StoreError, UsageError
from core.numerics.formats import format_named
from core.runs.dumps.dump import check_holds
from core.runs.importing import is_run_file
from core.runs.store.partial import Partial
from core.runs.store.store import Store, is_run_id
from core.text import file_name, shown, visible

_audit = logging.getLogger("ulpscope.audit")

OPTIONS = ("name", "model", "compute_dtype", "reference", "holds", "known_dtype")
MOST_WAITING = 64  # jobs not over; a file more is refused
_MOST_KEPT = 100  # jobs that are over and can still be asked after
LONGEST_TEXT = 200  # characters of a name or model


def begin(
    jobs: Jobs,
    paths: Sequence[Path],
    *,
    title: str,
    options: Mapping[str, str | None],
    who: str,
    on_over: Callable[[Job], None] | None = None,
    place: Partial | None = None,
) -> Job:
    """Line up `ulpscope ingest PATHS`, or `adopt` for one run file, with `options` (those of OPTIONS; empty ones
    count as none).

    The files are moved away and belong to the job: they are gone when it is over, however it ended. With `on_over` they
    stay where they are, the caller's, who is told when the job no longer needs them. place: a directory of `receiving`
    that they lie in already. The job knows the id its run will have (`reserved`). LimitError where too many are
    waiting, UsageError for an option that means nothing.
    """
    chosen = checked(options)
    if place is None and on_over is None:
        place = receiving(jobs)
    try:
        _refuse_too_many(jobs)
        if place is not None:
            paths = [_moved(path, place, number) for number, path in enumerate(paths)]
        command = _command([path.absolute() for path in paths], chosen)
        name = chosen.get("name") or " + ".join(path.stem for path in paths)
        reserved = reserved_in(place) if place is not None else jobs.store.new_run_id(name, datetime.now(UTC))

        def over(job: Job) -> None:
            if job.state == "done":
                _audit.info("%a uploaded run %a", who, job.run_id)
            if on_over is not None:
                on_over(job)

        job = jobs.submit(
            [*command, f"--run-id={reserved}"],
            title=title,
            device=TAKING_IN,
            place=place,
            reserved=reserved,
            who=who,
            on_change=ingest_status.teller(jobs.store.directory),
            on_over=over,
        )
        ingest_status.forget_old(jobs.store.directory)
    except BaseException:
        if place is not None:
            place.remove()
        raise
    for old in [each for each in jobs.ingests() if each.is_over][_MOST_KEPT:]:
        jobs.forget(old.number)
    return job


def receiving(jobs: Jobs, name: str = "upload") -> Partial:
    """A directory in the store for files that arrive, which no reader looks at and which a sweep removes should this
    server be killed.

    Its name holds the id of the run that they will become, so that no other process hands out the same. LimitError
    (503) where as many as may arrive at once do.
    """
    most, there = configuration().limits.uploads, sum(1 for _ in jobs.store.directory.glob(".partial-incoming-*"))
    if most and there >= most:
        raise LimitError(
            f"{there} files are arriving or waiting, as many as this server takes at once (limits.uploads); try again"
            " later.",
            503,
        )
    for _ in range(100):
        run_id = jobs.store.new_run_id(name, datetime.now(UTC))
        if not (jobs.store.directory / f"{run_id}.duckdb").exists():
            return jobs.store.new_partial(name, datetime.now(UTC), f"incoming-{run_id}")
    raise StoreError(f"no id is left for a run called '{name}'.")


def reserved_in(place: Partial) -> str:
    """The id of the run that a directory of `receiving` is for."""
    return place.path.stem.removeprefix("incoming-")


def is_arriving(store: Store, run_id: str) -> bool:
    """Return whether any process that shares the store is taking in this run."""
    return is_run_id(run_id) and any(
        (store.directory / f".partial-{kind}{run_id}").is_dir() for kind in ("incoming-", "")
    )


def checked(options: Mapping[str, str | None]) -> dict[str, str]:
    """The options that say something. UsageError for one that is unknown, too long, or of no meaning."""
    unknown = set(options) - set(OPTIONS)
    if unknown:
        raise UsageError(f"'{shown(min(unknown))}' is no option of a file; there are {', '.join(OPTIONS)}.")
    chosen = {key: value.strip() for key, value in options.items() if value and value.strip()}
    for key, value in chosen.items():
        if len(value) > LONGEST_TEXT or not value.isprintable():
            raise UsageError(
                f"the {key.replace('_', ' ')} has {len(value)} characters; expected at most {LONGEST_TEXT}, all"
                " printable."
            )
    for key in {"compute_dtype", "known_dtype"} & set(chosen):
        format_named(chosen[key])
    check_holds(chosen.get("holds"))
    return chosen


def _refuse_too_many(jobs: Jobs) -> None:
    waiting = sum(not job.is_over for job in jobs.ingests())
    if waiting >= MOST_WAITING:
        raise LimitError(
            f"{waiting} files are waiting to be taken in, as many as this server lines up; try again later.", 503
        )


def _command(paths: list[Path], chosen: dict[str, str]) -> list[str]:
    """Arguments of the job's command. Values stand behind `=`, so that none is taken for an option."""
    if any(is_run_file(path) for path in paths):
        if len(paths) > 1:
            raise UsageError("a run file is taken in by itself, not beside another file.")
        strange = sorted(set(chosen) - {"name"})
        if strange:
            raise UsageError(f"a run file has its own {strange[0].replace('_', ' ')}; only its name can be chosen.")
        return ["adopt", *(f"--{key}={value}" for key, value in chosen.items()), str(paths[0])]
    return ["ingest", *(f"--{key.replace('_', '-')}={value}" for key, value in chosen.items()), *map(str, paths)]


def _moved(path: Path, place: Partial, number: int) -> Path:
    """Move a file into the job's own directory, a folder each: the names of a pair of files become the names of its
    sides, and may be equal.
    """
    if place.directory in path.parents:
        return path
    target = place.directory / str(number) / (file_name(path.name) or "dump")
    try:
        target.parent.mkdir()
        path.rename(target)
    except OSError as error:
        raise StoreError(f"{visible(path.name)}: cannot be moved into the store ({error.strerror}).") from error
    return target
