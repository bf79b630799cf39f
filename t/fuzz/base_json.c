
/* Any bytes as a JSON document; what was parsed is walked through. */

#include "engine/base/vlm_json.h"


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);


static size_t
walk(const vlm_json_t *v)
{
    int                b;
    double             d;
    size_t             len, n, count;
    int64_t            i;
    const char        *s;
    const vlm_json_t  *child;

    n = 1;

    if (vlm_json_string(v, &s, &len) == VLM_OK
        && vlm_utf8_valid(s, len) != len)
    {
        __builtin_trap();
    }

    if (vlm_json_int(v, &i) == VLM_OK
        && vlm_json_double(v, &d) == VLM_ERROR)
    {
        __builtin_trap();
    }

    (void) vlm_json_bool(v, &b);

    count = 0;

    for (child = vlm_json_first(v); child != NULL;
         child = vlm_json_next(child))
    {
        s = vlm_json_key(child, &len);

        if ((s != NULL) != (vlm_json_type(v) == VLM_JSON_OBJECT)
            || (s != NULL && vlm_utf8_valid(s, len) != len))
        {
            __builtin_trap();
        }

        n += walk(child);
        count++;
    }

    if (count != vlm_json_count(v)) {
        __builtin_trap();
    }

    return n;
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    vlm_error_t      err;
    vlm_json_doc_t  *doc;

    doc = vlm_json_parse((const char *) data, size, "fuzz", &err);

    if (doc != NULL && walk(vlm_json_root(doc)) > size) {
        __builtin_trap();
    }

    vlm_json_free(doc);

    return 0;
}
