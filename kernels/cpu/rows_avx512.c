
/* the row kernels for AVX-512 F, BW, VL and DQ */

#include "kernels/cpu/rows_impl.h"


const vlm_cpu_rows_t  vlm_cpu_rows_avx512 = VLM_ROWS_TABLE;
