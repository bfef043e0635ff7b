"""Responses in the files that slime and miles save with torch: `--save-debug-rollout-data`,
`--save-debug-train-data`, `--dump-details`.
"""

import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DumpError
from ..numerics.arrays import Floats, Record
from ..numerics.recorded_choices import write_choices
from ..runs.dumps.arrays import foreign_errors
from ..text import clean, plural

# Of a training batch, one value per token of the response; miles saves the part of a
# context-parallel rank.
_VALUES = {
    "reference": "rollout_log_probs",
    "variant": "log_probs",
    "reference_policy": "ref_log_probs",
    "entropy": "entropy",
    "advantage": "advantages",
}


# enough of a pickle: either framework writes `rollout_id` first
_HEAD = 1 << 20
_FILE = "a file of slime or miles"
_MOST_RANKS = 4096


# A response as columns of documented names, what files hold per token as [tokens] each.
Response = Record


def is_rollout(path: Path) -> bool:
    """Return whether a file is one of torch by slime or miles: its pickle names a `rollout_id`."""
    try:
        with zipfile.ZipFile(path) as archive:
            (pickle,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
            with archive.open(pickle) as file:
                return b"rollout_id" in file.read(_HEAD)
    except Exception:
        return False


def read_responses(paths: Sequence[Path]) -> list[Response]:
    """Read and join the files of one or several steps by step and sample.

    Raises:
        DumpError: a file holds more than tensors and plain values, a rank or a value is missing, or
            the files disagree.
    """
    responses = []
    parts: dict[tuple[int, int], list[tuple[Path, Record]]] = {}
    for path in paths:
        content = _load(path)
        if not isinstance(content.get("samples", content.get("rollout_data")), list | dict):
            raise DumpError(
                f"{clean(path.name)}: holds no `samples` and no `rollout_data` of slime or miles.",
            )
        with foreign_errors(clean(path.name), _FILE):
            for sample in _samples(content):
                key = int(content["rollout_id"]), sample["sample"]
                parts.setdefault(key, []).append((path, sample))
    for key, of_files in sorted(parts.items(), key=itemgetter(0)):
        with foreign_errors(clean(of_files[0][0].name), _FILE):
            responses.append(_join(key, of_files))
    return responses


def _load(path: Path) -> Record:
    import torch
    from numpy._core.multiarray import _reconstruct, scalar

    kinds = {type(np.dtype(kind)) for kind in "?bhilqBHILQefdSU"}
    plain: list[Any] = [_reconstruct, scalar, np.ndarray, np.dtype, *kinds]
    try:
        with torch.serialization.safe_globals(plain):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = "cannot be read by torch; is it complete?"
        if match := re.search(r"GLOBAL ([\w.]+)", str(error)):
            reason = f"holds {match[1]}, and only tensors and plain values are read."
        raise DumpError(f"{clean(path.name)}: {reason}") from error
    if not isinstance(content, dict):
        raise DumpError(f"{clean(path.name)}: holds no dictionary of slime or miles.")
    return content


def _samples(content: Mapping[str, Any]) -> Iterator[Record]:
    """Yield the samples of a file, each a dictionary with its number as `sample`."""
    # a file of miles has columns, for one rank
    if "rollout_data" in content:
        columns = content["rollout_data"]
        for row, sample in enumerate(columns["sample_indices"]):
            values = {}
            for name, column in columns.items():
                if isinstance(column, list | tuple) and row < len(column):
                    values[name] = column[row]
            yield {
                **values,
                "max_seq_len": values.get("max_seq_lens"),
                **{name: content.get(name) for name in ("cp_rank", "cp_size", "qkv_format")},
                "sample": int(sample),
            }
        return
    for number, sample in enumerate(content["samples"]):
        for name in ("index", "sample_index"):
            if sample.get(name) is not None:
                number = sample[name]
        yield {**sample, "sample": int(number)}


def _numbers(values: Any) -> Floats:
    """Return a tensor, an array or a list as float64; None is NaN."""
    return np.asarray(
        _complete(values).detach().double() if hasattr(values, "double") else values,
        np.float64,
    )


def _complete(values: Any) -> Any:
    """Return the values; ValueError for a tensor with more elements than the file has, by a stride
    of 0.
    """
    if hasattr(values, "untyped_storage") and values.nbytes > values.untyped_storage().nbytes():
        raise ValueError("a tensor has more elements than the file")
    return values


def _join(key: tuple[int, int], of_files: Sequence[tuple[Path, Record]]) -> Response:
    """Join what the files hold of one sample."""
    place = f"sample {key[1]} of rollout {key[0]}"
    mask = None
    response: Response = {"sequence": str(key[1]), "step": key[0]}
    versions: list[str] = []
    for path, sample in of_files:
        whole = np.asarray(_complete(sample.get("tokens", ())), np.int64)
        length: Any = sample.get("response_lengths", len(whole))
        length = int(sample.get("response_length", length))
        if not 0 <= length <= len(whole):
            raise DumpError(
                f"{clean(path.name)}: {place} has a response of {length} of {len(whole)} tokens.",
            )
        prompt, text = np.split(whole, [len(whole) - length])
        tokens = response.setdefault("token_ids", text)
        if not np.array_equal(text, tokens):
            some = min(len(text), len(tokens))
            at = np.append(text[:some] != tokens[:some], True).argmax()
            raise DumpError(
                f"{clean(path.name)}: {place} has other tokens than in"
                f" {clean(of_files[0][0].name)} from token {at} on.",
            )
        own = sample.get("loss_mask", sample.get("loss_masks"))
        if own is not None:
            mask = _numbers(own) != 0
        versions = list(map(str, sample.get("weight_versions") or ())) or versions
        status = None
        if sample.get("truncated") is not None:
            status = "truncated" if sample["truncated"] else "completed"
        facts = {
            "prompt_token_ids": json.dumps(prompt.tolist()) if len(prompt) else None,
            "reward": sample.get("reward", sample.get("rewards")),
            "stop_reason": sample.get("status", status),
            "environment": sample.get("source_names"),
            "weight_version": ",".join(versions) or None,
        }
        response |= {
            name: value for name, value in facts.items() if isinstance(value, int | float | str)
        }
        experts = sample.get("rollout_routed_experts")
        if experts is not None:
            response["routed_experts"] = write_choices(np.asarray(_complete(experts)))
        rank = re.search(r"_(\d{1,9})\.pt$", path.name)
        # miles writes every context-parallel rank; the first is read
        if "cp_rank" in sample and rank:
            response.setdefault("sampling", json.dumps({"rank": int(rank[1])}))
    for name, column in _VALUES.items():
        slices = [each for each in of_files if each[1].get(column) is not None]
        if slices:
            response[name] = _whole(place, column, slices, len(tokens))
    if mask is not None:
        if len(mask) != len(tokens):
            raise DumpError(f"{place}: a mask of {len(mask)} for {plural(len(tokens), 'token')}.")
        # a turn is tokens of the loss with masked ones between
        turn = np.cumsum(np.diff(mask.astype(np.int8), prepend=0) == 1) - 1
        is_by_turn = len(versions) == turn.max(initial=-1) + 1 > 1
        if is_by_turn and all(map(str.isdecimal, versions)):
            by_token = np.array(versions, np.float64)[turn]
            response["token_version"] = np.where(mask, by_token, np.nan)
    return response | {"mask": mask}


def _whole(
    place: str,
    column: str,
    slices: Sequence[tuple[Path, Record]],
    length: int,
) -> Floats:
    """Return the values of a response, put together from the parts of context-parallel ranks.
    [tokens]
    """
    size = max(int(one.get("cp_size") or 1) for _, one in slices)
    if size > _MOST_RANKS:
        raise DumpError(f"{place}: has a `cp_size` of {size}; expected at most {_MOST_RANKS}.")
    whole = np.full(length, np.nan)
    ranks = set()
    for path, one in slices:
        part = _numbers(one[column])
        rank = int(one.get("cp_rank") or 0)
        places = np.arange(length)
        if size > 1:
            # a rank holds two chunks of the text, one from either end
            total = int(one["total_lengths"])
            padded = int(one["max_seq_len"]) if one.get("qkv_format") == "bshd" else total
            chunk = -(-padded // (2 * size))
            # the position whose logits score each token
            scores = places + total - length - 1
            owner = np.minimum(scores // chunk, 2 * size - 1)
            chunks = [np.flatnonzero(owner == each) for each in (rank, 2 * size - rank - 1)]
            places = np.concatenate(chunks)
        if len(part) != len(places):
            raise DumpError(
                f"{clean(path.name)}: {place} has {len(part)} `{column}`; expected {len(places)}.",
            )
        if rank in ranks and not np.array_equal(whole[places], part, equal_nan=True):
            raise DumpError(f"{clean(path.name)}: {place} occurs twice, with other `{column}`.")
        whole[places] = part
        ranks.add(rank)
    if missing := sorted(set(range(size)) - ranks):
        raise DumpError(
            f"{place}: the file of context-parallel rank {missing[0]} of {size} is missing.",
        )
    return whole
