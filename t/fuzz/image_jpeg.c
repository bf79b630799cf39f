
/* Any bytes behind the start of a JPEG. */

#include "t/fuzz/picture.h"


static uint64_t
up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}


/*
 * Coefficients of four components in whole units of at most 32 x 32, some
 * rows of samples, markers of the file.
 */

static uint64_t
bound(const vlm_image_info_t *info, size_t len)
{
    uint64_t  width;

    width = up(info->stored_width, 32);

    return 8 * width * up(info->stored_height, 32) + 512 * width + 2 * len
           + (128 << 10);
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    uint8_t  *file;

    static const fuzz_decoder_t  jpeg = {
        vlm_jpeg_probe, vlm_jpeg_decode, bound
    };

    if (len == 0) {
        return 0;
    }

    file = fuzz_file(data, len - 1, "\xff\xd8\xff", 3);

    if (file != NULL) {
        fuzz_picture(&jpeg, file, len - 1, data[len - 1]);
        free(file);
    }

    return 0;
}
