
/*
 * Any bytes behind the signature of a PNG.  Checksums of chunks, which no
 * fuzzer can guess, are put right, or left as they are.
 */

#include <zlib.h>

#include "t/fuzz/picture.h"


/* RGBA of an interlaced picture, some rows of 16-bit samples, chunks */

static uint64_t
bound(const vlm_image_info_t *info, size_t len)
{
    return 4 * (uint64_t) info->stored_width * info->stored_height
           + 32 * (uint64_t) info->stored_width + 2 * len + (128 << 10);
}


static void
put_checksums(uint8_t *file, size_t len)
{
    size_t    pos, n;
    uint32_t  crc;

    for (pos = 8; len - pos >= 12; pos += n + 12) {
        n = (size_t) file[pos] << 24 | (size_t) file[pos + 1] << 16
            | (size_t) file[pos + 2] << 8 | file[pos + 3];

        if (n > len - pos - 12) {
            return;
        }

        crc = (uint32_t) crc32(0, file + pos + 4, (uInt) n + 4);
        file[pos + 8 + n] = (uint8_t) (crc >> 24);
        file[pos + 9 + n] = (uint8_t) (crc >> 16);
        file[pos + 10 + n] = (uint8_t) (crc >> 8);
        file[pos + 11 + n] = (uint8_t) crc;
    }
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    uint8_t  *file;

    static const fuzz_decoder_t  png = {
        vlm_png_probe, vlm_png_decode, bound
    };

    if (len == 0) {
        return 0;
    }

    file = fuzz_file(data, len - 1, "\x89PNG\r\n\x1a\n", 8);

    if (file != NULL) {

        if ((data[len - 1] & 0x80) == 0) {
            put_checksums(file, len - 1);
        }

        fuzz_picture(&png, file, len - 1, data[len - 1]);
        free(file);
    }

    return 0;
}
