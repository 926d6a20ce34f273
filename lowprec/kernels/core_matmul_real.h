/* The steps of a matmul in one type of numbers; included once for each, see core_matmul.h. REAL,
 * INT of its size, EXPONENT of a quarter of it, TRAILING bits of its significand. */
#include "core_matmul_values.h"
#include "core_matmul_round.h"
#include "core_matmul_sums.h"
#if defined(WIDE)
#include "core_matmul_groups.h"
#endif
#include "core_matmul_run.h"

#undef L
#undef V
#undef I
#undef EV
#undef BIAS
#undef MINUS
#undef EXPONENT_FIELD
#undef REAL
#undef INT
#undef TRAILING
#undef EXPONENT
#undef NONE
#undef MOST
#undef FUSED
