
/*
 * The value: one picture's embedding as a blob that describes itself.
 *
 *     0  "VLMEMBED"                      all numbers little-endian
 *     8  u32 version, u32 number of sections
 *    16  u64 size of the whole blob
 *    24  the key, 32 bytes
 *    56  u32 0, u32 CRC-32C of the blob with this field as 0
 *    64  sections, 64 bytes each:
 *            name[24], zero-padded
 *            u64 offset (a multiple of 64), u64 length
 *            u32 dtype, u32 rows, u32 cols, u32 grid_h, u32 grid_w, u32 0
 *     .  their data, in order, with zeros in between
 *
 * "embeddings" is [tokens, width]; as int8 it has a companion,
 * "embeddings.scales", one float32 a token.  Families with deep features add
 * sections.  A reader trusts nothing: the blob may come from anywhere.
 */

#ifndef VLM_CACHE_VALUE_H
#define VLM_CACHE_VALUE_H


#include "engine/cache/key.h"


#define VLM_VALUE_VERSION       1
#define VLM_VALUE_SECTIONS      8
#define VLM_VALUE_NAME_LEN      24

#define VLM_SECTION_EMBEDDINGS  "embeddings"
#define VLM_SECTION_SCALES      "embeddings.scales"


typedef struct {
    char                name[VLM_VALUE_NAME_LEN];   /* terminated */
    vlm_dtype_t         dtype;          /* F32, BF16, F16, I8 */
    uint32_t            rows;
    uint32_t            cols;
    uint32_t            grid_h;         /* patches; 0: of no picture */
    uint32_t            grid_w;
    const void         *data;           /* rows * cols, no gaps */
} vlm_section_t;

typedef struct {
    vlm_cache_key_t     key;
    uint32_t            nsections;
    vlm_section_t       sections[VLM_VALUE_SECTIONS];
} vlm_value_t;


/* bytes of the blob, 0: impossible */
size_t vlm_value_size(const vlm_value_t *v);

/* writes vlm_value_size() bytes */
void vlm_value_write(const vlm_value_t *v, void *blob);

/* sections point into the blob, which must be 4-byte aligned */
int vlm_value_read(const void *blob, size_t len, vlm_value_t *v,
    vlm_error_t *err);

const vlm_section_t *vlm_value_find(const vlm_value_t *v, const char *name);


/*
 * The embedding of a picture whose plan is known, in a blob: the key, the
 * type, each size must be what is expected, and each number finite.
 */
int vlm_value_embedding(const vlm_value_t *v, const vlm_cache_key_t *key,
    const vlm_image_plan_t *plan, vlm_dtype_t dtype, int32_t width,
    const vlm_section_t **embedding, const vlm_section_t **scales,
    vlm_error_t *err);


/* rows of float32 to int8 with a scale each, and back to bf16 */

void vlm_quantize(const float *x, size_t rows, size_t cols, int8_t *q,
    float *scales);
void vlm_dequantize(const int8_t *q, const float *scales, size_t rows,
    size_t cols, uint16_t *bf16);

/* continues a CRC-32C; 0 begins one */
uint32_t vlm_crc32c(uint32_t crc, const void *data, size_t len);


#endif /* VLM_CACHE_VALUE_H */
