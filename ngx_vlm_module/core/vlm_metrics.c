
#include <string.h>

#include "vlm_metrics.h"


typedef struct {
    const char         *prometheus;
    const char         *json;
    const char         *type;
    const char         *help;
    size_t              offset;
} metric_t;

#define COUNTER(name, json, help, member)                                     \
    { "ngx_vlm_" name, json, "counter", help,                                 \
      offsetof(vlm_metrics_t, member) }

#define HISTOGRAM(name, json, help, member)                                   \
    { "ngx_vlm_" name, json, "histogram", help,                               \
      offsetof(vlm_metrics_t, member) }

#define GAUGE(name, json, help, member)                                       \
    { "ngx_vlm_engine_" name, json, "gauge", help,                            \
      offsetof(vlm_gauges_t, member) }


static const metric_t  counters[] = {
    COUNTER("received_bytes_total", "received_bytes",
            "Bytes of request bodies", received_bytes),
    COUNTER("images_total", "images", "Images received", images),
    COUNTER("prompt_tokens_total", "prompt_tokens",
            "Tokens of prompts, image tokens included", prompt_tokens),
    COUNTER("cached_tokens_total", "cached_tokens",
            "Tokens of prompts that the prefix cache had", cached_tokens),
    COUNTER("image_tokens_total", "image_tokens",
            "Tokens of prompts that stand for images", image_tokens),
    COUNTER("generation_tokens_total", "generation_tokens",
            "Tokens generated", completion_tokens)
};

static const metric_t  histograms[] = {
    HISTOGRAM("time_to_first_token_seconds", "time_to_first_token",
              "From the start of a request to its first token", first_token),
    HISTOGRAM("inter_token_latency_seconds", "inter_token_latency",
              "Between two tokens of a choice", token_gap),
    HISTOGRAM("e2e_request_latency_seconds", "e2e_request_latency",
              "Of requests that were answered", total)
};

static const metric_t  gauges[] = {
    GAUGE("num_requests_running", "running", "Requests that run", running),
    GAUGE("num_requests_waiting", "waiting", "Requests that wait", queued),
    GAUGE("kv_blocks", "kv_blocks", "Blocks of the KV cache", kv_blocks),
    GAUGE("kv_blocks_free", "kv_blocks_free", "Free ones", kv_blocks_free),
    GAUGE("first_token_milliseconds", "first_token_ms",
          "Recent mean time to the first token", first_token_ms)
};

/* milliseconds */

static const uint64_t  bounds[VLM_METRICS_BOUNDS] = {
    5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000, 60000,
    300000
};

static const unsigned  statuses[VLM_METRICS_STATUSES] = {
    200, 400, 404, 405, 408, 413, 415, 499, 500, 502, 503, 504, 0
};

static const char  *finishes[VLM_METRICS_FINISHES] = { "stop", "length" };

static const char  *outcomes[VLM_METRICS_OUTCOMES] = {
    "miss", "joined", "hit-memory", "hit-redis", "prefix"
};

static const char  *states[] = { "loading", "ready", "draining", "failed" };

#define NELTS(a)  (sizeof(a) / sizeof((a)[0]))


static uint64_t number_at(const void *base, size_t offset);
static void put(vlm_out_t *o, const char *before, uint64_t n,
    const char *after);
static void put_seconds(vlm_out_t *o, uint64_t ms);
static void put_status(vlm_out_t *o, size_t i);
static void head(vlm_out_t *o, const char *name, const char *type,
    const char *help);
static void labelled(vlm_out_t *o, const char *name, const char *label,
    const char *value, uint64_t n);
static void prometheus_histogram(vlm_out_t *o, const metric_t *metric,
    const vlm_histogram_t *h);
static void prometheus_engines(vlm_out_t *o,
    const vlm_metrics_engine_t *engines, size_t n);
static void engine_label(vlm_out_t *o, const vlm_metrics_engine_t *e);
static void json_histogram(vlm_out_t *o, const metric_t *metric,
    const vlm_histogram_t *h);
static void json_engine(vlm_out_t *o, const vlm_metrics_engine_t *e);
static const char *state_name(const vlm_metrics_engine_t *e);


void
vlm_metrics_add(uint64_t *counter, uint64_t n)
{
    (void) __atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}


void
vlm_metrics_status(vlm_metrics_t *m, unsigned status)
{
    size_t  i;

    for (i = 0; i < VLM_METRICS_STATUSES - 1; i++) {
        if (statuses[i] == status) {
            break;
        }
    }

    vlm_metrics_add(&m->requests[i], 1);
}


void
vlm_metrics_observe(vlm_histogram_t *h, uint64_t ms, uint64_t n)
{
    size_t  i;

    for (i = 0; i < VLM_METRICS_BOUNDS && ms > bounds[i]; i++) {
        /* void */
    }

    vlm_metrics_add(&h->buckets[i], n);
    vlm_metrics_add(&h->sum_ms, ms * n);
}


void
vlm_metrics_sum(vlm_metrics_t *to, const vlm_metrics_t *from)
{
    size_t           i;
    uint64_t        *t;
    const uint64_t  *f;

    t = (uint64_t *) to;
    f = (const uint64_t *) from;

    for (i = 0; i < sizeof(vlm_metrics_t) / sizeof(uint64_t); i++) {
        t[i] += __atomic_load_n(&f[i], __ATOMIC_RELAXED);
    }
}


void
vlm_metrics_prometheus(vlm_out_t *o, const vlm_metrics_t *m,
    unsigned workers, const vlm_metrics_engine_t *engines, size_t nengines)
{
    size_t  i;

    head(o, "ngx_vlm_workers", "gauge", "Worker processes that count here");
    put(o, "ngx_vlm_workers ", workers, "\n");

    head(o, "ngx_vlm_requests_in_flight", "gauge", "Requests in NGINX");
    put(o, "ngx_vlm_requests_in_flight ", m->in_flight, "\n");

    head(o, "ngx_vlm_requests_total", "counter",
         "Requests by status; 499: the client left");

    for (i = 0; i < VLM_METRICS_STATUSES; i++) {
        vlm_out_str(o, "ngx_vlm_requests_total{status=\"");
        put_status(o, i);
        put(o, "\"} ", m->requests[i], "\n");
    }

    head(o, "ngx_vlm_request_success_total", "counter",
         "Answers by the reason of their end");

    for (i = 0; i < VLM_METRICS_FINISHES; i++) {
        labelled(o, "ngx_vlm_request_success_total", "finished_reason",
                 finishes[i], m->finishes[i]);
    }

    for (i = 0; i < NELTS(counters); i++) {
        head(o, counters[i].prometheus, counters[i].type, counters[i].help);
        vlm_out_str(o, counters[i].prometheus);
        put(o, " ", number_at(m, counters[i].offset), "\n");
    }

    head(o, "ngx_vlm_image_cache_total", "counter",
         "Images by where their embedding came from");

    for (i = 0; i < VLM_METRICS_OUTCOMES; i++) {
        labelled(o, "ngx_vlm_image_cache_total", "outcome", outcomes[i],
                 m->outcomes[i]);
    }

    for (i = 0; i < NELTS(histograms); i++) {
        prometheus_histogram(o, &histograms[i], (const vlm_histogram_t *)
                             ((const char *) m + histograms[i].offset));
    }

    prometheus_engines(o, engines, nengines);
}


static void
prometheus_histogram(vlm_out_t *o, const metric_t *metric,
    const vlm_histogram_t *h)
{
    size_t    i;
    uint64_t  n;

    head(o, metric->prometheus, metric->type, metric->help);

    n = 0;

    for (i = 0; i <= VLM_METRICS_BOUNDS; i++) {
        n += h->buckets[i];

        vlm_out_str(o, metric->prometheus);
        vlm_out_str(o, "_bucket{le=\"");

        if (i == VLM_METRICS_BOUNDS) {
            vlm_out_str(o, "+Inf");

        } else {
            put_seconds(o, bounds[i]);
        }

        put(o, "\"} ", n, "\n");
    }

    vlm_out_str(o, metric->prometheus);
    vlm_out_str(o, "_sum ");
    put_seconds(o, h->sum_ms);
    vlm_out_str(o, "\n");
    vlm_out_str(o, metric->prometheus);
    put(o, "_count ", n, "\n");
}


static void
prometheus_engines(vlm_out_t *o, const vlm_metrics_engine_t *engines,
    size_t n)
{
    size_t  i, k;

    head(o, "ngx_vlm_engine_up", "gauge", "Whether the engine is connected");

    for (i = 0; i < n; i++) {
        vlm_out_str(o, "ngx_vlm_engine_up{");
        engine_label(o, &engines[i]);
        put(o, "} ", engines[i].up, "\n");
    }

    head(o, "ngx_vlm_engine_state", "gauge", "1 for the engine's state");

    for (i = 0; i < n; i++) {
        for (k = 0; k < NELTS(states); k++) {
            vlm_out_str(o, "ngx_vlm_engine_state{");
            engine_label(o, &engines[i]);
            vlm_out_str(o, ",state=\"");
            vlm_out_str(o, states[k]);
            put(o, "\"} ", engines[i].up && engines[i].state == k, "\n");
        }
    }

    for (k = 0; k < NELTS(gauges); k++) {
        head(o, gauges[k].prometheus, gauges[k].type, gauges[k].help);

        for (i = 0; i < n; i++) {

            if (!engines[i].up) {
                continue;
            }

            vlm_out_str(o, gauges[k].prometheus);
            vlm_out_str(o, "{");
            engine_label(o, &engines[i]);
            put(o, "} ", *(const uint32_t *) ((const char *)
                         &engines[i].gauges + gauges[k].offset), "\n");
        }
    }
}


void
vlm_metrics_json(vlm_out_t *o, const vlm_metrics_t *m, unsigned workers,
    const vlm_metrics_engine_t *engines, size_t nengines)
{
    size_t  i;

    put(o, "{\"workers\":", workers, "");
    put(o, ",\"requests_in_flight\":", m->in_flight, ",\"requests\":{");

    for (i = 0; i < VLM_METRICS_STATUSES; i++) {
        vlm_out_str(o, (i == 0) ? "\"" : ",\"");
        put_status(o, i);
        put(o, "\":", m->requests[i], "");
    }

    vlm_out_str(o, "},\"request_success\":{");

    for (i = 0; i < VLM_METRICS_FINISHES; i++) {
        vlm_out_str(o, (i == 0) ? "\"" : ",\"");
        vlm_out_str(o, finishes[i]);
        put(o, "\":", m->finishes[i], "");
    }

    vlm_out_str(o, "}");

    for (i = 0; i < NELTS(counters); i++) {
        vlm_out_str(o, ",\"");
        vlm_out_str(o, counters[i].json);
        put(o, "\":", number_at(m, counters[i].offset), "");
    }

    vlm_out_str(o, ",\"image_cache\":{");

    for (i = 0; i < VLM_METRICS_OUTCOMES; i++) {
        vlm_out_str(o, (i == 0) ? "\"" : ",\"");
        vlm_out_str(o, outcomes[i]);
        put(o, "\":", m->outcomes[i], "");
    }

    vlm_out_str(o, "}");

    for (i = 0; i < NELTS(histograms); i++) {
        json_histogram(o, &histograms[i], (const vlm_histogram_t *)
                       ((const char *) m + histograms[i].offset));
    }

    vlm_out_str(o, ",\"engines\":[");

    for (i = 0; i < nengines; i++) {
        vlm_out_str(o, (i == 0) ? "" : ",");
        json_engine(o, &engines[i]);
    }

    vlm_out_str(o, "]}\n");
}


/* buckets as pairs of a bound and a cumulative number; null: no bound */

static void
json_histogram(vlm_out_t *o, const metric_t *metric, const vlm_histogram_t *h)
{
    size_t    i;
    uint64_t  n;

    vlm_out_str(o, ",\"");
    vlm_out_str(o, metric->json);
    vlm_out_str(o, "\":{\"buckets\":[");

    n = 0;

    for (i = 0; i <= VLM_METRICS_BOUNDS; i++) {
        n += h->buckets[i];

        vlm_out_str(o, (i == 0) ? "[" : ",[");

        if (i == VLM_METRICS_BOUNDS) {
            vlm_out_str(o, "null");

        } else {
            put_seconds(o, bounds[i]);
        }

        put(o, ",", n, "]");
    }

    put(o, "],\"count\":", n, ",\"sum\":");
    put_seconds(o, h->sum_ms);
    vlm_out_str(o, "}");
}


static void
json_engine(vlm_out_t *o, const vlm_metrics_engine_t *e)
{
    size_t  i;

    vlm_out_str(o, "{\"name\":\"");
    vlm_out_json(o, e->name, e->name_len);
    vlm_out_str(o, e->up ? "\",\"up\":true" : "\",\"up\":false");

    if (e->up) {
        vlm_out_str(o, ",\"state\":\"");
        vlm_out_str(o, state_name(e));
        vlm_out_str(o, "\"");

        for (i = 0; i < NELTS(gauges); i++) {
            vlm_out_str(o, ",\"");
            vlm_out_str(o, gauges[i].json);
            put(o, "\":", *(const uint32_t *) ((const char *) &e->gauges
                                               + gauges[i].offset), "");
        }
    }

    vlm_out_str(o, "}");
}


static const char *
state_name(const vlm_metrics_engine_t *e)
{
    return states[(e->state < NELTS(states)) ? e->state : VLM_STATE_FAILED];
}


static uint64_t
number_at(const void *base, size_t offset)
{
    return *(const uint64_t *) ((const char *) base + offset);
}


static void
put(vlm_out_t *o, const char *before, uint64_t n, const char *after)
{
    vlm_out_str(o, before);
    vlm_out_uint(o, n);
    vlm_out_str(o, after);
}


/* without zeros at the end, so that a bound is one and the same label */

static void
put_seconds(vlm_out_t *o, uint64_t ms)
{
    char    buf[4];
    size_t  len;

    vlm_out_uint(o, ms / 1000);

    buf[0] = '.';
    buf[1] = '0' + ms / 100 % 10;
    buf[2] = '0' + ms / 10 % 10;
    buf[3] = '0' + ms % 10;

    for (len = 4; len > 1 && buf[len - 1] == '0'; len--) {
        /* void */
    }

    vlm_out_bytes(o, buf, (len == 1) ? 0 : len);
}


static void
put_status(vlm_out_t *o, size_t i)
{
    if (statuses[i] == 0) {
        vlm_out_str(o, "other");
        return;
    }

    vlm_out_uint(o, statuses[i]);
}


static void
head(vlm_out_t *o, const char *name, const char *type, const char *help)
{
    vlm_out_str(o, "# HELP ");
    vlm_out_str(o, name);
    vlm_out_str(o, " ");
    vlm_out_str(o, help);
    vlm_out_str(o, ".\n# TYPE ");
    vlm_out_str(o, name);
    vlm_out_str(o, " ");
    vlm_out_str(o, type);
    vlm_out_str(o, "\n");
}


static void
labelled(vlm_out_t *o, const char *name, const char *label,
    const char *value, uint64_t n)
{
    vlm_out_str(o, name);
    vlm_out_str(o, "{");
    vlm_out_str(o, label);
    vlm_out_str(o, "=\"");
    vlm_out_str(o, value);
    put(o, "\"} ", n, "\n");
}


static void
engine_label(vlm_out_t *o, const vlm_metrics_engine_t *e)
{
    size_t  i;

    vlm_out_str(o, "engine=\"");

    for (i = 0; i < e->name_len; i++) {

        if (e->name[i] == '\n') {
            vlm_out_str(o, "\\n");
            continue;
        }

        if (e->name[i] == '"' || e->name[i] == '\\') {
            vlm_out_str(o, "\\");
        }

        vlm_out_bytes(o, &e->name[i], 1);
    }

    vlm_out_str(o, "\"");
}
