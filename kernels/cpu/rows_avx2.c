
/* the row kernels for AVX2, FMA and F16C */

#include "kernels/cpu/rows_impl.h"


const vlm_cpu_rows_t  vlm_cpu_rows_avx2 = VLM_ROWS_TABLE;
