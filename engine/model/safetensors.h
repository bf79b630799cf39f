
/*
 * The tensors of a checkpoint: model.safetensors, or the files that
 * model.safetensors.index.json lists, memory-mapped.  Everything a header
 * says is checked against the file: offsets, shapes, types; as in the
 * reference library, tensors must cover the data exactly.
 */

#ifndef VLM_SAFETENSORS_H
#define VLM_SAFETENSORS_H


#include "engine/base/vlm_base.h"
#include "kernels/ops.h"


#define VLM_ST_MAX_RANK     8
#define VLM_ST_MAX_HEADER   100000000
#define VLM_ST_MAX_FILES    4096


typedef struct {
    char               *name;
    char                type[12];           /* as in the file: "BF16" */
    int                 usable;             /* dtype is set: BF16, F16, F32 */
    vlm_dtype_t         dtype;
    int                 rank;
    int64_t             shape[VLM_ST_MAX_RANK];
    int64_t             count;              /* elements */
    const uint8_t      *data;               /* of any alignment */
    uint64_t            size;
    int                 file;
    int                 listed;             /* by the index */
} vlm_st_tensor_t;

typedef struct vlm_safetensors_s  vlm_safetensors_t;


/* an empty set, and one file of it in memory, which must stay as it is */
vlm_safetensors_t *vlm_st_create(vlm_error_t *err);
int vlm_st_add(vlm_safetensors_t *st, const char *file, const uint8_t *data,
    size_t len, vlm_error_t *err);

/* what lies in a directory */
vlm_safetensors_t *vlm_st_open(const char *dir, vlm_error_t *err);

/* frees the set and unmaps the files; NULL is fine */
void vlm_st_free(vlm_safetensors_t *st);

const vlm_st_tensor_t *vlm_st_find(const vlm_safetensors_t *st,
    const char *name);
size_t vlm_st_count(const vlm_safetensors_t *st);
uint64_t vlm_st_bytes(const vlm_safetensors_t *st);

/* VLM_ERROR if a file was cut while it was read: see mapping.h */
int vlm_st_whole(const vlm_safetensors_t *st, vlm_error_t *err);

/* appends a line for each file: its name, size and time of modification */
int vlm_st_describe(const vlm_safetensors_t *st, vlm_buf_t *out);


#endif /* VLM_SAFETENSORS_H */
