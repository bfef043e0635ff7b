"""`skill` is true, and the tools of `mcp`, called by the client of MCP's own SDK, answer what
commands print.
"""

import itertools
import json
import re
import shlex
import sys

import anyio
import numpy as np
import pytest
import yaml
from mcp import Client, StdioServerParameters
from mcp.server.mcpserver.exceptions import ToolError

from core.commands import agent_tools
from core.errors import UsageError
from core.text import is_seen, legible
from tests.core.conftest import environment
from tests.core.runs.damaging import with_texts
from tests.places import CASES, ROOT, RUNS
from tests.test_documented_commands import parse

FLIPS = str(CASES / "flips_fp16.npz")
SKILL = (ROOT / "core" / "skill.md").read_text(encoding="utf-8")
ORDERS = "\x1b]0;owned\x07\u202e"


def test_every_command_and_field_of_the_skill_is_there(cli, monkeypatch, tmp_path):
    """On sample runs, and on logits of which one side has another temperature."""
    monkeypatch.setenv("ULPSCOPE_SAMPLES", str(RUNS))
    assert cli("skill").stdout == SKILL
    assert yaml.safe_load(SKILL.split("---\n")[1]).keys() == {"name", "description"}
    logits = np.random.default_rng(0).normal(0, 3, (40, 64)).astype(np.float32)
    np.savez(tmp_path / "A.npz", logits)
    np.savez(tmp_path / "B.npz", logits * np.float32(0.8))
    cli("ingest", tmp_path / "A.npz", tmp_path / "B.npz", "--run-id", "heated")
    questions = re.findall(r"^\| .+? \| `(ulpscope .+?)` \| (.+) \|$", SKILL, re.M)
    assert len(questions) == 10
    for command, fields in questions:
        parse(command)
        words = shlex.split(command)[1:]
        run = {"show": "where-it-starts", "explain": "heated"}.get(words[0], "injected-bug")
        values = {
            "RUN": run,
            "NAME": "another_requests_block",
            "A": tmp_path / "A.npz",
            "B": tmp_path / "B.npz",
        }
        report = cli(*(values.get(word, word) for word in words)).json
        for field in re.findall(r"`([^`]+)`", fields):
            assert values_at(report, field), (command, field)
    with pytest.raises(KeyError):
        values_at(report, "runs[].id")


def values_at(report, field):
    """Values at `pairs[].verdict`; KeyError for a field that is not there."""
    reports = [report]
    for name in field.replace("[]", ".[]").strip(".").split("."):
        if name == "[]":
            reports = list(itertools.chain(*reports))
        else:
            reports = [one[name] for one in reports]
    return reports


def answers_of(folder, *calls):
    """JSON of each call of one session with a server, or the text of its error."""
    # temporary runs are made there, where the test sees what is left of them
    variables = environment(folder) | {"ULPSCOPE_SAMPLES": str(RUNS), "TMPDIR": str(folder)}
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "core", "mcp"],
        env=variables,
        cwd=ROOT,
    )

    async def talk():
        async with Client(server) as client:
            for tool in (await client.list_tools()).tools:
                assert tool.annotations.read_only_hint
                assert all(
                    argument.get("description")
                    for argument in tool.input_schema["properties"].values()
                ), tool
            results = [await client.call_tool(*call) for call in calls]
        return [one.content[0].text if one.is_error else one.structured_content for one in results]

    return anyio.run(talk)


def test_tools_answer_what_commands_print_and_leave_nothing(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("ULPSCOPE_SAMPLES", str(RUNS))

    def printed(*words):
        report = cli(*words, "--json").json
        if words[1:]:
            # long tables that no question needs
            report.pop("ulp_histogram", None)
            report.pop("kv", None)
        return report

    runs = printed("list")
    started = printed("show", "where-it-starts", "--layers")
    for pair in started["pairs"]:
        pair |= {"by_module": pair["by_module"][:20], "by_module_total": len(pair["by_module"])}
    rows = printed("compare", "fresh-against-cached", "--positions")["by_position"]
    flips = {"variant": "decode", "by_position": [row for row in rows if row["is_flip"]]}
    verdicts = {"verdicts": printed("verdict", "where-it-starts")["pairs"]}
    expected = [
        ("list_runs", {"limit": 2, "offset": 3}, {"runs": runs[3:5], "runs_total": len(runs)}),
        ("show_run", {"run": "where-it-starts"}, printed("show", "where-it-starts") | verdicts),
        ("positions", {"run": "fresh-against-cached", "flips_only": True}, flips),
        ("where_it_starts", {"run": "where-it-starts"}, started),
        ("explain", {"run": "injected-bug"}, printed("explain", "injected-bug")),
        (
            "compare",
            {"a": FLIPS, "fail_on": "flips"},
            printed("compare", FLIPS, "--fail-on", "flips"),
        ),
    ]
    assert answers_of(tmp_path, *(call[:2] for call in expected)) == [
        answer for *_, answer in expected
    ]
    assert list(tmp_path.rglob("*.*")) == []


def test_errors_are_sentences_and_texts_of_runs_are_harmless(cli, tmp_path):
    hostile = tmp_path / "runs" / "hostile.duckdb"
    hostile.parent.mkdir()
    hostile.write_bytes((RUNS / "where-it-starts.duckdb").read_bytes())
    with_texts(hostile, ORDERS)
    answer, error = answers_of(
        tmp_path,
        ("show_run", {"run": "hostile"}),
        ("show_run", {"run": ORDERS}),
    )
    printed = cli("show", ORDERS).stderr.removeprefix("error: ")
    assert error.removeprefix("Error executing tool show_run: ") == printed.strip()
    assert "owned" in answer["name"]
    assert is_seen(error + json.dumps(answer, ensure_ascii=False))
    # an answer has 100 rows of 2,000 characters at most, for an agent reads all of it
    long = agent_tools._answer({"rows": ["x" * 9000] * 200}, "rows", 999)
    assert long == {"rows": ["x" * 1999 + "…"] * 100, "rows_total": 200}
    none = agent_tools._answer({"rows": [1] * 200}, "rows", -1, -1)
    assert none == {"rows": [], "rows_total": 200}
    versions = {str(number): "" for number in range(999)}
    assert len(agent_tools._answer({"versions": versions})["versions"]) == 100
    shown = legible(ORDERS) + "x" * 9000
    assert str(UsageError(ORDERS + "x" * 9000)) == shown[:1999] + "…"
    with pytest.raises(ToolError, match="too long"):
        agent_tools.compare("x" * 9000)
