/* Rounding to a format, and what is rounded: accumulators and totals. */

/* h + l for |l| of at most half a unit in the last place of h: h, made odd where l is not zero, so
 * that its rounding to two bits fewer is that of the sum. */
INLINE V NAME(odd)(V h, V l) {
  const I inexact = (V)((I)l & ~MINUS) > 0, even = ((I)h & 1) - 1;
  const I toward = ((I)h ^ (I)l) < 0;
  return (V)((I)h + (inexact & even & (toward | 1)));
}
INLINE V NAME(odd_sum)(V a, V b) {
  const V s = a + b, t = s - a;
  return NAME(odd)(s, (a - (s - t)) + (b - t));
}

/* x as the format has it, in the rounding mode at hand: to a multiple of its unit q by the addition
 * of 2^TRAILING q. That of Inf wraps around to a tiny one, and Inf stays. */
INLINE V NAME(projected)(V x, const target *f, int signed_zero) {
  const I sign = (I)x & MINUS;
  V y = x;
  if (f->precision <= TRAILING) {
    const I e = NAME(most)((I)x & EXPONENT_FIELD, NAME(same)((INT)(f->emin + BIAS) << TRAILING));
    const V c = (V)((e + ((INT)(TRAILING + 1 - f->precision) << TRAILING)) | sign);
    y = (V)(((I)((x + c) - c) & ~MINUS) | sign);
  }
  if (f->max < __builtin_inff()) {
    const I over = (V)((I)y & ~MINUS) > (REAL)f->max;
    y = (V)NAME(pick)(over, EXPONENT_FIELD | sign, (I)y);
  }
  return signed_zero ? y : (V)((I)y & (y != 0));
}

/* a + b to nearest even, in a format that has the exponents of REAL and that no sum overflows: in
 * integers half a unit is added, or one bit less. At a tie the last bit kept decides, unless s itself
 * is inexact: then what it lacks. */
INLINE V NAME(rounded_sum)(V a, V b, int precision) {
  const int dropped = TRAILING + 1 - precision, top = 8 * (int)sizeof(INT) - 1;
  const V s = a + b, t = s - a, minus_rest = ((s - t) - a) + (t - b);
  const I odd = (I)s << (top - dropped), away = (I)s ^ (I)minus_rest; /* by their sign bits */
  const I more = NAME(pick)(minus_rest != 0, away, odd) >> top;
  return (V)(((I)s + (((INT)1 << (dropped - 1)) - 1) - more) & -((INT)1 << dropped));
}

/* a + b, as exact as its rounding to f needs. */
INLINE V NAME(plus)(V a, V b, const target *f) { return f->precision > TRAILING ? a + b : NAME(odd_sum)(a, b); }

static __attribute__((noinline)) void NAME(add_start)(const NAME(tile) *t) {
  for (int64_t i = 0; i < t->rows * PANEL; i += L)
    NAME(put)(t->sum + i, NAME(plus)(NAME(get)(t->accumulator + i), NAME(get)(t->sum + i), &t->j->result));
}

/* The sums become accumulators. One that is Inf stays it: products are finite. */
static __attribute__((noinline)) void NAME(finish)(const NAME(tile) *t) {
  const matmul j = *t->j;
  for (int64_t i = 0; i < t->rows * PANEL; i += L) {
    const V before = NAME(get)(t->accumulator + i);
    const V y = NAME(projected)(NAME(get)(t->sum + i), &j.result, j.signed_zero);
    const I stays = ((I)before & EXPONENT_FIELD) == EXPONENT_FIELD;
    NAME(put)(t->accumulator + i, (V)NAME(pick)(stays, (I)before, (I)y));
  }
}

/* The accumulators, times scales, are added to the totals, with one rounding to nearest even. */
static __attribute__((noinline)) void NAME(promote)(const NAME(tile) *t) {
  const target f = t->j->promotion;
  for (int64_t m = 0; m < t->rows; m++)
    for (int64_t c = 0; c < PANEL; c += L) {
      REAL *at = t->accumulator + m * PANEL + c, *total = t->total + m * PANEL + c;
      V x = NAME(get)(at), y = NAME(get)(total);
      if (t->scale_a) {
        const V s = t->scale_a[m] * NAME(get)(t->scale_b + c);
        /* Scales are multiplied in float32. */
        const V rounded = __builtin_convertvector(__builtin_convertvector(s, NAME(floats)), V);
        if (f.precision > TRAILING) x = NAME(fused)(x, rounded, y);
        else x = NAME(projected)(NAME(odd_sum)(x * rounded, y), &f, 1);
      } else {
        x = NAME(projected)(NAME(plus)(x, y, &f), &f, 1);
      }
      NAME(put)(total, x);
      NAME(put)(at, (V){0});
    }
}
