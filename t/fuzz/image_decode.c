
/*
 * Any bytes as a picture, the whole way: type, limits, header, decoder, turn,
 * resize.  The decoders have targets of their own, image_TYPE.
 */

#include <stdlib.h>
#include <string.h>

#include "engine/image/image.h"


#define MAX_PIXELS  65536


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    vlm_error_t  err;
    vlm_image_t  image, small;

    if (vlm_image_decode(data, len, MAX_PIXELS, NULL, &image, &err) == VLM_OK) {

        if (vlm_image_resize(&image, 28, 56, VLM_FILTER_BICUBIC, &small, &err)
            == VLM_OK)
        {
            vlm_image_free(&small);
        }

        vlm_image_free(&image);
    }

    return 0;
}
