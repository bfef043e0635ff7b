# mypy: ignore-errors
"""The inner loops of the fixed-order products, as LLVM vectors: every sum has one order, whatever the shape around it.

Two kinds. A *dot* tile multiplies rows by rows, x[R, K] by w[C, K]: each of its R x C sums runs down K in 16 lanes
(lane l takes the terms k with k mod 16 = l; of 16-bit pairs, (k div 2) mod 16 = l), then the lanes are added in one
tree. A *column* tile multiplies x[R, K] by w[K, 16 C]: each sum runs down K one term after another, so that a term that
is zero, wherever it stands, changes nothing. R and C only say how many sums share a register file; no sum sees its
neighbours. Every step is one IEEE operation (a fused multiply-add), so the bits do not depend on the width of the
machine's vectors either. The exception is `vdpbf16ps`, where the machine has it: it adds two exact products of bfloat16
in the order the instruction is built with, and flushes subnormals.

Addresses come as integers: unpacking arrays would take as long as a small product. Compiled kernels are cached by the
time of the file that holds them, kernels.py; change a word there when something here changes.
"""

# ruff: noqa: ARG001 - numba reads the arguments of an intrinsic from its signature

from __future__ import annotations

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 16
_I16, _I32, _I64, _F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_V16 = ir.VectorType(_F32, LANES)
_W16 = ir.VectorType(_I32, LANES)


class _BFloat(ir.Type):
    """The type llvmlite does not have."""

    def _to_string(self):
        return "bfloat"


_B32 = ir.VectorType(_BFloat(), 2 * LANES)

FLOAT32, BFLOAT16, BFLOAT16_PAIRS = 0, 1, 2
"""How operands are read: as they are; widened exactly; by vdpbf16ps."""


_FEATURES = llvm.get_host_cpu_features()
HAS_WIDE_VECTORS = bool(_FEATURES.get("avx512f"))
"""True with 32 registers of 16 lanes. Otherwise a vector takes several, and tiles are made smaller; no sum changes by
that.
"""
HAS_PAIRS = HAS_WIDE_VECTORS and bool(_FEATURES.get("avx512bf16"))
"""True where this machine multiplies pairs of bfloat16 in one instruction."""


def _fma(builder, a, b, c):
    name = "llvm.fma.v16f32"
    function = builder.module.globals.get(name) or ir.Function(builder.module, ir.FunctionType(_V16, [_V16] * 3), name)
    return builder.call(function, [a, b, c])


def _pairs_fma(builder, a, b, c):
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    function = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(_V16, [_V16, _B32, _B32]), name
    )
    return builder.call(function, [c, builder.bitcast(a, _B32), builder.bitcast(b, _B32)])


def _mask(builder, count, width):
    """Lanes below `count` (an i64)."""
    wide = ir.VectorType(_I32, width)
    one = builder.insert_element(ir.Constant(wide, ir.Undefined), builder.trunc(count, _I32), ir.Constant(_I32, 0))
    splat = builder.shuffle_vector(one, one, ir.Constant(wide, [0] * width))
    return builder.icmp_signed("<", ir.Constant(wide, list(range(width))), splat)


def _load(builder, address, element, width, mask=None):
    """A vector from an address (an i64); lanes outside the mask are zero and are not read."""
    vector = ir.VectorType(element, width)
    pointer = builder.inttoptr(address, vector.as_pointer())
    if mask is None:
        return builder.load(pointer, align=element.width // 8 if isinstance(element, ir.IntType) else 4)
    size = 2 if element is _I16 else 4
    name = f"llvm.masked.load.v{width}{'i16' if element is _I16 else 'f32'}.p0"
    kind = ir.FunctionType(vector, [pointer.type, _I32, mask.type, vector])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    zero = ir.Constant(vector, [ir.Constant(element, 0)] * width)
    return builder.call(function, [pointer, ir.Constant(_I32, size), mask, zero])


def _prefetch(builder, address):
    """Prefetch into the second-level cache, to be read."""
    pointer = builder.inttoptr(address, ir.IntType(8).as_pointer())
    name = "llvm.prefetch.p0"
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    builder.call(function, [pointer, ir.Constant(_I32, 0), ir.Constant(_I32, 2), ir.Constant(_I32, 1)])


def _lane_sum(builder, vector):
    """The 16 lanes as one float: halves on halves."""
    width = LANES
    while width > 1:
        width //= 2
        chosen = ir.VectorType(_I32, width)
        low = builder.shuffle_vector(vector, vector, ir.Constant(chosen, list(range(width))))
        high = builder.shuffle_vector(vector, vector, ir.Constant(chosen, list(range(width, 2 * width))))
        vector = builder.fadd(low, high)
    return builder.extract_element(vector, ir.Constant(_I32, 0))


def _four_sums(builder, vectors):
    """Four times `_lane_sum`, in the same tree, as a vector of four: two vectors' halves are added at once."""

    def halves(a, b, width):
        """[a's groups of `width` lanes, b's], each folded to half."""
        half, groups = width // 2, LANES // width
        low = [g * width + n for g in range(groups) for n in range(half)]
        chosen = [*low, *(LANES + n for n in low)]
        first = builder.shuffle_vector(a, b, ir.Constant(_W16, chosen))
        second = builder.shuffle_vector(a, b, ir.Constant(_W16, [n + half for n in chosen]))
        return builder.fadd(first, second)

    a, b, c, d = vectors
    fours = halves(halves(a, b, 16), halves(c, d, 16), 8)  # [a, b, c, d], 4 lanes each
    for distance in (2, 1):
        turned = [n ^ distance for n in range(LANES)]
        fours = builder.fadd(fours, builder.shuffle_vector(fours, fours, ir.Constant(_W16, turned)))
    return builder.shuffle_vector(fours, fours, ir.Constant(ir.VectorType(_I32, 4), [0, 4, 8, 12]))


def _widened(builder, halves):
    """16 bfloat16 (as i16) exactly as float32."""
    wide = builder.shl(builder.zext(halves, _W16), ir.Constant(_W16, [16] * LANES))
    return builder.bitcast(wide, _V16)


def _even_odd(builder, words):
    """32 bfloat16 as two vectors: the even and the odd ones, exactly as float32."""
    even = builder.shl(words, ir.Constant(_W16, [16] * LANES))
    odd = builder.and_(words, ir.Constant(_W16, [-65536] * LANES))
    return builder.bitcast(even, _V16), builder.bitcast(odd, _V16)


def dot_tile(rows, columns, kind):
    """-> intrinsic(x, x_row, w, w_row, length, out, out_row, is_first): addresses, strides of rows in elements, length
    >= 1.

    out[r, c] = (0 if is_first else out[r, c]) + sum over k of x[r, k] w[c, k].
    """
    size = 4 if kind == FLOAT32 else 2
    step = LANES if kind == FLOAT32 else 2 * LANES

    def read(builder, address, mask):
        if kind == FLOAT32:
            return (_load(builder, address, _F32, LANES, mask),)
        words = builder.bitcast(_load(builder, address, _I16, 2 * LANES, mask), _W16)
        return (words,) if kind == BFLOAT16_PAIRS else _even_odd(builder, words)

    def multiply(builder, x_of, w_of, sums, mask):
        w = [read(builder, address, mask) for address in w_of]
        for r in range(rows):
            x = read(builder, x_of[r], mask)
            for c in range(columns):
                number = r * columns + c
                for a, b in zip(x, w[c], strict=True):
                    fma = _pairs_fma if kind == BFLOAT16_PAIRS else _fma
                    sums[number] = fma(builder, a, b, sums[number])
        return sums

    def build(context, builder, signature, arguments):
        x, x_row, w, w_row, length, out, out_row, is_first = arguments
        bytes_of = ir.Constant(_I64, size)

        def addresses(begin, stride, count):
            return [
                builder.add(begin, builder.mul(ir.Constant(_I64, n), builder.mul(stride, bytes_of)))
                for n in range(count)
            ]

        x_of, w_of = addresses(x, x_row, rows), addresses(w, w_row, columns)
        zero = ir.Constant(_V16, [ir.Constant(_F32, 0.0)] * LANES)

        def at(begins, k):
            return [builder.add(begin, builder.mul(k, bytes_of)) for begin in begins]

        # The rows of w that the next tile takes: their first reader would wait for memory at every one of them.
        ahead = builder.mul(ir.Constant(_I64, columns), builder.mul(w_row, bytes_of))

        def forward(k, sums):
            for place in at(w_of, k):
                _prefetch(builder, builder.add(place, ahead))
            return multiply(builder, at(x_of, k), at(w_of, k), sums, None)

        sums, whole = _loop(builder, length, step, [zero] * (rows * columns), forward)
        rest = builder.sub(length, whole)
        has_rest = builder.icmp_signed(">", rest, ir.Constant(_I64, 0))
        before = builder.block
        with builder.if_then(has_rest):
            last = multiply(builder, at(x_of, whole), at(w_of, whole), list(sums), _mask(builder, rest, step))
            inside = builder.block
        merged = []
        for old, new in zip(sums, last, strict=True):
            phi = builder.phi(_V16)
            phi.add_incoming(old, before)
            phi.add_incoming(new, inside)
            merged.append(phi)
        for r in range(rows):
            row = builder.add(out, builder.mul(builder.mul(ir.Constant(_I64, r), out_row), ir.Constant(_I64, 4)))
            own = merged[r * columns : (r + 1) * columns]
            together = 4 if columns % 4 == 0 else 1
            for c in range(0, columns, together):
                found = _four_sums(builder, own[c : c + 4]) if together == 4 else _lane_sum(builder, own[c])
                place = builder.inttoptr(builder.add(row, ir.Constant(_I64, 4 * c)), found.type.as_pointer())
                zero = (
                    ir.Constant(found.type, [ir.Constant(_F32, 0.0)] * 4) if together == 4 else ir.Constant(_F32, 0.0)
                )
                earlier = builder.select(is_first, zero, builder.load(place, align=4))
                builder.store(builder.fadd(earlier, found), place, align=4)
        return context.get_dummy_value()

    def typed(typingctx, x, x_row, w, w_row, length, out, out_row, is_first):
        return types.void(*[types.int64] * 7, types.boolean), build

    return _named(typed, f"dot_tile_{rows}_{columns}_{kind}")


def column_tile(rows, vectors, x_kind, kind, *, is_masked=False):
    """-> intrinsic(x, x_row, w, w_row, length, out, out_row, is_first, columns): as above, w being [length, 16
    vectors].

    x_kind, kind: of x and w, not pairs. is_masked: of the one vector only the first `columns` columns exist. Each sum
    goes on from out[r, c], one term after another.
    """
    x_size, size = (4 if one == FLOAT32 else 2 for one in (x_kind, kind))
    x_element, element = (_F32 if one == FLOAT32 else _I16 for one in (x_kind, kind))

    def build(context, builder, signature, arguments):
        x, x_row, w, w_row, length, out, out_row, is_first, columns = arguments
        bytes_of = ir.Constant(_I64, size)
        mask = _mask(builder, columns, LANES) if is_masked else None

        def out_address(r, v):
            offset = builder.add(builder.mul(ir.Constant(_I64, r), out_row), ir.Constant(_I64, v * LANES))
            return builder.add(out, builder.mul(offset, ir.Constant(_I64, 4)))

        def multiply(k, sums):
            row = builder.add(w, builder.mul(k, builder.mul(w_row, bytes_of)))
            terms = []
            for v in range(vectors):
                read = _load(builder, builder.add(row, ir.Constant(_I64, v * LANES * size)), element, LANES, mask)
                terms.append(read if kind == FLOAT32 else _widened(builder, read))
            for r in range(rows):
                offset = builder.add(builder.mul(ir.Constant(_I64, r), x_row), k)
                address = builder.add(x, builder.mul(offset, ir.Constant(_I64, x_size)))
                one = builder.load(builder.inttoptr(address, x_element.as_pointer()), align=x_size)
                if x_kind != FLOAT32:
                    one = builder.bitcast(builder.shl(builder.zext(one, _I32), ir.Constant(_I32, 16)), _F32)
                single = builder.insert_element(ir.Constant(_V16, ir.Undefined), one, ir.Constant(_I32, 0))
                splat = builder.shuffle_vector(single, single, ir.Constant(_W16, [0] * LANES))
                for v in range(vectors):
                    sums[r * vectors + v] = _fma(builder, splat, terms[v], sums[r * vectors + v])
            return sums

        zero = ir.Constant(_V16, [ir.Constant(_F32, 0.0)] * LANES)
        begin = [
            builder.select(is_first, zero, _load(builder, out_address(r, v), _F32, LANES, mask))
            for r in range(rows)
            for v in range(vectors)
        ]
        sums, _ = _loop(builder, length, 1, begin, multiply)
        for r in range(rows):
            for v in range(vectors):
                pointer = builder.inttoptr(out_address(r, v), _V16.as_pointer())
                total = builder.fadd(sums[r * vectors + v], zero)  # -0 becomes +0, as it would by a zero term more
                if mask is None:
                    builder.store(total, pointer, align=4)
                    continue
                name = "llvm.masked.store.v16f32.p0"
                kind_of = ir.FunctionType(ir.VoidType(), [_V16, pointer.type, _I32, mask.type])
                function = builder.module.globals.get(name) or ir.Function(builder.module, kind_of, name)
                builder.call(function, [total, pointer, ir.Constant(_I32, 4), mask])
        return context.get_dummy_value()

    def typed(typingctx, x, x_row, w, w_row, length, out, out_row, is_first, columns):
        return types.void(*[types.int64] * 7, types.boolean, types.int64), build

    return _named(typed, f"column_tile_{rows}_{vectors}_{x_kind}_{kind}_{int(is_masked)}")


@intrinsic
def fma(typingctx, a, b, c):
    """a * b + c rounded once, of three float32."""

    def build(context, builder, signature, arguments):
        name = "llvm.fma.f32"
        function = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(_F32, [_F32] * 3), name
        )
        return builder.call(function, arguments)

    return types.float32(types.float32, types.float32, types.float32), build


@intrinsic
def power_of_two(typingctx, exponent):
    """2**exponent as float32, for -126 <= exponent <= 127 (int32)."""

    def build(context, builder, signature, arguments):
        return builder.bitcast(
            builder.shl(builder.add(arguments[0], ir.Constant(_I32, 127)), ir.Constant(_I32, 23)), _F32
        )

    return types.float32(types.int32), build


def _scalar(element, numba_type):
    def typed(typingctx, address):
        def build(context, builder, signature, arguments):
            return builder.load(builder.inttoptr(arguments[0], element.as_pointer()), align=4 if element is _F32 else 1)

        return numba_type(types.int64), build

    return intrinsic(typed)


read_float = _scalar(_F32, types.float32)
read_byte = _scalar(ir.IntType(8), types.uint8)


@intrinsic
def write_float(typingctx, address, value):
    """The float32 at an address."""

    def build(context, builder, signature, arguments):
        builder.store(arguments[1], builder.inttoptr(arguments[0], _F32.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), build


def _named(typed, name):
    """An intrinsic with a name of its own in this module, by which numba finds it when it looks a kernel up in its
    cache.

    Known by its contents or a random identity, no process would find what another compiled, and each would add to the
    disk.
    """
    typed.__name__ = typed.__qualname__ = name
    globals()[name] = typed
    tile = intrinsic(typed)
    tile._set_uuid(name)
    return tile


def _loop(builder, length, step, sums, body):
    """sums after k = 0, step, ... below the largest multiple of `step` up to `length`. -> (sums, that multiple)"""
    whole = builder.sub(length, builder.srem(length, ir.Constant(_I64, step)))
    before = builder.block
    head = builder.append_basic_block("sum")
    inside = builder.append_basic_block("sum.inside")
    after = builder.append_basic_block("sum.after")
    builder.branch(head)
    builder.position_at_end(head)
    k = builder.phi(_I64)
    k.add_incoming(ir.Constant(_I64, 0), before)
    phis = []
    for value in sums:
        phi = builder.phi(value.type)
        phi.add_incoming(value, before)
        phis.append(phi)
    builder.cbranch(builder.icmp_signed("<", k, whole), inside, after)
    builder.position_at_end(inside)
    results = body(k, list(phis))
    k.add_incoming(builder.add(k, ir.Constant(_I64, step)), builder.block)
    for phi, value in zip(phis, results, strict=True):
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return phis, whole
