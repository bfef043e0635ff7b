"""The Near ties page: what is within a threshold in ULPs and in logits, and what the address
keeps.
"""

import pytest

from tests.app.opening import open_page, page_text
from tests.core.runs.made_runs import sample

# two prompts of 442 and 287 positions, one variant, flips of prompt 1 at 30, 36 and 239
RUN = "fresh-against-cached"

pytestmark = pytest.mark.usefixtures("own_store")


def counted(where):
    """Straight out of the file, by SQL."""
    with sample(RUN) as run:
        return run._database.rows(
            f"SELECT prompt, position FROM position WHERE {where} ORDER BY prompt, position",
        )


@pytest.mark.parametrize(
    ("link", "columns", "limit", "words"),
    [
        ({}, "margin_ulps", "2", "≤ 2 ULPs of bfloat16"),
        ({"threshold": "1"}, "margin_ulps", "1", "≤ 1 ULP of bfloat16"),
        (
            {"unit": "logits", "logits": "0.5", "of": "all-prompts"},
            "margin",
            "0.5",
            "≤ 0.5 logits",
        ),
    ],
)
def test_the_count_in_words_is_that_of_the_file_and_the_table_lists_it(link, columns, limit, words):
    app = open_page("near_ties", run=RUN, prompt="1", position="36", **link)
    within, total = ("true", 729) if "of" in link else ("prompt = 1", 287)
    reference = counted(f"{within} AND reference_{columns} <= {limit}")
    variant = counted(f"{within} AND variant_{columns} <= {limit}")
    either = {*reference, *variant}
    share = len(reference) / total
    text = page_text(app)
    assert f"**{len(either)} of {total} (" in text
    assert words in text
    assert f"{len(reference)} of {total} ({share:.1%}) on the reference" in text
    tables = [frame.value for frame in app.dataframe]
    (table,) = (each for each in tables if "variant_margin_ulps" in each.columns)
    assert sorted(table["position"]) == sorted(position for _, position in either)
