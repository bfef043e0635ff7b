"""Parts that the tabs of Internals share, and the tab of mitigations."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from app.components import tables
from app.internals.recorded import Recorded
from app.navigation import PROMPTS
from app.shell import exports, selection, widgets
from core.runs.queries.kernels import shape_in_words, short_name
from core.runs.requests import asks_for, has_engine
from core.runs.tables.mitigations import advice
from core.text import visible

_OF_MITIGATIONS = [
    "name",
    "neq",
    "rms",
    "noise_ratio",
    "flips",
    "reference_share",
    "variant_share",
    "max_ulps",
    "what",
]


def not_recorded(view: selection.View, missing: Sequence[Recorded]) -> None:
    """Say why this pair has none of what these tabs show, and how to get it."""
    run = view.run
    about = view.header.provenance
    if about.kind == "upload":
        st.info(
            f"This run was uploaded; a dump of logits has no {_listed(missing, ' or ')}."
            " Capture the pair from its model.",
        )
        return
    # each kind has a sentence of its own
    failed, refused, new = [], [], []
    for one in missing:
        # another variant of the run may have what this one lacks
        variants = [pair.variant for pair in run.pairs if pair.index in one.pairs(run)]
        if variants:
            names = ", ".join(f"`{widgets.code(name)}`" for name in variants)
            st.info(f"This variant has no {one.what}. These variants have them: {names}.")
            st.button(
                f"Show {widgets.escape(visible(variants[0]))}",
                on_click=selection.select,
                kwargs={"variant": variants[0]},
                key=f"show_{one.option}",
            )
            continue
        # kernels of one side are there: the other side's could not be watched
        is_half = one.option == "kernels" and run.sides_with_kernels
        is_asked = asks_for(about, one.option) or is_half
        if is_asked:
            failed.append(one)
        is_refused = one.option != "layers" and has_engine(about)
        if is_refused:
            refused.append(one)
        if not (is_asked or is_refused):
            new.append(one)
    if failed:
        what = _listed(failed, " and ")
        st.info(
            f"The {what} of this pair could not be recorded. {widgets.escape(about.note)}".strip(),
        )
    if refused:
        what = _listed(refused, ", ")
        st.info(f"One side ran in another engine than transformers: {what} cannot be recorded.")
    if new:
        options = " ".join(f"`--{one.option}`" for one in new)
        st.info(f"Not recorded: {_listed(new, ', ')}. Capture again with {options}.")
        widgets.same_capture_with(about, *(one.option for one in new))


def _listed(recorded: Sequence[Recorded], between: str) -> str:
    return between.join(one.what for one in recorded)


def prompt_in_scope(view: selection.View, key: str) -> int | None:
    """Draw the choice between the selected prompt and all prompts; None is all."""
    if not view.header.has_several_prompts:
        return view.prompt
    scope = widgets.choice("Figures of", PROMPTS, key)
    return None if scope == PROMPTS[1] else view.prompt


def where(view: selection.View) -> str:
    """Title of a map of the selected prompt."""
    return f"Where in {view.of_prompt.removeprefix(' of ') or 'the prompt'}"


def kernel_texts(table: pd.DataFrame) -> pd.DataFrame:
    """Return kernels side by side with each of their lists as a text: its first entry."""

    def some(values: list[str]) -> str:
        more = f" and {len(values) - 1} more" if len(values) > 1 else ""
        return (values[0] or "(the model itself)") + more

    def shapes(details: list[str]) -> str:
        return some([shape_in_words(detail).strip("`") for detail in details or ["not recorded"]])

    texts = {
        "name": short_name,
        "places": some,
        "modules": some,
        "reference_details": shapes,
        "variant_details": shapes,
    }
    shown = table.assign(**{name: table[name].map(text) for name, text in texts.items()})
    for side in ("reference", "variant"):
        shown.loc[table[f"{side}_launches"] == 0, f"{side}_details"] = ""
    return shown


def mitigations(view: selection.View) -> None:
    """Draw what would make the sides agree, and the throughput cost."""
    rows = view.run.mitigations[view.pair.index]
    st.markdown(widgets.escape(advice(rows)))
    table = pd.DataFrame([row for row in rows if not row.refusal])[_OF_MITIGATIONS]
    titles = {
        "name": "mitigation",
        "noise_ratio": f"RMS / {rows[0].compute_dtype} noise floor",
    }
    tables.draw(table.rename(columns=titles), "mitigations", unit=view.header.unit)
    st.caption(
        "One change at a time. Throughput: relative to the baseline. Noise floor of"
        f" {rows[0].compute_dtype}: reduction orders only; 16-bit checks of the Overview add"
        " rounding, so their ratios are lower.",
    )
    refused = [
        f"- **{widgets.escape(row.name)}**: {widgets.escape(row.refusal)}"
        for row in rows
        if row.refusal
    ]
    if refused:
        st.markdown("Not measured:\n\n" + "\n".join(refused))
    every = pd.DataFrame(rows).convert_dtypes()
    exports.download({"mitigations": every}, exports.file_stem(view, "mitigations"), "mitigations")
