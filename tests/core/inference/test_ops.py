"""Probes of operations: planted operations whose answers are known are reported exactly."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from core.inference.ops import (
    OPERATIONS,
    Operation,
    ProbePlan,
    linear_operations,
    probe,
    probe_all,
    probes_of,
)

CPU = torch.device("cpu")
WIDE = 64
BATCHES = [1, 2, 3, 4, 5, 7, 8, 16, 17, 32, 33, 64]


def plan_of(*operations):
    # none of the table; repeats end it, on a busy machine too
    probes = probes_of(CPU, ("none",), False, operations)
    return ProbePlan(
        CPU,
        ("float32",),
        probes,
        repeats=4,
        is_quick=True,
        seconds_each=3600.0,
    )


def in_order(x, w):
    """x @ w, every product added in the order of the width for any batch: elementwise operations
    only.
    """
    total = torch.zeros(len(x), w.shape[1], dtype=x.dtype)
    for k in range(len(w)):
        total = total + x[:, k : k + 1] * w[k]
    return total


def in_halves(x, w):
    half = len(w) // 2
    first = in_order(x[:, :half], w[:half])
    return first + in_order(x[:, half:], w[half:])


def planted(run):
    return Operation(run.__name__, "width {k}, {n}", "k", "k n", run, ((WIDE, 8),))


def probed(run):
    operation = planted(run)
    return probe(operation, (WIDE, 8), "float32", plan_of(operation))


def batches_of(row):
    return [each["batches"] for each in row["batch_classes"]]


def answers_of(row):
    return row["is_repeatable"], row["is_batch_invariant"], row["is_position_invariant"]


def test_a_reduction_split_beyond_batch_3_is_reported_with_its_boundary_and_distance():
    seen = {}

    def run(x, w):
        if len(x) == 1:
            seen.setdefault(x.numpy().tobytes(), (in_order(x, w), in_halves(x, w)))
        return (in_halves if len(x) > 3 else in_order)(x, w)

    row = probed(run)
    assert answers_of(row) == (True, False, True)
    assert batches_of(row) == [BATCHES[:3], BATCHES[3:]]
    whole, halves = (torch.cat(parts).numpy() for parts in zip(*seen.values(), strict=True))
    assert row["elements"] == 8
    assert row["rows_tried"] == 16
    assert len(whole) == 16
    steps = 0
    low = np.minimum(whole, halves)
    high = np.maximum(whole, halves)
    # numpy's own walk from one float32 to the next
    while (low < high).any():
        low = np.where(low < high, np.nextafter(low, high), low)
        steps += 1
    assert row["batch_neq"] == np.count_nonzero(whole != halves)
    assert row["batch_max_ulps"] == steps
    assert steps > 0


def test_its_twin_of_one_order_is_invariant_in_all_three_ways():
    row = probed(in_order)
    assert answers_of(row) == (True, True, True)
    assert batches_of(row) == [BATCHES]
    assert row["calls"] == 12 * 5
    assert row["differing_calls"] == 0


def test_one_call_in_seven_that_differs_is_caught_with_its_size():
    calls = itertools.count(1)

    def run(x, w):
        result = in_order(x, w)
        if next(calls) % 7 == 0:
            result[0, 3] = torch.nextafter(result[0, 3], torch.tensor(torch.inf))
        return result

    row = probed(run)
    assert row["calls"] == 60
    # the first of five is the reference: calls 7, 14, 28, 35, 42, 49, and four each after 21 and 56
    assert row["differing_calls"] == 14
    assert row["worst_neq"] == 1
    assert row["worst_max_ulps"] == 1
    assert answers_of(row) == (False, None, None)
    assert "repeats differ" in row["note"]


def test_a_sign_of_zero_that_changes_is_a_difference_of_bits_though_not_of_values():
    signs = itertools.cycle([0.0, -0.0])
    row = probed(lambda x, w: torch.full((len(x), 8), next(signs)))
    assert row["differing_calls"] > 0
    assert row["worst_neq"] == 0
    assert row["worst_max_ulps"] == 0
    of_nan = probed(lambda x, w: torch.full((len(x), 8), torch.nan))
    assert answers_of(of_nan) == (True, True, True)


def test_an_operation_that_looks_at_the_index_of_a_row_is_caught_at_these_indices():
    row = probed(lambda x, w: torch.cat([in_order(x[:4], w), in_halves(x[4:], w)]))
    assert answers_of(row) == (True, True, False)
    assert row["row_positions"][:2] == [
        {"batch": 3, "groups": [[0, 1, 2]]},
        {"batch": 5, "groups": [[0, 1, 2, 3], [4]]},
    ]


def test_what_torch_refuses_is_a_row_that_says_so_and_the_others_are_probed():
    def absent(x, w):
        raise RuntimeError("No kernel of this kind.\nA second line.")

    def out_of_memory(x, w):
        return in_order(x, w) if len(x) <= 7 else absent(x, w)

    plan = plan_of(*map(planted, (absent, out_of_memory, in_order)))
    refused, cut, whole = probe_all(plan)
    assert [row["refusal"] for row in (refused, cut, whole)] == ["No kernel of this kind", "", ""]
    assert batches_of(cut) == [BATCHES[:6]]
    assert "batch 8 was not compared" in cut["note"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_operation_of_the_table_is_probed(dtype):
    probes = tuple(
        (operation, operation.sizes[0]) for operation in OPERATIONS if operation.is_on_cpu
    )
    plan = ProbePlan(
        CPU,
        (dtype,),
        probes,
        repeats=1,
        is_quick=True,
        seconds_each=0.0,
    )
    assert [row for row in probe_all(plan) if row["refusal"] or not row["elements"]] == []


def test_a_models_linear_maps_are_each_shape_once_with_the_modules_that_have_it():
    model = nn.Sequential()
    for block in range(2):
        part = nn.Module()
        part.q_proj = nn.Linear(12, 12, bias=False)
        part.k_proj = nn.Linear(12, 12, bias=False)
        part.down = nn.Linear(12, 4)
        # GPT-2's, whose weight is transposed
        part.c_attn = Conv1D(36, 12)
        model.add_module(str(block), part)
    operations = linear_operations(model)
    assert [(one.name, one.sizes, one.modules) for one in operations] == [
        ("linear", ((12, 12),), "q_proj, k_proj"),
        ("linear with bias", ((12, 4),), "down"),
        ("linear with bias", ((12, 36),), "c_attn"),
    ]
    row = probe(operations[1], (12, 4), "float32", plan_of())
    assert row["modules"] == "down"
    assert row["elements"] == 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_mm_repeats_itself_on_cuda_and_changes_with_the_batch():
    device = torch.device("cuda")
    rows = list(probe_all(ProbePlan(device, ("bfloat16",), probes_of(device, ("mm",), False))))
    assert all(row["is_repeatable"] and row["is_position_invariant"] for row in rows)
    invariant = [row["is_batch_invariant"] for row in rows if row["size"] == "4096 to 4096"]
    assert invariant == [False]
