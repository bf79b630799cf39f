
/* What the files of the engine's end share.  Private to engine/channel. */

#ifndef VLM_HELLO_H
#define VLM_HELLO_H


#include "vlm_peer.h"


/* vlm_peer_t.state; 0 is a struct that was never accepted */

#define VLM_PEER_CLOSED     0
#define VLM_PEER_ACCEPTED   1               /* the hello is awaited */
#define VLM_PEER_READY      2


/* sets why and err, returns rc */
int vlm_peer_fail(vlm_peer_t *p, int rc, int err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));


#endif /* VLM_HELLO_H */
