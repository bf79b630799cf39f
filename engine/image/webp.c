
#include <stdlib.h>
#include <string.h>

#include <webp/decode.h>
#include <webp/demux.h>

#include "engine/image/internal.h"


/*
 * Bytes decoded between two looks at cancel, and pieces at most: with each
 * the decoder begins again with the head of a lossless picture until it has
 * it whole, and that head may be nearly all of a file.
 */

#define PIECE   65536
#define PIECES  32


static WebPDemuxer *
open_file(const uint8_t *data, size_t len, vlm_error_t *err)
{
    WebPData      file = { data, len };
    WebPDemuxer  *demux;

    demux = WebPDemux(&file);

    if (demux == NULL) {
        vlm_fail(err, 400, "invalid_image",
                 "WebP picture is damaged or truncated");
    }

    return demux;
}


/* the chunk holds a TIFF structure; some writers keep JPEG's prefix */

static int
orientation(const WebPDemuxer *demux)
{
    int                 o;
    size_t              skip;
    WebPChunkIterator   chunk;

    o = 1;

    if (WebPDemuxGetChunk(demux, "EXIF", 1, &chunk)) {
        skip = (chunk.chunk.size >= 6
                && memcmp(chunk.chunk.bytes, "Exif\0\0", 6) == 0) ? 6 : 0;
        o = vlm_exif_orientation(chunk.chunk.bytes + skip,
                                 chunk.chunk.size - skip);
    }

    WebPDemuxReleaseChunkIterator(&chunk);

    return o;
}


int
vlm_webp_probe(const uint8_t *data, size_t len, vlm_image_info_t *info,
    vlm_error_t *err)
{
    WebPDemuxer  *demux;

    demux = open_file(data, len, err);
    if (demux == NULL) {
        return VLM_ERROR;
    }

    info->stored_width = WebPDemuxGetI(demux, WEBP_FF_CANVAS_WIDTH);
    info->stored_height = WebPDemuxGetI(demux, WEBP_FF_CANVAS_HEIGHT);
    info->orientation = orientation(demux);

    WebPDemuxDelete(demux);

    return VLM_OK;
}


/* 0, or CANCELLED, or any other status of the library */

#define CANCELLED  1000

static int
decode_frame(const WebPData *frame, const int *cancel, uint8_t *rgba,
    size_t stride, size_t size)
{
    int            status;
    size_t         done, n, piece;
    WebPIDecoder  *decoder;

    decoder = WebPINewRGB(MODE_RGBA, rgba, size, (int) stride);
    if (decoder == NULL) {
        return VP8_STATUS_OUT_OF_MEMORY;
    }

    status = VP8_STATUS_SUSPENDED;
    piece = frame->size / PIECES;
    piece = (piece > PIECE) ? piece : PIECE;

    for (done = 0; done < frame->size && status == VP8_STATUS_SUSPENDED;
         done += n)
    {
        n = (frame->size - done > piece) ? piece : frame->size - done;

        if (vlm_image_cancelled(cancel)) {
            status = CANCELLED;
            break;
        }

        /* the decoder reads the file where it lies, without a copy */
        status = WebPIUpdate(decoder, frame->bytes, done + n);
    }

    WebPIDelete(decoder);

    return status;
}


static int
decode_first(const WebPDemuxer *demux, int alpha, const int *cancel,
    vlm_image_t *image, vlm_error_t *err)
{
    int            rc;
    size_t         stride, size, y, height;
    uint8_t       *rgba;
    uint32_t       x0, y0, width;
    WebPIterator   frame;

    if (!WebPDemuxGetFrame(demux, 1, &frame)) {
        WebPDemuxReleaseIterator(&frame);
        return vlm_fail(err, 400, "invalid_image",
                        "WebP picture is damaged: it has no frame");
    }

    x0 = (uint32_t) frame.x_offset;
    y0 = (uint32_t) frame.y_offset;
    width = (uint32_t) frame.width;
    height = (size_t) frame.height;

    if (frame.x_offset < 0 || frame.y_offset < 0
        || x0 > image->width || width > image->width - x0
        || y0 > image->height || height > image->height - y0)
    {
        WebPDemuxReleaseIterator(&frame);
        return vlm_fail(err, 400, "invalid_image",
                        "WebP picture is damaged: a frame sticks out");
    }

    stride = (size_t) width * 4;
    size = vlm_mul(stride, height);
    rgba = (size != 0) ? malloc(size) : NULL;

    if (rgba == NULL) {
        WebPDemuxReleaseIterator(&frame);
        return vlm_image_fail_nomem(err);
    }

    rc = decode_frame(&frame.fragment, cancel, rgba, stride, size);
    WebPDemuxReleaseIterator(&frame);

    if (rc == VP8_STATUS_OK) {
        memset(image->data, 255, (size_t) image->width * image->height * 3);

        for (y = 0; y < height; y++) {
            vlm_compose_row(image->data + ((y0 + y) * image->width + x0) * 3,
                            rgba + y * stride, width, alpha);
        }
    }

    free(rgba);

    if (rc == CANCELLED) {
        return vlm_image_fail_cancelled(err);
    }

    if (rc == VP8_STATUS_OUT_OF_MEMORY) {
        return vlm_image_fail_nomem(err);
    }

    if (rc != VP8_STATUS_OK) {
        return vlm_fail(err, 400, "invalid_image",
                        "WebP picture is damaged (status %d)", rc);
    }

    return VLM_OK;
}


int
vlm_webp_decode(const uint8_t *data, size_t len, const int *cancel,
    vlm_image_t *image, vlm_error_t *err)
{
    int                     rc;
    WebPDemuxer            *demux;
    WebPBitstreamFeatures   features;

    demux = open_file(data, len, err);
    if (demux == NULL) {
        return VLM_ERROR;
    }

    /* a file may carry alpha and say that it is not used */

    if (WebPGetFeatures(data, len, &features) != VP8_STATUS_OK) {
        rc = vlm_fail(err, 400, "invalid_image", "WebP picture is damaged");

    } else if (WebPDemuxGetI(demux, WEBP_FF_CANVAS_WIDTH) != image->width
               || WebPDemuxGetI(demux, WEBP_FF_CANVAS_HEIGHT)
                  != image->height)
    {
        rc = vlm_fail(err, 400, "invalid_image",
                      "WebP picture changed while it was read");

    } else {
        rc = decode_first(demux, features.has_alpha, cancel, image, err);
    }

    WebPDemuxDelete(demux);

    return rc;
}
