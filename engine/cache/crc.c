
/* CRC-32C: by the processor where it can, else by a table. */

#include <pthread.h>
#include <string.h>

#include "engine/cache/value.h"


#define POLYNOMIAL  0x82f63b78u


static uint32_t         table[256];
static pthread_once_t   once = PTHREAD_ONCE_INIT;


static void
crc_table(void)
{
    int       bit;
    uint32_t  i, crc;

    for (i = 0; i < 256; i++) {
        crc = i;

        for (bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ ((crc & 1) ? POLYNOMIAL : 0);
        }

        table[i] = crc;
    }
}


static uint32_t
crc_bytes(uint32_t crc, const uint8_t *p, size_t len)
{
    pthread_once(&once, crc_table);

    while (len-- > 0) {
        crc = (crc >> 8) ^ table[(crc ^ *p++) & 0xff];
    }

    return crc;
}


#if defined(__x86_64__)

__attribute__((target("sse4.2")))
static uint32_t
crc_sse42(uint32_t crc, const uint8_t *p, size_t len)
{
    uint64_t  word, crc64;

    crc64 = crc;

    for ( /* void */ ; len >= 8; len -= 8, p += 8) {
        memcpy(&word, p, 8);
        crc64 = __builtin_ia32_crc32di(crc64, word);
    }

    crc = (uint32_t) crc64;

    while (len-- > 0) {
        crc = __builtin_ia32_crc32qi(crc, *p++);
    }

    return crc;
}

#endif


uint32_t
vlm_crc32c(uint32_t crc, const void *data, size_t len)
{
    crc = ~crc;

#if defined(__x86_64__)

    if (__builtin_cpu_supports("sse4.2")) {
        return ~crc_sse42(crc, data, len);
    }

#endif

    return ~crc_bytes(crc, data, len);
}
