/* Scales of eight blocks from their largest magnitudes; see ScaleRule in scale.py. */
typedef struct {
  int32_t power_of_two, divides;
  float largest;
  int32_t carry, emax, lowest, highest;
  int32_t has_outer; /* a scale t of the tensor */
  grid onto;
} rule;

/* s, the whole S = RN(s * t), and what elements are multiplied with (the inverse of a power of
 * two, which is exact) or divided by: where S = 0 that is Inf, which leaves zeros with signs. */
typedef struct { vf own, whole, by; } scales;

/* 2^(the rule's exponent) of v, which is A or RN(A / M). */
INLINE vf power_of_two(vf v, const rule *r) {
  vi p = (vi)v, subnormal = p < 1 << 23;
  /* An integer, which a subnormal's pattern is, converts exactly. */
  vi q = either(subnormal, (vi)__builtin_convertvector(p, vf), p);
  vi e = (q >> 23) - 127 - (subnormal & 149);
  e += ((q & 0x7fffff) + r->carry) >> 23;
  e = either(p == 0, alli(r->lowest), e - r->emax);
  e = smaller(larger(e, alli(r->lowest)), alli(r->highest));
  vi tiny = 1 << (larger(e + 149, alli(0)) & 31);
  return (vf)either(e < -126, tiny, (e + 127) << 23);
}

INLINE scales scales_of(vi amax, const rule *r, float t) {
  vi bad = amax >= INFINITE;
  scales s;
  if (r->power_of_two) {
    vf v = (vf)amax;
    v = power_of_two(r->divides ? v / r->largest : v, r);
    s.own = s.whole = (vf)either(bad, alli(NOT_A_NUMBER), (vi)v);
    s.by = 1 / s.whole;
    return s;
  }
  vf v = (vf)amax / r->largest;
  if (r->has_outer) v = v / (t == 0 ? __builtin_inff() : t);
  s.own = r->onto.saturates ? saturated((vi)v, &r->onto, SATURATES, 0, 0) : project(v, &r->onto, ANY, 0, 0);
  s.own = (vf)either(bad | is_nan(v), alli(NOT_A_NUMBER), (vi)s.own);
  s.whole = r->has_outer ? s.own * t : s.own;
  s.by = (vf)either(s.whole == 0, alli(INFINITE), (vi)s.whole);
  return s;
}
