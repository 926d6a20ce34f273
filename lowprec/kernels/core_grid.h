/* Projections onto grids of values; see grid.py and round.py. */
#define MAGNITUDE 0x7fffffff
#define SIGN (-0x7fffffff - 1)
#define INFINITE 0x7f800000
#define NOT_A_NUMBER 0x7fc00000

/* Pairs are for positive and negative numbers. */
typedef struct {
  float magic;            /* 2^(quantum + 23) */
  int32_t fixed;          /* magnitudes below it are multiples of the quantum */
  int32_t shift;          /* trailing bits that the others drop */
  int32_t half, odd, keep; /* 2^(shift-1) - 1, 1 (both 0 for shift 0), mask of the kept bits */
  int32_t bound[2], overflow[2], infinity[2], zero[2];
  int32_t saturates;      /* what overflows goes to the bound, and the next exponents are finite */
  int32_t mirrored;       /* ... and both signs are alike */
  /* Of stochastic rounding, else 0: the random bits that count, as the upper ones of a word. */
  uint32_t random;
  float per_quantum, quantum; /* 2^-quantum, 2^quantum */
} grid;

/* Random bits by counter; see counter.py. */
typedef struct { uint32_t seed[2], high, keys[2]; } counter;

INLINE uint32_t mix(uint32_t h) {
  h ^= h >> 16; h *= 0x7feb352du;
  h ^= h >> 15; h *= 0x846ca68bu;
  return h ^ h >> 16;
}

INLINE void set_keys(counter *c, uint32_t high) {
  c->high = high;
  c->keys[0] = mix(c->seed[0] ^ mix(high + 0x9e3779b9u));
  c->keys[1] = mix(c->seed[1] ^ mix(c->keys[0] + 0x85ebca6bu));
}

/* The words of element `at` and the next seven. */
INLINE vu words(counter *c, uint64_t at) {
  vu low = (uint32_t)at + (vu){0, 1, 2, 3, 4, 5, 6, 7};
  if (__builtin_expect(at >> 32 != c->high, 0)) set_keys(c, at >> 32);
  vu k0 = (vu)SPLAT(c->keys[0]), k1 = (vu)SPLAT(c->keys[1]);
  if (__builtin_expect(low[LANES - 1] < low[0], 0)) {
    set_keys(c, (at >> 32) + 1);
    for (int i = 0; i < LANES; i++)
      if (low[i] < low[0]) { k0[i] = c->keys[0]; k1[i] = c->keys[1]; }
  }
  vu h = low ^ k0;
  h ^= h >> 16; h *= 0x7feb352du;
  h ^= h >> 15; h += k1; h *= 0x846ca68bu;
  return h ^ h >> 16;
}

enum { ANY, SATURATES, MIRRORED, STOCHASTIC };

INLINE int kind_of(const grid *g) {
  return g->random ? STOCHASTIC : g->mirrored ? MIRRORED : g->saturates ? SATURATES : ANY;
}

/* To nearest even: a magnitude below `fixed` by the addition of a power of two whose unit in the
 * last place is the quantum, others by an integer addition, whose carry changes the binade. */
INLINE vi nearest(vi m, const grid *g) {
  vi low = (vi)(((vf)m + g->magic) - g->magic);
  vi high = (m + g->half + ((m >> g->shift) & g->odd)) & g->keep;
  return either(m < g->fixed, low, high);
}

/* Away from zero if the fraction and the random bits r, both fixed-point, make one or more. Below
 * `fixed` both have 31 bits: the fraction's last bits do not matter, as r has none there. */
INLINE vi stochastic(vi m, const grid *g, vu word) {
  vu r = word & g->random;
  vi high = (m + (vi)((r >> 1) >> (31 - g->shift))) & g->keep;
  vf units = (vf)m * g->per_quantum;
  units = (vf)smaller((vi)units, alli(0x4b000000)); /* those that count are less than 2^23 */
  vi whole = __builtin_convertvector(units, vi);
  vi fraction = __builtin_convertvector((units - __builtin_convertvector(whole, vf)) * 0x1p31f, vi);
  whole -= (vi)((vu)fraction + (r >> 1)) >> 31;
  return either(m < g->fixed, (vi)(__builtin_convertvector(whole, vf) * g->quantum), high);
}

/* Signs and ends of a rounded magnitude r of x. */
INLINE vf finished(vi r, vi x, const grid *g) {
  vi m = x & MAGNITUDE, minus = x >> 31;
  vi y = r | (x & SIGN);
  y = either(r > either(minus, alli(g->bound[1]), alli(g->bound[0])),
             either(minus, alli(g->overflow[1]), alli(g->overflow[0])), y);
  y = either(r == 0, either(minus, alli(g->zero[1]), alli(g->zero[0])), y);
  y = either(m == INFINITE, either(minus, alli(g->infinity[1]), alli(g->infinity[0])), y);
  return (vf)either(m > INFINITE, alli(NOT_A_NUMBER), y);
}

/* To nearest even where g->saturates: the power of two to add follows from the exponent. NaN
 * becomes a bound. */
INLINE vf saturated(vi x, const grid *g, int mirrored) {
  vi bound = mirrored ? alli(g->bound[0]) : by_sign(x, alli(g->bound[1]), alli(g->bound[0]));
  vi m = smaller(x & MAGNITUDE, bound);
  vf c = (vf)(larger(m & INFINITE, alli(g->fixed)) + (g->shift << 23));
  vf y = (vf)((vi)(((vf)m + c) - c) | (x & SIGN));
  return mirrored ? y : y + 0.0f; /* which makes -0 +0 */
}

INLINE vf project(vf x, const grid *g, int kind, counter *c, uint64_t at) {
  vi b = (vi)x;
  switch (kind) {
    case MIRRORED: return saturated(b, g, 1);
    case SATURATES: return saturated(b, g, 0);
    case STOCHASTIC: return finished(stochastic(b & MAGNITUDE, g, words(c, at)), b, g);
    default: return finished(nearest(b & MAGNITUDE, g), b, g);
  }
}
