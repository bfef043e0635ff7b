"""Statistics of llama-perplexity, of its files and of runs: computed once more in numpy."""

import numpy as np
import pytest
from scipy.special import log_softmax

from core.errors import DumpError
from core.numerics.corpus import ScoredTokens, statistics
from core.runs.corpus import are_logs, by_position, score_logs
from tests.core.runs.dumps.made_dumps import kl_base_file, saved

# odd numbers: an odd context has a longer second half, and an odd vocabulary is padded to whole
# words of 32 bits
CONTEXT, VOCAB, CHUNKS = 33, 257, 7
FIRST = CONTEXT // 2
# perplexity.cpp scores the second half of a chunk, whose last token has no next one
ROWS = CONTEXT - 1 - FIRST
RANDOM = np.random.default_rng(5)
TOKENS = RANDOM.integers(
    0,
    VOCAB,
    (CHUNKS, CONTEXT),
    dtype=np.int32,
)
# some are more than 16 below the largest
LOGITS = RANDOM.normal(0, 3.5, (CHUNKS * ROWS, VOCAB)).astype(np.float32)
OTHER = LOGITS + RANDOM.normal(0, 0.2, LOGITS.shape).astype(np.float32)
TARGETS = np.concatenate([chunk[FIRST + 1 :] for chunk in TOKENS])
PLACES = np.arange(len(TARGETS))


@pytest.fixture
def files(tmp_path):
    return [tmp_path / "base.kld", tmp_path / "q.kld"]


def error_of(values):
    """Of their mean, as llama-perplexity has it."""
    return np.std(values) / np.sqrt(len(values) - 1)


def test_figures_are_those_of_llama_perplexity(files):
    base = kl_base_file(files[0], LOGITS, TOKENS)
    q = kl_base_file(files[1], OTHER, TOKENS)
    rows = {row["name"]: row for row in statistics(score_logs(files))}
    nll = -q[PLACES, TARGETS]
    nll_base = -base[PLACES, TARGETS]
    # tokens that are less likely in the base count nothing in perplexity.cpp
    terms = np.exp(base) * (base - q)
    kl = np.where(base > -16, terms, 0).sum(axis=1)
    dp = np.exp(-nll) - np.exp(-nll_base)
    is_same = q.argmax(axis=1) == base.argmax(axis=1)
    ppl = np.exp(nll.mean())
    ppl_base = np.exp(nll_base.mean())
    error = error_of(nll)
    error_base = error_of(nll_base)
    # perplexity.cpp divides by n, and by n - 1 for the error of a mean
    covariance = np.cov(nll, nll_base, ddof=0)[0, 1] / (len(nll) - 1)
    ratio_error = np.sqrt(error**2 + error_base**2 - 2 * covariance)
    rms = np.sqrt((dp**2).mean())
    squares = (ppl * error) ** 2 + (ppl_base * error_base) ** 2
    difference_error = np.sqrt(squares - 2 * ppl * ppl_base * covariance)
    expected = {
        "Mean PPL(Q)": (ppl, ppl * error),
        "Mean PPL(base)": (ppl_base, ppl_base * error_base),
        "Cor(ln(PPL(Q)), ln(PPL(base)))": (100 * np.corrcoef(nll, nll_base)[0, 1], None),
        "Mean ln(PPL(Q)/PPL(base))": (np.log(ppl / ppl_base), ratio_error),
        "Mean PPL(Q)/PPL(base)": (ppl / ppl_base, ppl / ppl_base * ratio_error),
        "Mean PPL(Q)-PPL(base)": (ppl - ppl_base, difference_error),
        "Mean KLD": (kl.mean(), error_of(kl)),
        "Mean Δp": (100 * dp.mean(), 100 * error_of(dp)),
        # the error of a square root to first order: half of the square's over the root
        "RMS Δp": (100 * rms, 50 / rms * error_of(dp**2)),
        "Same top p": (100 * is_same.mean(), 100 * error_of(is_same)),
    }
    for name, values in (("KLD", kl), ("Δp", 100 * dp)):
        expected[f"Maximum {name}"] = values.max(), None
        expected[f"Minimum {name}"] = values.min(), None
        expected[f"Median {name}"] = np.median(values), None
        for share in (99.9, 99, 95, 90, 10, 5, 1, 0.1):
            expected[f"{share:.1f}% {name}"] = np.percentile(values, share), None
    for share in (75, 25):
        expected[f"{share:.1f}% Δp"] = np.percentile(100 * dp, share), None
    assert rows.keys() == expected.keys()
    for name, (value, uncertainty) in expected.items():
        # expected values are from float64, the figures from the float32 of a file
        assert rows[name]["value"] == pytest.approx(value, rel=1e-5, abs=5e-7), name
        if uncertainty is not None:
            uncertainty = pytest.approx(uncertainty, rel=1e-4)
        assert rows[name]["uncertainty"] == uncertainty, name


def test_what_a_file_cuts_moves_no_figure(files):
    """A quarter of the tokens is raised to 16 below the largest; a row normalized again would be
    off by 4e-3.
    """
    spread = LOGITS.copy()
    # far beyond the 16 nats that a row of a file spans
    spread[:, ::4] -= 30
    held = kl_base_file(files[0], spread, TOKENS)
    kl_base_file(files[1], OTHER, TOKENS)
    # raised tokens add up to more than 1, or there would be nothing to normalize
    assert np.log(np.exp(held).sum(axis=1)).max() > 1e-6
    tokens = score_logs(files)
    true = log_softmax(spread.astype(np.float64), axis=1)[PLACES, TARGETS]
    is_seen = spread[PLACES, TARGETS] > spread.max(axis=1) - 16
    assert np.abs(tokens.base - true)[is_seen].max() < 2e-4


def test_right_tokens_that_a_file_cuts_are_counted_and_noted(cli, files):
    """The files then say a lower perplexity than the logits have."""
    spread = LOGITS.copy()
    spread[PLACES[:5], TARGETS[:5]] = spread.max(axis=1)[:5] - 20
    held = kl_base_file(files[0], spread, TOKENS)
    kl_base_file(files[1], LOGITS, TOKENS)
    lows = [logits.max(axis=1) - 16 for logits in (spread, LOGITS)]
    is_cut = spread[PLACES, TARGETS] < lows[0]
    is_cut |= LOGITS[PLACES, TARGETS] < lows[1]
    count = int(is_cut.sum())
    true = log_softmax(spread.astype(np.float64), axis=1)[PLACES, TARGETS]
    assert held[PLACES, TARGETS].mean() > true.mean()
    assert score_logs(files).cut == count >= 5
    assert cli("compare", *files, "--json").json["cut_tokens"] == count
    assert f"{count} right tokens are less likely" in cli("compare", *files).stderr


def test_intervals_are_over_documents():
    """Tokens of a document that are all alike say no more than one of them."""
    documents = 60
    length = 50
    of_document = np.random.default_rng(1).gamma(2, 0.01, documents)
    tokens = np.repeat(of_document, length)
    place = np.repeat(np.arange(documents), length)
    zeros = np.zeros(len(tokens))
    scored = ScoredTokens(place, place, tokens, -tokens, -tokens, zeros == 0)
    rows = statistics(scored)
    kld = next(row for row in rows if row["name"] == "Mean KLD")
    # 1.96: the normal quantile of 95 %; the bootstrap comes within a fifth of it
    half = 1.96 * np.std(of_document) / np.sqrt(documents)
    assert (kld["high"] - kld["low"]) / 2 == pytest.approx(half, rel=0.2)
    # llama.cpp's own takes 3,000 tokens for independent, 50 times too many
    assert kld["uncertainty"] < half / 5


def test_positions_are_those_of_the_context(files):
    kl_base_file(files[0], LOGITS, TOKENS)
    kl_base_file(files[1], OTHER, TOKENS)
    tokens = score_logs(files)
    groups = by_position(tokens)
    assert [groups[0]["positions"], groups[-1]["positions"]] == ["16 to 17", "30 to 31"]
    first = tokens.kl.reshape(CHUNKS, ROWS)[:, :2]
    assert groups[0]["mean_kld_nats"] == pytest.approx(first.mean())
    assert sum(group["scored"] for group in groups) == len(TARGETS)


def test_compare_prints_them_and_refuses_other_tokens(cli, files):
    kl_base_file(files[0], LOGITS, TOKENS)
    kl_base_file(files[1], LOGITS, TOKENS)
    report = cli("compare", *files, "--json").json
    values = {figure["name"]: figure["value"] for figure in report["figures"]}
    assert report["positions"] == CHUNKS * ROWS
    assert report["chunks"] == CHUNKS
    assert values["Maximum KLD"] == 0
    assert not are_logs(files[:1])
    others = TOKENS.copy()
    # a token of the first half, which no figure uses
    others[3, 0] += 1
    kl_base_file(files[1], LOGITS, others)
    with pytest.raises(DumpError, match=r"q\.kld: has other tokens than base\.kld"):
        score_logs(files)


def test_any_pair_with_token_ids_is_a_corpus(cli, tmp_path):
    """The last row of a prompt has no right token; probabilities are normalized over all tokens."""
    tokens = RANDOM.integers(0, VOCAB, (4, 6))
    random = np.random.default_rng(7)
    base = random.normal(0, 3, (4, 6, VOCAB)).astype(np.float32)
    other = base + random.normal(0, 0.3, base.shape).astype(np.float32)
    dump = saved(tmp_path, reference=base, variant=other, token_ids=tokens)
    (report,) = cli("compare", dump, "--corpus", "--json").json["corpora"]
    values = {figure["name"]: figure["value"] for figure in report["figures"]}
    p, q = (log_softmax(side[:, :-1].astype(np.float64), axis=2) for side in (base, other))
    next_tokens = tokens[:, 1:, None]
    right = np.take_along_axis(p, next_tokens, 2)
    right_q = np.take_along_axis(q, next_tokens, 2)
    assert report["positions"] == 4 * 5
    assert report["prompts"] == 4
    assert report["variant"] == "variant"
    kl = (np.exp(p) * (p - q)).sum(axis=2)
    dp = np.exp(right_q) - np.exp(right)
    assert values["Mean KLD"] == pytest.approx(kl.mean())
    assert values["Maximum Δp"] == pytest.approx(100 * dp.max())


def test_a_run_without_tokens_is_no_corpus(cli, tmp_path):
    dump = saved(tmp_path, reference=LOGITS[:4], variant=OTHER[:4])
    assert "token ids" in cli("compare", dump, "--corpus").refusal


def test_a_token_beyond_the_vocabulary_is_refused_and_an_infinite_kl_counted(cli, tmp_path):
    base = LOGITS[:4]
    tokens = np.arange(4)
    other = base.copy()
    other[1, 2] = -np.inf
    dump = saved(tmp_path, reference=base, variant=other, token_ids=tokens)
    report = cli("compare", dump, "--corpus", "--json").json["corpora"][0]
    # of four: the last has no next token, and KL is infinite at the one with -inf
    assert report["positions"] == 2
    assert report["left_out"] == 1
    saved(tmp_path, reference=base, variant=base, token_ids=tokens + VOCAB)
    assert "beyond the vocabulary" in cli("compare", dump, "--corpus").refusal
