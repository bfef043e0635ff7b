"""The fused divergence kernel: one pass over two sides gives every figure of the metric contract.

How it is built (docs/contributing/decisions/0002-kernel.md). A row (one position) is read from memory once and
then worked on in blocks of 2048 elements that stay in the first-level cache: bits to ordinal distances and float32,
histogram of distances, maxima of groups of 32 (the heatmap), maxima of 64 lanes (which top-k reads first),
and float64 exponentials with a running maximum. Each step is a long loop simple enough for LLVM to vectorise. A row
with any NaN or infinity takes a slower loop that checks every element. Everything releases the GIL; threads are the
caller's (numba's own pool aborts when two viewers use it at once).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numba.extending import overload

from .formats import FLOAT8_E4M3FN, FLOAT8_E5M2, FORMATS, values_of
from .reproducible import bits_of_float, bits_of_float32, exp, float32_of_bits, float_of_bits, fma, fold, log
from .sizes import BLOCK, DENSE, GROUP, LANES, SUM_LANES

_BFLOAT16 = 2
_E4M3FN = 3
_E4M3FN_VALUES = values_of(np.arange(256, dtype=np.uint8), FLOAT8_E4M3FN)
_E5M2_VALUES = values_of(np.arange(256, dtype=np.uint8), FLOAT8_E5M2)
_BY_CODE = sorted(FORMATS.values(), key=lambda fmt: fmt.code)
_MANTISSA_BITS = np.array([fmt.mantissa_bits for fmt in _BY_CODE])
_LEAST_EXPONENTS = np.array([fmt.least_exponent for fmt in _BY_CODE])

_LARGEST_CELL = np.float64(np.float32(3.4028235e38))
_LARGE = 1024.0  # maxima beyond it cost the fused KL more than 1e-13


def load_block(a, b, fmt, a_bits, b_bits, a_values, b_values, ulps):
    """Bits to float32 values (exact) and ULP distances, for one block. Overloaded by the width of the bits."""
    raise NotImplementedError  # only the overloads below are ever called


@overload(load_block, jit_options={"forceinline": True})
def _load_block_overload(a, b, fmt, a_bits, b_bits, a_values, b_values, ulps):
    return {8: _load8, 16: _load16, 32: _load32}[a.dtype.bitwidth]


def _load8(a, b, fmt, a_bits, b_bits, a_values, b_values, ulps):
    table = _E4M3FN_VALUES if fmt == _E4M3FN else _E5M2_VALUES
    for i in range(a.shape[0]):
        x = np.int32(a[i])
        y = np.int32(b[i])
        x_ordinal = -(x & 0x7F) if x > 0x7F else x
        y_ordinal = -(y & 0x7F) if y > 0x7F else y
        ulps[i] = abs(x_ordinal - y_ordinal)
        a_values[i] = table[x]
        b_values[i] = table[y]


def _load16(a, b, fmt, a_bits, b_bits, a_values, b_values, ulps):
    n = a.shape[0]
    for i in range(n):
        x = np.int32(a[i])
        y = np.int32(b[i])
        x_magnitude = np.int32(x & 0x7FFF)
        y_magnitude = np.int32(y & 0x7FFF)
        x_ordinal = np.int32(-x_magnitude) if x > 0x7FFF else x_magnitude
        y_ordinal = np.int32(-y_magnitude) if y > 0x7FFF else y_magnitude
        ulps[i] = np.uint32(abs(np.int32(x_ordinal - y_ordinal)))
    if fmt == _BFLOAT16:
        for i in range(n):
            a_bits[i] = np.uint32(a[i]) << np.uint32(16)
            b_bits[i] = np.uint32(b[i]) << np.uint32(16)
    else:
        for i in range(n):
            a_bits[i] = _widen_half(np.uint32(a[i]))
            b_bits[i] = _widen_half(np.uint32(b[i]))


@njit(forceinline=True)
def _widen_half(half):
    """Bits of a float16 to those of the same float32: exponent and mantissa move into place, one exact product
    re-biases (subnormals too).
    """
    magnitude = np.uint32((half & np.uint32(0x7FFF)) << np.uint32(13))
    bits = bits_of_float32(float32_of_bits(magnitude) * np.float32(2.0**112))
    bits |= np.uint32(0x7F800000) if magnitude >= np.uint32(0x0F800000) else np.uint32(0)  # infinity or NaN
    return np.uint32(bits | np.uint32((half & np.uint32(0x8000)) << np.uint32(16)))


def _load32(a, b, fmt, a_bits, b_bits, a_values, b_values, ulps):
    for i in range(a.shape[0]):
        x = np.int32(a[i])
        y = np.int32(b[i])
        a_bits[i] = a[i]
        b_bits[i] = b[i]
        x_magnitude = np.int32(x & 0x7FFFFFFF)
        y_magnitude = np.int32(y & 0x7FFFFFFF)
        x_ordinal = np.int32(-x_magnitude) if x < 0 else x_magnitude
        y_ordinal = np.int32(-y_magnitude) if y < 0 else y_magnitude
        high = max(x_ordinal, y_ordinal)
        low = min(x_ordinal, y_ordinal)
        ulps[i] = np.uint32(np.uint32(high) - np.uint32(low))  # up to 2**32 - 2**24 - 2: wraps in int32, fits in uint32


@njit(forceinline=True)
def _scan_row(a, b, magnitude_mask, first_nonfinite):
    """(any NaN or infinity on either side, any bit pattern that differs, largest magnitude of a, as bits)."""
    nonfinite = 0
    differing = 0
    largest = np.uint32(0)
    for i in range(a.shape[0]):
        x = np.uint32(a[i])
        y = np.uint32(b[i])
        nonfinite |= np.int32((x & magnitude_mask) >= first_nonfinite) | np.int32(
            (y & magnitude_mask) >= first_nonfinite
        )
        differing |= np.int32(x != y)
        magnitude = np.uint32(x & magnitude_mask)
        largest = magnitude if magnitude > largest else largest
    return nonfinite != 0, differing != 0, largest


@njit(forceinline=True)
def largest_finite(a, magnitude_mask, first_nonfinite):
    """Bits of the largest finite magnitude of a row of bits; -1 if nothing is finite."""
    largest = np.uint32(0)  # 1 more than that; a product in place of a choice, or it takes five times as long
    for i in range(a.shape[0]):
        magnitude = np.uint32(np.uint32(a[i]) & magnitude_mask)
        is_finite = np.uint32(magnitude < first_nonfinite)
        largest = max(largest, np.uint32((magnitude + np.uint32(1)) * is_finite))
    return np.int64(largest) - 1


@njit(forceinline=True)
def spacing_at(magnitude, fmt):
    """Spacing of the format at a magnitude, given as its bits: a power of two. NaN for -1."""
    if magnitude < 0:
        return np.nan
    binade = max(np.int64(magnitude) >> _MANTISSA_BITS[fmt], np.int64(1)) - 1  # subnormals are as the first normals
    return _spacing(binade + _LEAST_EXPONENTS[fmt], fmt)


@njit(forceinline=True)
def spacing_at_float32(magnitude, fmt):
    """Spacing of the format at one of its magnitudes, given as the bits of a float32; NaN for -1."""
    if magnitude < 0:
        return np.nan
    return _spacing(max(max(np.int64(magnitude) >> 23, np.int64(1)) - 127, _LEAST_EXPONENTS[fmt]), fmt)


@njit(forceinline=True)
def _spacing(exponent, fmt):
    return float_of_bits((exponent - _MANTISSA_BITS[fmt] + 1023) << 52)


@njit(forceinline=True, error_model="numpy")
def row_cell(difference, spacing):
    """Return a difference in spacings, as the bits of a float32: finite, and not 0 unless the difference is."""
    cell = bits_of_float32(np.float32(min(difference / spacing, _LARGEST_CELL)))
    return cell if cell > 0 or difference == 0.0 else np.uint32(1)


@njit(forceinline=True)
def _differences(a, b, out):
    """Compute |a - b| of a whole block in float32."""
    for i in range(BLOCK):
        out[i] = abs(a[i] - b[i])


@njit(forceinline=True)
def _row_cells(a, b, maxima, spacing, groups, out):
    """Cells of a block's groups in row ULPs out of their largest differences, as bits of float32."""
    for g in range(groups):
        difference = np.float64(float32_of_bits(maxima[g]))
        if difference == np.inf:  # beyond float32, though the logits are not
            difference = 0.0
            for i in range(g * GROUP, (g + 1) * GROUP):
                difference = max(difference, abs(np.float64(a[i]) - np.float64(b[i])))
        out[g] = row_cell(difference, spacing)


@njit(forceinline=True)
def _lane_maxima(values, out):
    """Maxima of every 64th element of a whole block into out[:64]; returns the largest.

    The block is folded in half again and again, so that every loop is long and no vector is reduced to a number.
    """
    half = BLOCK // 2
    for j in range(half):
        x = values[j]
        y = values[half + j]
        out[j] = x if x > y else y
    while half > LANES:
        half //= 2
        for j in range(half):
            x = out[j]
            y = out[half + j]
            out[j] = x if x > y else y
    highest = out[0]
    for j in range(LANES):
        highest = out[j] if out[j] > highest else highest
    return highest


def _block_sums(ulps, n):
    """(sum, number that are not 0) of a block's distances."""
    raise NotImplementedError  # only the overload below is ever called


@overload(_block_sums, jit_options={"forceinline": True})
def _block_sums_overload(ulps, n):
    if ulps.dtype.bitwidth == 32:

        def sums(ulps, n):
            total = np.uint64(0)
            nonzero = np.int64(0)
            for i in range(n):
                total += np.uint64(ulps[i])
                nonzero += np.int64(ulps[i] != 0)
            return total, nonzero
    else:

        def sums(ulps, n):
            total = np.uint32(0)  # 2048 * 65535 < 2**31
            nonzero = np.int32(0)
            for i in range(n):
                total = np.uint32(total + np.uint32(ulps[i]))
                nonzero = np.int32(nonzero + np.int32(ulps[i] != 0))
            return np.uint64(total), np.int64(nonzero)

    return sums


@njit(forceinline=True)
def _group_maxima(ulps, out):
    """Maxima of groups of 32 of a whole block into out[:64]; neighbours pair by pair, for the same reason."""
    half = BLOCK // 2
    for i in range(half):
        x = ulps[2 * i]
        y = ulps[2 * i + 1]
        out[i] = x if x > y else y
    while half > BLOCK // GROUP:
        half //= 2
        for i in range(half):
            x = out[2 * i]
            y = out[2 * i + 1]
            out[i] = x if x > y else y


@njit(forceinline=True)
def _insert(values, ids, value, token):
    """Keep the K largest in descending order; an equal value that came earlier (a lower id) stays in front."""
    k = values.shape[0] - 1
    while k > 0 and (ids[k - 1] < 0 or value > values[k - 1]):
        values[k] = values[k - 1]
        ids[k] = ids[k - 1]
        k -= 1
    values[k] = value
    ids[k] = token


@njit(forceinline=True)
def _take_top(values, maxima, highest, start, n, top_values, top_ids, candidates):
    """Candidates of a block into the top k, in the order of their ids, looking only at lanes that hold one."""
    last = top_values.shape[0] - 1
    is_full = top_ids[last] >= 0
    if is_full and highest <= top_values[last]:
        return
    count = 0
    for j in range(min(n, LANES)):
        if not is_full or maxima[j] > top_values[last]:
            candidates[count] = j
            count += 1
    for base in range(0, n, LANES):
        for f in range(count):
            i = base + candidates[f]
            if i < n and (values[i] > top_values[last] or top_ids[last] < 0):
                _insert(top_values, top_ids, values[i], start + i)


@njit(forceinline=True)
def _add_terms(a, b, n, a_highest, b_highest, lanes, largest):
    """Add a block's terms to `lanes` [4 * SUM_LANES]; return the largest |a - b| so far, as bits.

    Four sums: of exp(a), of exp(b), of exp(a) (a - b), of (a - b)^2, exponents relative to the maxima. Element i goes
    to lane i mod SUM_LANES of each. a and b are padded to a whole number of lanes with equal values far below the
    maxima.
    """
    for start in range(0, n, SUM_LANES):
        for j in range(SUM_LANES):
            x = np.float64(a[start + j])
            y = np.float64(b[start + j])
            difference = x - y
            magnitude = (
                bits_of_float(difference) & 0x7FFFFFFFFFFFFFFF
            )  # in the magnitudes' order; integer maxima vectorise
            largest = magnitude if magnitude > largest else largest
            mass = exp(x - a_highest)
            lanes[j] += mass
            lanes[SUM_LANES + j] += exp(y - b_highest)
            lanes[2 * SUM_LANES + j] = fma(mass, difference, lanes[2 * SUM_LANES + j])
            lanes[3 * SUM_LANES + j] = fma(difference, difference, lanes[3 * SUM_LANES + j])
    return largest


@njit(forceinline=True)
def _scale(lanes, number, factor):
    """One of the sums times a factor."""
    for j in range(SUM_LANES):
        lanes[number * SUM_LANES + j] *= factor


@njit(forceinline=True)
def _count(ulps, n, histogram):
    """Exact distances into four interleaved tables, so that equal neighbours do not wait for each other's store."""
    for i in range(0, n - 3, 4):
        histogram[0, ulps[i]] += 1
        histogram[1, ulps[i + 1]] += 1
        histogram[2, ulps[i + 2]] += 1
        histogram[3, ulps[i + 3]] += 1
    for i in range(n - n % 4, n):
        histogram[0, ulps[i]] += 1


@njit
def _kl_of_row(a, b, fmt, a_highest, b_highest, a_sum, b_sum, a_bits, b_bits, a_values, b_values, ulps):
    """KL of one row in nats, each value taken relative to its side's maximum before anything is subtracted.

    The fused pass sums a - b and puts the maxima right afterwards, which cancels if they are large: half of all
    digits near 1e8. A value of a is finite or -inf, and b is finite where a is.
    """
    weighted = 0.0
    for start in range(0, a.shape[0], BLOCK):
        n = min(BLOCK, a.shape[0] - start)
        load_block(
            a[start : start + n],
            b[start : start + n],
            fmt,
            a_bits[:n],
            b_bits[:n],
            a_values[:n],
            b_values[:n],
            ulps[:n],
        )
        for i in range(n):
            x = np.float64(a_values[i])
            if x > -np.inf:
                relative = x - a_highest
                if relative > -700.0:  # what lies below has no mass to speak of, and may be very far from b
                    weighted += exp(relative) * (relative - (np.float64(b_values[i]) - b_highest))
    return weighted / a_sum + log(b_sum / a_sum)


@njit(nogil=True, cache=True, error_model="numpy")
def compare_rows(
    a,
    b,
    fmt,
    magnitude_mask,
    first_nonfinite,
    counts,
    figures,
    is_bit_identical,
    a_top_values,
    b_top_values,
    a_top_ids,
    b_top_ids,
    tiles,
    row_tiles,
    histogram,
    overflow,
    ulps,
):
    """Compare rows of bits `a` and `b` [rows, vocab]; fills the outputs, returns the number of distances put into
    `overflow`.

    counts [rows, 6] int64: neq, max_ulps, token of max_ulps, sum_ulps, elements finite on both sides,
    nonfinite_mismatch. figures [rows, 6] float64: max_abs, sum of squared differences, KL in nats (NaN: undefined),
    logsumexp of a, of b, spacing of the format at a's largest finite magnitude (NaN: there is none). tiles [rows,
    ceil(vocab / 32)]: largest distance of each group of tokens, all ones if NaN or infinity mismatch. row_tiles of
    the same shape, uint32, arriving as zeros: the group's largest difference over that spacing, as the bits of a
    float32, all ones likewise. histogram [4, 65536] uint32: distances below 65536, to be summed over its first axis;
    the others go to `overflow`. ulps [2048] is scratch: uint32 for float32, uint16 for narrower formats, whose
    distances all fit.
    """
    rows, vocab = a.shape
    a_values = np.empty(BLOCK, np.float32)
    b_values = np.empty(BLOCK, np.float32)
    a_bits = a_values.view(np.uint32)
    b_bits = b_values.view(np.uint32)
    ulp_maxima = np.empty_like(ulps)
    a_maxima = np.empty(BLOCK // 2, np.float32)
    b_maxima = np.empty(BLOCK // 2, np.float32)
    candidates = np.empty(LANES, np.int32)
    lanes = np.empty(4 * SUM_LANES, np.float64)
    differences = np.empty(BLOCK, np.float32)
    difference_bits = differences.view(np.uint32)
    difference_maxima = np.empty(BLOCK // 2, np.uint32)
    overflowing = 0

    for row in range(rows):
        nonfinite, differing, magnitude = _scan_row(a[row], b[row], magnitude_mask, first_nonfinite)
        if nonfinite:
            spacing = spacing_at(largest_finite(a[row], magnitude_mask, first_nonfinite), fmt)
        else:
            spacing = spacing_at(np.int64(magnitude), fmt)
        figures[row, 5] = spacing
        is_bit_identical[row] = not differing
        a_top_ids[row, :] = -1
        b_top_ids[row, :] = -1
        a_top_values[row, :] = np.nan
        b_top_values[row, :] = np.nan
        if nonfinite:
            overflowing = _compare_any_row(
                a[row],
                b[row],
                fmt,
                counts[row],
                figures[row],
                a_top_values[row],
                b_top_values[row],
                a_top_ids[row],
                b_top_ids[row],
                tiles[row],
                row_tiles[row],
                spacing,
                histogram,
                overflow,
                overflowing,
                a_bits,
                b_bits,
                a_values,
                b_values,
                ulps,
            )
            continue

        neq = np.int64(0)
        total = np.uint64(0)
        highest = np.uint32(0)
        highest_token = 0
        largest = np.int64(0)
        lanes[:] = 0.0
        a_highest = -np.inf
        b_highest = -np.inf
        for start in range(0, vocab, BLOCK):
            n = min(BLOCK, vocab - start)
            load_block(
                a[row, start : start + n],
                b[row, start : start + n],
                fmt,
                a_bits[:n],
                b_bits[:n],
                a_values[:n],
                b_values[:n],
                ulps[:n],
            )
            groups = (n + GROUP - 1) // GROUP
            for i in range(n, BLOCK):  # pad the last block with what no maximum and no sum can notice
                a_values[i] = np.float32(-3.4028235e38)
                b_values[i] = np.float32(-3.4028235e38)
                ulps[i] = 0

            _group_maxima(ulps, ulp_maxima)
            first_group = start // GROUP
            block_ulps = np.uint32(0)
            for g in range(groups):
                m = np.uint32(ulp_maxima[g])
                tiles[row, first_group + g] = m
                block_ulps = m if m > block_ulps else block_ulps
            block_total, block_neq = _block_sums(ulps, n)
            if block_neq:
                _differences(a_values, b_values, differences)
                _group_maxima(difference_bits, difference_maxima)
                _row_cells(a_values, b_values, difference_maxima, spacing, groups, row_tiles[row, first_group:])
            neq += block_neq
            total += block_total
            if block_ulps > highest:
                highest = block_ulps
                for i in range(n):
                    if np.uint32(ulps[i]) == block_ulps:
                        highest_token = start + i
                        break
            if block_ulps < DENSE:
                _count(ulps, n, histogram)
            else:
                for i in range(n):
                    if ulps[i] < DENSE:
                        histogram[0, ulps[i]] += 1
                    else:
                        overflow[overflowing] = ulps[i]
                        overflowing += 1

            a_block = np.float64(_lane_maxima(a_values, a_maxima))
            b_block = np.float64(_lane_maxima(b_values, b_maxima))
            _take_top(a_values, a_maxima, a_block, start, n, a_top_values[row], a_top_ids[row], candidates)
            _take_top(b_values, b_maxima, b_block, start, n, b_top_values[row], b_top_ids[row], candidates)
            if a_block > a_highest:  # the running maximum moves: rescale what was summed (online softmax, Milakov 2018)
                scale = exp(a_highest - a_block)
                _scale(lanes, 0, scale)
                _scale(lanes, 2, scale)
                a_highest = a_block
            if b_block > b_highest:
                _scale(lanes, 1, exp(b_highest - b_block))
                b_highest = b_block
            largest = _add_terms(a_values, b_values, n, a_highest, b_highest, lanes, largest)

        a_sum = fold(lanes, 0, SUM_LANES)
        b_sum = fold(lanes, SUM_LANES, SUM_LANES)
        weighted = fold(lanes, 2 * SUM_LANES, SUM_LANES)
        counts[row, 0] = neq
        counts[row, 1] = highest
        counts[row, 2] = highest_token
        counts[row, 3] = total
        counts[row, 4] = vocab
        counts[row, 5] = 0
        figures[row, 0] = float_of_bits(largest)
        figures[row, 1] = fold(lanes, 3 * SUM_LANES, SUM_LANES)
        if abs(a_highest) > _LARGE or abs(b_highest) > _LARGE:
            kl = _kl_of_row(
                a[row], b[row], fmt, a_highest, b_highest, a_sum, b_sum, a_bits, b_bits, a_values, b_values, ulps
            )
        else:
            kl = weighted / a_sum + (b_highest - a_highest) + log(b_sum / a_sum)
        figures[row, 2] = max(0.0, kl) if differing else 0.0
        figures[row, 3] = a_highest + log(a_sum)
        figures[row, 4] = b_highest + log(b_sum)
    return overflowing


@njit(nogil=True, cache=True)
def count_magnitudes(distances, elements):
    """Add to elements[e] the number of `distances` [n] uint32 from 2**e to below 2**(e + 1); none is 0."""
    for i in range(distances.shape[0]):
        elements[(bits_of_float(np.float64(distances[i])) >> 52) - 1023] += 1


@njit(forceinline=True)
def _logsumexp_state(x, highest, total):
    """One more value into (maximum, sum of exponentials relative to it); NaN and +inf are the caller's."""
    if x == -np.inf:
        return highest, total
    if x > highest:
        return x, total * exp(highest - x) + 1.0
    return highest, total + exp(x - highest)


@njit(forceinline=True)
def _finish_logsumexp(has_nan, has_inf, highest, total):
    if has_nan:
        return np.nan
    if has_inf:
        return np.inf
    return highest + log(total) if total > 0.0 else -np.inf


@njit
def _compare_any_row(
    a,
    b,
    fmt,
    counts,
    figures,
    a_top_values,
    b_top_values,
    a_top_ids,
    b_top_ids,
    tiles,
    row_tiles,
    spacing,
    histogram,
    overflow,
    overflowing,
    a_bits,
    b_bits,
    a_values,
    b_values,
    ulps,
):
    """One row with NaN or infinities among its values: the rules of the contract, element by element."""
    vocab = a.shape[0]
    neq = 0
    finite = 0
    mismatched = 0
    total = np.uint64(0)
    highest = np.int64(0)
    highest_token = 0
    largest = 0.0
    squares = 0.0
    a_nan = False
    b_nan = False
    a_inf = False
    b_inf = False
    lost_mass = False
    a_highest = -np.inf
    b_highest = -np.inf
    a_sum = 0.0
    b_sum = 0.0
    tiles[:] = 0
    row_tiles[:] = 0
    all_ones = ~tiles.dtype.type(0)
    for start in range(0, vocab, BLOCK):
        n = min(BLOCK, vocab - start)
        load_block(
            a[start : start + n],
            b[start : start + n],
            fmt,
            a_bits[:n],
            b_bits[:n],
            a_values[:n],
            b_values[:n],
            ulps[:n],
        )
        for i in range(n):
            x = np.float64(a_values[i])
            y = np.float64(b_values[i])
            token = start + i
            x_nan = math.isnan(x)
            y_nan = math.isnan(y)
            is_same = x == y or (x_nan and y_nan)
            neq += 0 if is_same else 1
            a_nan = a_nan or x_nan
            b_nan = b_nan or y_nan
            a_inf = a_inf or x == np.inf
            b_inf = b_inf or y == np.inf
            if math.isfinite(x) and math.isfinite(y):
                finite += 1
                distance = np.int64(ulps[i])
                total += np.uint64(distance)
                if distance > highest:
                    highest = distance
                    highest_token = token
                if distance > np.int64(tiles[token // GROUP]):
                    tiles[token // GROUP] = distance
                if distance < DENSE:
                    histogram[0, distance] += 1
                else:
                    overflow[overflowing] = ulps[i]
                    overflowing += 1
                largest = max(largest, abs(x - y))
                squares += (x - y) * (x - y)
                cell = row_cell(abs(x - y), spacing)
                if cell > row_tiles[token // GROUP]:
                    row_tiles[token // GROUP] = cell
            elif not is_same:
                mismatched += 1
                tiles[token // GROUP] = all_ones
                row_tiles[token // GROUP] = np.uint32(0xFFFFFFFF)
            if math.isfinite(x) and y == -np.inf:
                lost_mass = True
            if not x_nan:
                if x != np.inf:
                    a_highest, a_sum = _logsumexp_state(x, a_highest, a_sum)
                if a_top_ids[-1] < 0 or a_values[i] > a_top_values[-1]:
                    _insert(a_top_values, a_top_ids, a_values[i], token)
            if not y_nan:
                if y != np.inf:
                    b_highest, b_sum = _logsumexp_state(y, b_highest, b_sum)
                if b_top_ids[-1] < 0 or b_values[i] > b_top_values[-1]:
                    _insert(b_top_values, b_top_ids, b_values[i], token)

    kl = np.nan
    if not (a_nan or b_nan or a_inf or b_inf or lost_mass or a_sum == 0.0):
        kl = max(
            0.0, _kl_of_row(a, b, fmt, a_highest, b_highest, a_sum, b_sum, a_bits, b_bits, a_values, b_values, ulps)
        )

    counts[0] = neq
    counts[1] = highest
    counts[2] = highest_token
    counts[3] = total
    counts[4] = finite
    counts[5] = mismatched
    figures[0] = largest
    figures[1] = squares
    figures[2] = kl
    figures[3] = _finish_logsumexp(a_nan, a_inf, a_highest, a_sum)
    figures[4] = _finish_logsumexp(b_nan, b_inf, b_highest, b_sum)
    return overflowing
