
/*
 * Descriptors: sealed memory files, for the arena and the rings.  Private to
 * engine/channel; the file that includes it must define _GNU_SOURCE.
 */

#ifndef VLM_MEMFD_H
#define VLM_MEMFD_H


#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>


#define VLM_MEMFD_SEALS  (F_SEAL_SHRINK|F_SEAL_GROW|F_SEAL_SEAL)

#ifdef MFD_NOEXEC_SEAL
#define VLM_MEMFD_NOEXEC  MFD_NOEXEC_SEAL
#else
#define VLM_MEMFD_NOEXEC  0x0008u
#endif


/* -1: errno is set, *what names the call that failed */

static inline int
vlm_memfd_create(const char *name, uint64_t size, const char **what)
{
    int  fd, err;

    *what = "memfd_create()";
    fd = memfd_create(name, MFD_CLOEXEC|MFD_ALLOW_SEALING|VLM_MEMFD_NOEXEC);

    if (fd == -1 && errno == EINVAL) {
        /* before Linux 6.3 */
        fd = memfd_create(name, MFD_CLOEXEC|MFD_ALLOW_SEALING);
    }

    if (fd == -1) {
        return -1;
    }

    *what = "fchmod()";

    if (fchmod(fd, 0600) == -1) {
        goto failed;
    }

    *what = "ftruncate()";

    if (ftruncate(fd, (off_t) size) == -1) {
        goto failed;
    }

    *what = "fcntl(F_ADD_SEALS)";

    if (fcntl(fd, F_ADD_SEALS, VLM_MEMFD_SEALS) == -1) {
        goto failed;
    }

    return fd;

failed:

    err = errno;
    close(fd);
    errno = err;

    return -1;
}


static inline void
vlm_memfd_close(int *fd)
{
    if (*fd != -1) {
        close(*fd);
        *fd = -1;
    }
}


#endif /* VLM_MEMFD_H */
