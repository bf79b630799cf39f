
/* the row kernels in plain C */

#include "kernels/cpu/rows_impl.h"


const vlm_cpu_rows_t  vlm_cpu_rows_scalar = VLM_ROWS_TABLE;
