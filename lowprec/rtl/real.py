"""Numbers between the steps of a converter, and float32's operations on them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from amaranth.hdl import C, Cat, Module, Mux, Shape, Signal, Value, signed

from lowprec.spec.format import FloatFormat, floor_log2, pow2

# float32: what every step of a converter is rounded to.
PRECISION, LOWEST, BIAS = 24, -126, 127
EXPONENT = signed(11)


@dataclass(frozen=True)
class Real:
    """(-1)^sign * sig * 2^(exp - 23); sig has 24 bits, the highest set unless the number is zero
    or was not normalised. Of inf, nan and zero sig and exp are anything."""

    sign: Value
    exp: Value
    sig: Value
    zero: Value
    inf: Value
    nan: Value


def named(m: Module, value: Value | int, name: str, shape: Shape | int | None = None) -> Signal:
    """`value` as a wire of that name, for readers of the Verilog."""
    value = Value.cast(value)
    wire = Signal(value.shape() if shape is None else shape, name=name)
    m.d.comb += wire.eq(value)
    return wire


def unpacked(m: Module, x: Value, fmt: FloatFormat, name: str, *, normalise: bool = True) -> Real:
    """The number of a code point of an IEEE-like format (nan "ieee", subnormals), up to float32.

    normalise: subnormals too; without it they keep the lowest exponent and leading zeros.
    """
    trailing_bits = fmt.precision - 1
    trailing, field = x[:trailing_bits], x[trailing_bits : fmt.bits - fmt.signed]
    hidden = field.any()
    special = field.all() if fmt.infinity else C(0, 1)
    sig = Cat(C(0, PRECISION - fmt.precision), trailing, hidden)
    exp = named(m, field - hidden.as_unsigned() + (1 - fmt.bias), f"{name}_exp", EXPONENT)
    zero = ~x[: fmt.bits - fmt.signed].any()
    if normalise:
        exp, sig = normalised(m, exp, sig, name)
    return Real(
        x[-1] if fmt.signed else C(0, 1),
        exp,
        named(m, sig, f"{name}_sig", PRECISION),
        named(m, zero, f"{name}_zero"),
        named(m, special & ~trailing.any(), f"{name}_inf"),
        named(m, special & trailing.any(), f"{name}_nan"),
    )


def normalised(m: Module, exp: Value, sig: Value, name: str) -> tuple[Value, Value]:
    """Leading zeros shifted out."""
    shift = 1 << (len(sig) - 1).bit_length() - 1
    while shift:
        empty = named(m, ~sig[len(sig) - shift :].any(), f"{name}_low{shift}")
        sig = named(m, Mux(empty, sig << shift, sig), f"{name}_sig{shift}", len(sig))
        exp = named(m, exp - Mux(empty, shift, 0), f"{name}_exp{shift}", EXPONENT)
        shift >>= 1
    return exp, sig


def constant(x: Fraction) -> Real:
    """A positive number of at most 24 significant bits, or zero."""
    exp = floor_log2(x) if x else 0
    sig = x * pow2(PRECISION - 1 - exp)
    assert sig.denominator == 1
    flags = [C(0, 1)] * 2
    return Real(C(0, 1), C(exp, EXPONENT), C(int(sig), PRECISION), C(int(not x), 1), *flags)


@dataclass(frozen=True)
class Long:
    """A positive result before its rounding: two bits more than a Real's, the last one sticky."""

    exp: Value
    sig: Value


def quotient(m: Module, x: Real, y: Real, name: str, precision: int = PRECISION) -> Long:
    """x / y of significands in [1, 2), by restoring division: a row per bit, as wide as y's
    `precision`."""
    divisor, spare = y.sig[PRECISION - precision :], PRECISION - precision
    rest = named(m, x.sig[spare:], f"{name}_rest", precision + 1)
    bits = []
    for row in range(PRECISION + 2):
        fits = named(m, rest >= divisor, f"{name}_q{row}")
        left = named(m, Mux(fits, rest - divisor, rest), f"{name}_left{row}", precision)
        following = x.sig[spare - 1 - row] if row < spare else C(0, 1)
        rest = named(m, Cat(following, left), f"{name}_rest{row}", precision + 1)
        bits.append(fits)
    q, sticky = Cat(*reversed(bits)), rest.any()
    # Below 1 the first bit is 0, and the last one counts.
    high = Cat(q[0] | sticky, q[1:])
    low = Cat(sticky, q[:-1])
    exp = named(m, x.exp - y.exp - Mux(q[-1], 0, 1), f"{name}_exp", EXPONENT)
    return Long(exp, named(m, Mux(q[-1], high, low), f"{name}_sig", PRECISION + 2))


def product(m: Module, x: Real, y: Real, name: str) -> Long:
    """x * y of significands in [1, 2)."""
    whole = named(m, x.sig * y.sig, f"{name}_whole", 2 * PRECISION)
    long = Mux(whole[-1], whole, whole << 1)[: 2 * PRECISION]
    kept = PRECISION + 1
    sticky = long[: 2 * PRECISION - kept].any()
    exp = named(m, x.exp + y.exp + whole[-1], f"{name}_exp", EXPONENT)
    return Long(exp, Cat(sticky, long[2 * PRECISION - kept :]))


def rounded(m: Module, x: Long, name: str) -> tuple[Value, Value]:
    """exp and sig to nearest even with unbounded exponent."""
    up = x.sig[1] & (x.sig[0] | x.sig[2])
    sig = named(m, x.sig[2:] + up, f"{name}_rounded", PRECISION + 1)
    carry = sig[-1]
    return (
        named(m, x.exp + carry, f"{name}_exp_rounded", EXPONENT),
        named(m, Mux(carry, sig[1:], sig[:-1]), f"{name}_sig_rounded", PRECISION),
    )


def float32(m: Module, x: Long, name: str) -> Value:
    """The magnitude's code in float32, rounded to nearest even: 31 bits, Inf beyond the range."""
    below = named(m, LOWEST - x.exp, f"{name}_below", EXPONENT)
    most = PRECISION + 2
    shift = named(m, Mux(below > most, most, Mux(below > 0, below, 0)), f"{name}_shift", 5)
    sig, lost = shifted_right(m, x.sig, shift, name)
    up = sig[1] & (sig[0] | lost | sig[2])
    # The leading bit adds one to the field, so that subnormals have field 0.
    field = named(m, Mux(below >= 0, 0, x.exp + (BIAS - 1)), f"{name}_field", EXPONENT)
    code = named(m, (field << (PRECISION - 1)) + sig[2:] + up, f"{name}_code", signed(36))
    infinity = 0xFF << (PRECISION - 1)
    return named(m, Mux(code > infinity, infinity, code), f"{name}_float32", 31)


def shifted_right(m: Module, x: Value, shift: Value, name: str) -> tuple[Value, Value]:
    """x >> shift, and whether a bit that was shifted out is set."""
    lost = Value.cast(C(0, 1))
    for i in range(len(shift)):
        by = 1 << i
        out = x[:by].any() if by <= len(x) else x.any()
        lost = lost | shift[i] & out
        x = named(m, Mux(shift[i], x >> by, x), f"{name}_by{by}", len(x))
    return x, named(m, lost, f"{name}_lost")
