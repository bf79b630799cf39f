
/*
 * From submission to the picture's embeddings, and to the first token: a new
 * picture, a hit in memory, a hit in Redis, a hit of the prefix cache, and
 * mixtures of new and known ones.
 *
 * usage: bench_cache MODEL PICTURE [REQUESTS [REDIS-URL]]
 *
 * One request at a time.  "New" pictures are the same pixels in a file of
 * other bytes.  Redis is a running one, whose database is filled.
 */

#include <poll.h>

#include "bench/bench.h"
#include "engine/runtime/engine.h"


#define MAX_REQUESTS    10000
#define MAX_KNOWN       16

typedef struct {
    double              ready[MAX_REQUESTS];    /* milliseconds */
    double              first[MAX_REQUESTS];
    size_t              n;
} times_t;

typedef struct {
    vlm_engine_t       *engine;
    char               *file;
    size_t              len;
    uint8_t            *arena;
    uint64_t            order;
} bench_t;


/* long enough that the block in which the picture ends is a full one */
static const char  prompt[] = "Describe what you see: which shapes, of which "
                              "color, and where in the picture they are.";
static times_t     of[VLM_CACHE_PREFIX + 1], all;


static void
die(const char *what, const char *why)
{
    fprintf(stderr, "bench_cache: %s: %s\n", what, why);
    exit(1);
}


static void
pump(bench_t *b)
{
    struct pollfd  pfd;

    pfd.fd = vlm_engine_fd(b->engine);
    pfd.events = POLLIN;
    (void) poll(&pfd, 1, 100);
}


static void
engine_start(bench_t *b, const char *model, uint64_t memory, int prefix,
    const vlm_redis_url_t *redis)
{
    vlm_mail_t          mail;
    vlm_error_t         err;
    vlm_engine_conf_t   conf;

    memset(&conf, 0, sizeof(conf));
    conf.model = model;
    conf.device = VLM_DEVICE_CPU;
    conf.image_threads = 2;
    conf.embedding_dtype = VLM_BF16;
    conf.max_model_len = 2048;
    conf.max_num_seqs = 4;
    conf.max_rows = 256;
    conf.max_queue = 64;
    conf.queue_timeout_ms = 3600000;
    conf.max_images = 4;
    conf.max_image_pixels = 67108864;
    conf.block_size = 16;
    conf.kv_memory = 256 << 20;
    conf.gap_factor = VLM_DEFAULT_GAP_FACTOR;
    conf.prefix_cache = prefix;
    conf.cache_memory = memory;
    conf.redis = redis;
    conf.redis_ttl_ms = 3600000;
    conf.redis_timeout_ms = 1000;
    conf.redis_max_value = 64 << 20;

    b->engine = vlm_engine_create(&conf, &err);
    if (b->engine == NULL) {
        die("engine", err.message);
    }

    while (vlm_engine_state(b->engine, &err) == VLM_STATE_LOADING
           || !vlm_engine_cache_settled(b->engine))
    {
        pump(b);
        (void) vlm_engine_next(b->engine, &mail);

        if (vlm_engine_state(b->engine, &err) == VLM_STATE_FAILED) {
            die("engine", err.message);
        }
    }
}


/* the picture with a number behind its end, a prompt, and their record */

static uint32_t
fill(bench_t *b, uint32_t number, uint64_t *offset)
{
    size_t          size;
    vlm_part_t      parts[2];
    vlm_message_t   message;
    vlm_picture_t   picture;
    vlm_request_t   req;

    memset(parts, 0, sizeof(parts));
    memset(&picture, 0, sizeof(picture));
    memset(&req, 0, sizeof(req));

    memcpy(b->arena, b->file, b->len);
    memcpy(b->arena + b->len, &number, sizeof(number));
    picture.bytes.length = b->len + sizeof(number);

    parts[0].type = VLM_PART_PICTURE;
    parts[1].type = VLM_PART_TEXT;
    parts[1].text.offset = picture.bytes.length;
    parts[1].text.length = sizeof(prompt) - 1;
    memcpy(b->arena + parts[1].text.offset, prompt, sizeof(prompt) - 1);

    message.role = VLM_ROLE_USER;
    message.first_part = 0;
    message.nparts = 2;

    req.request_id.data = "bench";
    req.request_id.len = 5;
    req.messages = &message;
    req.nmessages = 1;
    req.parts = parts;
    req.nparts = 2;
    req.pictures = &picture;
    req.npictures = 1;
    req.sampling.nchoices = 1;
    req.sampling.set = VLM_SET_MAX_TOKENS;
    req.sampling.max_tokens = 1;

    *offset = (parts[1].text.offset + sizeof(prompt) + 7) & ~(uint64_t) 7;
    size = vlm_record_size(&req);
    vlm_record_encode(&req, b->arena + *offset, size);

    return (uint32_t) size;
}


/* one request; counted, if times are wanted */

static void
ask(bench_t *b, uint32_t number, int counted)
{
    int                      final;
    double                   ready, first;
    uint32_t                 outcome;
    times_t                 *t;
    vlm_req_t               *req;
    vlm_mail_t               mail;
    const vlm_event_done_t  *d;

    req = vlm_req_create();
    if (req == NULL) {
        die("request", "no memory");
    }

    req->order = ++b->order;
    req->arena = b->arena;
    req->arena_size = b->len + 4096;
    req->record_length = fill(b, number, &req->record_offset);

    vlm_engine_submit(b->engine, req);

    for (final = 0; !final; /* void */ ) {
        if (vlm_engine_next(b->engine, &mail) == NULL) {
            pump(b);
            continue;
        }

        final = (mail.flags & VLM_MAIL_FINAL) != 0;

        if (final && mail.result != VLM_OK) {
            die("request", req->error.message);
        }

        vlm_mail_free(&mail);
    }

    d = &req->done;
    ready = (double) d->queue_us + d->decode_us + d->encode_us;
    first = (double) d->first_token_us;
    outcome = d->outcomes[0];

    for (t = &of[outcome]; counted && t != NULL; t = t == &all ? NULL : &all)
    {
        t->ready[t->n] = ready / 1000;
        t->first[t->n++] = first / 1000;
    }

    vlm_req_free(req);
}


static int
compare(const void *a, const void *b)
{
    double  x = *(const double *) a, y = *(const double *) b;

    return x < y ? -1 : x > y;
}


static void
show(const char *name, times_t *t)
{
    size_t  n = t->n;

    if (n == 0) {
        return;
    }

    qsort(t->ready, n, sizeof(double), compare);
    qsort(t->first, n, sizeof(double), compare);

    printf("  %-12s %5zu  %9.2f %9.2f %9.2f   %9.2f %9.2f %9.2f\n", name, n,
           t->ready[n / 2], t->ready[n * 9 / 10], t->ready[n * 99 / 100],
           t->first[n / 2], t->first[n * 9 / 10], t->first[n * 99 / 100]);

    t->n = 0;
}


/* "percent" of the requests are about pictures that were seen before */

static void
mixture(bench_t *b, int percent, int requests, uint32_t *next)
{
    int       i;
    uint32_t  known, nknown, seed = 7;

    static const char  *names[] = {
        "", "new", "joined", "memory hit", "Redis hit", "prefix hit"
    };

    known = *next;
    nknown = requests < 4 * MAX_KNOWN ? (uint32_t) requests / 4 + 1
                                      : MAX_KNOWN;

    for (i = 0; i < (int) nknown && percent != 0; i++) {
        ask(b, (*next)++, 0);
    }

    for (i = 0; i < requests; i++) {
        seed = seed * 1664525 + 1013904223;

        if ((int) ((seed >> 8) % 100) < percent) {
            ask(b, known + (seed >> 16) % nknown, 1);

        } else {
            ask(b, (*next)++, 1);
        }
    }

    printf("  -- %d %% repetition\n", percent);

    for (i = 1; i <= VLM_CACHE_PREFIX; i++) {
        show(names[i], &of[i]);
    }

    show("all", &all);
}


int
main(int argc, char **argv)
{
    int                i, requests;
    char               name[128], *data;
    bench_t            b;
    uint32_t           next;
    vlm_error_t        err;
    vlm_redis_url_t    url;

    if (argc < 3) {
        fprintf(stderr, "usage: bench_cache MODEL PICTURE [REQUESTS "
                "[REDIS-URL]]\n");
        return 2;
    }

    requests = argc > 3 ? atoi(argv[3]) : 100;
    memset(&b, 0, sizeof(b));
    data = NULL;

    if (requests < 1 || requests > MAX_REQUESTS
        || (argc > 4 && vlm_redis_url(argv[4], &url, &err) != VLM_OK)
        || vlm_read_file(argv[2], 1 << 28, &data, &b.len, &err) != VLM_OK)
    {
        die("arguments", requests < 1 || requests > MAX_REQUESTS
            ? "requests" : err.message);
    }

    b.file = data;
    b.arena = calloc(1, b.len + 4096);

    if (b.arena == NULL) {
        die("arena", "no memory");
    }

    vlm_log_level("warn");
    bench_machine(name, sizeof(name));

    printf("%s, %s, %s, one request at a time, milliseconds\n\n", name,
           argv[1], argv[2]);
    printf("  %-12s %5s  %29s   %29s\n", "", "", "embeddings ready",
           "first token");
    printf("  %-12s %5s  %9s %9s %9s   %9s %9s %9s\n", "", "n", "p50", "p90",
           "p99", "p50", "p90", "p99");

    /* numbers that no run before has used: Redis may remember them */
    next = (uint32_t) vlm_now_us();

    for (i = 0; i < 3; i++) {

        if (i == 1 && argc < 5) {
            continue;
        }

        printf("\n%s\n", i == 0 ? "memory"
                         : i == 1 ? "Redis alone" : "memory, prefix cache");

        engine_start(&b, argv[1], i == 1 ? 0 : 1ull << 30, i == 2,
                     i == 1 ? &url : NULL);

        mixture(&b, 0, requests, &next);
        mixture(&b, 50, requests, &next);
        mixture(&b, 90, requests, &next);

        vlm_engine_destroy(b.engine);
    }

    free(b.arena);
    free(b.file);

    return 0;
}
