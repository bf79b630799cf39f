
/* Counters, histograms, and both ways to tell them. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ngx_vlm_module/core/vlm_metrics.h"
#include "t/unit/lib/tap.h"


static void check_counts(void);
static void check_histogram(void);
static void check_prometheus(void);
static void check_json(void);
static void has(const char *line);


static char                  buf[65536];
static vlm_metrics_t         m;
static vlm_metrics_engine_t  engines[2];


int
main(void)
{
    check_counts();
    check_histogram();
    check_prometheus();
    check_json();

    return tap_done();
}


static void
check_counts(void)
{
    size_t         i;
    uint64_t      *n;
    vlm_metrics_t  sum;

    static const unsigned  told[] = {
        200, 400, 404, 405, 408, 413, 415, 499, 500, 502, 503, 504
    };

    for (i = 0; i < sizeof(told) / sizeof(told[0]); i++) {
        vlm_metrics_status(&m, told[i]);
        tap_is(m.requests[i], 1, "status %u", told[i]);
    }

    vlm_metrics_status(&m, 418);
    vlm_metrics_status(&m, 0);
    vlm_metrics_status(&m, 201);
    tap_is(m.requests[VLM_METRICS_STATUSES - 1], 3, "others");

    memset(&sum, 0, sizeof(vlm_metrics_t));
    n = (uint64_t *) &m;

    for (i = 0; i < sizeof(m) / 8; i++) {
        n[i] = 1000 + i;
    }

    vlm_metrics_sum(&sum, &m);
    vlm_metrics_sum(&sum, &m);

    n = (uint64_t *) &sum;

    for (i = 0; i < sizeof(m) / 8 && n[i] == 2 * (1000 + i); i++) {
        /* void */
    }

    tap_is(i, sizeof(m) / 8, "every number is summed");

    memset(&m, 0, sizeof(vlm_metrics_t));

    vlm_metrics_add(&m.in_flight, 2);
    vlm_metrics_add(&m.in_flight, (uint64_t) -1);
    tap_is(m.in_flight, 1, "a gauge goes down too");
}


static void
check_histogram(void)
{
    vlm_histogram_t  h;

    memset(&h, 0, sizeof(h));

    vlm_metrics_observe(&h, 0, 1);
    vlm_metrics_observe(&h, 5, 1);
    vlm_metrics_observe(&h, 6, 3);
    vlm_metrics_observe(&h, 300000, 1);
    vlm_metrics_observe(&h, 300001, 2);

    tap_is(h.buckets[0], 2, "up to a bound");
    tap_is(h.buckets[1], 3, "above it");
    tap_is(h.buckets[VLM_METRICS_BOUNDS - 1], 1, "the last bound");
    tap_is(h.buckets[VLM_METRICS_BOUNDS], 2, "beyond");
    tap_is(h.sum_ms, 5 + 18 + 300000 + 600002, "the sum");
}


static void
has(const char *line)
{
    tap_ok(strstr(buf, line) != NULL, "%s", line);
}


static void
check_prometheus(void)
{
    size_t     n;
    vlm_out_t  o;

    m.requests[0] = 7;
    m.requests[VLM_METRICS_STATUSES - 1] = 2;
    m.finishes[1] = 3;
    m.received_bytes = 18446744073709551615ull;
    m.outcomes[2] = 4;
    vlm_metrics_observe(&m.first_token, 150, 2);
    vlm_metrics_observe(&m.first_token, 1500000, 1);

    engines[0].name = "unix:/a\"\\\nb";
    engines[0].name_len = 11;
    engines[0].up = 1;
    engines[0].state = VLM_STATE_DRAINING;
    engines[0].gauges.running = 5;
    engines[0].gauges.kv_blocks_free = 900;
    engines[1].name = "unix:/c";
    engines[1].name_len = 7;
    engines[1].state = VLM_STATE_READY;

    vlm_out_init(&o, NULL, 0);
    vlm_metrics_prometheus(&o, &m, 4, engines, 2);
    n = o.len;

    vlm_out_init(&o, buf, sizeof(buf) - 1);
    vlm_metrics_prometheus(&o, &m, 4, engines, 2);
    buf[o.len] = '\0';

    tap_is(o.len, (long long) n, "measured as written");
    tap_ok(!vlm_out_full(&o) && buf[o.len - 1] == '\n', "whole lines");

    has("# HELP ngx_vlm_workers Worker processes that count here.\n"
        "# TYPE ngx_vlm_workers gauge\nngx_vlm_workers 4\n");
    has("\nngx_vlm_requests_in_flight 1\n");
    has("\n# TYPE ngx_vlm_requests_total counter\n"
        "ngx_vlm_requests_total{status=\"200\"} 7\n");
    has("\nngx_vlm_requests_total{status=\"other\"} 2\n");
    has("\nngx_vlm_request_success_total{finished_reason=\"length\"} 3\n");
    has("\nngx_vlm_received_bytes_total 18446744073709551615\n");
    has("\nngx_vlm_image_cache_total{outcome=\"hit-memory\"} 4\n");
    has("\nngx_vlm_time_to_first_token_seconds_bucket{le=\"0.005\"} 0\n");
    has("\nngx_vlm_time_to_first_token_seconds_bucket{le=\"0.1\"} 0\n"
        "ngx_vlm_time_to_first_token_seconds_bucket{le=\"0.2\"} 2\n");
    has("\nngx_vlm_time_to_first_token_seconds_bucket{le=\"300\"} 2\n"
        "ngx_vlm_time_to_first_token_seconds_bucket{le=\"+Inf\"} 3\n"
        "ngx_vlm_time_to_first_token_seconds_sum 1500.3\n"
        "ngx_vlm_time_to_first_token_seconds_count 3\n");
    has("\nngx_vlm_engine_up{engine=\"unix:/a\\\"\\\\\\nb\"} 1\n"
        "ngx_vlm_engine_up{engine=\"unix:/c\"} 0\n");
    has("{engine=\"unix:/a\\\"\\\\\\nb\",state=\"ready\"} 0\n");
    has("{engine=\"unix:/a\\\"\\\\\\nb\",state=\"draining\"} 1\n");
    has("ngx_vlm_engine_state{engine=\"unix:/c\",state=\"ready\"} 0\n");
    has("\nngx_vlm_engine_num_requests_running{engine=\"unix:/a\\\"\\\\\\nb\"} "
        "5\n");
    has("\nngx_vlm_engine_kv_blocks_free{engine=\"unix:/a\\\"\\\\\\nb\"} 900\n");

    tap_ok(strstr(buf, "kv_blocks{engine=\"unix:/c\"}") == NULL,
           "no gauges of an engine that is not there");
}


static void
check_json(void)
{
    size_t     n;
    vlm_out_t  o;

    vlm_out_init(&o, NULL, 0);
    vlm_metrics_json(&o, &m, 4, engines, 2);
    n = o.len;

    vlm_out_init(&o, buf, sizeof(buf) - 1);
    vlm_metrics_json(&o, &m, 4, engines, 2);
    buf[o.len] = '\0';

    tap_is(o.len, (long long) n, "measured as written");

    has("{\"workers\":4,\"requests_in_flight\":1,\"requests\":{\"200\":7,");
    has(",\"other\":2},\"request_success\":{\"stop\":0,\"length\":3},"
        "\"received_bytes\":18446744073709551615,");
    has("\"image_cache\":{\"miss\":0,\"joined\":0,\"hit-memory\":4,");
    has("\"time_to_first_token\":{\"buckets\":[[0.005,0],[0.01,0],");
    has(",[300,2],[null,3]],\"count\":3,\"sum\":1500.3}");
    has("\"engines\":[{\"name\":\"unix:/a\\\"\\\\\\nb\",\"up\":true,"
        "\"state\":\"draining\",\"running\":5,\"waiting\":0,");
    has(",{\"name\":\"unix:/c\",\"up\":false}]}\n");

    engines[0].state = 77;
    vlm_out_init(&o, buf, sizeof(buf) - 1);
    vlm_metrics_json(&o, &m, 4, engines, 1);
    buf[o.len] = '\0';
    has("\"up\":true,\"state\":\"failed\"");
}
