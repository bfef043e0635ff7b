"""Trainer vs. rollout on the Overview."""

import base64
import json

import numpy as np
import pandas as pd
import pytest

from core.judging.ingest import ingest
from core.runs.store.store import Store
from tests.app.opening import enter, figures_of, open_page, page_text, sent
from tests.places import ROLLOUTS, ROOT


def slime(store, **more):
    """The id of a run of what slime wrote of a step."""
    return ingest(Store(store), [ROLLOUTS / "slime/train_data/2.pt"], **more)


@pytest.fixture
def page(store):
    return open_page("overview", run=slime(store, name="rollout 2"))


def test_the_headline_figures_are_those_of_the_tokens(page):
    assert [(each.label, each.value, each.delta) for each in page.metric] == [
        ("KL (k3)", "0.000127", "at most 0.001 (NeMo-RL)"),
        ("ESS", "0.9998", "at least 0.3 (verl)"),
        ("Mean ratio", "0.995", "0.5 to 2 (verl)"),
        ("Mean |r|", "0.0121", ""),
        ("Largest |r|", "0.04", ""),
    ]


def test_figures_at_a_step_that_stands_out_are_beside_those_of_the_others(store, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_SAMPLES", str(ROOT / "sample_runs"))
    page = open_page("overview", run="trainer-against-rollout")
    assert "step 5: 0.0448, others: 0.00136" in page_text(page)


@pytest.mark.parametrize("name", ["flips", "near_ties"])
def test_pages_of_top_tokens_show_no_empty_charts(name, store):
    opened = open_page(name, run=slime(store))
    assert len(opened.info) == 1
    assert not opened.get("plotly_chart")
    assert not opened.metric
    assert not opened.dataframe


def test_two_runs_of_chosen_tokens_compare_without_flips(store):
    """Which are unknown, not 0."""
    opened = open_page("compare", run=slime(store), **{"with": slime(store)})
    assert "flips are unknown" in page_text(opened)


def test_a_framework_gives_its_own_names(page):
    enter(page, "selectbox", "framework", "slime")
    (table,) = [each.value for each in page.dataframe if "definition" in each.value]
    values = dict(zip(table["figure"], table["value"], strict=True))
    # not 0.01212, the mean over tokens
    assert values["train/train_rollout_logprob_abs_diff"] == "0.0122"


# with fewer tokens, chance would explain as much as the planted cause
LENGTH = 250
HEAVY = 3  # the sequence of which four tokens differ much


@pytest.fixture(scope="module")
def sequences():
    """Six sequences of three steps; |r| is twenty times as large in code."""
    random = np.random.default_rng(7)
    rows = []
    for number in range(6):
        environment = ["math", "code", "chat"][number % 3]
        # 20 times as much in code: the environment has to come out as the first cause
        r = random.normal(0, 0.1 if environment == "code" else 0.005, LENGTH)
        r[40:44] -= 1.5 * (number == HEAVY)
        rollout = -2 - random.gamma(0.7, 1.0, LENGTH)
        rows.append(
            {
                "token_ids": random.integers(0, 9999, LENGTH),
                "rollout": rollout,
                "trainer": rollout + r,
                "sequence": f"s{number}",
                "step": number // 2,
                "environment": environment,
            },
        )
    return rows


@pytest.fixture
def planted(built, sequences, monkeypatch):
    """Opens the Overview of a run of these sequences by a link."""

    def build(store):
        path = store.directory.parent / "planted.parquet"
        pd.DataFrame(sequences).to_parquet(path)
        ingest(store, [path], run_id="planted")

    monkeypatch.setenv("ULPSCOPE_STORE", str(built(build)))
    monkeypatch.setenv("ULPSCOPE_SAMPLES", "")
    return lambda **link: open_page("overview", run="planted", **link)


@pytest.fixture(scope="module")
def tokens(sequences):
    """One row a token, with its figures as pandas has them."""
    table = pd.DataFrame(sequences).explode(["token_ids", "rollout", "trainer"])
    r = (table["trainer"] - table["rollout"]).astype(float)
    # k3 of Schulman (2020), exp(r) - 1 - r; expm1 keeps the digits of a small r
    k3 = np.expm1(r) - r
    return table.assign(r=r, absolute=r.abs(), k3=k3, bin=(16 * r).round() / 16)


def values_of(axis):
    """Numbers of an axis of a trace as the browser gets it."""
    if not isinstance(axis, dict):
        return np.array(axis)
    # plotly sends arrays as base64, and lists of Python as they are
    return np.frombuffer(base64.b64decode(axis["bdata"]), axis["dtype"])


def table_with(page, column):
    (table,) = [each.value for each in page.dataframe if column in each.value]
    return table


def test_what_explains_the_difference_and_which_tokens_carry_it_is_said(planted):
    """The four planted tokens of 1,500."""
    tokens = "Half of the KL is in 4 tokens (0.3%)."
    assert f"{tokens} |r| depends most on the environment: 13.6%" in page_text(planted())


def test_the_distribution_is_that_of_the_tokens(planted, tokens):
    page = planted(part="distribution")
    ratios, density, _ = (figure["figure"]["data"] for figure in figures_of(page))
    bins = tokens.groupby("bin")["k3"].agg(["size", "sum"])
    np.testing.assert_allclose(values_of(ratios[0]["x"]), bins.index)
    np.testing.assert_array_equal(values_of(ratios[0]["y"]), bins["size"])
    kl = pd.Series(values_of(ratios[1]["y"]), values_of(ratios[1]["x"]))
    shares = bins["sum"] / tokens["k3"].sum()
    np.testing.assert_allclose(kl[bins.index], shares, rtol=1e-9)
    layout = figures_of(page)[0]["figure"]["layout"]
    places = {(each["y"], each["yanchor"]) for each in layout["annotations"]}
    assert places == {(1, "bottom")}
    assert kl.sum() == pytest.approx(1)
    assert len(kl) > len(bins)  # 0 between them
    highest = np.abs(values_of(density[0]["y"])).max()
    assert highest == pytest.approx(tokens["absolute"].quantile(0.999))
    shades = values_of(density[0]["z"])
    assert np.nansum(10**shades) == pytest.approx(len(tokens))
    probabilities = np.exp(tokens["rollout"].astype(float))
    # the density has a column for every fortieth of the rollout probability
    columns = np.unique((40 * probabilities).round() / 40)
    np.testing.assert_allclose(values_of(density[0]["x"]), columns)
    kl_shares = table_with(page, "bar")["kl_share"]
    assert kl_shares.between(10, 100).tolist() == [False, True, False]


def test_what_it_depends_on_is_drawn_by_group(planted, tokens):
    figure, by_position, _ = figures_of(planted(part="depends-on"))
    (trace,) = figure["figure"]["data"]
    means = tokens.groupby("environment")["absolute"].mean()
    assert trace["x"] == ["chat", "code", "math"]
    np.testing.assert_allclose(values_of(trace["y"]), means, rtol=1e-12)
    assert by_position["figure"]["layout"]["xaxis"]["title"]["text"] == "position"


def test_steps_have_their_means(planted, tokens):
    figure, _ = figures_of(planted())
    # a label in the plot would lie on the lines
    assert "annotations" not in figure["figure"]["layout"]
    mean_abs, k3 = (values_of(trace["y"]) for trace in figure["figure"]["data"])
    means = tokens.groupby("step")[["absolute", "k3"]].mean()
    np.testing.assert_allclose(mean_abs, means["absolute"], rtol=1e-12)
    np.testing.assert_allclose(k3, means["k3"], rtol=1e-9)


def test_the_heaviest_sequences_are_listed_and_drawn_token_by_token(planted, sequences, tokens):
    kl = tokens.groupby("sequence")["k3"].sum().to_numpy()
    order = np.argsort(kl)[::-1]
    page = planted(part="sequences")
    table = table_with(page, "kl_share")
    assert table["sequence"].tolist() == order.tolist()
    np.testing.assert_allclose(table["kl_share"], 100 * kl[order] / kl.sum(), rtol=1e-9)
    strips = [json.loads(each["columns"]) for each in sent(page, "ulpscope_token_strip")]
    shown = [sequences[n]["token_ids"].tolist() for n in (*order[:3], HEAVY)]
    assert [strip["ids"] for strip in strips] == shown
    assert len({strip["legend"]["high"] for strip in strips}) == 1
    heavy = strips[0]
    # the planted |r| of 1.5 is the largest of all sequences, and the scale ends there
    assert heavy["heat"][40:44] == [100] * 4
    assert heavy["legend"]["unit"] == "|r|, nats"
    r = sequences[HEAVY]["trainer"] - sequences[HEAVY]["rollout"]
    figures = heavy["figures"]
    # the strip has three digits
    np.testing.assert_allclose(figures["r = trainer - rollout, nats"], r, rtol=5e-3)
    np.testing.assert_allclose(figures["ratio = exp(r)"], np.exp(r), rtol=5e-3)
    # TIS truncates ratios above 2, IcePop masks those outside of 0.5 to 5
    ratio = np.exp(r)
    is_cut_by = {"TIS": ratio > 2, "IcePop": (ratio < 0.5) | (ratio > 5)}
    for cut, is_cut in is_cut_by.items():
        assert [cut in clipped for clipped in heavy["clipped"]] == is_cut.tolist()


def test_the_next_step_shows_the_worst_sequences_in_place(planted):
    worst = table_with(planted(open_=["worst_sequences"]), "kl_share").iloc[0]
    assert worst["sequence"] == HEAVY
    assert 40 <= worst["position"] < 44


def test_a_link_opens_a_sequence_at_a_token(planted, sequences):
    page = planted(prompt="1", position="5", colour="kl")
    (strip,) = sent(page, "ulpscope_token_strip")
    assert strip["position"] == 5
    columns = json.loads(strip["columns"])
    assert columns["ids"] == sequences[1]["token_ids"].tolist()
    assert columns["legend"]["unit"] == "KL (k3), nats"
