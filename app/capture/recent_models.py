"""Models that were tried here, remembered across restarts in a small file in the store."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from core.disk import write_atomic
from core.packaged_models import PACKAGED

_FILE = ".recent-models.json"
_MOST = 20
SHIPPED = "sample_runs/model"


def recent_models(store: Path) -> list[str]:
    """Models that were tried here, newest first; none where the file is not there or is not ours."""
    try:
        said = json.loads((store / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [model for model in said if isinstance(model, str) and model][:_MOST] if isinstance(said, list) else []


def is_known(store: Path, model: str) -> bool:
    """Return whether somebody who may has asked this server for that model before, or it is shipped or of a package."""
    return model == SHIPPED or model in PACKAGED or model in recent_models(store)


def remember_model(store: Path, model: str) -> None:
    """Put a model in front. Written whole under another name first: another server may read at this moment."""
    models = [model, *(other for other in recent_models(store) if other != model)][:_MOST]
    with suppress(OSError):  # a store that cannot be written to says so when a run is to go into it
        store.mkdir(parents=True, exist_ok=True)
        write_atomic(store / _FILE, json.dumps(models).encode(), mode=0o600)
