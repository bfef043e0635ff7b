"""Probes of operations: planted operations whose answers are known are reported exactly, and torch's own are what torch
itself says.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from core.inference.ops.inputs import Draws, Inputs
from core.inference.ops.of_model import linear_operations_of
from core.inference.ops.operations import OPERATIONS, Operation, batches_of
from core.inference.ops.probing import ProbePlan, machine_settings, probe, probe_all, probes_of
from core.runs.reports.ops_wording import batch_says, says

CPU = torch.device("cpu")
WIDE = 64


def plan_of(*operations: Operation, **settings) -> ProbePlan:
    return ProbePlan(
        CPU,
        settings.pop("dtypes", ("float32",)),
        probes_of(CPU, (), False, (), operations),
        **{"repeats": 4, "seconds_each": 3600.0, "is_quick": True, **settings},  # repeats end it, on a busy machine too
    )


def make(source: Draws, rows: int, width: int) -> Inputs:
    """x [rows, width], w [width, 8]"""
    weight = source.values(width, 8)
    return Inputs((source.values(rows, width),), (weight,))


def in_order(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x @ w, every product added in the order of the width whatever the batch: element-wise operations only. [rows,
    8]
    """
    total = torch.zeros(len(x), w.shape[1], dtype=x.dtype)
    for k in range(len(w)):
        total = total + x[:, k : k + 1] * w[k]
    return total


def in_halves(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    half = len(w) // 2
    return in_order(x[:, :half], w[:half]) + in_order(x[:, half:], w[half:])


def planted(run, name: str = "planted") -> Operation:
    return Operation(name, "width {}", ((WIDE,),), make, run, exact=lambda given: given.rows[0] @ given.shared[0])


def steps_apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Representable float32s from a to b, by numpy's own walk from one to the next."""
    found = []
    for low, high in zip(np.minimum(a, b).ravel(), np.maximum(a, b).ravel(), strict=True):
        count = 0
        while low < high:
            low, count = np.nextafter(low, high), count + 1
        found.append(count)
    return np.array(found)


def numpy_sums(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    total = np.zeros(w.shape[1], np.float32)
    for k in range(len(w)):
        total = total + x[k] * w[k]
    return total


def test_a_reduction_split_beyond_batch_3_is_reported_with_exactly_its_boundary_and_distance():
    operation = planted(lambda given: (in_halves if given.batch > 3 else in_order)(given.rows[0], given.shared[0]))
    row = probe(operation, (WIDE,), "float32", plan_of(operation))
    assert [found.batches for found in row.classes] == [(1, 2, 3), (4, 5, 7, 8, 16, 17, 32, 33, 64)]
    assert "4..64; same class 1..3" in batch_says(row)
    given = operation.inputs(0, 1, (WIDE,))
    w = given.shared[0].numpy()
    rows = operation.inputs(0, 16, (WIDE,)).rows[0].numpy()  # 8 elements a row: the most rows are tried as row 0
    whole = np.concatenate([numpy_sums(x, w) for x in rows])
    halves = np.concatenate([numpy_sums(x[:32], w[:32]) + numpy_sums(x[32:], w[32:]) for x in rows])
    assert (row.elements, row.rows_tried) == (8, 16)
    assert row.classes[0].digest == hashlib.sha256(whole.tobytes()).hexdigest()[:16]
    assert row.classes[1].digest == hashlib.sha256(halves.tobytes()).hexdigest()[:16]
    apart = steps_apart(whole, halves)
    assert (row.classes[1].neq, row.classes[1].max_ulps) == (np.count_nonzero(apart), apart.max())
    assert row.classes[1].neq > 0
    assert (row.is_repeatable, row.is_batch_invariant, row.is_position_invariant) == (True, False, True)


def test_its_twin_of_one_order_is_invariant_in_all_three_ways():
    operation = planted(lambda given: in_order(given.rows[0], given.shared[0]))
    row = probe(operation, (WIDE,), "float32", plan_of(operation))
    assert (row.is_repeatable, row.is_batch_invariant, row.is_position_invariant) == (True, True, True)
    assert [found.batches for found in row.classes] == [(1, 2, 3, 4, 5, 7, 8, 16, 17, 32, 33, 64)]
    assert row.repeats is not None
    assert (row.repeats.calls, row.repeats.differing) == (12 * 5, 0)


def test_classes_that_alternate_are_told_apart():
    operation = planted(lambda given: (in_halves if given.batch % 2 == 0 else in_order)(given.rows[0], given.shared[0]))
    row = probe(operation, (WIDE,), "float32", plan_of(operation))
    assert [found.batches for found in row.classes] == [(1, 3, 5, 7, 17, 33), (2, 4, 8, 16, 32, 64)]


def every_nth_call(n: int):
    """One ULP more in element 3 of row 0 in every n-th call."""
    calls = 0

    def run(given: Inputs) -> torch.Tensor:
        nonlocal calls
        calls += 1
        result = in_order(given.rows[0], given.shared[0])
        if calls % n == 0:
            result[0, 3] = torch.nextafter(result[0, 3], torch.tensor(torch.inf))
        return result

    return run


def test_noise_in_every_seventh_call_is_caught_with_its_size():
    row = probe(operation := planted(every_nth_call(7)), (WIDE,), "float32", plan_of(operation))
    # One call finds out whether there is such an operation; then 5 calls at each of 12 batch sizes, the first of them
    # the reference.
    numbers = [[2 + 5 * batch + call for call in range(5)] for batch in range(12)]
    expected = sum((number % 7 == 0) != (calls[0] % 7 == 0) for calls in numbers for number in calls[1:])
    assert row.repeats is not None
    assert (row.repeats.calls, row.repeats.differing) == (60, expected)
    assert expected > 5
    assert (row.repeats.worst_neq, row.repeats.worst_max_ulps) == (1, 1)
    assert row.is_repeatable is False
    assert row.is_batch_invariant is None
    assert row.is_position_invariant is None
    assert "batch sizes or indices say" in says(row, "batch")


def test_a_sign_of_zero_that_changes_is_a_difference_of_bits_though_not_of_values():
    calls = 0

    def run(given: Inputs) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return torch.full((given.batch, 8), -0.0 if calls % 2 else 0.0)

    row = probe(operation := planted(run), (WIDE,), "float32", plan_of(operation))
    assert row.repeats is not None
    assert row.repeats.differing > 0
    assert (row.repeats.worst_neq, row.repeats.worst_max_ulps) == (0, 0)


def test_nan_is_the_same_bits_every_time():
    operation = planted(lambda given: torch.full((given.batch, 8), torch.nan))
    row = probe(operation, (WIDE,), "float32", plan_of(operation))
    assert (row.is_repeatable, row.is_batch_invariant, row.is_position_invariant) == (True, True, True)
    assert row.relative_rms is None


def test_an_operation_that_looks_at_the_index_of_a_row_is_caught_at_these_indices():
    def run(given: Inputs) -> torch.Tensor:
        found = in_order(given.rows[0], given.shared[0])
        return torch.cat([found[:4], in_halves(given.rows[0][4:], given.shared[0])])

    row = probe(operation := planted(run), (WIDE,), "float32", plan_of(operation))
    assert row.is_batch_invariant
    assert row.is_position_invariant is False
    assert [(found.batch, found.groups) for found in row.positions] == [
        (3, ((0, 1, 2),)),
        (5, ((0, 1, 2, 3), (4,))),
        (8, ((0, 1, 2, 3), (4, 5, 6, 7))),
        (17, ((0, 1, 2, 3), tuple(range(4, 17)))),
    ]
    assert "batch 17: indices 4..16 differ" in says(row, "position")


def test_what_torch_refuses_is_a_row_that_says_so():
    def run(given: Inputs) -> torch.Tensor:
        raise RuntimeError("No kernel of this kind.\nA second line.")

    row = probe(operation := planted(run), (WIDE,), "bfloat16", plan_of(operation))
    assert row.refusal == "No kernel of this kind"
    assert "not available: No kernel" in says(row, "repeat")
    assert (row.repeats, row.classes, row.positions) == (None, (), ())


def test_out_of_memory_at_a_batch_ends_the_batches_and_is_noted():
    def run(given: Inputs) -> torch.Tensor:
        if given.batch > 7:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return in_order(given.rows[0], given.shared[0])

    row = probe(operation := planted(run), (WIDE,), "float32", plan_of(operation))
    assert [found.batches for found in row.classes] == [(1, 2, 3, 4, 5, 7)]
    assert "batch 8 was not compared" in row.note
    assert [found.batch for found in row.positions] == [3, 5]


def test_the_error_to_float64_is_numpys():
    operation = planted(lambda given: in_order(given.rows[0], given.shared[0]))
    row = probe(operation, (WIDE,), "float32", plan_of(operation))
    given = operation.inputs(0, 1, (WIDE,))
    x, w = given.rows[0][0].numpy(), given.shared[0].numpy()
    exact = x.astype(np.float64) @ w.astype(np.float64)
    wrong = numpy_sums(x, w).astype(np.float64) - exact
    assert row.relative_rms == pytest.approx(np.sqrt((wrong**2).mean() / (exact**2).mean()), rel=1e-6)


def test_probing_ends_when_its_time_is_used_up():
    operations = tuple(
        planted(lambda given: in_order(given.rows[0], given.shared[0]), f"planted {i}") for i in range(3)
    )
    told = []
    assert list(probe_all(plan_of(*operations, seconds_in_all=0.0), lambda *said: told.append(said))) == []
    rows = list(probe_all(plan_of(*operations, dtypes=("float32", "bfloat16")), lambda *said: told.append(said)))
    assert [(row.op, row.dtype) for row in rows] == [
        (f"planted {i}", dtype) for i in range(3) for dtype in ("float32", "bfloat16")
    ]
    assert told[0] == ("planted 0, width 64, float32", 0, 6)
    assert told[-1] == ("probed", 6, 6)


def test_a_value_is_its_32_bit_integer_over_two_to_the_30():
    whole = (
        np.random.Philox(key=int.from_bytes(hashlib.sha256(b"5\0mm").digest()[:16], "little"))
        .random_raw(3)
        .view(np.int32)
    )
    made = Draws(5, "mm").values(2, 3).numpy()
    assert np.array_equal(made.ravel(), np.ldexp(whole.astype(np.float64), -30).astype(np.float32))


def changes_with_the_batch(operation: Operation, size: tuple[int, ...]) -> bool:
    """Do row 0's inputs, or what the rows share, depend on how many rows are made?"""
    small, large = (operation.inputs(0, batch, size) for batch in (2, 5))
    pairs = [
        *zip(small.rows, (tensor[:2] for tensor in large.rows), strict=True),
        *zip(small.shared, large.shared, strict=True),
    ]
    return not all(torch.equal(a, b) for a, b in pairs)


def test_row_0_and_what_rows_share_are_the_same_at_every_batch():
    for operation in OPERATIONS:
        assert not changes_with_the_batch(operation, operation.sizes[0]), operation.name


def test_weights_drawn_after_the_rows_would_be_caught():
    def rows_first(source: Draws, rows: int, width: int) -> Inputs:
        given = source.values(rows, width)
        return Inputs((given,), (source.values(width, 8),))

    assert changes_with_the_batch(replace(planted(lambda given: given.rows[0]), make=rows_first), (WIDE,))


@pytest.mark.spread(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_operation_of_the_table_is_probed_and_near_float64(dtype):
    """Largest relative rms seen: 6e-7 and 3e-3, so ten roundings of each dtype."""
    probes = tuple((operation, operation.sizes[0]) for operation in OPERATIONS if "cpu" in operation.devices)
    plan = ProbePlan(CPU, (dtype,), probes, repeats=1, is_quick=True, seconds_each=0.0)
    rows = list(probe_all(plan))
    assert len({row.key for row in rows}) == len(probes)
    for row in rows:
        assert not row.refusal, row
        assert row.relative_rms is not None
        assert row.relative_rms < 10 * torch.finfo(getattr(torch, dtype)).eps, row


def test_mm_of_this_processor_is_what_torch_itself_says():
    (operation,) = [found for found in OPERATIONS if found.name == "mm"]
    row = probe(operation, (256, 256), "float32", plan_of(operation))
    given = operation.inputs(0, 64, (256, 256))
    by_torch = {n: torch.mm(given.rows[0][:n], given.shared[0])[0] for n in batches_of(operation, (256, 256), True)}
    equal_to_1 = tuple(n for n, result in by_torch.items() if torch.equal(result, by_torch[1]))
    assert row.classes[0].batches == equal_to_1
    for found in row.classes:
        assert all(torch.equal(by_torch[n], by_torch[found.batches[0]]) for n in found.batches)


def test_a_difference_that_only_another_row_shows_is_found():
    """One 16-bit result in a thousand shows another order of summation: what row 0 hides, the rows tried after it may
    show.
    """

    def run(given: Inputs) -> torch.Tensor:
        found = in_order(given.rows[0], given.shared[0])
        return torch.where((given.batch > 7) & (found[:, :1] == hidden), found + 1, found)

    operation = planted(run)
    given = operation.inputs(0, 16, (WIDE,))
    hidden = in_order(given.rows[0], given.shared[0])[9, 0]
    row = probe(operation, (WIDE,), "float32", plan_of(operation))
    assert [found.batches for found in row.classes] == [(1, 2, 3, 4, 5, 7), (8, 16, 17, 32, 33, 64)]
    assert row.classes[1].neq == 8


def test_a_models_linear_maps_are_each_shape_once_with_the_modules_that_have_it():
    model = nn.Sequential()
    for block in range(2):
        part = nn.Module()
        part.q_proj, part.k_proj = nn.Linear(12, 12, bias=False), nn.Linear(12, 12, bias=False)
        part.down, part.c_attn = nn.Linear(12, 4), Conv1D(36, 12)
        model.add_module(str(block), part)
    found = linear_operations_of(model)
    assert [(one.name, one.sizes, one.modules) for one in found] == [
        ("linear", ((12, 12),), "q_proj, k_proj"),
        ("linear with bias", ((12, 4),), "down"),
        ("linear with bias", ((12, 36),), "c_attn"),
    ]
    row = probe(found[1], (12, 4), "float32", plan_of(found[1]))
    assert row.modules == "down"
    assert row.elements == 4


def test_a_size_of_the_model_that_the_table_has_too_is_probed_once():
    own = linear_operations_of(nn.Sequential(nn.Linear(256, 256, bias=False)))
    (linear,) = [found for found in OPERATIONS if found.name == "linear"]
    found = probes_of(CPU, ("linear",), True, own)
    assert [(operation.modules, size) for operation, size in found] == [("0", (256, 256)), ("", (1024, 1024))]
    assert len(probes_of(CPU, (), False, (), (linear,))) == len(linear.sizes)


def test_settings_name_what_may_choose_another_kernel():
    said = machine_settings(CPU)
    assert said["torch"] == torch.__version__
    assert said["threads"] == str(torch.get_num_threads())
    assert {"float32_matmul_precision", "deterministic_algorithms", "cpu_capability"} <= said.keys()


def test_what_fails_later_is_a_row_that_says_so_and_the_others_are_probed():
    def fails_on_copies(given: Inputs) -> torch.Tensor:
        if given.batch > 1 and torch.equal(given.rows[0][0], given.rows[0][1]):
            raise RuntimeError("an illegal address")
        return in_order(given.rows[0], given.shared[0])

    whole = planted(lambda given: in_order(given.rows[0], given.shared[0]), "whole")
    rows = list(probe_all(plan_of(planted(fails_on_copies), whole)))
    assert [row.refusal for row in rows] == ["it failed after 60 calls: an illegal address", ""]


def test_no_memory_for_a_single_row_is_a_row_that_says_so():
    calls = 0

    def run(given: Inputs) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return in_order(given.rows[0], given.shared[0])

    row = probe(operation := planted(run), (WIDE,), "float32", plan_of(operation))
    assert "batch 1 was not compared" in row.refusal


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_public_claims_hold_on_cuda():
    """docs/reports: on a GPU mm, addmm and large sums repeat themselves, mm(a[:1], b) is not mm(a, b)[:1] at 2048 x
    4096, and the index of a row has no effect. What adds atomically may differ from run to run; that it must is claimed
    of one card only.
    """
    device = torch.device("cuda")
    plan = ProbePlan(device, ("bfloat16", "float32"), probes_of(device, ("mm", "addmm", "sum"), False), repeats=20)
    rows = list(probe_all(plan))
    assert all(row.is_repeatable for row in rows)
    assert all(row.is_position_invariant for row in rows if row.op in ("mm", "addmm"))
    largest = [row for row in rows if row.op == "mm" and row.size == "4096 to 4096" and row.dtype == "bfloat16"]
    assert [row.is_batch_invariant for row in largest] == [False]
    assert max(largest[0].classes[-1].batches) >= 256
