"""Runs in Python: opened, and compared in memory."""

import copy
import gc
import os
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient
from transformers.utils import ModelOutput

import core
from core.errors import DumpError, ExtraError, StoreError, UlpscopeError, UsageError
from core.judging.stored import stored_verdict
from tests.places import ROOT

POSITIONS, VOCAB = 6, 40


def logits(seed):
    return np.random.default_rng(seed).normal(size=(POSITIONS, VOCAB)).astype(np.float32)


PATTERNS = logits(1).astype(np.float16).view(np.uint16)


def test_tensors_of_bfloat16_keep_their_bits_and_prompts_are_an_axis():
    sides = []
    for seed in (1, 2):
        tensor = torch.tensor(logits(seed)).bfloat16().requires_grad_()
        # two prompts that share their memory, as an expanded tensor does
        sides.append(tensor.expand(2, -1, -1))
    a, b = sides
    run = core.compare(a, b, token_ids=torch.arange(2 * POSITIONS).view(2, -1)).reader
    assert run.header.compute_dtype == "bfloat16"
    first, second = run.header.prompts
    assert first.token_ids == (0, 1, 2, 3, 4, 5)
    assert second.token_ids == (6, 7, 8, 9, 10, 11)
    signed = b.detach().contiguous().view(torch.int16)
    bits = signed.numpy().view(np.uint16)
    assert (run.read_rows(1, 0, 2 * POSITIONS) == bits.reshape(-1, VOCAB)).all()


@pytest.mark.parametrize(
    ("dtype", "carrier"),
    [
        (torch.float32, torch.int32),
        (torch.bfloat16, torch.int16),
    ],
)
def test_a_tuple_holds_the_steps_of_generate_and_a_list_prompts(dtype, carrier):
    # [steps, sequences, vocab]
    stacked = np.stack([logits(seed) for seed in range(9)])
    steps = torch.tensor(stacked).to(dtype)
    for value, expected in ((tuple(steps), steps.transpose(0, 1)), (list(steps), steps)):
        run = core.compare(value, value).reader
        assert run.header.lengths == [expected.shape[1]] * expected.shape[0]
        bits = expected.contiguous().view(carrier).numpy().reshape(-1, VOCAB)
        assert (run.read_rows(0, 0, run.header.rows).view(bits.dtype) == bits).all()


STEPS = torch.zeros(4, POSITIONS, VOCAB)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            ModelOutput(logits=STEPS),
            "'reference' is a ModelOutput; pass one of its fields: logits",
        ),
        (tuple(STEPS[:, None]), "'reference' is a tuple of 4 arrays .* layers"),
        ([STEPS[0], STEPS[1, :2]], "'reference' has parts of .* pass parts of one shape"),
        (
            [STEPS[0], STEPS[1].bfloat16()],
            "'reference' has parts of .* pass parts of one shape",
        ),
        (PATTERNS, "^'reference' holds 16-bit patterns: choose bfloat16"),
        (logits(1)[:, :-1], "holds='padded' compares the first 39"),
    ],
)
def test_what_is_no_array_of_logits_is_refused_with_python_s_words(value, words):
    with pytest.raises(UlpscopeError, match=words) as caught:
        core.compare(value, logits(2))
    assert "arrays.npz" not in str(caught.value)


def test_an_option_that_compare_has_not_is_refused():
    with pytest.raises(UsageError, match="'mixture_of_expert' is True: no array, and no option"):
        core.compare(logits(1), logits(2), mixture_of_expert=True)


def test_padding_is_left_out_if_python_says_so():
    run = core.compare(logits(1)[:, :-1], logits(2), holds="padded").reader
    assert run.header.vocab == VOCAB - 1


def test_a_comparison_has_the_verdict_of_its_gravest_variant():
    a = logits(1)
    b = logits(2)
    verdict = core.compare(a, a, other=b).verdict
    assert verdict.pair == 1
    assert verdict.is_bug_suspected
    with pytest.raises(AssertionError, match="bug suspected"):
        verdict.check()
    assert core.compare(a, a).verdict.check().name == "identical"


def test_dir_lists_the_functions_of_python():
    of_tensors = {"close", "compare_errors", "judge_op"}
    of_runs = {
        "Run",
        "compare",
        "judge",
        "log",
        "open",
        "__version__",
    }
    assert set(dir(core)) == of_runs | of_tensors


def test_16_bit_patterns_are_read_as_the_compute_dtype_that_is_given():
    run = core.compare(PATTERNS, PATTERNS, compute_dtype="float16")
    assert run.reader.header.compute_dtype == "float16"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda run: run.figure("modules"), "run 'arrays' has nothing"),
        (lambda run: run.figure("positions", prompt=1), "no prompt 1"),
        (lambda run: core.open(), "needs a run id or files"),
        (
            lambda run: core.open("injected-bug", holds="padded"),
            "compute_dtype, reference and holds",
        ),
        (lambda run: core.open(""), "empty"),
        (lambda run: core.compare(logits(1), "b.npz"), r"ulpscope.open\('b.npz'"),
        (lambda run: core.compare(logits(1), logits(2)[:4]), "^'variant' has 4 positions"),
        (lambda run: core.compare(logits(1), [[1], []]), "^'variant' can"),
        (
            lambda run: core.compare(logits(1), STEPS[0].to(torch.float8_e4m3fn)),
            "^'variant' is float8_e4m3fn; .*upcast",
        ),
    ],
)
def test_messages_name_what_the_caller_gave(call, words):
    with pytest.raises((UsageError, DumpError), match=words):
        call(core.compare(logits(1), logits(2)))


def test_a_run_in_memory_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = core.compare(logits(1), logits(2))
    assert repr(run) == "variant: bug suspected"  # and no id
    assert not list(tmp_path.iterdir())
    assert open_files(tmp_path)
    del run
    gc.collect()
    assert not open_files(tmp_path)


def open_files(folder):
    """Return the open files that lie or lay in a folder."""
    names = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    return [name for name in names if str(folder) in name]


def test_tables_are_of_all_variants():
    a, b, c = (logits(seed) for seed in (1, 2, 3))
    run = core.compare(a, b, other=c)
    table = run.to_pandas("positions").set_index("variant")
    flips = 0
    for pair, name in enumerate(("variant", "other")):
        own = run.reader.positions(pair)
        flips += own["is_flip"].sum()
        assert table.loc[name, "max_abs"].tolist() == own["max_abs"].tolist()
    assert len(run.to_pandas("flips")) == flips
    elements = run.to_pandas("ulps").groupby("variant")["elements"].sum()
    assert elements.to_dict() == {"variant": a.size, "other": a.size}
    largest = [pair.summary.max_abs for pair in run.reader.pairs]
    assert run.to_pandas("pairs")["max_abs"].tolist() == largest


def test_a_bad_name_lists_the_tables():
    sample = core.open(ROOT / "sample_runs/where-it-starts.duckdb")
    with pytest.raises(UsageError) as caught:
        sample.to_pandas("position")
    names = str(caught.value).partition("are ")[2].rstrip(".").split(", ")
    empty = {name for name in names if sample.to_pandas(name).empty}
    assert empty == {"rollouts", "continuations", "choices"}
    modules = sample.reader.query("SELECT count(DISTINCT ordinal) AS n FROM layer")["n"][0]
    assert len(sample.to_pandas("modules")) == modules


def test_figures_draw_the_positions():
    a = logits(1)
    run = core.compare(a, logits(2))
    table = run.reader.positions(0)
    difference = table["max_abs"].to_numpy()
    margins = table[["reference_margin", "variant_margin"]].min(axis=1)
    drawn = set()
    margins_figure = run.figure("margins")
    picture = ElementTree.fromstring(margins_figure._repr_mimebundle_()["image/svg+xml"])
    assert len(picture.findall(".//{*}circle/{*}title")) == len(difference)
    for trace in margins_figure.data[1:]:
        drawn |= set(zip(trace.x, trace.y, strict=True))
    expected = sorted(zip(difference, margins, strict=True))
    assert np.array(sorted(drawn)) == pytest.approx(np.array(expected))
    assert run.figure("positions").data[0].y == pytest.approx(difference)
    assert sum(run.figure("ulps").data[0].y) == a.size


@pytest.mark.parametrize(
    ("name", "sample"),
    [
        ("modules", "where-it-starts"),
        ("noise floor", "where-it-starts"),
        ("ratios", "trainer-against-rollout"),
        ("density", "trainer-against-rollout"),
        ("steps", "trainer-against-rollout"),
    ],
)
def test_a_figure_that_a_run_lacks_is_refused_and_drawn_of_one_that_has_it(name, sample):
    run = core.compare(logits(1), logits(2))
    for missing in (name, "no such figure"):
        with pytest.raises(UsageError):
            run.figure(missing)
    assert core.open(ROOT / f"sample_runs/{sample}.duckdb").figure(name).data


def test_without_plotly_a_figure_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "core.plots.of_run", None)
    with pytest.raises(ExtraError, match="notebook"):
        core.compare(logits(1), logits(2)).figure()


def test_a_verdict_shows_its_checks():
    run = core.open("injected-bug").reader
    verdict = stored_verdict(run, run.pairs[0])
    shown = verdict._repr_html_()
    assert re.match('<div class="[^"]*mathjax_ignore"><p><b>bug suspected</b>', shown)
    outcomes = re.findall("<td[^>]*>(.*?)</td>", shown)[::3]
    assert outcomes == [row.outcome for row in verdict.evidence]


def test_open_takes_a_run_a_run_file_and_dumps(tmp_path, monkeypatch):
    a = tmp_path / "a.npy"
    b = tmp_path / "b.npy"
    np.save(a, logits(1))
    np.save(b, logits(2))
    assert [side.name for side in core.open(a, b).reader.sides] == ["a", "b"]
    stored = core.open("where-it-starts")
    assert core.open(stored.reader.path).reader.sides == stored.reader.sides
    monkeypatch.setenv("ULPSCOPE_SAMPLES", "")
    with pytest.raises(StoreError):
        core.open("where-it-starts", store=tmp_path)


def test_the_notebook_of_the_docs_shows_what_it_was_saved_with(tmp_path, monkeypatch):
    # made by `PLOTLY_RENDERER=plotly_mimetype jupyter execute --inplace
    # docs/guides/notebook.ipynb`, also in a worktree that is not the installed one
    (tmp_path / "ulpscope").symlink_to(ROOT / "core")
    settings = {
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "ULPSCOPE_SAMPLES": ROOT / "sample_runs",
        "IPYTHONDIR": tmp_path / "own",
        "PLOTLY_RENDERER": "plotly_mimetype",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    saved = nbformat.read(ROOT / "docs/guides/notebook.ipynb", as_version=4)
    executed = NotebookClient(copy.deepcopy(saved), timeout=120).execute()
    shown = [values_of(cell) for cell in executed.cells]
    expected = [values_of(cell) for cell in saved.cells]
    assert shown == expected
    assert sum(map(len, shown)) == 4


def values_of(cell):
    """Return what the outputs of a cell show: the data of a figure, its picture, and HTML without
    the day of the run.
    """
    outputs = [output["data"] for output in cell.get("outputs", ())]
    figures = []
    pictures = []
    texts = []
    for output in outputs:
        plot = output.get("application/vnd.plotly.v1+json", {})
        figures.append(plot.get("data"))
        pictures.append(output.get("image/svg+xml"))
        html = output.get("text/html", "")
        texts.append(re.sub("[0-9]{4}-[0-9]{2}-[0-9]{2}", "", html))
    return list(zip(figures, pictures, texts, strict=True))
