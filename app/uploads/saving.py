"""Saving of uploads as runs: a job in a process of its own takes each in; the upload goes when its run is there, and
stays when it is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

from app.shell.jobs import Job, Jobs
from app.uploads import ingest_jobs
from app.uploads.partial_file import Upload, held
from app.uploads.spool import Spool
from core.errors import UlpscopeError


def save(
    jobs: Jobs, spool: Spool, uploads: Sequence[Upload], *, title: str, options: Mapping[str, str | None], who: str
) -> Job:
    """Begin to make a run of one upload, or of two that are a pair. UploadError (423) where it is being saved already.

    Until the job is over the uploads' locks are held, by this process. So a job that fails or is cancelled, or a server
    that is killed, leaves the uploads as they were, to be saved again.
    """
    with ExitStack() as acquired:
        for upload in uploads:
            acquired.enter_context(held(upload.directory))
        paths = [spool.finished(upload.upload_id, upload.owner) for upload in uploads]
        locks = acquired.pop_all()

    def over(job: Job) -> None:
        locks.close()
        for upload in uploads if job.run_id else ():
            with suppress(UlpscopeError):
                spool.remove(upload)

    try:
        return ingest_jobs.begin(jobs, paths, title=title, options=options, who=who, on_over=over)
    except BaseException:
        locks.close()
        raise
