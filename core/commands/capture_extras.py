"""Extras of a capture, run after its sides: the controls of a verdict, the profiler, the remedies. The sides are kept
if one of these fails; a capture that is stopped leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import CaptureError, UlpscopeError
from ..runs.writer import RunWriter
from .terminal.console import Tell

if TYPE_CHECKING:  # torch is for those who run a model
    from ..inference.capture.capture import CapturePlan
    from ..inference.controls.judging_session import JudgingSession


def session_of(plan: CapturePlan) -> JudgingSession:
    """Return the session that the modules' floor, judging and remedies of a plan share."""
    from ..inference.controls.judging_session import JudgingSession

    return JudgingSession(plan.loaded, plan.token_ids)


def judge_pairs(plan: CapturePlan, writer: RunWriter, say: Tell, session: JudgingSession) -> list[str]:
    """Judge every finished pair, into the run; return a sentence for each pair that could not be judged."""
    from ..inference.controls.judge_model import judge_pair

    failures = []
    # what was fed token by token after a prompt, and what another engine calls its dtype, is not what judging computes
    is_comparable = not plan.generations and all(path.engine is None for path in plan.paths)
    digests = writer.digests()
    for pair, variant in enumerate(writer.finished_sides[1:]):
        try:
            judged = judge_pair(
                plan.loaded,
                plan.token_ids,
                str(plan.paths[0]),
                str(plan.paths[pair + 1]),
                on_progress=_named(say, f"judging {variant}"),
                session=session,
                captured=(digests[0], digests[pair + 1]) if is_comparable else None,
            )
        except UlpscopeError as error:
            failures.append(f"'{variant}' was not judged: {error}")
            continue
        verdict = judged.verdict
        writer.write_verdict(pair, verdict.name, verdict.because, verdict.noise_ratio, verdict.evidence, judged.floors)
    return failures


def watch_kernels(plan: CapturePlan, writer: RunWriter, say: Tell) -> list[str]:
    """Record the kernels that every finished side launches for the first prompt, into the run; return a sentence for
    each side that failed.
    """
    from ..inference.paths.engines import side_of
    from ..inference.watching.kernels import kernels_of

    failures = []
    for side, name in enumerate(writer.finished_sides):
        say(f"kernels of {name}", 0, 0)
        try:
            path = side_of(str(plan.paths[side]))
            writer.write_kernels(kernels_of(plan.loaded, path, plan.token_ids[0], side, seed=plan.seed))
        except UlpscopeError as error:
            failures.append(f"The kernels of '{name}' were not recorded: {error}")
    return failures


def try_remedies(plan: CapturePlan, writer: RunWriter, say: Tell, session: JudgingSession) -> list[str]:
    """Try every remedy on every finished pair, into the run; return a sentence for each pair that failed."""
    from ..inference.controls.remedies import floor_of, remedies_of

    failures, known = [], {}
    reference = str(plan.paths[0])
    say("remedies: rounding floor", 0, 0)
    floor = floor_of(session, reference)
    for pair, variant in enumerate(writer.finished_sides[1:]):
        path = str(plan.paths[pair + 1])
        tell = _named(say, f"remedies of {variant}")
        try:
            if path not in known:
                known[path] = remedies_of(
                    plan.loaded, plan.token_ids, reference, path, floor_rms=floor, on_progress=tell
                )
            writer.write_remedies(pair, known[path])
        except UlpscopeError as error:
            failures.append(f"Remedies of '{variant}' were not tried: {error}")
    return failures


def _named(say: Tell, what: str) -> Callable[[str], None]:
    return lambda stage: say(f"{what}: {stage}", 0, 0)


@contextmanager
def keeping(writer: RunWriter, keep_finished: bool) -> Iterator[list[str]]:
    """Yield a list of failures. If a side fails and the finished ones are to be kept, it gets that failure."""
    failures: list[str] = []
    try:
        yield failures
    except CaptureError as error:
        finished = writer.finished_sides
        if not keep_finished or len(finished) < 2:
            raise
        asked = [side.name for side in writer.header.sides]
        failed = ", ".join(f"'{side}'" for side in asked[len(finished) :])
        failures.append(
            f"{error} The run was kept without {failed}: {len(finished)} of {len(asked)} sides had finished."
        )
