"""A request for a capture or a probe is the same through the command line, and through the JSON
that a run keeps.
"""

import dataclasses
import shlex

import pytest
import typer
from typer.testing import CliRunner

from core.capture_request import CaptureRequest
from core.commands.options import takes_request
from core.errors import UsageError
from core.probing.plan import ProbeRequest
from tests.shell import words_of

PLAIN = CaptureRequest(model="a/model", prompts=("one", "two\nlines"), variants=("decode",))
PROBE = ProbeRequest(url="http://127.0.0.1:8000", prompts=("one", "two\nlines"))
PROBES = (
    {},
    {
        "prompts": ("-dash", ""),
        "prompt_files": ("a b.txt",),
        "prompt_lists": ("many.jsonl",),
    },
    {"tests": "walk,load:3", "against": "https://other:1", "against_model": "b", "model": "a"},
    {"top": 1, "tokens": 7, "max_requests": 5, "name": "-odd"},
)
REQUESTS = [dataclasses.replace(PROBE, **change) for change in PROBES]
REQUESTS += [
    dataclasses.replace(PLAIN, **change)
    for change in (
        {},
        {"prompts": ("-starts with a dash", "--judge", "", "it's")},
        {"prompt_files": ("a b.txt",), "prompt_lists": ("many.jsonl", "-x")},
        {"is_chat": True, "system": "Be short."},
        {"variants": (), "sweeps": ("batch=1,2", "chunked=4,8")},
        {"repeat": 6, "kv": True},
        {"kv": False, "seed": 7},
        {"layers": True, "layer_floor": 0, "layer_positions": (3, 5)},
        {
            "kernels": True,
            "mitigations": True,
            "judge": True,
            "declares": ("kv=fp8_e4m3", "weights=nf4"),
        },
        {"tokens": 32, "judge": True},
        {"device": "cuda:0", "dtype": "float32", "revision": "main", "trust_remote_code": True},
        {"judge": True, "name": "-odd"},
    )
]


def read_back(arguments):
    """The request that a command line with these arguments gets."""
    asked = []
    app = typer.Typer()
    commands = {
        "capture": takes_request(omit=["tokens"]),
        "judge": takes_request(omit=["tokens"], judge=True),
        "generate": takes_request(defaults={"tokens": 64}),
        "probe": takes_request(ProbeRequest),
    }
    for name, decorate in commands.items():
        app.command(name)(decorate(lambda request: asked.append(request)))
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return asked[0]


@pytest.mark.parametrize("request_", REQUESTS)
def test_arguments_the_typed_command_and_json_give_the_request_back(request_):
    assert read_back(request_.arguments()) == request_
    assert read_back(words_of(request_.typed())[1:]) == request_
    found = type(request_).from_json(request_.to_json())
    assert found == request_
    assert repr(found) == repr(request_)


@pytest.mark.parametrize(
    "field",
    ["model", "system", "reference", "dtype", "device", "revision", "name"],
)
def test_no_value_ends_the_line_hides_or_is_more_than_a_value(field):
    """A line end, ^C and a carriage return end a command that is pasted; the rest cannot be
    seen.
    """
    planted = "x'; touch /tmp/y #\n\r\x03\x1b[2K\x08\x9b\u202e\u2066\u200b\u3164!$(z)`z`\\"
    request = dataclasses.replace(PLAIN, **{field: planted})
    assert request.typed().isprintable()
    assert read_back(words_of(request.typed())[1:]) == request


def test_a_value_with_a_zero_byte_is_refused_and_typed_by_nobody():
    with pytest.raises(UsageError, match="no command can be given"):
        dataclasses.replace(PLAIN, prompts=("a\0b",)).typed()


def test_what_stands_at_its_default_is_neither_typed_nor_kept():
    typed = (
        "capture --model a/model --prompt one --prompt 'two\nlines' --reference prefill --variant"
        " decode"
    )
    # paths and dtype say what is compared
    assert PLAIN.arguments() == shlex.split(f"{typed} --dtype bfloat16")
    assert (
        PLAIN.to_json()
        == '{"model": "a/model", "prompts": ["one", "two\\nlines"], "variants": ["decode"]}'
    )


OF_OTHER_TYPES = (
    '{"model": 5}',
    '{"model": "m", "prompts": "ab"}',
    '{"model": "m", "seed": 1e400}',
)
NESTED = '{"model": "m", "prompts": ' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        "5",
        "{}",
        '{"model": "m", "unheard_of": 1}',
        '{"model": "\ud800"}',
        *OF_OTHER_TYPES,
        NESTED,
    ],
    ids=range(12),
)
def test_text_that_no_capture_wrote_is_no_request(text):
    assert CaptureRequest.from_json(text) is None
