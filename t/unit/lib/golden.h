
/*
 * Reference cases (t/data/golden) run through a model: a device with a model
 * on it, cases with their pictures, and decoder steps over several of them.
 */

#ifndef GOLDEN_H
#define GOLDEN_H


#include "engine/base/vlm_json.h"
#include "engine/model/model.h"


#define GOLDEN_PICTURES     4
#define GOLDEN_TOKENS       24          /* generated ones in a case */
#define GOLDEN_SEQS         17          /* sequences in a decoder */
#define GOLDEN_BLOCKS       32          /* of each of them */
#define GOLDEN_BLOCK        16
#define GOLDEN_ROWS         512


typedef struct {
    vlm_device_t       *dev;
    int                 owned;              /* the device */
    const vlm_ops_t    *ops;
    vlm_queue_t        *queue;
    vlm_model_t        *model;
    vlm_encoder_t      *encoder;
    vlm_decoder_t      *decoder;
} golden_rig_t;

/*
 * dev NULL: a CPU device of its own; else the caller's, who destroys it
 * later.  Failures are reported; 0 or -1.
 */
int golden_open(golden_rig_t *rig, const char *dir, vlm_device_t *dev,
    const vlm_ops_t *ops);
int golden_open_as(golden_rig_t *rig, const char *dir,
    const vlm_model_options_t *opt, vlm_device_t *dev, const vlm_ops_t *ops);
void golden_close(golden_rig_t *rig);


typedef struct {
    char                name[48];
    char                tensors[256];       /* path of the safetensors file */
    vlm_json_doc_t     *doc;
    const vlm_json_t   *json;
    size_t              npictures;
    vlm_image_t         pictures[GOLDEN_PICTURES];      /* as decoded */
    vlm_image_t         resized[GOLDEN_PICTURES];
    vlm_image_plan_t    plans[GOLDEN_PICTURES];
    vlm_prompt_t        prompt;
    int32_t            *positions;          /* [3][n] */
    int32_t             delta;
} golden_case_t;

int golden_load(golden_case_t *c, const vlm_model_t *m, const char *variant,
    const char *name);
void golden_free(golden_case_t *c);

/* decoded bytes of one of the pictures */
int golden_picture(const char *file, vlm_image_t *image);

/* all pictures of a case in one job, "budget" a step; NULL: failed */
vlm_encode_job_t *golden_encode(golden_rig_t *rig, const golden_case_t *c,
    double budget);

/* a tensor's values on the host, to be freed */
float *golden_download(const golden_rig_t *rig, const vlm_tensor_t *t);


/* a sequence in the decoder: ids are those of the prompt and of the answer */

typedef struct {
    const golden_case_t    *c;
    const vlm_tensor_t     *embeddings;     /* of all pictures, or NULL */
    int                     slot;           /* which blocks it has */
    vlm_ids_t               ids;
    int32_t                 computed;
    int32_t                 n;              /* rows in the next step */
} golden_seq_t;

int golden_begin(golden_seq_t *seq, const golden_case_t *c,
    const vlm_tensor_t *embeddings, int slot);

/*
 * One step over all sequences; logits [nseqs][vocab] of the last row of each
 * (may be NULL), sampled [nseqs]: the greedy token and 5 top ones.
 */
int golden_step(golden_rig_t *rig, golden_seq_t *seqs, int nseqs,
    float *logits, vlm_sampled_t *sampled);


#endif /* GOLDEN_H */
