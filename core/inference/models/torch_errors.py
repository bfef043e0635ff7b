"""The boundary for exceptions, warnings and progress bars of torch and transformers."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)
from transformers.utils import logging as transformers_logging

from ...errors import CaptureError, UlpscopeError

# attributes of an exception
_OURS = "_ulpscope_is_ours"
_REASON = "_ulpscope_reason"
# CPU allocation failures are plain RuntimeErrors; these are the allocator's words.
_MEMORY_WORDS = ("can't allocate memory", "not enough memory", "out of memory")


def first_line(error: BaseException) -> str:
    """Return the first line of a foreign message, without its full stop, to quote in a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".:; ")[:300]


@contextmanager
def foreign_errors_stop(label: str, when_out_of_memory: str) -> Iterator[None]:
    """Turn any foreign exception into one CaptureError sentence that begins with `label`.

    KeyboardInterrupt and the like pass, and so do exceptions inside `no_foreign_errors`.
    """
    try:
        yield
    except UlpscopeError:
        raise
    except Exception as error:
        if getattr(error, _OURS, False):
            raise
        is_allocator = isinstance(error, RuntimeError) and any(
            words in str(error).lower() for words in _MEMORY_WORDS
        )
        if is_allocator or isinstance(error, torch.OutOfMemoryError | MemoryError):
            raise CaptureError(f"{label}: out of memory; {when_out_of_memory}.") from error
        foreign = f"{type(error).__name__}: {first_line(error)}"
        reason = getattr(error, _REASON, "")
        says = f"{reason} ({foreign})" if reason else foreign
        raise CaptureError(f"{label}: {says}.") from error


@contextmanager
def no_foreign_errors() -> Iterator[None]:
    """Let exceptions inside pass unchanged: those of the consumer of logits are not torch's."""
    try:
        yield
    except Exception as error:
        setattr(error, _OURS, True)
        raise


@contextmanager
def foreign_errors_mean(reason: str) -> Iterator[None]:
    """Have `foreign_errors_stop` say this of foreign exceptions inside, before their own words."""
    try:
        yield
    except Exception as error:
        setattr(error, _REASON, reason)
        raise


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings and progress bars of transformers and its hub client inside; restore both
    after.
    """
    hub_log = logging.getLogger("huggingface_hub")
    with warnings.catch_warnings(), ExitStack() as restoring:
        warnings.simplefilter("ignore")
        restoring.callback(transformers_logging.set_verbosity, transformers_logging.get_verbosity())
        transformers_logging.set_verbosity_error()
        if transformers_logging.is_progress_bar_enabled():
            restoring.callback(transformers_logging.enable_progress_bar)
            transformers_logging.disable_progress_bar()
        if not are_progress_bars_disabled():
            restoring.callback(enable_progress_bars)
            disable_progress_bars()
        restoring.callback(hub_log.setLevel, hub_log.level)
        hub_log.setLevel(logging.CRITICAL)
        yield


@contextmanager
def model_errors_stop(
    label: str = "judging",
    when_out_of_memory: str = "shorten the prompts or choose a smaller model",
) -> Iterator[None]:
    """Run torch quietly, without gradients; its errors become a CaptureError."""
    with quiet(), torch.inference_mode(), foreign_errors_stop(label, when_out_of_memory):
        yield
