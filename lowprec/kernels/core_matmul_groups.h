/* Additions of groups of products, in double. */

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
