"""Models without a causal head: encoders, sequence classifiers, rerankers. A text is one row of
values.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForSequenceClassification
from transformers.utils import cached_file

from ...errors import CaptureError
from .source import ModelSource

MEAN, CLS, LAST = "mean", "cls", "lasttoken"
# keys of sentence-transformers' 1_Pooling/config.json
_POOLINGS = {
    "pooling_mode_mean_tokens": MEAN,
    "pooling_mode_cls_token": CLS,
    "pooling_mode_lasttoken": LAST,
}


@dataclass(frozen=True)
class Encoder:
    """What becomes of a forward's outputs.

    width: values of a row; pooling: of the states of a text's tokens, '' for class logits;
    is_normalized: rows are scaled to length 1.
    """

    width: int
    pooling: str = ""
    is_normalized: bool = False

    def __str__(self) -> str:
        pooling = f"{self.pooling} of token states" if self.pooling else "class logits"
        return pooling + ", normalized" * self.is_normalized

    def rows(self, outputs: Any, mask: Tensor) -> Tensor:
        """Return the values of each text. mask: 1 for a token of it [texts, columns]. -> [texts,
        width]
        """
        if not self.pooling:
            logits: Tensor = outputs.logits
            return logits
        states = outputs.last_hidden_state
        if self.pooling == MEAN:
            # whole numbers, for bfloat16 counts to 256 only
            rows = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        else:
            column = mask.argmax(1)
            if self.pooling == LAST:
                column = column + mask.sum(1) - 1
            rows = states[torch.arange(len(states)), column]
        return torch.nn.functional.normalize(rows) if self.is_normalized else rows


class _Module(msgspec.Struct):
    """A line of sentence-transformers' modules.json."""

    type: str
    path: str = ""


def is_classifier(architecture: str) -> bool:
    """Return whether a model gives class logits, or a reranker's score."""
    return architecture.endswith("ForSequenceClassification")


def is_body(architecture: str) -> bool:
    """Return whether states are pooled: of a model without a head, or a masked language model
    without its own.
    """
    is_causal = architecture.endswith("LMHeadModel")
    return not is_causal and architecture.endswith(("Model", "ForMaskedLM", "ForPreTraining"))


def encoder_of(source: ModelSource, config: Any) -> tuple[Any, Encoder]:
    """Return the class of transformers that loads a model without a causal head, by its
    `architectures`, and what becomes of its outputs.
    """
    declared = (config.architectures or [config.model_type])[0]
    if is_classifier(declared):
        return AutoModelForSequenceClassification, Encoder(int(config.num_labels))
    modules = _read(source, "modules.json", list[_Module])
    if config.is_encoder_decoder or not (is_body(declared) or modules):
        raise CaptureError(
            f"model '{source.name}' is a {declared}; expected an encoder or a sequence classifier."
            " For a causal language model choose prefill.",
        )
    folders = {module.type.rpartition(".")[2]: module.path for module in modules or ()}
    if others := sorted(folders.keys() - {"Transformer", "Pooling", "Normalize"}):
        raise CaptureError(
            f"model '{source.name}': modules.json lists {others[0]}; expected Transformer, Pooling"
            " and Normalize only.",
        )
    pooling = MEAN
    if "Pooling" in folders:
        name = f"{folders['Pooling']}/config.json"
        values = _read(source, name, dict[str, Any]) or {}
        # newer files name it, older ones have a switch for each
        switched = [key for key, on in values.items() if key.startswith("pooling_mode_") and on]
        switches = ", ".join(_POOLINGS.get(key, key) for key in switched)
        pooling = values.get("pooling_mode") or switches
        if pooling not in _POOLINGS.values():
            raise CaptureError(
                f"model '{source.name}': {name} has the pooling '{pooling}'; expected one of"
                f" {', '.join(_POOLINGS.values())}.",
            )
    return AutoModel, Encoder(int(config.hidden_size), pooling, "Normalize" in folders)


def _read(source: ModelSource, name: str, kind: Any) -> Any:
    """Return a JSON file of the model; None if it has none."""
    path = cached_file(
        source.place,
        name,
        revision=source.revision,
        local_files_only=source.folder is not None,
        _raise_exceptions_for_missing_entries=False,
    )
    try:
        return None if path is None else msgspec.json.decode(Path(path).read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise CaptureError(f"model '{source.name}': {name} is invalid: {error}.") from error


def token_types(ids: Tensor, separator: int) -> Tensor:
    """Return 0 up to the first separator of a row, then 1: the second text of a pair. Same
    shape
    """
    is_separator = (ids == separator).long()
    return (is_separator.cumsum(1) > is_separator).long()
