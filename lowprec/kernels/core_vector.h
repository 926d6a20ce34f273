/* Eight lanes in GCC's vector extensions; intrinsics only where C has no word for an operation. */
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

enum { LANES = 8 };
typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));

#define SPLAT(x) {x, x, x, x, x, x, x, x}
INLINE vf all(float x) { return (vf)SPLAT(x); }
INLINE vi alli(int32_t x) { return (vi)SPLAT(x); }

INLINE vf load(const float *p) { vf v; memcpy(&v, p, sizeof v); return v; }
INLINE void store(float *p, vf v) { memcpy(p, &v, sizeof v); }

/* The first n of LANES or more; zeros beyond them. */
INLINE vf load_part(const float *p, int64_t n) {
  vf v = {0};
  if (n >= LANES) return load(p);
  for (int64_t i = 0; i < n; i++) v[i] = p[i];
  return v;
}
INLINE void store_part(float *p, vf v, int64_t n) {
  if (n >= LANES) { store(p, v); return; }
  for (int64_t i = 0; i < n; i++) p[i] = v[i];
}

/* minus where x has the sign bit, else plus. */
INLINE vi by_sign(vi x, vi minus, vi plus) {
#if defined(__AVX__)
  return (vi)_mm256_blendv_ps((__m256)plus, (__m256)minus, (__m256)x);
#else
  return (minus & (x >> 31)) | (plus & ~(x >> 31));
#endif
}
/* `mask` is all ones or all zeros in every lane. */
INLINE vi either(vi mask, vi yes, vi no) { return by_sign(mask, yes, no); }
INLINE vi larger(vi a, vi b) {
#if defined(__AVX2__)
  return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
  return either(a > b, a, b);
#endif
}
INLINE vi smaller(vi a, vi b) {
#if defined(__AVX2__)
  return (vi)_mm256_min_epi32((__m256i)a, (__m256i)b);
#else
  return either(a < b, a, b);
#endif
}

/* x, or low or high where it lies beyond; low for NaN. */
INLINE vf between(vf x, vf low, vf high) {
#if defined(__AVX__)
  return (vf)_mm256_min_ps(_mm256_max_ps((__m256)x, (__m256)low), (__m256)high);
#else
  x = (vf)either(x > low, (vi)x, (vi)low);
  return (vf)either(x < high, (vi)x, (vi)high);
#endif
}

/* Past the caches, to an address that is a multiple of the vector's size; `streamed` orders it. */
#if defined(__AVX__)
enum { CAN_STREAM = 1 };
INLINE void stream(float *p, vf v) { _mm256_stream_ps(p, (__m256)v); }
INLINE void streamed(void) { _mm_sfence(); }
#else
enum { CAN_STREAM = 0 };
INLINE void stream(float *p, vf v) { store(p, v); }
INLINE void streamed(void) {}
#endif

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#endif

/* Lane i of the result is the largest lane of p[i]. The shuffles keep to halves while they can. */
INLINE vi largest_lanes(const vi p[LANES]) {
  vi pairs[4], fours[2];
  for (int i = 0; i < 4; i++) {
    vi a = p[2 * i], b = p[2 * i + 1];
    pairs[i] = larger(SHUFFLE(a, b, 0, 8, 1, 9, 4, 12, 5, 13), SHUFFLE(a, b, 2, 10, 3, 11, 6, 14, 7, 15));
  }
  for (int i = 0; i < 2; i++) {
    vi a = pairs[2 * i], b = pairs[2 * i + 1];
    fours[i] = larger(SHUFFLE(a, b, 0, 1, 8, 9, 4, 5, 12, 13), SHUFFLE(a, b, 2, 3, 10, 11, 6, 7, 14, 15));
  }
  return larger(SHUFFLE(fours[0], fours[1], 0, 1, 2, 3, 8, 9, 10, 11),
                SHUFFLE(fours[0], fours[1], 4, 5, 6, 7, 12, 13, 14, 15));
}

/* Entries c & 255, c >> 8 & 255 and so on; where all are `small`, below 16, by shuffles. */
INLINE vf entries(const float *table, uint64_t c, int small) {
#if defined(__AVX2__)
  if (small) {
    const __m256i k = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)c));
    const __m256 low = _mm256_permutevar8x32_ps((__m256)load(table), k);
    const __m256 high = _mm256_permutevar8x32_ps((__m256)load(table + LANES), k);
    return (vf)_mm256_blendv_ps(low, high, (__m256)_mm256_slli_epi32(k, 28)); /* where k >= 8 */
  }
#endif
  return (vf){table[c & 255],       table[c >> 8 & 255],  table[c >> 16 & 255], table[c >> 24 & 255],
              table[c >> 32 & 255], table[c >> 40 & 255], table[c >> 48 & 255], table[c >> 56]};
}

INLINE int32_t largest_lane(vi v) {
  int32_t m = v[0];
  for (int i = 1; i < LANES; i++) m = v[i] > m ? v[i] : m;
  return m;
}

/* Lanes of 0 to 255 as bytes, to the first n of p. */
INLINE void store_bytes(uint8_t *p, vi v, int64_t n) {
#if defined(__AVX2__)
  if (n >= LANES) {
    const __m256i w = (__m256i)v;
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(words, words));
    return;
  }
#endif
  for (int64_t i = 0; i < n && i < LANES; i++) p[i] = (uint8_t)v[i];
}

/* Of two vectors. */
INLINE void store_two(uint8_t *p, vi v, vi w) {
#if defined(__AVX2__)
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)v, (__m256i)w), 0xd8);
  _mm_storeu_si128((__m128i *)p, _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
#else
  store_bytes(p, v, LANES);
  store_bytes(p + LANES, w, LANES);
#endif
}
