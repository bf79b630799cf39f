
/* Keys, blobs, int8. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cache/value.h"
#include "t/unit/lib/tap.h"


#define TOKENS  6
#define WIDTH   10


static vlm_image_plan_t      plan;
static vlm_patch_geometry_t  geometry;
static uint8_t               picture[32], weights[32];


static vlm_cache_what_t
what_default(void)
{
    int               i;
    vlm_cache_what_t  what;

    for (i = 0; i < 32; i++) {
        picture[i] = (uint8_t) i;
        weights[i] = (uint8_t) (200 - i);
    }

    memset(&plan, 0, sizeof(plan));
    plan.width = 84;
    plan.height = 56;
    plan.filter = VLM_FILTER_BICUBIC;
    plan.grid_h = 4;
    plan.grid_w = 6;
    plan.ntokens = TOKENS;

    memset(&geometry, 0, sizeof(geometry));
    geometry.width = 84;
    geometry.height = 56;
    geometry.patch = 14;
    geometry.merge = 2;
    geometry.frames = 2;
    geometry.mean[0] = 0.5f;
    geometry.std[2] = 0.25f;

    memset(&what, 0, sizeof(what));
    what.picture = picture;
    what.weights = weights;
    what.plan = &plan;
    what.geometry = &geometry;
    what.dtype = VLM_BF16;
    what.device = "cpu";
    what.scope = "";

    return what;
}


static vlm_cache_key_t
key_of(const vlm_cache_what_t *what)
{
    vlm_cache_key_t  key;

    if (vlm_cache_key(what, &key) != VLM_OK) {
        memset(&key, 0, sizeof(key));
    }

    return key;
}


static int
differs(const vlm_cache_what_t *what, const vlm_cache_key_t *from,
    const char *name)
{
    vlm_cache_key_t  key;

    key = key_of(what);

    return tap_ok(memcmp(key.bytes, from->bytes, 32) != 0, "%s is in the key",
                  name);
}


static void
test_keys(void)
{
    char              name[VLM_CACHE_NAME_LEN];
    size_t            i;
    vlm_cache_key_t   key, again;
    vlm_cache_what_t  what;

    struct {
        void         *field;
        const char   *name;
    } fields[] = {
        { &picture[31], "the picture" }, { &weights[0], "the weights" },
        { &plan.width, "width" }, { &plan.height, "height" },
        { &plan.filter, "filter" }, { &plan.grid_h, "grid_h" },
        { &plan.grid_w, "grid_w" }, { &plan.ntokens, "ntokens" },
        { &geometry.patch, "patch" }, { &geometry.merge, "merge" },
        { &geometry.frames, "frames" }, { &geometry.mean[2], "mean" },
        { &geometry.std[0], "std" }
    };

    what = what_default();
    key = key_of(&what);
    again = key_of(&what);
    tap_ok(memcmp(key.bytes, again.bytes, 32) == 0, "the same again");

    for (i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        what = what_default();
        *(uint8_t *) fields[i].field ^= 1;
        differs(&what, &key, fields[i].name);
    }

    what = what_default();
    what.dtype = VLM_F16;
    differs(&what, &key, "dtype");

    what.dtype = VLM_BF16;
    what.device = "cuda";
    differs(&what, &key, "device");

    what.device = "cpu";
    what.quant = VLM_QUANT_INT8;
    differs(&what, &key, "quantisation");

    again = key_of(&what);
    what.quant = VLM_QUANT_FP8;
    differs(&what, &again, "its type");

    what.quant = VLM_QUANT_NONE;
    what.scope = "x";
    what.scope_len = 1;
    differs(&what, &key, "scope");

    again = key_of(&what);
    what.device = "cpux";
    what.scope_len = 0;
    differs(&what, &again, "a field's border");

    what = what_default();
    vlm_cache_name(&key, weights, name);

    tap_str(name, "vlm:emb:1:c8c7c6c5c4c3c2c1:"
            "0ebb8d079b0e8a00da369647a788c49e"
            "de22ca06998a29643190280cdb20f08d", "the name in Redis, for ever");
}


static void
fill(vlm_value_t *v, const vlm_cache_key_t *key, const void *data,
    vlm_dtype_t dtype)
{
    memset(v, 0, sizeof(*v));
    v->key = *key;
    v->nsections = 1;

    snprintf(v->sections[0].name, VLM_VALUE_NAME_LEN, "%s",
             VLM_SECTION_EMBEDDINGS);
    v->sections[0].dtype = dtype;
    v->sections[0].rows = TOKENS;
    v->sections[0].cols = WIDTH;
    v->sections[0].grid_h = 4;
    v->sections[0].grid_w = 6;
    v->sections[0].data = data;
}


static void *
blob_of(const vlm_value_t *v, size_t *size)
{
    void  *blob;

    *size = vlm_value_size(v);
    blob = malloc(*size + 8);

    if (blob == NULL) {
        exit(1);
    }

    vlm_value_write(v, blob);

    return blob;
}


/* may a value be used as the embedding of the default picture? */

static int
usable(const void *blob, size_t size, vlm_dtype_t dtype, vlm_error_t *err)
{
    vlm_value_t           v;
    vlm_cache_key_t       key;
    vlm_cache_what_t      what;
    const vlm_section_t  *embedding, *scales;

    what = what_default();
    key = key_of(&what);

    return vlm_value_read(blob, size, &v, err) == VLM_OK
           && vlm_value_embedding(&v, &key, &plan, dtype, WIDTH, &embedding,
                                  &scales, err)
              == VLM_OK;
}


static void
test_blobs(void)
{
    size_t            i, size, bad;
    uint8_t          *blob;
    uint16_t          data[TOKENS * WIDTH];
    uint32_t          crc;
    vlm_value_t       v, read;
    vlm_error_t       err;
    vlm_cache_key_t   key;
    vlm_cache_what_t  what;

    for (i = 0; i < TOKENS * WIDTH; i++) {
        data[i] = (uint16_t) (0x3f80 + i);
    }

    what = what_default();
    key = key_of(&what);
    fill(&v, &key, data, VLM_BF16);
    blob = blob_of(&v, &size);

    tap_is((long long) size, 128 + sizeof(data), "its size");
    tap_ok(vlm_value_read(blob, size, &read, &err) == VLM_OK
           && read.nsections == 1 && read.sections[0].rows == TOKENS
           && read.sections[0].cols == WIDTH
           && memcmp(read.sections[0].data, data, sizeof(data)) == 0,
           "read as written");
    tap_ok(usable(blob, size, VLM_BF16, &err), "it is that picture's");
    tap_ok(!usable(blob, size, VLM_F16, &err), "not as another type");
    tap_str(err.message, "no embedding of 6 tokens of 10", "it says so");

    for (bad = 0, i = 0; i < size * 8; i++) {
        blob[i / 8] ^= (uint8_t) (1 << (i % 8));
        bad += (size_t) usable(blob, size, VLM_BF16, &err);
        blob[i / 8] ^= (uint8_t) (1 << (i % 8));
    }

    tap_is((long long) bad, 0, "no bit may flip");

    for (bad = 0, i = 0; i < size; i++) {
        bad += (size_t) usable(blob, i, VLM_BF16, &err);
    }

    tap_is((long long) bad, 0, "no byte may be missing");

    blob[size] = 0;
    tap_ok(!usable(blob, size + 1, VLM_BF16, &err), "none may be added");

    /* another version, with a right checksum */

    blob[8] = 2;
    memset(blob + 60, 0, 4);
    crc = vlm_crc32c(0, blob, size);
    memcpy(blob + 60, &crc, 4);

    tap_ok(!usable(blob, size, VLM_BF16, &err), "another version");
    tap_str(err.message, "version 2, not 1", "it says so");
    free(blob);

    v.key.bytes[5] ^= 1;
    blob = blob_of(&v, &size);
    tap_ok(!usable(blob, size, VLM_BF16, &err), "another key's value");
    tap_str(err.message, "it belongs to another key", "it says so");
    free(blob);

    v.key.bytes[5] ^= 1;
    data[TOKENS * WIDTH - 1] = 0x7fc0;
    blob = blob_of(&v, &size);
    tap_ok(!usable(blob, size, VLM_BF16, &err), "not a number");
    tap_str(err.message, "a number that is not finite", "it says so");
    free(blob);

    v.sections[0].rows = 0xffffffff;
    v.sections[0].cols = 0xffffffff;
    tap_is((long long) vlm_value_size(&v), 0, "too large for a blob");
}


static void
test_int8(void)
{
    float         x[TOKENS * WIDTH], scales[TOKENS], back, worst;
    size_t        i, size;
    int8_t        q[TOKENS * WIDTH];
    uint16_t      bf16[TOKENS * WIDTH];
    uint32_t      bits;
    uint64_t      seed = 3;
    uint8_t      *blob;
    vlm_value_t   v;
    vlm_error_t   err;
    vlm_cache_key_t   key;
    vlm_cache_what_t  what;

    for (i = 0; i < TOKENS * WIDTH; i++) {
        x[i] = i < WIDTH ? 0 : tap_uniform(&seed) * (float) i;
    }

    vlm_quantize(x, TOKENS, WIDTH, q, scales);
    vlm_dequantize(q, scales, TOKENS, WIDTH, bf16);

    worst = 0;

    for (i = 0; i < TOKENS * WIDTH; i++) {
        bits = (uint32_t) bf16[i] << 16;
        memcpy(&back, &bits, sizeof(back));
        back = fabsf(back - x[i]) - fabsf(x[i]) / 256;

        if (scales[i / WIDTH] > 0) {
            worst = fmaxf(worst, back / scales[i / WIDTH]);
        }
    }

    tap_ok(worst <= 0.51f, "within half a step: %.3f", (double) worst);
    tap_ok(scales[0] == 0 && bf16[0] == 0 && bf16[WIDTH - 1] == 0,
           "a row of zeros stays one");

    what = what_default();
    key = key_of(&what);
    fill(&v, &key, q, VLM_I8);

    blob = blob_of(&v, &size);
    tap_ok(!usable(blob, size, VLM_I8, &err), "int8 without scales");
    tap_str(err.message, "no scales of 6 tokens", "it says so");
    free(blob);

    v.nsections = 2;
    v.sections[1] = v.sections[0];
    snprintf(v.sections[1].name, VLM_VALUE_NAME_LEN, "%s",
             VLM_SECTION_SCALES);
    v.sections[1].dtype = VLM_F32;
    v.sections[1].cols = 1;
    v.sections[1].data = scales;

    blob = blob_of(&v, &size);
    tap_ok(usable(blob, size, VLM_I8, &err), "with scales");
    free(blob);

    scales[2] = INFINITY;
    blob = blob_of(&v, &size);
    tap_ok(!usable(blob, size, VLM_I8, &err), "an infinite scale");
    free(blob);

    scales[2] = 3e38f;
    blob = blob_of(&v, &size);
    tap_ok(!usable(blob, size, VLM_I8, &err), "a scale that overflows");
    free(blob);
}


int
main(void)
{
    tap_is(vlm_crc32c(0, "123456789", 9), 0xe3069283, "CRC-32C");
    tap_is(vlm_crc32c(vlm_crc32c(0, "1234", 4), "56789", 5), 0xe3069283,
           "in two parts");

    test_keys();
    test_blobs();
    test_int8();

    return tap_done();
}
