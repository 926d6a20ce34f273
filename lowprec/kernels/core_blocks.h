/* Elements with and without scales, along the last axis. */

/* Elements `at` onwards of x go to the same places of y or of codes. */
typedef struct {
  const float *x;
  float *y;        /* values, or null */
  uint8_t *codes;  /* code points, or null */
  float *scales;   /* the blocks' s, or null */
  int64_t first;   /* the index of x[0] in the whole tensor, by which random bits are counted */
  uint64_t seed;
  float outer;     /* t, of a rule that has one */
  int32_t streams; /* y is large, apart from x, and all its vectors are aligned */
  int32_t *largest; /* gets the largest magnitude of blocks within rows or columns, or null */
  const grid *onto;
  const rule *scale; /* of blocks */
  const code *code;  /* of codes */
} job;

/* How elements are computed: constants in the loops that matter most. */
enum { VALUES, CODES };
typedef struct { int kind, sink, scaled, inverse; } how;

/* What changes on the way: the keys of random bits, where codes stand for NaN, magnitudes seen. */
typedef struct { counter random; vi nans, largest; } state;

/* Elements of a block whose scale is a number, or without scales. */
INLINE vi code_at(const job *j, const grid *g, const code *c, state *z, how h, int64_t at, vf x, vf by) {
  const vf e = h.scaled ? h.inverse ? x * by : x / by : x;
  vi k = h.kind == MIRRORED    ? mirrored_code((vi)e, g, c)
         : h.kind == UNIFORM   ? uniform_code(e, g, c)
         : h.kind == SATURATES ? saturated_code((vi)e, g, c)
                               : code_of(project(e, g, h.kind, &z->random, (uint64_t)(j->first + at)), g, c);
  if (h.scaled) return k;
  const vi nan = is_nan(x);
  z->nans |= nan;
  return either(nan, alli(c->nan), k);
}

INLINE vf value_at(const job *j, const grid *g, state *z, how h, int64_t at, vf x, vf s, vf by) {
  const vf e = h.scaled ? h.inverse ? x * by : x / by : x;
  const vf y = project(e, g, h.kind, &z->random, (uint64_t)(j->first + at));
  if (h.scaled) return y * s;
  return h.kind == ANY ? y : (vf)either(is_nan(x), alli(NOT_A_NUMBER), (vi)y);
}

INLINE void give(float *to, int streams, int64_t lanes, vf y) {
  if (CAN_STREAM && streams && lanes >= LANES) stream(to, y);
  else store_part(to, y, lanes);
}

INLINE void put(const job *j, const grid *g, const code *c, state *z, how h, int64_t at, int64_t lanes, vf x,
                vf s, vf by) {
  if (h.sink == CODES) {
    vi k = code_at(j, g, c, z, h, at, x, by);
    store_bytes(j->codes + at, h.scaled ? either(is_nan(s), alli(c->nan), k) : k, lanes);
    return;
  }
  give(j->y + at, j->streams, lanes, value_at(j, g, z, h, at, x, s, by));
}

/* Two vectors, of a block whose scale is a number where there are codes. */
INLINE void put_two(const job *j, const grid *g, const code *c, state *z, how h, int64_t at, vf s, vf by) {
  const vf x = load(j->x + at), w = load(j->x + at + LANES);
  if (h.sink == CODES) {
    vi k = code_at(j, g, c, z, h, at, x, by);
    store_two(j->codes + at, k, code_at(j, g, c, z, h, at + LANES, w, by));
    return;
  }
  put(j, g, c, z, h, at, LANES, x, s, by);
  put(j, g, c, z, h, at + LANES, LANES, w, s, by);
}

INLINE void span(const job *pj, state *pz, how h, int64_t at, int64_t n, vf s, vf by) {
  const job j = *pj; /* all in registers, which no store can change */
  const grid g = *j.onto;
  const code c = h.sink == CODES ? *j.code : (code){0};
  state z = *pz;
  if (h.sink == CODES && h.scaled && is_nan(s)[0]) {
    memset(j.codes + at, c.nan, (size_t)n);
    return;
  }
  const int64_t end = at + n;
  for (; at + 2 * LANES <= end; at += 2 * LANES) put_two(&j, &g, &c, &z, h, at, s, by);
  for (; at < end; at += LANES) put(&j, &g, &c, &z, h, at, end - at, load_part(j.x + at, end - at), s, by);
  *pz = z;
}

INLINE vi largest_of(const float *x, int64_t n) {
  vi a = alli(0), b = a;
  int64_t i = 0;
  for (; i + 2 * LANES <= n; i += 2 * LANES) {
    a = larger(a, (vi)load(x + i) & MAGNITUDE);
    b = larger(b, (vi)load(x + i + LANES) & MAGNITUDE);
  }
  for (; i < n; i += LANES) a = larger(a, (vi)load_part(x + i, n - i) & MAGNITUDE);
  return larger(a, b);
}

/* Of blocks. */
INLINE how how_of(const job *j) {
  return (how){kind_of(j->onto), j->codes ? CODES : VALUES, 1, j->scale->power_of_two};
}

/* `loop`, in which the kind of `a`, now called h, is a constant, and for casts the sink. */
#define KIND(kind_, sink_, loop) { const how h = {kind_, sink_, a.scaled, a.inverse}; loop; break; }
#define WITH_KIND(sink_, loop)                      \
  switch (a.kind) {                                 \
    case MIRRORED: KIND(MIRRORED, sink_, loop)      \
    case UNIFORM: KIND(UNIFORM, sink_, loop)        \
    case SATURATES: KIND(SATURATES, sink_, loop)    \
    case STOCHASTIC: KIND(STOCHASTIC, sink_, loop)  \
    default: KIND(ANY, sink_, loop)                 \
  }

INLINE state begun(const job *j) {
  state z = {{0, {(uint32_t)j->seed, (uint32_t)(j->seed >> 32)}, {0, 0}}, alli(0), alli(0)};
  set_keys(&z.random, (uint64_t)j->first);
  return z;
}
INLINE int32_t ended(const job *j, const state *z) {
  if (j->streams) streamed();
  if (j->largest) *j->largest = largest_lane(z->largest);
  return largest_lane(-z->nans);
}

/* One block of n elements with these scales. */
static void line(const job *j, state *z, int64_t at, int64_t n, const scales *s) {
  const how a = how_of(j);
  WITH_KIND(a.sink, span(j, z, h, at, n, s->whole, s->by))
}

static int32_t cast(const job *j, int64_t n) {
  const how a = {kind_of(j->onto)};
  state z = begun(j);
  if (j->codes) WITH_KIND(CODES, span(j, &z, h, 0, n, all(1), all(1)))
  else WITH_KIND(VALUES, span(j, &z, h, 0, n, all(1), all(1)))
  return ended(j, &z);
}

/* Four streams at a time, of many pages where there are as many, are read faster than one. */
int32_t lp_largest(const float *x, int64_t n) {
  vi m[4] = {0};
  for (int64_t part = 1 << 15; part >= 1 << 12; part >>= 3)
    for (; n >= 4 * part; x += 4 * part, n -= 4 * part)
      for (int64_t i = 0; i < part; i += LANES)
        for (int k = 0; k < 4; k++) m[k] = larger(m[k], (vi)load(x + k * part + i) & MAGNITUDE);
  for (int k = 1; k < 4; k++) m[0] = larger(m[0], m[k]);
  return largest_lane(larger(m[0], largest_of(x, n)));
}

/* S of a block: also how a tensor scale comes about, by a rule of its own. */
float lp_scale(int32_t amax, const rule *r) { return scales_of(alli(amax), r, 1).whole[0]; }

/* n elements of a block whose largest magnitude is known. */
static int32_t apply(const job *j, int64_t n, int32_t amax) {
  state z = begun(j);
  scales s = scales_of(alli(amax), j->scale, j->outer);
  if (j->scales) j->scales[0] = s.own[0];
  line(j, &z, 0, n, &s);
  return ended(j, &z);
}

/* A strip: elements that stay in the first-level cache between their two uses. AHEAD: what is asked
 * for early, somewhat more than the next strip. */
enum { STRIP = 2048, AHEAD = STRIP + 512, LONG = 512 };

/* n blocks of v vectors with the grid of each at its scale. */
INLINE void moved(const job *j, const grid *g, const float *s, int64_t at, int64_t n, int64_t v, int streams) {
  for (int64_t i = 0; i < n; i++) {
    const vi by = (vi)all(s[i]) - (127 << 23), fixed = g->fixed + by, most = g->bound[0] + by;
    for (int64_t l = 0; l < v; l++, at += LANES) {
      if (l % 2 == 0) __builtin_prefetch(j->x + at + AHEAD);
      give(j->y + at, streams, LANES, mirrored((vi)load(j->x + at), fixed, most, g->shift));
    }
  }
}

/* n blocks (a multiple of LANES, STRIP elements at most) of v vectors, the first of number `block`. */
INLINE void strip(const job *j, const grid *g, const code *c, const rule *r, state *z, how h, int64_t at,
                  int64_t block, int64_t n, int64_t v) {
  float s[STRIP / LANES], by[STRIP / LANES];
  const float *x = j->x + at;
  const int can_move = h.kind == MIRRORED && h.inverse && h.sink != CODES;
  vi stays = alli(0);
  for (int64_t i = 0; i < n; i += LANES) {
    vi p[LANES];
    for (int k = 0; k < LANES; k++) {
      const float *from = x + (i + k) * v * LANES;
      p[k] = (vi)load(from) & MAGNITUDE;
      for (int64_t l = 1; l < v; l++) p[k] = larger(p[k], (vi)load(from + l * LANES) & MAGNITUDE);
    }
    const vi amax = largest_lanes(p);
    z->largest = larger(z->largest, amax);
    scales found = scales_of(amax, r, j->outer);
    store(s + i, found.whole);
    store(by + i, found.by);
    if (j->scales) store(j->scales + block + i, found.own);
    if (can_move) stays |= cannot_move((vi)found.whole, g);
  }
  if (can_move && !largest_lane(-stays)) {
    if (j->streams) moved(j, g, s, at, n, v, 1);
    else moved(j, g, s, at, n, v, 0);
    return;
  }
  for (int64_t i = 0; i < n; i++, at += v * LANES) {
    const vf whole = all(s[i]), divisor = all(by[i]);
    int64_t l = 0;
    if (h.sink == CODES && s[i] != s[i]) {
      memset(j->codes + at, c->nan, (size_t)(v * LANES));
      continue;
    }
    for (; l + 2 <= v; l += 2) {
      __builtin_prefetch(j->x + at + l * LANES + AHEAD);
      put_two(j, g, c, z, h, at + l * LANES, whole, divisor);
    }
    if (l < v) put(j, g, c, z, h, at + l * LANES, LANES, load(j->x + at + l * LANES), whole, divisor);
  }
}

/* The same of any multiple of LANES. */
INLINE void in_strips(const job *pj, state *pz, how h, int64_t at, int64_t block, int64_t n, int64_t v) {
  const job j = *pj; /* all in registers, which no store can change */
  const grid g = *j.onto;
  const code c = h.sink == CODES ? *j.code : (code){0};
  const rule r = *j.scale;
  state z = *pz;
  const int64_t most = STRIP / (v * LANES) / LANES * LANES;
  for (int64_t m; n > 0; n -= m, block += m, at += m * v * LANES)
    strip(&j, &g, &c, &r, &z, h, at, block, m = n < most ? n : most, v);
  *pz = z;
}

/* `loop` of blocks with h constant where that matters most: of the usual kinds. */
#define HOW(kind_, sink_, inverse_, loop) { const how h = {kind_, sink_, 1, inverse_}; loop; }
#define OF_SINK(kind_, sink_, loop)                                        \
  { if (a.inverse) HOW(kind_, sink_, 1, loop) else HOW(kind_, sink_, 0, loop) }
#define USUAL(kind_, loop)                                                 \
  if (a.sink == CODES) OF_SINK(kind_, CODES, loop)                         \
  else OF_SINK(kind_, VALUES, loop)
#define WITH_HOW(loop)                                                     \
  if (a.kind == MIRRORED) { USUAL(MIRRORED, loop) }                        \
  else if (a.kind == UNIFORM) { USUAL(UNIFORM, loop) }                     \
  else if (a.kind == SATURATES) HOW(SATURATES, a.sink, a.inverse, loop)    \
  else if (a.kind == STOCHASTIC && a.sink == VALUES && a.inverse)          \
    HOW(STOCHASTIC, VALUES, 1, loop)                                       \
  else if (a.kind == STOCHASTIC) HOW(STOCHASTIC, a.sink, a.inverse, loop)  \
  else HOW(ANY, a.sink, a.inverse, loop)

/* The usual lengths are constants too. */
static void strips(const job *j, state *z, int64_t at, int64_t block, int64_t n, int64_t v) {
  const how a = how_of(j);
  WITH_HOW(if (v == (h.inverse ? 4 : 2)) in_strips(j, z, h, at, block, n, h.inverse ? 4 : 2);
           else in_strips(j, z, h, at, block, n, v))
}

/* Blocks of b along the k contiguous elements of each of the rows, the last one of a row ragged. */
static int32_t rows(const job *j, int64_t count, int64_t k, int64_t b) {
  state z = begun(j);
  const int64_t whole = b % LANES || b > LONG || STRIP / b < LANES ? 0 : k / b / LANES * LANES;
  int64_t at = 0, block = 0;
  for (int64_t row = 0; row < count; row++) {
    const int64_t end = at + k;
    if (whole) strips(j, &z, at, block, whole, b / LANES);
    at += whole * b, block += whole;
    for (; at < end; block++) {
      const int64_t n = end - at < b ? end - at : b;
      const vi amax = alli(largest_lane(largest_of(j->x + at, n)));
      z.largest = larger(z.largest, amax);
      scales s = scales_of(amax, j->scale, j->outer);
      if (j->scales) j->scales[block] = s.own[0];
      line(j, &z, at, n, &s);
      at += n;
    }
  }
  return ended(j, &z);
}
