
/*
 * Room in the arena.  A request whose length is known reserves all it can
 * need before its body is read; a chunked one grows field by field.  So only
 * chunked uploads can find each other in the way: then the youngest of them
 * gives way, unless something else is about to be released.
 */


#include "ngx_http_vlm_module.h"


static ngx_int_t ngx_http_vlm_reserve(ngx_http_vlm_ctx_t *ctx, uint64_t size);
static ngx_int_t ngx_http_vlm_make_room(ngx_http_vlm_ctx_t *ctx,
    uint64_t size);
static ngx_int_t ngx_http_vlm_evict_silent(ngx_http_vlm_ctx_t *ctx);
static ngx_http_vlm_ctx_t *ngx_http_vlm_youngest(ngx_http_vlm_ctx_t *ctx);
static void ngx_http_vlm_evict(ngx_http_vlm_ctx_t *ctx);
static void ngx_http_vlm_wake_starved(ngx_http_vlm_main_conf_t *vmcf);
static void ngx_http_vlm_arena_full(ngx_http_vlm_ctx_t *ctx);


/* before the body is read: NGX_OK, or NGX_ERROR and ctx->fail */

ngx_int_t
ngx_http_vlm_room_admit(ngx_http_vlm_ctx_t *ctx)
{
    uint64_t                   size;
    ngx_http_vlm_main_conf_t  *vmcf;

    vmcf = ctx->main;

    ctx->hold = ngx_calloc(sizeof(ngx_http_vlm_hold_t),
                           ctx->request->connection->log);
    if (ctx->hold == NULL) {
        vlm_fail(&ctx->fail, NGX_HTTP_INTERNAL_SERVER_ERROR, NULL, NULL,
                 "no memory");
        return NGX_ERROR;
    }

    if (ctx->length >= 0) {
        size = (uint64_t) ctx->length + NGX_HTTP_VLM_RECORD_ROOM;

        do {
            if (ngx_http_vlm_reserve(ctx, size) == NGX_OK) {
                return NGX_OK;
            }
        } while (ngx_http_vlm_evict_silent(ctx) == NGX_OK);

        ngx_http_vlm_arena_full(ctx);

        return NGX_ERROR;
    }

    /* the length is not known: one field should fit */

    size = ngx_min(ctx->conf->max_image_size, ctx->conf->max_request_size);

    while (vlm_arena_largest(&vmcf->arena) < size) {

        if (ngx_http_vlm_evict_silent(ctx) != NGX_OK) {
            ngx_http_vlm_arena_full(ctx);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_vlm_reserve(ngx_http_vlm_ctx_t *ctx, uint64_t size)
{
    uint64_t              offset;
    ngx_http_vlm_hold_t  *hold;
    ngx_http_vlm_room_t  *room;

    hold = ctx->hold;

    if (hold->n == sizeof(hold->regions) / sizeof(hold->regions[0])) {
        return NGX_ERROR;
    }

    if (vlm_arena_reserve(&ctx->main->arena, size, &offset) == -1) {
        return NGX_ERROR;
    }

    hold->regions[hold->n++] = offset;

    room = &ctx->body->room;

    room->offset = offset;
    room->size = size;
    room->used = 0;

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "vlm room %uL at %uL, region %ui",
                   size, offset, hold->n);

    return NGX_OK;
}


/*
 * A field of at most "max" bytes begins.  NGX_AGAIN: wait, the context is in
 * the queue of the starved; NGX_ERROR: ctx->fail is set.
 */

ngx_int_t
ngx_http_vlm_room_begin(ngx_http_vlm_ctx_t *ctx, size_t max)
{
    uint64_t              size, rest;
    ngx_http_vlm_room_t  *room;

    room = &ctx->body->room;

    if (ctx->length >= 0) {
        return NGX_OK;
    }

    /* what the parser holds back was already received */

    rest = ctx->conf->max_request_size - ctx->body->received
           + VLM_MULTIPART_PENDING;

    size = ngx_min(max, rest);

    if (room->size - room->used >= size) {
        return NGX_OK;
    }

    return ngx_http_vlm_make_room(ctx, size);
}


static ngx_int_t
ngx_http_vlm_make_room(ngx_http_vlm_ctx_t *ctx, uint64_t size)
{
    ngx_http_vlm_ctx_t        *youngest;
    ngx_http_vlm_main_conf_t  *vmcf;

    vmcf = ctx->main;

    for ( ;; ) {

        if (ngx_http_vlm_reserve(ctx, size) == NGX_OK) {
            return NGX_OK;
        }

        if (ngx_http_vlm_evict_silent(ctx) == NGX_OK) {
            continue;
        }

        if (vmcf->nheld) {
            ngx_queue_insert_tail(&vmcf->starved, &ctx->queue);
            ctx->queued = 1;
            return NGX_AGAIN;
        }

        youngest = ngx_http_vlm_youngest(ctx);

        if (youngest == ctx) {
            ngx_http_vlm_arena_full(ctx);
            return NGX_ERROR;
        }

        ngx_http_vlm_arena_full(youngest);
        ngx_http_vlm_evict(youngest);
    }
}


/* the field is complete: a chunked request gives the rest back */

void
ngx_http_vlm_room_end(ngx_http_vlm_ctx_t *ctx)
{
    uint64_t              keep;
    ngx_http_vlm_room_t  *room;

    room = &ctx->body->room;

    if (ctx->length >= 0) {
        return;
    }

    keep = (room->used + ngx_pagesize - 1) & ~((uint64_t) ngx_pagesize - 1);

    if (keep >= room->size) {
        return;
    }

    vlm_arena_shrink(&ctx->main->arena, room->offset, keep);
    room->size = keep;

    ngx_http_vlm_wake_starved(ctx->main);
}


/* a place for what the module itself adds */

ngx_int_t
ngx_http_vlm_room_add(ngx_http_vlm_ctx_t *ctx, size_t size, uint64_t *offset)
{
    uint64_t              start;
    ngx_http_vlm_room_t  *room;

    room = &ctx->body->room;
    start = (room->used + 7) & ~(uint64_t) 7;

    if (start > room->size || room->size - start < size) {

        if (ngx_http_vlm_reserve(ctx, size) != NGX_OK) {
            ngx_http_vlm_arena_full(ctx);
            return NGX_ERROR;
        }

        start = 0;
    }

    *offset = room->offset + start;
    room->used = start + size;

    return NGX_OK;
}


void
ngx_http_vlm_hold_free(ngx_http_vlm_main_conf_t *vmcf,
    ngx_http_vlm_hold_t **hold)
{
    ngx_uint_t            i;
    ngx_http_vlm_hold_t  *h;

    h = *hold;

    if (h == NULL) {
        return;
    }

    *hold = NULL;

    for (i = 0; i < h->n; i++) {
        vlm_arena_release(&vmcf->arena, h->regions[i]);
    }

    if (h->complete) {
        vmcf->nheld--;
    }

    ngx_free(h);

    ngx_http_vlm_wake_starved(vmcf);
}


void
ngx_http_vlm_upload_start(ngx_http_vlm_ctx_t *ctx)
{
    ngx_queue_insert_tail(&ctx->main->uploads, &ctx->uploads);
    ctx->uploading = 1;
    ctx->heard = ngx_current_msec;
}


void
ngx_http_vlm_upload_end(ngx_http_vlm_ctx_t *ctx)
{
    if (!ctx->uploading) {
        return;
    }

    ngx_queue_remove(&ctx->uploads);
    ctx->uploading = 0;

    if (ctx->hold) {
        ctx->hold->complete = 1;
        ctx->main->nheld++;
    }
}


/* NGX_OK: an upload that was silent too long has lost its room */

static ngx_int_t
ngx_http_vlm_evict_silent(ngx_http_vlm_ctx_t *ctx)
{
    ngx_msec_t            silent, longest;
    ngx_queue_t          *q, *uploads;
    ngx_http_vlm_ctx_t   *other, *found;

    found = NULL;
    longest = NGX_HTTP_VLM_SILENT;
    uploads = &ctx->main->uploads;

    for (q = ngx_queue_head(uploads);
         q != ngx_queue_sentinel(uploads);
         q = ngx_queue_next(q))
    {
        other = ngx_queue_data(q, ngx_http_vlm_ctx_t, uploads);

        if (other == ctx || other->state != NGX_HTTP_VLM_BODY
            || other->hold == NULL || other->hold->n == 0)
        {
            continue;
        }

        silent = ngx_current_msec - other->heard;

        if (silent > longest) {
            longest = silent;
            found = other;
        }
    }

    if (found == NULL) {
        return NGX_DECLINED;
    }

    vlm_fail(&found->fail, NGX_HTTP_REQUEST_TIME_OUT, "upload_too_slow", NULL,
             "the upload was silent for %llu ms while others needed its room",
             (unsigned long long) longest);

    ngx_http_vlm_evict(found);

    return NGX_OK;
}


/* of the chunked uploads that hold something, and of ctx itself */

static ngx_http_vlm_ctx_t *
ngx_http_vlm_youngest(ngx_http_vlm_ctx_t *ctx)
{
    ngx_queue_t         *q, *uploads;
    ngx_http_vlm_ctx_t  *other;

    uploads = &ctx->main->uploads;

    for (q = ngx_queue_last(uploads);
         q != ngx_queue_sentinel(uploads);
         q = ngx_queue_prev(q))
    {
        other = ngx_queue_data(q, ngx_http_vlm_ctx_t, uploads);

        if (other->length < 0 && other->hold && other->hold->n) {
            return other;
        }

        if (other == ctx) {
            break;
        }
    }

    return ctx;
}


/* ctx->fail is set: the request itself is told by its next event */

static void
ngx_http_vlm_evict(ngx_http_vlm_ctx_t *ctx)
{
    ngx_queue_remove(&ctx->uploads);
    ctx->uploading = 0;

    ngx_http_vlm_hold_free(ctx->main, &ctx->hold);

    ngx_memzero(&ctx->body->room, sizeof(ngx_http_vlm_room_t));

    ngx_http_vlm_wake(ctx);
}


static void
ngx_http_vlm_wake_starved(ngx_http_vlm_main_conf_t *vmcf)
{
    ngx_queue_t         *q;
    ngx_http_vlm_ctx_t  *ctx;

    while (!ngx_queue_empty(&vmcf->starved)) {
        q = ngx_queue_head(&vmcf->starved);
        ngx_queue_remove(q);

        ctx = ngx_queue_data(q, ngx_http_vlm_ctx_t, queue);
        ctx->queued = 0;

        ngx_http_vlm_wake(ctx);
    }
}


static void
ngx_http_vlm_arena_full(ngx_http_vlm_ctx_t *ctx)
{
    vlm_fail(&ctx->fail, NGX_HTTP_SERVICE_UNAVAILABLE, "arena_full", NULL,
             "there is no room for the upload now");
    ctx->fail.retry_after = 1;

    ngx_log_error(NGX_LOG_WARN, ctx->request->connection->log, 0,
                  "no room for an upload: %uL of %uL bytes of "
                  "\"vlm_arena_size\" are in use",
                  ctx->main->arena.reserved, ctx->main->arena.size);
}
