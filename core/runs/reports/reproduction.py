"""Commands that compute a run again on another machine: its prompts as token ids, its model, its options."""

from __future__ import annotations

from ...packaged_models import PACKAGED
from ...text import plural
from ..file.records import Provenance
from ..reader import RunReader
from ..requests import typed_elsewhere
from .markdown import block, code

_LONGEST_PROMPTS = 20_000  # characters of token ids that an issue takes


def is_folder(about: Provenance) -> bool:
    """Return whether the model is a folder or file of the machine that captured it."""
    return about.revision.startswith("sha256:") and about.model not in PACKAGED


def model_of(about: Provenance) -> str:
    """The model's id, or the name of its folder."""
    return about.model.rstrip("/").rsplit("/", 1)[-1] if is_folder(about) else about.model


def reproduction(run: RunReader) -> list[str]:
    """Return the commands as Markdown; they name no file of this machine. Of an upload: how its arrays are sent."""
    about = run.header.provenance
    found = typed_elsewhere(run, "MODEL" if is_folder(about) else about.model)
    if found is None:
        what = "Uploaded logits" if about.kind == "upload" else "Captured by a program"
        file = "logits.npz" if run.header.k is None else "responses.jsonl"
        return [
            f"{what}: attach the file that the first command writes.",
            block(f"ulpscope export {run.run_id} {file}\nulpscope compare {file}", "sh"),
        ]
    command, prompts = found
    notes, lines = [], []
    if about.model in PACKAGED:
        lines.append(f"ulpscope model {about.model}")
    elif is_folder(about):
        notes.append(f"MODEL is a folder with the weights of {code(about.revision)}; replace it with yours.")
    if len(prompts) <= _LONGEST_PROMPTS:
        lines += ["cat > prompts.jsonl <<'END'", prompts + "END"]
    else:
        count = plural(len(run.header.prompts), "prompt")
        notes.append(f"prompts.jsonl holds {count} as token ids, too long for here: attach it.")
    return [*notes, block("\n".join([*lines, command]), "sh")]
