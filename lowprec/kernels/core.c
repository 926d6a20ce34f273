/* Fake quantization of float32 arrays at memory speed: the arithmetic of round.py, scale.py and
 * block.py with every format, rule and saturation as run-time numbers.
 *
 * Rounding is to nearest, ties to even. Magnitudes are compared as integers. Values below
 * 2^(quantum + precision - 1) are rounded by adding and subtracting 2^(quantum + 23), whose unit in
 * the last place is the quantum; the others by an integer addition to their bits, whose carry is
 * the change of binade. Needs IEEE arithmetic with subnormals: no -ffast-math, no flush-to-zero
 * (core.py tests that when it loads this).
 */
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
  float magic;             /* 2^(quantum + 23) */
  uint32_t fixed;          /* magnitudes below it are multiples of the quantum */
  int32_t shift;           /* trailing bits that the others drop */
  uint32_t half, odd, keep; /* 2^(shift-1) - 1, 1 (both 0 for shift 0), mask of the kept bits */
  uint32_t bound[2], overflow[2], infinity[2], zero[2];
} grid;

/* A scale rule; see ScaleRule in scale.py. */
typedef struct {
  int32_t power_of_two, divides;
  float largest;
  uint32_t carry;
  int32_t emax, lowest, highest;
  int32_t has_tensor_scale;
  float tensor_scale;
  grid onto;
} rule;

INLINE uint32_t bits_of(float x) { uint32_t b; memcpy(&b, &x, 4); return b; }
INLINE float float_of(uint32_t b) { float x; memcpy(&x, &b, 4); return x; }
INLINE uint32_t either(uint32_t mask, uint32_t yes, uint32_t no) { return (yes & mask) | (no & ~mask); }

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

INLINE float block_scale(int32_t amax, const rule *r) {
  if ((uint32_t)amax >= INFINITE) return float_of(NOT_A_NUMBER);
  float v = float_of((uint32_t)amax);
  if (r->divides) v = v / r->largest;
  if (!r->power_of_two) {
    if (r->has_tensor_scale) v = r->tensor_scale == 0 ? 0 : v / r->tensor_scale;
    float s = project(v, &r->onto);
    return r->has_tensor_scale ? s * r->tensor_scale : s;
  }
  uint32_t p = bits_of(v);
  int32_t e = r->lowest;
  if (p) {
    int32_t field = (int32_t)(p >> 23);
    uint32_t trailing = p & 0x7fffffu;
    if (!field) {
      int lead = 31 - __builtin_clz(p);
      field = lead - 22;
      trailing = (p << (23 - lead)) & 0x7fffffu;
    }
    e = field - 127 + (int32_t)((trailing + r->carry) >> 23) - r->emax;
    e = e < r->lowest ? r->lowest : e > r->highest ? r->highest : e;
  }
  return float_of(e >= -126 ? (uint32_t)(e + 127) << 23 : 1u << (e + 149));
}

INLINE int32_t largest(const float *x, int64_t n) {
  int32_t m = 0;
  for (int64_t i = 0; i < n; i++) {
    int32_t b = (int32_t)(bits_of(x[i]) & MAGNITUDE);
    m = b > m ? b : m;
  }
  return m;
}

/* RN(element * s) for elements of RN(x / s). A power of two divides exactly as its inverse
 * multiplies; s = 0 leaves zeros with the sign of x. */
INLINE void apply(const float *x, float *y, int64_t n, float s, int inverse, const grid *g) {
  if (inverse || s == 0) {
    float by = s == 0 ? 0 : 1 / s;
    for (int64_t i = 0; i < n; i++) y[i] = project(x[i] * by, g) * s;
  } else {
    for (int64_t i = 0; i < n; i++) y[i] = project(x[i] / s, g) * s;
  }
}

INLINE void row(const float *x, float *y, int64_t k, int64_t b, const rule *r, const grid *g) {
  int64_t i = 0;
  for (; i + b <= k; i += b) apply(x + i, y + i, b, block_scale(largest(x + i, b), r), r->power_of_two, g);
  if (i < k) apply(x + i, y + i, k - i, block_scale(largest(x + i, k - i), r), r->power_of_two, g);
}

CLONES void lp_cast(const float *x, float *y, int64_t n, const grid *pg) {
  const grid g = *pg;
  for (int64_t i = 0; i < n; i++) y[i] = project(x[i], &g);
}

CLONES int32_t lp_largest(const float *x, int64_t n) { return largest(x, n); }

float lp_scale(int32_t amax, const rule *r) { return block_scale(amax, r); }

CLONES void lp_apply(const float *x, float *y, int64_t n, float s, int32_t inverse, const grid *pg) {
  const grid g = *pg;
  apply(x, y, n, s, inverse, &g);
}

/* Blocks of b along the k contiguous elements of every row. */
CLONES void lp_rows(const float *x, float *y, int64_t rows, int64_t k, int64_t b, const rule *pr,
                    const grid *pg) {
  const rule r = *pr;
  const grid g = *pg;
  for (int64_t i = 0; i < rows; i++, x += k, y += k) {
    if (b == 32) row(x, y, k, 32, &r, &g);
    else if (b == 16) row(x, y, k, 16, &r, &g);
    else row(x, y, k, b, &r, &g);
  }
}

enum { STRIP = 128 };

INLINE void strip(const float *x, float *y, int64_t rows, int64_t inner, int64_t width, const rule *r,
                  const grid *g) {
  int32_t amax[STRIP] = {0};
  float s[STRIP], by[STRIP];
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < width; j++) {
      int32_t b = (int32_t)(bits_of(x[i * inner + j]) & MAGNITUDE);
      amax[j] = b > amax[j] ? b : amax[j];
    }
  for (int64_t j = 0; j < width; j++) s[j] = block_scale(amax[j], r);
  if (r->power_of_two) {
    for (int64_t j = 0; j < width; j++) by[j] = 1 / s[j];
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = 0; j < width; j++)
        y[i * inner + j] = project(x[i * inner + j] * by[j], g) * s[j];
  } else {
    /* (x * 1) / s, or (x * 0) / 1 where s is 0. */
    float over[STRIP];
    for (int64_t j = 0; j < width; j++) {
      by[j] = s[j] == 0 ? 0.0f : 1.0f;
      over[j] = s[j] == 0 ? 1.0f : s[j];
    }
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = 0; j < width; j++)
        y[i * inner + j] = project((x[i * inner + j] * by[j]) / over[j], g) * s[j];
  }
}

/* Blocks of b along the k elements that lie `inner` apart, for `outer` slabs of k * inner. */
CLONES void lp_columns(const float *x, float *y, int64_t outer, int64_t k, int64_t inner, int64_t b,
                       const rule *pr, const grid *pg) {
  const rule r = *pr;
  const grid g = *pg;
  for (int64_t o = 0; o < outer; o++)
    for (int64_t i = 0; i < k; i += b) {
      int64_t rows = k - i < b ? k - i : b, at = (o * k + i) * inner;
      for (int64_t j = 0; j < inner; j += STRIP) {
        int64_t width = inner - j < STRIP ? inner - j : STRIP;
        strip(x + at + j, y + at + j, rows, inner, width, &r, &g);
      }
    }
}
