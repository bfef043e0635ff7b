"""GGUF files: read within their real size before anything else reads them, and nothing that is read beside them.

A GGUF holds a model's weights in blocks of a few bits. transformers dequantises them into the dtype asked for; from
then on it is a model like any other.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers
from transformers import modeling_gguf_pytorch_utils as reader

from ...errors import CaptureError
from ...packaged_models import require_gguf
from ...text import shown

FILE = "model.gguf"  # what a file is called where transformers reads it
# Architectures of transformers' own reader, which rounds within its arithmetic: read in float32 and rounded once.
ROUNDED_AFTERWARDS = ("qwen35", "qwen35moe", "lfm2")
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DIMENSIONS = 4  # of a tensor, at most, as in ggml
_TEXT, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_PLAIN = ("F32", "F16", "BF16", "F64")
_SCALES_ROPE = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_READS_SCALED_ROPE = ("gpt-oss",)
# Names of pre-tokenizers that llama.cpp gives one treatment, every digit by itself, and transformers 5.23 none.
_DIGITS_APART = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")


@dataclass(frozen=True)
class GgufFile:
    """A GGUF whose header is whole. quantization: as llama.cpp calls the mixture (Q4_1, Q4_K_M, F16); elements: of all
    its weights; splits_digits: its tokenizer takes every digit by itself.
    """

    path: Path
    architecture: str
    quantization: str
    elements: int
    splits_digits: bool

    def sha256(self) -> str:
        """`sha256:...` of the whole file."""
        with self.path.open("rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"

    @property
    def is_quantized(self) -> bool:
        return self.quantization not in _PLAIN


def is_gguf(path: Path) -> bool:
    """Return whether a file begins as a GGUF does."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def look(path: Path) -> GgufFile:
    """Read a GGUF's header. CaptureError, one sentence, for one that is cut short or announces more than it has, and
    for what transformers would leave out without a word.
    """
    require_gguf()
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            facts, types = _header(data)
    except (OSError, ValueError, struct.error) as error:
        why = str(error) if type(error) is ValueError else "its header is cut short"
        raise CaptureError(f"{path} is no whole GGUF file ({shown(why, 120)}); copy the model again.") from error
    if not isinstance(architecture := facts.get("general.architecture"), str):
        raise CaptureError(f"{path} names no architecture; expected the GGUF of a language model.")
    if isinstance(parts := facts.get("split.count"), int) and parts > 1:
        raise CaptureError(f"{path} is one of {parts} parts of a model; join them with llama-gguf-split --merge.")
    scaling = facts.get(f"{architecture}.rope.scaling.type", "none")
    if (scaling != "none" or types.keys() & set(_SCALES_ROPE)) and architecture not in _READS_SCALED_ROPE:
        raise CaptureError(
            f"{path} scales its rotary embeddings, which transformers leaves out where it reads a GGUF of"
            f" {shown(architecture, 40)}; give the model's own folder or hub id."
        )
    pre_tokenizer = facts.get("tokenizer.ggml.pre") if facts.get("tokenizer.ggml.model") == "gpt2" else None
    return GgufFile(
        path=path,
        architecture=architecture,
        quantization=_mixture(facts.get("general.file_type"), types),
        elements=sum(elements for _, elements in types.values()),
        splits_digits=pre_tokenizer in _DIGITS_APART,
    )


@contextmanager
def alone(path: Path) -> Iterator[str]:
    """A folder that holds nothing but the file, as FILE: what lies beside it has no say in how it is read. No progress
    bar is drawn inside.
    """
    bar = reader.tqdm
    with tempfile.TemporaryDirectory(prefix="ulpscope-gguf-") as folder:
        (Path(folder) / FILE).symlink_to(path.absolute())
        reader.tqdm = lambda tensors, **_: tensors  # it asks neither transformers' own switch nor the hub client's
        try:
            yield folder
        finally:
            reader.tqdm = bar


def plain(model: Any) -> None:
    """Let a dequantised model be one that never was quantised: it may be moved, converted and saved."""
    model.hf_quantizer, model.is_quantized = None, False
    for config in (model.config, model.config.get_text_config(decoder=True)):
        for name in ("quantization_config", "_pre_quantization_dtype"):
            if hasattr(config, name):
                delattr(config, name)


def split_digits(tokenizer: Any) -> None:
    """Let a byte-level tokenizer take every digit by itself, as those of _DIGITS_APART do."""
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _header(data: mmap.mmap) -> tuple[dict[str, Any], dict[str, tuple[str, int]]]:
    """-> (facts that are no lists, name of each tensor -> its type and elements); ValueError, struct.error."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    if data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it does not begin as one")
    version, tensors, count = struct.unpack_from("<IQQ", data, len(_MAGIC))
    if version not in _VERSIONS:
        raise ValueError(f"its version is {version}, expected 2 or 3")
    at, facts = 24, {}
    for _ in range(count):  # each takes room of the file, so none of these loops is longer than it
        key, at = _text(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        facts[key], at = _value(data, at + 4, kind)
    types: dict[str, tuple[str, int]] = {}
    ends = []
    for _ in range(tensors):
        name, at = _text(data, at)
        (dimensions,) = struct.unpack_from("<I", data, at)
        if not 1 <= dimensions <= _DIMENSIONS:
            raise ValueError(f"a tensor has {dimensions} dimensions, expected 1 to {_DIMENSIONS}")
        shape = struct.unpack_from(f"<{dimensions}Q", data, at + 4)
        kind, offset = struct.unpack_from("<IQ", data, at + 4 + 8 * dimensions)
        at += 16 + 8 * dimensions
        try:
            block, width = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (KeyError, ValueError):
            raise ValueError(f"a tensor is of type {kind}, which is not known") from None
        elements = math.prod(shape)
        if shape[0] % block:
            raise ValueError(f"a row of {shape[0]} elements does not come in blocks of {block}")
        types[name] = (GGMLQuantizationType(kind).name, elements)
        ends.append(offset + elements // block * width)
    alignment = facts.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
        raise ValueError("its alignment is no number of bytes")
    end = -(-at // alignment) * alignment + max(ends, default=0)
    if not ends or end > len(data):
        raise ValueError(f"it has {len(data):,} bytes where its header announces {end:,}" if ends else "no weights")
    return facts, types


def _text(data: mmap.mmap, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, at)
    end = at + 8 + length
    if end > len(data):
        raise ValueError("its header is cut short")
    return data[at + 8 : end].decode("utf-8"), end


def _value(data: mmap.mmap, at: int, kind: int) -> tuple[Any, int]:
    """A value of the header, None for a list, and where it ends."""
    if kind in _NUMBERS:
        (value,) = struct.unpack_from(f"<{_NUMBERS[kind]}", data, at)
        return value, at + struct.calcsize(f"<{_NUMBERS[kind]}")
    if kind == _TEXT:
        return _text(data, at)
    if kind != _ARRAY:
        raise ValueError(f"a value is of type {kind}, which is not known")
    of, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if of == _TEXT:
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", data, at)
            at += 8 + length
    elif of in _NUMBERS:
        at += count * struct.calcsize(f"<{_NUMBERS[of]}")
    else:
        raise ValueError(f"a list is of type {of}, which is not known")
    if at > len(data):
        raise ValueError("its header is cut short")
    return None, at


def _mixture(file_type: Any, types: dict[str, tuple[str, int]]) -> str:
    """llama.cpp's name for how a file is quantised; where it states none, the type of most of its elements."""
    from gguf import LlamaFileType

    try:
        return LlamaFileType(file_type).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        elements: Counter[str] = Counter()
        for kind, count in types.values():
            elements[kind] += count
        return elements.most_common(1)[0][0]
