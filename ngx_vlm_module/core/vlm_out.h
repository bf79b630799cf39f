
/*
 * Text written into a bounded buffer of the caller.
 *
 * As with snprintf(), "len" counts what is needed even when it no longer
 * fits, and bytes past "size" are not written: with size 0 (buf may be NULL)
 * a writer only measures.  Check vlm_out_full() once at the end.
 */

#ifndef VLM_OUT_H
#define VLM_OUT_H


#include <stddef.h>
#include <stdint.h>


typedef struct {
    char               *buf;
    size_t              size;
    size_t              len;
} vlm_out_t;


#define vlm_out_full(o)         ((o)->len > (o)->size)

void vlm_out_init(vlm_out_t *o, void *buf, size_t size);
void vlm_out_bytes(vlm_out_t *o, const void *p, size_t len);
void vlm_out_str(vlm_out_t *o, const char *s);
void vlm_out_uint(vlm_out_t *o, uint64_t n);

/*
 * The inside of a JSON string, without quotes.  Invalid UTF-8 becomes U+FFFD,
 * so the result is valid JSON whatever comes in.  At most 6 bytes for each.
 */
void vlm_out_json(vlm_out_t *o, const char *p, size_t len);


#endif /* VLM_OUT_H */
