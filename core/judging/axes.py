"""Axes of `--tests state`: ways to ask the same, which must not change the answer.

A table of data: what is sent before the measured request, and how that one differs from the cold
reference. Nothing is sent here.
"""

from dataclasses import dataclass
from typing import Any

Case = Any  # a text or token ids, all of one kind
TOKENS = 8  # that each request generates
# of prompts: 1 + k for k drafted tokens, and around the sizes of cache pages
LENGTHS = (
    *range(2, 10),
    *(15, 16, 17, 31, 32, 33, 63, 64, 65),
    *(127, 128, 129, 255, 256, 257),
)
NEIGHBORS = (1, 2, 4, 8, 16, 45)  # requests in flight, one count a prompt
BLOCK = 16  # tokens of the smallest usual page
_CHARACTERS = 4  # of a token, if a server takes texts only
_STRIDE = 37  # between the beginnings of two prompts, so that none is a prefix of another

# what is sent before the measured request
SAME, OTHER, SAMPLED, CANCELED = "same", "other", "sampled", "canceled"
ADAPTER = "same prompt, other adapter"


@dataclass(frozen=True)
class Axis:
    """One way to ask. before: what is sent first, for each prompt; is_warm: the cache may be read,
    else no cache can be at fault; tokens: to generate; is_continued: half of the reference's tokens
    are given with the prompt.

    has_neighbors: other requests are in flight; has_prompt_rows: the prompt's own rows are asked
    for; has_values: log-probabilities are, else tokens alone are compared; fillers: other prompts
    that are sent after all prompts and before the measured requests.
    """

    name: str
    meaning: str
    before: tuple[str, ...] = ()
    is_warm: bool = False
    tokens: int = TOKENS
    is_continued: bool = False
    has_neighbors: bool = False
    has_prompt_rows: bool = False
    has_values: bool = True
    fillers: int = 0

    def requests(self, prompts: int) -> int:
        """Return how many requests it takes."""
        in_flight = sum(neighbors_of(number) for number in range(prompts)) * self.has_neighbors
        return prompts * (1 + len(self.before) + (self.fillers > 0)) + in_flight + self.fillers


AXES = (
    Axis("rerun", "the cold request again"),
    Axis("first token", "one token to generate instead of 8", tokens=1),
    Axis("long answer", "32 tokens to generate instead of 8", tokens=32),
    Axis("tokens alone", "log-probabilities are not requested", has_values=False),
    Axis("continuation", "cold, with half of the answer given as prompt", is_continued=True),
    Axis("neighbors", "cold, while 1 to 45 other requests are in flight", has_neighbors=True),
    Axis("warm", "the prompt is in the cache", (SAME,), is_warm=True),
    Axis(
        "next turn",
        "the prompt is in the cache, half of the answer is given",
        (SAME,),
        is_warm=True,
        is_continued=True,
    ),
    Axis(
        "prompt rows",
        "rows of a prompt that is in the cache",
        (SAME,),
        is_warm=True,
        has_prompt_rows=True,
    ),
    Axis("other prompt", "another prompt came between", (SAME, OTHER), is_warm=True),
    Axis("sampled", "after the same prompt at temperature 1", (SAMPLED,), is_warm=True),
    Axis("canceled", "after a canceled stream of the prompt", (CANCELED,), is_warm=True),
    Axis("pressure", "after 48 other prompts of about 300 tokens", is_warm=True, fillers=48),
    # the last: no other axis reads the entries that it leaves
    Axis("other adapter", "after the same prompt with another adapter", (ADAPTER,), is_warm=True),
)


def neighbors_of(number: int) -> int:
    """Return how many other requests are in flight for a prompt, by its number."""
    return NEIGHBORS[number % len(NEIGHBORS)]


def cases_of(prompts: list[Case]) -> list[Case]:
    """Return the prompts, and cuts of them to `LENGTHS`: tokens, or characters of texts."""
    pool = prompts[0][:0]
    for prompt in prompts:
        pool += prompt
    unit = _CHARACTERS if isinstance(pool, str) else 1
    cuts = []
    for number, length in enumerate(LENGTHS):
        start = number * _STRIDE * unit % len(pool)
        turned = pool[start:] + pool[:start]
        repeats = 1 + length * unit // len(pool)
        cuts.append((turned * repeats)[: length * unit])
    return [*prompts, *cuts]


def with_wrong_block(case: Case, other: Case) -> Case:
    """Return a prompt that begins with tokens of another one: a block, at most half of it.

    They are in reverse: cuts of a text that repeats itself would have the same block.
    """
    unit = _CHARACTERS if isinstance(case, str) else 1
    end = min(
        BLOCK * unit,
        len(case) // 2,
        len(other),
    )
    return other[:end][::-1] + case[end:]
