/* Fake quantization and quantization of float32 arrays at memory speed: the arithmetic of
 * round.py, scale.py, block.py and codec.py with formats and rules as run-time numbers.
 *
 * Magnitudes are compared as integers. Needs IEEE arithmetic with subnormals: no -ffast-math, no
 * flush-to-zero (core.py tests that at load). Blocks are handled in strips that stay in the
 * first-level cache: first all scales, then all elements, so that neither waits for the other.
 */
#include "core_vector.h"
#include "core_grid.h"
#include "core_scale.h"
#include "core_codes.h"
#include "core_blocks.h"
#include "core_columns.h"
#include "core_task.h"
#include "core_matmul.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

/* Fresh memory in large pages, where it has whole ones: zeroing them costs half as much. */
void lp_huge(void *p, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
  const uintptr_t page = 1 << 21, first = ((uintptr_t)p + page - 1) / page * page;
  const uintptr_t end = ((uintptr_t)p + (uintptr_t)bytes) / page * page;
  if (end > first) (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
#endif
}
