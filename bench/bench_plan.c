
/*
 * What deciding costs: a step's plan, its blocks and its count, for so many
 * running sequences, all of them answers, or a quarter of them prompts; and
 * picking who starts next from a queue of several scopes.
 *
 * The best of many steps.
 *
 * usage: bench_plan
 */

#include "bench/bench.h"
#include "engine/runtime/scheduler.h"


#define ROUNDS      20000
#define PROMPT      100
#define SCOPES      16


static double
plan_time(int32_t n, int32_t nprompts)
{
    int32_t       i, k;
    double        from, took, best;
    vlm_seq_t    *seqs;
    vlm_plan_t    plan;
    vlm_sched_t   s;

    seqs = calloc((size_t) n, sizeof(vlm_seq_t));

    if (seqs == NULL || vlm_sched_init(&s, 4 * n, n, 40 * n, 16) != VLM_OK
        || vlm_plan_init(&plan, n) != VLM_OK)
    {
        exit(1);
    }

    for (i = 0; i < n; i++) {
        seqs[i].order = (uint64_t) i;
        seqs[i].prompt = PROMPT;
        seqs[i].total = PROMPT;
        seqs[i].max_total = 2 * PROMPT;

        if (vlm_sched_wait(&s, &seqs[i]) != VLM_OK
            || vlm_sched_admit(&s) != &seqs[i])
        {
            exit(1);
        }
    }

    best = 1;

    for (k = 0; k < ROUNDS * 32 / n; k++) {

        for (i = 0; i < n; i++) {
            seqs[i].computed = i < nprompts ? 0 : PROMPT;
            seqs[i].total = PROMPT + (i >= nprompts);
            seqs[i].ready = seqs[i].total;
        }

        from = bench_now();

        vlm_sched_plan(&s, s.max_rows, &plan);

        if (vlm_sched_take(&s, &plan) != VLM_OK) {
            exit(1);
        }

        vlm_sched_commit(&s, &plan);

        took = bench_now() - from;
        best = took < best ? took : best;
    }

    for (i = 0; i < n; i++) {
        vlm_sched_remove(&s, &seqs[i]);
    }

    vlm_plan_free(&plan);
    vlm_sched_free(&s);
    free(seqs);

    return best;
}


static int
may(const void *data, const vlm_seq_t *seq)
{
    return 1;
}


/* one leaves, another one comes */

static double
queue_time(int32_t n)
{
    int32_t         i;
    double          from;
    vlm_seq_t      *seqs, *seq;
    vlm_waiting_t   q;

    memset(&q, 0, sizeof(q));
    seqs = calloc((size_t) n, sizeof(vlm_seq_t));

    if (seqs == NULL) {
        exit(1);
    }

    for (i = 0; i < n; i++) {
        seqs[i].order = (uint64_t) i;
        seqs[i].scope = (uint64_t) (i % SCOPES);
        seqs[i].cost = PROMPT + i * 7919 % 1000;

        if (vlm_queue_add(&q, &seqs[i]) != VLM_OK) {
            exit(1);
        }
    }

    from = bench_now();

    for (i = 0; i < ROUNDS; i++) {
        seq = vlm_queue_pick(&q, may, NULL);
        vlm_queue_start(&q, seq);
        seq->order += (uint64_t) n;

        if (vlm_queue_add(&q, seq) != VLM_OK) {
            exit(1);
        }
    }

    from = bench_now() - from;

    vlm_queue_free(&q);
    free(seqs);

    return from / ROUNDS;
}


int
main(void)
{
    char     machine[128];
    int32_t  n;
    double   answers, mixed;

    bench_machine(machine, sizeof(machine));
    printf("%s\n\n%-28s %12s %12s\n", machine, "", "us a step", "ns each");

    for (n = 32; n <= 256; n *= 2) {
        answers = plan_time(n, 0);
        mixed = plan_time(n, n / 4);

        printf("%3d answers                  %12.2f %12.1f\n", n,
               answers * 1e6, answers * 1e9 / n);
        printf("%3d, a quarter are prompts   %12.2f %12.1f\n", n,
               mixed * 1e6, mixed * 1e9 / n);
    }

    for (n = 64; n <= 1024; n *= 4) {
        printf("next of %4d that wait       %12.2f\n", n,
               queue_time(n) * 1e6);
    }

    return 0;
}
