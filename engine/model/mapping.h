
/*
 * A file that is mapped to be read.  Where it was made shorter meanwhile, or
 * its disk fails, the kernel raises SIGBUS in whatever thread reads: as long
 * as there are mappings a handler puts zeros there instead, and the reader
 * asks afterwards whether what it has read was the file.
 */

#ifndef VLM_MAPPING_H
#define VLM_MAPPING_H


#include <time.h>

#include "engine/base/vlm_base.h"


typedef struct vlm_mapping_s  vlm_mapping_t;

struct vlm_mapping_s {
    uint8_t            *data;
    size_t              len;
    struct timespec     mtime;
    char               *path;

    int                 cut;
    vlm_mapping_t      *next;
};


/* an empty file is an error */
vlm_mapping_t *vlm_mapping_open(const char *path, vlm_error_t *err);

/* NULL is fine */
void vlm_mapping_close(vlm_mapping_t *map);

/* VLM_ERROR if something else than the file has been read */
int vlm_mapping_whole(const vlm_mapping_t *map, vlm_error_t *err);


#endif /* VLM_MAPPING_H */
