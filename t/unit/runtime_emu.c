
/*
 * The whole engine on the CUDA sources, by the shim: eight requests of all
 * kinds at once have the CPU's answers in float32, and in bfloat16 the
 * demonstration model answers held-out questions as the reference does.
 * VLM_TEST_CUDA=1: the same on the machine's first GPU.
 */

#include "engine/base/vlm_json.h"
#include "kernels/emu/emu.h"
#include "t/unit/runtime_client.h"


#define REQUESTS    8
#define ANSWER      600

#if defined(__SANITIZE_ADDRESS__)
#define EVERY       100             /* sanitizers are slow */
#define ALLOCATION_ROUNDS  2
#else
#define EVERY       20
#define ALLOCATION_ROUNDS  12
#endif


static vlm_device_kind_t
cuda(void)
{
    return getenv("VLM_TEST_CUDA") != NULL ? VLM_DEVICE_CUDA
                                           : VLM_DEVICE_EMU;
}


static char *
picture(const char *name)
{
    return strdup(tap_path("t/data/heldout/images/%s.png", name));
}


static void
serve_with(served_t *s, client_t *c, vlm_device_kind_t device,
    const char *dtype, uint64_t cache)
{
    setenv("VLM_CUDA_DTYPE", dtype, 1);

    served_init(s);
    s->conf.engine.device = device;
    s->conf.engine.gpu_utilization = 0.5f;
    s->conf.engine.cache_memory = cache;
    served_start(s);
    client_open(c, s, 1 << 16);
    client_wait_ready(c);
}


static void
serve(served_t *s, client_t *c, vlm_device_kind_t device, const char *dtype)
{
    serve_with(s, c, device, dtype, 64 << 20);
}


/* one, two and three pictures or none; greedy, drawn, stopped, cut */

static void
mixed(question_t *q)
{
    int  i;

    static const char  *prompts[REQUESTS] = {
        "Where is the cross?", "What color is the cross?",
        "What shape is orange?", "Read this.", "Hello.",
        "Describe this image.", "What is the brown shape?",
        "What colour is the text?"
    };

    memset(q, 0, REQUESTS * sizeof(question_t));

    for (i = 0; i < REQUESTS; i++) {
        q[i].prompt = prompts[i];
        q[i].sampling.set = VLM_SET_MAX_TOKENS;
        q[i].sampling.max_tokens = 24;
    }

    q[0].pictures[0] = picture("0000");
    q[1].pictures[0] = picture("0000");
    q[1].stop = "is";
    q[2].pictures[0] = picture("0001");
    q[2].sampling.max_tokens = 3;
    q[3].pictures[0] = picture("0002");
    q[5].pictures[0] = picture("0003");
    q[5].pictures[1] = picture("0001");
    q[6].pictures[0] = picture("0003");
    q[7].pictures[0] = picture("0002");
    q[7].pictures[1] = picture("0000");
    q[7].pictures[2] = picture("0001");

    for (i = 4; i < 6; i++) {
        q[i].sampling.set |= VLM_SET_TEMPERATURE | VLM_SET_SEED;
        q[i].sampling.temperature = 0.8f;
        q[i].sampling.seed = 5;
    }
}


static void
answers(client_t *c, const question_t *q, char text[][ANSWER])
{
    int       i;
    heard_t  *h;

    for (i = 0; i < REQUESTS; i++) {
        client_ask(c, (uint32_t) i, &q[i]);
    }

    for (i = 0; i < REQUESTS; i++) {
        h = client_end(c, (uint32_t) i);

        snprintf(text[i], ANSWER, "%c:%s", h->last,
                 h->last == 'D' && h->text.data != NULL ? h->text.data
                                                        : h->message);
    }
}


static void
test_mixed(void)
{
    int         i, k;
    char        cpu[REQUESTS][ANSWER], emu[REQUESTS][ANSWER];
    client_t    c;
    served_t    s;
    question_t  q[REQUESTS];

    mixed(q);

    serve(&s, &c, VLM_DEVICE_CPU, "f32");
    answers(&c, q, cpu);
    client_close(&c);
    served_stop(&s);

    serve(&s, &c, cuda(), "f32");
    answers(&c, q, emu);
    client_close(&c);
    served_stop(&s);

    for (i = 0; i < REQUESTS; i++) {
        tap_ok(cpu[i][0] == 'D' && strcmp(cpu[i], emu[i]) == 0,
               "\"%s\": \"%s\", the CPU: \"%s\"", q[i].prompt, emu[i] + 2,
               cpu[i] + 2);

        for (k = 0; k < 3; k++) {
            free((char *) q[i].pictures[k]);
        }
    }
}


/* does the answer to a line of questions.jsonl equal the reference's? */

static int
asked(client_t *c, const char *line)
{
    int                same;
    char               prompt[256], file[256], expected[512];
    size_t             n;
    heard_t           *h;
    question_t         q;
    const char        *data;
    vlm_error_t        err;
    vlm_json_doc_t    *doc;
    const vlm_json_t  *root;

    doc = vlm_json_parse(line, strlen(line), "questions.jsonl", &err);
    if (doc == NULL) {
        die("questions.jsonl", err.message);
    }

    root = vlm_json_root(doc);
    data = "";
    n = 0;

    vlm_json_string(vlm_json_get(root, "question"), &data, &n);
    snprintf(prompt, sizeof(prompt), "%.*s", (int) n, data);
    vlm_json_string(vlm_json_get(root, "reference"), &data, &n);
    snprintf(expected, sizeof(expected), "%.*s", (int) n, data);
    vlm_json_string(vlm_json_get(root, "image"), &data, &n);
    snprintf(file, sizeof(file), "%s", tap_path("t/data/heldout/%.*s",
                                                (int) n, data));
    vlm_json_free(doc);

    memset(&q, 0, sizeof(q));
    q.prompt = prompt;
    q.pictures[0] = file;

    client_ask(c, 0, &q);
    h = client_end(c, 0);

    same = h->last == 'D' && h->text.data != NULL
           && strcmp(h->text.data, expected) == 0;

    if (!same) {
        tap_diag("%s %s: \"%s\", the reference: \"%s\"", file, prompt,
                 h->text.data != NULL ? h->text.data : h->message, expected);
    }

    return same;
}


/* all of them with VLM_LONG: a point of a hundred may be lost */

static void
test_score(void)
{
    int        n, every, questions, same;
    FILE      *f;
    char       line[4096];
    client_t   c;
    served_t   s;

    f = fopen(tap_path("t/data/heldout/questions.jsonl"), "r");
    if (f == NULL) {
        die("questions.jsonl", strerror(errno));
    }

    every = getenv("VLM_LONG") != NULL && *getenv("VLM_LONG") ? 1 : EVERY;
    questions = 0;
    same = 0;

    serve(&s, &c, cuda(), "bf16");

    for (n = 0; fgets(line, sizeof(line), f) != NULL; n++) {

        if (n % every == 0) {
            same += asked(&c, line);
            questions++;
        }
    }

    client_close(&c);
    served_stop(&s);
    fclose(f);

    tap_ok(questions >= 390 / every && same * 100 >= questions * 99,
           "bfloat16: the reference's answers to %d of %d questions", same,
           questions);
}


/* pictures come and go, and their embeddings: no memory is asked of the system */

static void
test_allocations(void)
{
    int         i, k, ended;
    char        size[8][32];
    heard_t    *h;
    client_t    c;
    served_t    s;
    uint64_t    n;
    question_t  q[8];

    static const char  *pictures[] = { "0000", "0001", "0002", "0003" };

    serve_with(&s, &c, VLM_DEVICE_EMU, "bf16", 1 << 18);
    n = vlm_emu_allocations();
    ended = 0;

    for (i = 0; i < ALLOCATION_ROUNDS; i++) {
        memset(q, 0, sizeof(q));

        for (k = 0; k < 8; k++) {
            snprintf(size[k], sizeof(size[k]), "Round %d, %d.", i, k);
            q[k].prompt = size[k];
            q[k].scope = size[k];
            q[k].sampling.set = VLM_SET_MAX_TOKENS;
            q[k].sampling.max_tokens = (uint32_t) (1 + (i + k) % 9);

            if (k % 4 != 3) {
                q[k].pictures[0] = picture(pictures[(i + k) % 4]);
            }

            client_ask(&c, (uint32_t) k, &q[k]);
        }

        for (k = 0; k < 8; k++) {
            h = client_end(&c, (uint32_t) k);
            ended += h->last == 'D';
            free((char *) q[k].pictures[0]);
        }
    }

    tap_is(ended, 8 * ALLOCATION_ROUNDS, "answers");
    tap_is((long long) (vlm_emu_allocations() - n), 0,
           "no allocation beside them");

    client_close(&c);
    served_stop(&s);
}


static void
split(void *arg)
{
    vlm_emu_barrier(vlm_emu_at.thread.x == 0 ? 1 : 2);
}


/*
 * A fault that stays: requests fail, and the server ends, so that whoever
 * watches it starts it again.
 */

static void
test_lost(void)
{
    int                i;
    heard_t           *h;
    client_t           c;
    served_t           s;
    question_t         q[REQUESTS];
    vlm_emu_launch_t   l;

    mixed(q);
    serve(&s, &c, VLM_DEVICE_EMU, "bf16");

    memset(&l, 0, sizeof(l));
    l.name = "split";
    l.grid.x = l.grid.y = l.grid.z = 1;
    l.block.x = 32;
    l.block.y = l.block.z = 1;
    l.run = split;

    vlm_emu_run(&l);

    for (i = 0; i < REQUESTS; i++) {
        client_ask(&c, (uint32_t) i, &q[i]);
    }

    pthread_join(s.thread, NULL);
    tap_is(s.result, VLM_ERROR, "the server ends");
    tap_str(s.error.message, "device emu is lost: the engine must be started "
            "again", "and says why");

    vlm_server_destroy(s.server);

    for (i = 0; i < REQUESTS; i++) {
        h = client_end(&c, (uint32_t) i);
        tap_ok(h->last == 'E', "request %d is told: %c %s", i, h->last,
               h->message);
        free((char *) q[i].pictures[0]);
        free((char *) q[i].pictures[1]);
        free((char *) q[i].pictures[2]);
    }

    client_close(&c);
    vlm_emu_reset();
    free((char *) s.conf.engine.model);
    rmdir(s.dir);
}


int
main(void)
{
    vlm_log_level(getenv("VLM_TEST_LOG") != NULL ? "debug" : "error");

    test_mixed();
    test_score();

    if (cuda() == VLM_DEVICE_EMU) {
        test_allocations();
        test_lost();
    }

    return tap_done();
}
