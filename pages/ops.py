"""Ops: which torch operations of a machine are the same from run to run, over batch sizes and at every row, machines beside each other."""

import streamlit as st

from app import exports, ops, ops_jobs, reading
from app.code_block import code_block
from core.runs.op_words import beside

jobs = reading.jobs()
st.title("Ops")
st.caption(
    "Torch operations on their own, called again and again on the same bits. Run to run: every call gives the same bits. Batch size: row 0 has "
    "the same bits alone and among N rows. Row position: a row has the same bits at every index of a batch. A change with the batch size "
    "is another order of summation, not a fault; a change from run to run makes any two runs differ."
)
found = ops.cards()
with st.expander("Probe this machine", expanded=not found):
    ops_jobs.start(jobs)
if not found:
    st.info(
        "No operations were probed yet. Probe this machine above, or on any machine from the command line; a run file put into this store appears here."
    )
    code_block(ops.COMMAND)
    st.stop()
runs = ops.pick(found)
if not runs:
    st.stop()
ops.summary(runs)
everything = beside(runs)
shown = ops.ask(everything)
if shown:
    ops.table(shown, runs)
    st.caption(
        f"{len(shown):,} of {len(everything):,} probes; a click on a row's box opens its classes. Sizes are of one row and of what all rows "
        "share; a span such as 4..64 is of the batch sizes that were tried."
        + (" M1, M2 are the machines above." if len(runs) > 1 else "")
    )
else:
    st.info("No probe is left by these filters.")
selected = next((one for one in everything if ops.key_words(one) == st.session_state.get("ops_row")), None)
if selected is not None:
    ops.detail(selected, runs)
exports.download({"probes": ops.listed(everything, runs)}, "ops", "ops")
with st.expander("Versions, settings and commands"):
    st.table(ops.provenance(runs), border="horizontal")
