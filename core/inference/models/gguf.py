"""GGUF files: their header, and loading without their neighboring files.

A GGUF has a model's weights in blocks of a few bits. transformers dequantizes them into the
requested dtype; from then on it is a model like any other.
"""

import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers
from transformers import modeling_gguf_pytorch_utils as reader

from ...errors import CaptureError
from ...packaged_models import require_gguf
from ...text import clean
from .torch_errors import first_line

FILE = "model.gguf"  # name of the file for transformers
# Architectures whose reader in transformers rounds in between: read in float32 and rounded once.
_ROUNDED_AFTERWARDS = ("qwen35", "qwen35moe", "lfm2")
_MAGIC = b"GGUF"
_SCALES_ROPE = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_READS_SCALED_ROPE = ("gpt-oss",)
# Pre-tokenizers for which llama.cpp splits every digit, and transformers 5.23 does not.
_DIGITS_APART = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")


@dataclass(frozen=True)
class GgufFile:
    """A GGUF. quantization: llama.cpp's name; elements: of all weights; splits_digits: each digit
    is a token.
    """

    path: Path
    architecture: str
    quantization: str
    elements: int
    splits_digits: bool

    @property
    def is_rounded_later(self) -> bool:
        """True if its weights have to be read in float32 and rounded once."""
        return self.architecture in _ROUNDED_AFTERWARDS

    @cached_property
    def sha256(self) -> str:
        """`sha256:...` of the whole file."""
        with self.path.open("rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def is_gguf(path: Path) -> bool:
    """Return whether a file begins like a GGUF."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC
    return False


def look(path: Path) -> GgufFile:
    """Read a GGUF's header. CaptureError if it is truncated, or if transformers would ignore a part
    of it.
    """
    require_gguf()
    from gguf import GGUFReader, GGUFValueType, LlamaFileType

    try:
        file = GGUFReader(path)
        facts: dict[str, Any] = {}
        for field in file.fields.values():
            if field.types and field.types[0] != GGUFValueType.ARRAY:
                facts[field.name] = field.contents()
        # elements of each type
        elements = Counter[str]()
        for tensor in file.tensors:
            elements[tensor.tensor_type.name] += int(tensor.n_elements)
        if not elements:
            raise ValueError("no weights")
    except Exception as error:
        # reading beyond the end of a truncated file raises errors of any kind
        raise CaptureError(
            f"{path} is a broken GGUF file ({first_line(error)}); copy the model again.",
        ) from error
    architecture = facts.get("general.architecture")
    parts = facts.get("split.count")
    if not isinstance(architecture, str):
        raise CaptureError(f"{path} names no architecture; expected the GGUF of a language model.")
    if isinstance(parts, int) and parts > 1:
        raise CaptureError(
            f"{path} is one of {parts} parts of a model; join them with llama-gguf-split --merge.",
        )
    scaling = facts.get(f"{architecture}.rope.scaling.type", "none")
    is_scaled = scaling != "none" or any(tensor.name in _SCALES_ROPE for tensor in file.tensors)
    if is_scaled and architecture not in _READS_SCALED_ROPE:
        raise CaptureError(
            f"{path} scales its rotary embeddings, which transformers ignores in a GGUF of"
            f" {clean(architecture, 40)}; give the model's folder or hub id.",
        )
    is_byte_level = facts.get("tokenizer.ggml.model") == "gpt2"
    try:
        file_type = LlamaFileType(facts.get("general.file_type", -1))
        quantization = file_type.name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        # a number without a name in llama.cpp: the type of most elements
        quantization = elements.most_common(1)[0][0]
    return GgufFile(
        path=path,
        architecture=architecture,
        quantization=quantization,
        elements=elements.total(),
        splits_digits=is_byte_level and facts.get("tokenizer.ggml.pre") in _DIGITS_APART,
    )


@contextmanager
def alone(path: Path) -> Iterator[str]:
    """Yield a folder with only this file, as FILE, so that others are not read.

    No progress bar inside.
    """
    bar = reader.tqdm
    with tempfile.TemporaryDirectory(prefix="ulpscope-gguf-") as folder:
        (Path(folder) / FILE).symlink_to(path.absolute())
        # it ignores the switches of transformers and the hub client
        reader.tqdm = lambda tensors, **_: tensors
        try:
            yield folder
        finally:
            reader.tqdm = bar


def plain(model: Any) -> None:
    """Remove the marks of quantization from a dequantized model: it may be moved, converted and
    saved.
    """
    model.hf_quantizer, model.is_quantized = None, False
    for config in (model.config, model.config.get_text_config(decoder=True)):
        for name in ("quantization_config", "_pre_quantization_dtype"):
            if hasattr(config, name):
                delattr(config, name)


def split_digits(tokenizer: Any) -> None:
    """Make a byte-level tokenizer split every digit, like those of _DIGITS_APART."""
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ],
    )
