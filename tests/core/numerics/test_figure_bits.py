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
from tests.covering import thorough

ROOT = Path(__file__).parents[3]

# Found on a processor with 256-bit vectors; whoever finds others computes other figures.
RECORDED = {
    "bf16_upcast_to_fp32": "ae2923605db3406acf37bbc8c2259a5268a6a016133000db4e277094d59a1800",
    "flips_fp16": "f10a305584d1171bc0688c981f4ae83f3a1302e3b00e62c447f3ff89e5d3634f",
    "identical_bf16_bits": "5a6bac137fc7242d8aa64fd366d1c0aed02c3eb5db5bd084250011bc01172e6a",
    "nonfinite_fp32": "bb904a015e879b333f37c9584eb7628f0732542002b44f00d44286a63843dbdf",
    "one_ulp_bf16_void": "121c9b2d0f7c49bbd2fe56bb2e44bdc1191f5db2347a0cc81ae804f5cd26892f",
    "six_repeats_bf16": "550222893a5f84fc1cd3b9b289875fc8f5eed448443c235cc4a2765fc4d2a4d7",
    "float32": "8aeaeebf7a6922a001d0a66005534d9b63247e62d89d53ae8d51e67d4f0c93c4",
    "float16": "856284c2cde489edad4e1cb105439d1559c08575255402deff8211e3438c0123",
    "bfloat16": "6a08b75ac1daf14ff98b59391a273cc0bf979ad7521b494136e268af7de54a6e",
    "float8_e4m3fn": "ebb3ae1f970b1f29fae5e09d602f5f4c13a4b91dab9aa27114af8f24385d5018",
    "float8_e5m2": "b62d7f22948bbb0aade7aa24703583bf670654e16783bd073ecaa7fbf793c50a",
    "bf16_upcast_to_fp32 in row ULPs": "55e6794a5cf9faadd63cdc04fbc1bd6d038fdd504242f43f97eba78c8f8879c0",
    "flips_fp16 in row ULPs": "75b720c74ca2d5a407d1ecab0b230392708a82bc73dba54dd714fd1f9729e828",
    "identical_bf16_bits in row ULPs": "91d798ec78a52d589ba61202dcaa4e37c8f5975c80ae4a010dcbe1d71ad17d74",
    "nonfinite_fp32 in row ULPs": "e8f40ad61b8086d0d80cc2160d5dc44989bd52eb6a8b95c3588a1096959e4565",
    "one_ulp_bf16_void in row ULPs": "083dceafacaa61920b21591fbcc3674afb9e563e1047c300165a7b28c15598ca",
    "six_repeats_bf16 in row ULPs": "cfa17136adf7c4776b56dcede1cae80289ff504f2f0e54f181f9d832c04c2baf",
    "float32 in row ULPs": "8ff06465b98688b15405a68e5296214e13aa99265db29ac468e69938e31ea054",
    "float16 in row ULPs": "4ee7f1ae83fcdbe40215f6be92017284a4937a8a893da42c4fb81e1d7d7ebe6b",
    "bfloat16 in row ULPs": "a45d7200fdc83e7264a5ad88b2a13334ce7746289cc3c1ac008f340efafa73e2",
    "float8_e4m3fn in row ULPs": "c9b18725da4edc4a15e476a748c7a676b328565dced1c3949e9ed06ce82195b4",
    "float8_e5m2 in row ULPs": "8ebce384d6dc34f2ece4b154f09bde52cb5f6e2fe0e46f91299680955aeecdd5",
}

# What numba may compile for, and a feature without which the code would not run here.
PROCESSORS = {"x86-64": "sse2", "haswell": "avx2", "skylake-avx512": "avx512f"}


def found_on(processor: str, *arguments: str) -> list[dict[str, str]]:
    """What tests.core.numerics.figure_bits prints where numba compiles for `processor`."""
    command = [sys.executable, "-m", "tests.core.numerics.figure_bits", *arguments]
    environment = os.environ | {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": ""}
    return json.loads(
        subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True, text=True).stdout
    )


def runnable() -> list[str]:
    features = llvmlite.binding.get_host_cpu_features()
    return [name for name, feature in PROCESSORS.items() if features.get(feature)]


def test_every_figure_has_the_bits_that_were_recorded_on_another_machine():
    assert figures(7, ALL_FORMATS) == RECORDED


@pytest.mark.parametrize(("processor", "widths"), thorough((processor, "16 32") for processor in PROCESSORS))
def test_every_figure_has_the_same_bits_whatever_the_processor_has(processor, widths):
    """Each width is compiled anew for each processor."""
    if processor not in runnable():
        pytest.skip(f"this machine cannot run code for {processor}")
    of_threads = found_on(processor, widths, "1,3", "2,100")
    assert len(of_threads) == 2
    for found in of_threads:
        assert found == {name: RECORDED[name] for name in found}
        assert len(found) > 6


def test_a_sum_whose_order_is_left_to_the_compiler_would_be_noticed():
    narrow, *wider = [found_on(processor, "spoilt") for processor in runnable()]
    if not wider:
        pytest.skip("this machine can run code for one processor only")
    assert narrow not in wider
