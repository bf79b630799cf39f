
/* the attention kernel for AVX-512 F, BW, VL and DQ */

#include "kernels/cpu/attn_impl.h"


const vlm_cpu_attn_t  vlm_cpu_attn_avx512 = VLM_ATTN_TABLE;
