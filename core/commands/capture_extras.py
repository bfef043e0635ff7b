"""Extras of a capture, run after its sides: kernels, mitigations, and the checks of a verdict. The sides are kept if
one of these fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..capture_request import CaptureRequest
from ..errors import UlpscopeError
from ..runs.writer import RunWriter
from .terminal.console import Tell

if TYPE_CHECKING:  # torch is for those who run a model
    from ..inference.capture.capture import CapturePlan
    from ..inference.controls.judging_session import JudgingSession


def run_extras(
    request: CaptureRequest, plan: CapturePlan, writer: RunWriter, say: Tell, session: JudgingSession
) -> list[str]:
    """Run what a request asks for besides the sides, into the run; return a sentence for each part that failed."""
    from ..inference.controls.judge_model import judge_pair
    from ..inference.controls.remedies import floor_of, remedies_of
    from ..inference.paths.engines import side_of
    from ..inference.watching.kernels import kernels_of

    failures: list[str] = []
    names, paths = [side.name for side in plan.header.sides], list(map(str, plan.paths))
    for side, name in enumerate(names) if request.kernels else ():
        say(f"kernels of {name}", 0, 0)
        try:
            writer.write_kernels(kernels_of(plan.loaded, side_of(paths[side]), plan.token_ids[0], side, seed=plan.seed))
        except UlpscopeError as error:
            failures.append(f"The kernels of '{name}' were not recorded: {error}")
    floor = 0.0
    if request.remedies:
        say("remedies: rounding floor", 0, 0)
        floor = floor_of(session)
    remedies = {}
    for pair, name in enumerate(names[1:]) if request.remedies else ():
        path, tell = paths[pair + 1], _named(say, f"remedies of {name}")
        try:
            if path not in remedies:
                remedies[path] = remedies_of(
                    plan.loaded, plan.token_ids, paths[0], path, floor_rms=floor, on_progress=tell
                )
            writer.write_remedies(pair, remedies[path])
        except UlpscopeError as error:
            failures.append(f"Remedies of '{name}' were not tried: {error}")
    # what was fed token by token after a prompt, and what another engine calls its dtype, is not what judging computes
    is_comparable = not plan.generations and all(path.engine is None for path in plan.paths)
    digests = writer.digests() if request.judge else []
    for pair, name in enumerate(names[1:]) if request.judge else ():
        try:
            judged = judge_pair(
                plan.loaded,
                plan.token_ids,
                paths[0],
                paths[pair + 1],
                on_progress=_named(say, f"judging {name}"),
                session=session,
                captured=(digests[0], digests[pair + 1]) if is_comparable else None,
            )
        except UlpscopeError as error:
            failures.append(f"'{name}' was not judged: {error}")
            continue
        verdict = judged.verdict
        writer.write_verdict(pair, verdict.name, verdict.because, verdict.noise_ratio, verdict.evidence, judged.floors)
    return failures


def _named(say: Tell, what: str) -> Callable[[str], None]:
    return lambda stage: say(f"{what}: {stage}", 0, 0)
