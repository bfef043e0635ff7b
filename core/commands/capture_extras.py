"""Extras of a capture, run beside its sides: the controls of a verdict, the profiler, the remedies. The sides are whole
by then, and kept where one of these fails; a capture that is stopped leaves nothing, as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import CaptureError, UlpscopeError
from ..runs.writer import RunWriter
from .terminal.console import Tell

if TYPE_CHECKING:  # torch is for those who run a model
    from ..inference.capture.capture import CapturePlan
    from ..inference.controls.judging_session import JudgingSession


def session_of(plan: CapturePlan) -> JudgingSession:
    """Session that the floor of the modules, judging the plan's pairs and trying their remedies share."""
    from ..inference.controls.judging_session import JudgingSession

    return JudgingSession(plan.loaded, plan.token_ids)


def judge_pairs(plan: CapturePlan, writer: RunWriter, say: Tell, session: JudgingSession) -> list[str]:
    """Run the controls of every finished pair into the run; the sentences of those that could not be judged."""
    from ..inference.controls.judge_model import judge_pair

    failures = []
    # what was fed token by token after a prompt, and what another engine calls its dtype, is not what judging computes
    is_comparable = not plan.generations and all(path.engine is None for path in plan.paths)
    digests = writer.digests()
    for pair, variant in enumerate(writer.finished_sides[1:]):

        def tell(stage: str, variant: str = variant) -> None:
            say(f"judging {variant}: {stage}", 0, 0)

        try:
            found = judge_pair(
                plan.loaded,
                plan.token_ids,
                str(plan.paths[0]),
                str(plan.paths[pair + 1]),
                on_progress=tell,
                session=session,
                captured=(digests[0], digests[pair + 1]) if is_comparable else None,
            )
        except UlpscopeError as error:  # the capture is whole, and is kept
            failures.append(f"'{variant}' was not judged: {error}")
            continue
        verdict = found.verdict
        writer.write_verdict(pair, verdict.name, verdict.because, verdict.noise_ratio, verdict.evidence, found.floors)
    return failures


def watch_kernels(plan: CapturePlan, writer: RunWriter, say: Tell) -> list[str]:
    """Record in the run the kernels that every finished side launches for the first prompt; return a sentence for each
    side that could not be watched.
    """
    from ..inference.paths.engines import side_of
    from ..inference.watching.kernels import kernels_of

    failures = []
    for side, name in enumerate(writer.finished_sides):
        say(f"kernels of {name}", 0, 0)
        try:
            writer.write_kernels(
                kernels_of(plan.loaded, side_of(str(plan.paths[side])), plan.token_ids[0], side, seed=plan.seed)
            )
        except UlpscopeError as error:
            failures.append(f"The kernels of '{name}' were not watched: {error}")
    return failures


def try_remedies(plan: CapturePlan, writer: RunWriter, say: Tell, session: JudgingSession) -> list[str]:
    """Try every remedy on every finished pair, into the run; return a sentence for each pair that failed."""
    from ..inference.controls.remedies import floor_of, remedies_of

    failures, known = [], {}
    say("remedies: rounding floor", 0, 0)
    floor = floor_of(session, str(plan.paths[0]))
    for pair, variant in enumerate(writer.finished_sides[1:]):
        path = str(plan.paths[pair + 1])

        def tell(name: str, variant: str = variant) -> None:
            say(f"remedies of {variant}: {name}", 0, 0)

        try:
            if path not in known:
                known[path] = remedies_of(
                    plan.loaded, plan.token_ids, str(plan.paths[0]), path, floor_rms=floor, on_progress=tell
                )
            writer.write_remedies(pair, known[path])
        except UlpscopeError as error:
            failures.append(f"Remedies of '{variant}' were not tried: {error}")
    return failures


@contextmanager
def keeping(writer: RunWriter, keep_finished: bool) -> Iterator[list[str]]:
    """Gives a list that holds one sentence afterwards if a side failed and those before it are to be kept; else the
    failure passes.
    """
    failure: list[str] = []
    try:
        yield failure
    except CaptureError as error:
        finished = writer.finished_sides
        if not keep_finished or len(finished) < 2:
            raise
        asked = [side.name for side in writer.header.sides]
        failed = ", ".join(f"'{side}'" for side in asked[len(finished) :])
        failure.append(
            f"{error} The run was kept without {failed}: {len(finished)} of {len(asked)} sides had finished."
        )
