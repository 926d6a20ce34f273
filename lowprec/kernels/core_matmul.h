/* Matmuls under a datapath, y = a b.T: the arithmetic of datapath_step.py on many sums at a time.
 * What it is asked for are cases in which products, and the sums of their cut values, are exact in
 * REAL; matmul_core.py sees to that. Operands are finite. */
#include <stddef.h>
#include <stdlib.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#else
#include <fenv.h>
#endif

enum { ALIGNED, TWO_STAGE, CHUNKS, IN_ORDER, GROUPED, ROUNDED };
enum { ALONE, ON, ADDED, ADDED_IN_BITS }; /* what becomes of a plain sum */
enum { PANEL = 32, PADDED = 12, GROUPS = 4, NOTHING = -8192 /* an exponent below all others */ };

typedef struct { int32_t precision, emin; float max; } target; /* a float format to round to */

typedef struct {
  const float *a, *b; /* M x K and N x K, rows lda and ldb apart; K in the order of the steps */
  float *d;           /* M x N, rows ldd apart */
  int64_t k, lda, ldb, ldd;
  const float *scale_a, *scale_b; /* M and N rows of a scale per `block` products, or null */
  int64_t lds_a, lds_b;
  int32_t wide;       /* whether REAL is double */
  int32_t kind, step, groups, fraction_bits, dot_bits, sum_bits;
  int32_t lowest_a, lowest_b, lowest_accumulator, floor; /* least exponents; of a sum of products */
  int32_t rounding, term_rounding, signed_zero; /* modes: see rounds() */
  int32_t interval;   /* products per promotion, or 0 */
  int32_t block, inside, group, lowest_scale; /* group: products per term of a grouped step */
  int64_t rows, deep; /* rows of a, and products (whole steps), at a time */
  target result, promotion;
} matmul;

/* Whether products are cut toward zero one by one; whether others need exponents, too. */
static int cuts(int kind) { return kind == ALIGNED || kind == TWO_STAGE; }
static int aligns(int kind) { return kind == GROUPED || kind == ROUNDED; }

/* The rounding mode: 0 nearest even, 1 down, 2 up, 3 toward zero; with subnormals. Functions whose
 * results depend on it are not inlined, so that none of their operations moves over a call. */
enum { NEAREST, DOWN, UP, TOWARD_ZERO };
static void rounds(int mode) {
#if defined(__SSE2__)
  _mm_setcsr(0x1f80 | (unsigned)mode << 13);
#else
  static const int modes[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
  fesetround(modes[mode]);
#endif
}
static unsigned mode_before(void) {
#if defined(__SSE2__)
  return _mm_getcsr();
#else
  return (unsigned)fegetround();
#endif
}
static void restore(unsigned mode) {
#if defined(__SSE2__)
  _mm_setcsr(mode);
#else
  fesetround((int)mode);
#endif
}

/* Else a load would become the operand of each of several operations, and loads are the bottleneck. */
#if defined(__AVX__)
#define KEPT_IN_REGISTER(v) ({ V kept = v; __asm__("" : "+x"(kept)); kept; })
#else
#define KEPT_IN_REGISTER(v) (v)
#endif

/* Element i of row l becomes element l of row i, of n elements from k on. */
static void transpose(const float *const *rows, int64_t k, int64_t n, float *to) {
  vf r[LANES], pairs[LANES], fours[LANES];
  for (int l = 0; l < LANES; l++) r[l] = load_part(rows[l] + k, n);
  for (int l = 0; l < LANES; l += 2) {
    pairs[l] = SHUFFLE(r[l], r[l + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[l + 1] = SHUFFLE(r[l], r[l + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int l = 0; l < LANES; l += 4)
    for (int i = 0; i < 2; i++) {
      fours[l + 2 * i] = SHUFFLE(pairs[l + i], pairs[l + 2 + i], 0, 1, 8, 9, 4, 5, 12, 13);
      fours[l + 2 * i + 1] = SHUFFLE(pairs[l + i], pairs[l + 2 + i], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  for (int l = 0; l < 4; l++) {
    store(to + l * LANES, SHUFFLE(fours[l], fours[l + 4], 0, 1, 2, 3, 8, 9, 10, 11));
    store(to + (l + 4) * LANES, SHUFFLE(fours[l], fours[l + 4], 4, 5, 6, 7, 12, 13, 14, 15));
  }
}

#define PASTE(a, b) a##_##b
#define JOIN(a, b) PASTE(a, b)
#define NAME(x) JOIN(x, REAL)

#define REAL float
#define INT int32_t
#define TRAILING 23
#define EXPONENT int8_t
#define NONE (-64)
#if defined(__AVX2__)
#define MOST(a, b) (EV)_mm256_max_epi8((__m256i)(a), (__m256i)(b))
#endif
#if defined(__FMA__)
#define FUSED(a, b, c) _mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c))
#endif
#include "core_matmul_real.h"

#define REAL double
#define INT int64_t
#define TRAILING 52
#define EXPONENT int16_t
#define NONE NOTHING
#if defined(__AVX2__)
#define MOST(a, b) (EV)_mm256_max_epi16((__m256i)(a), (__m256i)(b))
#endif
#if defined(__FMA__)
#define FUSED(a, b, c) _mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c))
#endif
#define WIDE
#include "core_matmul_real.h"

/* Rows m0 to m1 and columns n0 to n1 of the result; nonzero without memory. */
int32_t lp_matmul(const matmul *j, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  const unsigned before = mode_before();
  const int32_t failed = j->wide ? run_double(j, m0, m1, n0, n1) : run_float(j, m0, m1, n0, n1);
  restore(before);
  return failed;
}
