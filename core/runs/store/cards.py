"""The gallery: one card a run file, read in under a millisecond each; what cannot be read is listed
by name with the reason.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ...errors import StoreError, UsageError
from ...numerics.formats import format_named
from ...text import clean, plural
from ..file.database import Database, each_database
from ..file.records import ALL, MAX_SIDES
from ..queries.verdicts import shown_verdict
from ..tables.run import read_run
from .labels import Labels
from .store import Store

SEARCHED_CHARACTERS = 2000  # of the beginning of each prompt
# no more of a run, so that a thousand runs of many prompts do not fill the memory
_SEARCHED_PROMPTS = 64
# the tokens of the vocabularies there are stay below it
_LONGEST_TOKEN = 200
# several fetch run files, since each waits for the network most of the time
_AFAR_THREADS = 8


class RunCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run at a glance. flips (None if unknown), max_ulps (of the compute dtype), max_row_ulps,
    rms_row_ulps (None of lists), noise_ratio (None if not measured), max_neq_share and
    nonfinite_mismatch are those of its worst pair.

    keep: which logits are stored (core.runs.file.records). verdicts: those that are stored;
    pair_verdicts: what is shown for each pair, judged or not (core.runs.queries.verdicts).
    """

    run_id: str
    name: str
    created: datetime
    kind: str
    model: str
    compute_dtype: str
    device: str
    prompts: int
    positions: int
    vocab: int
    pairs: int
    bit_identical_pairs: int
    flips: int | None
    max_ulps: int | None
    max_row_ulps: float | None
    rms_row_ulps: float | None
    noise_ratio: float | None
    max_neq_share: float
    nonfinite_mismatch: int
    verdicts: str
    pair_verdicts: tuple[str, ...]
    sides: tuple[str, ...]
    bytes: int
    is_read_only: bool
    keep: str = msgspec.field(default=ALL, name="kept")


@dataclass(frozen=True)
class BrokenRun:
    """A file in the store that is not a readable run."""

    path: Path
    reason: str


Results = dict[Path, RunCard | StoreError]


def list_runs(store: Store) -> tuple[list[RunCard], list[BrokenRun]]:
    """All runs of a store, newest first, and the files that are none."""
    cards, broken_runs = arrange(store, read_cards(store, store.paths()))
    return rename(cards, store.all_labels()[0]), broken_runs


def read_cards(store: Store, paths: Sequence[Path]) -> Results:
    """Cards of runs of a store; those of objects come from its index, or are read from the files
    and added to it.
    """
    mirror = store.mirror
    if mirror is None:
        return read_runs(paths)
    own = [path for path in paths if store.is_writable(path)]
    indexed = mirror.cards()
    cards: Results = {}
    for path in own:
        # not in the index, or by another version
        with suppress(KeyError, msgspec.MsgspecError, RecursionError):
            cards[path] = msgspec.json.decode(indexed[path.stem], type=RunCard)
    missing = [path for path in own if path not in cards]

    def read(path: Path) -> RunCard | StoreError:
        try:
            with mirror.fetch_once(path.stem) as fetched:
                return read_runs([fetched])[fetched]
        except StoreError as error:
            return error

    with ThreadPoolExecutor(_AFAR_THREADS, thread_name_prefix="ulpscope-listing") as pool:
        cards |= zip(missing, pool.map(read, missing), strict=True)
    # a file that cannot be read is asked again next time
    new_cards = [card for card in map(cards.get, missing) if isinstance(card, RunCard)]
    if new_cards:
        mirror.remember({card.run_id: msgspec.json.encode(card) for card in new_cards})
    cards |= read_runs([path for path in paths if path not in cards])
    return {path: cards[path] for path in paths}


def read_runs(paths: Sequence[Path]) -> Results:
    """Read the card of every run file, or why it is none."""
    return dict(each_database(paths, card_of))


def arrange(
    store: Store,
    results: Results,
) -> tuple[list[RunCard], list[BrokenRun]]:
    """Sort cards, newest first, and split off unreadable files. results: of `read_runs`, of files
    of the store.
    """
    cards = []
    broken_runs = []
    for path, card in results.items():
        if isinstance(card, StoreError):
            broken_runs.append(BrokenRun(path, str(card)))
        else:
            cards.append(replace(card, is_read_only=path.parent in store.read_only))
    return sorted(cards, key=lambda card: (card.created, card.run_id), reverse=True), broken_runs


def rename(cards: Sequence[RunCard], labels: Mapping[str, Labels]) -> list[RunCard]:
    """Cards with the names that members gave their runs."""
    none = Labels()
    return [replace(card, name=labels.get(card.run_id, none).name or card.name) for card in cards]


def drop_replaced(cards: Sequence[RunCard], labels: Mapping[str, Labels]) -> list[RunCard]:
    """Cards without those of runs whose judged run is among `cards` too."""
    run_ids = {card.run_id for card in cards}
    replaced = {run_id for run_id, each in labels.items() if each.judged_as in run_ids}
    return [card for card in cards if card.run_id not in replaced]


def count_verdicts(cards: Sequence[RunCard]) -> str:
    """Say how many runs there are, and how many of their pairs have which verdict, the most
    frequent first.
    """
    counts = Counter(clean(name) for card in cards for name in card.pair_verdicts)
    if not counts:
        return f"{plural(len(cards), 'run')}."
    of_each = ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
    return f"{plural(len(cards), 'run')} with {plural(counts.total(), 'pair')}: {of_each}."


def prompt_texts(paths: Sequence[Path]) -> dict[Path, str]:
    """Return the first characters of each run's prompts, one per line, for searching; empty if it
    is no run here.
    """
    results = each_database(paths, _read_prompt_texts)
    return {path: "" if isinstance(text, StoreError) else text for path, text in results}


def _read_prompt_texts(database: Database) -> str:
    """Read prompts joined and cut by the database, so that an untrusted file cannot send more than
    a run has.
    """
    rows = database.rows(
        "SELECT prompt, left(string_agg(left(text, ?), '' ORDER BY position), ?) FROM"
        " run_file.token WHERE prompt < ? AND position < ? AND text IS NOT NULL GROUP BY prompt"
        " ORDER BY prompt",
        [_LONGEST_TOKEN, SEARCHED_CHARACTERS, _SEARCHED_PROMPTS, SEARCHED_CHARACTERS],
        most=_SEARCHED_PROMPTS,
    )
    return "\n".join(text for _, text in rows)


_ABOUT = ("name", "created", "kind", "model", "compute_dtype", "device", "positions", "vocab")
_WORST = (
    "flips",
    "max_ulps",
    "max_row_ulps",
    "rms_row_ulps",
    "noise_ratio",
    "max_neq_share",
    "nonfinite_mismatch",
)
_PAIRS = (
    "SELECT pair, bit_identical, verdict, CASE WHEN same_top1 IS NOT NULL THEN flips END, max_ulps,"
    " max_row_ulps, rms_row_ulps, noise_ratio, neq_share, nonfinite_mismatch FROM run_file.pair"
)


def card_of(database: Database) -> RunCard:
    """Read the card of a run file. Plain queries: planning one that adds up takes as long as all of
    these.
    """
    path = database.path
    about = read_run(database)
    # probes of operations do not say what they kept
    keep = about["kept"] or ALL
    # files have their rows in any order
    pairs, sides = (
        sorted(database.rows(sql, most=MAX_SIDES), key=itemgetter(0))
        for sql in (_PAIRS, "SELECT side, name FROM run_file.side")
    )
    ((prompts,),) = database.rows("SELECT count(*) FROM run_file.prompt")
    try:
        # of a run without pairs there are none
        worst: dict[str, float | None] = {"max_neq_share": 0, "nonfinite_mismatch": 0}
        for column, name in enumerate(_WORST, 3):
            values = [row[column] for row in pairs if row[column] is not None]
            worst[name] = max(values, default=worst.get(name))
        logits_bytes = 0
        if about["kind"] != "ops" and keep == ALL:
            itemsize = format_named(about["compute_dtype"]).itemsize
            logits_bytes = len(sides) * about["positions"] * about["vocab"] * itemsize
        size = path.stat().st_size
        # logits are not compressed: a smaller file has lost some
        if size < logits_bytes:
            raise StoreError(
                f"{database.file}: {size} bytes cannot hold its {logits_bytes} bytes of logits; the"
                " file is damaged.",
            )
        card = {
            **{name: about[name] for name in _ABOUT},
            **worst,
            "run_id": path.stem,
            "prompts": prompts,
            "pairs": len(pairs),
            "bit_identical_pairs": sum(bool(is_same) for _, is_same, *_ in pairs),
            "verdicts": ", ".join(sorted({row[2] for row in pairs} - {None})),
            "pair_verdicts": [
                shown_verdict(about["kind"], bool(is_same), verdict)
                for _, is_same, verdict, *_ in pairs
            ],
            "sides": [name for _, name in sides],
            "bytes": size,
            "is_read_only": True,
            "kept": keep,
        }
        return msgspec.convert(card, RunCard)
    except (UsageError, TypeError, ValueError) as error:
        raise StoreError(f"{path.name}: its provenance is invalid ({error}).") from error
