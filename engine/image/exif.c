
#include "engine/image/internal.h"


#define TAG_ORIENTATION  0x0112

#define TYPE_SHORT       3
#define TYPE_LONG        4


static uint32_t
read_number(const uint8_t *p, size_t n, int big)
{
    size_t    i;
    uint32_t  v;

    v = 0;

    for (i = 0; i < n; i++) {
        v = (v << 8) | p[big ? i : n - 1 - i];
    }

    return v;
}


/* only the first directory is read: others belong to a thumbnail */

int
vlm_exif_orientation(const uint8_t *data, size_t len)
{
    int             big;
    size_t          i, n, offset;
    uint32_t        type, value;
    const uint8_t  *entry;

    if (len < 8) {
        return 1;
    }

    if (data[0] == 'I' && data[1] == 'I') {
        big = 0;

    } else if (data[0] == 'M' && data[1] == 'M') {
        big = 1;

    } else {
        return 1;
    }

    if (read_number(data + 2, 2, big) != 42) {
        return 1;
    }

    offset = read_number(data + 4, 4, big);

    if (offset > len || len - offset < 2) {
        return 1;
    }

    n = read_number(data + offset, 2, big);
    offset += 2;

    for (i = 0; i < n && len - offset >= 12; i++, offset += 12) {
        entry = data + offset;

        if (read_number(entry, 2, big) != TAG_ORIENTATION) {
            continue;
        }

        type = read_number(entry + 2, 2, big);

        if (read_number(entry + 4, 4, big) != 1) {
            return 1;
        }

        if (type == TYPE_SHORT) {
            value = read_number(entry + 8, 2, big);

        } else if (type == TYPE_LONG) {
            value = read_number(entry + 8, 4, big);

        } else {
            return 1;
        }

        return (value >= 1 && value <= 8) ? (int) value : 1;
    }

    return 1;
}
