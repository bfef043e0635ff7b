"""A causal language model or an encoder and its tokenizer, from a local folder or the hub, for
inference.
"""

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from ...checks.arrays_alone import LEAST_VALUES
from ...errors import CaptureError
from ...numerics.formats import LOGIT_FORMATS, format_named
from ...packaged_models import packaged_folder
from ...text import BYTE_LEVEL, clean, readable, size
from . import devices, gguf
from .devices import name_of_device, usable_device
from .encoder import Encoder, encoder_of, is_body, is_classifier, token_types
from .module_state import ModuleState, state_at_start
from .source import ModelSource, needed_bytes, source_of
from .torch_errors import first_line, foreign_errors_stop, quiet

# in a config it names the GGUF of the weights
_ORIGIN = "dequantized_from"
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")

Ids = tuple[int, ...]
"""Tokens of a prompt."""
Inputs = Sequence[str | Sequence[int] | Tensor]
"""Prompts: texts, or token ids."""


@dataclass(frozen=True)
class LoadedModel:
    """A model in eval mode, all of it in `dtype` on `device`.

    name: as requested; revision: the hub's commit, or the digest of a folder's weights or of a
    GGUF; device: 'cpu', 'cuda:0'; weights: the GGUF that they come from, in words, else ''; start:
    what its modules hold when a sequence begins; encoder: of a model without a causal head, whose
    forward gives a row of values. Loaded without weights, its parameters are on torch's meta
    device: shapes without values.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    revision: str
    dtype: str
    device: str
    weights: str = ""
    start: ModuleState = field(default_factory=dict, compare=False, repr=False)
    encoder: Encoder | None = None

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @cached_property
    def logits_dtype(self) -> str:
        """Dtype of its logits: float32 if the head of a 16-bit model computes in it, as a forward
        of one token tells.
        """
        if self.torch_dtype.itemsize > 2 or self.encoder is not None:
            return self.dtype
        token = torch.ones(1, 1, dtype=torch.long, device=self.device)
        # a forward that fails does so in words when a path runs
        with suppress(Exception), torch.inference_mode():
            logits = self.model(input_ids=token).logits
            if logits.dtype == torch.float32 and not is_widened(logits, self.torch_dtype):
                return "float32"
        return self.dtype

    @property
    def kind(self) -> str:
        """The class of the model."""
        return type(self.model).__name__

    @property
    def is_on_cuda(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def row_bytes(self) -> int:
        """Bytes of the logits of one position."""
        return self.vocab_size * self.torch_dtype.itemsize

    @property
    def text_config(self) -> Any:
        """The part of the configuration that is of its decoder."""
        return self.model.config.get_text_config(decoder=True)

    @property
    def device_name(self) -> str:
        """The chip."""
        return name_of_device(torch.device(self.device))

    @property
    def free_bytes(self) -> int | None:
        """Free memory of the device; None if unknown."""
        return devices.free_bytes(torch.device(self.device))

    @property
    def context(self) -> int | None:
        """The most positions, None if unlimited."""
        lengths = [getattr(self.text_config, key, None) for key in _CONTEXT_KEYS]
        longest = next((each for each in lengths if isinstance(each, int) and each > 0), None)
        return longest and longest - self.first_position

    @property
    def first_position(self) -> int:
        """The number of a prompt's first position: RoBERTa's follows the padding's."""
        for name, module in self.model.named_modules():
            if name.endswith(".position_embeddings") and isinstance(module, nn.Embedding):
                return 0 if module.padding_idx is None else module.padding_idx + 1
        return 0

    @property
    def vocab_size(self) -> int:
        """Width of its logits, in tokens; of an encoder the values of a row."""
        if self.encoder is not None:
            return self.encoder.width
        weight = getattr(self.model.get_output_embeddings(), "weight", None)
        if weight is not None:
            return len(weight)
        return int(self.text_config.vocab_size)

    @property
    def token_limit(self) -> int:
        """Token ids below this have an embedding and a logit."""
        embedding: Any = self.model.get_input_embeddings()
        tokens = len(embedding.weight)
        return tokens if self.encoder is not None else min(self.vocab_size, tokens)

    @property
    def separator(self) -> int | None:
        """Token before the second text of a pair, None if the model does not tell them apart."""
        name = "token_type_ids"
        is_read = name in signature(self.model.forward).parameters
        has_types = is_read and name in getattr(self.tokenizer, "model_input_names", ())
        return self.tokenizer.sep_token_id if has_types else None

    @property
    def has_experts(self) -> bool:
        """Whether it is a mixture of experts, whose router is not continuous."""
        keys = ("num_local_experts", "num_experts", "n_routed_experts", "num_experts_per_tok")
        return any(getattr(self.text_config, key, None) for key in keys)

    @property
    def has_few_values(self) -> bool:
        """Whether a row has too few values for a size of its own, as scores have."""
        return self.encoder is not None and self.vocab_size < LEAST_VALUES

    def rows_of(self, ids: Sequence[int]) -> int:
        """Return the rows that a forward gives for a prompt."""
        return len(ids) if self.encoder is None else 1

    def lengths_of(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Return the positions of each prompt of a run; the texts of an encoder are rows of
        one.
        """
        return [len(prompts)] if self.encoder is not None else [len(ids) for ids in prompts]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in this dtype, shared ones once."""
        return sum(parameter.nbytes for parameter in self.model.parameters())

    def encode(self, text: str, label: str, **options: Any) -> Ids:
        """Return the token ids of a text.

        CaptureError, which begins with `label`, if the tokenizer fails.
        """
        try:
            with quiet():
                return tuple(int(token) for token in self.tokenizer(text, **options)["input_ids"])
        # a lone surrogate, for instance, is a Python text that no tokenizer reads
        except Exception as error:
            reason = f"the tokenizer cannot read it ({first_line(error)}); expected plain text"
            raise CaptureError(f"{label}: {reason}.") from error

    def encode_pair(self, text: str, pair: str, label: str) -> Ids:
        """Return the token ids of two texts as a reranker takes them."""
        ids = self.encode(text, label, text_pair=pair)
        if self.separator is not None:
            derived = token_types(torch.tensor([ids]), self.separator)[0].tolist()
            if derived != self.tokenizer(text, pair)["token_type_ids"]:
                raise CaptureError(
                    f"{label}: the tokenizer's token types are not 0 up to the first separator and"
                    " 1 after it; leave separators out of the texts.",
                )
        return ids

    def tokens_of(self, prompt: str | Sequence[int] | Tensor, label: str) -> Ids:
        """Return the tokens of a prompt, text or token ids.

        CaptureError if the model cannot take them.
        """
        if isinstance(prompt, str):
            ids = self.encode(prompt, label) if prompt else ()
        else:
            try:
                ids = tuple(map(operator.index, prompt))
            except TypeError:
                raise CaptureError(
                    f"{label} is no list of whole numbers; pass one list of token ids a prompt.",
                ) from None
        if not ids:
            raise CaptureError(f"{label} is empty; expected at least one token.")
        if self.context is not None and len(ids) > self.context:
            raise CaptureError(
                f"{label} has {len(ids):,} tokens; the model's context is {self.context:,}. Shorten"
                " the prompt.",
            )
        for position, token in enumerate(ids):
            if not 0 <= token < self.token_limit:
                raise CaptureError(
                    f"{label}: token {token} at position {position} is outside the vocabulary of"
                    f" {self.token_limit}.",
                )
        return ids

    def tokens_of_all(self, prompts: Inputs) -> list[Ids]:
        """Return the tokens of every prompt. CaptureError names one that the model cannot take."""
        count = len(prompts)
        return [self.tokens_of(each, f"prompt {n} of {count}") for n, each in enumerate(prompts, 1)]

    def vocabulary(self) -> dict[int, str]:
        """Return token id -> readable text, for every id that has a logit."""
        if self.encoder is not None:
            return {}
        with quiet():
            return token_texts(self.tokenizer, range(self.vocab_size))


def load_model(
    name: str,
    *,
    dtype: str,
    device: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    weights: bool = True,
    encodes: bool = False,
) -> LoadedModel:
    """Load a local folder, hub id, GGUF or packaged model, all of it in `dtype`; on CUDA if there
    is one.

    Cheap checks come first; every refusal is a CaptureError. weights: False for the shapes only;
    encodes: without a causal head, as the path `encode` runs it.
    """
    fmt = format_named(dtype)
    torch_dtype = getattr(torch, fmt.name)
    target = usable_device(device)
    with quiet(), ExitStack() as stack:
        source = replace(source_of(name, revision), trust_remote_code=trust_remote_code)
        if source.gguf is not None:
            place = stack.enter_context(gguf.alone(source.gguf.path))
            source = replace(source, place=place)
        with foreign_errors_stop(
            f"model '{name}'",
            "close other programs or choose a smaller model",
        ):
            config = _config(source)
            kind: Any = AutoModelForCausalLM
            encoder = None
            if encodes:
                kind, encoder = encoder_of(source, config)
            else:
                _check_causal(source, config)
            tokenizer = _tokenizer(source)
            needed = needed_bytes(source, config, fmt.itemsize)
            # weights pass through the host on their way to a GPU
            places = {"this machine": devices.free_host_bytes()}
            if target.type == "cuda":
                places[str(target)] = devices.free_bytes(target)
            for place, free in places.items():
                if needed is not None and free is not None and needed > free:
                    raise CaptureError(
                        f"model '{name}' needs {size(needed)} in {fmt.name}; {place} has"
                        f" {size(free)} free. Choose a smaller model, a narrower dtype or another"
                        " machine.",
                    )
        narrower = "choose a smaller model, a narrower dtype or another device"
        with foreign_errors_stop(f"model '{name}' cannot be loaded on {target}", narrower):
            if weights:
                model: Any = _weights(source, config, torch_dtype, kind).to(target)
            else:
                with torch.device("meta"):
                    model = kind.from_config(
                        config,
                        dtype=torch_dtype,
                        trust_remote_code=trust_remote_code,
                    )
        model.eval().requires_grad_(False)
    origin = getattr(model.config, _ORIGIN, None)
    made_of = ""
    if isinstance(origin, dict):
        file = f"{origin.get('quantization')} of the GGUF {origin.get('sha256')}"
        made_of = clean(f"dequantized from {file}", 200)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=name,
        revision=source.revision or (source.digest if weights else ""),
        dtype=fmt.name,
        device=str(target),
        weights=made_of,
        start=state_at_start(model),
        encoder=encoder,
    )


def revision_of(name: str, revision: str | None = None) -> str:
    """Return the revision of a model without loading its weights."""
    source = source_of(name, revision)
    return source.revision or source.digest


def save_model(loaded: LoadedModel, folder: Path) -> None:
    """Write a model and its tokenizer as a folder for transformers and `load_model`."""
    with (
        quiet(),
        foreign_errors_stop(
            f"model '{loaded.name}' cannot be written to {folder}",
            "close other programs",
        ),
    ):
        loaded.model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)


def is_widened(logits: Tensor, dtype: torch.dtype) -> bool:
    """Return whether logits were rounded to `dtype` and then widened to float32, as a Mamba's."""
    if logits.dtype != torch.float32:
        return False
    narrow = logits.to(dtype).to(logits.dtype)
    return bool(((narrow == logits) | (narrow.isnan() & logits.isnan())).all())


class _NoTokenizer:
    """Stands in for a missing tokenizer: only real text needs one."""

    pad_token_id = eos_token_id = bos_token_id = None

    def __call__(self, *_: object, **__: object) -> Any:
        raise CaptureError(
            "the model has no tokenizer, which the real text of a batch needs; give one, or add"
            " neighbours:random.",
        )


def loaded_from(model: PreTrainedModel, tokenizer: Any = None) -> LoadedModel:
    """Return a model that is in memory already. tokenizer: None for that of its folder, if any."""
    dtype = str(model.dtype).removeprefix("torch.")
    if dtype not in LOGIT_FORMATS:
        raise CaptureError(f"the model is in {dtype}; expected {', '.join(LOGIT_FORMATS)}.")
    name = str(getattr(model, "name_or_path", "") or type(model).__name__)
    if tokenizer is None and Path(name).is_dir():
        tokenizer = _tokenizer(ModelSource(name, name, Path(name)))
    if model.training:
        raise CaptureError(
            f"a {type(model).__name__} in training mode has random dropout; call model.eval()"
            " first.",
        )
    return LoadedModel(
        model=model,
        tokenizer=_NoTokenizer() if tokenizer is None else tokenizer,  # type: ignore[arg-type]
        name=name,
        revision="",
        dtype=dtype,
        device=str(model.device),
        start=state_at_start(model),
    )


def _config(source: ModelSource) -> Any:
    if source.folder is not None and not (source.folder / "config.json").is_file():
        raise CaptureError(
            f"model '{source.name}': the folder has no config.json; expected a model saved by"
            " transformers.",
        )
    try:
        config = AutoConfig.from_pretrained(source.place, **source.arguments)
    except Exception as error:
        # transformers' own refusal, over several lines
        if "trust_remote_code" in str(error):
            raise _own_code(source.name) from error
        what = "config.json" if source.gguf is None else "header"
        raise CaptureError(
            f"model '{source.name}': its {what} is invalid: {first_line(error)}.",
        ) from error
    _forget_kernels(config)
    return config


def _forget_kernels(config: Any) -> None:
    """Remove hub kernels from a config: transformers would download and run their code."""
    for key, value in list(vars(config).items()):
        if isinstance(value, PreTrainedConfig):
            _forget_kernels(value)
        elif key.endswith("_implementation_internal") and isinstance(value, str) and "/" in value:
            setattr(config, key, None)


def _own_code(name: str) -> CaptureError:
    return CaptureError(
        f"model '{name}' runs its own code; read it, then allow it by trust_remote_code.",
    )


def _check_causal(source: ModelSource, config: Any) -> None:
    """Refuse models that load as a causal LM but are none: an encoder predicts the token it
    sees.
    """
    kind = config.model_type
    brings_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    is_listed = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if not is_listed and brings_code and not source.trust_remote_code:
        raise _own_code(source.name)
    declared = config.architectures or [kind]
    is_encoder = kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and any(map(is_body, declared))
    is_other = is_encoder or any(map(is_classifier, declared)) or config.is_encoder_decoder
    if is_other or not (is_listed or brings_code):
        raise CaptureError(
            f"model '{source.name}' is a {declared[0]};"
            " expected a causal language model. Paths of other models begin with encode.",
        )


def _tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.place, **source.arguments)
    except Exception as error:
        is_gguf = source.gguf is not None
        expected = "vocabulary in the file" if is_gguf else "tokenizer.json with the weights"
        raise CaptureError(
            f"model '{source.name}': its tokenizer is missing or unreadable ({first_line(error)});"
            f" expected a {expected}.",
        ) from error
    if source.gguf is not None and source.gguf.splits_digits:
        gguf.split_digits(tokenizer)
    can_encode = False
    with suppress(Exception):
        can_encode = len(tokenizer("A word.", add_special_tokens=False)["input_ids"]) > 0
    if not can_encode:
        raise CaptureError(
            f"model '{source.name}': its tokenizer returns no tokens for a text;"
            " expected a tokenizer with a vocabulary.",
        )
    return tokenizer


def _weights(source: ModelSource, config: Any, target: torch.dtype, kind: Any) -> Any:
    # No .to(target) afterwards: buffers such as rotary frequencies stay in float32.
    arguments = source.arguments
    first = target
    if source.gguf is not None:
        # else transformers may download kernels
        arguments["quantization_config"] = GgufConfig(dequantize=True)
        if source.gguf.is_rounded_later:
            first = torch.float32
    model, report = kind.from_pretrained(
        source.place,
        config=config,  # as checked, not read again
        dtype=first,
        output_loading_info=True,
        **arguments,
    )
    # transformers would only warn, and fill them with random numbers; the pooler is never read
    # where states are pooled, and files of masked language models have none
    missing = sorted(report["missing_keys"])
    if kind is AutoModel:
        missing = [name for name in missing if not name.startswith("pooler.")]
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise CaptureError(
            f"model '{source.name}': its weights lack '{missing[0]}'{more};"
            f" expected those of a {type(model).__name__}.",
        )
    if source.gguf is not None:
        gguf.plain(model)
        model.name_or_path = source.name
        origin = {"quantization": source.gguf.quantization, "sha256": source.gguf.sha256}
        setattr(model.config, _ORIGIN, origin)
        if first != target:
            for parameter in rounded_parameters(model, first, target):
                parameter.data = parameter.data.to(target)
            model.config.dtype = target
    return model


def rounded_parameters(
    model: nn.Module,
    source: torch.dtype,
    target: torch.dtype,
) -> Iterator[nn.Parameter]:
    """Yield the parameters that a conversion changes: all but those that transformers loads in
    float32. Those of a model that was cast whole are widened like the others.
    """
    if target == source:
        return
    float32_names: list[str] = []
    if target.itemsize < torch.float32.itemsize:
        float32_names += getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    # modeling_utils: the second list is for overflows of float16
    if target is torch.float16:
        float32_names += getattr(model, "_keep_in_fp32_modules", None) or ()
    for name, parameter in model.named_parameters():
        is_kept = any(re.search(rf"(^|\.){re.escape(part)}(\.|$)", name) for part in float32_names)
        if parameter.dtype == source and not is_kept:
            yield parameter


def texts_by(folder: str) -> Callable[[Sequence[int]], dict[int, str]]:
    """Return a function that gives the texts of token ids, by the tokenizer of a folder."""
    path = packaged_folder(folder) or Path(folder).expanduser()
    if not path.is_dir():
        raise CaptureError(f"tokenizer '{folder}': no such folder; expected tokenizer.json in one.")
    with quiet():
        tokenizer = _tokenizer(ModelSource(folder, str(path), path))
    return lambda ids: token_texts(tokenizer, ids)


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> dict[int, str]:
    """Return token id -> readable text; an id unknown to the tokenizer is '<unused 511>'.

    `convert_ids_to_tokens` returns a byte-level tokenizer's private alphabet, and `decode` replaces
    bytes that are not valid UTF-8 alone.
    """
    raws = tokenizer.convert_ids_to_tokens(list(ids))
    return {token: _text(tokenizer, token, raw) for token, raw in zip(ids, raws, strict=True)}


def dimension(config: Any, name: str) -> int:
    """Return a size of a config, the largest of those of layers; 0 if it has none."""
    value = getattr(config, name, None) or 0
    return max(value) if isinstance(value, list | tuple) else int(value)


def _text(tokenizer: PreTrainedTokenizerBase, token: int, raw: str | None) -> str:
    if raw is None:
        return f"<unused {token}>"
    text = str(
        tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False),
    )
    if "\ufffd" in text:
        if all(char in BYTE_LEVEL for char in raw):
            return readable(bytes(BYTE_LEVEL[char] for char in raw))
        # sentencepiece: '<0xE2>'
        return raw
    if raw.startswith("▁") and not text.startswith(" "):
        # sentencepiece drops the space of a first word
        return f" {text}"
    return text or raw
