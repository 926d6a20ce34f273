/* The steps of a matmul in one type of numbers; included once for each, see core_matmul.h. REAL,
 * INT of its size, EXPONENT of a quarter of it, TRAILING bits of its significand. */

#define L (32 / (int)sizeof(REAL)) /* lanes */
#define V NAME(vector)
#define I NAME(integers)
#define EV NAME(exponents)
typedef REAL V __attribute__((vector_size(32)));
typedef INT I __attribute__((vector_size(32)));
typedef EXPONENT EV __attribute__((vector_size(32)));
typedef EXPONENT NAME(few) __attribute__((vector_size(L * sizeof(EXPONENT))));
typedef float NAME(floats) __attribute__((vector_size(4 * L)));

#define BIAS ((1 << (8 * (int)sizeof(REAL) - TRAILING - 2)) - 1)
#define MINUS ((INT)1 << (8 * sizeof(REAL) - 1))
#define EXPONENT_FIELD (~MINUS >> TRAILING << TRAILING)
#if !defined(MOST)
#define MOST(a, b) (((a) & ((a) > (b))) | ((b) & ~((a) > (b))))
#endif

INLINE V NAME(get)(const REAL *p) { V v; memcpy(&v, p, sizeof v); return v; }
INLINE void NAME(put)(REAL *p, V v) { memcpy(p, &v, sizeof v); }
INLINE V NAME(splat)(REAL x) { return x - (V){0}; }
INLINE I NAME(same)(INT x) { return x - (I){0}; }
INLINE I NAME(pick)(I mask, I yes, I no) { return (I)either((vi)mask, (vi)yes, (vi)no); }
INLINE I NAME(most)(I a, I b) {
  return sizeof(INT) == 4 ? (I)larger((vi)a, (vi)b) : NAME(pick)(a > b, a, b);
}
INLINE I NAME(power)(I e) { return (e + BIAS) << TRAILING; } /* the bits of 2^e */

/* a * b + c with one rounding. */
INLINE V NAME(fused)(V a, V b, V c) {
#if defined(__FMA__)
  return (V)FUSED(a, b, c);
#else
  for (int i = 0; i < L; i++) c[i] = sizeof(REAL) == 4 ? __builtin_fmaf(a[i], b[i], c[i]) : __builtin_fma(a[i], b[i], c[i]);
  return c;
#endif
}

/* a * b + c of products that are exact, so that a fused operation changes nothing. */
INLINE V NAME(madd)(V a, V b, V c) {
#if defined(__FMA__)
  return NAME(fused)(a, b, c);
#else
  return a * b + c;
#endif
}

/* The exponent of a finite number that is not zero, at least `lowest`. */
INLINE INT NAME(exponent)(REAL x, INT lowest) {
  INT bits;
  memcpy(&bits, &x, sizeof bits);
  const INT e = ((bits & ~MINUS) >> TRAILING) - BIAS;
  return e > lowest ? e : lowest;
}
INLINE I NAME(exponents_of)(V x, INT lowest) {
  const I e = (((I)x & ~MINUS) >> TRAILING) - BIAS;
  return NAME(pick)(x == 0, NAME(same)(NOTHING), NAME(most)(e, NAME(same)(lowest)));
}

typedef struct {
  const matmul *j;
  int64_t rows, columns;   /* of the tile, PANEL at most */
  REAL *a, *b;             /* by steps: rows x n, and n x 3 PANEL or n x PANEL */
  EXPONENT *ea, *eb, *top; /* exponents; the products' largest, rows x PANEL for each group */
  REAL *accumulator, *sum, *total; /* rows x PANEL, sum for each group */
  const REAL *scale_a, *scale_b;   /* of the step, or null */
  REAL *row_scales, *column_scales; /* where they lie, for each group */
} NAME(tile);

/* Exponents of n numbers; NONE of zeros. */
INLINE void NAME(put_exponents)(const REAL *restrict x, EXPONENT *restrict e, int64_t n, INT lowest) {
  for (int64_t i = 0; i < n; i++) e[i] = (EXPONENT)(x[i] == 0 ? NONE : NAME(exponent)(x[i], lowest));
}

/* Rows of a step's operand, and zeros up to `most` of them. */
static void NAME(pack_rows)(const matmul *j, const float *from, int64_t rows, int64_t most, int64_t n, REAL *a,
                            EXPONENT *ea) {
  for (int64_t m = 0; m < most; m++, from += j->lda)
    for (int64_t k = 0; k < n; k++) a[m * n + k] = m < rows ? from[k] : 0;
  if (cuts(j->kind) || aligns(j->kind)) NAME(put_exponents)(a, ea, most * n, j->lowest_a);
}

/* Columns of a step's operand, k by k. For cut sums magnitudes of positive, negative and again of
 * positive numbers, each with zeros for the others. */
static void NAME(pack_columns)(const NAME(tile) *t, const float *from, int64_t n) {
  enum { GROUP = 8 }; /* rows a power of two apart share a few lines of the cache */
  const int cut = cuts(t->j->kind);
  const int64_t stride = cut ? 3 * PANEL : PANEL, apart = t->j->ldb, columns = t->columns;
  const INT lowest = t->j->lowest_b;
  REAL *restrict b = t->b;
  for (int64_t c = 0; c < PANEL; c += GROUP)
    for (int64_t k = 0; k < n; k++)
      for (int64_t i = c; i < c + GROUP; i++) b[k * stride + i] = i < columns ? from[i * apart + k] : 0;
  if (aligns(t->j->kind)) NAME(put_exponents)(b, t->eb, n * PANEL, lowest);
  for (int64_t k = 0; cut && k < n; k++) {
    REAL *restrict row = b + k * stride;
    NAME(put_exponents)(row, t->eb + k * PANEL, PANEL, lowest);
    for (int64_t c = 0; c < PANEL; c++) {
      const REAL x = row[c];
      row[PANEL + c] = x < 0 ? -x : 0;
      row[c] = row[2 * PANEL + c] = x > 0 ? x : 0;
    }
  }
}

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
 * of 2^TRAILING q. */
INLINE V NAME(projected)(V x, const target *f, int signed_zero, int may_be_infinite) {
  const I sign = (I)x & MINUS;
  V y = x;
  if (f->precision <= TRAILING) {
    const I lowest = NAME(same)((INT)(f->emin + BIAS) << TRAILING);
    I e = NAME(most)((I)x & EXPONENT_FIELD, lowest);
    if (may_be_infinite) e = NAME(pick)(e == EXPONENT_FIELD, lowest, e);
    const V c = (V)((e + ((INT)(TRAILING + 1 - f->precision) << TRAILING)) | sign);
    y = (V)(((I)((x + c) - c) & ~MINUS) | sign);
  }
  if (f->max < __builtin_inff()) {
    const I over = (V)((I)y & ~MINUS) > (REAL)f->max;
    y = (V)NAME(pick)(over, EXPONENT_FIELD | sign, (I)y);
  }
  return signed_zero ? y : (V)((I)y & (y != 0));
}

/* a + b, as exact as its rounding to f needs. */
INLINE V NAME(plus)(V a, V b, const target *f) { return f->precision > TRAILING ? a + b : NAME(odd_sum)(a, b); }

/* The sum of n products, in order from zero or `on` from the accumulator. It becomes the sum of the
 * step, or is `added` to the accumulator and rounded to nearest. */
INLINE void NAME(add_plain)(const NAME(tile) *t, const REAL *a, REAL *sum, int64_t n, int64_t all, int on, int added) {
  enum { VECTORS = 2, ROWS = 6 };
  const target f = t->j->result;
  const int signed_zero = t->j->signed_zero;
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
          if (added) s[r][v] = NAME(projected)(NAME(plus)(NAME(get)(at), s[r][v], &f), &f, signed_zero, sizeof(REAL) == 8);
          NAME(put)(at, s[r][v]);
        }
    }
}
static __attribute__((noinline)) void NAME(add_on)(const NAME(tile) *t, const REAL *a, int64_t n) {
  NAME(add_plain)(t, a, 0, n, n, 1, 0);
}
static __attribute__((noinline)) void NAME(add_chunk)(const NAME(tile) *t, const REAL *a, int64_t n) {
  NAME(add_plain)(t, a, 0, n, n, 0, 1);
}
/* n of the `all` products of a step. */
static __attribute__((noinline)) void NAME(add_alone)(const NAME(tile) *t, const REAL *a, REAL *sum, int64_t n,
                                                      int64_t all) {
  NAME(add_plain)(t, a, sum, n, all, 0, 0);
}

static __attribute__((noinline)) void NAME(add_start)(const NAME(tile) *t) {
  for (int64_t i = 0; i < t->rows * PANEL; i += L)
    NAME(put)(t->sum + i, NAME(plus)(NAME(get)(t->accumulator + i), NAME(get)(t->sum + i), &t->j->result));
}

/* The sums become accumulators. One that is Inf stays it: products are finite. */
static __attribute__((noinline)) void NAME(finish)(const NAME(tile) *t) {
  const matmul j = *t->j;
  for (int64_t i = 0; i < t->rows * PANEL; i += L) {
    const V before = NAME(get)(t->accumulator + i);
    const V y = NAME(projected)(NAME(get)(t->sum + i), &j.result, j.signed_zero, 0);
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
        else x = NAME(projected)(NAME(odd_sum)(x * rounded, y), &f, 1, 1);
      } else {
        x = NAME(projected)(NAME(plus)(x, y, &f), &f, 1, 1);
      }
      NAME(put)(total, x);
      NAME(put)(at, (V){0});
    }
}

#if defined(WIDE)
INLINE vector_double whole(vector_double x) {
#if defined(__AVX__)
  return (vector_double)_mm256_floor_pd((__m256d)x);
#else
  for (int i = 0; i < L; i++) x[i] = __builtin_floor(x[i]);
  return x;
#endif
}
INLINE vector_double cut_down(vector_double x, integers_double unit) { /* in units of 2^unit */
  return whole(x * (vector_double)power_double(-unit));
}

/* The groups' sums and the accumulator, as a two-stage addition has it, before the last rounding. */
static __attribute__((noinline)) void join_stages(const tile_double *t) {
  const matmul j = *t->j;
  const int64_t plane = t->rows * PANEL;
  for (int64_t i = 0; i < plane; i += L) {
    const V start = NAME(get)(t->accumulator + i);
    const I floor = NAME(same)(j.floor);
    I top = NAME(most)(NAME(top_of)(t->top + i), floor);
    if (j.groups == 2) top = NAME(most)(top, NAME(top_of)(t->top + plane + i));
    const I own = NAME(most)(NAME(exponents_of)(start, j.lowest_accumulator), NAME(same)(j.lowest_accumulator));
    const I largest = NAME(most)(top, own);
    V sum = cut_down(NAME(get)(t->sum + i), top - j.fraction_bits);
    if (j.groups == 2) sum += cut_down(NAME(get)(t->sum + plane + i), top - j.fraction_bits);
    sum = whole(sum * (V)NAME(power)(top - largest + (j.dot_bits - j.fraction_bits)));
    V kept = cut_down(start, largest - j.fraction_bits);
    if (j.groups == 2) kept = (V)((I)kept & (own >= largest - j.fraction_bits - 1));
    sum += kept * (REAL)((INT)1 << (j.dot_bits - j.fraction_bits));
    const I unit = largest - j.dot_bits;
    const I e = NAME(most)(NAME(exponents_of)(sum, -BIAS) + unit, NAME(same)(j.lowest_accumulator));
    sum = cut_down(sum, e - j.sum_bits - unit) * (V)NAME(power)(e - j.sum_bits);
    NAME(put)(t->sum + i, sum);
  }
}

/* Terms that are the groups' sums times their scales: these and the accumulator are cut toward zero
 * at fraction_bits below the largest exponent, of scales alone, and added; in that rounding mode. */
static __attribute__((noinline)) void join_groups(const tile_double *t, int groups) {
  const matmul j = *t->j;
  const int64_t plane = t->rows * PANEL;
  for (int64_t i = 0; i < plane; i += L) {
    const V start = NAME(get)(t->accumulator + i);
    I e = NAME(most)(NAME(exponents_of)(start, j.lowest_accumulator), NAME(same)(j.floor));
    V terms[GROUPS + 1] = {0};
    for (int g = 0; g < groups; g++) {
      const V a = NAME(splat)(t->row_scales[g * t->rows + i / PANEL]), b = NAME(get)(t->column_scales + g * PANEL + i % PANEL);
      const I of_scales = NAME(exponents_of)(a, j.lowest_scale) + NAME(exponents_of)(b, j.lowest_scale);
      const I counts = NAME(top_of)(t->top + g * plane + i) >= j.lowest_a + j.lowest_b;
      e = NAME(most)(e, NAME(pick)(counts, of_scales, e));
      terms[g] = NAME(get)(t->sum + g * plane + i) * (a * b);
    }
    terms[groups] = start;
    const I unit = NAME(power)(e - j.fraction_bits + TRAILING);
    V sum = {0};
    for (int g = 0; g <= groups; g++) {
      const V c = (V)(unit | ((I)terms[g] & MINUS));
      sum += (terms[g] + c) - c;
    }
    NAME(put)(t->sum + i, sum);
  }
}

static void add_groups(tile_double *t, const double *a, const int16_t *ea, int64_t n) {
  const matmul *j = t->j;
  double *b = t->b;
  int groups = 0;
  rounds(NEAREST);
  for (int64_t first = 0; first < n; first += j->group, groups++) {
    const int64_t count = n - first < j->group ? n - first : j->group, plane = groups * t->rows * PANEL;
    t->b = b + first * PANEL;
    NAME(largest)(t, ea, t->top + plane, first, count, n);
    NAME(add_alone)(t, a + first, t->sum + plane, count, n);
  }
  t->b = b;
  rounds(TOWARD_ZERO);
  join_groups(t, groups);
}
#endif

/* A step: n products, whose operands are packed. */
static void NAME(add_step)(NAME(tile) *t, const REAL *a, const EXPONENT *ea, int64_t n) {
  const matmul *j = t->j;
  if (j->kind == CHUNKS || j->kind == IN_ORDER) {
    rounds(NEAREST);
    if (j->kind == IN_ORDER) { NAME(add_on)(t, a, n); return; }
    if (j->rounding == NEAREST) { NAME(add_chunk)(t, a, n); return; }
    NAME(add_alone)(t, a, t->sum, n, n);
    NAME(add_start)(t);
  } else if (j->kind == ROUNDED) {
    NAME(largest)(t, ea, t->top, 0, n, n);
    rounds(j->term_rounding);
    NAME(add_rounded)(t, a, t->top, t->sum, n);
#if defined(WIDE)
  } else if (j->kind == GROUPED) {
    add_groups(t, a, ea, n);
#endif
  } else {
    const int64_t first = j->groups == 2 ? (n + 1) / 2 : n, plane = t->rows * PANEL;
    rounds(TOWARD_ZERO);
    for (int g = 0; g < j->groups; g++) {
      const int64_t from = g ? first : 0, count = g ? n - first : first;
      NAME(largest)(t, ea, t->top + g * plane, from, count, n);
      NAME(add_cut)(t, a, t->top + g * plane, t->sum + g * plane, from, count, n);
    }
#if defined(WIDE)
    if (j->kind == TWO_STAGE) join_stages(t);
#endif
  }
  rounds(j->rounding);
  NAME(finish)(t);
}

/* The scales of block i of so many rows. */
static void NAME(get_scales)(const float *from, int64_t apart, int64_t i, int64_t rows, int64_t most, REAL *to) {
  for (int64_t m = 0; m < most; m++) to[m] = m < rows ? from[m * apart + i] : 1;
}

/* Products k0 to k1 of a tile, whose left operand is packed; b begins at its columns. */
static void NAME(run_steps)(NAME(tile) *t, const float *b, int64_t m, int64_t n, int64_t rows, int64_t k0, int64_t k1) {
  const matmul *j = t->j;
  for (int64_t k = k0; k < k1; k += j->step) {
    const int64_t count = k1 - k < j->step ? k1 - k : j->step, end = k + count;
    const int promotes = j->interval && (end % j->interval == 0 || end == j->k);
    NAME(pack_columns)(t, b + k, count);
    const int64_t apart = j->kind == GROUPED ? j->group : count; /* products of one scale */
    for (int64_t i = 0; j->scale_a && (j->inside || promotes) && i * apart < count; i++) {
      const int64_t at = (k + i * apart) / j->block;
      NAME(get_scales)(j->scale_a + m * j->lds_a, j->lds_a, at, rows, t->rows, t->row_scales + i * t->rows);
      NAME(get_scales)(j->scale_b + n * j->lds_b, j->lds_b, at, t->columns, PANEL, t->column_scales + i * PANEL);
    }
    t->scale_b = t->column_scales;
    t->scale_a = j->scale_a && j->inside ? t->row_scales : 0;
    NAME(add_step)(t, t->a + (k - k0) * t->rows, t->ea + (k - k0) * t->rows, count);
    t->scale_a = j->scale_a && !j->inside ? t->row_scales : 0;
    rounds(NEAREST);
    if (promotes) NAME(promote)(t);
  }
}

/* Rows m to m + rows: the left operand is packed `deep` products at a time, for all tiles. */
static void NAME(run_rows)(NAME(tile) *t, int64_t m, int64_t rows, int64_t n0, int64_t n1, REAL *accumulators) {
  const matmul *j = t->j;
  const int64_t plane = t->rows * PANEL, tiles = (n1 - n0 + PANEL - 1) / PANEL;
  memset(accumulators, 0, (size_t)(2 * tiles * plane) * sizeof(REAL));
  for (int64_t k = 0; k < j->k; k += j->deep) {
    const int64_t end = j->k - k < j->deep ? j->k : k + j->deep;
    for (int64_t i = k; i < end; i += j->step)
      NAME(pack_rows)(j, j->a + m * j->lda + i, rows, t->rows, end - i < j->step ? end - i : j->step,
                      t->a + (i - k) * t->rows, t->ea + (i - k) * t->rows);
    for (int64_t n = n0; n < n1; n += PANEL) {
      t->columns = n1 - n < PANEL ? n1 - n : PANEL;
      t->accumulator = accumulators + (n - n0) / PANEL * 2 * plane;
      t->total = t->accumulator + plane;
      NAME(run_steps)(t, j->b + n * j->ldb, m, n, rows, k, end);
    }
  }
  const REAL *from = accumulators + (j->interval ? plane : 0);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t n = n0; n < n1; n++)
      j->d[(m + i) * j->ldd + n] = (float)from[(n - n0) / PANEL * 2 * plane + i * PANEL + (n - n0) % PANEL];
}

/* Nonzero without memory. */
static int32_t NAME(run)(const matmul *j, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  const int64_t most = (j->rows + PADDED - 1) / PADDED * PADDED, plane = most * PANEL;
  const int64_t tiles = (n1 - n0 + PANEL - 1) / PANEL, sums = plane * (2 * tiles + GROUPS);
  const int64_t reals = most * j->deep + 3 * PANEL * j->step + GROUPS * (most + PANEL) + sums;
  const int64_t small = most * j->deep + PANEL * j->step + GROUPS * plane;
  REAL *a = malloc((size_t)reals * sizeof(REAL) + (size_t)small * sizeof(EXPONENT));
  if (!a) return 1;
  REAL *b = a + most * j->deep, *scales = b + 3 * PANEL * j->step, *sum = scales + GROUPS * (most + PANEL);
  EXPONENT *ea = (EXPONENT *)(a + reals), *eb = ea + most * j->deep;
  NAME(tile) t = {.j = j, .a = a, .b = b, .ea = ea, .eb = eb, .top = eb + PANEL * j->step, .sum = sum, .row_scales = scales,
                  .column_scales = scales + GROUPS * most};
  for (int64_t m = m0; m < m1; m += most) {
    const int64_t rows = m1 - m < most ? m1 - m : most;
    t.rows = (rows + PADDED - 1) / PADDED * PADDED;
    NAME(run_rows)(&t, m, rows, n0, n1, sum + GROUPS * plane);
  }
  free(a);
  return 0;
}

#undef L
#undef V
#undef I
#undef EV
#undef BIAS
#undef MINUS
#undef EXPONENT_FIELD
#undef REAL
#undef INT
#undef TRAILING
#undef EXPONENT
#undef NONE
#undef MOST
#undef FUSED
