/* Projections onto grids of values; see grid.py and round.py. */
#define MAGNITUDE 0x7fffffff
#define SIGN (-0x7fffffff - 1)
#define INFINITE 0x7f800000
#define NOT_A_NUMBER 0x7fc00000

INLINE vi is_nan(vf x) { return ((vi)x & MAGNITUDE) > INFINITE; }

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
  float nothing; /* added to a result: -0, or 0 where there is no -0 */
} grid;

/* Random bits by counter; see counter.py. */
typedef struct { uint64_t base; uint32_t seed[2], keys[2]; } counter; /* keys of base and the next 2^32 */

INLINE uint32_t mix(uint32_t h) {
  h ^= h >> 17; h *= 0xed5ad4bbu;
  h ^= h >> 11; h *= 0xac4c1b51u;
  h ^= h >> 15; h *= 0x31848babu;
  return h ^ h >> 14;
}

INLINE void set_keys(counter *c, uint64_t at) {
  const uint32_t high = (uint32_t)(at >> 32);
  c->base = (uint64_t)high << 32;
  c->keys[0] = mix(c->seed[0] ^ mix(high + 0x9e3779b9u));
  c->keys[1] = mix(c->seed[1] ^ mix(c->keys[0] + 0x85ebca6bu));
}

/* The keys of element `at` and the next seven, where the upper halves of the indices change. */
static __attribute__((noinline, cold)) void new_keys(counter *c, uint64_t at, vu *k0, vu *k1) {
  for (int i = 0; i < LANES; i++) {
    set_keys(c, at + i);
    (*k0)[i] = c->keys[0];
    (*k1)[i] = c->keys[1];
  }
}

/* The words of element `at` and the next seven. */
INLINE vu words(counter *c, uint64_t at) {
  vu k0 = (vu)SPLAT(c->keys[0]), k1 = (vu)SPLAT(c->keys[1]);
  if (__builtin_expect(at - c->base > UINT32_MAX - (LANES - 1), 0)) new_keys(c, at, &k0, &k1);
  vu h = ((uint32_t)at + (vu){0, 1, 2, 3, 4, 5, 6, 7}) ^ k0;
  h ^= h >> 17; h *= 0xed5ad4bbu;
  h ^= h >> 11; h += k1; h *= 0xac4c1b51u;
  h ^= h >> 15; h *= 0x31848babu;
  return h ^ h >> 14;
}

/* The usual: saturating, to nearest even or by random bits; faster where signs are alike, or all is
 * multiples of the quantum and there is no -0. */
enum { ANY, SATURATES, MIRRORED, UNIFORM, STOCHASTIC };

INLINE int kind_of(const grid *g) {
  if (!g->saturates) return ANY;
  if (g->random) return STOCHASTIC;
  if (g->mirrored) return MIRRORED;
  const int32_t most = g->fixed - (1 << 23); /* half of `fixed` */
  return g->shift == 0 && g->bound[0] < most && g->bound[1] < most ? UNIFORM : SATURATES;
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

INLINE vi clamped(vi x, const grid *g, int mirrored) {
  vi bound = mirrored ? alli(g->bound[0]) : by_sign(x, alli(g->bound[1]), alli(g->bound[0]));
  return smaller(x & MAGNITUDE, bound);
}

/* The exponent, as a power of two, of a magnitude; no less than that of `fixed`. */
INLINE vi binade(vi m, const grid *g) { return larger(m & INFINITE, alli(g->fixed)); }

/* Of MIRRORED: magnitudes to `most`, which are multiples of a quantum below `fixed`. The power of two
 * to add follows from the exponent. */
INLINE vf mirrored(vi x, vi fixed, vi most, int32_t shift) {
  vi m = smaller(x & MAGNITUDE, most);
  vf c = (vf)(larger(m & INFINITE, fixed) + (shift << 23));
  return (vf)((vi)(((vf)m + c) - c) | (x & SIGN));
}

/* A power of two s as the scale of blocks can move this grid instead of the elements unless it is
 * one of these patterns: where quanta are no normal numbers, or sums overflow. */
INLINE vi cannot_move(vi s, const grid *g) {
  const int32_t one = 127 << 23, quantum = g->fixed - ((23 - g->shift) << 23);
  const int32_t largest_sum = (g->bound[0] & INFINITE) + ((g->shift + 1) << 23);
  return (s < one - quantum + (1 << 23)) | (s > one - largest_sum + (254 << 23)) | (quantum < 27 << 23 ? -1 : 0);
}

/* Of UNIFORM: where x, within the bounds, ends, in units of the quantum, after 3 * 2^22 of them. */
INLINE vf uniform_sum(vf x, const grid *g) {
  return between(x, (vf)alli(g->bound[1] | SIGN), (vf)alli(g->bound[0])) + 1.5f * g->magic;
}

/* Where g->saturates; NaN becomes a bound. */
INLINE vf saturated(vi x, const grid *g, int kind, counter *n, uint64_t at) {
  if (kind == UNIFORM) return uniform_sum((vf)x, g) - 1.5f * g->magic;
  if (kind == MIRRORED) return mirrored((vi)x, alli(g->fixed), alli(g->bound[0]), g->shift);
  vi m = clamped(x, g, 0), r;
  if (kind == STOCHASTIC) {
    r = stochastic(m, g, words(n, at));
  } else {
    vf c = (vf)(binade(m, g) + (g->shift << 23));
    r = (vi)(((vf)m + c) - c);
  }
  return (vf)(r | (x & SIGN)) + g->nothing;
}

INLINE vf project(vf x, const grid *g, int kind, counter *n, uint64_t at) {
  vi b = (vi)x, m = b & MAGNITUDE;
  if (kind != ANY) return saturated(b, g, kind, n, at);
  return finished(g->random ? stochastic(m, g, words(n, at)) : nearest(m, g), b, g);
}
