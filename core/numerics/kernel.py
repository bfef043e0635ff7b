"""The fused divergence kernel: one pass over two sides gives every figure of the metric contract.

How it is built (docs/contributing/decisions/0002-kernel.md). A row (one position) is read from
memory once and then worked on in blocks of 2048 elements that stay in the first-level cache: bits
to ordinal distances and float32, histogram of distances, maxima of groups of 32 (the heatmap),
maxima of 64 lanes (which top-k reads first), and float64 exponentials with a running maximum. Each
step is a long loop simple enough for LLVM to vectorize. In a row with any NaN or infinity such
elements are set aside first. Everything releases the GIL; threads are the caller's (numba's own
pool aborts when two viewers use it at once).
"""

import math

import numpy as np
from numba import njit

from .formats import BFLOAT16, FLOAT32, LOGIT_FORMATS
from .sizes import BLOCK, DENSE, GROUP, LANES

_FLOAT32, _BFLOAT16 = FLOAT32.code, BFLOAT16.code
_BY_CODE = sorted(LOGIT_FORMATS.values(), key=lambda fmt: fmt.code)
_MANTISSA_BITS = np.array([fmt.mantissa_bits for fmt in _BY_CODE])
_LEAST_EXPONENTS = np.array([fmt.least_exponent for fmt in _BY_CODE])
_MAGNITUDE_MASKS = np.array([(1 << (fmt.bits - 1)) - 1 for fmt in _BY_CODE], np.uint32)
_FIRST_NONFINITE = np.array([fmt.first_nonfinite for fmt in _BY_CODE], np.uint32)

_LARGEST_CELL = np.float64(np.float32(3.4028235e38))
_LOWEST = np.float32(-3.4028235e38)
_LOG2E, _LN2 = 1.4426950408889634, 0.6931471805599453
# adding it rounds a float64 to a whole number, which is then in the lowest bits
_ROUNDER = 1.5 * 2.0**52


@njit(forceinline=True, fastmath={"contract"})
def exp(x):
    """e**x for x <= 0 (below -700 taken as -700), relative error 3e-14, exactly 1 at 0; unlike
    math.exp it vectorizes.

    The polynomial meets e**r in the Chebyshev nodes of |r| <= log(2) / 2.
    """
    x = x if x > -700.0 else -700.0
    scaled = x * _LOG2E + _ROUNDER
    r = (_ROUNDER - scaled) * _LN2 + x
    p = 2.7626371065696354e-07
    p = p * r + 2.764019739169484e-06
    p = p * r + 2.480150431378554e-05
    p = p * r + 0.00019841170230570286
    p = p * r + 0.001388888893251478
    p = p * r + 0.008333333385699212
    p = p * r + 0.041666666666573066
    p = p * r + 0.16666666666554314
    p = p * r + 0.5000000000000006
    p = p * r + 1.0000000000000067
    p = p * r + 1.0
    return np.int64(np.float64(p).view(np.int64) + (np.float64(scaled).view(np.int64) << 52)).view(
        np.float64,
    )


@njit(forceinline=True)
def load_block(a, b, fmt, a_bits, b_bits, ulps):
    """Bits to those of float32 (exact) and ULP distances, for one block."""
    if fmt == _FLOAT32:
        _load32(a, b, a_bits, b_bits, ulps)
    else:
        _load16(a, b, fmt, a_bits, b_bits, ulps)


@njit(forceinline=True)
def _load16(a, b, fmt, a_bits, b_bits, ulps):
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
    """Bits of a float16 to those of the same float32: exponent and mantissa move into place, one
    exact product re-biases (subnormals too).
    """
    magnitude = np.uint32((half & np.uint32(0x7FFF)) << np.uint32(13))
    bits = np.float32(np.uint32(magnitude).view(np.float32) * np.float32(2.0**112)).view(np.uint32)
    # infinity or NaN
    bits |= np.uint32(0x7F800000) if magnitude >= np.uint32(0x0F800000) else np.uint32(0)
    return np.uint32(bits | np.uint32((half & np.uint32(0x8000)) << np.uint32(16)))


@njit(forceinline=True)
def _load32(a, b, a_bits, b_bits, ulps):
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
        # up to 2**32 - 2**24 - 2: wraps in int32, fits in uint32
        ulps[i] = np.uint32(np.uint32(high) - np.uint32(low))


@njit(forceinline=True)
def scan_row(a, b, fmt):
    """(any NaN or infinity on either side, any bit pattern that differs, spacing at a's largest
    finite magnitude).
    """
    magnitude_mask = _MAGNITUDE_MASKS[fmt]
    first_nonfinite = _FIRST_NONFINITE[fmt]
    nonfinite = 0
    differing = 0
    largest = np.uint32(0)
    for i in range(a.shape[0]):
        x = np.uint32(a[i])
        y = np.uint32(b[i])
        nonfinite |= np.int32((x & magnitude_mask) >= first_nonfinite) | np.int32(
            (y & magnitude_mask) >= first_nonfinite,
        )
        differing |= np.int32(x != y)
        magnitude = np.uint32(x & magnitude_mask)
        largest = magnitude if magnitude > largest else largest
    finite = _largest_finite(a, magnitude_mask, first_nonfinite) if nonfinite else np.int64(largest)
    return nonfinite != 0, differing != 0, _spacing_at(finite, fmt)


@njit(forceinline=True)
def _largest_finite(a, magnitude_mask, first_nonfinite):
    """Bits of the largest finite magnitude of a row of bits; -1 if nothing is finite."""
    # 1 more than that; a product in place of a choice, or it takes five times as long
    largest = np.uint32(0)
    for i in range(a.shape[0]):
        magnitude = np.uint32(np.uint32(a[i]) & magnitude_mask)
        is_finite = np.uint32(magnitude < first_nonfinite)
        largest = max(largest, np.uint32((magnitude + np.uint32(1)) * is_finite))
    return np.int64(largest) - 1


@njit(forceinline=True)
def _spacing_at(magnitude, fmt):
    """Spacing of the format at a magnitude, given as its bits: a power of two. NaN for -1."""
    if magnitude < 0:
        return np.nan
    # subnormals are as the first normals
    binade = max(magnitude >> _MANTISSA_BITS[fmt], np.int64(1)) - 1
    return np.int64((binade + _LEAST_EXPONENTS[fmt] - _MANTISSA_BITS[fmt] + 1023) << 52).view(
        np.float64,
    )


@njit(forceinline=True, error_model="numpy")
def row_cell(difference, spacing):
    """Return a difference in spacings, as the bits of a float32: finite, and not 0 unless the
    difference is.
    """
    cell = np.float32(min(difference / spacing, _LARGEST_CELL)).view(np.uint32)
    return cell if cell > 0 or difference == 0.0 else np.uint32(1)


@njit(forceinline=True)
def _differences(a, b, out):
    """Compute |a - b| of a whole block in float32."""
    for i in range(BLOCK):
        out[i] = abs(a[i] - b[i])


@njit(forceinline=True)
def _row_cells(a, b, maxima, spacing, groups, out):
    """Cells of a block's groups in row ULPs out of their largest differences, as bits of
    float32.
    """
    for g in range(groups):
        difference = np.float64(np.uint32(maxima[g]).view(np.float32))
        # the difference may be beyond float32, though the logits are not
        if difference == np.inf:
            difference = 0.0
            for i in range(g * GROUP, (g + 1) * GROUP):
                difference = max(difference, abs(np.float64(a[i]) - np.float64(b[i])))
        out[g] = row_cell(difference, spacing)


@njit(forceinline=True)
def _lane_maxima(values, out):
    """Maxima of every 64th element of a whole block into out[:64]; returns the largest.

    The block is folded in half again and again, so that every loop is long and no vector is reduced
    to a number.
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


@njit(forceinline=True)
def block_sums(ulps, n, fmt):
    """(sum, number that are not 0) of a block's distances."""
    wide = np.uint64(0)
    narrow = np.uint32(0)
    nonzero = np.int32(0)
    if fmt == _FLOAT32:
        for i in range(n):
            wide += np.uint64(ulps[i])
            nonzero = np.int32(nonzero + np.int32(ulps[i] != 0))
        return wide, np.int64(nonzero)
    # sums of a block fit into int32: 2048 * 65535 < 2**31
    for i in range(n):
        narrow = np.uint32(narrow + np.uint32(ulps[i]))
        nonzero = np.int32(nonzero + np.int32(ulps[i] != 0))
    return np.uint64(narrow), np.int64(nonzero)


@njit(forceinline=True)
def _group_maxima(ulps, out):
    """Maxima of groups of 32 of a whole block into out[:64]; neighbours pair by pair, for the same
    reason.
    """
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
    """Keep the K largest in descending order; an equal value that came earlier (a lower id) stays
    in front.
    """
    k = values.shape[0] - 1
    while k > 0 and (ids[k - 1] < 0 or value > values[k - 1]):
        values[k] = values[k - 1]
        ids[k] = ids[k - 1]
        k -= 1
    values[k] = value
    ids[k] = token


@njit(forceinline=True)
def _take_top(values, maxima, highest, start, n, top_values, top_ids, candidates):
    """Candidates of a block into the top k, in the order of their ids, looking only at lanes that
    hold one.
    """
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
def _relative(value, highest):
    """Subtract in a function of its own, so that `_terms` cannot reorder this: large logits would
    cancel.
    """
    return np.float64(value) - highest


@njit(forceinline=True, fastmath={"reassoc", "contract"})
def _terms(a, b, n, a_highest, b_highest, largest):
    """Sum up a block: exp(a), exp(b), exp(a) (a - b), all relative to the maxima, and (a - b)^2.

    Returned with the largest |a - b| so far, as bits. Without a fixed order of summation LLVM
    vectorizes them.
    """
    a_sum = 0.0
    b_sum = 0.0
    weighted = 0.0
    squares = 0.0
    for i in range(n):
        difference = np.float64(a[i]) - np.float64(b[i])
        # in the magnitudes' order; integer maxima vectorize
        magnitude = np.float64(difference).view(np.int64) & 0x7FFFFFFFFFFFFFFF
        largest = magnitude if magnitude > largest else largest
        x = _relative(a[i], a_highest)
        y = _relative(b[i], b_highest)
        mass = exp(x)
        a_sum += mass
        b_sum += exp(y)
        weighted += mass * (x - y)
        squares += difference * difference
    return a_sum, b_sum, weighted, squares, largest


@njit(forceinline=True)
def mask_nonfinite(a, b, ulps, n, is_mismatch):
    """Replace elements of a block that are not finite on both sides by equal ones far below all
    others.

    is_mismatch: set by group. Returns (elements replaced, mismatches, any that is not -inf on both
    sides, KL is undefined).
    """
    masked = 0
    mismatched = 0
    is_odd = False
    is_undefined = False
    is_mismatch[:] = False
    for i in range(n):
        x = np.float64(a[i])
        y = np.float64(b[i])
        if math.isfinite(x) and math.isfinite(y):
            continue
        masked += 1
        if not (x == y or (math.isnan(x) and math.isnan(y))):
            mismatched += 1
            is_mismatch[i // GROUP] = True
        is_odd |= not (x == -np.inf and y == -np.inf)
        is_undefined |= not (x < np.inf and y < np.inf) or (y == -np.inf and x > -np.inf)
        a[i], b[i], ulps[i] = _LOWEST, _LOWEST, 0
    return masked, mismatched, is_odd, is_undefined


@njit
def _scan_side(bits, fmt, a_bits, b_bits, a_values, ulps, top_values, top_ids):
    """Find the top k of a row of any bits; return its largest value and the sum of exponentials
    relative to it.
    """
    highest = -np.inf
    total = 0.0
    top_ids[:] = -1
    top_values[:] = np.nan
    for start in range(0, bits.shape[0], BLOCK):
        n = min(BLOCK, bits.shape[0] - start)
        block = bits[start : start + n]
        load_block(block, block, fmt, a_bits, b_bits, ulps)
        for i in range(n):
            x = np.float64(a_values[i])
            if math.isnan(x):
                total = np.nan
            elif top_ids[-1] < 0 or a_values[i] > top_values[-1]:
                _insert(top_values, top_ids, a_values[i], start + i)
            if x > highest:
                highest, total = x, total * exp(highest - x) + 1.0
            elif x > -np.inf:
                total += exp(x - highest)
    return highest, total


@njit(forceinline=True)
def distance_bin(distance):
    """Index of a distance in a histogram: itself below DENSE, from there on one a power of two."""
    if distance < DENSE:
        return np.int64(distance)
    return (np.float64(distance).view(np.int64) >> 52) - 1023 + DENSE - 16


@njit(forceinline=True)
def _count(ulps, n, histogram):
    """Exact distances into four interleaved tables, so that equal neighbours do not wait for each
    other's store.
    """
    for i in range(0, n - 3, 4):
        histogram[0, ulps[i]] += 1
        histogram[1, ulps[i + 1]] += 1
        histogram[2, ulps[i + 2]] += 1
        histogram[3, ulps[i + 3]] += 1
    for i in range(n - n % 4, n):
        histogram[0, ulps[i]] += 1


@njit(nogil=True, cache=True, error_model="numpy")
def compare_rows(a, b, fmt, outputs, histogram, ulps):
    """Compare rows of bits `a` and `b` [rows, vocab]; fills the outputs: whether rows are
    bit-identical, counts, figures, top values of a and of b, their ids, group_ulps, group_row_ulps.

    counts [rows, 6] int64: neq, max_ulps, sum_ulps, elements finite on both sides,
    nonfinite_mismatch, token of max_ulps. figures [rows, 6] float64: max_abs, sum of squared
    differences, spacing of the format at a's largest finite magnitude (NaN: there is none), KL in
    nats (NaN: undefined), logsumexp of a, of b. group_ulps [rows, ceil(vocab / 32)]: largest
    distance of each group of tokens, all ones if NaN or infinity mismatch. group_row_ulps of the
    same shape, uint32, arriving as zeros: the group's largest difference over that spacing, as the
    bits of a float32, all ones likewise. histogram [4, BINS] int64: elements by bin of their
    distance, to be summed over its first axis. ulps [2048] is scratch: uint32 for float32, uint16
    for narrower formats, whose distances all fit.
    """
    (
        is_bit_identical,
        counts,
        figures,
        a_top_values,
        b_top_values,
        a_top_ids,
        b_top_ids,
        group_ulps,
        group_row_ulps,
    ) = outputs
    rows, vocab = a.shape
    a_values = np.empty(BLOCK, np.float32)
    b_values = np.empty(BLOCK, np.float32)
    a_bits = a_values.view(np.uint32)
    b_bits = b_values.view(np.uint32)
    ulp_maxima = np.empty_like(ulps)
    a_maxima = np.empty(BLOCK // 2, np.float32)
    b_maxima = np.empty(BLOCK // 2, np.float32)
    candidates = np.empty(LANES, np.int32)
    is_mismatch = np.empty(BLOCK // GROUP, np.bool_)
    differences = np.empty(BLOCK, np.float32)
    difference_bits = differences.view(np.uint32)
    difference_maxima = np.empty(BLOCK // 2, np.uint32)

    for row in range(rows):
        nonfinite, differing, spacing = scan_row(a[row], b[row], fmt)
        is_bit_identical[row] = not differing
        a_top_ids[row, :] = -1
        b_top_ids[row, :] = -1
        a_top_values[row, :] = np.nan
        b_top_values[row, :] = np.nan
        neq = np.int64(0)
        total = np.uint64(0)
        highest = np.uint32(0)
        highest_token = 0
        largest = np.int64(0)
        a_sum = 0.0
        b_sum = 0.0
        weighted = 0.0
        squares = 0.0
        a_highest = b_highest = np.float64(_LOWEST)
        masked = 0
        mismatched = 0
        is_odd = False
        is_undefined = False
        for start in range(0, vocab, BLOCK):
            n = min(BLOCK, vocab - start)
            load_block(
                a[row, start : start + n],
                b[row, start : start + n],
                fmt,
                a_bits,
                b_bits,
                ulps,
            )
            groups = (n + GROUP - 1) // GROUP
            # pad the last block with what no maximum can notice
            for i in range(n, BLOCK):
                a_values[i] = _LOWEST
                b_values[i] = _LOWEST
                ulps[i] = 0
            block_mismatched = 0
            if nonfinite:
                block_masked, block_mismatched, block_odd, block_undefined = mask_nonfinite(
                    a_values,
                    b_values,
                    ulps,
                    n,
                    is_mismatch,
                )
                masked += block_masked
                mismatched += block_mismatched
                is_odd |= block_odd
                is_undefined |= block_undefined

            _group_maxima(ulps, ulp_maxima)
            first_group = start // GROUP
            block_ulps = np.uint32(0)
            for g in range(groups):
                m = np.uint32(ulp_maxima[g])
                group_ulps[row, first_group + g] = m
                block_ulps = m if m > block_ulps else block_ulps
            block_total, block_neq = block_sums(ulps, n, fmt)
            if block_neq:
                _differences(a_values, b_values, differences)
                _group_maxima(difference_bits, difference_maxima)
                _row_cells(
                    a_values,
                    b_values,
                    difference_maxima,
                    spacing,
                    groups,
                    group_row_ulps[row, first_group:],
                )
            for g in range(groups if block_mismatched else 0):
                if is_mismatch[g]:
                    group_ulps[row, first_group + g] = ~group_ulps.dtype.type(0)
                    group_row_ulps[row, first_group + g] = np.uint32(0xFFFFFFFF)
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
                    histogram[0, distance_bin(ulps[i])] += 1

            a_block = np.float64(_lane_maxima(a_values, a_maxima))
            b_block = np.float64(_lane_maxima(b_values, b_maxima))
            _take_top(
                a_values,
                a_maxima,
                a_block,
                start,
                n,
                a_top_values[row],
                a_top_ids[row],
                candidates,
            )
            _take_top(
                b_values,
                b_maxima,
                b_block,
                start,
                n,
                b_top_values[row],
                b_top_ids[row],
                candidates,
            )
            # the running maximum moves: rescale what was summed (online softmax, Milakov 2018)
            if a_block > a_highest:
                scale = exp(a_highest - a_block)
                weighted = (weighted - (a_block - a_highest) * a_sum) * scale
                a_sum = a_sum * scale
                a_highest = a_block
            if b_block > b_highest:
                weighted += (b_block - b_highest) * a_sum
                b_sum = b_sum * exp(b_highest - b_block)
                b_highest = b_block
            a_mass, b_mass, weights, gaps, largest = _terms(
                a_values,
                b_values,
                n,
                a_highest,
                b_highest,
                largest,
            )
            a_sum += a_mass
            b_sum += b_mass
            weighted += weights
            squares += gaps

        counts[row, 0] = neq + mismatched
        counts[row, 1] = highest
        counts[row, 2] = total
        counts[row, 3] = vocab - masked
        counts[row, 4] = mismatched
        counts[row, 5] = highest_token
        figures[row, 0] = np.int64(largest).view(np.float64)
        figures[row, 1] = squares
        figures[row, 2] = spacing
        a_log = a_highest + math.log(a_sum)
        b_log = b_highest + math.log(b_sum)
        kl = weighted / a_sum + math.log(b_sum / a_sum)
        if nonfinite:
            histogram[0, 0] -= masked
            if is_odd or min(a_top_values[row, -1], b_top_values[row, -1]) <= _LOWEST:
                scratch = a_bits, b_bits, a_values, ulps
                highest_of_a, total_of_a = _scan_side(
                    a[row],
                    fmt,
                    *scratch,
                    a_top_values[row],
                    a_top_ids[row],
                )
                highest_of_b, total_of_b = _scan_side(
                    b[row],
                    fmt,
                    *scratch,
                    b_top_values[row],
                    b_top_ids[row],
                )
                a_log = highest_of_a + math.log(total_of_a)
                b_log = highest_of_b + math.log(total_of_b)
                kl = weighted / a_sum + (highest_of_b - b_highest) + math.log(total_of_b / a_sum)
            if is_undefined or masked == vocab:
                kl = np.nan
        # a KL is never negative, but a rounded one may be
        if not math.isnan(kl):
            kl = max(0.0, kl) if differing else 0.0
        figures[row, 3] = kl
        figures[row, 4] = a_log
        figures[row, 5] = b_log
