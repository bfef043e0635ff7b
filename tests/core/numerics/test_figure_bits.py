"""Every figure of a pair has the same bits on every processor, with any number of threads, however its rows are cut."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding
import pytest

from tests.core.numerics.figure_bits import figures
from tests.core.numerics.rows import ALL_FORMATS

ROOT = Path(__file__).parents[3]

# Found on a processor with 256-bit vectors; whoever finds others computes other figures.
RECORDED = {
    "bf16_upcast_to_fp32": "bec44ac9c8783e7d22a9cfe890e10f048c254864fe45ebffcf9ad5750c0230f8",
    "flips_fp16": "ec364d173acd23603c5918983a32844ae818545dd75b356da7617d87e7280d1d",
    "identical_bf16_bits": "fbc3448636411337cefcdbf901b1fea7c3173de390e8cf7da5dbcff115d02033",
    "nonfinite_fp32": "c058ad2b08584e1a64e7cd44e3a52a1847fd0bdf5838e6197989838ec9767cb9",
    "one_ulp_bf16_void": "5df042fc02fb8e1f1f84a310853d195c1d3cfda9c759f16701d747e081939161",
    "six_repeats_bf16": "70075c3f3f2b1a5b9798e25efe7ad41aa3631dcfa43af8ccf4558da337520e0c",
    "float32": "3857aa0cee9988dad298079e0f94151ae59c8a86fc7ef234a9662303cf880098",
    "float16": "3d41d729b6b44fa4e97fd2f02aed98f27ed30ca01941c530ba2c7609ea43a578",
    "bfloat16": "fb943135acc28ef930cd413cba25c3acc52b990b78896004a372df4f0c879a44",
    "float8_e4m3fn": "9d97f8d7dcdaff06cedf966a4206cbf8ca2de947c9725adcec33311b3a642a5e",
    "float8_e5m2": "3abb52b1083bb56abd4ad72b4678bdbdd6bc6a876f18a5e62737b8b16a767fda",
}

# What numba may compile for, and a feature without which the code would not run here.
PROCESSORS = {"x86-64": "sse2", "haswell": "avx2", "skylake-avx512": "avx512f"}


def found_on(processor: str, *arguments: object) -> dict[str, str]:
    """What tests.core.numerics.figure_bits prints where numba compiles for `processor`."""
    command = [sys.executable, "-m", "tests.core.numerics.figure_bits", *map(str, arguments)]
    environment = os.environ | {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": ""}
    return json.loads(subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True, text=True).stdout)


def runnable() -> list[str]:
    features = llvmlite.binding.get_host_cpu_features()
    return [name for name, feature in PROCESSORS.items() if features.get(feature)]


@pytest.mark.slow
def test_every_figure_has_the_bits_that_were_recorded_on_another_machine():
    assert figures(7, ALL_FORMATS) == RECORDED


@pytest.mark.slow
@pytest.mark.parametrize("processor", PROCESSORS)
def test_every_figure_has_the_same_bits_whatever_the_processor_has(processor):
    if processor not in runnable():
        pytest.skip(f"this machine cannot run code for {processor}")
    for threads, rows in ((1, 3), (2, 100)):
        found = found_on(processor, threads, rows)
        assert found == {name: RECORDED[name] for name in found}


@pytest.mark.slow
def test_a_sum_whose_order_is_left_to_the_compiler_would_be_noticed():
    narrow, *wider = [found_on(processor, 1, 1, "spoilt") for processor in runnable()]
    if not wider:
        pytest.skip("this machine can run code for one processor only")
    assert narrow not in wider
