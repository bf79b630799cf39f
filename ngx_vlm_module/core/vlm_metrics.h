
/*
 * Counters of requests, and how they are told: as Prometheus text or JSON.
 * One vlm_metrics_t belongs to one worker process and lies in memory that all
 * of them can read; it is changed by atomic additions only, so it is harmless
 * if two happen to share one.
 */

#ifndef VLM_METRICS_H
#define VLM_METRICS_H


#include "engine/channel/vlm_wire.h"

#include "vlm_out.h"


/* statuses that are told apart; the last one stands for all others */

#define VLM_METRICS_STATUSES    13

#define VLM_METRICS_FINISHES    2       /* VLM_FINISH_* - 1 */
#define VLM_METRICS_OUTCOMES    5       /* VLM_CACHE_* - 1 */

#define VLM_METRICS_BOUNDS      14


/* the last bucket has no bound; buckets are not cumulative here */

typedef struct {
    uint64_t            buckets[VLM_METRICS_BOUNDS + 1];
    uint64_t            sum_ms;
} vlm_histogram_t;

/* nothing but 64-bit numbers */

typedef struct {
    uint64_t            in_flight;
    uint64_t            requests[VLM_METRICS_STATUSES];
    uint64_t            finishes[VLM_METRICS_FINISHES];
    uint64_t            received_bytes;
    uint64_t            images;
    uint64_t            prompt_tokens;
    uint64_t            cached_tokens;
    uint64_t            image_tokens;
    uint64_t            completion_tokens;
    uint64_t            outcomes[VLM_METRICS_OUTCOMES];
    vlm_histogram_t     first_token;
    vlm_histogram_t     token_gap;
    vlm_histogram_t     total;
} vlm_metrics_t;

typedef struct {
    const char         *name;
    size_t              name_len;
    unsigned            up;             /* 0: the rest is not known */
    uint32_t            state;          /* VLM_STATE_* */
    vlm_gauges_t        gauges;
} vlm_metrics_engine_t;


void vlm_metrics_add(uint64_t *counter, uint64_t n);
void vlm_metrics_status(vlm_metrics_t *m, unsigned status);

/* "n" observations of "ms" milliseconds each */
void vlm_metrics_observe(vlm_histogram_t *h, uint64_t ms, uint64_t n);

/* adds what another process may be changing */
void vlm_metrics_sum(vlm_metrics_t *to, const vlm_metrics_t *from);

void vlm_metrics_prometheus(vlm_out_t *o, const vlm_metrics_t *m,
    unsigned workers, const vlm_metrics_engine_t *engines, size_t nengines);
void vlm_metrics_json(vlm_out_t *o, const vlm_metrics_t *m, unsigned workers,
    const vlm_metrics_engine_t *engines, size_t nengines);


#endif /* VLM_METRICS_H */
