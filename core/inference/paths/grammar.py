"""How paths are written: the names of bases and modifiers, and their values. Nothing here loads
torch, so that a typing error is refused at once.
"""

from ...engines.process import EngineDescription
from ...engines.registry import describe
from ...errors import UsageError
from ...numerics.formats import LOGIT_FORMATS
from ...path_grammar import Argument, Step, choice, read_step, whole_number

# a typing error of more digits would make the operating system end the process
_MOST_THREADS = 256
_AN_ATTENTION = Argument(  # which only the model can refuse
    "eager|sdpa",
    "the name of an attention",
    lambda text: text.lower() if text.replace("_", "").isalnum() else None,
)

BASE_ARGUMENTS: dict[str, tuple[Argument, ...]] = {
    "prefill": (),
    "decode": (),
    "chunked": (whole_number(1),),
    "reuse": (whole_number(1),),
    "blocks": (whole_number(1),),
    "static": (),
    "encode": (),
}
# in the order in which they are written and applied
MODIFIER_ARGUMENTS: dict[str, tuple[Argument, ...]] = {
    "batch": (whole_number(1),),
    "row": (whole_number(0, syntax="I"),),
    "neighbours": (choice("same", "random"),),
    "pad": (choice("left", "right"), whole_number(1)),
    "positions": (choice("given"),),
    "attn": (_AN_ATTENTION,),
    "dtype": (choice(*LOGIT_FORMATS),),
    "threads": (whole_number(1, _MOST_THREADS),),
    "tf32": (),
    "sdpa": (choice("flash", "efficient", "math", "cudnn"),),
    "reduced": (choice("on", "off"),),
    "compile": (),
}


def read_steps(text: str) -> tuple[Step, tuple[Step, ...], EngineDescription | None]:
    """Parse `prefill+batch:8` or `llamacpp:decode+kv:f32` to its base, its modifiers in canonical
    order and its engine. UsageError lists the choices.
    """
    base_text, *modifier_texts = text.split("+")
    name, colon, own = base_text.partition(":")
    name = name.strip().lower()
    engine: EngineDescription | None = None
    bases, choices = BASE_ARGUMENTS, MODIFIER_ARGUMENTS
    if colon and name not in (*bases, *choices):
        try:
            engine = describe(name)
        except UsageError as error:
            # begins with "no engine"
            raise UsageError(f"path '{text}': no base '{name}', and {error}") from error
        base_text = own
        bases = engine.arguments("base")
        choices = engine.arguments("modifier")
    of = "" if engine is None else f"{engine.engine} "
    base = read_step(text, base_text, f"{of}base", bases)
    modifiers = [read_step(text, part, f"{of}modifier", choices) for part in modifier_texts]
    names = [step.name for step in modifiers]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"path '{text}': modifier '{name}' is given twice; expected once.")
    order = list(choices)
    return base, tuple(sorted(modifiers, key=lambda step: order.index(step.name))), engine


def swept_paths(reference: str, text: str) -> list[str]:
    """Expand `batch=1,2,4` to the reference with each value of a modifier or another base."""
    name, equals, values = text.partition("=")
    name = name.strip().lower()
    if not equals or not values.strip() or name not in (*MODIFIER_ARGUMENTS, *BASE_ARGUMENTS):
        raise UsageError(
            f"--sweep '{text}': expected NAME=VALUE,VALUE,... with one of"
            f" {', '.join([*MODIFIER_ARGUMENTS, *BASE_ARGUMENTS])}.",
        )
    base, modifiers, _ = read_steps(reference)
    stem, end = "", "".join(f"+{step}" for step in modifiers if step.name != name)
    if name in MODIFIER_ARGUMENTS:
        stem, end = f"{base}{end}+", ""
    return [f"{stem}{name}:{value.strip()}{end}" for value in values.split(",")]
