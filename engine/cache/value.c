
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/cache/value.h"


#define MAGIC           "VLMEMBED"
#define HEADER          64
#define SECTION         64
#define ALIGN           64
#define MAX_BLOB        ((uint64_t) 1 << 32)

#define CRC_OFFSET      60

#define align_up(n)     (((n) + ALIGN - 1) & ~(uint64_t) (ALIGN - 1))


static int section_read(const uint8_t *blob, uint64_t size, uint64_t *pos,
    const uint8_t *p, vlm_section_t *s, vlm_error_t *err);
static uint32_t blob_crc(const uint8_t *blob, size_t len);
static int all_finite(const vlm_section_t *s);


static void
put32(uint8_t *p, uint32_t n)
{
    memcpy(p, &n, sizeof(n));
}


static void
put64(uint8_t *p, uint64_t n)
{
    memcpy(p, &n, sizeof(n));
}


static uint32_t
get32(const uint8_t *p)
{
    uint32_t  n;

    memcpy(&n, p, sizeof(n));

    return n;
}


static uint64_t
get64(const uint8_t *p)
{
    uint64_t  n;

    memcpy(&n, p, sizeof(n));

    return n;
}


/* bytes of a section's data; 0: it is impossible */

static uint64_t
section_bytes(uint32_t dtype, uint32_t rows, uint32_t cols)
{
    uint64_t  n;

    if (dtype != VLM_F32 && dtype != VLM_BF16 && dtype != VLM_F16
        && dtype != VLM_I8)
    {
        return 0;
    }

    n = (uint64_t) rows * cols;

    if (n > MAX_BLOB) {
        return 0;
    }

    return n * vlm_dtype_size((vlm_dtype_t) dtype);
}


size_t
vlm_value_size(const vlm_value_t *v)
{
    uint32_t  i;
    uint64_t  size, n;

    if (v->nsections > VLM_VALUE_SECTIONS) {
        return 0;
    }

    size = HEADER + (uint64_t) v->nsections * SECTION;

    for (i = 0; i < v->nsections; i++) {
        n = section_bytes(v->sections[i].dtype, v->sections[i].rows,
                          v->sections[i].cols);

        size = align_up(size) + n;

        if (n == 0 || size > MAX_BLOB) {
            return 0;
        }
    }

    return (size_t) size;
}


void
vlm_value_write(const vlm_value_t *v, void *to)
{
    uint8_t              *blob = to, *p;
    uint32_t              i;
    uint64_t              pos, n;
    const vlm_section_t  *s;

    pos = HEADER + (uint64_t) v->nsections * SECTION;
    memset(blob, 0, (size_t) pos);

    memcpy(blob, MAGIC, 8);
    put32(blob + 8, VLM_VALUE_VERSION);
    put32(blob + 12, v->nsections);
    put64(blob + 16, vlm_value_size(v));
    memcpy(blob + 24, v->key.bytes, 32);

    for (i = 0; i < v->nsections; i++) {
        s = &v->sections[i];
        p = blob + HEADER + (uint64_t) i * SECTION;
        n = section_bytes(s->dtype, s->rows, s->cols);

        memset(blob + pos, 0, (size_t) (align_up(pos) - pos));
        pos = align_up(pos);

        snprintf((char *) p, VLM_VALUE_NAME_LEN, "%s", s->name);
        put64(p + 24, pos);
        put64(p + 32, n);
        put32(p + 40, s->dtype);
        put32(p + 44, s->rows);
        put32(p + 48, s->cols);
        put32(p + 52, s->grid_h);
        put32(p + 56, s->grid_w);

        memcpy(blob + pos, s->data, (size_t) n);
        pos += n;
    }

    put32(blob + CRC_OFFSET, blob_crc(blob, (size_t) pos));
}


/* what precedes the field and what follows it */

static uint32_t
blob_crc(const uint8_t *blob, size_t len)
{
    uint32_t              crc;
    static const uint8_t  zeros[4];

    crc = vlm_crc32c(0, blob, CRC_OFFSET);
    crc = vlm_crc32c(crc, zeros, sizeof(zeros));

    return vlm_crc32c(crc, blob + CRC_OFFSET + 4, len - CRC_OFFSET - 4);
}


int
vlm_value_read(const void *from, size_t len, vlm_value_t *v,
    vlm_error_t *err)
{
    uint32_t        i, n, version;
    uint64_t        size, pos;
    const uint8_t  *blob = from;

    memset(v, 0, sizeof(*v));

    if (len < HEADER || memcmp(blob, MAGIC, 8) != 0) {
        return vlm_fail(err, 500, NULL, "not an embedding: %zu bytes", len);
    }

    version = get32(blob + 8);
    n = get32(blob + 12);
    size = get64(blob + 16);

    if (version != VLM_VALUE_VERSION) {
        return vlm_fail(err, 500, NULL, "version %u, not %u", version,
                        VLM_VALUE_VERSION);
    }

    if (size != len) {
        return vlm_fail(err, 500, NULL, "%zu bytes, but %llu are announced",
                        len, (unsigned long long) size);
    }

    if (n > VLM_VALUE_SECTIONS || HEADER + (uint64_t) n * SECTION > size) {
        return vlm_fail(err, 500, NULL, "%u sections in %zu bytes", n, len);
    }

    if (get32(blob + 56) != 0
        || get32(blob + CRC_OFFSET) != blob_crc(blob, len))
    {
        return vlm_fail(err, 500, NULL, "wrong checksum");
    }

    memcpy(v->key.bytes, blob + 24, 32);

    pos = HEADER + (uint64_t) n * SECTION;

    for (i = 0; i < n; i++) {
        if (section_read(blob, size, &pos,
                         blob + HEADER + (uint64_t) i * SECTION,
                         &v->sections[i], err)
            != VLM_OK)
        {
            return VLM_ERROR;
        }
    }

    if (pos != size) {
        return vlm_fail(err, 500, NULL, "%llu bytes behind the last section",
                        (unsigned long long) (size - pos));
    }

    v->nsections = n;

    return VLM_OK;
}


static int
section_read(const uint8_t *blob, uint64_t size, uint64_t *pos,
    const uint8_t *p, vlm_section_t *s, vlm_error_t *err)
{
    uint32_t  dtype;
    uint64_t  offset, length, n;

    memcpy(s->name, p, VLM_VALUE_NAME_LEN);
    offset = get64(p + 24);
    length = get64(p + 32);
    dtype = get32(p + 40);
    s->rows = get32(p + 44);
    s->cols = get32(p + 48);
    s->grid_h = get32(p + 52);
    s->grid_w = get32(p + 56);

    if (s->name[0] == '\0' || s->name[VLM_VALUE_NAME_LEN - 1] != '\0'
        || get32(p + 60) != 0)
    {
        return vlm_fail(err, 500, NULL, "a section has no valid name");
    }

    n = section_bytes(dtype, s->rows, s->cols);

    if (n == 0 || n != length) {
        return vlm_fail(err, 500, NULL, "a section of type %u and %u x %u "
                        "has %llu bytes", dtype, s->rows, s->cols,
                        (unsigned long long) length);
    }

    if (offset != align_up(*pos) || offset > size || length > size - offset)
    {
        return vlm_fail(err, 500, NULL, "a section lies at %llu, %llu bytes "
                        "of %llu", (unsigned long long) offset,
                        (unsigned long long) length,
                        (unsigned long long) size);
    }

    *pos = offset + length;

    s->dtype = (vlm_dtype_t) dtype;
    s->data = blob + offset;

    return VLM_OK;
}


const vlm_section_t *
vlm_value_find(const vlm_value_t *v, const char *name)
{
    uint32_t  i;

    for (i = 0; i < v->nsections; i++) {
        if (strcmp(v->sections[i].name, name) == 0) {
            return &v->sections[i];
        }
    }

    return NULL;
}


int
vlm_value_embedding(const vlm_value_t *v, const vlm_cache_key_t *key,
    const vlm_image_plan_t *plan, vlm_dtype_t dtype, int32_t width,
    const vlm_section_t **embedding, const vlm_section_t **scales,
    vlm_error_t *err)
{
    const vlm_section_t  *s;

    if (memcmp(v->key.bytes, key->bytes, sizeof(key->bytes)) != 0) {
        return vlm_fail(err, 500, NULL, "it belongs to another key");
    }

    s = vlm_value_find(v, VLM_SECTION_EMBEDDINGS);

    if (s == NULL || s->dtype != dtype || s->rows != (uint32_t) plan->ntokens
        || s->cols != (uint32_t) width
        || s->grid_h != (uint32_t) plan->grid_h
        || s->grid_w != (uint32_t) plan->grid_w)
    {
        return vlm_fail(err, 500, NULL, "no embedding of %d tokens of %d",
                        plan->ntokens, width);
    }

    *embedding = s;
    *scales = NULL;

    if (dtype == VLM_I8) {
        s = vlm_value_find(v, VLM_SECTION_SCALES);

        if (s == NULL || s->dtype != VLM_F32
            || s->rows != (uint32_t) plan->ntokens || s->cols != 1)
        {
            return vlm_fail(err, 500, NULL, "no scales of %d tokens",
                            plan->ntokens);
        }

        *scales = s;
    }

    if (!all_finite(s)) {
        return vlm_fail(err, 500, NULL, "a number that is not finite");
    }

    return VLM_OK;
}


/* no exponent of ones; a scale leaves room for a factor of 128 */

static int
all_finite(const vlm_section_t *s)
{
    size_t           i, n;
    uint32_t         bad, mask, limit;
    const uint16_t  *half;
    const uint32_t  *word;

    n = (size_t) s->rows * s->cols;
    bad = 0;

    if (s->dtype == VLM_F32) {
        word = s->data;
        limit = strcmp(s->name, VLM_SECTION_SCALES) == 0 ? 0x7b000000
                                                         : 0x7f800000;

        for (i = 0; i < n; i++) {
            bad |= ((word[i] & 0x7f800000) >= limit);
        }

    } else {
        half = s->data;
        mask = s->dtype == VLM_BF16 ? 0x7f80 : 0x7c00;

        for (i = 0; i < n; i++) {
            bad |= ((half[i] & mask) == mask);
        }
    }

    return !bad;
}


void
vlm_quantize(const float *x, size_t rows, size_t cols, int8_t *q,
    float *scales)
{
    float   max, inverse;
    size_t  r, i;

    for (r = 0; r < rows; r++, x += cols, q += cols) {
        max = 0;

        for (i = 0; i < cols; i++) {
            max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
        }

        scales[r] = max / 127;
        inverse = scales[r] > 0 && isfinite(127 / max) ? 127 / max : 0;

        for (i = 0; i < cols; i++) {
            q[i] = (int8_t) lrintf(x[i] * inverse);
        }
    }
}


/* round to nearest, ties to even; a product of int8 and scale is finite */

static uint16_t
to_bf16(float f)
{
    uint32_t  bits;

    memcpy(&bits, &f, sizeof(bits));
    bits += 0x7fff + ((bits >> 16) & 1);

    return (uint16_t) (bits >> 16);
}


void
vlm_dequantize(const int8_t *q, const float *scales, size_t rows,
    size_t cols, uint16_t *bf16)
{
    size_t  r, i;

    for (r = 0; r < rows; r++, q += cols, bf16 += cols) {
        for (i = 0; i < cols; i++) {
            bf16[i] = to_bf16((float) q[i] * scales[r]);
        }
    }
}
