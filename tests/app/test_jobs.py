"""Jobs: real processes of the real command line."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from app.jobs import Job, Jobs

SHAPES = ("--prompt-file", "sample_runs/prompts/shapes.txt")


@pytest.fixture
def jobs(tmp_path):
    made = Jobs(tmp_path / "runs")
    yield made
    made.stop()


def wait(jobs: Jobs, number: int, until: Callable[[Job], bool], seconds: float = 120) -> Job:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        job = next(job for job in jobs.all() if job.number == number)
        if until(job):
            return job
        time.sleep(0.05)
    raise AssertionError(f"still {job}")


@pytest.mark.model
def test_a_capture_runs_tells_its_progress_and_leaves_a_run(jobs, tmp_path):
    arguments = ["capture", "--model", "sample_runs/model", *SHAPES, "--variant", "decode"]
    job = jobs.submit(arguments, title="a pair", device="cpu")
    running = wait(jobs, job.number, lambda j: j.rows_done > 0)
    assert running.rows_total == 2 * 152
    done = wait(jobs, job.number, lambda j: j.is_over)
    assert done.state == "done", done.message
    assert done.share == 1.0
    assert [path.stem for path in (tmp_path / "runs").glob("*.duckdb")] == [done.run_id]


@pytest.mark.model
def test_a_cancelled_capture_stops_and_leaves_nothing(jobs, tmp_path):
    arguments = ["capture", "--model", "sample_runs/model", "--prompt-file", "sample_runs/prompts/scheduler.txt"]
    job = jobs.submit([*arguments, "--reference", "decode", "--variant", "decode+batch:16"], title="long", device="cpu")
    after = jobs.submit(["capture", "--model", "no/such/model", "--prompt", "x"], title="next", device="cpu")
    wait(jobs, job.number, lambda j: j.rows_done > 0)
    assert wait(jobs, after.number, lambda j: True).state == "waiting"  # one at a time on a device
    jobs.cancel(job.number)
    assert wait(jobs, job.number, lambda j: j.is_over).state == "cancelled"
    failed = wait(jobs, after.number, lambda j: j.is_over)
    assert failed.state == "failed"
    assert "no/such/model" in failed.message
    assert "Traceback" not in failed.message
    assert not list((tmp_path / "runs").glob("*.duckdb"))


def test_a_waiting_job_can_be_cancelled_and_a_finished_one_dismissed(jobs):
    first = jobs.submit(["capture", "--model", "no/such/model", "--prompt", "x"], title="first", device="cpu")
    second = jobs.submit(["capture", "--model", "no/such/model", "--prompt", "x"], title="second", device="cpu")
    jobs.cancel(second.number)
    assert wait(jobs, second.number, lambda j: j.is_over).state == "cancelled"
    wait(jobs, first.number, lambda j: j.is_over)
    jobs.forget(first.number)
    assert [job.number for job in jobs.all()] == [second.number]


def test_the_command_of_a_job_can_be_copied():
    job = Job(1, "t", "cpu", ("capture", "--prompt=def f(x):\n  return 'x'"))
    assert job.command == """python -m core capture '--prompt=def f(x):\n  return '"'"'x'"'"''"""


def test_what_is_left_is_estimated_from_what_is_done():
    assert Job(1, "t", "cpu", (), rows_done=25, rows_total=100, seconds=10).seconds_left == pytest.approx(30)
    assert Job(1, "t", "cpu", ()).seconds_left is None


def test_a_process_that_cannot_be_understood_ends_in_a_sentence(jobs):
    job = jobs.submit(["nonsense"], title="odd", device="cpu")
    failed = wait(jobs, job.number, lambda j: j.is_over)
    assert failed.state == "failed"
    assert "nonsense" in failed.message


def test_numbers_are_never_used_twice(jobs):
    first = jobs.submit(["nonsense"], title="first", device="cpu")
    wait(jobs, first.number, lambda j: j.is_over)
    jobs.forget(first.number)
    assert jobs.submit(["nonsense"], title="second", device="cpu").number == first.number + 1


def test_a_job_that_cannot_even_start_does_not_hold_up_the_next(jobs):
    broken = jobs.submit(["capture", "--prompt=a\x00b"], title="a NUL", device="cpu")
    after = jobs.submit(["nonsense"], title="after", device="cpu")
    assert "could not be run" in wait(jobs, broken.number, lambda j: j.is_over).message
    assert "nonsense" in wait(jobs, after.number, lambda j: j.is_over).message


def test_stopping_starts_nothing_more(jobs):
    running = jobs.submit(["capture", "--model", "no/such/model", "--prompt", "x"], title="running", device="cpu")
    waiting = jobs.submit(["nonsense"], title="waiting", device="cpu")
    wait(jobs, running.number, lambda j: j.state == "running")
    jobs.stop()
    time.sleep(0.5)
    assert wait(jobs, waiting.number, lambda j: True).state == "waiting"


@pytest.mark.parametrize("text", ["5", "null", "[1]", "plain words", ""])
def test_lines_that_are_no_object_of_json_mean_nothing(text):
    from app.jobs import _object

    assert _object(text) == {}
    assert _object('{"stage": "x"}') == {"stage": "x"}
