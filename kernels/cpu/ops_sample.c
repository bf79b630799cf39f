
/* the operation that draws tokens, see sample.c */

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/sample.h"


typedef struct {
    vlm_queue_t         *q;
    const vlm_tensor_t  *logits;
    const vlm_sample_t  *params;
    vlm_sampled_t       *out;
} sample_job_t;


static void sample_task(void *arg, int task, int worker);


void
vlm_cpu_sample(vlm_queue_t *q, const vlm_tensor_t *logits,
    const vlm_sample_t *params, vlm_sampled_t *out)
{
    size_t        adjusts;
    int64_t       i;
    sample_job_t  job;

    if (logits->dtype != VLM_F32 || logits->cols <= 0) {
        vlm_cpu_fail(q, "sample: %d logits of type %d: must be float32",
                     (int) logits->cols, (int) logits->dtype);
        return;
    }

    adjusts = 0;

    for (i = 0; i < logits->rows; i++) {

        if ((size_t) params[i].nadjust > adjusts) {
            adjusts = params[i].nadjust;
        }
    }

    if (vlm_cpu_scratch_all(q, ((size_t) logits->cols * 2 + adjusts)
                               * sizeof(float))
        != 0)
    {
        return;
    }

    job.q = q;
    job.logits = logits;
    job.params = params;
    job.out = out;

    vlm_pool_run(q->dev->pool, (int) logits->rows, sample_task, &job);
}


static void
sample_task(void *arg, int task, int worker)
{
    int32_t             n;
    sample_job_t       *job = arg;
    vlm_sample_work_t   work;

    n = job->logits->cols;

    work.weight = vlm_cpu_scratch(job->q, worker);
    work.id = (int32_t *) (work.weight + n);
    work.raw = (float *) (work.id + n);

    vlm_sample_row(job->q->dev->rows,
                   (float *) job->logits->data + task * job->logits->stride,
                   n, &job->params[task], &work, &job->out[task]);
}
