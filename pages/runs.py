"""Runs: the gallery."""

import pandas as pd
import streamlit as st

from app import state, widgets, words
from app.widgets import PAGES
from core.errors import UlpscopeError

st.title("Runs")
cards, broken = state.cards()
if not cards:
    widgets.empty()
if all(card.is_read_only for card in cards):
    st.markdown(
        "ULPscope keeps the complete logits of a model computed two ways that are equal in exact arithmetic, and shows where they part. "
        "The runs below were captured for real with the small model that ships with it; **Fresh against cached** is worth opening first. "
        "Upload a dump of your own engine, or capture a run, and it joins them here."
    )


def offered(options: list[str], key: str) -> list[str]:
    """The filter's options, with the one that a link or an earlier visit chose although no run has it."""
    chosen = st.session_state.get(key)
    return options if chosen is None or chosen in options else [*options, chosen]


search, dtype, judged, only = st.columns([3, 1, 1.4, 1], vertical_alignment="bottom")
text = search.text_input("Search", placeholder="name, model or side", key="gallery_search").lower()
dtypes = sorted({card.compute_dtype for card in cards})
wanted = dtype.selectbox("dtype", offered(["any", *dtypes], "gallery_dtype"), key="gallery_dtype")
verdicts = [name for name in words.VERDICTS if any(name in card.pair_verdicts for card in cards)]
verdict = judged.selectbox(
    "Verdict", offered(["any", *verdicts], "gallery_verdict"), key="gallery_verdict", help="of any of the run's pairs"
)
flips_only = only.toggle("with flips", key="gallery_flips")
shown = [
    card
    for card in cards
    if text in " ".join((card.name, card.model, card.run_id, *card.sides)).lower()
    and wanted in ("any", card.compute_dtype)
    and verdict in ("any", *card.pair_verdicts)
    and (card.flips or not flips_only)
]

table = pd.DataFrame(
    {
        "name": [card.name for card in shown],
        "verdict": [words.verdicts(card) for card in shown],
        "outcome": [words.outcome(card) for card in shown],
        "flips": [card.flips for card in shown],
        "max ULPs": [card.max_ulps for card in shown],
        "dtype": [card.compute_dtype for card in shown],
        "device": [card.device for card in shown],
        "positions": [card.positions for card in shown],
        "sides": [" · ".join(card.sides) for card in shown],
        "model": [words.model_name(card.model) for card in shown],
        "created": [card.created for card in shown],
        "size": [words.size(card.bytes) for card in shown],
    }
)


def choose() -> None:
    selection = st.session_state["gallery"]["selection"]
    rows = selection["rows"] or [cell[0] for cell in selection["cells"]]
    if rows:
        state.select(run=shown[rows[0]].run_id)
        widgets.new_run()
        st.session_state["opened"] = True


st.dataframe(
    table, key="gallery", hide_index=True, on_select=choose, selection_mode=["single-row", "single-cell"], width="stretch", placeholder="–",
    column_config={
        "name": st.column_config.TextColumn(width="medium"),
        "verdict": st.column_config.MultiselectColumn(
            options=list(words.VERDICTS), color=list(words.VERDICTS.values()), help="of the run's pairs, the gravest first"
        ),
        "positions": st.column_config.NumberColumn(format="localized"),
        "max ULPs": st.column_config.NumberColumn(format="localized", help="largest distance, in ULPs of the run's dtype"),
        "flips": st.column_config.NumberColumn(help="positions whose argmax differs"),
        "created": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm", help="UTC"),
    },
)  # fmt: skip
st.caption(
    f"{len(shown)} of {len(cards)} runs; click one to open it. ULPs are counted in each run's own dtype; where a run has several pairs, figures are those of the worst."
)
if st.session_state.pop("opened", False):
    st.switch_page(PAGES / "overview.py")

view = state.current_view()
if view is not None:
    card = next((card for card in cards if card.run_id == view.run.run_id), None)
if view is not None and card is not None:
    with st.container(border=True):
        st.markdown(f"**Selected: {widgets.escaped(card.name)}**  \n`{card.run_id}`")
        open_it, file, npz, remove, _ = st.columns([1, 1.6, 1.4, 1.8, 2], vertical_alignment="center")
        open_it.page_link(PAGES / "overview.py", label="**Open** →", query_params=state.address(view, "overview"))
        file.markdown(f"[Download .duckdb](/files/{card.run_id}.duckdb)")
        npz.markdown(f"[Download .npz](/files/{card.run_id}.npz)")
        if card.is_read_only:
            remove.caption("sample, read-only")
        else:
            with remove.popover("Delete"):
                st.write(f"Delete this run and its {words.size(card.bytes)} for good?")
                if st.button("Delete for good", type="primary", key="delete"):
                    try:
                        state.delete(card.run_id)
                    except UlpscopeError as error:
                        state.complain(str(error))
                    st.rerun()

for run in broken:
    st.warning(f"Not a readable run: {run.reason}")


@st.fragment(run_every=3.0)
def watch() -> None:
    """A run that arrives or goes while the page is open appears or disappears by itself."""
    if state.cards() != (cards, broken):
        st.rerun()


watch()
