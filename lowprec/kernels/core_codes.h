/* Code points: of projected elements, and back, and packed. */

/* Of a format of up to 8 bits; see codec.py. */
typedef struct {
  int32_t mask, negates;       /* all bits; two's complement */
  int32_t sign, infinity, nan; /* the sign bit; codes of +Inf and NaN */
} code;

/* The code of a magnitude's code k. */
INLINE vi with_sign(vi k, vi x, const code *c, int has_minus_zero) {
  vi minus = x >> 31;
  if (c->negates) return ((k ^ minus) - minus) & c->mask;
  return k | (minus & (has_minus_zero ? alli(c->sign) : (k > 0) & c->sign));
}

/* Of a value. Magnitude codes grow with the magnitudes' patterns, once one binade is added to
 * normal numbers and the smallest normal number to the others. */
INLINE vi code_of(vf e, const grid *g, const code *c) {
  vi b = (vi)e, m = b & MAGNITUDE;
  vi low = (vi)((vf)m + (vf)alli(g->fixed));
  vi k = (either(m < g->fixed, low, m + (1 << 23)) >> g->shift) - (g->fixed >> g->shift);
  k = either(m == INFINITE, alli(c->infinity), k);
  return either(m > INFINITE, alli(c->nan), with_sign(k, b, c, 1));
}

/* Of what `saturated` gives: the significand, in units of its last place, appears in the sum. */
INLINE vi saturated_code(vi x, const grid *g, const code *c) {
  vi m = clamped(x, g, 0), exponent = binade(m, g), power = exponent + (g->shift << 23);
  vi k = (vi)((vf)m + (vf)power) - power + ((exponent - g->fixed) >> g->shift);
  return with_sign(k, x, c, 0);
}

/* The same where signs are alike: exponent and sign, which are even numbers of units, are in the
 * addend, and the code is what the sum ends with. */
INLINE vi mirrored_code(vi x, const grid *g, const code *c) {
  vi m = clamped(x, g, 1), exponent = binade(m, g);
  const int32_t plus = (g->shift << 23) - (g->fixed >> g->shift);
  vi addend = exponent + (exponent >> g->shift) + by_sign(x, alli(plus + c->sign), alli(plus));
  return (vi)((vf)m + (vf)addend) & c->mask;
}

/* Of UNIFORM: the sum ends with two's complement. */
INLINE vi uniform_code(vf x, const grid *g, const code *c) { return (vi)uniform_sum(x, g) & c->mask; }

/* Values of n codes, each times its own S or all times the first; the bits that occur in codes. */
INLINE uint64_t decode(const uint8_t *codes, float *y, int64_t n, const float *table, const float *s, int own,
                       int streams, int small) {
  int64_t i = 0;
  uint64_t bits = 0;
  for (; i + LANES <= n; i += LANES) {
    uint64_t c;
    memcpy(&c, codes + i, 8);
    bits |= c;
    const vf value = entries(table, c, small) * (own ? load(s + i) : all(s[0]));
    if (streams) stream(y + i, value);
    else store(y + i, value);
  }
  for (; i < n; bits |= codes[i++]) y[i] = table[codes[i]] * s[own ? i : 0];
  return bits;
}

/* Blocks of b along the k elements that lie `inner` apart, for `outer` slabs; `table` of 256.
 * Nonzero where a code has more than so many bits. */
int32_t lp_decode(const uint8_t *codes, float *y, int64_t outer, int64_t k, int64_t inner, int64_t b,
                  const float *table, const float *s, int32_t streams, int32_t bits) {
  uint64_t found = 0;
  for (int64_t o = 0; o < outer; o++)
    for (int64_t i = 0; i < k; i += b, s += inner) {
      const int64_t n = k - i < b ? k - i : b;
      for (int64_t row = 0; row < (inner == 1 ? 1 : n); row++) {
        const int64_t length = inner == 1 ? n : inner;
        found |= decode(codes, y, length, table, s, inner != 1, streams && CAN_STREAM, bits <= 4);
        codes += length;
        y += length;
      }
    }
  if (streams) streamed();
  return (found & (0x0101010101010101u * (255u >> bits << bits))) != 0;
}

/* Four times eight codes of b bits to four times b bytes and back: neighbours join, three times. */
typedef uint64_t v64 __attribute__((vector_size(32)));
#define EACH(mask) ((v64){mask, mask, mask, mask})
enum { EIGHTS = 4, AT_ONCE = 8 * EIGHTS };

INLINE v64 join(v64 v, int b) {
  v &= EACH(0x0101010101010101u * ((1u << b) - 1));
#if defined(__AVX2__)
  if (b < 8) {
    const __m256i bytes = _mm256_set1_epi16((short)(1 | 1 << (8 + b)));
    const __m256i words = _mm256_set1_epi32(1 | 1 << (16 + 2 * b));
    v = (v64)_mm256_madd_epi16(_mm256_maddubs_epi16(bytes, (__m256i)v), words);
    return (v & EACH(0x00000000ffffffffu)) | (v >> 32 << 4 * b);
  }
#endif
  v = (v & EACH(0x00ff00ff00ff00ffu)) | ((v & EACH(0xff00ff00ff00ff00u)) >> (8 - b));
  v = (v & EACH(0x0000ffff0000ffffu)) | ((v & EACH(0xffff0000ffff0000u)) >> (16 - 2 * b));
  return (v & EACH(0x00000000ffffffffu)) | ((v & EACH(0xffffffff00000000u)) >> (32 - 4 * b));
}

INLINE v64 part(v64 v, int b) {
  const uint64_t four = (1ull << 4 * b) - 1, two = 0x0000000100000001u * ((1ull << 2 * b) - 1);
  const uint64_t one = 0x0001000100010001u * ((1ull << b) - 1);
  v = (v & EACH(four)) | ((v & EACH(four << 4 * b)) << (32 - 4 * b));
  v = (v & EACH(two)) | ((v & EACH(two << 2 * b)) << (16 - 2 * b));
  return (v & EACH(one)) | ((v & EACH(one << b)) << (8 - b));
}

INLINE void store_eights(uint8_t *p, v64 v, int b) {
  for (int e = 0; e < EIGHTS; e++) { const uint64_t w = v[e]; memcpy(p + e * b, &w, 8); }
}

/* Nonzero where a code has more bits. */
int32_t lp_pack(const uint8_t *codes, uint8_t *bytes, int64_t n, int32_t b) {
  v64 beyond = {0};
  /* While eight bytes more are its own. */
  for (; n >= AT_ONCE + 64; n -= AT_ONCE, codes += AT_ONCE, bytes += EIGHTS * b) {
    v64 v;
    memcpy(&v, codes, AT_ONCE);
    beyond |= v;
    store_eights(bytes, join(v, b), b);
  }
  for (; n > 0; n -= AT_ONCE, codes += AT_ONCE, bytes += EIGHTS * b) {
    const int64_t left = n < AT_ONCE ? n : AT_ONCE;
    v64 v = {0};
    uint8_t eights[EIGHTS * 8 + 8];
    memcpy(&v, codes, (size_t)left);
    beyond |= v;
    store_eights(eights, join(v, b), b);
    memcpy(bytes, eights, (size_t)((left * b + 7) / 8));
  }
  const uint64_t all_codes = beyond[0] | beyond[1] | beyond[2] | beyond[3];
  return (all_codes & (0x0101010101010101u * (255u >> b << b))) != 0;
}

void lp_unpack(const uint8_t *bytes, uint8_t *codes, int64_t n, int32_t b) {
  for (int64_t i = 0; i < n; i += AT_ONCE, bytes += EIGHTS * b) {
    v64 v;
    uint8_t eights[EIGHTS * 8 + 8] = {0};
    const int whole = n - i >= AT_ONCE + 64;
    const uint8_t *from = whole ? bytes : eights;
    if (!whole) memcpy(eights, bytes, (size_t)(((n - i < AT_ONCE ? n - i : AT_ONCE) * b + 7) / 8));
    for (int e = 0; e < EIGHTS; e++) { uint64_t w; memcpy(&w, from + e * b, 8); v[e] = w; }
    v = part(v, b);
    if (whole) memcpy(codes + i, &v, AT_ONCE);
    else memcpy(codes + i, &v, (size_t)(n - i < AT_ONCE ? n - i : AT_ONCE));
  }
}
