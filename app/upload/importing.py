"""Import of uploaded files: each run by a process of its own, one after another."""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime
from importlib import import_module
from threading import Thread

from anyio import to_thread
from msgspec.structs import replace

from app.shell import store_changes
from app.shell.jobs import TAKING_IN, Job, Jobs
from app.upload.spool import DONE, FAILED, IMPORTING, RECEIVED, Upload, purge
from core.errors import UlpscopeError, UsageError
from core.numerics.formats import format_named
from core.runs.dumps.dump import check_holds
from core.runs.importing import is_run_file
from core.runs.store.store import open_store
from core.text import clean

_audit = logging.getLogger("ulpscope.audit")
_log = logging.getLogger(__name__)

OPTIONS = ("name", "model", "compute_dtype", "reference", "holds", "tokenizer")
LONGEST_TEXT = 200  # characters of an option
_MOST_LISTED = 100  # imports that are over


def check_options(options: Mapping[str, str | None]) -> dict[str, str]:
    """Return the options that are set; UsageError for a value that means nothing."""
    values = {key: value.strip() for key, value in options.items() if value and value.strip()}
    for key, value in values.items():
        if len(value) > LONGEST_TEXT or not value.isprintable():
            requirement = f"expected at most {LONGEST_TEXT}, all printable"
            raise UsageError(f"{key} has {len(value)} characters; {requirement}.")
    if "compute_dtype" in values:
        format_named(values["compute_dtype"])
    check_holds(values.get("holds"))
    return values


def start_import(
    jobs: Jobs,
    uploads: Sequence[Upload],
    options: Mapping[str, str | None],
    member: str,
    exact: Upload | None = None,
) -> Job:
    """Start to import one upload, or several as the sides of one run; UsageError if one has not
    arrived whole. exact: with the exact result of the sides.

    Their locks are held until the job is over. A file is removed once its run is stored, so it can
    be imported again after a failure.
    """
    values = check_options(options)
    if exact:
        uploads = [*uploads, exact]
    with ExitStack() as stack:
        records, paths = [], []
        for upload in uploads:
            stack.enter_context(upload.hold())
            record = upload.record(is_held=True)
            if not record or record.state not in (RECEIVED, FAILED):
                raise UsageError(
                    f"upload '{clean(upload.upload_id)}' is not a whole file that waits to be"
                    " imported.",
                )
            records.append(record)
            paths.append(upload.path(record).absolute())
        if exact:
            values["exact"] = str(paths.pop())
        is_run = any(is_run_file(path) for path in paths)
        if is_run and (len(paths) > 1 or set(values) - {"name"}):
            raise UsageError("a run file is imported alone, and only its name can be chosen.")
        # values follow `=`, so none is taken for an option
        command = [f"--{key.replace('_', '-')}={value}" for key, value in values.items()]
        title = values.get("name") or " + ".join(path.stem for path in paths)
        run_id = jobs.store.new_run_id(title, datetime.now(UTC))
        for upload, record in zip(uploads, records, strict=True):
            upload.write(replace(record, state=IMPORTING, run=title, run_id=run_id, message=""))
        locks = stack.pop_all()

    def end(job: Job) -> None:
        with locks:
            state, message = FAILED, job.message
            if job.state == "done":
                _audit.info("%a uploaded run %a", member, job.run_id)
                state, message = DONE, ""
            for upload in uploads:
                record = upload.read()
                # the upload may have been removed meanwhile
                if record and record.run_id == run_id:
                    upload.write(replace(record, state=state, message=message))
                    if state == DONE:
                        upload.path(record).unlink(missing_ok=True)

    arguments = ["ingest", *command, *map(str, paths), f"--run-id={run_id}"]
    try:
        job = jobs.submit(arguments, title=title, device=TAKING_IN, reserved=run_id, on_over=end)
    except BaseException:
        locks.close()
        raise
    over = [each for each in jobs.all("upload") if each.is_over]
    for old in over[_MOST_LISTED:]:
        jobs.forget(old.number)
    return job


@asynccontextmanager
async def lifespan(_: object) -> AsyncIterator[None]:
    """Remove at the server's start what a killed one left behind, and load the first page before a
    browser asks.
    """
    await to_thread.run_sync(_tidy)
    # with pandas, 0.2 s
    Thread(target=import_module, args=("app.gallery.table",), daemon=True).start()
    yield


def _tidy() -> None:
    try:
        # sweeps the store; made here, so that two first viewers get the same list
        store_changes.jobs()
        purge(open_store())
    except (UlpscopeError, OSError) as error:
        _log.error("sweep: %s", error)
