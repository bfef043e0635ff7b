"""The Near ties page: what is within a threshold in ULPs and in logits, and what the address
keeps.
"""

import pytest

from tests.app import opening
from tests.app.opening import page_text
from tests.core.runs.made_runs import sample

# two prompts of 442 and 287 positions, one variant, flips of prompt 1 at 30, 36 and 239
RUN = "fresh-against-cached"

pytestmark = pytest.mark.usefixtures("own_store")


def opened(**link):
    return opening.open_page("near_ties", **{"run": RUN, "prompt": "1", "position": "36", **link})


def listed(app):
    (table,) = [
        frame.value for frame in app.dataframe if "variant_margin_ulps" in frame.value.columns
    ]
    return sorted(table["position"].tolist())


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
        ({"unit": "logits", "logits": "0.5", "of": "all-prompts"}, "margin", "0.5", "≤ 0.5 logits"),
    ],
)
def test_the_count_in_words_is_that_of_the_file_and_the_table_lists_it(link, columns, limit, words):
    app = opened(**link)
    within = "true" if "of" in link else "prompt = 1"
    sides = [
        counted(f"{within} AND {side}_{columns} <= {limit}") for side in ("reference", "variant")
    ]
    either = sorted(set(sides[0]) | set(sides[1]))
    total = 729 if "of" in link else 287
    assert f"**{len(either)} of {total} (" in page_text(app)
    assert words in page_text(app)
    assert (
        f"{len(sides[0])} of {total} ({100 * len(sides[0]) / total:.1f}%) on the reference"
        in page_text(app)
    )
    assert listed(app) == sorted(position for _, position in either)
