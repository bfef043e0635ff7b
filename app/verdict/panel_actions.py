"""Actions where nothing was judged, or not enough: the controls and commands that would judge it, and judging a capture
here in a process of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from app.capture.preview import Answer, previews
from app.capture.recent_models import is_known, remember_model
from app.hosting import members
from app.shell import selection, store_cache, store_changes, widgets, wording
from app.shell.jobs import ANY_DEVICE, Job, PromptFile, queue_of
from core.capture_request import CaptureRequest
from core.command_name import COMMAND, shell_command
from core.errors import UsageError
from core.packaged_models import PACKAGED, is_here
from core.runs.views.request import judged_again, left_out, typed_with
from core.runs.views.verdicts import tried_of
from core.subprocess_json import ROOT
from core.text import is_seen, printable, shown

_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?", re.ASCII)


def controls_to_bring(view: selection.View) -> None:
    """Draw what would decide about an upload: the commands, with this run's id in them."""
    run = view.run
    command = f"{COMMAND} {shell_command(['verdict', run.run_id])}"
    is_wide = run.header.compute_dtype == "float32"
    tried = tried_of(run.evidence(view.pair.index))
    beside = "" if is_wide else "--float32 PAIR_IN_FLOAT32.npz "  # of a control its figures are kept, not its logits
    ways = (
        []
        if is_wide or "float32" in tried
        else [
            (
                "the same two sides, computed in float32 with the same weights and tokens",
                "--float32 PAIR_IN_FLOAT32.npz",
            )
        ]
    )
    if "floor" not in tried:
        ways.append(
            (
                "and "
                * bool(ways)
                + "a rounding floor: the reference in float32 computed in three or more ways that are equal in exact"
                " arithmetic (batch sizes, kernels), where the pair alone is not clear",
                f"{beside}--floor WAYS_IN_FLOAT32.npz",
            )
        )
    if "model" not in tried and all(prompt.token_ids for prompt in run.header.prompts):
        ways.append(
            ("or " * bool(ways) + "the model, which measures its floor on this dump's tokens", f"{beside}--model MODEL")
        )
    if "rerun" not in tried:
        ways.append(("whether a kernel is nondeterministic: each side called once more", "--rerun AGAIN.npz"))
    if not ways:
        return
    with st.expander("Controls that would decide it", icon=":material/rule:", key="controls_to_bring"):
        for what, option in ways:
            st.caption(wording.opening(what))
            widgets.code_block(f"{command} {option}", wraps=True)
        st.caption(
            "The judged run is a new one, of the same bits; options may be combined. docs/upload.md has the controls."
        )


def how_to_judge(view: selection.View) -> None:
    """Draw a button that judges this capture and what that costs; the command for it is folded."""
    _judge_here(view)
    about = view.run.header.provenance
    command = typed_with(about, "judge")
    said = left_out(about, command)
    if command is None:
        if said:
            st.caption(said)
        return
    with st.expander("The same on the command line", icon=":material/terminal:", key="judge_command"):
        widgets.code_block(command, wraps=True)
        if said:
            st.caption(said)


@dataclass(frozen=True)
class _Judging:
    """Judging of a run on this server: all of it that the run's file chooses, checked. queue: of the job; needs_yes:
    nobody here has asked for the model, so an editor has to agree to it.
    """

    run_id: str
    request: CaptureRequest
    tokens: bytes
    title: str
    queue: str
    needs_yes: bool

    @property
    def loads(self) -> str:
        """The model that the button loads, in words."""
        model, revision = self.request.model, self.request.revision
        if model in PACKAGED:
            return f"{PACKAGED[model].title}, which a package brought to this server"
        if _is_file(model):
            return f"the model file `{widgets.code(model)}` of this server"
        if _is_folder(model):
            return f"the model folder `{widgets.code(model)}` of this server"
        of = f" at revision `{widgets.code(revision)}`" if revision else ""
        return f"the model `{widgets.code(model)}`{of} from the hub"


def _judging(view: selection.View) -> _Judging | None:
    """Request and queue with which this run is judged here; None where it cannot be judged at all. UsageError where
    this server will not.
    """
    run = view.run
    found = judged_again(run, f"{printable(run.header.name)}, judged")
    if found is None:
        return None
    request, tokens = found
    for what, text in (("model", request.model), ("model's revision", request.revision or "")):
        if not is_seen(text):
            raise UsageError(
                f"This file calls its {what} '{shown(text, 60)}', with characters that cannot be seen; nothing is"
                " loaded by such a name."
            )
    if not is_loadable(request.model):
        raise UsageError(
            f"The model's folder '{shown(request.model, 200)}' is not on this machine; run the command where it is."
        )
    known = is_known(store_cache.store().directory, request.model)
    if request.model in PACKAGED and not is_here(PACKAGED[request.model]):
        raise UsageError(f"{PACKAGED[request.model].title} is not on this machine yet; the Capture page gets it.")
    if _is_file(request.model) and not known:  # a file may be anything, and what it is called are the run file's words
        raise UsageError(
            f"The model is a file, '{shown(request.model, 200)}', and nobody here has captured with it; run the command"
            " where it is."
        )
    # A revision is the file's own words too, and on the hub anybody may offer one of anybody's model.
    is_asked_for = known and (is_local(request.model) or not request.revision)
    needs_yes = not is_asked_for and not members.is_local()
    title = f"Judge {run.header.name} ({run.run_id})"
    return _Judging(run.run_id, request, tokens, title, _queue(request.device), needs_yes)


def _queue(device: str | None) -> str:
    """The queue for a device that a file names; UsageError where it names none, or one that is known not to be here."""
    queue, looks = queue_of(device), previews()
    if queue in (ANY_DEVICE, *looks.devices):
        return queue
    if looks.has_told:
        raise UsageError(f"The run was captured on {queue}, and this server has {', '.join(looks.devices)}.")
    return ANY_DEVICE  # which waits for all the others, for nobody has looked yet which there are


def _judge_here(view: selection.View) -> None:
    """Draw a button that judges the run's own tokens in a process of its own, what it loads, and how that stands."""
    may_edit = members.may_change()
    try:
        judging = _judging(view)
    except UsageError as error:
        if may_edit:
            st.caption(widgets.escaped(str(error)))
            return
        judging = None
    if not may_edit:
        st.caption(members.READ_ONLY)
    if judging is None:
        return
    last = _job(judging.title)
    if may_edit and (last is None or last.is_over):
        place, cost = st.columns([1, 4], vertical_alignment="center")
        agrees = f"judge_loads_{view.run.run_id}"
        is_agreed = not judging.needs_yes or st.checkbox(
            f"Load {judging.loads}, as this file asks for. Nobody here has asked for it before.", key=agrees
        )
        place.button(
            "Judge it here" if last is None else "Judge it again",
            icon=":material/gavel:",
            key="judge",
            type="primary",
            width="stretch",
            disabled=not is_agreed,
            help=(
                "captures the same tokens again with every control; the judged run opens and replaces this one in lists"
            ),
            on_click=_start,
            args=(judging, agrees),
        )
        if judging.needs_yes:
            cost.caption("Several times the work of the capture.")
        else:
            with cost:
                _cost(judging)
    if last is not None:
        st.fragment(_progress, run_every=None if last.is_over else 1.0)(judging.title, judging.run_id)


def _cost(judging: _Judging) -> None:
    """Draw what judging loads and what it costs: its dry run's estimate, which reads the model's configuration and no
    weights. A model of the hub that nobody here asked for is not even looked up.
    """
    model = judging.request.model
    if not (_is_folder(model) or model in PACKAGED or is_known(store_cache.store().directory, model)):
        st.caption(f"It loads {judging.loads}: several times the work of the capture.")
        return
    answer = _dry_run(judging)
    st.fragment(_estimate, run_every=None if answer is not None and answer.is_fresh else 0.5)(judging)


def _estimate(judging: _Judging) -> None:
    """Draw the estimate, again until there is one."""
    answer = _dry_run(judging)
    st.session_state["estimate_of"] = judging.title
    if answer is None or not answer.is_fresh:
        st.session_state["estimate_awaits"] = True
    elif st.session_state.pop("estimate_awaits", False):
        st.rerun()  # the whole page: there is nothing more to wait for
    if answer is None:
        took = "several times the work of the capture, whose forwards are being counted …"
    elif answer.refusal:
        took = f"several times the work of the capture. {widgets.escaped(answer.refusal)}"
    else:
        took = widgets.escaped(_in_short(answer.costs))
    st.caption(f"It loads {judging.loads}: {took}")


def _in_short(costs: dict[str, Any]) -> str:
    return f"{costs['forwards']:,} forwards of the sides, and several times as many of the controls."


def _dry_run(judging: _Judging) -> Answer | None:
    """Answer of the dry run of a judging; it is asked once the page has been drawn, so that nobody who passes by waits
    for it.
    """
    if st.session_state.get("estimate_of") != judging.title:
        return None
    looks = previews()
    file = looks.file(PromptFile("tokens.jsonl", judging.tokens))
    return looks.look(widgets.viewer(), [*judging.request.arguments(), "--prompts", str(file)])


def _start(judging: _Judging, agrees: str) -> None:
    if judging.needs_yes and not st.session_state.get(agrees):
        return
    file = PromptFile("tokens.jsonl", judging.tokens)
    arguments = judging.request.arguments()
    store_changes.submit(arguments, title=judging.title, device=judging.queue, prompts=file, judges=judging.run_id)
    if judging.needs_yes and is_local(judging.request.model):
        remember_model(store_cache.store().directory, judging.request.model)


def _job(title: str) -> Job | None:
    return next((job for job in store_changes.jobs().all() if job.title == title), None)


def _progress(title: str, run_id: str) -> None:
    """Draw how the judging stands; when it is over, open the judged run."""
    job = _job(title)
    if job is None:
        return
    if not job.is_over:
        st.session_state["judge_awaits"] = title
        counted = f", {job.rows_done:,} of {job.rows_total:,} positions" if job.rows_total else ""
        stage = widgets.escaped(job.stage) if job.state == "running" else job.state
        st.caption(
            f":material/hourglass_empty: {stage}{counted}, {job.seconds:.0f} s. It goes on if you leave this page."
        )
        return
    if st.session_state.pop("judge_awaits", None) == title:
        if job.state == "done" and not job.message:
            st.session_state["open_next"] = job.run_id
        st.rerun()
    if job.state == "failed":
        st.error(widgets.escaped(job.message))
    elif job.state == "done":
        if job.message:
            st.warning(widgets.escaped(job.message))
        if not store_cache.judged_run(run_id) and widgets.pressed(
            st.button, "Open the judged run", "open_judged", type="primary"
        ):
            st.session_state["open_next"] = job.run_id
            st.rerun()
    else:
        st.caption(widgets.escaped(job.message or job.state))


def is_loadable(model: str) -> bool:
    """Return whether a model may be loaded: what is there, or what may be a hub id. Relative folders and files are
    those of the directory that jobs run in.
    """
    return is_local(model) or (_HUB_ID.fullmatch(model) is not None)


def is_local(model: str) -> bool:
    """Return whether a model comes from this machine."""
    return model in PACKAGED or _is_folder(model) or _is_file(model)


def _is_file(model: str) -> bool:
    try:
        return model not in PACKAGED and (ROOT / Path(model).expanduser()).is_file()
    except (OSError, ValueError, RuntimeError):
        return False


def _is_folder(model: str) -> bool:
    try:
        return (ROOT / Path(model).expanduser()).is_dir()
    except (OSError, ValueError, RuntimeError):
        return False
