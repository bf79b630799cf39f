
/* What fits into memory, and what is said when it does not. */

#include <string.h>

#include "engine/runtime/engine.h"
#include "t/unit/lib/tap.h"


static vlm_engine_conf_t  conf;
static vlm_need_t         need;
static vlm_memory_t       mem;
static vlm_error_t        err;

/* 1 KiB a token */
#define BLOCK   16384


static void
reset(void)
{
    memset(&conf, 0, sizeof(conf));
    memset(&need, 0, sizeof(need));
    memset(&err, 0, sizeof(err));

    conf.block_size = 16;
    conf.max_num_seqs = 4;
    conf.max_rows = 64;

    need.context = 2000;
    need.block = BLOCK;
    need.weights = 1 << 20;
    need.work = 1 << 16;
}


static int
plan(void)
{
    return vlm_memory_plan(&conf, &need, &mem, &err);
}


/* how large a picture may be follows the memory, if nothing was said */

static void
test_pixels(void)
{
    uint64_t  available;

    reset();
    conf.max_images = 4;
    conf.image_threads = 1;
    need.weights = 0;
    need.work = 0;
    tap_is(plan(), VLM_OK, "pictures by default");
    tap_is((long long) mem.image_pixels, 67108864, "8192 x 8192");
    available = mem.available;

    /* memory comes and goes beside this test: half of 512 MiB at least */

    need.weights = available - (512 << 20);
    conf.image_threads = 4;
    tap_is(plan(), VLM_OK, "where memory is short");
    tap_ok(mem.image_pixels >= 4194304 && mem.image_pixels < 10000000,
           "fewer pixels: %llu", (unsigned long long) mem.image_pixels);
    tap_is((long long) mem.pictures,
           (long long) mem.image_pixels * 4 * 13, "for each thread");

    conf.max_image_pixels = 67108864;
    tap_is(plan(), VLM_ERROR, "but not where a number was given");
    tap_ok(strstr(err.message, "--max-image-pixels") != NULL, "%s",
           err.message);

    reset();
    conf.max_images = 4;
    conf.image_threads = 1;
    conf.device_memory = 1ull << 30;
    tap_is(plan(), VLM_OK, "a device's memory does not count");
    tap_is((long long) mem.image_pixels, 67108864, "8192 x 8192 again");
}


int
main(void)
{
    reset();
    tap_is(plan(), VLM_OK, "defaults");
    tap_is(mem.context, 2000, "the model's context");
    tap_is(mem.nblocks, 4 * 125, "all seats at full length are enough");
    tap_is((long long) mem.kv, 4 * 125 * BLOCK, "bytes of them");
    tap_is((long long) mem.weights, 1 << 20, "weights");
    tap_ok(mem.available > mem.kv, "available: %llu",
           (unsigned long long) mem.available);

    conf.kv_memory = 20 * BLOCK + 5;
    tap_is(plan(), VLM_OK, "a small cache");
    tap_is(mem.nblocks, 20, "20 blocks");
    tap_is(mem.context, 320, "bound the context");

    conf.max_model_len = 320;
    tap_is(plan(), VLM_OK, "a length that just fits");
    tap_is(mem.context, 320, "is in force");

    conf.max_model_len = 321;
    tap_is(plan(), VLM_ERROR, "one token more");
    tap_ok(strstr(err.message, "holds 320 tokens, fewer than "
                  "--max-model-len 321: raise --kv-cache-memory to 0.3 MiB or "
                  "lower --max-model-len") != NULL, "%s", err.message);

    conf.max_model_len = 0;
    conf.kv_memory = 15 * BLOCK;
    tap_is(plan(), VLM_ERROR, "a cache that holds no request");
    tap_ok(strstr(err.message, "holds 240 tokens, too few for a request: "
                  "raise --kv-cache-memory to 0.2 MiB") != NULL, "%s",
           err.message);

    conf.kv_memory = 1;
    tap_is(plan(), VLM_ERROR, "less than a block");
    tap_ok(strstr(err.message, "holds 0 tokens") != NULL, "%s", err.message);

    need.context = 100;
    conf.kv_memory = 7 * BLOCK;
    tap_is(plan(), VLM_OK, "a model of a short context needs no more");
    tap_is(mem.context, 100, "than it");

    reset();
    conf.max_images = 4;
    conf.image_threads = 3;
    conf.max_image_pixels = 1000000;
    tap_is(plan(), VLM_OK, "pictures");
    tap_is((long long) mem.pictures, 3 * 13000000, "that three threads decode");

    conf.max_image_pixels = 1ull << 45;
    tap_is(plan(), VLM_ERROR, "of too many pixels");
    tap_ok(strstr(err.message, "pictures being decoded 1308622848: "
                  "--max-image-pixels") != NULL, "%s", err.message);

    conf.max_images = 0;
    tap_is(plan(), VLM_OK, "where none are allowed");
    tap_is((long long) mem.pictures, 0, "none are counted");

    test_pixels();

    reset();
    conf.max_model_len = 2001;
    tap_is(plan(), VLM_ERROR, "longer than the model's context");
    tap_ok(strstr(err.message, "2001") != NULL
           && strstr(err.message, "2000") != NULL, "%s", err.message);

    reset();
    need.weights = 1ull << 50;
    tap_is(plan(), VLM_ERROR, "weights that fit nowhere");
    tap_ok(strstr(err.message, "weights 1073741824, ") != NULL
           && strstr(err.message, "MiB are available") != NULL, "%s",
           err.message);

    reset();
    conf.kv_memory = 1ull << 50;
    tap_is(plan(), VLM_ERROR, "a cache that fits nowhere");
    tap_ok(strstr(err.message, "not enough memory") != NULL, "%s",
           err.message);

    /* of a GPU: all that weights and work space leave */

    reset();
    conf.device_memory = 1ull << 30;
    tap_is(plan(), VLM_OK, "a device's memory");
    tap_is((long long) mem.available, 1 << 30, "is what counts");
    tap_is(mem.nblocks, (long long) ((mem.available - mem.weights - mem.work)
                                     / BLOCK), "the cache has all the rest");
    tap_is((long long) (mem.work - need.work), 256 << 20,
           "the libraries need some");

    conf.device_memory = 200 << 20;
    tap_is(plan(), VLM_ERROR, "too little of it");
    tap_ok(strstr(err.message, "200 MiB are available by "
                  "--gpu-memory-utilization") != NULL, "%s", err.message);

    /* of the host, beside it */

    reset();
    conf.device_memory = 1ull << 30;
    conf.cache_memory = 2ull << 30;
    need.host = 5 << 20;
    tap_is(plan(), VLM_OK, "embeddings take nothing of it");
    tap_is(mem.nblocks, (long long) ((mem.available - mem.weights - mem.work)
                                     / BLOCK), "keys and values have it");
    tap_is((long long) mem.cache, 2ll << 30, "they are in the host's");

    conf.cache_memory = 1ull << 50;
    tap_is(plan(), VLM_ERROR, "which is not without end");
    tap_ok(strstr(err.message, "not enough memory of the host: 1073741829 "
                  "MiB are to be pinned (embedding cache 1073741824: "
                  "--embedding-cache-memory, pictures and embeddings on their "
                  "way 5: --max-pixels)") != NULL, "%s", err.message);

    conf.device_memory = 0;
    conf.cache_memory = 1 << 20;
    tap_is(plan(), VLM_OK, "without a device it is one memory");
    tap_is((long long) (mem.work - need.work), 5 << 20, "for all of that");

    return tap_done();
}
