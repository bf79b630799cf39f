
/* the attention kernel in plain C */

#include "kernels/cpu/attn_impl.h"


const vlm_cpu_attn_t  vlm_cpu_attn_scalar = VLM_ATTN_TABLE;
