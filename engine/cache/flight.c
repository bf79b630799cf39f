
/* Single flight: who waits for a key, and who works on it. */

#include <stdlib.h>
#include <string.h>

#include "engine/cache/table.h"
#include "engine/channel/vlm_wire.h"


static void flight_end(vlm_memory_cache_t *m, vlm_cache_node_t *node);


static void
wait_link(vlm_cache_node_t *node, vlm_wait_t *wait)
{
    wait->node = node;
    wait->prev = NULL;
    wait->next = node->waits;

    if (node->waits != NULL) {
        node->waits->prev = wait;
    }

    node->waits = wait;
}


/* the flight ends with the last one, if nobody is to tell its result */

static void
wait_unlink(vlm_memory_cache_t *m, vlm_wait_t *wait)
{
    vlm_cache_node_t  *node;

    node = wait->node;
    wait->node = NULL;

    if (wait->prev != NULL) {
        wait->prev->next = wait->next;

    } else {
        node->waits = wait->next;
    }

    if (wait->next != NULL) {
        wait->next->prev = wait->prev;
    }

    if (node->waits == NULL && node->flight != VLM_FLIGHT_LOOKUP) {
        flight_end(m, node);
        vlm_table_tidy(m, node);
    }
}


static void
flight_end(vlm_memory_cache_t *m, vlm_cache_node_t *node)
{
    if (node->result != NULL) {
        vlm_entry_unref(m, node->result);
    }

    free(node->why);

    node->flight = VLM_FLIGHT_NONE;
    node->leader = NULL;
    node->result = NULL;
    node->why = NULL;
}


vlm_join_t
vlm_memory_join(vlm_memory_cache_t *m, const vlm_cache_key_t *key,
    vlm_wait_t *wait, vlm_entry_t **entry, vlm_error_t *err)
{
    vlm_join_t          rc;
    vlm_cache_node_t   *node;
    const vlm_error_t  *bad;

    memset(wait, 0, sizeof(*wait));

    vlm_table_lock(m);

    node = vlm_table_node(m, key, 1);

    if (node == NULL) {
        rc = VLM_JOIN_NOMEM;
        goto done;
    }

    if (node->entry != NULL) {
        vlm_recent_touch(m, node);
        vlm_entry_ref(node->entry);
        *entry = node->entry;
        m->stats.hits++;
        rc = VLM_JOIN_HIT;
        goto done;
    }

    bad = vlm_bad_find(m, node);

    if (bad != NULL) {
        *err = *bad;
        m->stats.bad_hits++;
        rc = VLM_JOIN_BAD;
        goto done;
    }

    wait_link(node, wait);

    if (node->flight == VLM_FLIGHT_NONE) {
        node->flight = VLM_FLIGHT_LOOKUP;
        wait->first = 1;
        m->stats.flights++;
        rc = VLM_JOIN_FIRST;

    } else {
        m->stats.joined++;
        rc = VLM_JOIN_WAIT;
    }

done:

    vlm_table_unlock(m);

    return rc;
}


vlm_join_t
vlm_memory_claim(vlm_memory_cache_t *m, vlm_wait_t *wait,
    vlm_entry_t **entry, uint32_t *outcome, vlm_error_t *err)
{
    vlm_join_t         rc;
    vlm_cache_node_t  *node;

    vlm_table_lock(m);

    node = wait->node;
    rc = VLM_JOIN_WAIT;

    if (node->flight == VLM_FLIGHT_OPEN) {
        node->flight = VLM_FLIGHT_LED;
        node->leader = wait;
        m->stats.led++;
        rc = VLM_JOIN_LEAD;

    } else if (node->flight == VLM_FLIGHT_DONE) {

        if (node->result != NULL) {
            vlm_entry_ref(node->result);
            *entry = node->result;
            *outcome = wait->first && node->outcome == VLM_CACHE_HIT_REDIS
                       ? VLM_CACHE_HIT_REDIS : VLM_CACHE_JOINED;
            rc = VLM_JOIN_HIT;

        } else {
            *err = *node->why;
            rc = VLM_JOIN_BAD;
        }

        wait_unlink(m, wait);
    }

    vlm_table_unlock(m);

    return rc;
}


void
vlm_memory_leave(vlm_memory_cache_t *m, vlm_wait_t *wait)
{
    int                wake;
    vlm_cache_node_t  *node;

    if (wait->node == NULL) {
        return;
    }

    vlm_table_lock(m);

    node = wait->node;
    wake = 0;

    if (node->leader == wait) {
        node->leader = NULL;

        if (node->flight == VLM_FLIGHT_LED) {
            node->flight = VLM_FLIGHT_OPEN;
            wake = 1;
        }
    }

    wait_unlink(m, wait);

    vlm_table_unlock(m);

    if (wake) {
        m->conf.wake(m->conf.data);
    }
}


/* the flight of a key that is told, unless it has been told before */

static vlm_cache_node_t *
flight_of(vlm_cache_node_t *node)
{
    return node != NULL && node->flight != VLM_FLIGHT_NONE
           && node->flight != VLM_FLIGHT_DONE ? node : NULL;
}


static void
flight_told(vlm_memory_cache_t *m, vlm_cache_node_t *node)
{
    node->flight = VLM_FLIGHT_DONE;
    node->leader = NULL;

    if (node->waits == NULL) {
        flight_end(m, node);
    }
}


void
vlm_memory_put(vlm_memory_cache_t *m, const vlm_cache_key_t *key,
    vlm_entry_t *entry, uint32_t outcome)
{
    vlm_cache_node_t  *node;

    vlm_table_lock(m);

    node = vlm_table_node(m, key, 1);

    if (node != NULL) {

        if (flight_of(node) != NULL) {
            vlm_entry_ref(entry);
            node->result = entry;
            node->outcome = outcome;
            flight_told(m, node);
        }

        vlm_recent_insert(m, node, entry);
        vlm_table_tidy(m, node);
    }

    vlm_table_unlock(m);

    m->conf.wake(m->conf.data);
}


void
vlm_memory_bad(vlm_memory_cache_t *m, const vlm_cache_key_t *key,
    const vlm_error_t *err)
{
    vlm_cache_node_t  *node;

    vlm_table_lock(m);

    node = vlm_table_node(m, key, 1);

    if (node != NULL) {

        if (flight_of(node) != NULL) {
            node->why = malloc(sizeof(vlm_error_t));

            if (node->why != NULL) {
                *node->why = *err;
                flight_told(m, node);

            } else {
                node->flight = VLM_FLIGHT_OPEN;
                node->leader = NULL;
            }
        }

        vlm_bad_insert(m, node, err);
        vlm_table_tidy(m, node);
    }

    vlm_table_unlock(m);

    m->conf.wake(m->conf.data);
}


void
vlm_memory_missed(vlm_memory_cache_t *m, const vlm_cache_key_t *key)
{
    vlm_cache_node_t  *node;

    vlm_table_lock(m);

    node = vlm_table_node(m, key, 0);

    if (node != NULL && node->flight == VLM_FLIGHT_LOOKUP) {
        node->flight = VLM_FLIGHT_OPEN;

        if (node->waits == NULL) {
            flight_end(m, node);
            vlm_table_tidy(m, node);
        }
    }

    vlm_table_unlock(m);

    m->conf.wake(m->conf.data);
}
