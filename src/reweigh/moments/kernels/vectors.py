"""Three things a processor does that Numba has no word for, written in LLVM's language.

`prefetch` asks for a line of memory some rows before it is needed; the sums of a log lie scattered
over more memory than any cache holds. `add_at` and `add_with_squares` add several numbers that lie
side by side at once: one store instead of several, and the same bits. All are plain LLVM, which
makes of them what the processor at hand can do.
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types
from numba.core.cgutils import ir
from numba.extending import intrinsic

WRITE, KEEP, DATA = 1, 3, 1  # how llvm.prefetch is told that we shall write there, and soon
TOGETHER = 16  # bytes on which the numbers begin, at least


def _address(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    """Of one number of a contiguous array."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [at])


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(_: Any, array: Any, at: Any) -> Any:
    """Ask for the line of memory of array[at], one-dimensional; it may lie outside of the array."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        place = _address(context, builder, signature.args[0], given[0], given[1])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        ask = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        how = [number(value) for value in (WRITE, KEEP, DATA)]
        builder.call(ask, [builder.bitcast(place, byte), *how])
        return context.get_dummy_value()

    return types.void(array, at), generate


def _vector(builder: Any, values: Any) -> Any:
    """Of the numbers of a tuple."""
    numbers = cgutils.unpack_tuple(builder, values)
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
        _add(builder, place, _vector(builder, given[2]))
        return context.get_dummy_value()

    return types.void(array, at, values), generate


@intrinsic  # type: ignore[untyped-decorator]
def add_with_squares(_: Any, array: Any, at: Any, values: Any) -> Any:
    """The same, and their squares to the numbers after these."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        place = _address(context, builder, signature.args[0], given[0], given[1])
        added = _vector(builder, given[2])
        _add(builder, place, added)
        after = builder.gep(place, [ir.IntType(64)(added.type.count)])
        _add(builder, after, builder.fmul(added, added))
        return context.get_dummy_value()

    return types.void(array, at, values), generate
