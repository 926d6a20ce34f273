/* Code points: of projected elements, and back, and packed. */

/* Of a format of up to 8 bits; see codec.py. Magnitude codes grow with the magnitudes' patterns,
 * once one binade is added to normal numbers and the smallest normal number to the others. */
typedef struct {
  int32_t fixed, shift, first; /* as in grid; what stands in place of code 0 */
  int32_t negates;             /* two's complement */
  int32_t sign, infinity, nan; /* the sign bit; codes of +Inf and NaN */
} code;

INLINE vi code_of(vf e, const code *c) {
  vi b = (vi)e, m = b & MAGNITUDE, minus = b >> 31;
  vi low = (vi)((vf)m + (vf)alli(c->fixed));
  vi k = (either(m < c->fixed, low, m + (1 << 23)) >> c->shift) - c->first;
  k = either(m == INFINITE, alli(c->infinity), k);
  k = c->negates ? (k ^ minus) - minus : k | (minus & c->sign);
  return either(m > INFINITE, alli(c->nan), k);
}

/* Values of n codes, times their S, which `step` apart follow each other (0: the same for all). */
INLINE void decode(const uint8_t *codes, float *y, int64_t n, const float *table, const float *s, int64_t step,
                   int streams) {
  for (int64_t i = 0; i < n; i += LANES) {
    uint8_t c[LANES] = {0};
    memcpy(c, codes + i, n - i < LANES ? (size_t)(n - i) : LANES);
    vf v = {table[c[0]], table[c[1]], table[c[2]], table[c[3]], table[c[4]], table[c[5]], table[c[6]], table[c[7]]};
    v = v * (step ? load_part(s + i, n - i) : all(s[0]));
    if (streams && n - i >= LANES) stream(y + i, v);
    else store_part(y + i, v, n - i);
  }
}

/* Blocks of b along the k elements that lie `inner` apart, for `outer` slabs; `table` of 256. */
void lp_decode(const uint8_t *codes, float *y, int64_t outer, int64_t k, int64_t inner, int64_t b,
               const float *table, const float *s, int32_t streams) {
  for (int64_t o = 0; o < outer; o++)
    for (int64_t i = 0; i < k; i += b, s += inner) {
      const int64_t n = k - i < b ? k - i : b;
      for (int64_t row = 0; row < (inner == 1 ? 1 : n); row++) {
        const int64_t length = inner == 1 ? n : inner;
        decode(codes, y, length, table, s, inner != 1, streams && CAN_STREAM);
        codes += length;
        y += length;
      }
    }
  if (streams) streamed();
}

/* Four times eight codes of b bits to four times b bytes and back: neighbours join, three times. */
typedef uint64_t v64 __attribute__((vector_size(32)));
#define EACH(mask) ((v64){mask, mask, mask, mask})
enum { EIGHTS = 4, AT_ONCE = 8 * EIGHTS };

INLINE v64 join(v64 v, int b) {
  v &= EACH(0x0101010101010101u * ((1u << b) - 1));
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

void lp_pack(const uint8_t *codes, uint8_t *bytes, int64_t n, int32_t b) {
  for (int64_t i = 0; i < n; i += AT_ONCE) {
    v64 v = {0};
    const int64_t count = n - i < AT_ONCE ? n - i : AT_ONCE;
    memcpy(&v, codes + i, (size_t)count);
    v = join(v, b);
    uint8_t eights[EIGHTS * 8 + 8];
    for (int e = 0; e < EIGHTS; e++) { const uint64_t w = v[e]; memcpy(eights + e * b, &w, 8); }
    memcpy(bytes + i / 8 * b, eights, (size_t)((count * b + 7) / 8));
  }
}

void lp_unpack(const uint8_t *bytes, uint8_t *codes, int64_t n, int32_t b) {
  for (int64_t i = 0; i < n; i += AT_ONCE) {
    const int64_t count = n - i < AT_ONCE ? n - i : AT_ONCE;
    uint8_t eights[EIGHTS * 8 + 8] = {0};
    memcpy(eights, bytes + i / 8 * b, (size_t)((count * b + 7) / 8));
    v64 v;
    for (int e = 0; e < EIGHTS; e++) { uint64_t w; memcpy(&w, eights + e * b, 8); v[e] = w; }
    v = part(v, b);
    memcpy(codes + i, &v, (size_t)count);
  }
}
