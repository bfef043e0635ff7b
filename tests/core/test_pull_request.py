"""The GitHub Action and its comment, against a local server that stands for GitHub."""

import json
import os
import subprocess
import xml.etree.ElementTree as ET
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from PIL import Image

from tests.core.conftest import environment
from tests.core.probing.odd_server import asked_of, listening, reply
from tests.shell import ROOT, command_in, steps_in

MARKER = "<!-- ulpscope gate: logits -->\n"


class GitHub:
    """Pull request 7 of the repository o/r with 120 comments. status: of every answer to a write,
    if it is an error.
    """

    def __init__(self):
        self.comments = []
        self.status = 0
        self.address = ""
        for number in range(120):
            self.add(f"comment {number}", "User")

    def add(self, body, kind="Bot"):
        id_ = len(self.comments)
        user = {"login": "reviewer", "type": kind}
        comment = {
            "id": id_,
            "body": body,
            "user": user,
            "author_association": "NONE",
            "html_url": f"http://c/{id_}",
        }
        self.comments.append(comment)
        return comment

    def handle(self, handler):
        address = urlsplit(handler.path)
        of_pull_request = "/repos/o/r/issues/7/comments"
        if handler.command == "GET":
            assert address.path == of_pull_request
            assert handler.headers["Authorization"] == "Bearer secret"
            query = parse_qs(address.query)
            size = int(query["per_page"][0])
            page = int(query["page"][0])
            reply(handler, self.comments[size * (page - 1) : size * page])
            return
        body = asked_of(handler)["body"]
        if self.status:
            reply(handler, {"message": "Resource not accessible by integration"}, self.status)
        elif handler.command == "PATCH":
            number = address.path.removeprefix("/repos/o/r/issues/comments/")
            comment = self.comments[int(number)]
            comment["body"] = body
            reply(handler, comment)
        else:
            assert address.path == of_pull_request
            reply(handler, self.add(body), 201)


@pytest.fixture
def github():
    server = GitHub()
    with listening(server.handle) as server.address:
        yield server


@pytest.fixture
def job(github, tmp_path, monkeypatch):
    """Set the variables of a job on pull request 7; return the event's file."""
    event = tmp_path / "event.json"
    pull_request = {"number": 7, "head": {"sha": "ab" * 20}}
    event.write_text(json.dumps({"action": "synchronize", "pull_request": pull_request}))
    variables = {
        "EVENT_PATH": str(event),
        "REPOSITORY": "o/r",
        "RUN_ID": "5",
        "TOKEN": "secret",
        "SERVER_URL": "http://g",
        "API_URL": github.address,
    }
    for name, value in variables.items():
        monkeypatch.setenv(f"GITHUB_{name}", value)
    return event


def test_a_gate_has_one_comment_which_later_jobs_update(cli, github, job, tmp_path):
    # only a bot's comment is the gate's own, whatever its text says
    github.comments[110]["body"] = MARKER + "planted by a stranger"
    report = tmp_path / "gate.md"
    for text in ("### first\n", "### second\n"):
        report.write_text(text)
        done = cli("comment", report, "--artifact", "http://g/files").succeeded()
        assert done.stdout == "http://c/120\n"
    assert cli("comment", report, "--name", "other gate").stdout == "http://c/121\n"
    assert len(github.comments) == 122
    footer = (
        f"\nCommit {'ab' * 20} · [job](http://g/o/r/actions/runs/5)"
        " · [files, with a picture](http://g/files)\n"
    )
    assert github.comments[120]["body"] == MARKER + "### second\n" + footer
    assert github.comments[110]["body"] == MARKER + "planted by a stranger"
    report.unlink()
    cli("comment", report)
    assert "gate: no result" in github.comments[120]["body"]


@pytest.mark.parametrize("status", [403, 500])
def test_a_comment_that_github_refuses_is_a_warning(cli, github, job, tmp_path, status):
    github.status = status
    done = cli("comment", tmp_path / "gate.md").succeeded()
    assert len(github.comments) == 120
    assert done.stdout.startswith("::warning title=ULPscope::GitHub refuses the token's comment")
    assert ("pull-requests: write" in done.stdout) == (status == 403)
    assert "secret" not in done.stdout + done.stderr


def test_a_push_has_no_comment_and_a_broken_event_is_a_warning(cli, github, job, tmp_path):
    job.write_text('{"ref": "refs/heads/main"}')
    assert cli("comment", tmp_path / "gate.md").stdout == "no pull request, so no comment.\n"
    job.write_text("{")
    done = cli("comment", tmp_path / "gate.md")
    assert done.stdout.startswith("::warning title=ULPscope::GITHUB_EVENT_PATH")
    assert len(github.comments) == 120


def test_a_comment_is_cut_at_a_line_to_what_github_takes(cli, github, job, tmp_path):
    line = f"| {'é' * 996} |"
    (tmp_path / "gate.md").write_text(f"{line}\n" * 100)
    cli("comment", tmp_path / "gate.md")
    body = github.comments[-1]["body"]
    rows = [each for each in body.splitlines() if each.startswith("|")]
    # GitHub counts characters and not bytes
    assert len(body) <= 65_536
    assert len(rows) == 65
    assert set(rows) == {line}


def _run_action(folder, inputs):
    """Run the `run` steps of action.yml with an installed command; return exit code and output of
    each.
    """
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    assert set(inputs) <= set(action["inputs"])
    command_in(folder / "bin")
    variables = {
        "GITHUB_OUTPUT": folder / "output",
        "GITHUB_STEP_SUMMARY": folder / "summary.md",
        "GITHUB_TOKEN": "secret",
        "RUNNER_TEMP": folder,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
    }
    values = {}
    for name, each in action["inputs"].items():
        values[f"inputs.{name}"] = inputs.get(name, each.get("default", ""))
    results = {}
    for step in action["runs"]["steps"]:
        if "run" in step:
            own = {name: values.get(text.strip("${ }"), "") for name, text in step["env"].items()}
            given = {
                **os.environ,
                **environment(folder),
                **own,
                **{k: str(v) for k, v in variables.items()},
            }
            shell = [
                "bash",
                "--noprofile",
                "--norc",
                "-eo",
                "pipefail",
                "-c",
                step["run"],
            ]
            done = subprocess.run(
                shell,
                cwd=ROOT,
                env=given,
                capture_output=True,
                text=True,
            )
            results[step["name"]] = done.returncode, done.stdout + done.stderr
            # what a step writes here, later steps read
            if (folder / "output").exists():
                for line in (folder / "output").read_text().splitlines():
                    name, _, value = line.partition("=")
                    values[f"steps.gate.outputs.{name}"] = value
    return results


def test_the_artifact_holds_the_run_that_the_comment_names(github, job, tmp_path):
    _run_action(tmp_path, {"files": "tests/cases/flips_fp16.npz"})
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    (upload,) = [step for step in steps if "upload-artifact" in step.get("uses", "")]
    (folder,) = tmp_path.glob("ulpscope.*")
    patterns = upload["with"]["path"].replace("${{ steps.gate.outputs.folder }}/", "").split()
    uploaded = {path.name for pattern in patterns for path in folder.glob(pattern)}
    (run,) = folder.glob("store/*.duckdb")
    assert {run.name, "gate.md", "report.html"} <= uploaded
    assert github.comments[120]["body"].count("verdict")


def test_the_documented_workflow_comments_and_leaves_summary_and_junit(github, job, tmp_path):
    inputs = steps_in("gates.md")[-1]["with"]
    results = _run_action(tmp_path, inputs)
    assert [code for code, _ in results.values()] == [0, 0, 0], results
    (junit,) = tmp_path.glob("ulpscope.*/gate.xml")
    assert junit.with_name("report.html").read_bytes().startswith(b"<!doctype html>")
    assert Image.open(junit.with_name("report.png")).size == (800, 620)
    tests = ET.parse(junit).getroot().iter("testcase")
    conditions = [test.attrib["name"] for test in tests]
    assert ",".join(conditions) == inputs["fail-on"]
    summary = (tmp_path / "summary.md").read_text()
    assert "### ULPscope gate: passed" in summary
    assert github.comments[120]["body"].startswith(MARKER + summary)


@pytest.mark.parametrize(
    ("files", "code"),
    [("none.npz", 2), ("tests/cases/flips_fp16.npz 'unclosed", 1)],
)
def test_a_gate_without_a_run_fails_and_its_comment_says_so(github, job, tmp_path, files, code):
    results = _run_action(tmp_path, {"files": files})
    assert [each for each, _ in results.values()] == [0, code, 0], results
    assert "gate: no result" in github.comments[120]["body"]


def test_a_gate_whose_command_crashes_ends_with_a_sentence(github, job, tmp_path, monkeypatch):
    # Python ends with 1, as with a traceback
    monkeypatch.setenv("PYTHONHASHSEED", "none")
    code, log = _run_action(tmp_path, {"files": "tests/cases/flips_fp16.npz"})["Gate"]
    assert (code, log.count("Fatal Python error")) == (1, 1), log
    assert "No run to gate: ulpscope ended with exit code 1." in log
