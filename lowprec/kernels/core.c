/* Fake quantization of float32 arrays at memory speed: the arithmetic of round.py, scale.py and
 * block.py, rounding to nearest even, with every format and rule as run-time numbers.
 *
 * A magnitude is rounded by adding and subtracting the power of two whose unit in the last place
 * is the distance of the format's values there. Magnitudes are compared as integers. Needs IEEE
 * arithmetic with subnormals: no -ffast-math, no flush-to-zero (core.py tests that at load).
 * Blocks are handled in strips that stay in the first-level cache: largest magnitudes, then scales,
 * then elements, so that each of the three loops is a vector loop.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif
#define INLINE static inline __attribute__((always_inline))

#define MAGNITUDE 0x7fffffffu
#define INFINITE 0x7f800000u
#define NOT_A_NUMBER 0x7fc00000u

/* A grid of values; pairs are for positive and negative numbers. See grid.py. */
typedef struct {
  float magic;              /* 2^(quantum + 23) */
  uint32_t fixed;           /* magnitudes below it are multiples of the quantum */
  int32_t shift;            /* trailing bits that the others drop */
  uint32_t half, odd, keep; /* 2^(shift-1) - 1, 1 (both 0 for shift 0), mask of the kept bits */
  uint32_t bound[2], overflow[2], infinity[2], zero[2];
  int32_t saturates; /* what overflows goes to the bound, and `lift` reaches all up to it */
  float lift;        /* 2^shift, by which an exponent becomes the power of two to add */
} grid;

/* A scale rule; see ScaleRule in scale.py. */
typedef struct {
  int32_t power_of_two, divides;
  float largest;
  int32_t carry, emax, lowest, highest;
  int32_t has_tensor_scale;
  float tensor_scale;
  grid onto;
} rule;

INLINE uint32_t bits_of(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
INLINE float float_of(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }
INLINE uint32_t either(uint32_t mask, uint32_t yes, uint32_t no) { return (yes & mask) | (no & ~mask); }
INLINE uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }
INLINE uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* Any x, any ends. Beyond `fixed` an integer addition rounds, whose carry changes the binade. */
INLINE float project(float x, const grid *g) {
  uint32_t b = bits_of(x), m = b & MAGNITUDE, minus = 0u - (b >> 31);
  uint32_t low = bits_of((float_of(m) + g->magic) - g->magic);
  uint32_t high = (m + g->half + ((m >> g->shift) & g->odd)) & g->keep;
  uint32_t r = m < g->fixed ? low : high;
  uint32_t y = r | (b & ~MAGNITUDE);
  y = r > either(minus, g->bound[1], g->bound[0]) ? either(minus, g->overflow[1], g->overflow[0]) : y;
  y = r == 0 ? either(minus, g->zero[1], g->zero[0]) : y;
  y = m == INFINITE ? either(minus, g->infinity[1], g->infinity[0]) : y;
  y = m > INFINITE ? NOT_A_NUMBER : y;
  return float_of(y);
}

/* The same where g->saturates, but NaN becomes a bound. mirrored: both signs are alike. */
INLINE float saturate(float x, const grid *g, int mirrored) {
  uint32_t b = bits_of(x), minus = 0u - (b >> 31);
  uint32_t bound = mirrored ? g->bound[0] : either(minus, g->bound[1], g->bound[0]);
  uint32_t m = smaller(b & MAGNITUDE, bound);
  float c = float_of(larger(m & INFINITE, g->fixed)) * g->lift;
  uint32_t r = bits_of((float_of(m) + c) - c), y = r | (b & ~MAGNITUDE);
  return float_of(mirrored || r ? y : g->zero[1] & b);
}

enum { ANY, SATURATES, MIRRORED };

INLINE int kind_of(const grid *g) {
  int mirrored = g->bound[0] == g->bound[1] && g->zero[1] != 0;
  return !g->saturates ? ANY : mirrored ? MIRRORED : SATURATES;
}

INLINE float element(float x, const grid *g, int kind) {
  return kind == ANY ? project(x, g) : saturate(x, g, kind == MIRRORED);
}

INLINE int32_t largest(const float *x, int64_t n) {
  int32_t m = 0;
  for (int64_t i = 0; i < n; i++) {
    int32_t b = (int32_t)(bits_of(x[i]) & MAGNITUDE);
    m = b > m ? b : m;
  }
  return m;
}

/* 2^(the rule's exponent) of v, which is A or RN(A / M). */
INLINE float power_of_two(float v, const rule *r) {
  uint32_t p = bits_of(v);
  int32_t subnormal = p < 1u << 23;
  /* An integer, which a subnormal's pattern is, converts exactly. */
  uint32_t q = subnormal ? bits_of((float)(int32_t)p) : p;
  int32_t e = (int32_t)(q >> 23) - (subnormal ? 127 + 149 : 127);
  e += ((int32_t)(q & 0x7fffffu) + r->carry) >> 23;
  e = p ? e - r->emax : r->lowest;
  e = e < r->lowest ? r->lowest : e;
  e = e > r->highest ? r->highest : e;
  int32_t tiny = e + 149 > 0 ? e + 149 : 0;
  return float_of(e >= -126 ? (uint32_t)(e + 127) << 23 : 1u << (tiny & 31));
}

/* Whole scales S of n blocks, and what their elements are multiplied with (the inverse of a power
 * of two, which is exact) or divided by: of S = 0 by Inf, which leaves zeros with their signs. */
CLONES void lp_scales(const int32_t *amax, float *s, float *by, int64_t n, const rule *pr) {
  const rule r = *pr;
  if (r.power_of_two) {
    for (int64_t i = 0; i < n; i++) {
      float v = float_of((uint32_t)amax[i]);
      v = power_of_two(r.divides ? v / r.largest : v, &r);
      v = (uint32_t)amax[i] >= INFINITE ? float_of(NOT_A_NUMBER) : v;
      s[i] = v;
      by[i] = 1 / v;
    }
    return;
  }
  float over_tensor = r.has_tensor_scale ? (r.tensor_scale == 0 ? INFINITY : r.tensor_scale) : 1;
  float tensor = r.has_tensor_scale ? r.tensor_scale : 1;
  for (int64_t i = 0; i < n; i++) {
    float v = (float_of((uint32_t)amax[i]) / r.largest) / over_tensor;
    v = project(v, &r.onto) * tensor;
    v = (uint32_t)amax[i] >= INFINITE ? float_of(NOT_A_NUMBER) : v;
    s[i] = v;
    by[i] = v == 0 ? INFINITY : v;
  }
}

/* `call`, which names `kind` and `inverse`, with these as constants. */
#define WITH_KIND(call)                                       \
  switch (kind_of(&g)) {                                      \
    case MIRRORED: { enum { kind = MIRRORED }; call; break; } \
    case SATURATES: { enum { kind = SATURATES }; call; break; } \
    default: { enum { kind = ANY }; call; }                   \
  }
#define WITH_KIND_AND_INVERSE(call)                             \
  if (inverses) { enum { inverse = 1 }; WITH_KIND(call) }       \
  else { enum { inverse = 0 }; WITH_KIND(call) }

INLINE float scaled(float x, float s, float by, int inverse, int kind, const grid *g) {
  return element(inverse ? x * by : x / by, g, kind) * s;
}

INLINE void cast(const float *x, float *y, int64_t n, int kind, const grid *g) {
  for (int64_t i = 0; i < n; i++) {
    float v = element(x[i], g, kind);
    y[i] = kind != ANY && (bits_of(x[i]) & MAGNITUDE) > INFINITE ? float_of(NOT_A_NUMBER) : v;
  }
}

CLONES void lp_cast(const float *x, float *y, int64_t n, const grid *pg) {
  const grid g = *pg;
  WITH_KIND(cast(x, y, n, kind, &g))
}

CLONES int32_t lp_largest(const float *x, int64_t n) { return largest(x, n); }

/* S of one block: also how a tensor scale comes about, which is a rule of its own. */
float lp_scale(int32_t amax, const rule *r) {
  float s, by;
  lp_scales(&amax, &s, &by, 1, r);
  return s;
}

/* Blocks of b along contiguous elements: the largest magnitudes of n of them, and their elements.
 * The length of OCP's blocks is a constant, which the compiler makes the most of. */
INLINE void largest_of(const float *x, int64_t n, int64_t b, int32_t *amax) {
  for (int64_t i = 0; i < n; i++) amax[i] = largest(x + i * b, b);
}

CLONES void lp_largest_of(const float *x, int64_t n, int64_t b, int32_t *amax) {
  if (b == 32) largest_of(x, n, 32, amax);
  else largest_of(x, n, b, amax);
}

INLINE void blocks(const float *x, float *y, int64_t n, int64_t b, const float *s, const float *by,
                   int inverse, int kind, const grid *g) {
  for (int64_t i = 0; i < n; i++, x += b, y += b) {
    const float si = s[i], byi = by[i];
    for (int64_t j = 0; j < b; j++) y[j] = scaled(x[j], si, byi, inverse, kind, g);
  }
}

CLONES void lp_blocks(const float *x, float *y, int64_t n, int64_t b, const float *s, const float *by,
                      int32_t inverses, const grid *pg) {
  const grid g = *pg;
  if (b == 32) WITH_KIND_AND_INVERSE(blocks(x, y, n, 32, s, by, inverse, kind, &g))
  else WITH_KIND_AND_INVERSE(blocks(x, y, n, b, s, by, inverse, kind, &g))
}

/* One block in parts, its largest magnitude known. */
void lp_apply(const float *x, float *y, int64_t n, int32_t amax, const rule *r, const grid *g) {
  float s, by;
  lp_scales(&amax, &s, &by, 1, r);
  lp_blocks(x, y, 1, n, &s, &by, r->power_of_two, g);
}

enum { BLOCKS = 128, STRIP = 4096 };

static void strip_of_blocks(const float *x, float *y, int64_t n, int64_t b, const rule *r, const grid *g) {
  int32_t amax[BLOCKS];
  float s[BLOCKS], by[BLOCKS];
  lp_largest_of(x, n, b, amax);
  lp_scales(amax, s, by, n, r);
  lp_blocks(x, y, n, b, s, by, r->power_of_two, g);
}

/* Blocks of b along the k contiguous elements of every row, the last one of a row ragged. */
void lp_rows(const float *x, float *y, int64_t rows, int64_t k, int64_t b, const rule *r, const grid *g) {
  int64_t most = b >= STRIP ? 1 : STRIP / b < BLOCKS ? STRIP / b : BLOCKS;
  for (const float *end = x + rows * k; x < end; x += k, y += k) {
    int64_t i = 0;
    for (int64_t n; (n = (k - i) / b) > 0; i += n * b) {
      n = n < most ? n : most;
      strip_of_blocks(x + i, y + i, n, b, r, g);
    }
    if (i < k) strip_of_blocks(x + i, y + i, 1, k - i, r, g);
  }
}

/* Long runs of memory: shorter strips that fit the first-level cache take longer. */
enum { COLUMNS = 4096 };

/* One block in each of n columns, whose rows lie `inner` apart. */
CLONES void lp_largest_columns(const float *x, int64_t rows, int64_t inner, int64_t n, int32_t *amax) {
  for (int64_t j = 0; j < n; j++) amax[j] = 0;
  for (int64_t i = 0; i < rows; i++, x += inner)
    for (int64_t j = 0; j < n; j++) {
      int32_t b = (int32_t)(bits_of(x[j]) & MAGNITUDE);
      amax[j] = b > amax[j] ? b : amax[j];
    }
}

INLINE void columns(const float *x, float *y, int64_t rows, int64_t inner, int64_t n,
                    const float *restrict s, const float *restrict by, int inverse, int kind, const grid *g) {
  for (int64_t i = 0; i < rows; i++, x += inner, y += inner)
    for (int64_t j = 0; j < n; j++) y[j] = scaled(x[j], s[j], by[j], inverse, kind, g);
}

CLONES void lp_block_columns(const float *x, float *y, int64_t rows, int64_t inner, int64_t n,
                             const float *s, const float *by, int32_t inverses, const grid *pg) {
  const grid g = *pg;
  WITH_KIND_AND_INVERSE(columns(x, y, rows, inner, n, s, by, inverse, kind, &g))
}

/* Blocks of b along the k elements that lie `inner` apart, for `outer` slabs of k * inner. */
void lp_columns(const float *x, float *y, int64_t outer, int64_t k, int64_t inner, int64_t b,
                const rule *r, const grid *g) {
  int32_t amax[COLUMNS];
  float s[COLUMNS], by[COLUMNS];
  for (int64_t o = 0; o < outer; o++)
    for (int64_t i = 0; i < k; i += b)
      for (int64_t j = 0; j < inner; j += COLUMNS) {
        int64_t at = (o * k + i) * inner + j;
        int64_t rows = k - i < b ? k - i : b, n = inner - j < COLUMNS ? inner - j : COLUMNS;
        lp_largest_columns(x + at, rows, inner, n, amax);
        lp_scales(amax, s, by, n, r);
        lp_block_columns(x + at, y + at, rows, inner, n, s, by, r->power_of_two, g);
      }
}
