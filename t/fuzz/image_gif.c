
/* Any bytes behind the signature of a GIF. */

#include "t/fuzz/picture.h"


/* tables of fixed size, a row */

static uint64_t
bound(const vlm_image_info_t *info, size_t len)
{
    return (uint64_t) info->stored_width + (128 << 10);
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    uint8_t  *file;

    static const fuzz_decoder_t  gif = {
        vlm_gif_probe, vlm_gif_decode, bound
    };

    if (len == 0) {
        return 0;
    }

    file = fuzz_file(data, len - 1, "GIF89a", 6);

    if (file != NULL) {
        fuzz_picture(&gif, file, len - 1, data[len - 1]);
        free(file);
    }

    return 0;
}
