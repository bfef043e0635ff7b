"""Files of torch.save are read to the bits that torch holds, and nothing in them is executed."""

import collections
import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch

from core.errors import DumpError
from core.runs.dumps.containers import open_container
from core.runs.dumps.dump import open_dump
from tests.core.runs.dumps.made_dumps import ROWS, VOCAB, bits_in, names_of


def logits(seed, dtype=torch.float32, shape=(ROWS, VOCAB)):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 5).to(dtype)


def bits_of(tensor):
    whole = tensor.detach().contiguous()
    # numpy has no bfloat16, and torch few operations on unsigned integers
    carrier = {2: torch.int16, 4: torch.int32}[whole.element_size()]
    return whole.view(carrier).numpy().view(f"<u{whole.element_size()}")


def saved(tmp_path, value, name="dump.pt"):
    torch.save(value, tmp_path / name)
    return tmp_path / name


VIEWS = {
    "later rows of a cut vocabulary": lambda t: t[2 : 2 + ROWS, :VOCAB],
    "every other row": lambda t: t[::2, 3 : 3 + VOCAB],
    "column by column": lambda t: t.T.contiguous().T,
    "of one request of a batch": lambda t: torch.stack([t, t])[1, :ROWS, :VOCAB],
    "parameter": lambda t: torch.nn.Parameter(t[:ROWS]),
    "leading axes": lambda t: t[None, None, :ROWS],
}


@pytest.mark.parametrize("view", VIEWS)
def test_views_of_larger_storages_are_read_as_what_they_show(tmp_path, view):
    sides = {
        name: VIEWS[view](
            logits(
                ord(name),
                shape=(2 * ROWS, VOCAB + 8),
            )
        )
        for name in "ab"
    }
    with open_dump([saved(tmp_path, sides)]) as dump:
        for bits, tensor in zip(bits_in(dump), sides.values(), strict=True):
            assert np.array_equal(bits, bits_of(tensor).reshape(bits.shape))


def test_two_files_of_one_tensor_are_a_pair(tmp_path):
    hf = logits(1)
    engine = logits(2)
    with open_dump(
        [
            saved(tmp_path, hf, "hf.pt"),
            saved(tmp_path, engine, "engine.pt"),
        ]
    ) as dump:
        assert names_of(dump) == ["hf", "engine"]
        assert np.array_equal(bits_in(dump)[1], bits_of(engine))


@pytest.mark.parametrize("step", [(VOCAB,), (1, VOCAB)])
def test_the_scores_of_generate_are_the_steps_of_a_side(tmp_path, step):
    """`outputs.scores` is a tuple of one tensor a step."""
    steps = logits(1)
    scores = tuple(row.reshape(step).clone() for row in steps)
    with open_dump([saved(tmp_path, {"a": scores, "b": scores})]) as dump:
        assert dump.rows == ROWS
        assert dump.vocab == VOCAB
        assert len(dump.prompts) == 1
        assert np.array_equal(bits_in(dump)[0], bits_of(steps))


def test_lists_and_ordered_and_nested_dicts_name_their_tensors(tmp_path):
    a = logits(1)
    b = logits(2)
    for value, names in (
        ([a, b], ["0", "1"]),
        (collections.OrderedDict(x=a, y=b), ["x", "y"]),
        ({"logits": {"x": a, "y": b}}, ["logits/x", "logits/y"]),
    ):
        with open_dump([saved(tmp_path, value)]) as dump:
            assert names_of(dump) == names


@pytest.mark.parametrize(
    "ids",
    [torch.arange(ROWS)[None], list(range(ROWS)), [list(range(ROWS))]],
)
@pytest.mark.parametrize("key", ["token_ids", "input_ids"])
def test_token_ids_come_as_a_tensor_or_as_a_list(tmp_path, key, ids):
    value = {
        "a": logits(1),
        "b": logits(2),
        key: ids,
        "compute_dtype": "float32",
        "temperature": 0.0,
        "prompt": "Hi",
        "tokens": list("abcdef"),
        "none": [],
    }
    with open_dump([saved(tmp_path, value)]) as dump:
        assert dump.prompts[0].token_ids == tuple(range(ROWS))
        assert dump.prompts[0].token_texts == tuple("abcdef")
        assert dump.dtype_reason[:8] == "declared"
        assert dump.warnings == ()


# ---- what is refused


class Evil:
    def __reduce__(self):
        return os.system, ("touch EXECUTED",)


def pickled(*arguments):
    """Protocol 2 of {"a": tensor, "b": tensor}, with the arguments of _rebuild_tensor_v2 as
    given.
    """

    class Storage:
        pass

    class Tensor:
        def __reduce__(self):
            return torch._utils._rebuild_tensor_v2, (
                Storage(),
                *arguments,
                False,
                collections.OrderedDict(),
            )

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            storage = ("storage", torch.FloatStorage, "0", "cpu", ROWS * VOCAB)
            return storage if isinstance(value, Storage) else None

    out = io.BytesIO()
    Pickler(out, protocol=2).dump({"a": Tensor(), "b": Tensor()})
    return out.getvalue()


def deep():
    value = [1]
    for _ in range(60):
        value = [value, value]
    return value


HUGE = 1 << 40
HOSTILE = {
    "code": pickle.dumps({"a": Evil()}, protocol=2),
    "code of protocol 4": pickle.dumps(Evil(), protocol=4),
    "attributes": (
        # BUILD with a slot state would set `__defaults__` of torch's own function
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nN}X\x0c\x00\x00\x00__defaults__)s\x86b."
    ),
    "empty": b"",
    "cut": b"\x80\x02}q\x00(X\x09\x00",
    "no tensors": pickle.dumps({"a": 1.0}, protocol=2),
    # 2^40 rows that are all the first one, by a stride of 0
    "expanded": pickled(0, (HUGE, 32), (0, 1)),
    "beyond the storage": pickled(100, (ROWS, VOCAB), (VOCAB, 1)),
    "negative": pickled(0, (-1, VOCAB), (VOCAB, 1)),
    "axes": pickled(0, (1,) * 65, (1,) * 65),
    # 60 levels, each holding the next one twice: a walk would meet 2^60 numbers
    "shared lists": pickle.dumps({"token_ids": deep(), "a": deep()}, protocol=2),
    "long lists": pickle.dumps({"token_ids": [[1] * 5000] * 5000}, protocol=2),
    "long texts": pickle.dumps({"tokens": ["x" * 100_000] * 5000}, protocol=2),
    "a dict in itself": b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_in_a_sentence_and_run_nothing(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("made.pt", "w") as file:
        file.writestr("made/data.pkl", HOSTILE[name])
        file.writestr("made/data/0", bytes(4 * ROWS * VOCAB))
    with pytest.raises(DumpError, match=r"made\.pt") as refusal:
        open_dump([tmp_path / "made.pt"])
    assert str(refusal.value).isprintable()
    assert [one.name for one in tmp_path.iterdir()] == ["made.pt"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": np.zeros((2, 3))}, r"more than tensors \(.*_reconstruct\)"),
        (torch.nn.Linear(2, 2), r"more than tensors \(torch.nn.modules.linear.Linear\)"),
        ({"a": [logits(1)[0]] * 1000}, "repeats what its storage holds"),
        ({"a": logits(1).to(torch.float8_e4m3fn)}, "is float8_e4m3fn; .*upcast it"),
        ({"a": logits(1).to_sparse()}, "'a' cannot be read"),
        ({str(number): torch.zeros(0, 8) for number in range(2)}, "is empty"),
    ],
)
def test_what_is_no_whole_tensor_of_logits_is_named(tmp_path, value, words):
    with pytest.raises(DumpError, match=words):
        open_dump([saved(tmp_path, value)])


def test_sides_that_share_a_storage_count_against_the_limit(tmp_path):
    shared = logits(1)
    path = saved(tmp_path, {str(number): shared for number in range(100)})
    with pytest.raises(DumpError, match="unpacks to"):
        # the file has one storage, but an npz of its 100 sides would have 100
        open_container(path, 50 * shared.nbytes)


def test_other_forms_are_named(tmp_path):
    packed = tmp_path / "packed"
    old = tmp_path / "old"
    path = saved(tmp_path, {"a": logits(1)})
    with zipfile.ZipFile(path) as plain, zipfile.ZipFile(packed, "w") as file:
        for member in plain.infolist():
            file.writestr(member.filename, plain.read(member), zipfile.ZIP_DEFLATED)
    torch.save({"a": logits(1)}, old, _use_new_zipfile_serialization=False)
    with pytest.raises(DumpError, match="compressed"):
        open_dump([packed])
    with pytest.raises(DumpError, match=r"PyTorch 1\.6 or later"):
        open_dump([old])


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9, 0.999])
def test_a_file_that_was_cut_is_refused(tmp_path, part):
    path = saved(tmp_path, {"a": logits(1), "b": logits(2)})
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    with pytest.raises(DumpError):
        open_dump([path])
