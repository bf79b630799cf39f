
/* Inside the memory cache: one node for each key that anything is known of. */

#ifndef VLM_CACHE_TABLE_H
#define VLM_CACHE_TABLE_H


#include <pthread.h>

#include "engine/cache/memory.h"


typedef enum {
    VLM_FLIGHT_NONE = 0,
    VLM_FLIGHT_LOOKUP,          /* the next level is being asked */
    VLM_FLIGHT_OPEN,            /* nobody is at work */
    VLM_FLIGHT_LED,
    VLM_FLIGHT_DONE             /* "result" or "why", until all have it */
} vlm_flight_state_t;

/* a list through nodes; each node can be on two of them */

typedef struct {
    vlm_cache_node_t       *prev;
    vlm_cache_node_t       *next;
} vlm_link_t;

typedef struct {
    vlm_cache_node_t       *head;       /* newest */
    vlm_cache_node_t       *tail;
    int                     which;      /* of a node's links */
} vlm_list_t;

#define VLM_LIST_RECENT     0
#define VLM_LIST_BAD        1

struct vlm_cache_node_s {
    vlm_cache_key_t         key;
    vlm_cache_node_t       *next;       /* in its bucket */
    vlm_link_t              links[2];

    vlm_entry_t            *entry;      /* on the list of recent ones */

    vlm_error_t            *bad;        /* on the list of bad ones */
    uint64_t                bad_until;

    vlm_flight_state_t      flight;
    vlm_wait_t             *waits;
    vlm_wait_t             *leader;
    vlm_entry_t            *result;
    vlm_error_t            *why;
    uint32_t                outcome;
};

struct vlm_memory_cache_s {
    vlm_memory_conf_t       conf;
    pthread_mutex_t         lock;
    uint64_t                seed;
    vlm_cache_node_t      **buckets;
    size_t                  nbuckets;   /* power of two */
    size_t                  nnodes;
    vlm_list_t              recent;
    vlm_list_t              bad;
    vlm_entry_t            *dead;       /* to be freed without the lock */
    vlm_memory_stats_t      stats;
};


/* takes the lock; gives it back and frees what died meanwhile */
void vlm_table_lock(vlm_memory_cache_t *m);
void vlm_table_unlock(vlm_memory_cache_t *m);

/* the rest is under the lock */

/* NULL: there is none, and with "create" no memory */
vlm_cache_node_t *vlm_table_node(vlm_memory_cache_t *m,
    const vlm_cache_key_t *key, int create);

/* removes a node of which nothing is known any more */
void vlm_table_tidy(vlm_memory_cache_t *m, vlm_cache_node_t *node);

void vlm_entry_ref(vlm_entry_t *e);
void vlm_entry_unref(vlm_memory_cache_t *m, vlm_entry_t *e);

/* what is kept: the entry as the newest, or an error for some time */
void vlm_recent_insert(vlm_memory_cache_t *m, vlm_cache_node_t *node,
    vlm_entry_t *entry);
void vlm_recent_touch(vlm_memory_cache_t *m, vlm_cache_node_t *node);
void vlm_bad_insert(vlm_memory_cache_t *m, vlm_cache_node_t *node,
    const vlm_error_t *err);

/* not if its time has passed */
const vlm_error_t *vlm_bad_find(vlm_memory_cache_t *m,
    vlm_cache_node_t *node);


#endif /* VLM_CACHE_TABLE_H */
