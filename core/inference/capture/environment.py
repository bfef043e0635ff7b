"""Environment of a capture: everything beside what is asked for that determines its bits."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ...capture_request import CaptureRequest
from ..models.model import revision_of
from .capture import CapturePlan

_REVISIONS: dict[tuple[str, str | None], str] = {}  # of this process, in which no model's weights change


def environment_of(request: CaptureRequest, plan: CapturePlan) -> dict[str, Any]:
    """Return what determines the bits beside the request; a plan without weights will do."""
    about, loaded = plan.header.provenance, plan.loaded
    asked = (request.model, request.revision)
    if asked not in _REVISIONS:
        _REVISIONS[asked] = about.revision or revision_of(*asked)
    config = {key: value for key, value in loaded.model.config.to_dict().items() if not key.startswith("_")}
    tokenizer = getattr(loaded.tokenizer, "backend_tokenizer", None)
    return {
        "revision": _REVISIONS[asked],
        "config": _digest(json.dumps(config, sort_keys=True, default=str)),
        "tokenizer": _digest(tokenizer.to_str()) if tokenizer is not None else type(loaded.tokenizer).__name__,
        "device": loaded.device,
        "device_name": loaded.device_name,
        "versions": dict(about.versions),
        "build": request.build,
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
