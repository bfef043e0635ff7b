"""Environment of a capture: everything besides the request that determines its bits."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ...capture_request import CaptureRequest
from ..models.model import revision_of
from .capture import CapturePlan

_REVISIONS: dict[tuple[str, str | None], str] = {}  # cached: a model's weights do not change during a process


def environment_of(request: CaptureRequest, plan: CapturePlan) -> dict[str, Any]:
    """Return what determines the bits besides the request. The plan needs no weights."""
    about, loaded = plan.header.provenance, plan.loaded
    key = (request.model, request.revision)
    if key not in _REVISIONS:
        _REVISIONS[key] = about.revision or revision_of(*key)
    config = {name: value for name, value in loaded.model.config.to_dict().items() if not name.startswith("_")}
    tokenizer = getattr(loaded.tokenizer, "backend_tokenizer", None)
    return {
        "revision": _REVISIONS[key],
        "config": _digest(json.dumps(config, sort_keys=True, default=str)),
        "tokenizer": _digest(tokenizer.to_str()) if tokenizer is not None else type(loaded.tokenizer).__name__,
        "device": loaded.device,
        "device_name": loaded.device_name,
        "versions": dict(about.versions),
        "build": request.build,
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
