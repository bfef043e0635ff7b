"""Rounds of watched endpoints, as a store has them. Without the HTTP client that `watch` asks with:
the dashboard reads them before its first page.
"""

from contextlib import suppress
from datetime import datetime

import msgspec

from ..runs.store.store import Store
from ..text import number

FOLDER = ".watches"


class Round(msgspec.Struct, frozen=True):
    """One round, a line of a store's `.watches/KEY.jsonl`; the baseline is the first one.

    server: as it calls itself; noise_nats: largest distance of a repeat from the first answers;
    distance_nats: None without comparable answers; since: first round that moved, None if it has
    not; run: that was stored then; is_down: there was no answer.
    """

    url: str
    server: str
    baseline: str
    noise_nats: float
    limit_nats: float
    at: datetime
    distance_nats: float | None = None
    since: datetime | None = None
    run: str = ""
    notes: tuple[str, ...] = ()
    is_down: bool = False

    @property
    def text(self) -> str:
        """The state after the round, in words."""
        moved = f"moved since {self.since:%Y-%m-%d %H:%M:%S} UTC" if self.since else "not moved"
        size = "other tokens"
        if self.distance_nats is not None:
            size = (
                f"{number(self.distance_nats)} nats from the baseline, limit"
                f" {number(self.limit_nats)}"
            )
        state = f"has {moved}: {size}"
        # versions before had no is_down
        if self.is_down or self.distance_nats is self.since is None:
            state = f"is down, so it is undecided; it had {moved}"
        return " ".join([f"{self.url} {state}.", *self.notes])


def read_rounds(store: Store, pattern: str = "*.jsonl") -> list[list[Round]]:
    """Read the rounds of each watched endpoint since its latest baseline."""
    if store.mirror is not None:
        store.mirror.bring(FOLDER)
    histories = []
    for path in sorted((store.directory / FOLDER).glob(pattern)):
        rounds = []
        for line in path.read_bytes().splitlines():
            # a process was killed while it wrote
            with suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
                rounds.append(msgspec.json.decode(line, type=Round))
        if rounds:
            histories.append([one for one in rounds if one.baseline == rounds[-1].baseline])
    return histories
