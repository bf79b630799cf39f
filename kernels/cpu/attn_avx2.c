
/* the attention kernel for AVX2, FMA and F16C */

#include "kernels/cpu/attn_impl.h"


const vlm_cpu_attn_t  vlm_cpu_attn_avx2 = VLM_ATTN_TABLE;
