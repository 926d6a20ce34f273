/* Elements with scales along other axes than the last. */

/* Columns side by side: as many as make long runs of memory, or as few as can be kept. */
enum { COLUMNS = 4096, KEPT_COLUMNS = 2048, KEPT = 1 << 15, EARLY = 8 };

/* One block in each of n columns, whose rows lie `inner` apart. Kept elements are read once: rows a
 * power of two apart would drive each other out of the cache. Those are of whole vectors. */
INLINE void tile(const job *pj, state *pz, how h, int64_t at, int64_t block, int64_t rows, int64_t inner,
                 int64_t n, int keeps) {
  const job j = *pj; /* all in registers, which no store can change */
  const grid g = *j.onto;
  const code c = h.sink == CODES ? *j.code : (code){0};
  state z = *pz;
  const rule r = *j.scale;
  const float *x = j.x + at;
  float kept[KEPT], s[COLUMNS], by[COLUMNS];
  vi amax[COLUMNS / LANES];
  memset(amax, 0, (size_t)(n + LANES - 1) / LANES * sizeof(vi));
  int64_t i = 0;
  for (; keeps && i + 2 <= rows; i += 2)
    for (int64_t l = 0; l < n; l += LANES) {
      const float *from = x + i * inner + l;
      __builtin_prefetch(from + (l / LANES % 2 ? EARLY : EARLY + 1) * inner);
      const vf v = load(from), w = load(from + inner);
      store(kept + i * n + l, v);
      store(kept + (i + 1) * n + l, w);
      amax[l / LANES] = larger(amax[l / LANES], larger((vi)v & MAGNITUDE, (vi)w & MAGNITUDE));
    }
  for (; i < rows; i++)
    for (int64_t l = 0; l < n; l += LANES) {
      const vf v = load_part(x + i * inner + l, n - l);
      if (keeps) store(kept + i * n + l, v);
      amax[l / LANES] = larger(amax[l / LANES], (vi)v & MAGNITUDE);
    }
  for (int64_t l = 0; l < n; l += LANES) {
    z.largest = larger(z.largest, amax[l / LANES]);
    const scales found = scales_of(amax[l / LANES], &r, j.outer);
    store(s + l, found.whole);
    store(by + l, found.by);
    if (j.scales) store_part(j.scales + block + l, found.own, n - l);
  }
  for (i = 0; i < rows; i++)
    for (int64_t l = 0; l < n; l += LANES) {
      const float *from = x + i * inner + l;
      if (keeps && i < EARLY && l % (2 * LANES) == 0) __builtin_prefetch(from + n);
      const vf v = keeps ? load(kept + i * n + l) : load_part(from, n - l);
      put(&j, &g, &c, &z, h, at + i * inner + l, keeps ? LANES : n - l, v, load(s + l), load(by + l));
    }
  *pz = z;
}

static void any_tile(const job *j, state *z, int64_t at, int64_t block, int64_t rows, int64_t inner, int64_t n) {
  const how a = how_of(j);
  if (rows * n > KEPT || n % LANES) tile(j, z, a, at, block, rows, inner, n, 0);
  else WITH_HOW(tile(j, z, h, at, block, rows, inner, n, 1))
}

/* Blocks of b along the k elements that lie `inner` apart, for `outer` slabs of k * inner. */
static int32_t columns(const job *j, int64_t outer, int64_t k, int64_t inner, int64_t b) {
  state z = begun(j);
  int64_t most = KEPT / b / LANES * LANES, block = 0;
  most = most < 4 * LANES ? COLUMNS : most < KEPT_COLUMNS ? most : KEPT_COLUMNS;
  for (int64_t o = 0; o < outer; o++)
    for (int64_t i = 0; i < k; i += b, block += inner)
      for (int64_t l = 0, n; l < inner; l += n) {
        const int64_t rows = k - i < b ? k - i : b, left = inner - l;
        n = left > most ? most : left < LANES ? left : left / LANES * LANES;
        any_tile(j, &z, (o * k + i) * inner + l, block + l, rows, inner, n);
      }
  return ended(j, &z);
}
