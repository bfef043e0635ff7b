"""A plan is read whole or refused in one sentence, and a cell has the same digest on every
machine.
"""

import hashlib
import json
from itertools import product
from pathlib import Path

import pytest

from core.errors import UsageError
from core.sweeps.plan import cell_counts, read_plan


def test_cells_are_the_product_of_the_axes_in_the_order_of_the_plan(plan_file):
    plan = read_plan(
        plan_file(
            models=["m", "n"],
            paths=["decode", "chunked:8"],
            dtypes=["bfloat16", "float32"],
            devices=["cpu"],
        ),
    )
    axes = "model", "path", "dtype"
    found = [tuple(cell.axes[axis] for axis in axes) for cell in plan.cells]
    assert found == list(product(("m", "n"), ("decode", "chunked:8"), ("bfloat16", "float32")))
    assert cell_counts(plan.cells) == "8 cells: 2 models x 2 paths x 2 dtypes"
    request = plan.cells[0].request
    assert request.model == "m"
    assert request.reference == "prefill"
    assert request.variants == ("decode",)
    assert request.dtype == "bfloat16"
    assert request.device == "cpu"
    assert request.judge
    assert request.repeat == 1
    assert plan.name == "sweep"


def test_a_path_that_names_its_engine_stands_once_and_others_with_every_engine(plan_file):
    plan = read_plan(
        plan_file(
            engines=["transformers", "llamacpp"],
            paths=["decode", "ct2:prefill", "chunked:8", "transformers:decode"],
        ),
    )
    assert [cell.request.variants[0] for cell in plan.cells] == [
        "decode",
        "ct2:prefill",
        "chunked:8",
        "transformers:decode",
        "llamacpp:decode",
        "llamacpp:chunked:8",
    ]
    engines = [cell.axes["engine"] for cell in plan.cells]
    assert engines == [
        "transformers",
        "ct2",
        "transformers",
        "transformers, apart",
        "llamacpp",
        "llamacpp",
    ]


def test_a_file_of_lines_is_many_prompts_and_any_other_file_is_one(plan_file):
    one, many = read_plan(plan_file(prompts=["a.txt", "b.jsonl"])).cells
    assert Path(one.request.prompt_files[0]).name == "a.txt"
    assert one.request.prompt_lists == ()
    assert Path(many.request.prompt_lists[0]).name == "b.jsonl"
    assert many.request.prompt_files == ()


def test_excluded_cells_are_left_out(plan_file):
    excluded = [{"model": "n", "dtype": ["float32"]}, {"model": "m", "dtype": "bfloat16"}]
    plan = read_plan(plan_file(models=["m", "n"], dtypes=["bfloat16", "float32"], exclude=excluded))
    assert [(cell.axes["model"], cell.axes["dtype"]) for cell in plan.cells] == [
        ("m", "float32"),
        ("n", "bfloat16"),
    ]


def _digest(request, prompts):
    """As the documents say it is made, by hashlib alone."""

    def digest(value):
        return hashlib.sha256(
            json.dumps(value, sort_keys=True, ensure_ascii=False).encode(),
        ).hexdigest()

    return digest({"request": request, "prompts": digest(prompts)})[:16]


def test_the_digest_of_a_cell_is_of_its_request_and_the_contents_of_its_prompts(plan_file):
    (cell,) = read_plan(plan_file(), build="c0ffee").cells
    # `where` is empty, and stays in the digest so that cells of 1.0.0 keep theirs
    prompt = {"where": "", "text": "def f():", "token_ids": None, "messages": None}
    assert cell.digest == _digest({"model": "m", "variants": ["decode"], "judge": True}, [prompt])


def test_a_cell_has_one_digest_in_every_folder_and_under_every_build(
    plan_file,
    tmp_path,
    monkeypatch,
):
    here = read_plan(plan_file("one"), build="1").cells[0]
    monkeypatch.chdir(tmp_path)
    there = read_plan(plan_file("two"), build="2").cells[0]
    assert here.digest == there.digest
    assert here.request.prompt_files != there.request.prompt_files


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": "def f() :"},
        {"models": ["n"]},
        {"paths": ["chunked:8"]},
        {"dtypes": ["float32"]},
        {"devices": ["cpu"]},
        {"judge": False},
        {"layers": True},
        {"seed": 1},
        {"references": ["decode"]},
        {"repeats": 2},
        {"keep": "figures"},
        {"chat": True},
    ],
)
def test_any_other_request_is_another_cell(plan_file, other):
    """The twin of the test above: a digest of nothing would pass that."""
    (cell,) = read_plan(plan_file()).cells
    (another,) = read_plan(plan_file(**other)).cells
    assert cell.digest != another.digest


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models = [", "cannot be read as a plan"),
        ("model = ['m']", "unknown field `model`"),
        ("models = 'm'", r"got `str` - at `\$.models`"),
        ("models = ['m']\nprompts = ['a.txt']", "missing required field `paths`"),
        (
            "models = ['m']\nprompts = ['no.txt']\npaths = ['decode']",
            "no.txt: cannot be read as UTF-8 text",
        ),
        (
            "models = ['m']\nprompts = ['a.txt']\npaths = ['decode']\n[[exclude]]\nvariant = 'x'",
            r"Invalid enum value 'variant'",
        ),
        (
            "models = ['m']\nprompts = ['a.txt']\npaths = ['decode']\n[[exclude]]\nmodel = 'm'",
            "every cell is excluded",
        ),
        (
            f"models = ['m']\nprompts = ['a.txt']\npaths = {[str(n) for n in range(100_001)]}",
            "at most 100,000",
        ),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_in_one_sentence(plan_file, text, says):
    path = plan_file()
    path.write_text(text)
    with pytest.raises(UsageError, match=says) as refusal:
        read_plan(path)
    assert str(refusal.value).startswith(str(path.parent))
    assert "\n" not in str(refusal.value)
