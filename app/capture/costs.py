"""Preview of a capture, drawn while its form is being filled in: its sides, and their costs."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.capture.form import CaptureForm
from app.capture.preview import Answer, previews
from app.shell import widgets
from core.runs.file.kept import takes
from core.text import plural, size


def look_up(form: CaptureForm) -> Answer | None:
    """The dry run's answer for this viewer's form; None while there is none."""
    looks = previews()
    carried = looks.file(form.carried) if form.carried else None
    return looks.look(widgets.viewer(), form.arguments(carried))


def _draw(form: CaptureForm, answer: Answer) -> None:
    """Draw what will run, side by side, and what it takes."""
    if answer.refusal:
        st.warning(widgets.escaped(answer.refusal), icon=":material/block:")
        return
    costs = answer.costs
    sides = pd.DataFrame(costs["sides"])
    caches = [None if held is None else size(held) if held else "none" for held in sides["kv_bytes"].astype(object)]
    shown = {
        "side": sides["name"],
        "forwards": sides["forwards"],
        "positions": sides["positions"],
        "tokens computed": sides["tokens"],
        "key/value cache": caches,
    }
    st.dataframe(
        pd.DataFrame(shown),
        hide_index=True,
        column_config={
            name: st.column_config.NumberColumn(format="localized")
            for name in ("forwards", "positions", "tokens computed")
        },
    )
    free = f", {size(costs['free_bytes'])} free beside them" if costs["free_bytes"] is not None else ""
    lines = [
        (
            f"{plural(costs['prompts'], 'prompt')}, {plural(len(sides), 'side')}: "
            f"{plural(costs['forwards'], 'forward')} of {plural(costs['tokens'], 'token')} in all, in {costs['dtype']}."
        ),
        (
            f"{takes(costs['kept'], costs['file_bytes'])}; the weights take"
            f" {size(costs['weight_bytes'])} on {costs['device']}"
            f" ({widgets.escaped(costs['device_name'])}){free}."
        ),
    ]
    if form.request.tokens:
        lines.append(
            "At most: no side parts, none ends its text early, and each token is computed once to choose it and once to"
            " keep its logits."
        )
    st.caption(" ".join(lines))


def section(form: CaptureForm) -> None:
    """Draw the preview, again until its dry run has answered."""
    answer = look_up(form)
    if answer is not None:
        _draw(form, answer)
    if answer is None or not answer.is_fresh:
        st.session_state["capture_awaits"] = True
        if answer is None:
            st.caption(":material/hourglass_empty: Looking at the model and counting what this would run …")
    elif st.session_state.pop("capture_awaits", False):
        # the whole page: what is offered depends on the devices there are, and there is nothing more to wait for
        st.rerun()
