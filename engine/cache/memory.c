
/* The table of keys, what is kept of them, and for how long. */

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/cache/table.h"


#define FIRST_BUCKETS   256


static void recent_remove(vlm_memory_cache_t *m, vlm_cache_node_t *node);
static void bad_remove(vlm_memory_cache_t *m, vlm_cache_node_t *node);


vlm_memory_cache_t *
vlm_memory_create(const vlm_memory_conf_t *conf)
{
    vlm_memory_cache_t  *m;

    m = calloc(1, sizeof(vlm_memory_cache_t));
    if (m == NULL) {
        return NULL;
    }

    m->conf = *conf;
    m->recent.which = VLM_LIST_RECENT;
    m->bad.which = VLM_LIST_BAD;
    m->nbuckets = FIRST_BUCKETS;
    m->buckets = calloc(m->nbuckets, sizeof(vlm_cache_node_t *));

    /* buckets are not to be guessed from pictures */

    if (m->buckets == NULL
        || getrandom(&m->seed, sizeof(m->seed), 0) != sizeof(m->seed)
        || pthread_mutex_init(&m->lock, NULL) != 0)
    {
        free(m->buckets);
        free(m);
        return NULL;
    }

    return m;
}


void
vlm_memory_destroy(vlm_memory_cache_t *m)
{
    size_t             i;
    vlm_cache_node_t  *node;

    if (m == NULL) {
        return;
    }

    vlm_table_lock(m);

    while (m->recent.tail != NULL) {
        recent_remove(m, m->recent.tail);
    }

    while (m->bad.tail != NULL) {
        bad_remove(m, m->bad.tail);
    }

    /* flights of look-ups that nobody waits for */

    for (i = 0; i < m->nbuckets; i++) {
        while (m->buckets[i] != NULL) {
            node = m->buckets[i];
            m->buckets[i] = node->next;
            free(node);
        }
    }

    vlm_table_unlock(m);

    pthread_mutex_destroy(&m->lock);
    free(m->buckets);
    free(m);
}


void
vlm_memory_stats(vlm_memory_cache_t *m, vlm_memory_stats_t *stats)
{
    vlm_table_lock(m);
    *stats = m->stats;
    vlm_table_unlock(m);
}


void
vlm_table_lock(vlm_memory_cache_t *m)
{
    pthread_mutex_lock(&m->lock);
}


void
vlm_table_unlock(vlm_memory_cache_t *m)
{
    vlm_entry_t  *e, *next;

    e = m->dead;
    m->dead = NULL;

    pthread_mutex_unlock(&m->lock);

    for ( /* void */ ; e != NULL; e = next) {
        next = e->dead;
        m->conf.free(m->conf.data, &e->tensor);
        free(e);
    }
}


static vlm_cache_node_t **
bucket_of(vlm_memory_cache_t *m, const vlm_cache_key_t *key)
{
    uint64_t  hash;

    memcpy(&hash, key->bytes, sizeof(hash));
    hash = (hash ^ m->seed) * 0x9e3779b97f4a7c15ull;

    return &m->buckets[(hash >> 32) & (m->nbuckets - 1)];
}


static void
table_grow(vlm_memory_cache_t *m)
{
    size_t              i, n;
    vlm_cache_node_t   *node, *next, **old, **to;

    n = m->nbuckets;
    old = m->buckets;

    /* without memory it goes on as it is, only slower */

    to = calloc(n * 2, sizeof(vlm_cache_node_t *));
    if (to == NULL) {
        return;
    }

    m->buckets = to;
    m->nbuckets = n * 2;

    for (i = 0; i < n; i++) {
        for (node = old[i]; node != NULL; node = next) {
            next = node->next;
            to = bucket_of(m, &node->key);
            node->next = *to;
            *to = node;
        }
    }

    free(old);
}


vlm_cache_node_t *
vlm_table_node(vlm_memory_cache_t *m, const vlm_cache_key_t *key, int create)
{
    vlm_cache_node_t  *node, **bucket;

    bucket = bucket_of(m, key);

    for (node = *bucket; node != NULL; node = node->next) {
        if (memcmp(node->key.bytes, key->bytes, sizeof(key->bytes)) == 0) {
            return node;
        }
    }

    if (!create) {
        return NULL;
    }

    node = calloc(1, sizeof(vlm_cache_node_t));
    if (node == NULL) {
        return NULL;
    }

    node->key = *key;
    node->next = *bucket;
    *bucket = node;

    if (++m->nnodes > m->nbuckets) {
        table_grow(m);
    }

    return node;
}


void
vlm_table_tidy(vlm_memory_cache_t *m, vlm_cache_node_t *node)
{
    vlm_cache_node_t  **p;

    if (node->entry != NULL || node->bad != NULL
        || node->flight != VLM_FLIGHT_NONE)
    {
        return;
    }

    for (p = bucket_of(m, &node->key); *p != node; p = &(*p)->next) {
        /* void */
    }

    *p = node->next;
    m->nnodes--;
    free(node);
}


static void
list_push(vlm_list_t *list, vlm_cache_node_t *node)
{
    vlm_link_t  *link;

    link = &node->links[list->which];
    link->prev = NULL;
    link->next = list->head;

    if (list->head != NULL) {
        list->head->links[list->which].prev = node;

    } else {
        list->tail = node;
    }

    list->head = node;
}


static void
list_remove(vlm_list_t *list, vlm_cache_node_t *node)
{
    vlm_link_t  *link;

    link = &node->links[list->which];

    if (link->prev != NULL) {
        link->prev->links[list->which].next = link->next;

    } else {
        list->head = link->next;
    }

    if (link->next != NULL) {
        link->next->links[list->which].prev = link->prev;

    } else {
        list->tail = link->prev;
    }
}


vlm_entry_t *
vlm_entry_create(vlm_memory_cache_t *m, const vlm_tensor_t *tensor,
    size_t bytes)
{
    vlm_entry_t  *e;

    e = calloc(1, sizeof(vlm_entry_t));
    if (e == NULL) {
        return NULL;
    }

    e->tensor = *tensor;
    e->bytes = bytes;
    e->refs = 1;

    vlm_table_lock(m);
    m->stats.alive += bytes;
    vlm_table_unlock(m);

    return e;
}


void
vlm_entry_free(vlm_memory_cache_t *m, vlm_entry_t *e)
{
    vlm_table_lock(m);
    vlm_entry_unref(m, e);
    vlm_table_unlock(m);
}


void
vlm_entry_ref(vlm_entry_t *e)
{
    e->refs++;
}


void
vlm_entry_unref(vlm_memory_cache_t *m, vlm_entry_t *e)
{
    if (--e->refs == 0) {
        m->stats.alive -= e->bytes;
        e->dead = m->dead;
        m->dead = e;
    }
}


/* the node may be gone afterwards */

static void
recent_remove(vlm_memory_cache_t *m, vlm_cache_node_t *node)
{
    list_remove(&m->recent, node);

    m->stats.bytes -= node->entry->bytes;
    m->stats.entries--;

    vlm_entry_unref(m, node->entry);
    node->entry = NULL;

    vlm_table_tidy(m, node);
}


void
vlm_recent_insert(vlm_memory_cache_t *m, vlm_cache_node_t *node,
    vlm_entry_t *entry)
{
    if (node->entry != NULL) {
        /* the same bits from somewhere else */
        return;
    }

    if (entry->bytes > m->conf.limit) {
        m->stats.too_large++;
        return;
    }

    while (m->stats.bytes + entry->bytes > m->conf.limit) {
        recent_remove(m, m->recent.tail);
        m->stats.evictions++;
    }

    vlm_entry_ref(entry);
    node->entry = entry;
    list_push(&m->recent, node);

    m->stats.bytes += entry->bytes;
    m->stats.entries++;
    m->stats.insertions++;
}


void
vlm_recent_touch(vlm_memory_cache_t *m, vlm_cache_node_t *node)
{
    list_remove(&m->recent, node);
    list_push(&m->recent, node);
}


static void
bad_remove(vlm_memory_cache_t *m, vlm_cache_node_t *node)
{
    list_remove(&m->bad, node);

    free(node->bad);
    node->bad = NULL;
    m->stats.bad--;

    vlm_table_tidy(m, node);
}


void
vlm_bad_insert(vlm_memory_cache_t *m, vlm_cache_node_t *node,
    const vlm_error_t *err)
{
    if (node->bad != NULL || m->conf.max_bad == 0) {
        return;
    }

    node->bad = malloc(sizeof(vlm_error_t));
    if (node->bad == NULL) {
        return;
    }

    *node->bad = *err;
    node->bad_until = vlm_now_us() + m->conf.bad_ttl_us;
    list_push(&m->bad, node);

    if (++m->stats.bad > m->conf.max_bad) {
        bad_remove(m, m->bad.tail);
    }
}


const vlm_error_t *
vlm_bad_find(vlm_memory_cache_t *m, vlm_cache_node_t *node)
{
    if (node->bad == NULL) {
        return NULL;
    }

    if (vlm_now_us() < node->bad_until) {
        return node->bad;
    }

    /* the caller needs the node */

    list_remove(&m->bad, node);
    free(node->bad);
    node->bad = NULL;
    m->stats.bad--;

    return NULL;
}
