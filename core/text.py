"""Text for people: untrusted text made harmless, and counts, sizes and durations in words."""

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Sequence

_BYTE = re.compile(b"<0x([0-9A-F]{2})>")
_VISIBLE = {"\n": "↵", "\t": "⇥", "\r": "␍"}
# Letters and marks that are drawn as nothing: the default ignorable ones of Unicode that Python
# calls printable, and the blank pattern of braille.
_RANGES = (
    "\u034f \u115f-\u1160 \u17b4-\u17b5 \u180b-\u180f \u2800 \u3164 \ufe00-\ufe0f \uffa0"
    " \U000e0100-\U000e01ef"
)
_BLANK = frozenset(
    chr(code) for each in _RANGES.split() for code in range(ord(each[0]), ord(each[-1]) + 1)
)


def clean(text: object, longest: int = 80) -> str:
    """Return untrusted text for a message: one line, control and bidirectional characters escaped,
    cut.
    """
    return clip(_replace_unseen(str(text)[: longest + 1], _escape), longest)


def printable(text: str, instead: str = " ", besides: str = "") -> str:
    """Return text with invisible characters replaced, except `besides`."""
    return _replace_unseen(text, lambda _: instead, besides)


def is_seen(text: str) -> bool:
    """Return whether every character is a plain blank or leaves a mark: no line end, no width 0, no
    direction.
    """
    return text.isprintable() and _BLANK.isdisjoint(text)


def legible(text: str) -> str:
    """Return text of several lines with invisible characters escaped, except line ends and tabs."""
    return _replace_unseen(text, _escape, "\n\t")


def _replace_unseen(text: str, replace: Callable[[str], str], besides: str = "") -> str:
    # nearly every text has nothing to replace
    if is_seen(text):
        return text
    return "".join(c if c in besides or is_seen(c) else replace(c) for c in text)


def visible(text: str) -> str:
    """Return a token's text with its whitespace and control characters shown."""
    return _replace_unseen(
        text.replace(" ", "·"),
        lambda character: _VISIBLE.get(character, f"\\x{ord(character):02x}"),
    )


def clip(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def shorten(text: str, longest: int) -> str:
    """Return a text with a digest in place of what is too long: two are equal only if the texts
    are.
    """
    rest = text[longest:].encode("utf-8", "surrogatepass")
    return f"{text[:longest]}… sha256 {hashlib.sha256(rest).hexdigest()}" if rest else text


def code(text: str) -> str:
    """Return text to put between backticks: no backtick, no line end."""
    return " ".join(filter(None, text.replace("`", "'").splitlines()))


def file_name(name: str, longest: int = 120) -> str:
    """Return the last part of a sender's name for a file, safe for a file system; longest: in
    bytes, ending kept.
    """
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    safe = "".join(c if c.isalnum() or c in "._- +" else "_" for c in last).strip(" .")
    stem, dot, ending = safe.rpartition(".")
    ending = dot + ending
    if not stem or len(ending) > 21:
        stem = safe
        ending = ""
    room = longest - len(ending.encode())
    return f"{stem.encode()[:room].decode(errors='ignore').rstrip(' .')}{ending}"


def slug(text: str) -> str:
    """`s3-bucket-runs`: at most 60 ASCII letters and digits; anything between them is one
    hyphen.
    """
    return re.sub("[^A-Za-z0-9]+", "-", text).strip("-")[:60]


def readable(raw: bytes) -> str:
    """Decode UTF-8, with '<0xE2>' for each invalid byte."""
    return "".join(
        f"<0x{ord(char) - 0xDC00:02X}>" if 0xDC80 <= ord(char) <= 0xDCFF else char
        for char in raw.decode("utf-8", errors="surrogateescape")
    )


def _byte_of(match: re.Match[bytes]) -> bytes:
    return bytes.fromhex(match[1].decode())


def join_bytes(tokens: Sequence[str]) -> list[str]:
    """Return the tokens' texts with each character of which tokens have some bytes, as '<0xE2>', at
    the token of its first byte; a token with nothing but later bytes is empty.
    """
    # nearly every prompt has none
    if not any("<0x" in text for text in tokens):
        return list(tokens)
    owners = []
    whole = bytearray()
    for place, text in enumerate(tokens):
        raw = _BYTE.sub(_byte_of, text.encode("utf-8", "replace"))
        whole += raw
        owners += [place] * len(raw)
    joined = [""] * len(tokens)
    start = 0
    for character in whole.decode("utf-8", "surrogateescape"):
        raw = character.encode("utf-8", "surrogateescape")
        joined[owners[start]] += readable(raw)
        start += len(raw)
    return joined


def text_of(tokens: Sequence[str]) -> str:
    """Return the text of tokens, their bytes joined to characters."""
    return "".join(join_bytes(tokens))


def plural(count: int, one: str, many: str = "") -> str:
    """`1 flip`, `2,000 flips`; `many` if it is not `one` with an s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def all_of(count: int, total: int, one: str) -> str:
    """Return `107 of 109 positions`, `all 109 positions`, `the only position`."""
    if count < total:
        return f"{count:,} of {plural(total, one)}"
    return f"all {plural(total, one)}" if total > 1 else f"the only {one}"


def known(count: int | None) -> str:
    """`2,000`; `unknown` for None."""
    return "unknown" if count is None else f"{count:,}"


def series(parts: Sequence[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`; empty for none."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def percent(share: float) -> str:
    """`74.9%`; only 0 is 0.0%, and only 1 is 100.0%."""
    if 0 < share < 0.0005:
        return "<0.1%"
    return ">99.9%" if 0.9995 <= share < 1 else f"{share:.1%}"


def floored_percent(share: float) -> str:
    """Never rounded up: `99.99%` is not all."""
    return f"{math.floor(share * 1e4) / 1e2:.2f}%"


def out_of(count: int, total: int) -> str:
    """`36,819 of 49,152 (74.9%)`; `0 of 0`, which is no share."""
    share = f" ({percent(count / total)})" if total else ""
    return f"{count:,} of {total:,}{share}"


def number(value: float | None, digits: int = 3) -> str:
    """`1,234`, `0.312`, `1.23e-5`: significant digits, powers of ten below 1e-4 and from a billion
    on; whole numbers of Python as they are; only 1 is 1; `undefined` for null and NaN.
    """
    if value is None or value != value:
        return "undefined"
    if isinstance(value, int):
        return f"{value:,}"
    result = float(f"{value:.{digits}g}")
    if value < 1 == result:
        return f"{min(value, 0.9999):.4f}"
    is_whole = 10**digits <= abs(result) < 1e9
    return f"{result:,.0f}" if is_whole else _short_power(f"{value:,.{digits}g}")


def is_written_out(values: Iterable[float]) -> bool:
    """Return whether the figures of an axis or a column need no powers of ten: if one needs them,
    all have them.
    """
    sizes = [abs(value) for value in values if value and math.isfinite(value)]
    return not sizes or (min(sizes) >= 1e-4 and max(sizes) < 1e6)


def on_axis(values: Sequence[float]) -> list[str]:
    """Return labels of one axis: all written out, or all as powers of ten."""
    if is_written_out(values):
        return [number(float(value)) for value in values]
    return [_short_power(f"{value:.0e}") if value else "0" for value in values]


def decimals(values: Iterable[float]) -> int | None:
    """Return the decimals of every figure of a column: three digits for the median, one for the
    smallest; None: powers of ten.
    """
    sizes = sorted(abs(value) for value in values if value and math.isfinite(value))
    if not is_written_out(sizes):
        return None
    if all(float(size).is_integer() for size in sizes):
        return 0
    low = math.floor(math.log10(sizes[0]))
    middle = math.floor(math.log10(sizes[len(sizes) // 2]))
    return max(2 - middle, -low, 0)


def column(values: Sequence[float | None]) -> list[str]:
    """Return figures with the same number of decimals; empty for null, 0 without any."""
    places = decimals(value for value in values if value is not None)
    form = ".2e" if places is None else f",.{places}f"
    texts = []
    for value in values:
        text = "0"
        if value is None:
            text = ""
        elif value:
            text = _short_power(f"{value:{form}}")
        texts.append(text)
    return texts


def _short_power(text: str) -> str:
    """`1e-5`, as the browser writes it, of Python's `1e-05`."""
    return re.sub(r"e([+-])0", r"e\1", text)


def opening(sentence: str) -> str:
    """Return the sentence with its first letter capitalized."""
    return sentence[:1].upper() + sentence[1:]


def multiple(ratio: float) -> str:
    """`0.94x`, `35,600x`: a ratio to the noise floor; only 0 is `0.00x`."""
    if not math.isfinite(ratio):
        return "infinitely many times"
    if 0 < ratio < 0.005:
        return "<0.01x"
    return f"{ratio:.2f}x" if ratio < 10 else f"{number(float(ratio))}x"


def scaling(factor: float, digits: int = 4) -> str:
    """`0.8`, `1.000002`: so many significant digits, or more if it would read 1."""
    text = f"{factor:.{digits}g}"
    while float(text) == 1 != factor:
        digits += 1
        text = f"{factor:.{digits}g}"
    return text


def exact_decimals(values: Iterable[float]) -> int | None:
    """Return the decimals with which every logit of a column is `exact`; None: more than nine."""
    most = 0
    for value in values:
        text = exact(value)
        if "e" in text:
            return None
        most = max(most, len(text.partition(".")[2]))
    return most if most <= 9 else None


def exact(value: float | None) -> str:
    """Return a logit with the digits that identify it; NaN and infinities by name."""
    return "" if value is None else f"{value:.9g}"


def size(count: float) -> str:
    """`512 B`, `47.5 KB`, `16.1 GB`."""
    for unit, worth in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= worth:
            return f"{count / worth:,.1f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """`35 s`, `12 min`, `3 h 20 min`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


# Character -> byte of byte-level BPE, bytes_to_unicode of GPT-2: others than printable Latin-1 from
# U+0100.
_ITSELF = [byte for byte in range(256) if chr(byte).isprintable() and byte != ord(" ")]
_OTHERS = [byte for byte in range(256) if byte not in _ITSELF]
BYTE_LEVEL = {chr(byte): byte for byte in _ITSELF}
BYTE_LEVEL |= {chr(256 + number): byte for number, byte in enumerate(_OTHERS)}
