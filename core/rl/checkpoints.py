"""Two checkpoints compared tensor by tensor: which elements differ, by how much, and still after
rounding to a dtype.

Tensors are read a few rows at a time, of safetensors files and GGUF files; nothing is unpickled,
and torch is not needed. A tensor is compared with the one of its name, in the layout in which they
agree: transposed, reordered, fused.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import float8_e4m3fn, float8_e5m2, float8_e8m0fnu
from numpy.typing import NDArray

from ..errors import CaptureError
from ..numerics.arrays import Ints, Record
from ..numerics.differences import differences
from ..numerics.formats import FLOAT32, FORMATS, FloatFormat, bits_of, widen
from ..packaged_models import packaged_folder, require_gguf
from ..progress import Progress
from ..runs.dumps.arrays import StoredArray, foreign_errors, forget, map_file
from ..runs.dumps.containers import read_safetensors
from ..runs.dumps.llamacpp_files import gguf_header

CHUNK = 1 << 22  # elements of a tensor in memory at a time, 16 MiB in float32; at least one row
_FORMS = (
    ("model.safetensors", "model.safetensors.index.json"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
_PART = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf")  # of llama-gguf-split
# types of a GGUF that are not quantized
_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_FLOAT8 = {"F8_E4M3": float8_e4m3fn, "F8_E5M2": float8_e5m2, "F8_E8M0": float8_e8m0fnu}
_WRAPPERS = re.compile(
    r"^(?:(?:module|model|language_model|_\w+)\.)+|\b(?:_orig_mod|_fsdp_wrapped_module)\.",
)
_EMBEDDING = re.compile(
    r"(?:\D*\.)?(?:embed_tokens|embed_in|wte|word_embeddings|token_embd)\.weight",
)
_HEAD = re.compile(r"(?:\D*\.)?(?:lm_head|embed_out|output)\.weight")
_FUSED = {
    r"\b[qkv]_proj\b": "qkv_proj",
    r"\b(gate|up)_proj\b": "gate_up_proj",
    r"\battn_[qkv]\b": "attn_qkv",
    r"\bexperts\.\d+\.": "experts.",
}
# parts of names in the order of a forward; a name has the place of the first that it contains
_EMBEDDINGS = ("embed", "wte", "wpe", "embd")
_IN_A_LAYER = """
    input_layernorm attn_norm ln_1 qkv c_attn q_proj attn_q k_proj attn_k v_proj attn_v attn
    post_attention_layernorm pre_feedforward ffn_norm ln_2 router mlp.gate. gate up_proj ffn_up c_fc
    mlp ffn norm ln_f lm_head output
"""
_ORDER = (*_EMBEDDINGS, *_IN_A_LAYER.split())
_ALIKE = 0.5  # rms change over the rms of A: above it another layout is looked for
_MOST_ROWS = 1 << 15  # of a search for their order, which compares every two
_SKETCH = 64  # random projections of a row in that search
Block = NDArray[np.float32]  # rows of a tensor
Rows = slice | Ints
_Sides = tuple[dict[str, "Tensor"], dict[str, "Tensor"]]
_SUMS = ("squares", "scale")  # of a change, which only its rms and its likeness need
_Finding = tuple[str, str]  # kind, sentence without the tensors' names


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file, unread, as a matrix. dtype: as stored, of a GGUF its type; read: some
    rows in float32.
    """

    dtype: str
    rows: int
    columns: int
    read: Callable[[Rows], Block]

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    def spans(self) -> Iterator[slice]:
        """Return the rows of each chunk."""
        step = max(1, CHUNK // self.columns)
        return (slice(start, min(start + step, self.rows)) for start in range(0, self.rows, step))

    def blocks(self) -> Iterator[Block]:
        return map(self.read, self.spans())


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint. tensors: by name without prefixes of wrappers; architecture: of a GGUF,
    else empty.
    """

    path: Path
    tensors: dict[str, Tensor]
    architecture: str

    def as_json(self) -> Record:
        return {
            "path": str(self.path),
            "tensors": len(self.tensors),
            "dtypes": sorted({tensor.dtype for tensor in self.tensors.values()}),
        }


@dataclass(frozen=True)
class Change:
    """Figures of B minus A over elements; `rounded`: of both rounded to a dtype, in its ULPs.

    nonfinite_mismatch: NaN or infinite on one side only; squares, scale: sums of squared changes
    and of squares of A.
    """

    elements: int = 0
    differing: int = 0
    rounded_differing: int = 0
    max_rounded_ulps: int = 0
    nonfinite_mismatch: int = 0
    finite: int = 0
    max_abs: float = 0.0
    squares: float = 0.0
    scale: float = 0.0

    def __add__(self, other: Change) -> Change:
        figures = {}
        for name, value in vars(self).items():
            merge = max if name.startswith("max") else sum
            figures[name] = merge((value, getattr(other, name)))
        return Change(**figures)

    @property
    def rms(self) -> float:
        return math.sqrt(self.squares / max(self.finite, 1))

    @property
    def is_alike(self) -> bool:
        return self.squares <= _ALIKE**2 * self.scale

    def as_json(self) -> Record:
        elements = max(self.elements, 1)
        return {
            **{name: value for name, value in vars(self).items() if name not in _SUMS},
            "differing_share": self.differing / elements,
            "rounded_differing_share": self.rounded_differing / elements,
            "rms": self.rms,
        }


@dataclass
class Comparison:
    """Figures of modules in the order of a forward, and findings with their tensors."""

    a: Checkpoint
    b: Checkpoint
    rounded_to: str
    modules: dict[str, Change] = field(default_factory=lambda: defaultdict(Change))
    findings: dict[_Finding, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def total(self) -> Change:
        return sum(self.modules.values(), Change())

    def as_json(self) -> Record:
        return {
            "a": self.a.as_json(),
            "b": self.b.as_json(),
            "rounded_to": self.rounded_to,
            "total": self.total.as_json(),
            "modules": [
                {"module": name, **change.as_json()} for name, change in self.modules.items()
            ],
            "findings": [
                {"kind": kind, "says": text, "tensors": keys}
                for (kind, text), keys in self.findings.items()
            ],
        }


def compare_checkpoints(
    a: str,
    b: str,
    fmt: FloatFormat,
    tell: Progress,
) -> Comparison:
    """Compare two checkpoints by path, also rounded to `fmt`."""
    result = Comparison(open_checkpoint(a), open_checkpoint(b), fmt.name)
    sides = _by_common_names(result.a, result.b)
    _tie(sides, result.findings)
    _fuse(sides, result.findings)
    of_a, of_b = sides
    for own, other, side in ((of_a, of_b, "A"), (of_b, of_a, "B")):
        if only := sorted(own.keys() - other.keys(), key=_place):
            result.findings["missing", f"Only in {side}"] = only
    keys = sorted(of_a.keys() & of_b.keys(), key=_place)
    if not keys:
        raise CaptureError(
            f"{a} and {b} have no tensor of the same name; expected two checkpoints of one model.",
        )
    is_converted = any(of_a[key].dtype != of_b[key].dtype for key in keys)
    with ThreadPoolExecutor(min(4, len(os.sched_getaffinity(0)))) as pool:
        for done, key in enumerate(keys):
            tell("comparing", done, len(keys), "tensors")
            change, findings = _compare(of_a[key], of_b[key], fmt, pool)
            if is_converted:
                findings.append(("dtype", f"{of_a[key].dtype} in A, {of_b[key].dtype} in B"))
            for finding in findings:
                result.findings[finding].append(key)
            if change is not None:
                module = re.sub(r"\.(weight|bias)$", "", key)
                result.modules[module] += change
    return result


def open_checkpoint(name: str) -> Checkpoint:
    """Open a folder of safetensors, a .safetensors file or a GGUF. CaptureError if it is none, or
    incomplete.
    """
    path = packaged_folder(name) or Path(name).expanduser()
    if not path.exists():
        raise CaptureError(
            f"{path}: no such file or folder; expected a folder of safetensors, or one file, or a"
            " GGUF.",
        )
    files = weight_files(path) if path.is_dir() else [path]
    if part := _PART.fullmatch(path.name):
        files = [
            path.with_name(f"{part[1]}-{n + 1:05}-of-{part[2]}.gguf") for n in range(int(part[2]))
        ]
    tensors: dict[str, Tensor] = {}
    architecture = ""
    for file in files:
        with (
            foreign_errors(str(file), "a complete safetensors file or GGUF"),
            file.open("rb") as opened,
        ):
            data = map_file(opened)
        if data[:4] == b"GGUF":
            architecture, of_file = _read_gguf(str(file), data)
            tensors |= of_file
        elif data[8:9] == b"{":
            arrays, _ = read_safetensors(str(file), data, _FLOAT8)
            tensors |= {key: _from_file(array) for key, array in arrays.items()}
        else:
            is_pickle = data[:2] in (b"PK", b"\x80\x02")
            pickle = " but a pickle, which is never opened" if is_pickle else ""
            raise CaptureError(
                f"{file} is not a safetensors file or GGUF{pickle}; save the model as safetensors.",
            )
    by_key = {_WRAPPERS.sub("", key): tensor for key, tensor in tensors.items()}
    return Checkpoint(path, by_key if len(by_key) == len(tensors) else tensors, architecture)


def weight_files(folder: Path) -> list[Path]:
    """Return the files that transformers would load, in its order of preference."""
    for single, index in _FORMS:
        if (folder / single).is_file():
            return [folder / single]
        if (folder / index).is_file():
            try:
                weight_map = json.loads((folder / index).read_text())["weight_map"]
                shards = [folder / name for name in sorted(set(weight_map.values()))]
            # of any kind, by what the file holds instead
            except Exception as error:
                raise CaptureError(
                    f"{folder / index} is no index of weight files; copy the model again.",
                ) from error
            for shard in shards:
                if not shard.is_file():
                    raise CaptureError(
                        f"{folder} has no '{shard.name}', which its {index} lists; copy the model"
                        " again.",
                    )
            return shards
    raise CaptureError(
        f"{folder} has no weights; expected model.safetensors or pytorch_model.bin, whole or in"
        " shards.",
    )


def _matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Return rows and columns; a vector has one column."""
    lengths = [length for length in shape if length != 1]
    columns = lengths[-1] if len(lengths) > 1 else 1
    return math.prod(shape) // columns, columns


def _from_file(array: StoredArray) -> Tensor:
    """Return a tensor of a safetensors file."""
    dtype = "bfloat16" if array.dtype == np.dtype("V2") else array.dtype.name
    fmt = FORMATS.get(dtype)
    shape = _matrix(array.shape)

    def read(rows: Rows) -> Block:
        raw = array.rows(0, array.size).reshape(shape)[rows]
        return raw.astype(np.float32) if fmt is None else widen(bits_of(raw), fmt).view(np.float32)

    return Tensor(dtype, *shape, read)


def _read_gguf(file: str, data: mmap.mmap) -> tuple[str, dict[str, Tensor]]:
    """Read the header of a GGUF: its architecture and tensors."""
    require_gguf()
    import gguf

    def tensor_of(key: str, shape: tuple[int, ...], code: int, place: int) -> Tensor:
        kind = gguf.GGMLQuantizationType(code)
        length, width = gguf.GGML_QUANT_SIZES[kind]  # elements and bytes of a block
        # NotImplementedError of types that gguf cannot read
        gguf.quants.dequantize(np.zeros(width, np.uint8), kind)
        size = math.prod(shape) // length * width
        count, columns = _matrix(shape)
        if not size or columns % length or place + size > len(data):
            raise ValueError(f"ends within '{key}'")

        def read(rows: Rows) -> Block:
            raw = np.ndarray((count, size // count), np.uint8, data, place)
            forget(raw)
            return gguf.quants.dequantize(np.ascontiguousarray(raw[rows]), kind)

        return Tensor(_FLOATS.get(kind.name, f"{kind.name} (quantized)"), count, columns, read)

    with foreign_errors(file, "a complete GGUF of types that gguf reads"):
        architecture, header = gguf_header(data, 1 << 20)
        return architecture, {
            key: tensor_of(key, shape[::-1], *rest) for key, (shape, *rest) in header.items()
        }


def _by_common_names(a: Checkpoint, b: Checkpoint) -> _Sides:
    """Return the tensors of both; if one is a GGUF, by the other's names, of which gguf has a map.

    Experts that the other has one by one are `experts.` there.
    """
    if bool(a.architecture) == bool(b.architecture):
        return dict(a.tensors), dict(b.tensors)
    if a.architecture:
        return _by_common_names(b, a)[::-1]
    import gguf

    numbers = {code: number for number, code in gguf.MODEL_ARCH_NAMES.items()}
    if b.architecture not in numbers:
        raise CaptureError(f"{b.path}: gguf knows no architecture '{b.architecture}'.")
    blocks = [int(block) for name in b.tensors for block in re.findall(r"^blk\.(\d+)\.", name)]
    names = gguf.get_tensor_name_map(numbers[b.architecture], max(blocks, default=0) + 1)
    renamed: dict[str, str] = {}
    for key in a.tensors:
        merged = re.sub(r"\bexperts\.\d+\.", "experts.", key)
        for name in (f"model.{merged}", merged):
            renamed.setdefault(names.get_name(name, (".weight", ".bias")) or "", merged)
    return dict(a.tensors), {renamed.get(key, key): tensor for key, tensor in b.tensors.items()}


def _place(key: str) -> tuple[Any, ...]:
    """Return a sort key: embedding, layers, norm, head."""
    numbers = [int(number) for number in re.findall(r"\.(\d+)\.", key)]
    rank = next((rank for rank, part in enumerate(_ORDER) if part in key), len(_ORDER))
    part = 1 if numbers else 2
    if rank < len(_EMBEDDINGS):
        part = 0
    return part, numbers[:1], rank, numbers[1:], key


def _tie(sides: _Sides, findings: dict[_Finding, list[str]]) -> None:
    """Give a side without a head its embedding as the head, and report heads that are tied on one
    side only.
    """
    heads, embeddings = (
        [next(filter(each.fullmatch, side), "") for side in sides] for each in (_HEAD, _EMBEDDING)
    )
    is_tied = []
    for side, head, embedding in zip(sides, heads, embeddings, strict=True):
        is_equal = False
        if head and embedding and side[head].shape == side[embedding].shape:
            blocks = side[head].blocks(), side[embedding].blocks()
            is_equal = all(map(np.array_equal, *blocks))
        is_tied.append(is_equal)
    for own, other, letter in ((0, 1, "A"), (1, 0, "B")):
        head = heads[own]
        embedding = embeddings[other]
        if head and heads[other]:
            if is_tied[own] and not is_tied[other]:
                findings["tied", f"Equal to the embedding in {letter} only"].append(head)
        elif head and embedding:
            how = "tied: equal to its embedding"
            if not is_tied[own]:
                how = "not tied: its embedding differs"
            says = f"Only in {letter} ({how}) and compared with the other embedding"
            findings["tied", says].append(head)
            sides[other][head] = sides[other][embedding]


def _fuse(sides: _Sides, findings: dict[_Finding, list[str]]) -> None:
    """Join tensors of a side that are one tensor of the other."""
    for own, rest, (side, other) in ((*sides, "AB"), (*sides[::-1], "BA")):
        parts = defaultdict(list)
        for key in sorted(own.keys() - rest.keys(), key=_place):
            for pattern, name in _FUSED.items():
                whole = re.sub(pattern, name, key)
                if whole != key and whole in rest.keys() - own.keys():
                    parts[whole].append(key)
        for whole, keys in parts.items():
            own[whole] = _join([own.pop(key) for key in keys])
            findings["fused", f"Several tensors in {side}, one in {other}"].append(whole)


def _join(parts: Sequence[Tensor]) -> Tensor:
    """Return the rows of several tensors one after another."""
    ends = np.cumsum([part.rows for part in parts]).tolist()

    def read(rows: Rows) -> Block:
        places = np.arange(ends[-1])[rows]
        values = np.empty((len(places), parts[0].columns), np.float32)
        for part, end in zip(parts, ends, strict=True):
            is_of_part = (places >= end - part.rows) & (places < end)
            values[is_of_part] = part.read(places[is_of_part] - (end - part.rows))
        return values

    return replace(parts[0], rows=ends[-1], read=read)


def _compare(
    a: Tensor,
    b: Tensor,
    fmt: FloatFormat,
    pool: ThreadPoolExecutor,
) -> tuple[Change | None, list[_Finding]]:
    """Compare two tensors in the layout in which they agree.

    No figures if their shapes differ and there is none.
    """
    change = _change(a, b, fmt, pool) if a.shape == b.shape else None
    findings = []
    if change is None or not change.is_alike:
        for text, other in _layouts(a, b):
            tried = _change(other, b, fmt, pool)
            if tried.is_alike:
                change = tried
                findings = [("layout", text)]
                break
    if change is None:
        says = f"Not compared: {a.rows:,} x {a.columns:,} in A, {b.rows:,} x {b.columns:,} in B"
        return None, [("shape", says)]
    if change.nonfinite_mismatch:
        findings.append(("nonfinite", "NaN or infinity on one side only"))
    elif 0.999 < change.rms <= change.max_abs < 1.001:
        findings.append(("offset", "Every element differs by 1, as norms stored as 1 + weight"))
    return change, findings


def _layouts(a: Tensor, b: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield A in other layouts that have the shape of B, and what they are."""
    if a.shape == b.shape[::-1] and a.columns > 1:

        def read(rows: Rows) -> Block:
            return np.concatenate([block[:, rows] for block in a.blocks()]).T

        yield "Transposed", replace(a, rows=b.rows, columns=b.columns, read=read)
    if a.columns == b.columns and a.rows != b.rows:
        rows = min(a.rows, b.rows)
        yield f"Rows: {a.rows:,} in A, {b.rows:,} in B, {rows:,} compared", replace(a, rows=rows)
    if a.shape == b.shape and 1 < a.rows <= _MOST_ROWS and a.columns > 1:
        # the row of A that is most like each row of B, by cosines, which random projections keep
        # (Johnson and Lindenstrauss, 1984), and so do quantization and updates
        projection = np.random.default_rng(0).standard_normal((a.columns, _SKETCH), np.float32)
        x, y = (np.concatenate([part @ projection for part in each.blocks()]) for each in (a, b))
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30)
        nearest = [(y[start : start + 1024] @ x.T).argmax(1) for start in range(0, len(y), 1024)]
        order = np.concatenate(nearest)
        if np.array_equal(np.sort(order), np.arange(a.rows)):
            yield _order_text(order), replace(a, read=lambda rows: a.read(order[rows]))


def _order_text(order: Ints) -> str:
    for side, rows in (("B", order), ("A", np.argsort(order))):
        half = int(rows[1])
        if half > 1 and len(rows) % (2 * half) == 0:
            neighbors = np.arange(len(rows)).reshape(-1, 2, half).swapaxes(1, 2)
            if np.array_equal(rows, neighbors.reshape(-1)):
                return (
                    f"Rows in llama.cpp's rotary order in {side} (heads of {2 * half}), reordered"
                    " here"
                )
    return "Rows in another order, reordered here"


def _change(a: Tensor, b: Tensor, fmt: FloatFormat, pool: ThreadPoolExecutor) -> Change:
    """Compare the rows of A with those of B, a chunk at a time."""

    def change_of(rows: slice) -> Change:
        x, y = (each.read(rows).reshape(1, -1) for each in (a, b))
        exact = differences(bits_of(x), bits_of(y), FLOAT32)
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = differences(bits_of(x.astype(fmt.values)), bits_of(y.astype(fmt.values)), fmt)
            scale = np.vdot(x, x)
        figures: Any = (
            exact.neq,
            rounded.neq,
            rounded.max_ulps,
            exact.nonfinite_mismatch,
            exact.finite,
            exact.max_abs,
            exact.sum_squares,
            scale,
        )
        return Change(x.size, *(each.item() for each in figures))

    return sum(pool.map(change_of, a.spans()), Change())
