
/* How a request's tokens are drawn. */

#ifndef VLM_SAMPLING_H
#define VLM_SAMPLING_H


#include "engine/channel/vlm_record.h"
#include "engine/model/model.h"
#include "kernels/ops.h"


/* {0} is an empty one; op.adjust points into "adjust" */

typedef struct {
    vlm_sample_t        op;
    int                 track;          /* penalties: tokens are counted */
    vlm_adjust_t       *adjust;         /* ids ascending */
    size_t              nadjust;
    size_t              size;
} vlm_sampler_t;


/*
 * A field comes from the request, else from generation_config.json, where
 * do_sample false means greedy; a seed that is not given is drawn.
 */
int vlm_sampler_init(vlm_sampler_t *s, const vlm_request_t *req,
    const vlm_generation_t *gen, int32_t vocab, const vlm_ids_t *prompt,
    vlm_error_t *err);
void vlm_sampler_free(vlm_sampler_t *s);

/* a token has been generated: it counts for the penalties from now on */
int vlm_sampler_token(vlm_sampler_t *s, int32_t id);


#endif /* VLM_SAMPLING_H */
