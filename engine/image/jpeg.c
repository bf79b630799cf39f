
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

#include "engine/image/internal.h"


/*
 * A progressive file may hold any number of scans, and each costs a pass over
 * all coefficients.  Encoders write about ten; with successive approximation
 * of every band of four components a few hundred are conceivable.
 */

#define MAX_SCANS  500


typedef struct {
    struct jpeg_error_mgr      mgr;         /* must be the first */
    jmp_buf                    env;
    char                       text[JMSG_LENGTH_MAX];
    int                        code;
    unsigned                   hit_marker:1;
    unsigned                   premature_end:1;
} jpeg_errors_t;

typedef struct {
    struct jpeg_progress_mgr   mgr;         /* must be the first */
    const int                 *cancel;
    int                        cancelled;
    int                        too_many_scans;
} jpeg_progress_t;

typedef struct {
    struct jpeg_decompress_struct  cinfo;
    jpeg_errors_t                  errors;
    jpeg_progress_t                progress;
} jpeg_reader_t;


static void
on_error(j_common_ptr cinfo)
{
    jpeg_errors_t  *e = (jpeg_errors_t *) cinfo->err;

    e->code = e->mgr.msg_code;
    e->mgr.format_message(cinfo, e->text);

    longjmp(e->env, 1);
}


/* warnings are counted, never printed: a small file can raise thousands */

static void
on_message(j_common_ptr cinfo, int level)
{
    jpeg_errors_t  *e = (jpeg_errors_t *) cinfo->err;

    if (level >= 0) {
        return;
    }

    e->mgr.num_warnings++;

    if (e->mgr.msg_code == JWRN_HIT_MARKER) {
        e->hit_marker = 1;

    } else if (e->mgr.msg_code == JWRN_JPEG_EOF) {
        e->premature_end = 1;
    }
}


static void
on_progress(j_common_ptr cinfo)
{
    jpeg_errors_t    *e = (jpeg_errors_t *) cinfo->err;
    jpeg_progress_t  *p = (jpeg_progress_t *) cinfo->progress;

    if (vlm_image_cancelled(p->cancel)) {
        p->cancelled = 1;
        longjmp(e->env, 1);
    }

    if (((j_decompress_ptr) cinfo)->input_scan_number > MAX_SCANS) {
        p->too_many_scans = 1;
        longjmp(e->env, 1);
    }
}


static int
fail(jpeg_reader_t *r, vlm_error_t *err)
{
    jpeg_destroy_decompress(&r->cinfo);

    if (r->progress.cancelled) {
        return vlm_image_fail_cancelled(err);
    }

    if (r->progress.too_many_scans) {
        return vlm_fail(err, 400, "invalid_image",
                        "JPEG picture has over %d scans", MAX_SCANS);
    }

    if (r->errors.code == JERR_OUT_OF_MEMORY) {
        return vlm_image_fail_nomem(err);
    }

    if (r->errors.code == JERR_IMAGE_TOO_BIG) {
        return vlm_fail(err, 400, "image_too_large",
                        "JPEG picture has a side of over %ld pixels",
                        JPEG_MAX_DIMENSION);
    }

    return vlm_fail(err, 400, "invalid_image", "JPEG picture is damaged: %s",
                    r->errors.text);
}


static void
start(jpeg_reader_t *r, const int *cancel)
{
    memset(r, 0, sizeof(*r));

    r->cinfo.err = jpeg_std_error(&r->errors.mgr);
    r->errors.mgr.error_exit = on_error;
    r->errors.mgr.emit_message = on_message;
    r->progress.mgr.progress_monitor = on_progress;
    r->progress.cancel = cancel;
}


static void
read_header(jpeg_reader_t *r, const uint8_t *data, size_t len)
{
    jpeg_create_decompress(&r->cinfo);

    r->cinfo.progress = &r->progress.mgr;

    jpeg_mem_src(&r->cinfo, data, (unsigned long) len);
    jpeg_save_markers(&r->cinfo, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(&r->cinfo, TRUE);
}


/* the first APP1 that holds EXIF; XMP lies in APP1 too */

static int
orientation(jpeg_saved_marker_ptr marker)
{
    for ( /* void */ ; marker != NULL; marker = marker->next) {

        if (marker->marker == JPEG_APP0 + 1 && marker->data_length >= 6
            && memcmp(marker->data, "Exif\0", 5) == 0)
        {
            return vlm_exif_orientation(marker->data + 6,
                                        marker->data_length - 6);
        }
    }

    return 1;
}


int
vlm_jpeg_probe(const uint8_t *data, size_t len, vlm_image_info_t *info,
    vlm_error_t *err)
{
    jpeg_reader_t  r;

    start(&r, NULL);

    if (setjmp(r.errors.env) != 0) {
        return fail(&r, err);
    }

    read_header(&r, data, len);

    info->stored_width = r.cinfo.image_width;
    info->stored_height = r.cinfo.image_height;
    info->orientation = orientation(r.cinfo.marker_list);

    jpeg_destroy_decompress(&r.cinfo);

    return VLM_OK;
}


/* in place: the row holds 4 bytes a pixel, RGB is written to its front */

static void
cmyk_to_rgb(uint8_t *row, uint32_t width, int inverted)
{
    int        c, k;
    uint8_t    ink[3];
    uint32_t   x;
    unsigned   v;

    for (x = 0; x < width; x++) {
        k = inverted ? row[4 * x + 3] : 255 - row[4 * x + 3];

        memcpy(ink, &row[4 * x], 3);

        for (c = 0; c < 3; c++) {
            v = (unsigned) (inverted ? ink[c] : 255 - ink[c]) * (unsigned) k;
            row[3 * x + (uint32_t) c] = (uint8_t) ((v + 127) / 255);
        }
    }
}


static void
read_rows(jpeg_reader_t *r, vlm_image_t *image, uint8_t *line)
{
    size_t    stride;
    uint8_t  *to;
    JSAMPROW  row;

    stride = (size_t) image->width * 3;

    while (r->cinfo.output_scanline < r->cinfo.output_height) {
        to = image->data + r->cinfo.output_scanline * stride;
        row = (line != NULL) ? line : to;

        jpeg_read_scanlines(&r->cinfo, &row, 1);

        if (line != NULL) {
            cmyk_to_rgb(line, image->width, r->cinfo.saw_Adobe_marker);
            memcpy(to, line, stride);
        }
    }
}


int
vlm_jpeg_decode(const uint8_t *data, size_t len, const int *cancel,
    vlm_image_t *image, vlm_error_t *err)
{
    int                 damaged;
    jpeg_reader_t       r;
    uint8_t *volatile   line;

    line = NULL;
    start(&r, cancel);

    if (setjmp(r.errors.env) != 0) {
        free(line);
        return fail(&r, err);
    }

    read_header(&r, data, len);

    if (r.cinfo.image_width != image->width
        || r.cinfo.image_height != image->height)
    {
        /* the bytes changed since the header was read */
        ERREXIT(&r.cinfo, JERR_EMPTY_IMAGE);
    }

    r.cinfo.out_color_space = JCS_RGB;

    if (r.cinfo.jpeg_color_space == JCS_CMYK
        || r.cinfo.jpeg_color_space == JCS_YCCK)
    {
        r.cinfo.out_color_space = JCS_CMYK;

        line = malloc((size_t) image->width * 4);
        if (line == NULL) {
            jpeg_destroy_decompress(&r.cinfo);
            return vlm_image_fail_nomem(err);
        }
    }

    jpeg_start_decompress(&r.cinfo);
    read_rows(&r, image, line);
    jpeg_finish_decompress(&r.cinfo);

    damaged = r.errors.hit_marker && r.errors.premature_end;

    jpeg_destroy_decompress(&r.cinfo);
    free(line);

    if (damaged) {
        return vlm_fail(err, 400, "invalid_image", "JPEG picture is truncated");
    }

    return VLM_OK;
}
