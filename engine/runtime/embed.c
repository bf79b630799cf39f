
/* Pictures on their way to an embedding. */

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "engine/runtime/internal.h"


#define BAD_PICTURES    1024
#define BAD_TTL_US      60000000
#define CONNECT_US      2000000
#define REDIS_QUEUE     (64u << 20)
#define FLUSH_US        1000000


static void embed_free(void *data, vlm_tensor_t *tensor);
static int embed_redis(vlm_engine_t *e, vlm_error_t *err);
static int embed_key(vlm_engine_t *e, vlm_work_t *w, uint32_t n);
static int embed_claim(vlm_engine_t *e, vlm_work_t *w);
static void embed_go(vlm_engine_t *e, vlm_work_t *w);
static void embed_release(vlm_engine_t *e, vlm_work_t *w);
static void embed_ready_all(vlm_work_t *w);
static void embed_stage(vlm_engine_t *e, vlm_work_t *w, uint32_t stage);


#define count(counter)  __atomic_add_fetch(&(counter), 1, __ATOMIC_RELAXED)


int
vlm_embed_open(vlm_engine_t *e, vlm_error_t *err)
{
    vlm_embed_t        *m;
    vlm_memory_conf_t   conf;

    m = &e->embed;
    m->fd = -1;

    memset(&conf, 0, sizeof(conf));
    conf.limit = e->conf.cache_memory;
    conf.max_bad = BAD_PICTURES;
    conf.bad_ttl_us = BAD_TTL_US;
    conf.free = embed_free;
    conf.wake = vlm_embed_wake;
    conf.data = e;

    m->memory = vlm_memory_create(&conf);

    if (m->memory == NULL || pthread_mutex_init(&m->lock, NULL) != 0) {
        return vlm_fail(err, 500, NULL, "no resources for the embedding "
                        "cache");
    }

    return e->conf.redis != NULL ? embed_redis(e, err) : VLM_OK;
}


/* one descriptor for the front: of the mail and of Redis */

static int
embed_redis(vlm_engine_t *e, vlm_error_t *err)
{
    vlm_embed_t         *m;
    vlm_redis_conf_t     conf;
    struct epoll_event   ev;

    m = &e->embed;

    memset(&conf, 0, sizeof(conf));
    conf.url = *e->conf.redis;
    conf.ttl_ms = e->conf.redis_ttl_ms;
    conf.connect_us = CONNECT_US;
    conf.max_value = (size_t) e->conf.redis_max_value;
    conf.max_queue = REDIS_QUEUE;
    conf.answer = vlm_embed_answer;
    conf.data = e;

    m->redis = vlm_redis_create(&conf, err);
    if (m->redis == NULL) {
        return VLM_ERROR;
    }

    m->fd = epoll_create1(EPOLL_CLOEXEC);

    memset(&ev, 0, sizeof(ev));
    ev.events = EPOLLIN;

    if (m->fd == -1
        || epoll_ctl(m->fd, EPOLL_CTL_ADD, e->out_fd, &ev) == -1
        || epoll_ctl(m->fd, EPOLL_CTL_ADD, vlm_redis_fd(m->redis), &ev)
           == -1)
    {
        return vlm_fail(err, 500, NULL, "no resources for the embedding "
                        "cache");
    }

    return VLM_OK;
}


int
vlm_embed_load(vlm_engine_t *e, vlm_error_t *err)
{
    size_t        n;
    vlm_embed_t  *m;

    m = &e->embed;

    n = strcspn(e->ops->name, "/");
    n = n < sizeof(m->device) ? n : sizeof(m->device) - 1;
    memcpy(m->device, e->ops->name, n);
    m->device[n] = '\0';

    /* within one process all weights are the same */

    if (m->redis == NULL) {
        return VLM_OK;
    }

    return vlm_model_vision_digest(e->model, e->conf.model, m->weights, err);
}


void
vlm_embed_close(vlm_engine_t *e)
{
    vlm_embed_t  *m;

    m = &e->embed;

    if (m->memory == NULL) {
        return;
    }

    vlm_engine_cache_log(e);

    if (m->redis != NULL) {
        vlm_redis_destroy(m->redis, FLUSH_US);
        m->redis = NULL;
    }

    if (m->fd != -1) {
        close(m->fd);
    }

    vlm_embed_lost(e);
    vlm_memory_destroy(m->memory);
    pthread_mutex_destroy(&m->lock);
}


static void
embed_free(void *data, vlm_tensor_t *tensor)
{
    vlm_engine_t  *e = data;

    e->ops->host_free(e->dev, tensor->data);
}


void
vlm_embed_wake(void *data)
{
    vlm_engine_t  *e = data;

    __atomic_add_fetch(&e->embed.news, 1, __ATOMIC_RELEASE);
    vlm_inbox_wake(&e->inbox);
}


void
vlm_embed_front(vlm_engine_t *e)
{
    if (e->embed.redis != NULL) {
        vlm_redis_turn(e->embed.redis);
    }
}


/* ---- intake ---- */

int
vlm_embed_join(vlm_engine_t *e, vlm_work_t *w, vlm_error_t *err)
{
    int                rc;
    uint32_t           i;
    vlm_pic_t         *pic;
    vlm_redis_get_t   *get, *gets;
    vlm_embed_pic_t   *p;

    rc = VLM_OK;
    gets = NULL;

    for (i = 0; i < w->in.npictures && rc == VLM_OK; i++) {
        pic = &w->pics[i];
        p = &pic->cache;
        p->outcome = VLM_CACHE_MISS;

        if (embed_key(e, w, i) != VLM_OK) {
            continue;
        }

        p->keyed = 1;

        switch (vlm_memory_join(e->embed.memory, &p->key, &p->wait,
                                &p->entry, err))
        {

        case VLM_JOIN_HIT:
            p->outcome = VLM_CACHE_HIT_MEMORY;
            break;

        case VLM_JOIN_BAD:
            vlm_error_param(err, "image[%u]", i);
            rc = VLM_ERROR;
            break;

        case VLM_JOIN_FIRST:
            get = vlm_embed_lookup(e, pic);

            if (get == NULL) {
                vlm_memory_missed(e->embed.memory, &p->key);
                break;
            }

            get->next = gets;
            gets = get;
            break;

        case VLM_JOIN_NOMEM:
            p->keyed = 0;
            break;

        default: /* VLM_JOIN_WAIT */
            break;
        }
    }

    /* even after an error: others may wait for what is looked up */

    if (gets != NULL) {
        vlm_redis_get(e->embed.redis, gets);
    }

    return rc;
}


static int
embed_key(vlm_engine_t *e, vlm_work_t *w, uint32_t n)
{
    uint8_t                digest[32];
    vlm_pic_t             *pic;
    vlm_cache_what_t       what;
    const vlm_picture_t   *in;
    vlm_patch_geometry_t   geometry;

    static const uint8_t   none[32];

    pic = &w->pics[n];
    in = &w->in.pictures[n];
    memset(&what, 0, sizeof(what));
    what.picture = in->sha256;

    if (memcmp(in->sha256, none, sizeof(none)) == 0) {

        /* the worker leaves it to the engine */

        if (EVP_Digest(w->req->arena + in->bytes.offset,
                       (size_t) in->bytes.length, digest, NULL, EVP_sha256(),
                       NULL)
            != 1)
        {
            return VLM_ERROR;
        }

        what.picture = digest;
        pic->cache.verified = 1;
    }

    vlm_model_geometry(e->model, pic->plan.width, pic->plan.height,
                       &geometry);

    what.weights = e->embed.weights;
    what.plan = &pic->plan;
    what.geometry = &geometry;
    what.quant = e->conf.vision_quant;
    what.dtype = e->conf.embedding_dtype;
    what.device = e->embed.device;
    what.scope = w->in.scope.data;
    what.scope_len = w->in.scope.len;

    return vlm_cache_key(&what, &pic->cache.key);
}


void
vlm_embed_decoded(vlm_engine_t *e, vlm_work_t *w, int32_t n)
{
    uint8_t               digest[32];
    vlm_pic_t            *pic;
    const vlm_picture_t  *in;

    pic = &w->pics[n];
    in = &w->in.pictures[n];

    if (!pic->cache.keyed || pic->error.status == 499
        || pic->error.status >= 500)
    {
        return;
    }

    if (!pic->cache.verified) {

        if (EVP_Digest(w->req->arena + in->bytes.offset,
                       (size_t) in->bytes.length, digest, NULL, EVP_sha256(),
                       NULL)
            != 1)
        {
            return;
        }

        if (memcmp(digest, in->sha256, sizeof(digest)) != 0) {
            count(e->embed.mismatches);
            return;
        }

        pic->cache.verified = 1;
    }

    if (pic->error.status != 0) {
        count(e->embed.bad_pictures);
        vlm_memory_bad(e->embed.memory, &pic->cache.key, &pic->error);
    }
}


/* ---- compute thread ---- */

void
vlm_embed_turn(vlm_engine_t *e)
{
    int32_t       i;
    uint64_t      news;
    vlm_work_t   *w;

    news = __atomic_load_n(&e->embed.news, __ATOMIC_ACQUIRE);

    if (news == e->embed.seen) {
        return;
    }

    e->embed.seen = news;

    vlm_embed_arrived(e);

    /* requests may end in here */

    for (i = e->sched.nrunning - 1; i >= 0; i--) {

        /* with all their choices */

        if (i >= e->sched.nrunning) {
            continue;
        }

        w = ((vlm_choice_t *) e->sched.running[i])->work;

        if (w->nwaiting != 0 && embed_claim(e, w) == VLM_OK) {
            embed_go(e, w);
        }
    }
}


/* a picture has its embedding */

static void
embed_ready(vlm_work_t *w, vlm_pic_t *pic)
{
    pic->embedding = pic->cache.entry->tensor;
    pic->cache.state = VLM_PIC_READY;
}


/* how many pictures that are needed have no embedding yet */

static uint32_t
embed_missing(const vlm_work_t *w)
{
    uint32_t         i, n;
    vlm_pic_state_t  state;

    n = 0;

    for (i = 0; i < w->in.npictures; i++) {
        state = w->pics[i].cache.state;
        n += state != VLM_PIC_READY && state != VLM_PIC_IDLE;
    }

    return n;
}


uint32_t
vlm_embed_outcome(const vlm_embed_pic_t *p)
{
    /* perhaps it was on its way when its rows were found */

    return p->state == VLM_PIC_READY ? p->outcome : VLM_CACHE_PREFIX;
}


void
vlm_embed_start(vlm_engine_t *e, vlm_work_t *w)
{
    uint32_t    i;
    vlm_pic_t  *pic;

    for (i = 0; i < w->in.npictures; i++) {
        pic = &w->pics[i];

        if (pic->cache.state != VLM_PIC_IDLE
            || !vlm_work_needs(w, (int32_t) i))
        {
            continue;
        }

        if (pic->cache.entry != NULL) {
            embed_ready(w, pic);

        } else if (!pic->cache.keyed) {
            pic->cache.state = VLM_PIC_LEAD;

        } else {
            pic->cache.state = VLM_PIC_WAIT;
            w->nwaiting++;
        }
    }

    if (embed_claim(e, w) == VLM_OK) {
        embed_go(e, w);
    }
}


/* VLM_ERROR: the request has ended */

static int
embed_claim(vlm_engine_t *e, vlm_work_t *w)
{
    uint32_t          i;
    vlm_error_t       err;
    vlm_pic_t        *pic;
    vlm_embed_pic_t  *p;

    for (i = 0; i < w->in.npictures && w->nwaiting != 0; i++) {
        pic = &w->pics[i];
        p = &pic->cache;

        if (p->state != VLM_PIC_WAIT) {
            continue;
        }

        switch (vlm_memory_claim(e->embed.memory, &p->wait, &p->entry,
                                 &p->outcome, &err))
        {

        case VLM_JOIN_HIT:
            w->nwaiting--;
            w->cached_us = w->first_us == 0 ? vlm_now_us() : w->cached_us;
            embed_ready(w, pic);
            break;

        case VLM_JOIN_LEAD:
            w->nwaiting--;
            p->state = VLM_PIC_LEAD;
            break;

        case VLM_JOIN_BAD:
            vlm_error_param(&err, "image[%u]", i);

            if (w->decoding) {
                /* others must come back first, and their errors are seen */
                pic->error = err;
                w->nwaiting--;
                p->state = VLM_PIC_DECODE;
                break;
            }

            vlm_compute_fail(e, w, &err);
            return VLM_ERROR;

        default: /* VLM_JOIN_WAIT */
            break;
        }
    }

    return VLM_OK;
}


static void
embed_stage(vlm_engine_t *e, vlm_work_t *w, uint32_t stage)
{
    /* of an answer that is being written nothing is told any more */

    if (w->stage != stage && w->first_us == 0) {
        w->stage = stage;
        vlm_mail_stage(e, w->req, stage, 0);
    }
}


/* what is to be done next, once all claims are made */

static void
embed_go(vlm_engine_t *e, vlm_work_t *w)
{
    uint32_t  i, n;

    if (w->decoding) {
        embed_ready_all(w);
        return;
    }

    for (n = 0, i = 0; i < w->in.npictures; i++) {
        n += w->pics[i].cache.state == VLM_PIC_LEAD;
    }

    if (n != 0) {
        w->decoding = 1;
        w->undecoded = (int32_t) n;
        embed_stage(e, w, VLM_STAGE_DECODE);

        for (i = 0; i < w->in.npictures; i++) {
            if (w->pics[i].cache.state == VLM_PIC_LEAD) {
                w->pics[i].cache.state = VLM_PIC_DECODE;
                vlm_images_put(&e->images, &w->pics[i].task);
            }
        }

    } else if (embed_missing(w) == 0) {
        embed_release(e, w);
        embed_stage(e, w, VLM_STAGE_PREFILL);

    } else {

        if (w->nwaiting == 0) {
            embed_release(e, w);
        }

        embed_stage(e, w, VLM_STAGE_ENCODE);
    }

    embed_ready_all(w);
}


static void
embed_ready_all(vlm_work_t *w)
{
    uint32_t  i;

    for (i = 0; i < w->nchoices; i++) {
        vlm_choice_ready(&w->choices[i]);
    }
}


/*
 * No bytes are needed any more.  Those of a picture that was spared, as the
 * KV cache had its rows, may be, when the request is preempted.
 */

static void
embed_release(vlm_engine_t *e, vlm_work_t *w)
{
    uint32_t                i;
    const vlm_embed_pic_t  *p;

    for (i = 0; i < w->in.npictures; i++) {
        p = &w->pics[i].cache;

        if (p->state == VLM_PIC_IDLE && p->entry == NULL) {
            return;
        }
    }

    if (!w->released) {
        w->released = 1;
        vlm_mail_released(e, w->req);
    }
}


void
vlm_embed_pixels(vlm_engine_t *e, vlm_work_t *w)
{
    uint32_t  i;

    for (i = 0; i < w->in.npictures; i++) {
        if (w->pics[i].cache.state == VLM_PIC_DECODE) {
            w->pics[i].cache.state = VLM_PIC_PIXELS;

            if (!w->pics[i].cache.verified) {
                vlm_work_unshare(e, w, (int32_t) i);
            }
        }
    }

    vlm_encode_add(e, w);
    embed_go(e, w);
}


int
vlm_embed_encoded(vlm_engine_t *e, vlm_work_t *w, int32_t n, void *copy,
    vlm_error_t *err)
{
    vlm_pic_t        *pic;
    vlm_embed_pic_t  *p;

    pic = &w->pics[n];
    p = &pic->cache;

    count(e->embed.encoded);

    p->entry = vlm_embed_entry(e, &p->key, &pic->plan, copy,
                               p->keyed && p->verified, err);
    if (p->entry == NULL) {
        return VLM_ERROR;
    }

    if (p->keyed && p->verified) {
        vlm_memory_put(e->embed.memory, &p->key, p->entry, VLM_CACHE_MISS);
    }

    vlm_memory_leave(e->embed.memory, &p->wait);

    p->outcome = VLM_CACHE_MISS;
    embed_ready(w, pic);

    if (w->first_us == 0) {
        w->encoded_us = vlm_now_us();
    }

    if (embed_missing(w) == 0) {
        embed_stage(e, w, VLM_STAGE_PREFILL);
    }

    embed_ready_all(w);

    return VLM_OK;
}


void
vlm_embed_leave(vlm_engine_t *e, vlm_work_t *w)
{
    uint32_t          i;
    vlm_embed_pic_t  *p;

    if (w == NULL || w->pics == NULL) {
        return;
    }

    for (i = 0; i < w->in.npictures; i++) {
        p = &w->pics[i].cache;

        vlm_memory_leave(e->embed.memory, &p->wait);

        if (p->entry != NULL) {
            vlm_entry_free(e->embed.memory, p->entry);
            p->entry = NULL;
        }
    }
}
