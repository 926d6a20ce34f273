/* Vectors of REAL; the tile, and how its operands are packed. */

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
 * positive numbers, each with zeros for the others. Columns beyond the last one repeat it. */
static void NAME(pack_columns)(const NAME(tile) *t, const float *from, int64_t n) {
  const int cut = cuts(t->j->kind);
  const int64_t stride = cut ? 3 * PANEL : PANEL, apart = t->j->ldb, columns = t->columns;
  const INT lowest = t->j->lowest_b;
  REAL *restrict b = t->b;
  for (int64_t c = 0; c < PANEL; c += LANES) {
    const float *rows[LANES];
    for (int64_t i = 0; i < LANES; i++) rows[i] = from + (c + i < columns ? c + i : columns - 1) * apart;
    for (int64_t k = 0; k < n; k += LANES) {
      float block[LANES * LANES];
      transpose(rows, k, n - k, block);
      for (int64_t i = 0; i < LANES && i < n - k; i++)
        for (int64_t l = 0; l < LANES; l++) b[(k + i) * stride + c + l] = block[i * LANES + l];
    }
  }
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
