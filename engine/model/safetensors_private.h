
#ifndef VLM_SAFETENSORS_PRIVATE_H
#define VLM_SAFETENSORS_PRIVATE_H


#include "engine/model/mapping.h"
#include "engine/model/safetensors.h"


typedef struct {
    char               *name;
    vlm_mapping_t      *map;                /* NULL: not ours */
} st_file_t;

struct vlm_safetensors_s {
    vlm_st_tensor_t    *tensors;            /* sorted by name, then file */
    size_t              ntensors;
    size_t              size;
    st_file_t          *files;
    int                 nfiles;
};


/* with file < 0: the first of that name */
vlm_st_tensor_t *vlm_st_lookup(const vlm_safetensors_t *st, const char *name,
    size_t len, int file);


#endif /* VLM_SAFETENSORS_PRIVATE_H */
