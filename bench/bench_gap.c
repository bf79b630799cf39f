
/*
 * The gaps between the tokens of running answers while a picture is encoded,
 * beside those without, and the time that the encoder got.  Then the same
 * with an engine that encodes in one go.  bench/make-checkpoint writes a
 * checkpoint for it.
 *
 * usage: bench_gap [-t threads] [-n answers] [-g factor] [-s side] [-r rounds]
 *            DIR
 */

#include <poll.h>

#include "bench/bench.h"
#include "engine/runtime/internal.h"


#define MAX_ANSWERS     16
#define MAX_GAPS        100000
#define QUIET_SECONDS   4.0
#define PROMPT          "a b c d"


/* one request, and what stands for its arena */

typedef struct {
    vlm_req_t      *req;
    uint64_t        arena[512];
    vlm_image_t     image;
    double          token;              /* when its last token was heard */
    double          encode;             /* when its stages began */
    double          prefill;
    int             final;
} bench_req_t;

typedef struct {
    double          ms[MAX_GAPS];
    int             n;
} bench_gaps_t;

typedef struct {
    vlm_engine_conf_t   conf;
    vlm_engine_t       *engine;
    int                 nanswers;
    int                 side;
    uint64_t            order;
    bench_req_t         answers[MAX_ANSWERS];
    bench_req_t         picture;
    bench_gaps_t        quiet;
    bench_gaps_t        beside;
    int                 counting;
} bench_t;


static int bench_run(bench_t *b, double factor, int rounds);
static int bench_start(bench_t *b);
static void bench_stop(bench_t *b);
static void bench_ask(bench_t *b, bench_req_t *r, uint32_t max_tokens);
static void bench_picture(bench_t *b, int side);
static void bench_pump(bench_t *b);
static void bench_mail(bench_t *b, bench_req_t *r, const vlm_mail_t *mail);
static void bench_gap(bench_t *b, double from, double to);
static double gaps_at(bench_gaps_t *g, double share);


int
main(int argc, char **argv)
{
    int       opt, rounds;
    char      machine[128];
    double    factor;
    bench_t  *b;

    vlm_log_level("error");

    b = calloc(1, sizeof(bench_t));
    if (b == NULL) {
        return 1;
    }

    b->nanswers = 4;
    b->side = 448;
    rounds = 2;
    factor = VLM_DEFAULT_GAP_FACTOR;

    while ((opt = getopt(argc, argv, "t:n:g:s:r:")) != -1) {

        switch (opt) {
        case 't': b->conf.threads = atoi(optarg); break;
        case 'n': b->nanswers = atoi(optarg); break;
        case 'g': factor = atof(optarg); break;
        case 's': b->side = atoi(optarg); break;
        case 'r': rounds = atoi(optarg); break;
        default: return 2;
        }
    }

    if (optind != argc - 1 || b->nanswers < 1 || b->nanswers > MAX_ANSWERS
        || factor <= 1)
    {
        fprintf(stderr, "usage: %s [-t threads] [-n answers] [-g factor] "
                "[-s side] [-r rounds] DIR\n", argv[0]);
        return 2;
    }

    b->conf.model = argv[optind];
    b->conf.image_threads = 1;
    b->conf.embedding_dtype = VLM_BF16;
    b->conf.device = VLM_DEVICE_CPU;
    b->conf.max_num_seqs = b->nanswers + 1;
    b->conf.max_rows = 256;
    b->conf.max_queue = 16;
    b->conf.queue_timeout_ms = 600000;
    b->conf.max_images = 1;
    b->conf.max_image_pixels = 1 << 26;
    b->conf.max_model_len = 4096;
    b->conf.kv_memory = (uint64_t) 256 << 20;
    b->conf.block_size = 16;

    bench_machine(machine, sizeof(machine));
    printf("%s, %d CPUs, %d answers, a picture of %dx%d\n\n", machine,
           vlm_cpu_count(), b->nanswers, b->side, b->side);
    printf("%-10s %8s %8s %8s %8s %8s %8s %8s %8s\n", "", "quiet", "quiet",
           "beside", "beside", "beside", "factor", "encoded", "of its");
    printf("%-10s %8s %8s %8s %8s %8s %8s %8s %8s\n", "gaps, ms", "p50",
           "p95", "p50", "p95", "most", "p95", "in s", "share");

    if (bench_run(b, factor, rounds) != VLM_OK
        || bench_run(b, 1e6, 1) != VLM_OK)
    {
        return 1;
    }

    free(b);

    return 0;
}


/* quiet and not, in turns, so that what else runs on the machine is alike */

static int
bench_run(bench_t *b, double factor, int rounds)
{
    int           i;
    double        end, took, busy, quiet, beside;

    b->conf.gap_factor = factor;
    b->quiet.n = 0;
    b->beside.n = 0;

    if (bench_start(b) != VLM_OK) {
        return VLM_ERROR;
    }

    took = 0;
    busy = b->engine->encoding.us;

    for (i = 0; i < rounds; i++) {
        b->counting = 1;
        end = bench_now() + QUIET_SECONDS;

        while (bench_now() < end) {
            bench_pump(b);
        }

        bench_picture(b, b->side);

        while (!b->picture.final) {
            bench_pump(b);
        }

        b->counting = 0;
        took += b->picture.prefill - b->picture.encode;
        vlm_req_free(b->picture.req);
        b->picture.req = NULL;
    }

    busy = (b->engine->encoding.us - busy) * 1e-6;
    quiet = gaps_at(&b->quiet, 0.95);
    beside = gaps_at(&b->beside, 0.95);

    printf("%-10s %8.1f %8.1f %8.1f %8.1f %8.1f %8.2f %8.2f",
           factor < 1000 ? "in slices" : "in one go",
           gaps_at(&b->quiet, 0.5), quiet, gaps_at(&b->beside, 0.5), beside,
           gaps_at(&b->beside, 1), beside / quiet, took / rounds);

    if (factor < 1000) {
        printf(" %7.1f%%", 100 * busy / took / ((factor - 1) / factor));
    }

    printf("\n");
    fflush(stdout);

    bench_stop(b);

    return VLM_OK;
}


static int
bench_start(bench_t *b)
{
    int           i;
    vlm_mail_t    mail;
    vlm_error_t   err;

    b->engine = vlm_engine_create(&b->conf, &err);

    while (b->engine != NULL
           && vlm_engine_state(b->engine, &err) == VLM_STATE_LOADING)
    {
        usleep(10000);
        (void) vlm_engine_next(b->engine, &mail);
    }

    if (b->engine == NULL
        || vlm_engine_state(b->engine, &err) != VLM_STATE_READY)
    {
        fprintf(stderr, "%s\n", err.message);
        return VLM_ERROR;
    }

    for (i = 0; i < b->nanswers; i++) {
        memset(&b->answers[i], 0, sizeof(bench_req_t));
        bench_ask(b, &b->answers[i], 4000);
    }

    for (i = 0; i < b->nanswers; i++) {
        while (b->answers[i].token == 0) {
            bench_pump(b);
        }
    }

    /* the encoder's speed is learnt while nothing is measured */

    bench_picture(b, b->side / 2);

    while (!b->picture.final) {
        bench_pump(b);
    }

    vlm_req_free(b->picture.req);
    b->picture.req = NULL;

    return VLM_OK;
}


static void
bench_stop(bench_t *b)
{
    int  i;

    for (i = 0; i < b->nanswers; i++) {
        vlm_engine_cancel(b->engine, b->answers[i].req);

        while (!b->answers[i].final) {
            bench_pump(b);
        }

        vlm_req_free(b->answers[i].req);
    }

    vlm_engine_destroy(b->engine);
}


static void
bench_picture(bench_t *b, int side)
{
    size_t        i, size;
    vlm_image_t  *image;

    memset(&b->picture, 0, sizeof(bench_req_t));

    image = &b->picture.image;
    image->width = (uint32_t) side;
    image->height = (uint32_t) side;

    size = (size_t) side * (size_t) side * 3;
    image->data = malloc(size);

    for (i = 0; image->data != NULL && i < size; i++) {
        image->data[i] = (uint8_t) (i * 7);
    }

    bench_ask(b, &b->picture, 1);
}


/*
 * Most ids of the random model have no text: a bias lets all answers say the
 * same letter, so that each token is heard of at once.
 */

static void
bench_ask(bench_t *b, bench_req_t *r, uint32_t max_tokens)
{
    char                *at;
    size_t               size;
    vlm_ids_t            ids = {0};
    vlm_part_t           parts[2];
    vlm_error_t          err;
    vlm_message_t        message;
    vlm_picture_t        picture;
    vlm_request_t        in;
    vlm_logit_bias_t     bias;

    memset(&in, 0, sizeof(in));
    memset(parts, 0, sizeof(parts));
    memset(&picture, 0, sizeof(picture));

    at = (char *) r->arena;
    memcpy(at, PROMPT, sizeof(PROMPT));

    parts[0].type = VLM_PART_TEXT;
    parts[0].text.length = sizeof(PROMPT) - 1;
    parts[1].type = VLM_PART_PICTURE;

    picture.bytes.length = 1;
    picture.sha256[0] = (uint8_t) ++b->order;

    memset(&message, 0, sizeof(message));
    message.role = VLM_ROLE_USER;
    message.nparts = r->image.data != NULL ? 2 : 1;

    bias.id = 0;
    bias.bias = 100;

    if (vlm_tokenizer_encode(vlm_model_tokenizer(vlm_engine_model(b->engine)),
                             "a", 1, 0, &ids, &err)
        == VLM_OK)
    {
        bias.id = ids.data[0];
    }

    vlm_ids_free(&ids);

    in.request_id.data = "bench";
    in.request_id.len = 5;
    in.messages = &message;
    in.nmessages = 1;
    in.parts = parts;
    in.nparts = message.nparts;
    in.pictures = &picture;
    in.npictures = message.nparts - 1;
    in.sampling.nchoices = 1;
    in.sampling.set = VLM_SET_MAX_TOKENS | VLM_SET_TEMPERATURE;
    in.sampling.max_tokens = max_tokens;
    in.logit_bias = &bias;
    in.nlogit_bias = 1;
    in.flags = VLM_FLAG_IGNORE_EOS;

    size = vlm_record_size(&in);

    if (size == 0 || size > sizeof(r->arena) - 64) {
        fprintf(stderr, "a record of %zu bytes\n", size);
        exit(1);
    }

    vlm_record_encode(&in, at + 64, size);

    r->req = vlm_req_create();

    if (r->req == NULL) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }

    r->req->owner = r;
    r->req->order = b->order;
    r->req->arena = (const uint8_t *) r->arena;
    r->req->arena_size = sizeof(r->arena);
    r->req->record_offset = 64;
    r->req->record_length = (uint32_t) size;
    r->req->given = r->image.data != NULL ? &r->image : NULL;

    vlm_engine_submit(b->engine, r->req);
}


static void
bench_pump(bench_t *b)
{
    vlm_req_t      *req;
    vlm_mail_t      mail;
    struct pollfd   pfd;

    req = vlm_engine_next(b->engine, &mail);

    if (req == NULL) {
        pfd.fd = vlm_engine_fd(b->engine);
        pfd.events = POLLIN;
        poll(&pfd, 1, 100);
        return;
    }

    bench_mail(b, req->owner, &mail);
    vlm_mail_free(&mail);
}


static void
bench_mail(bench_t *b, bench_req_t *r, const vlm_mail_t *mail)
{
    double  now;

    now = bench_now();

    if (mail->flags & VLM_MAIL_STAGE) {

        if (mail->stage == VLM_STAGE_ENCODE) {
            r->encode = now;
        }

        if (mail->stage == VLM_STAGE_PREFILL) {
            r->prefill = now;
        }
    }

    if (mail->nsaid != 0 && mail->said[0].ntokens != 0) {

        if (r->token != 0) {
            bench_gap(b, r->token, now);
        }

        r->token = now;
    }

    if (mail->flags & VLM_MAIL_FINAL) {
        r->final = 1;

        if (mail->result != VLM_OK && r == &b->picture) {
            fprintf(stderr, "%s\n", r->req->error.message);
            exit(1);
        }
    }
}


/* what lies in the picture's encoding by half of it belongs to that */

static void
bench_gap(bench_t *b, double from, double to)
{
    double         middle;
    bench_gaps_t  *g;
    bench_req_t   *p;

    p = &b->picture;
    g = &b->quiet;
    middle = (from + to) / 2;

    if (p->req != NULL) {

        if (p->encode == 0 || middle < p->encode
            || (p->prefill != 0 && middle > p->prefill))
        {
            return;
        }

        g = &b->beside;
    }

    if (b->counting && g->n < MAX_GAPS) {
        g->ms[g->n++] = (to - from) * 1e3;
    }
}


static int
compare(const void *one, const void *two)
{
    double  a = *(const double *) one, b = *(const double *) two;

    return a < b ? -1 : a > b;
}


static double
gaps_at(bench_gaps_t *g, double share)
{
    if (g->n == 0) {
        return 0;
    }

    qsort(g->ms, (size_t) g->n, sizeof(double), compare);

    return g->ms[(int) (share * (g->n - 1))];
}
