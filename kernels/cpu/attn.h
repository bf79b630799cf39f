
/*
 * The attention kernel: query vectors over keys and values packed in tiles
 * of 16 positions; attn_impl.h has it over the lanes of vec.h, attn_ISA.c
 * compiles it.
 *
 * A tile of one kv head is K transposed, [head_dim][16], then V, [16][width]
 * with head_dim rounded up to 16 and zeros in the rest.
 *
 * The softmax runs online over groups of 4 tiles counted from position 0, so
 * a query's result depends on its keys alone: not on the queries beside it,
 * nor on how the keys came in.
 */

#ifndef VLM_ATTN_H
#define VLM_ATTN_H


#include "kernels/cpu/cpu.h"


#define VLM_ATTN_TILE       16
#define VLM_ATTN_GROUP      4               /* tiles */

/* head_dim at most; queries of one call at most */
#define VLM_ATTN_MAX_DIM    (2 * VLM_ROPE_MAX_PAIRS)
#define VLM_ATTN_QUERIES    48


typedef struct {
    int                   head_dim;
    float                 scale;
    int                   nqueries;
    const float          *q[VLM_ATTN_QUERIES];      /* head_dim each */
    float                *y[VLM_ATTN_QUERIES];      /* head_dim each */
    int32_t               nkeys[VLM_ATTN_QUERIES];  /* 1 or more; the query
                                                       sees keys below it */
    const float *const   *tiles;            /* up to the greatest nkeys */
    float                *work;             /* vlm_attn_work_floats(), 64-byte
                                               aligned */
} vlm_attn_call_t;


struct vlm_cpu_attn_s {
    void (*run)(const vlm_attn_call_t *call);
};

extern const vlm_cpu_attn_t  vlm_cpu_attn_scalar;
extern const vlm_cpu_attn_t  vlm_cpu_attn_avx2;
extern const vlm_cpu_attn_t  vlm_cpu_attn_avx512;


static inline int
vlm_attn_width(int head_dim)
{
    return (head_dim + VLM_ATTN_TILE - 1) / VLM_ATTN_TILE * VLM_ATTN_TILE;
}


/* K and V of one tile of one kv head */

static inline size_t
vlm_attn_tile_floats(int head_dim)
{
    return (size_t) VLM_ATTN_TILE * (head_dim + vlm_attn_width(head_dim));
}


/* what a call needs at "work" at most */

static inline size_t
vlm_attn_work_floats(int head_dim)
{
    return (size_t) VLM_ATTN_QUERIES
           * (vlm_attn_width(head_dim) * 2 + 3 * VLM_ATTN_TILE);
}


#endif /* VLM_ATTN_H */
