/* Steps, the tiles they run on, and the rows these lie in. */

/* A step: n products, whose operands are packed. */
static void NAME(add_step)(NAME(tile) *t, const REAL *a, const EXPONENT *ea, int64_t n) {
  const matmul *j = t->j;
  if (j->kind == CHUNKS || j->kind == IN_ORDER) {
    rounds(NEAREST);
    if (j->kind == IN_ORDER) { NAME(add_on)(t, a, n); return; }
    if (j->rounding == NEAREST) {
      const target f = j->result;
      const int in_bits = f.precision <= TRAILING && f.emin == 1 - BIAS && f.max == __builtin_inff();
      if (in_bits) NAME(add_chunk_in_bits)(t, a, n);
      else NAME(add_chunk)(t, a, n);
      return;
    }
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
