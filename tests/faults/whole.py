"""Invariants of a store after any failure of the processes that worked on it."""

import hashlib
from dataclasses import dataclass, field

from core.judging.ingest import ingest
from core.runs.reader import RunReader
from core.runs.store.cards import list_runs
from core.runs.store.store import Store
from tests.faults.nursery import dump_of


@dataclass
class Watched:
    """A store and every run that was ever seen whole in it: run id to the SHA-256 of its file."""

    store: Store
    known: dict[str, str] = field(default_factory=dict)

    def check(self):
        """Every visible run is whole, every one that was seen before is there or in the trash bit
        for bit, labels can be read.
        """
        paths = {path.stem: path for path in self.store.paths()}
        cards, unreadable = list_runs(self.store)
        assert unreadable == [], f"half a run is visible: {unreadable[0].reason}"
        # What a killed server had begun may come to its end meanwhile.
        assert (
            paths.keys()
            <= {card.run_id for card in cards}
            <= {path.stem for path in self.store.paths()}
        )
        deleted = {run.run_id: run.path for run in self.store.deleted()}
        for run_id, digest in self.known.items():
            path = paths.get(run_id) or deleted.get(run_id)
            assert path is not None, f"run {run_id} is lost"
            assert _digest(path) == digest, f"run {run_id} has changed"
        for run_id in paths.keys() - self.known.keys():
            read_whole(paths[run_id])
            self.known[run_id] = _digest(paths[run_id])
        broken_labels = self.store.all_labels()[1]
        assert broken_labels == [], broken_labels

    def check_that_it_goes_on(self):
        """A sweep leaves nothing of the dead, and the next run is stored, without a hand."""
        run_id = ingest(self.store, [dump_of(self.store.directory.parent)], name="the next one")
        assert [
            path.name
            for path in self.store.directory.iterdir()
            if path.name.startswith(".partial-")
        ] == []
        self.check()
        assert run_id in self.known


def _digest(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_whole(path):
    """Every logit of every side is the one that was digested when the run was written."""
    with RunReader(path) as run:
        for side in run.sides:
            bits = run.read_rows(side.index, 0, run.header.rows)
            assert hashlib.sha256(bits.tobytes()).hexdigest() == side.sha256
        for pair in run.pairs:
            assert len(run.positions(pair.index)) == run.header.rows
