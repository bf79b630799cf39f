
/* What a model needs, and what there is. */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/runtime/internal.h"


#define MIB             (1024.0 * 1024.0)
#define DEFAULT_KV      (1ull << 30)
#define DEVICE_WORK     (256ull << 20)  /* of the libraries there */
#define LEAST_CONTEXT   256             /* less is of no use by default */
#define LEAST_PIXELS    4194304         /* the same */


/* a small file of the kernel's; its size is not known before */

static int
read_small(const char *path, char *text, size_t size)
{
    int      fd;
    ssize_t  n;

    fd = open(path, O_RDONLY|O_CLOEXEC);
    if (fd == -1) {
        return VLM_ERROR;
    }

    n = read(fd, text, size - 1);
    close(fd);

    if (n < 0) {
        return VLM_ERROR;
    }

    text[n] = '\0';

    return VLM_OK;
}


static uint64_t
mem_available(void)
{
    char                text[4096];
    const char         *p;
    unsigned long long  kib;

    if (read_small("/proc/meminfo", text, sizeof(text)) != VLM_OK) {
        return UINT64_MAX;
    }

    p = strstr(text, "MemAvailable:");

    if (p == NULL || sscanf(p, "MemAvailable: %llu kB", &kib) != 1) {
        return UINT64_MAX;
    }

    return (uint64_t) kib * 1024;
}


/* what is left below the limits of this process's cgroup and its parents */

static uint64_t
cgroup_available(void)
{
    char                 text[4096], dir[1024], path[1100], *p, *end;
    uint64_t             least;
    unsigned long long   max, used;

    least = UINT64_MAX;

    if (read_small("/proc/self/cgroup", text, sizeof(text)) != VLM_OK) {
        return least;
    }

    p = strstr(text, "0::/");
    if (p == NULL) {
        return least;
    }

    p += 3;
    end = strchr(p, '\n');

    if (end != NULL) {
        *end = '\0';
    }

    snprintf(dir, sizeof(dir), "/sys/fs/cgroup%s", p);

    for ( ;; ) {
        max = 0;
        used = 0;

        snprintf(path, sizeof(path), "%s/memory.max", dir);

        if (read_small(path, text, sizeof(text)) == VLM_OK
            && sscanf(text, "%llu", &max) == 1)
        {
            snprintf(path, sizeof(path), "%s/memory.current", dir);

            if (read_small(path, text, sizeof(text)) == VLM_OK
                && sscanf(text, "%llu", &used) == 1)
            {
                max = max > used ? max - used : 0;
                least = max < least ? max : least;
            }
        }

        p = strrchr(dir, '/');

        if (p == NULL || strcmp(dir, "/sys/fs/cgroup") == 0) {
            break;
        }

        *p = '\0';
    }

    return least;
}


/* what is asked of the device beside weights, keys and values */

void
vlm_memory_room(const vlm_engine_t *e, vlm_room_t *room)
{
    vlm_room_conf_t           what;
    const vlm_engine_conf_t  *conf;

    conf = &e->conf;
    memset(&what, 0, sizeof(what));

    what.rows = conf->max_rows;
    what.seqs = conf->max_num_seqs;
    what.context = conf->max_model_len != 0
                   ? conf->max_model_len : vlm_model_info(e->model)->context;
    what.block_size = conf->block_size;
    what.biases = VLM_MAX_LOGIT_BIAS;
    what.batch_pictures = VLM_ENCODE_BATCH;
    what.batch_patches = e->ops->async ? VLM_ENCODE_ROWS_ASYNC
                                       : VLM_ENCODE_ROWS;
    what.smaller = VLM_ENCODE_SMALLER;

    /* the host does not keep memory ready for what is rare */
    what.high = e->device_kind != VLM_DEVICE_CPU;

    vlm_model_room(e->model, e->dev, e->ops, &what, room);
}


/* in the host's memory, of which a device's is no part */

static uint64_t
picture_bytes(const vlm_engine_conf_t *conf, uint64_t pixels)
{
    if (conf->device_memory != 0 || conf->max_images == 0) {
        return 0;
    }

    return (uint64_t) conf->image_threads * pixels * VLM_IMAGE_PIXEL_BYTES;
}


static uint64_t
sub0(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}


/* by default pictures being decoded have half of what is left, at most */

static uint64_t
image_pixels(const vlm_engine_conf_t *conf, uint64_t left)
{
    uint64_t  most;

    if (conf->max_image_pixels != 0) {
        return conf->max_image_pixels;
    }

    if (picture_bytes(conf, VLM_IMAGE_PIXELS) <= left / 2) {
        return VLM_IMAGE_PIXELS;
    }

    most = left / 2 / picture_bytes(conf, 1);

    return most > LEAST_PIXELS ? most : LEAST_PIXELS;
}


static uint64_t
least_blocks(const vlm_engine_conf_t *conf, uint64_t full)
{
    uint64_t  least;

    least = (uint64_t) (LEAST_CONTEXT / conf->block_size);
    least = least < full ? least : full;

    return least > 0 ? least : 1;
}


/*
 * All seats at full length are enough; a tenth is left for others, but of a
 * device's memory, of which only a share was to be taken.
 */

static uint64_t
default_blocks(const vlm_engine_conf_t *conf, uint64_t full,
    uint64_t block_bytes, uint64_t left)
{
    uint64_t  blocks, least;

    if (conf->device_memory != 0) {
        blocks = left / block_bytes;
        return blocks > 0 ? blocks : 1;
    }

    blocks = DEFAULT_KV / block_bytes;
    blocks = blocks > full ? blocks : full;

    if (blocks > full * (uint64_t) conf->max_num_seqs) {
        blocks = full * (uint64_t) conf->max_num_seqs;
    }

    if (blocks > left / 10 * 9 / block_bytes) {
        blocks = left / 10 * 9 / block_bytes;
    }

    least = least_blocks(conf, full);

    return blocks > least ? blocks : least;
}


static int
too_large(const vlm_engine_conf_t *conf, const vlm_memory_t *mem,
    uint64_t total, vlm_error_t *err)
{
    return vlm_fail(err, 500, NULL, "not enough memory: the model needs %.0f "
                    "MiB (weights %.0f, KV cache %.0f: --kv-cache-memory, "
                    "work space %.0f: --max-num-batched-tokens, "
                    "--max-pixels, embedding cache %.0f: "
                    "--embedding-cache-memory, pictures being decoded %.0f: "
                    "--max-image-pixels), %.0f MiB are available%s",
                    (double) total / MIB, (double) mem->weights / MIB,
                    (double) mem->kv / MIB, (double) mem->work / MIB,
                    conf->device_memory != 0 ? 0 : (double) mem->cache / MIB,
                    (double) mem->pictures / MIB,
                    (double) mem->available / MIB,
                    conf->device_memory != 0
                    ? " by --gpu-memory-utilization" : "");
}


/* beside a device's own */

static int
too_much_pinned(const vlm_need_t *need, const vlm_memory_t *mem,
    uint64_t available, vlm_error_t *err)
{
    return vlm_fail(err, 500, NULL, "not enough memory of the host: %.0f MiB "
                    "are to be pinned (embedding cache %.0f: "
                    "--embedding-cache-memory, pictures and embeddings on "
                    "their way %.0f: --max-pixels), %.0f MiB are available",
                    (double) (need->host + mem->cache) / MIB,
                    (double) mem->cache / MIB, (double) need->host / MIB,
                    (double) available / MIB);
}


/* for --max-model-len, or without it for a context that is worth the start */

static int
too_small(const vlm_engine_conf_t *conf, const vlm_memory_t *mem,
    uint64_t bytes, vlm_error_t *err)
{
    char  what[128];

    snprintf(what, sizeof(what), "the KV cache of %.1f MiB holds %lld tokens",
             (double) mem->kv / MIB,
             (long long) mem->nblocks * conf->block_size);

    if (conf->max_model_len != 0) {
        return vlm_fail(err, 500, NULL, "%s, fewer than --max-model-len %d: "
                        "raise --kv-cache-memory to %.1f MiB or lower "
                        "--max-model-len", what, conf->max_model_len,
                        (double) bytes / MIB);
    }

    return vlm_fail(err, 500, NULL, "%s, too few for a request: raise "
                    "--kv-cache-memory to %.1f MiB or more", what,
                    (double) bytes / MIB);
}


/* the memory that counts, and what the cache takes of it */

static int
memory_where(const vlm_engine_conf_t *conf, const vlm_need_t *need,
    vlm_memory_t *mem, uint64_t *cache, vlm_error_t *err)
{
    uint64_t  available, cgroup;

    available = mem_available();
    cgroup = cgroup_available();
    available = cgroup < available ? cgroup : available;

    *cache = conf->device_memory == 0 ? mem->cache : 0;

    if (conf->device_memory == 0) {
        mem->available = available;
        mem->work += need->host;
        return VLM_OK;
    }

    if (need->host + mem->cache > available) {
        return too_much_pinned(need, mem, available, err);
    }

    mem->available = conf->device_memory;
    mem->work += DEVICE_WORK;

    return VLM_OK;
}


int
vlm_memory_plan(const vlm_engine_conf_t *conf, const vlm_need_t *need,
    vlm_memory_t *mem, vlm_error_t *err)
{
    int32_t   want;
    uint64_t  cache, blocks, full, least, left, total;

    mem->weights = need->weights;
    mem->work = need->work;
    mem->cache = conf->cache_memory;

    if (memory_where(conf, need, mem, &cache, err) != VLM_OK) {
        return VLM_ERROR;
    }

    want = conf->max_model_len != 0 ? conf->max_model_len : need->context;

    if (want > need->context) {
        return vlm_fail(err, 500, NULL, "--max-model-len is %d, but the model "
                        "has positions for %d tokens", want, need->context);
    }

    full = (uint64_t) ((want + conf->block_size - 1) / conf->block_size);
    left = sub0(mem->available, mem->weights + mem->work + cache);

    mem->image_pixels = image_pixels(conf, left);
    mem->pictures = picture_bytes(conf, mem->image_pixels);
    left = sub0(left, mem->pictures);

    blocks = conf->kv_memory != 0
             ? conf->kv_memory / need->block
             : default_blocks(conf, full, need->block, left);

    blocks = blocks < INT32_MAX / 2 ? blocks : INT32_MAX / 2;

    mem->nblocks = (int32_t) blocks;
    mem->kv = blocks * need->block;

    total = mem->weights + mem->kv + mem->work + cache + mem->pictures;

    if (total > mem->available) {
        return too_large(conf, mem, total, err);
    }

    mem->context = want;

    if (blocks < full) {

        least = (conf->max_model_len != 0) ? full : least_blocks(conf, full);

        if (blocks < least) {
            return too_small(conf, mem, least * need->block, err);
        }

        mem->context = (int32_t) blocks * conf->block_size;
    }

    return VLM_OK;
}
