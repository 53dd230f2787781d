/* A broken disk under one folder, for LD_PRELOAD: what a process writes to files whose path contains $SHIM_UNDER fails as the file
   $SHIM_FAULT says: "<fault> <n>", the n-th call and all later ones, counted by each process for itself. Faults: enospc, eio (of
   writes), short (every write takes half), sync (of fsync and fdatasync), rot (what is dropped from the cache is read back with a
   byte changed: a write that was lost, or that went elsewhere), none. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int seen;

static int concerned(int fd) {
    const char *under = getenv("SHIM_UNDER");
    char link[64], path[4096];
    if (!under) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return strstr(path, under) != NULL;
}

static int fault(int fd, const char *kind) {
    const char *name = getenv("SHIM_FAULT");
    char said[32] = "";
    int first = 1, kept = errno, hit;
    if (!name || !concerned(fd)) return 0;
    FILE *file = fopen(name, "r");
    if (!file) return 0;
    int n = fscanf(file, "%31s %d", said, &first);
    fclose(file);
    errno = kept;
    hit = n == 2 && !strcmp(said, kind) && ++seen >= first;
    return hit;
}

static int refuses(int fd) {
    if (fault(fd, "enospc")) { errno = ENOSPC; return 1; }
    if (fault(fd, "eio")) { errno = EIO; return 1; }
    return 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) {
    if (refuses(fd)) return -1;
    return REAL(write)(fd, data, size > 1 && fault(fd, "short") ? size / 2 : size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    if (refuses(fd)) return -1;
    return REAL(pwrite)(fd, data, size > 1 && fault(fd, "short") ? size / 2 : size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    if (refuses(fd)) return -1;
    return REAL(pwrite64)(fd, data, size > 1 && fault(fd, "short") ? size / 2 : size, at);
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) {
    if (refuses(fd)) return -1;
    return REAL(pwritev64v2)(fd, parts, count, at, flags);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    if (refuses(fd)) return -1;
    return REAL(pwritev2)(fd, parts, count, at, flags);
}

int fsync(int fd) {
    if (fault(fd, "sync")) { errno = EIO; return -1; }
    return REAL(fsync)(fd);
}

int fdatasync(int fd) {
    if (fault(fd, "sync")) { errno = EIO; return -1; }
    return REAL(fdatasync)(fd);
}

static void spoil(int fd) {
    char link[64], byte;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int file = open(link, O_RDWR);
    if (file < 0) return;
    if (pread(file, &byte, 1, 5000) == 1) {
        byte ^= 1;
        REAL(pwrite)(file, &byte, 1, 5000);
    }
    close(file);
}

int posix_fadvise(int fd, off_t at, off_t size, int advice) {
    if (fault(fd, "rot")) spoil(fd);
    return REAL(posix_fadvise)(fd, at, size, advice);
}

int posix_fadvise64(int fd, off64_t at, off64_t size, int advice) {
    if (fault(fd, "rot")) spoil(fd);
    return REAL(posix_fadvise64)(fd, at, size, advice);
}
