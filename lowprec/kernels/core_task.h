/* What a call asks for. */

/* What all calls with a quantizer and a shape share: blocks of b along k elements that lie `inner`
 * apart. No rule: no scales; b = 0: one block of all elements; k = 0: the elements are one slab. */
typedef struct {
  const grid *onto;
  const rule *scale;
  const code *code;
  int64_t k, inner, b;
} task;

/* n elements, the first of number `first`: to y, or to codes and scales. Nonzero where a code stands
 * for a NaN. amax: the largest magnitude of all, of a block of all elements. largest: gets that of
 * other blocks, if not null. */
int32_t lp_quantize(const task *t, const float *x, float *y, uint8_t *codes, float *scales, int64_t first,
                    int64_t n, uint64_t seed, int32_t amax, float outer, int32_t streams, int32_t *largest) {
  const job j = {x, y, codes, scales, first, seed, outer, streams, largest, t->onto, t->scale, t->code};
  if (!t->scale) return cast(&j, n);
  if (!t->b) return apply(&j, n, amax);
  const int64_t k = t->k ? t->k : n / t->inner, slabs = n / (k * t->inner);
  return t->inner == 1 ? rows(&j, slabs, k, t->b) : columns(&j, slabs, k, t->inner, t->b);
}
