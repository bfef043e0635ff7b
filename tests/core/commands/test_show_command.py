"""`show` with --layers, --kernels, --mitigations and --link: what a run has is printed, what it
lacks is a sentence.
"""

import pytest

from core.inference.capture import mitigations
from core.runs.store.store import Store, open_store
from core.runs.tables.mitigations import advice
from tests.core.runs.kernel_runs import kernel_run
from tests.core.runs.layer_runs import GROWING, layer_run, with_kernels
from tests.core.runs.made_runs import calm_sides, header_of, opened, write_run
from tests.core.runs.mitigation_runs import ROWS, mitigation_run


@pytest.fixture
def store(cli, tmp_path, monkeypatch):
    # rich would cut names of modules at the 80 columns of a pipe
    monkeypatch.setenv("COLUMNS", "250")
    return Store(tmp_path / "runs")


def test_layers_name_the_first_module_that_differs_and_its_position(cli, store):
    run_id = layer_run(store, GROWING)
    done = cli("show", run_id, "--layers").succeeded()
    assert (
        "'model.layers.0.attn.<b>q</b>_proj' (projection) is the first module whose output differs"
        in done.stdout
    )
    first = "│ model.layers.0.attn.<b>q</b>_proj "
    assert first in done.stdout
    assert "layers.0.norm " not in done.stdout
    assert first not in cli("show", run_id, "--layers", "--blocks").stdout
    assert "layers.0.norm " in cli("show", run_id, "--layers", "--all").stdout


def test_kernels_begin_where_the_sides_begin_to_differ(cli, store):
    run_id = with_kernels(store, layer_run(store, {(1, 1, 4): 3}))
    lines = cli("show", run_id, "--kernels").stdout.splitlines()
    assert lines[0].startswith(
        "The first module whose output differs is 'model.layers.0.norm', at position 4 of",
    )
    assert lines[0].endswith("'aten::mean' (bfloat16 [1, 8] vs bfloat16 [2, 8]).")
    (pair,) = cli("show", run_id, "--kernels", "--json").json["pairs"]
    place = pair["where_it_starts"]
    assert place["module"] == "model.layers.0.norm"
    assert place["position"] == 4
    kernel_run(store)
    assert "first module" in cli("show", "kernels", "--kernels").stdout
    assert cli("show", "kernels", "--kernels", "--json").json["pairs"][0]["where_it_starts"] is None


def test_mitigations_have_a_cost_or_a_reason_why_they_were_not_measured(cli, store):
    mitigation_run(store)
    done = cli("show", "mitigations", "--mitigations").succeeded()
    assert f"{ROWS[2].name}: not measured. {ROWS[2].refusal}" in done.stdout
    assert advice(ROWS) in done.stdout
    (pair,) = cli("show", "mitigations", "--mitigations", "--json").json
    assert [row["neq"] for row in pair["mitigations"]] == [600, 700, None, 0]


def test_a_link_opens_the_position_that_dominates_in_the_variant(cli, store, monkeypatch):
    header = header_of("float32", (3, 5), 64, sides=3)
    sides = calm_sides(header)
    sides[2][6] = sides[2][6][::-1]  # prompt 1, position 3
    write_run(store, header, sides, "linked")
    monkeypatch.setenv("ULPSCOPE_HOSTING_PUBLIC_URL", "https://u.example.org/")
    done = cli("show", "linked", "--link", "--variant", "side_2")
    query = "run=linked&variant=side_2&prompt=1&position=3"
    assert done.stdout == f"https://u.example.org/overview?{query}\n", done.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--layers",), "capture it with --layers"),
        (("--kernels",), "capture it with --kernels"),
        (("--mitigations",), "capture it with --mitigations"),
        (("--layers", "--variant", "x"), "no variant 'x'; there are side_1."),
        (("--layers", "--kernels"), "exclude each other"),
        (("--variant", "side_1"), "--variant needs"),
    ],
)
def test_what_is_not_there_is_one_sentence_and_exit_code_2(options, sentence, cli, store):
    kernel_run(store, "plain", lists=())
    assert sentence in cli("show", "plain", *options).refusal


@pytest.mark.thorough
@pytest.mark.model
def test_a_capture_keeps_both_where_it_is_asked_to(cli, monkeypatch):
    monkeypatch.setattr(mitigations, "ROUNDS", 1)
    asked = (
        "--model",
        "sample_runs/model",
        "--prompt",
        "def walk(self):",
        "--variant",
        "decode",
        "--json",
    )
    done = cli("capture", *asked, "--kernels", "--mitigations").succeeded()
    with opened(open_store(), done.json["run_id"]) as run:
        assert run.sides_with_kernels == {0, 1}
        forwards = run.query("SELECT forwards_of FROM kernel_side ORDER BY side")[
            "forwards_of"
        ].tolist()
        assert forwards == [1, run.header.rows]
        plain, *others = run.mitigations[0]
        summary = run.pairs[0].summary
        assert plain.name == "baseline"
        assert plain.neq == summary.neq
        assert plain.max_ulps == summary.max_ulps
        assert len(others) == len(mitigations.MITIGATIONS) - 1
    with opened(open_store(), cli("capture", *asked).json["run_id"]) as run:
        assert not run.sides_with_kernels
        assert run.mitigations == {}
