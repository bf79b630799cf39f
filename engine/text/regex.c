
/*
 * Regular expressions of tokenizer.json are written for another engine.
 * What both agree on passes; \s is spelled out, because PCRE2's also takes
 * U+180E; everything else is refused rather than guessed.
 */

#include <string.h>

#include "engine/text/tokenizer_parts.h"


/* Unicode's White_Space, without brackets */
#define SPACES  "\\t-\\r \\x{85}\\p{Z}"


typedef struct {
    int         open;
    size_t      first;                  /* place of its first member */
} class_t;


static int check(const char *regex, size_t i, size_t len, class_t *class,
    vlm_error_t *err);
static int group(const char *p, size_t len, vlm_error_t *err);
static int escape(const char *p, size_t len, int in_class, vlm_buf_t *out,
    vlm_error_t *err);


int
vlm_regex_translate(const char *regex, size_t len, vlm_buf_t *out,
    vlm_error_t *err)
{
    size_t   i;
    class_t  class;

    memset(&class, 0, sizeof(class));

    for (i = 0; i < len; i++) {

        if (regex[i] == '\\') {
            if (escape(regex + i, len - i, class.open, out, err)
                == VLM_ERROR)
            {
                return VLM_ERROR;
            }

            i++;
            continue;
        }

        if (check(regex, i, len, &class, err) == VLM_ERROR) {
            return VLM_ERROR;
        }

        if (vlm_buf_append(out, regex + i, 1) == VLM_ERROR) {
            return vlm_fail(err, 500, NULL, "no memory");
        }
    }

    return VLM_OK;
}


/* keeps track of classes, refuses what is not common to both engines */

static int
check(const char *regex, size_t i, size_t len, class_t *class,
    vlm_error_t *err)
{
    if (!class->open) {

        if (regex[i] == '(') {
            return group(regex + i, len - i, err);
        }

        if (regex[i] == '^' || regex[i] == '$') {
            return vlm_fail(err, 500, NULL, "%c is not supported", regex[i]);
        }

        if (regex[i] == '[') {
            class->open = 1;
            class->first = i + 1;

            if (i + 1 < len && regex[i + 1] == '^') {
                class->first++;
            }
        }

        return VLM_OK;
    }

    switch (regex[i]) {

    case '[':
        return vlm_fail(err, 500, NULL,
                        "a class inside of a class is not supported");

    case ']':
        if (i == class->first) {
            return vlm_fail(err, 500, NULL,
                            "an empty class is not supported");
        }

        class->open = 0;
        break;

    case '&':
        if (i + 1 < len && regex[i + 1] == '&') {
            return vlm_fail(err, 500, NULL, "&& in a class is not supported");
        }

        break;
    }

    return VLM_OK;
}


/* what may follow an opening parenthesis */

static int
group(const char *p, size_t len, vlm_error_t *err)
{
    size_t               i, n;
    static const char   *known[] = { "(?:", "(?=", "(?!", "(?>", "(?i:",
                                     "(?<=", "(?<!" };

    if (len < 2 || (p[1] != '?' && p[1] != '*')) {
        return VLM_OK;
    }

    for (i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        n = strlen(known[i]);

        if (len >= n && memcmp(p, known[i], n) == 0) {
            return VLM_OK;
        }
    }

    return vlm_fail(err, 500, NULL, "the group \"%.*s\" is not supported",
                    len < 4 ? (int) len : 4, p);
}


/* a backslash and the character behind it */

static int
escape(const char *p, size_t len, int in_class, vlm_buf_t *out,
    vlm_error_t *err)
{
    int          rc;
    const char  *text;

    if (len < 2) {
        return vlm_fail(err, 500, NULL, "it ends with a backslash");
    }

    switch (p[1]) {

    case 's':
        text = in_class ? SPACES : "[" SPACES "]";
        rc = vlm_buf_append(out, text, strlen(text));
        break;

    case 'S':
        if (in_class) {
            return vlm_fail(err, 500, NULL, "\\S in a class is not "
                            "supported");
        }

        rc = vlm_buf_append(out, "[^" SPACES "]", sizeof(SPACES) + 2);
        break;

    default:

        /* letters and digits have meanings that differ, but for these */

        if (((p[1] | 0x20) >= 'a' && (p[1] | 0x20) <= 'z'
             && strchr("pPdDnrtfx", p[1]) == NULL)
            || (p[1] >= '0' && p[1] <= '9')
            || (unsigned char) p[1] >= 0x80)
        {
            return vlm_fail(err, 500, NULL, "\\%c is not supported",
                            (unsigned char) p[1] < 0x80 ? p[1] : '?');
        }

        rc = vlm_buf_append(out, p, 2);
    }

    if (rc == VLM_ERROR) {
        return vlm_fail(err, 500, NULL, "no memory");
    }

    return VLM_OK;
}
