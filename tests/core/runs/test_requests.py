"""A stored capture made again: commands for people, and the request a program takes from a file it
does not trust.
"""

import dataclasses
import json

import pytest

from core.capture_request import CaptureRequest
from core.runs.file.records import Generation, Prompt, Provenance
from core.runs.requests import (
    asks_for,
    caveat,
    command_with,
    how_to_have,
    rejudge_request,
    repeat_command,
)
from tests.core.runs.judged_runs import REQUEST, judged_run
from tests.core.runs.made_runs import header_of, opened, writing


def provenance(**asked):
    request = dataclasses.replace(
        CaptureRequest(model="m", prompts=("a; rm",), variants=("decode",)),
        **asked,
    )
    return Provenance("capture", "m", command=request.typed(), request=request.to_json())


@pytest.mark.parametrize(
    ("asked", "extra", "shown"),
    [
        (
            {},
            "judge",
            (
                "ulpscope judge --model m --prompt 'a; rm' --reference prefill --variant decode"
                " --dtype bfloat16"
            ),
        ),
        ({"judge": True}, "judge", None),
        ({"layers": True}, "layers", None),  # it was asked for, and could not be had
        ({"tokens": 4}, "layers", None),  # texts are not scored
        (
            {"tokens": 4},
            "judge",
            (
                "ulpscope generate --model m --prompt 'a; rm' --reference prefill --variant decode"
                " --tokens 4 --judge --dtype bfloat16"
            ),
        ),
        (
            {"judge": True, "kv": False},
            "kv",
            (
                "ulpscope judge --model m --prompt 'a; rm' --reference prefill --variant decode"
                " --kv --dtype bfloat16"
            ),
        ),
    ],
)
def test_the_same_capture_with_more_beside_it_is_the_stored_request_and_no_other(
    asked,
    extra,
    shown,
):
    assert command_with(provenance(**asked), extra) == shown


@pytest.mark.parametrize(
    "about",
    [
        Provenance("capture", command="ulpscope capture --model m"),
        Provenance("upload", request=REQUEST.to_json()),
        Provenance("capture", request='{"model": "m", "unheard_of": 1}'),
    ],
)
def test_a_run_without_a_request_of_its_own_has_no_such_command(about):
    assert command_with(about, "layers") is None
    assert not asks_for(about, "layers")
    assert "capture it with --layers" in how_to_have("layers", about)
    assert repeat_command(about) == ""
    assert bool(caveat(about, None)) == (about.kind == "capture")


def test_no_command_from_a_file_lets_a_model_run_its_own_code():
    about = provenance(trust_remote_code=True)
    for command in (
        command_with(about, "layers") or "",
        repeat_command(about),
        how_to_have("layers", about),
    ):
        assert command
        assert "trust" not in command
    assert "code of the model's author" in caveat(about, command_with(about, "layers"))
    assert caveat(provenance(trust_remote_code=True, layers=True), None) == ""
    assert caveat(provenance(), repeat_command(provenance())) == ""


def test_what_a_prompt_says_was_not_asked_for():
    assert not asks_for(provenance(prompts=("use --layers here",)), "layers")
    assert asks_for(provenance(layers=True), "layers")  # the twin


def rejudged(store, **about):
    """The request that judges a run again, and its file of prompts; two None if there is none."""
    with opened(store, judged_run(store, None, **about)) as run:
        return rejudge_request(run, "again") or (None, None)


def test_a_program_judges_the_tokens_that_the_run_holds(store):
    request, prompts = rejudged(store)
    assert request == CaptureRequest(
        model="sample_runs/model",
        variants=("decode",),
        judge=True,
        name="again",
    )
    assert json.loads(prompts) == {"token_ids": list(range(2, 98))}


def test_a_program_takes_nothing_of_a_strangers_request_but_paths_dtype_device_and_seed(store):
    hostile = dataclasses.replace(
        REQUEST,
        trust_remote_code=True,
        prompt_files=("/etc/passwd",),
        prompt_lists=("/etc/shadow",),
        device="cpu",
        system="x",
        model="stranger/model",
        revision="evil",
    )
    request, _ = rejudged(store, request=hostile)
    assert request == CaptureRequest(
        model="sample_runs/model",
        variants=("decode",),
        device="cpu",
        judge=True,
        name="again",
    )


def test_without_a_request_the_paths_of_the_sides_are_judged(store):
    request, _ = rejudged(store, request=None)
    assert request.reference == "prefill"
    assert request.variants == ("decode",)
    assert request.dtype == "bfloat16"


@pytest.mark.parametrize(
    "lacking",
    [
        {"kind": "upload", "request": None},
        {"with_token_ids": False},
        {"model": ""},
        {"model": "--trust-remote-code"},
    ],
)
def test_a_run_without_model_or_tokens_is_judged_by_nobody_here(store, lacking):
    assert rejudged(store, **lacking) == (None, None)


def test_prompts_that_were_continued_are_continued_again_from_what_was_given(store):
    header = dataclasses.replace(
        header_of("bfloat16", (5,)),
        prompts=(Prompt(5, (1, 2, 3, 4, 5), ("a", "b", "c", "d", "e")),),
        provenance=provenance(tokens=2),
    )
    with writing(store, header) as writer:
        writer.write_generation(Generation(0, 3, 2, ((4, 5), (4, 6)), ("d e", "d f")))
        run_id = writer.finish()
    with opened(store, run_id) as run:
        request, prompts = rejudge_request(run, "again")
    assert request.arguments()[0] == "generate"
    assert request.tokens == 2
    assert json.loads(prompts) == {"token_ids": [1, 2, 3]}
