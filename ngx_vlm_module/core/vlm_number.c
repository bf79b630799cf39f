
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vlm_number.h"


#define DIGITS          "0123456789"


int
vlm_number_is(const char *p, size_t len, int integer)
{
    size_t       n;
    const char  *end;

    end = p + len;
    p += (*p == '-');

    n = strspn(p, DIGITS);
    p += n;

    if (!integer && *p == '.') {
        p++;
        n += strspn(p, DIGITS);
        p += strspn(p, DIGITS);
    }

    if (n == 0) {
        return 0;
    }

    if (!integer && (*p == 'e' || *p == 'E')) {
        p++;
        p += (*p == '-' || *p == '+');

        n = strspn(p, DIGITS);
        p += n;
    }

    return n != 0 && p == end;
}


int
vlm_number_float(const char *p, size_t len, double low, double high,
    float *to)
{
    char  *end;

    if (!vlm_number_is(p, len, 0)) {
        return -1;
    }

    *to = strtof(p, &end);

    /*
     * What is beyond a float is infinite here, and out of every range.  All
     * of the text is read unless a locale has another decimal point.
     */

    return (*end == '\0' && *to >= low && *to <= high) ? 0 : -1;
}


int
vlm_number_integer(const char *p, size_t len, long long low, long long high,
    long long *to)
{
    if (!vlm_number_is(p, len, 1)) {
        return -1;
    }

    errno = 0;
    *to = strtoll(p, NULL, 10);

    return (errno != ERANGE && *to >= low && *to <= high) ? 0 : -1;
}
