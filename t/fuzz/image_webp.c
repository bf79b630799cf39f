
/*
 * Any chunks in a WebP file: lossy, lossless, with alpha, animated.  The size
 * in the file's header is put right.
 */

#include "t/fuzz/picture.h"


#define TABLES  (22 << 10)


/*
 * RGBA, a plane of alpha and a lossless picture's pixels and transforms; its
 * tables, one set for each 4 x 4 pixels and 65,536 at most; lists of chunks.
 */

static uint64_t
bound(const vlm_image_info_t *info, size_t len)
{
    uint64_t  w, h, groups;

    w = info->stored_width;
    h = info->stored_height;
    groups = (w + 3) / 4 * ((h + 3) / 4);
    groups = groups < 65536 ? groups : 65536;

    return 10 * w * h + 512 * w + groups * TABLES + 8 * len + (256 << 10);
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    size_t    n;
    uint8_t  *file;

    static const fuzz_decoder_t  webp = {
        vlm_webp_probe, vlm_webp_decode, bound
    };

    if (len < 13) {
        return 0;
    }

    file = fuzz_file(data, len - 1, "RIFF", 4);

    if (file != NULL) {
        n = len - 1 - 8;
        file[4] = (uint8_t) n;
        file[5] = (uint8_t) (n >> 8);
        file[6] = (uint8_t) (n >> 16);
        file[7] = (uint8_t) (n >> 24);
        memcpy(file + 8, "WEBP", 4);

        fuzz_picture(&webp, file, len - 1, data[len - 1]);
        free(file);
    }

    return 0;
}
