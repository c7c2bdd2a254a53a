/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts the writing calls of all processes of one call of the product, and stops or fails the Nth.
 *
 * Loaded with LD_PRELOAD. What counts are calls on files below the folders in CRASH_ROOTS, and, if
 * asked for, what is sent down pipes and Unix sockets. The orders and the counter are in a file that
 * CRASH_CONTROL names, mapped by every process; shim.py writes the same struct. With `log`, every
 * counted call is appended to CRASH_CONTROL.log after it was done, with its data, so that what a
 * disk may hold after a power loss can be put together (powerloss.py).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { WRITE = 1, TRUNCATE, SYNC, CREATE, MAKE, UNLINK, RENAME, LINK, SEND, READ, CHANGE };
enum { NOTHING, KILL_WRITER, KILL_ALL, FAIL_ONCE, FAIL_FROM_THERE };
enum { FILES = 1, PEERS = 2, READS = 4 };

struct control {
    uint32_t count, target, action, error, log, scope, failed, unused;
    int64_t clock_offset; /* nanoseconds, of the wall clock alone */
};

struct record {
    uint32_t size, point, pid, kind;
    int64_t offset;
    uint32_t path_size, other_size, data_size, unused;
};

static struct control *orders;
static char log_path[PATH_MAX];
static const char *roots;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("CRASH_CONTROL");
    roots = getenv("CRASH_ROOTS");
    if (!path || !roots || orders)
        return;
    snprintf(log_path, sizeof log_path, "%s.log", path);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *found = mmap(NULL, sizeof *orders, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (found != MAP_FAILED)
        orders = found;
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) \
        real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int is_below_roots(const char *path)
{
    for (const char *root = roots; *root;) {
        size_t size = strcspn(root, ":");
        if (size && !strncmp(path, root, size) && (path[size] == '/' || !path[size]))
            return 1;
        root += size + (root[size] == ':');
    }
    return 0;
}

/* The absolute path in `found`; whether it counts. */
static int counts_path(int folder, const char *path, char *found)
{
    if (!orders || !(orders->scope & (FILES | READS)) || !path)
        return 0;
    if (path[0] == '/') {
        snprintf(found, PATH_MAX, "%s", path);
    } else {
        char link[64], at[PATH_MAX];
        snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d",
                 folder);
        ssize_t size = syscall(SYS_readlink, link, at, sizeof at - 1);
        if (size < 0)
            return 0;
        at[size] = 0;
        if ((size_t)snprintf(found, PATH_MAX, "%s/%s", at, path) >= PATH_MAX)
            return 0;
    }
    return is_below_roots(found);
}

static int counts_file(int fd, char *found)
{
    char link[64];
    if (!orders || !orders->scope)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = syscall(SYS_readlink, link, found, PATH_MAX - 1);
    if (size < 0)
        return 0;
    found[size] = 0;
    if (!strncmp(found, "pipe:", 5) || !strncmp(found, "socket:", 7))
        return !!(orders->scope & PEERS);
    return (orders->scope & (FILES | READS)) && is_below_roots(found);
}

/* Count a call that is about to be done. Whether it is to fail, with errno set; may not return.
 * `size` is that of the data, to tell apart what sizes do; the point's number is in `point`. */
static int reached(uint32_t *point)
{
    *point = __atomic_add_fetch(&orders->count, 1, __ATOMIC_SEQ_CST);
    uint32_t target = orders->target;
    if (!target || *point < target || orders->action == NOTHING)
        return 0;
    if (*point > target && orders->action != FAIL_FROM_THERE)
        return 0;
    if (orders->action == KILL_WRITER || orders->action == KILL_ALL) {
        kill(orders->action == KILL_ALL ? 0 : getpid(), SIGKILL);
        for (;;)
            pause();
    }
    __atomic_add_fetch(&orders->failed, 1, __ATOMIC_SEQ_CST);
    errno = (int)orders->error;
    return 1;
}

static void note(uint32_t point, uint32_t kind, const char *path, const char *other, off_t offset,
                 const void *data, size_t size)
{
    if (!orders->log)
        return;
    int saved = errno;
    struct record record = {
        .point = point, .pid = (uint32_t)getpid(), .kind = kind, .offset = offset,
        .path_size = (uint32_t)strlen(path), .other_size = other ? (uint32_t)strlen(other) : 0,
        .data_size = data ? (uint32_t)size : 0,
    };
    record.size = (uint32_t)sizeof record + record.path_size + record.other_size + record.data_size;
    struct iovec parts[] = {
        {&record, sizeof record}, {(void *)path, record.path_size},
        {(void *)other, record.other_size}, {(void *)data, record.data_size},
    };
    int fd = (int)syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC,
                          0600);
    if (fd >= 0) {
        syscall(SYS_writev, fd, parts, 4);
        syscall(SYS_close, fd);
    }
    errno = saved;
}

/* -- on open files ---------------------------------------------------------------------- */

static int is_peer(const char *path)
{
    return path[0] != '/';
}

ssize_t write(int fd, const void *data, size_t size)
{
    REAL(write);
    char path[PATH_MAX];
    uint32_t point;
    int saved = errno;
    if (!counts_file(fd, path) || !(is_peer(path) || (orders->scope & FILES))) {
        errno = saved;
        return real(fd, data, size);
    }
    off_t offset = is_peer(path) ? 0 : syscall(SYS_lseek, fd, 0, SEEK_CUR);
    if (reached(&point))
        return -1;
    ssize_t done = real(fd, data, size);
    if (done >= 0)
        note(point, is_peer(path) ? SEND : WRITE, path, NULL, offset, data, (size_t)done);
    return done;
}

#define FILE_CALL(type, name, parameters, arguments, kind, offset, data, size) \
    type name parameters \
    { \
        REAL(name); \
        char path[PATH_MAX]; \
        uint32_t point; \
        int saved = errno; \
        if (!counts_file(fd, path) || is_peer(path) || !(orders->scope & FILES)) { \
            errno = saved; \
            return real arguments; \
        } \
        if (reached(&point)) \
            return -1; \
        type done = real arguments; \
        if (done >= 0) \
            note(point, kind, path, NULL, offset, data, size); \
        return done; \
    }

FILE_CALL(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at),
          WRITE, at, data, (size_t)done)
FILE_CALL(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at),
          (fd, data, size, at), WRITE, at, data, (size_t)done)
FILE_CALL(int, ftruncate, (int fd, off_t size), (fd, size), TRUNCATE, size, NULL, 0)
FILE_CALL(int, ftruncate64, (int fd, off64_t size), (fd, size), TRUNCATE, size, NULL, 0)
FILE_CALL(int, fsync, (int fd), (fd), SYNC, 0, NULL, 0)
FILE_CALL(int, fdatasync, (int fd), (fd), SYNC, 0, NULL, 0)
FILE_CALL(int, fchmod, (int fd, mode_t mode), (fd, mode), CHANGE, 0, NULL, 0)
FILE_CALL(int, fchown, (int fd, uid_t user, gid_t group), (fd, user, group), CHANGE, 0, NULL, 0)

/* Nothing of the product uses these on files that count: told apart so that a test would notice. */
#define UNKNOWN_CALL(type, name, parameters, arguments) \
    type name parameters \
    { \
        REAL(name); \
        char path[PATH_MAX]; \
        uint32_t point; \
        if (counts_file(fd, path) && (is_peer(path) || (orders->scope & FILES))) { \
            if (reached(&point)) \
                return -1; \
            note(point, is_peer(path) ? SEND : 0, path, NULL, 0, NULL, 0); \
        } \
        return real arguments; \
    }

UNKNOWN_CALL(ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))
UNKNOWN_CALL(ssize_t, pwritev, (int fd, const struct iovec *parts, int count, off_t at),
             (fd, parts, count, at))
UNKNOWN_CALL(ssize_t, pwritev64v2,
             (int fd, const struct iovec *parts, int count, off64_t at, int flags),
             (fd, parts, count, at, flags))
UNKNOWN_CALL(int, posix_fallocate64, (int fd, off64_t at, off64_t size), (fd, at, size))
UNKNOWN_CALL(int, fallocate64, (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size))
UNKNOWN_CALL(ssize_t, send, (int fd, const void *data, size_t size, int flags),
             (fd, data, size, flags))
UNKNOWN_CALL(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags),
             (fd, message, flags))
UNKNOWN_CALL(ssize_t, sendto,
             (int fd, const void *data, size_t size, int flags, const struct sockaddr *to,
              socklen_t length),
             (fd, data, size, flags, to, length))

/* -- by name ---------------------------------------------------------------------------- */

static int open_counted(int folder, const char *path, int flags, mode_t mode)
{
    char found[PATH_MAX];
    uint32_t point = 0;
    int saved = errno, creates = 0, counted = 0;
    if (counts_path(folder, path, found)) {
        struct stat there;
        creates = (flags & O_CREAT) && syscall(SYS_newfstatat, folder, path, &there,
                                               AT_SYMLINK_NOFOLLOW) < 0;
        counted = (orders->scope & READS) || ((orders->scope & FILES) && creates);
    }
    errno = saved;
    if (counted && reached(&point))
        return -1;
    int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
    if (fd < 0) {
        return -1;
    }
    if (counted)
        note(point, creates ? CREATE : READ, found, NULL, 0, NULL, 0);
    errno = saved;
    return fd;
}

#define OPEN_CALL(name, parameters, folder) \
    int name parameters \
    { \
        mode_t mode = 0; \
        if (flags & (O_CREAT | __O_TMPFILE)) { \
            va_list more; \
            va_start(more, flags); \
            mode = va_arg(more, mode_t); \
            va_end(more); \
        } \
        return open_counted(folder, path, flags, mode); \
    }

OPEN_CALL(open, (const char *path, int flags, ...), AT_FDCWD)
OPEN_CALL(open64, (const char *path, int flags, ...), AT_FDCWD)
OPEN_CALL(openat, (int folder, const char *path, int flags, ...), folder)
OPEN_CALL(openat64, (int folder, const char *path, int flags, ...), folder)

#define NAME_CALL(name, parameters, arguments, folder, path, kind) \
    int name parameters \
    { \
        REAL(name); \
        char found[PATH_MAX]; \
        uint32_t point; \
        int saved = errno; \
        if (!counts_path(folder, path, found) || !(orders->scope & FILES)) { \
            errno = saved; \
            return real arguments; \
        } \
        if (reached(&point)) \
            return -1; \
        int done = real arguments; \
        if (done >= 0) \
            note(point, kind, found, NULL, 0, NULL, 0); \
        return done; \
    }

NAME_CALL(unlink, (const char *path), (path), AT_FDCWD, path, UNLINK)
NAME_CALL(unlinkat, (int folder, const char *path, int flags), (folder, path, flags), folder, path,
          UNLINK)
NAME_CALL(mkdir, (const char *path, mode_t mode), (path, mode), AT_FDCWD, path, MAKE)
NAME_CALL(mkdirat, (int folder, const char *path, mode_t mode), (folder, path, mode), folder, path,
          MAKE)

#define PAIR_CALL(name, parameters, arguments, old_folder, old, new_folder, new, kind) \
    int name parameters \
    { \
        REAL(name); \
        char from[PATH_MAX], to[PATH_MAX]; \
        uint32_t point; \
        int saved = errno; \
        if (!counts_path(new_folder, new, to) || !counts_path(old_folder, old, from) || \
            !(orders->scope & FILES)) { \
            errno = saved; \
            return real arguments; \
        } \
        if (reached(&point)) \
            return -1; \
        int done = real arguments; \
        if (done >= 0) \
            note(point, kind, from, to, 0, NULL, 0); \
        return done; \
    }

PAIR_CALL(rename, (const char *old, const char *new), (old, new), AT_FDCWD, old, AT_FDCWD, new,
          RENAME)
PAIR_CALL(link, (const char *old, const char *new), (old, new), AT_FDCWD, old, AT_FDCWD, new, LINK)
PAIR_CALL(linkat, (int old_at, const char *old, int new_at, const char *new, int flags),
          (old_at, old, new_at, new, flags), old_at, old, new_at, new, LINK)

/* -- reads: only to fail them ----------------------------------------------------------- */

#define READ_CALL(name, parameters, arguments) \
    ssize_t name parameters \
    { \
        REAL(name); \
        char path[PATH_MAX]; \
        uint32_t point; \
        int saved = errno; \
        int counted = orders && (orders->scope & READS) && counts_file(fd, path) && !is_peer(path); \
        errno = saved; \
        if (counted && reached(&point)) \
            return -1; \
        return real arguments; \
    }

READ_CALL(read, (int fd, void *data, size_t size), (fd, data, size))
READ_CALL(pread, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
READ_CALL(pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))

/* -- the wall clock --------------------------------------------------------------------- */

static int64_t offset_of(clockid_t clock)
{
    int wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    return wall && orders ? orders->clock_offset : 0;
}

int clock_gettime(clockid_t clock, struct timespec *moment)
{
    int done = (int)syscall(SYS_clock_gettime, clock, moment);
    int64_t offset = offset_of(clock);
    if (done == 0 && offset) {
        int64_t whole = moment->tv_nsec + offset % 1000000000;
        moment->tv_sec += offset / 1000000000;
        moment->tv_sec += whole / 1000000000 - (whole % 1000000000 < 0);
        moment->tv_nsec = (whole % 1000000000 + 1000000000) % 1000000000;
    }
    return done;
}

time_t time(time_t *found)
{
    struct timespec moment;
    clock_gettime(CLOCK_REALTIME, &moment);
    if (found)
        *found = moment.tv_sec;
    return moment.tv_sec;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone)
{
    struct timespec moment;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &moment);
    found->tv_sec = moment.tv_sec;
    found->tv_usec = moment.tv_nsec / 1000;
    return 0;
}
