"""Numbers between the steps of a converter, and float32's operations on them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from amaranth.hdl import C, Cat, Module, Mux, Shape, Signal, Value, signed

from lowprec.spec.catalogue import load_format
from lowprec.spec.format import FloatFormat, IntFormat, floor_log2, pow2

# float32: what every step of a converter is rounded to.
PRECISION, LOWEST, BIAS = 24, -126, 127
EXPONENT = signed(11)


@dataclass(frozen=True)
class Real:
    """(-1)^sign * sig * 2^(exp - bits + 1), with sig of 24 bits, or more where they are said to be,
    the highest set unless the number is zero or was not normalised. Of inf, nan and zero sig and
    exp are anything."""

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


def float32_number(m: Module, code: Value, name: str) -> Real:
    """The number of a code of float32."""
    fmt = load_format("float32")
    assert isinstance(fmt, FloatFormat)
    return unpacked(m, code, fmt, name)


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
    """x * y of significands in [1, 2), of as many bits as x has."""
    precision, bits = len(x.sig), len(x.sig) + len(y.sig)
    whole = named(m, x.sig * y.sig, f"{name}_whole", bits)
    long = Mux(whole[-1], whole, whole << 1)[:bits]
    kept = precision + 1
    sticky = long[: bits - kept].any()
    exp = named(m, x.exp + y.exp + whole[-1], f"{name}_exp", EXPONENT)
    return Long(exp, Cat(sticky, long[bits - kept :]))


# The exponent that zero counts as where exponents are compared: below all others.
OF_ZERO = -600


def added(
    m: Module, x: Real, y: Real, name: str, precision: int = PRECISION, highest: int = BIAS
) -> Real:
    """x + y to nearest even, of `precision` bits, Inf beyond the exponent `highest`."""
    exps = [Mux(n.zero, OF_ZERO, n.exp) for n in (x, y)]
    sigs = [Mux(n.zero, 0, n.sig) for n in (x, y)]
    swap = (exps[1] > exps[0]) | (exps[1] == exps[0]) & (sigs[1] > sigs[0])
    swap = named(m, swap, f"{name}_swap")
    large = named(m, Mux(swap, sigs[1], sigs[0]), f"{name}_large", len(x.sig))
    small = named(m, Mux(swap, sigs[0], sigs[1]), f"{name}_small", len(x.sig))
    exp = named(m, Mux(swap, exps[1], exps[0]), f"{name}_larger", EXPONENT)
    apart = Mux(swap, exps[1] - exps[0], exps[0] - exps[1])
    # With three bits behind those kept, what is further away is sticky.
    width = max(precision + 3, len(x.sig) + 3)
    most = width + 1
    by = named(m, Mux(apart > most, most, apart), f"{name}_apart", most.bit_length())
    moved, lost = shifted_right(m, Cat(C(0, width - len(small)), small), by, name)
    minus = named(m, x.sign ^ y.sign, f"{name}_minus")
    first, second = Cat(C(0, width - len(large)), large), Cat(moved[0] | lost, moved[1:])
    total = named(m, Mux(minus, first - second, first + second), f"{name}_total", width + 1)
    found, sig = normalised(m, named(m, exp + 1, f"{name}_top", EXPONENT), total, name)
    spare = len(sig) - (precision + 2)
    long = Long(found, Cat(sig[: spare + 1].any(), sig[spare + 1 :]))
    found, sig = rounded(m, long, name)
    sign = Mux(swap, y.sign, x.sign)
    inf, nan = x.inf | y.inf, x.nan | y.nan | x.inf & y.inf & minus
    sign = Mux(x.inf, x.sign, Mux(y.inf, y.sign, sign))
    zero = named(m, ~total.any() & ~inf, f"{name}_zero")
    sign = Mux(zero, x.sign & y.sign, sign)
    return Real(sign, found, sig, zero, inf | (found > highest) & ~zero, nan)


def integer(m: Module, code: Value, fmt: IntFormat, name: str) -> Real:
    """An integer of at most 24 bits."""
    value = code.as_signed() if fmt.signed else code
    sign = named(m, value < 0, f"{name}_sign")
    size = named(m, Mux(sign, -value, value), f"{name}_size", fmt.bits)
    exp = C(fmt.bits - 1 + fmt.exponent, EXPONENT)
    exp, sig = normalised(m, exp, Cat(C(0, PRECISION - fmt.bits), size), name)
    return Real(sign, exp, sig, ~size.any(), C(0, 1), C(0, 1))


def rounded(m: Module, x: Long, name: str) -> tuple[Value, Value]:
    """exp and sig to nearest even with unbounded exponent."""
    up, precision = x.sig[1] & (x.sig[0] | x.sig[2]), len(x.sig) - 2
    sig = named(m, x.sig[2:] + up, f"{name}_rounded", precision + 1)
    carry = sig[-1]
    return (
        named(m, x.exp + carry, f"{name}_exp_rounded", EXPONENT),
        named(m, Mux(carry, sig[1:], sig[:-1]), f"{name}_sig_rounded", precision),
    )


INFINITY = 0xFF << (PRECISION - 1)


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
    return named(m, Mux(code > INFINITY, INFINITY, code), f"{name}_float32", 31)


def shifted_right(m: Module, x: Value, shift: Value, name: str) -> tuple[Value, Value]:
    """x >> shift, and whether a bit that was shifted out is set."""
    lost = Value.cast(C(0, 1))
    for i in range(len(shift)):
        by = 1 << i
        out = x[:by].any() if by <= len(x) else x.any()
        lost = lost | shift[i] & out
        x = named(m, Mux(shift[i], x >> by, x), f"{name}_by{by}", len(x))
    return x, named(m, lost, f"{name}_lost")
