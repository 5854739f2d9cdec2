/* File access for the readers and writers (POSIX). */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64

#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checked.h"

/* One request never exceeds this: Linux caps at 2 GiB, macOS refuses more. */
#define IO_CHUNK ((size_t)1 << 30)

attn_status attn_file_open(const char *path, int *fd, uint64_t *bytes)
{
    *fd = -1;
    *bytes = 0;
    /* O_NONBLOCK: opening a FIFO must not wait for a writer. */
    const int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (opened < 0) {
        return attn_fail(ATTN_E_IO, "%s: %s", path, strerror(errno));
    }
    struct stat info;
    if (fstat(opened, &info) != 0) {
        const int reason = errno;
        close(opened);
        return attn_fail(ATTN_E_IO, "%s: %s", path, strerror(reason));
    }
    if (!S_ISREG(info.st_mode) || info.st_size < 0) {
        close(opened);
        return attn_fail(ATTN_E_IO, "%s: not a regular file", path);
    }
    *fd = opened;
    *bytes = (uint64_t)info.st_size;
    return attn_success();
}

void attn_file_close(int fd)
{
    if (fd >= 0) {
        close(fd);
    }
}

attn_status attn_file_read(int fd, uint64_t offset, void *out, size_t n)
{
    unsigned char *at = out;
    while (n > 0) {
        const size_t ask = n < IO_CHUNK ? n : IO_CHUNK;
        const ssize_t got = pread(fd, at, ask, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return attn_fail(ATTN_E_IO, "read failed: %s", strerror(errno));
        }
        if (got == 0) {
            return attn_fail(ATTN_E_IO, "the file has become shorter: nothing at byte %llu",
                             (unsigned long long)offset);
        }
        at += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return attn_success();
}

attn_status attn_file_begin(const char *path, attn_file_writer *writer)
{
    const size_t room = strlen(path) + 48;
    writer->fd = -1;
    writer->path = malloc(room);
    writer->temporary = malloc(room);
    attn_status status = attn_fail(ATTN_E_MEMORY, "out of memory");
    if (writer->path != NULL && writer->temporary != NULL) {
        memcpy(writer->path, path, strlen(path) + 1);
        for (int attempt = 0; attempt < 100 && writer->fd < 0; attempt++) {
            snprintf(writer->temporary, room, "%s.%ld.%d.tmp", path, (long)getpid(), attempt);
            writer->fd = open(writer->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
            if (writer->fd < 0 && errno != EEXIST) {
                break;
            }
        }
        if (writer->fd >= 0) {
            return attn_success();
        }
        status = attn_fail(ATTN_E_IO, "%s: %s", path, strerror(errno));
    }
    free(writer->path);
    free(writer->temporary);
    writer->path = writer->temporary = NULL;
    return status;
}

attn_status attn_file_put(attn_file_writer *writer, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    while (n > 0) {
        const ssize_t put = write(writer->fd, at, n < IO_CHUNK ? n : IO_CHUNK);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put < 0) {
            return attn_fail(ATTN_E_IO, "%s: %s", writer->path, strerror(errno));
        }
        at += put;
        n -= (size_t)put;
    }
    return attn_success();
}

attn_status attn_file_finish(attn_file_writer *writer, attn_status status)
{
    /* close reports what a full or remote disk refused late. */
    if (close(writer->fd) != 0 && status.code == ATTN_OK) {
        status = attn_fail(ATTN_E_IO, "%s: %s", writer->path, strerror(errno));
    }
    if (status.code == ATTN_OK && rename(writer->temporary, writer->path) != 0) {
        status = attn_fail(ATTN_E_IO, "%s: %s", writer->path, strerror(errno));
    }
    if (status.code != ATTN_OK) {
        unlink(writer->temporary);
    }
    free(writer->path);
    free(writer->temporary);
    writer->path = writer->temporary = NULL;
    writer->fd = -1;
    return status;
}
