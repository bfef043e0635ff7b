"""Causes that are seen: rows at other places, masks, a BOS, a sampler, renormalized or upcast
values.
"""

from collections.abc import Iterator

import numpy as np

from ...cause import EXPLAINED, Cause
from ...checks.shift import shift_in_words
from ...checks.single_logit import LARGEST_PEAK
from ...numerics.arrays import Flags, Ints, Record, Values
from ...numerics.formats import FORMATS, round_to
from ...responses.alignment import extra_first_token
from ...responses.pairing import ResponsePair
from ...responses.records import UNKNOWN_TOKEN
from ...text import number, plural
from .moves import SAME_ROW, Moves
from .rows import FARTHEST, LEAST_TOKENS, PairRows, TooFewError, align_lists
from .scoring import LEAST_ROWS, center, rms

_SHIFTS = (-3, -2, -1, 1, 2, 3)  # rows
_LEAST_VALUES = 16  # of a sequence of single values
_COMPARED = 2048  # tokens of complete rows
_LEAST_SHARED = 32  # tokens of complete rows, or a mask's few match by chance
_UNRELATED = 64.0  # squared logits: rows that share too few tokens
_SWAPPED = 0.25  # of the tokens that a mask keeps, and of the masked ones
# By what the sum of a row's probabilities may miss 1: of the least one, of which the next one would
# be a part; and for float32. A row whose least probability is smaller says nothing.
_SURE, _SUM_ERROR, _LEAST_SHARE = 0.01, 2e-6, 1e-4
_MISSING = 0.01  # what the other side's probabilities lack of 1, at least
# One value of a list beyond the others: nats, one and a half steps of bfloat16 at a logit of 128,
# beyond which logits are rare; and a share of the row's largest, four steps of a log-probability in
# bfloat16. It is LARGEST_PEAK times the others too, and those of the typical row.
_LEAST_JUMP, _OF_VALUE = 0.75, 1 / 32
_LEAST_LISTED = 5  # values of such a row, of which one may be off
_MOST_LISTED = 2048  # rows


def misaligned_rows(pair: PairRows) -> Iterator[Cause]:
    """Rows of the variant are the reference's of other places: shifted by some, one row everywhere,
    another order.
    """
    places = pair.places
    reference, variant = pair.names
    total = len(places)
    index = {place: at for at, place in enumerate(places)}
    if total < 2:
        raise TooFewError("2 rows")
    # whatever lies farther is looked for among all rows by `find_moves`, if there is one
    farthest = max(_SHIFTS) if pair.find_moves else total
    distances, shared, are_single = _distances(pair, farthest)
    # each row a prompt of its own
    own = distances.diagonal()
    axis = int(any(position for _, position in places))
    least = 2 * LEAST_ROWS
    share = 0.5
    if are_single:
        least = _LEAST_VALUES
        share = EXPLAINED
    for shift in _SHIFTS:
        squares = []
        for at, (prompt, position) in enumerate(places):
            moved = (prompt, position + shift) if axis else (prompt + shift, position)
            to = index.get(moved)
            if to is not None and own[at] > 0 and np.isfinite(distances[at, to]):
                squares.append((own[at], distances[at, to]))
        original, remaining = np.array(squares).reshape(-1, 2).T
        is_explained = remaining <= (1 - EXPLAINED) * original
        is_whole_explained = remaining.sum() <= (1 - EXPLAINED) * original.sum()
        if len(original) >= least and is_explained.mean() > share and is_whole_explained:
            says = f"{shift_in_words(pair.names, shift)}."
            cause = Cause("shifted rows", says, {"rows": shift})
            yield cause.score(original, remaining, len(original))
    # Two values tell no row from another: of a few pairs of tokens some are equally far apart by
    # chance.
    is_told = (shared >= LEAST_TOKENS) | np.eye(total, dtype=bool)
    identified = np.where(is_told, distances, _UNRELATED)
    rows = Moves(
        identified.argmin(axis=1),
        own,
        identified.min(axis=1),
    )
    if pair.find_moves:
        rows = pair.find_moves()
        places = pair.every_place
        total = len(places)
    nearest = rows.nearest
    is_elsewhere = nearest != np.arange(len(nearest))
    is_moved = is_elsewhere & (rows.own > 0) & (rows.least <= SAME_ROW * rows.own)
    count = int(is_moved.sum())
    if are_single or not count or (not pair.dtype and 2 * count < total):
        return
    targets, counts = np.unique(nearest[is_moved], return_counts=True)
    target = places[targets[counts.argmax()]]
    first = int(is_moved.argmax())
    if count > 2 and counts.max() >= EXPLAINED * count and 2 * count > total:
        says = (
            f"'{variant}' repeats one row at {count + 1} of {total} positions: that of"
            f" {_place(target)}."
        )
        name = "repeated rows"
        parameters = {
            "prompt": target[0],
            "position": target[1],
            "positions": count + 1,
        }
    else:
        one = f"at {_place(places[first])} that of {_place(places[nearest[first]])}"
        says = (
            f"'{variant}' holds other rows of '{reference}' at {count} of {total} positions: {one}."
        )
        name = "other rows"
        parameters = {"positions": count}
    yield Cause(name, says, parameters).score(
        rows.own,
        np.where(is_moved, rows.least, rows.own),
        total,
    )


def _distances(pair: PairRows, farthest: int) -> tuple[Values, Ints, bool]:
    """Return mean squared differences of rows up to a constant, and how many tokens they share,
    both [places of the variant, of the reference], of rows up to `farthest` apart, and whether they
    are of single values: chosen tokens, whose values in their order are compared, whatever the
    tokens.
    """
    whole = pair.whole
    if pair.is_masked is not None:
        whole = np.where(pair.is_masked, np.nan, whole)
    step = 1 + whole.shape[2] // _COMPARED if pair.dtype else 1
    whole = np.clip(
        whole[:, :, ::step],
        -FARTHEST,
        FARTHEST,
    )
    sizes = np.isfinite(whole).sum(axis=2)
    if (sizes == 1).sum() > sizes.shape[1]:
        x, y = np.where(
            sizes == 1,
            np.nansum(whole, axis=2),
            np.nan,
        )
        return (y[:, None] - x) ** 2, np.zeros((len(x), len(x)), np.int64), True
    distances = np.full((sizes.shape[1],) * 2, _UNRELATED)
    shared = np.zeros(distances.shape, np.int64)
    least = _LEAST_SHARED if pair.dtype else 1
    for at, row in enumerate(whole[1]):
        first = max(0, at - farthest)
        end = min(len(distances), at + farthest + 1)
        for other in range(first, end):
            difference = row - whole[0, other]
            values = difference[np.isfinite(difference)]
            shared[at, other] = len(values)
            half = min(sizes[1, at], sizes[0, other]) / 2
            if len(values) < max(least, half):
                continue
            errors = center(values)
            if not pair.dtype:
                errors = np.append(errors, _least_differences(whole[0, other], row))
            distances[at, other] = np.minimum(errors**2, _UNRELATED).mean()
    return distances, shared, False


def _least_differences(x: Values, y: Values) -> Values:
    """Return how far apart two lists are, at least, at tokens that one of them alone has: in the
    other, such a token is below the listed ones. x, y: up to a constant. -> [tokens of one list
    alone]
    """
    has_x = np.isfinite(x)
    has_y = np.isfinite(y)
    shift = np.median((y - x)[has_x & has_y])
    above_y = x[has_x & ~has_y] + shift - np.nanmin(y)
    above_x = y[has_y & ~has_x] - shift - np.nanmin(x)
    return np.maximum(np.append(above_y, above_x), 0.0)


def _place(place: tuple[int, int]) -> str:
    return f"prompt {place[0]} position {place[1]}"


def masks_and_padding(pair: PairRows) -> Iterator[Cause]:
    """One side leaves out all but its top tokens (top-k, top-p), the same tokens everywhere, or
    other ones by row.
    """
    whole = pair.whole
    left_out = pair.masks()
    usable = np.isfinite(whole) & ~left_out
    for side in (1, 0):
        is_masked = left_out[side] & usable[1 - side]
        is_of_some = is_masked.any(axis=1) & usable[side].any(axis=1)
        places = np.flatnonzero(is_of_some)
        if len(places) >= min(2, len(pair.places)):
            yield _mask(
                pair,
                side,
                places,
                whole[:, places],
                is_masked[places],
                usable[:, places],
            )


def _mask(
    pair: PairRows,
    side: int,
    places: Ints,
    whole: Values,
    is_masked: Flags,
    usable: Flags,
) -> Cause:
    """Return the cause of a mask. whole, usable: [sides, places, vocab]; is_masked: [places,
    vocab]
    """
    parameters: Record
    name = f"'{pair.names[side]}'"
    filler = number(float(whole[side][is_masked][0]))
    count = len(places)
    total = len(pair.places)
    place = f"at {count} of {total} positions, {_place(pair.places[places[0]])} first"
    sizes = is_masked.sum(axis=1)
    counts = usable[side].sum(axis=1)
    always = np.flatnonzero(is_masked.all(axis=0))
    is_other = usable[1 - side]
    likely = np.where(is_other, whole[1 - side], -np.inf).astype(np.float64)
    if len(always) and 2 * (sizes > len(always)).sum() < count:
        first = int(always[0])
        tokens = plural(len(always), "token")
        if first + len(always) == whole.shape[2] and count == total:
            is_below = whole[side, 0, -1] < likely[is_other].min()
            kind = "cut" if is_below else "padded"
            says = f"The vocabulary of {name} is {kind}: {filler} from id {first:,} on ({tokens})."
            return Cause(f"{kind} vocabulary", says, {"first": first, "tokens": len(always)})
        says = f"{name} masks {tokens} (from id {first:,}; {filler}) {place}."
        parameters = {
            "tokens": always[:64].tolist(),
            "count": len(always),
            "positions": count,
        }
        return Cause("masking", says, parameters)
    # Of top tokens, rounding puts only a few below the largest masked one on the other side.
    largest = np.where(is_masked, likely, -np.inf).max(axis=1, keepdims=True)
    swapped = (usable.all(axis=0) & (likely < largest)).sum(axis=1)
    are_top = swapped <= _SWAPPED * np.minimum(counts, sizes)
    if are_top.mean() < EXPLAINED:
        says = (
            f"{name} masks other tokens in each row ({filler}) {place}, as a grammar or n-gram ban"
            " does."
        )
        parameters = {
            "least": int(sizes.min()),
            "most": int(sizes.max()),
            "positions": count,
        }
        return Cause("masking", says, parameters)
    most = int(counts[are_top].max())
    weights = np.exp(likely - likely.max(axis=1, keepdims=True))
    masses = (weights * usable[side]).sum(axis=1) / weights.sum(axis=1)
    mass = float(masses[are_top].min())
    if (counts[are_top] == most).all():
        by = f"top-k {most:,}"
        parameters = {"top_k": most}
    else:
        by = f"top-p {mass:.3g} or min-p (up to {most:,} tokens)"
        parameters = {"top_p": mass}
    says = f"{name} keeps only the top tokens of each row, as {by} does; the others hold {filler}."
    return Cause("masking", says, parameters)


def renormalization(pair: PairRows) -> Iterator[Cause]:
    """Log-probabilities of one side sum to 1 over the tokens that were sent, as if no other could
    come.
    """
    if not pair.has_constants:
        raise TooFewError("log-probabilities")
    is_sent = np.isfinite(pair.whole)
    shares = np.where(
        is_sent,
        np.exp(np.minimum(pair.whole, 0.0)),
        0.0,
    )
    least = np.where(is_sent, shares, np.inf).min(axis=2, initial=np.inf)
    counts = is_sent.sum(axis=2)
    sums = shares.sum(axis=2)
    is_usable = (counts > 1) & (least >= _LEAST_SHARE)
    for side in (1, 0):
        most = np.maximum(_SURE * least[side], _SUM_ERROR)
        is_one = np.abs(1 - sums[side]) <= most
        of_other = np.where(is_sent[side], shares[1 - side], 0.0).sum(axis=1)
        # Of rows with more tokens left than are listed, a list is a part of them; a shorter list
        # has all of them.
        is_shorter = counts[side] < counts[1 - side]
        for rows in (is_usable[side], is_usable[side] & is_shorter):
            if rows.sum() < LEAST_ROWS or is_one[rows].mean() < EXPLAINED:
                continue
            middle = float(np.median(of_other[rows]))
            if middle <= 1 - _MISSING:
                says = (
                    "Renormalized after top-k, top-p or min-p: probabilities of"
                    f" {counts[side, rows].max()} tokens or fewer sum to 1 on '{pair.names[side]}',"
                    f" to {middle:.3g} on '{pair.names[1 - side]}'."
                )
                yield Cause(
                    "renormalized",
                    says,
                    {"positions": int(is_one[rows].sum()), "sum_of_other": middle},
                )
                break


def upcast_values(pair: PairRows) -> Iterator[Cause]:
    """Values of one side lie on a 16-bit grid, and the other's do not."""
    pair.masks()
    if pair.dtype != "float32" or not pair.rows:
        return
    sides = [np.concatenate([row.side(side) for row in pair.rows]) for side in (0, 1)]
    for name in ("bfloat16", "float16"):
        on_grid = [bool((round_to(FORMATS[name], values) == values).all()) for values in sides]
        side = on_grid[1]
        is_constant = np.ptp(sides[side]) == 0  # which is of every dtype
        if on_grid[0] != on_grid[1] and not is_constant:
            says = (
                f"Every value of '{pair.names[side]}' is a {name} value: computed or saved in"
                f" {name}, then widened."
            )
            yield Cause("upcast", says, {"dtype": name})
            return


def other_token_ids(pair: PairRows) -> Iterator[Cause]:
    """Find a token in front of one side's prompt that the other side's lacks: a BOS, or two."""
    for prompt, sides in enumerate(zip(*pair.tokens, strict=False)):
        if extra := extra_first_token(*sides):
            side, is_doubled = extra
            token = sides[side][0]
            kind = "doubled" if is_doubled else "missing"
            says = (
                f"Only '{pair.names[side]}' has token {token} in front of prompt {prompt}: a {kind}"
                " BOS on one side."
            )
            yield Cause("other tokens", says, {"token": token, "prompt": prompt})
            return


def single_values(pair: PairRows) -> Iterator[Cause]:
    """Find a row of which a few values are off and the others agree: rounding moves them alike."""
    if not pair.lists:
        raise TooFewError("lists of top tokens")
    rows = []
    step = 1 + len(pair.every_place) // _MOST_LISTED
    for at, place in enumerate(pair.every_place[::step]):
        sizes, largest = _differences_of_list(pair.lists, at * step)
        if len(sizes) >= _LEAST_LISTED:
            others = rms(sizes[: -max(1, len(sizes) // _LEAST_LISTED)])
            rows.append((place, sizes[-1], others, max(_LEAST_JUMP, _OF_VALUE * largest)))
    if len(rows) < LEAST_ROWS:
        return
    typical = np.median([others for _, _, others, _ in rows])
    for place, jump, others, least in rows:
        if jump > max(least, LARGEST_PEAK * max(others, typical)):
            says = (
                f"A value is off, or its token missing, by {number(jump)} nats at {_place(place)},"
                f" most others by {number(others)}: rounding moves them alike."
            )
            yield Cause("single value", says, {"prompt": place[0], "position": place[1]})
            return


def _differences_of_list(lists: ResponsePair, at: int) -> tuple[Values, float]:
    """Return how far the values of a row differ, up to a constant, in order, and its largest value.

    Of whole lists a token that one side alone has differs too; texts of one token may differ.
    """
    both = align_lists([side.row(at) for side in lists.rows])
    differences = both[1] - both[0]
    sizes = center(differences[np.isfinite(differences)])
    are_whole = all(
        side.best[at] == side.counts[at] and not side.missing[at] for side in lists.rows
    )
    if are_whole and lists.keys == "token_id" and len(sizes):
        sizes = np.append(sizes, _least_differences(*both))
    return np.sort(np.abs(sizes)), float(np.nanmax(np.abs(both), initial=0.0))


def sampler(pair: PairRows) -> Iterator[Cause]:
    """Tokens that were emitted are not the top ones, which greedy decoding would have emitted."""
    if not pair.lists:
        raise TooFewError("generated tokens")
    lists = pair.lists
    argmaxes = (lists.figures.reference_token, lists.figures.variant_token)
    for rows, tops, name in zip(lists.rows, argmaxes, pair.names, strict=True):
        is_known = ~np.ma.getmaskarray(tops) & (rows.targets != UNKNOWN_TOKEN)
        is_usable = lists.is_generated & is_known
        others = np.flatnonzero(is_usable & (tops.data != rows.targets))
        if len(others) >= 2 or (len(others) and is_usable.sum() < 8):
            first = others[0]
            prompt, position = pair.every_place[first]
            says = (
                f"'{name}' emitted other tokens than its top ones at {len(others):,} of"
                f" {is_usable.sum():,} positions ({rows.targets[first]} for {tops[first]} at"
                f" position {position}): sampled, penalized or masked."
            )
            yield Cause(
                "sampler",
                says,
                {
                    "positions": len(others),
                    "position": position,
                    "prompt": prompt,
                },
            )
