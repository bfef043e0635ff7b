"""A page as a new viewer sees it who followed a link, and all that it says."""

from __future__ import annotations

import json
from pathlib import Path

from streamlit.testing.v1 import AppTest

ROOT = Path(__file__).resolve().parents[2]


def opened(page: str, **link: str) -> AppTest:
    """Opened by its address, without an exception."""
    app = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=300)
    for key, value in link.items():
        app.query_params[key] = value
    app.run()
    app.switch_page(f"../pages/{page}.py").run()
    assert not app.exception
    return app


def said(app: AppTest) -> str:
    """All text of the page."""
    kinds = ("title", "markdown", "caption", "info", "success", "warning", "error", "subheader")
    return "\n".join(str(element.value) for kind in kinds for element in getattr(app, kind))


def codes(app: AppTest) -> list[str]:
    """The texts that the page shows to be copied."""
    parts = (element.proto for element in app.get("bidi_component"))
    return [json.loads(part.json)["text"] for part in parts if part.component_name == "ulpscope_code"]


def figures_of(app: AppTest) -> list[dict]:
    """Figures of the page, in their order: what each is sent, its plot under `figure`."""
    parts = (element.proto for element in app.get("bidi_component"))
    found = [json.loads(part.json) for part in parts if part.component_name == "ulpscope_figure"]
    return [{**one, "figure": json.loads(one["spec"])} for one in found]
