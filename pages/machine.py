"""Machine: what differs between the machines of runs, and which torch operations of a machine keep
their bits from run to run, over batch sizes and row positions.
"""

import streamlit as st

from app.components import plots
from app.hosting import members
from app.machine import parts
from app.navigation import MACHINE
from app.shell import exports, selection, store_cache, store_changes, widgets
from app.shell.job_list import job_list
from core.text import legible, plural

widgets.title(MACHINE)
view = selection.current_view()
if view is not None:
    parts.machines(view)
st.subheader("Operations")
st.caption(
    "Which torch operations keep their bits here: from call to call, in a larger batch, in another"
    " row.",
)
cards = [card for card in store_cache.cards()[0] if card.kind == "ops"]
with st.expander("Probe this machine", expanded=not cards):
    if members.may_change():
        parts.form()
    job_list("ops", store_changes.jobs().all("ops"))
if not cards:
    st.info(
        "No operations were probed yet. Probe this machine above, or any machine from its command"
        " line.",
    )
    widgets.code_block("ulpscope ops --quick")
    st.stop()
run = store_cache.ops_run(parts.pick(cards))
rows = parts.filter_rows(run.rows)
st.caption(
    f"{len(rows):,} of {plural(len(run.rows), 'probe')}. Run to run: the same call again. Batch"
    " size: row 0 alone compared with row 0 among N rows. Row position: copies of one row at every"
    " index of a batch.",
)
st.dataframe(parts.table(rows), hide_index=True, key="ops_table", placeholder="–")
chart = parts.batch_chart(rows)
if chart is not None:
    st.caption("Distance of row 0 from batch size 1, in ULPs of the dtype.")
    plots.draw(chart, "ops_chart", exports.picture("batch-sizes", [run.header.name]))
exports.download({"probes": parts.table(run.rows)}, "ops", "ops")
with st.expander("Versions, settings and command"):
    about = run.header
    facts = {"device": about.device, "chip": about.device_name, **about.versions}
    facts["recorded command (unverified)"] = about.command
    texts = {widgets.escape(name): widgets.escape(legible(value)) for name, value in facts.items()}
    st.table(texts, border="horizontal")
