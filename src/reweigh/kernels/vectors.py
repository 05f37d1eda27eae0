"""Five things a processor does that Numba has no word for, written in LLVM's language.

`prefetch` loads a line of memory some rows before it is needed; the sums of a log lie scattered
over more memory than any cache holds. `add_at` and `add_worth` add several numbers that lie side by
side at once: one store instead of several, and the same bits; `add_drawn` does so for a row of some
resampled logs. `turn` transposes eight lines of eight numbers in registers. All are plain LLVM,
which compiles them for the processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba.core import cgutils, types
from numba.core.cgutils import ir
from numba.extending import intrinsic

WRITE, KEEP, DATA = 1, 3, 1  # arguments of llvm.prefetch: for writing, keep in the cache, data
TOGETHER = 16  # bytes on which the numbers begin, at least


def _address(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    """Of one number of a contiguous array."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [at])


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(_: Any, array: Any, at: Any) -> Any:
    """Prefetch the line of memory of array[at], one-dimensional; it may lie outside of the
    array."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        place = _address(context, builder, signature.args[0], given[0], given[1])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        ask = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        how = [number(value) for value in (WRITE, KEEP, DATA)]
        builder.call(ask, [builder.bitcast(place, byte), *how])
        return context.get_dummy_value()

    return types.void(array, at), generate


def _line(builder: Any, numbers: Sequence[Any]) -> Any:
    """A vector of these numbers."""
    made = ir.Constant(ir.VectorType(ir.DoubleType(), len(numbers)), ir.Undefined)
    for i, number in enumerate(numbers):
        made = builder.insert_element(made, number, ir.IntType(32)(i))
    return made


def _add(builder: Any, place: Any, added: Any) -> None:
    """Add a vector to the numbers from here on."""
    place = builder.bitcast(place, added.type.as_pointer())
    before = builder.load(place, align=TOGETHER)
    builder.store(builder.fadd(before, added), place, align=TOGETHER)


@intrinsic  # type: ignore[untyped-decorator]
def add_at(_: Any, array: Any, at: Any, values: Any) -> Any:
    """array[at : at + len(values)] += values, of one-dimensional floats; without a check."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        place = _address(context, builder, signature.args[0], given[0], given[1])
        _add(builder, place, _line(builder, cgutils.unpack_tuple(builder, given[2])))
        return context.get_dummy_value()

    return types.void(array, at, values), generate


@intrinsic  # type: ignore[untyped-decorator]
def add_worth(_: Any, sums: Any, at: Any, worth: Any, to: Any, y: Any, r: Any) -> Any:
    """sums[at : at + 4] += r ((1, y, 1, y) + worth[to : to + 4]), and the squares of these numbers
    to the four after; without a check."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        sums, at, worth, to, y, r = given
        one = ir.Constant(ir.DoubleType(), 1.0)
        own = _line(builder, (one, y, one, y))
        place = _address(context, builder, signature.args[2], worth, to)
        there = builder.load(builder.bitcast(place, own.type.as_pointer()), align=TOGETHER)
        added = builder.fmul(_line(builder, (r, r, r, r)), builder.fadd(own, there))
        place = _address(context, builder, signature.args[0], sums, at)
        _add(builder, place, added)
        _add(builder, builder.gep(place, [ir.IntType(64)(4)]), builder.fmul(added, added))
        return context.get_dummy_value()

    return types.void(sums, at, worth, to, y, r), generate


DRAWN = 16  # resampled logs at a time


@intrinsic  # type: ignore[untyped-decorator]
def add_drawn(
    _: Any, weight: Any, s: Any, after: Any, seen: Any, to: Any, counts: Any, k: Any, r: Any,
    y: Any, earned: Any, at: Any,
) -> Any:  # fmt: skip
    """Of DRAWN logs side by side, with c = counts[k:] and w = weight[s:] * (r * c):
    after[to:] += w, seen[to:] += c and earned[at:] += w * y; without a check."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        weight, s, after, seen, to, counts, k, r, y, earned, at = given
        numbers = ir.VectorType(ir.DoubleType(), DRAWN)
        whole = ir.VectorType(ir.IntType(32), DRAWN)

        def place(which: int, array: Any, at: Any, kind: Any) -> Any:
            found = _address(context, builder, signature.args[which], array, at)
            return builder.bitcast(found, kind.as_pointer())

        drawn = ir.VectorType(ir.IntType(8), DRAWN)
        count = builder.load(place(5, counts, k, drawn), align=1)
        many = builder.uitofp(count, numbers)
        own = builder.load(place(0, weight, s, numbers), align=TOGETHER)
        w = builder.fmul(own, builder.fmul(_line(builder, [r] * DRAWN), many))
        _add(builder, place(2, after, to, numbers), w)
        into = place(3, seen, to, whole)
        before = builder.load(into, align=TOGETHER)
        builder.store(builder.add(before, builder.zext(count, whole)), into, align=TOGETHER)
        paid = builder.fmul(w, _line(builder, [y] * DRAWN))
        _add(builder, place(9, earned, at, numbers), paid)
        return context.get_dummy_value()

    return types.void(weight, s, after, seen, to, counts, k, r, y, earned, at), generate


# Eight lines become eight columns by exchanging numbers between lines that are 1, then 2, then 4
# apart: what is taken of both, in the first of them and in the second.
EXCHANGES = (
    (1, (0, 8, 2, 10, 4, 12, 6, 14), (1, 9, 3, 11, 5, 13, 7, 15)),
    (2, (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)),
    (4, (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)),
)


@intrinsic  # type: ignore[untyped-decorator]
def turn(_: Any, values: Any, places: Any, to: Any, starts: Any) -> Any:
    """to[starts[j] + i] = values[places[i] + j] for i and j below 8, of one-dimensional arrays of
    one kind; without a check."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kind = context.get_data_type(signature.args[0].dtype)
        size = context.get_abi_sizeof(kind)
        line = ir.VectorType(kind, 8)

        def pointers(which: int) -> list[Any]:
            found = cgutils.unpack_tuple(builder, given[which + 1])
            array = signature.args[which], given[which]
            return [
                builder.bitcast(_address(context, builder, *array, at), line.as_pointer())
                for at in found
            ]

        def taken(first: Any, second: Any, which: tuple[int, ...]) -> Any:
            number = ir.IntType(32)
            mask = ir.Constant(ir.VectorType(number, 8), [number(place) for place in which])
            return builder.shuffle_vector(first, second, mask)

        lines = [builder.load(pointer, align=size) for pointer in pointers(0)]
        for apart, of_first, of_second in EXCHANGES:
            for i in range(8):
                if not i & apart:
                    both = lines[i], lines[i | apart]
                    lines[i], lines[i | apart] = taken(*both, of_first), taken(*both, of_second)
        for pointer, made in zip(pointers(2), lines, strict=True):
            builder.store(made, pointer, align=size)
        return context.get_dummy_value()

    return types.void(values, places, to, starts), generate
