"""Frozen records of a run, which check themselves.

Words: a run has prompts and sides; a side is `[rows, vocab]` logits; a *row* is
one position of one prompt, prompts one after another; the first side is the reference; a pair is
the reference and one variant.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...errors import StoreError, UsageError
from ...numerics.arrays import Ints
from ...numerics.formats import FloatFormat, format_named
from ...numerics.metrics import Summary
from ...places import of_values
from ...text import clean, plural

# Bounds of a run, of a dump as of a run file: far from what is real, so near that a small file
# cannot cost much.
# A sweep over every batch size from 1 to 256 with its reference is 257 sides; six repeats of 80
# variants are 480. Besides its logits a side costs 7 ms to import and 10 KB of disk, a pair as much
# again on pages that list all pairs.
MAX_SIDES = 512
MAX_VOCAB = 1 << 22  # 15 times the largest vocabulary in use
# positions of all prompts together, of whole rows; a longer run of responses is read in parts only
MAX_ROWS = 1 << 20
MAX_LISTED_ROWS = 128 * MAX_ROWS  # positions of responses of two sides

# of lists: 20 a row, 100,000 rows on eight sides; read whole, they take 400 MB
MAX_VALUES = 16 * MAX_ROWS

# Characters of a token's text. The longest tokens in use are 128 spaces (of Llama 3 and GPT-4o) or
# some words of a chat template between brackets; as `<0xE2>` for each byte, a token has six times
# its bytes.
LONGEST_TOKEN = 1024
# of all tokens of a run: 16 each at MAX_ROWS. Four are usual, nine in Chinese or Hindi.
TOKENS_TOGETHER = 16 << 20
LONGEST_NAME = 1000  # of a run
LONGEST_SIDE_NAME = 800
LONGEST_NOTE = 1 << 20

VALUE = "value"  # of an embedding, a hidden state, a score: rows have no tokens
UNITS = {"logit": "logits", "logprob": "nats", VALUE: "units"}
# Which logits a run stores; figures are always of all. Of 512 positions of 128,256 tokens in
# bfloat16, two sides of 263 MB: 298 MB with all, 0.7 MB with figures.
ALL, FIGURES = KEEPS = ("all", "figures")
# Bytes of a run file without its logits: per position of a side, and per run. Files of random
# bfloat16 logits, 40 to 4,096 positions, 1,000 to 128,256 tokens, 2 and 5 sides, took 0.4 to 0.9 of
# that; one of float32 1.5, for there are as many ULP distances in its histogram.
_BYTES_OF_A_ROW = 900
_BYTES_OF_A_RUN = 400_000


def check_token_texts(texts: Iterable[str]) -> None:
    """UsageError for the text of a token that is longer than any tokenizer's, or texts that are
    together.
    """
    lengths = [len(text) for text in texts]
    for what, size, most in (
        ("the text of a token has", max(lengths, default=0), LONGEST_TOKEN),
        ("the texts of all tokens have together", sum(lengths), TOKENS_TOGETHER),
    ):
        if size > most:
            raise UsageError(f"{what} {size:,} characters; expected at most {most:,}.")


@dataclass(frozen=True)
class Prompt:
    """One token sequence. `token_ids` and `token_texts` are empty if a dump did not bring them."""

    positions: int
    token_ids: tuple[int, ...] = ()
    token_texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.positions < 1:
            raise UsageError("a prompt needs at least one position.")
        for what, values in (("token ids", self.token_ids), ("token texts", self.token_texts)):
            if values and len(values) != self.positions:
                raise UsageError(
                    f"{len(values)} {what} for {plural(self.positions, 'position')}; expected one"
                    " for each.",
                )


@dataclass(frozen=True)
class SideHeader:
    """One side as announced before its logits: its name, the path that computes it, and the dtype
    its array came in.

    `source_dtype` is what the array was saved as (float32 if an engine upcast its bfloat16 logits);
    the run file keeps the same values in the run's compute dtype, and export restores the source
    dtype bit for bit.
    """

    name: str
    path: str
    source_dtype: str

    def __post_init__(self) -> None:
        if not self.name.strip() or len(self.name) > LONGEST_SIDE_NAME:
            raise UsageError(
                f"a side needs a name of 1 to {LONGEST_SIDE_NAME} characters, not"
                f" {len(self.name):,}.",
            )
        format_named(self.source_dtype)


@dataclass(frozen=True)
class Provenance:
    """Origin of the logits. `kind` is 'capture' or 'upload'; unknown text is ''; `seed` is None if
    none was used; `request` is the request of the capture, the text of a JSON object, None if
    nothing was captured.
    """

    kind: str
    model: str = ""
    revision: str = ""
    device: str = ""
    device_name: str = ""
    seed: int | None = None
    command: str = ""
    note: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    request: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("capture", "upload"):
            raise UsageError(f"a run is a 'capture' or an 'upload', not '{self.kind}'.")


@dataclass(frozen=True)
class Generation:
    """Greedy continuation of one prompt by every side, each from its own argmax.

    The first `given_positions` positions of the prompt were given. `tokens[side]`: what a side
    generated, at most `asked` tokens; `texts[side]`: the same as text.
    """

    prompt: int
    given_positions: int
    asked: int
    tokens: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.given_positions < 1 or any(
            len(generated) > self.asked for generated in self.tokens
        ):
            raise UsageError(
                f"prompt {self.prompt}: a generation continues at least one position by at most the"
                " tokens requested.",
            )

    def parting(self, side: int) -> int | None:
        """Return the position of the prompt whose logits made `side` choose another token than side
        0, or None.
        """
        # a text ends with a token like any other
        both = zip(self.tokens[0], self.tokens[side], strict=False)
        step = next((step for step, (first, second) in enumerate(both) if first != second), None)
        return None if step is None else self.given_positions - 1 + step


@dataclass(frozen=True)
class StoredPair:
    """A pair of the run with the names of its sides, its summary and, if it was judged, its
    verdict.
    """

    index: int
    reference: str
    variant: str
    summary: Summary
    verdict: str | None
    because: str | None = None
    noise_ratio: float | None = None
    first_place: tuple[int, int] | None = None  # (prompt, position)


@dataclass(frozen=True)
class RunHeader:
    """Everything about a run that is known before the first logit.

    `vocabulary` maps token id to text, as far as known (all of it for captures), so that a viewer
    needs no tokenizer. `keep`: of KEEPS, which logits are stored. `k`: most values per position
    that a server sent, None of whole rows; then `holds` is 'logprob', `compute_dtype` is '' and
    `vocab` 0 if unknown. If `holds` is 'value', `vocab` is the number of values in a row.
    """

    name: str
    compute_dtype: str
    vocab: int
    prompts: tuple[Prompt, ...]
    sides: tuple[SideHeader, ...]
    provenance: Provenance
    vocabulary: dict[int, str] = field(default_factory=dict)
    created: datetime | None = None
    keep: str = ALL
    k: int | None = None
    holds: str = "logit"

    def __post_init__(self) -> None:
        if self.compute_dtype or not self.is_list:
            format_named(self.compute_dtype)
        if self.keep not in KEEPS:
            raise UsageError(f"--keep '{clean(self.keep, 40)}': expected {', '.join(KEEPS)}.")
        if self.vocab < 2 and not self.is_list and self.has_tokens:
            raise UsageError(
                f"a vocabulary of {self.vocab} cannot have a margin; expected at least two tokens.",
            )
        if self.holds not in UNITS:
            raise UsageError(
                f"values are '{clean(self.holds, 40)}'; expected {' or '.join(UNITS)}.",
            )
        if not 2 <= len(self.sides) <= MAX_SIDES:
            raise UsageError(f"a run has from 2 to {MAX_SIDES} sides, not {len(self.sides):,}.")
        if not self.prompts:
            raise UsageError("a run needs at least one prompt.")
        if len(self.name) > LONGEST_NAME:
            raise UsageError(
                f"the name of a run has {len(self.name):,} characters; expected at most"
                f" {LONGEST_NAME:,}.",
            )
        check_token_texts(text for prompt in self.prompts for text in prompt.token_texts)
        names = [side.name for side in self.sides]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(
                f"two sides are called '{twice[0]}'; every side of a run needs its own name.",
            )

    @property
    def format(self) -> FloatFormat:
        return format_named(self.compute_dtype or "float32")

    @property
    def has_tokens(self) -> bool:
        """Whether rows are over a vocabulary; other values have no argmax and no softmax."""
        return self.holds != VALUE

    @property
    def unit(self) -> str:
        """Unit of the values and of their differences."""
        return UNITS[self.holds]

    @property
    def quantity(self) -> str:
        """Values and their unit, for captions: `logits of bfloat16`, `log-probabilities, nats`."""
        if self.is_list:
            return "log-probabilities, nats"
        return f"{self.elements} of {self.compute_dtype}"

    @property
    def elements(self) -> str:
        """Word for the elements of a row: `logits`, or `values`."""
        return "logits" if self.has_tokens else "values"

    @property
    def size(self) -> str:
        """`24 positions x 2,048 tokens`, or `8 rows x 768 values`."""
        row, column = ("position", "token") if self.has_tokens else ("row", "value")
        return f"{plural(self.rows, row)} x {plural(self.vocab, column)}"

    def worded(self, sentence: str) -> str:
        """Return a sentence on positions, logits and tokens in the words of this run."""
        return sentence if self.has_tokens else of_values(sentence)

    @property
    def has_several_prompts(self) -> bool:
        """Whether a position needs its prompt to be found."""
        return len(self.prompts) > 1

    def of_prompt(self, prompt: int) -> str:
        """` of prompt 1`, which a position needs if there are several; else ''."""
        return f" of prompt {prompt}" if self.has_several_prompts else ""

    def row_of(
        self,
        prompts: NDArray[np.integer],
        positions: NDArray[np.integer],
    ) -> Ints:
        """Rows of places. [places]"""
        starts = np.cumsum([0, *self.lengths])
        return starts[prompts] + positions

    @cached_property
    def lengths(self) -> list[int]:
        """Positions of each prompt."""
        return [prompt.positions for prompt in self.prompts]

    @cached_property
    def rows(self) -> int:
        """Positions of all prompts together."""
        return sum(self.lengths)

    @property
    def is_list(self) -> bool:
        """Whether its rows are lists of some tokens, as servers send them."""
        return self.k is not None

    @property
    def is_long(self) -> bool:
        """Whether its figures are never read as a whole: lists of more positions than a run of
        whole rows has.
        """
        return self.is_list and self.rows > MAX_ROWS

    def check_short(self) -> None:
        """Raise StoreError if the run is too long to read all of its positions."""
        if self.is_long:
            raise StoreError(
                f"a run of {self.rows:,} positions is too long for this; its Overview, `show` and"
                " `compare` sum it up.",
            )

    @property
    def side_bytes(self) -> int:
        """Bytes of one side's logits."""
        return self.rows * self.vocab * self.format.itemsize

    @property
    def file_bytes(self) -> int:
        """Bytes of its run file, about."""
        if self.keep == FIGURES:
            return _BYTES_OF_A_RUN + len(self.sides) * self.rows * _BYTES_OF_A_ROW
        return len(self.sides) * self.side_bytes

    @property
    def kept_note(self) -> str:
        """Note on what its figures are over; empty if all logits are there."""
        if not self.is_list:
            return "Kept: figures only, no logits." if self.keep == FIGURES else ""
        if self.k == 1:
            return "One log-probability per position: figures cover those that both sides have."
        return (
            f"A server sent the log-probabilities of its top {self.k:,} tokens per position:"
            " figures cover the values that both sides sent."
        )

    @property
    def without_logits(self) -> str:
        """Sentence on why the run has no logits."""
        if not self.is_list:
            return "this run keeps figures only, no logits; capture it again with --keep all."
        return "this run has log-probabilities of some tokens only."

    def places(self) -> list[tuple[int, int]]:
        """(prompt, position) of every row, in order."""
        return [(p, t) for p, prompt in enumerate(self.prompts) for t in range(prompt.positions)]
