/* Sums of a step's products on a tile: cut, rounded term by term, plain. */

/* The largest exponents of products first to first + n of the step's `all`. */
static __attribute__((noinline)) void NAME(largest)(const NAME(tile) *t, const EXPONENT *ea, EXPONENT *top,
                                                    int64_t first, int64_t n, int64_t all) {
  enum { VECTORS = PANEL * sizeof(EXPONENT) / 32, ROWS = 4 };
  for (int64_t m = 0; m < t->rows; m += ROWS)
    for (int v = 0; v < VECTORS; v++) {
      EV best[ROWS];
      for (int r = 0; r < ROWS; r++) best[r] = NONE - (EV){0};
      for (int64_t k = first; k < first + n; k++) {
        EV e;
        memcpy(&e, t->eb + k * PANEL + v * (32 / sizeof(EXPONENT)), sizeof e);
        for (int r = 0; r < ROWS; r++) best[r] = MOST(best[r], ea[(m + r) * all + k] + e);
      }
      for (int r = 0; r < ROWS; r++)
        memcpy(top + (m + r) * PANEL + v * (32 / sizeof(EXPONENT)), best + r, 32);
    }
}

INLINE I NAME(top_of)(const EXPONENT *top) {
  NAME(few) e;
  memcpy(&e, top, sizeof e);
  return __builtin_convertvector(e, I);
}

/* VECTORS of a row at once: as many as registers hold. */
enum { NAME(VECTORS) = 4, NAME(WIDTH) = NAME(VECTORS) * L };

/* 2^TRAILING times the unit that the terms of m's row and of these columns are cut to, and the
 * accumulator if it is one of them, both by what multiplies the sum later. */
INLINE V NAME(unit_of)(const NAME(tile) *t, const EXPONENT *top, int64_t m, int64_t column, V *start) {
  const matmul *j = t->j;
  I e = NAME(top_of)(top + m * PANEL + column), lowest = NAME(same)(j->floor);
  *start = (V){0};
  if (j->kind != TWO_STAGE) {
    *start = NAME(get)(t->accumulator + m * PANEL + column);
    I own = NAME(exponents_of)(*start, j->lowest_accumulator);
    if (t->scale_a) {
      const I shift = ((I)(t->scale_a[m] * NAME(get)(t->scale_b + column)) >> TRAILING) - BIAS;
      *start *= (V)NAME(power)(-shift);
      own -= shift;
      lowest -= shift;
    }
    e = NAME(most)(e, own);
  }
  return (V)NAME(power)(NAME(most)(e, lowest) - j->fraction_bits + TRAILING);
}
INLINE void NAME(put_sum)(const NAME(tile) *t, int64_t m, int64_t column, V s, REAL *sum) {
  if (t->scale_a) s *= t->scale_a[m] * NAME(get)(t->scale_b + column);
  NAME(put)(sum + m * PANEL + column, s);
}

/* The sum of the step's products and, of aligned additions, of the accumulator, each cut toward zero
 * to a multiple of a unit u, in the rounding mode toward zero: magnitudes are added to 2^TRAILING u,
 * whose unit in the last place is u; positive and negative ones apart. */
static __attribute__((noinline)) void NAME(add_cut)(const NAME(tile) *t, const REAL *a, const EXPONENT *top,
                                                    REAL *sum, int64_t first, int64_t n, int64_t all) {
  for (int64_t m = 0; m < t->rows; m++)
    for (int64_t w = 0; w < PANEL; w += NAME(WIDTH)) {
      V plus[NAME(VECTORS)], minus[NAME(VECTORS)];
      for (int v = 0; v < NAME(VECTORS); v++) {
        V start;
        const V c = NAME(unit_of)(t, top, m, w + v * L, &start);
        plus[v] = c + (V)((I)start & (start > 0));
        minus[v] = c + (V)((I)-start & (start < 0));
      }
      const REAL *b = t->b + first * 3 * PANEL + w;
      for (int64_t k = first; k < first + n; k++, b += 3 * PANEL) {
        const REAL *x = a + m * all + k;
        INT bits;
        memcpy(&bits, x, sizeof bits);
        const V size = (V)((I)NAME(splat)(*x) & ~MINUS);
        const REAL *from = b + ((ptrdiff_t)(bits >> (8 * sizeof(REAL) - 1)) & PANEL);
        for (int v = 0; v < NAME(VECTORS); v++) {
          plus[v] = NAME(madd)(size, NAME(get)(from + v * L), plus[v]);
          minus[v] = NAME(madd)(size, NAME(get)(from + PANEL + v * L), minus[v]);
        }
      }
      for (int v = 0; v < NAME(VECTORS); v++) NAME(put_sum)(t, m, w + v * L, plus[v] - minus[v], sum);
    }
}

/* The same of terms that are each rounded in the mode at hand, signs and all. */
static __attribute__((noinline)) void NAME(add_rounded)(const NAME(tile) *t, const REAL *a, const EXPONENT *top,
                                                        REAL *sum, int64_t n) {
  for (int64_t m = 0; m < t->rows; m++)
    for (int64_t w = 0; w < PANEL; w += NAME(WIDTH)) {
      V c[NAME(VECTORS)], s[NAME(VECTORS)];
      for (int v = 0; v < NAME(VECTORS); v++) {
        V start;
        c[v] = (REAL)1.5 * NAME(unit_of)(t, top, m, w + v * L, &start);
        s[v] = (start + c[v]) - c[v];
      }
      const REAL *b = t->b + w;
      for (int64_t k = 0; k < n; k++, b += PANEL)
        for (int v = 0; v < NAME(VECTORS); v++)
          s[v] += NAME(madd)(NAME(splat)(a[m * n + k]), NAME(get)(b + v * L), c[v]) - c[v];
      /* A difference of equals, -0 where rounding is down, is +0 here. */
      for (int v = 0; v < NAME(VECTORS); v++) NAME(put_sum)(t, m, w + v * L, (V)((I)s[v] & (s[v] != 0)), sum);
    }
}

/* The sum of n products, in order from zero or, `on`, from the accumulator. It becomes the sum of the
 * step, or is added to the accumulator and rounded to nearest, in integers where these suffice. */
INLINE void NAME(add_plain)(const NAME(tile) *t, const REAL *a, REAL *sum, int64_t n, int64_t all, int how) {
  enum { VECTORS = 2, ROWS = 6 };
  const target f = t->j->result;
  const int signed_zero = t->j->signed_zero, on = how == ON, added = how == ADDED || how == ADDED_IN_BITS;
  REAL *to = added || on ? t->accumulator : sum;
  for (int64_t m = 0; m < t->rows; m += ROWS)
    for (int64_t w = 0; w < PANEL; w += VECTORS * L) {
      V s[ROWS][VECTORS];
      for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
          s[r][v] = on ? NAME(get)(t->accumulator + (m + r) * PANEL + w + v * L) : (V){0};
      const REAL *b = t->b + w, *x = a + m * all;
      for (int r = 0; added && r < ROWS; r++) __builtin_prefetch(to + (m + r) * PANEL + w);
      for (int64_t k = 0; k < n; k++, b += PANEL, x++) {
        V y[VECTORS];
        for (int v = 0; v < VECTORS; v++) y[v] = KEPT_IN_REGISTER(NAME(get)(b + v * L));
        for (int r = 0; r < ROWS; r++) {
          const V factor = NAME(splat)(x[r * all]);
          for (int v = 0; v < VECTORS; v++) s[r][v] = NAME(madd)(factor, y[v], s[r][v]);
        }
      }
      for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) {
          REAL *at = to + (m + r) * PANEL + w + v * L;
          if (added && t->scale_a) s[r][v] *= t->scale_a[m + r] * NAME(get)(t->scale_b + w + v * L);
          V y = s[r][v];
          if (how == ADDED) y = NAME(projected)(NAME(plus)(NAME(get)(at), y, &f), &f, signed_zero);
          if (how == ADDED_IN_BITS) {
            y = NAME(rounded_sum)(NAME(get)(at), y, f.precision);
            y = signed_zero ? y : (V)((I)y & (y != 0));
          }
          NAME(put)(at, y);
        }
    }
}
static __attribute__((noinline)) void NAME(add_on)(const NAME(tile) *t, const REAL *a, int64_t n) {
  NAME(add_plain)(t, a, 0, n, n, ON);
}
static __attribute__((noinline)) void NAME(add_chunk)(const NAME(tile) *t, const REAL *a, int64_t n) {
  NAME(add_plain)(t, a, 0, n, n, ADDED);
}
static __attribute__((noinline)) void NAME(add_chunk_in_bits)(const NAME(tile) *t, const REAL *a, int64_t n) {
  NAME(add_plain)(t, a, 0, n, n, ADDED_IN_BITS);
}
/* n of the `all` products of a step. */
static __attribute__((noinline)) void NAME(add_alone)(const NAME(tile) *t, const REAL *a, REAL *sum, int64_t n,
                                                      int64_t all) {
  NAME(add_plain)(t, a, sum, n, all, ALONE);
}
