"""Small runs of random bits, for the tests of the run file. Run as a script it writes runs into a
store until it is killed.
"""

import itertools
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from core.judging.ingest import ingest
from core.numerics.formats import format_named
from core.runs.file.records import Prompt, Provenance, RunHeader, SideHeader
from core.runs.reader import RunReader
from core.runs.store.store import Store
from core.runs.writer import RunWriter
from tests.places import RUNS


def header_of(
    dtype="bfloat16",
    lengths=(3, 5),
    vocab=300,
    sides=2,
    name="a run",
):
    """A header whose prompts have token ids and texts, except the last of several."""
    prompts = [
        Prompt(
            n,
            tuple(range(n)),
            tuple(f"t{i}\n" for i in range(n)),
        )
        for n in lengths
    ]
    if len(prompts) > 1:
        prompts[-1] = Prompt(lengths[-1])
    announced = tuple(
        SideHeader(f"side_{i}", "prefill" if i == 0 else f"decode+batch:{i + 1}", dtype)
        for i in range(sides)
    )
    return RunHeader(
        name,
        dtype,
        vocab,
        tuple(prompts),
        announced,
        Provenance("capture", seed=7, versions={"torch": "2.13.0"}),
    )


def bits_of_sides(header):
    """[rows, vocab] a side: any bit pattern at all, so NaN payloads, infinities and subnormals too;
    variants part in some.
    """
    random = np.random.default_rng(0)
    fmt = header.format
    top = 1 << fmt.bits
    reference = random.integers(0, top, (header.rows, header.vocab), dtype=fmt.carrier)
    special = [
        0,
        top >> 1,
        1,
        (top >> 1) + 1,
        fmt.first_nonfinite,
        fmt.first_nonfinite + 1,
        top - 1,
    ]  # 0 -0 subnormals inf NaNs
    reference.ravel()[: len(special)] = special
    sides = [reference]
    for _ in header.sides[1:]:
        variant = reference.copy()
        is_other = random.random(variant.shape) < 0.3
        variant[is_other] ^= random.integers(
            0,
            16,
            int(is_other.sum()),
            dtype=fmt.carrier,
        )
        sides.append(variant)
    return sides


def calm_sides(header, seed=0):
    """[rows, vocab] a side: finite logits about 3 wide, variants a few ULPs away."""
    random = np.random.default_rng(seed)
    fmt = format_named(header.compute_dtype)
    reference = (
        (random.standard_normal((header.rows, header.vocab)) * 3)
        .astype(fmt.values)
        .view(fmt.carrier)
    )
    sides = [reference]
    sides += [
        reference + random.integers(0, 3, reference.shape, dtype=fmt.carrier)
        for _ in header.sides[1:]
    ]
    return sides


def sides_one_ulp_apart(header, row, token):
    """Calm sides that differ in this element alone."""
    same = calm_sides(header)[0]
    moved = same.copy()
    moved[row, token] ^= 1
    return [same, moved]


@contextmanager
def writing(
    store,
    header,
    sides=None,
    run_id=None,
):
    """A writer that was given whole sides, by default calm ones."""
    with RunWriter(store, header, run_id=run_id) as writer:
        for side, bits in enumerate(sides or calm_sides(header)):
            writer.write(side, 0, bits)
        yield writer


def write_run(store, header, sides=None, run_id=None):
    """Write whole sides at once, by default calm ones; returns the file."""
    with writing(store, header, sides, run_id) as writer:
        return store.path_of(writer.finish())


def make_run(store, seed=0, run_id=None):
    header = header_of()
    return write_run(store, header, calm_sides(header, seed), run_id)


@cache
def _whole_run():
    with TemporaryDirectory() as place:
        return make_run(Store(Path(place))).read_bytes()


def copied(path):
    """The run of `made` as a file of that name, made once and copied from then on: a hundred tests
    need one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_whole_run())
    return path


def opened(store, run_id):
    return RunReader(store.path_of(run_id))


def verdict_of(run):
    """The verdict of its first pair."""
    return run.pairs[0].verdict


def sample(name):
    """A sample run, as tests see them."""
    return RunReader(RUNS / f"{name}.duckdb")


def ingested(store, *paths, **options):
    """The run that files of a user become."""
    return opened(store, ingest(store, paths, **options))


if __name__ == "__main__":
    place = Store(Path(sys.argv[1]))
    limit = int(sys.argv[2]) if len(sys.argv) > 2 else None
    for number in itertools.islice(itertools.count(), limit):
        make_run(place, number)
        print(number, flush=True)
