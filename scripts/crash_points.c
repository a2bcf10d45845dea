// Preloaded into a training process: what it does to files below `root` is counted, and at one point something happens.
// Calls of Python, torch, Arrow and safetensors all pass through here, as all of them call libc.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NOTHING, KILL, INTERRUPT, ERROR };
static char root[PATH_MAX];
static long count, at;
static int mode, error, names = -1;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

// From now on: point number `wanted` (from 1) kills, interrupts, or fails once with `number`. Names go to `list`.
void crash_points_arm(const char *folder, long wanted, int what, int number, const char *list) {
    names = list ? REAL(open)(list, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
    snprintf(root, sizeof root, "%s", folder);
    count = 0, at = wanted, mode = what, error = number;
}

long crash_points_count(void) { return count; }

static int below(const char *path) {
    size_t length = strlen(root);
    return length && !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

static int of_descriptor(int fd, char *path) {
    char link[64];
    if (!root[0] || fd == names) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

static int of_name(int folder, const char *name, char *path) {
    if (!root[0]) return 0;
    if (name[0] == '/') return snprintf(path, PATH_MAX, "%s", name), below(path);
    char parent[PATH_MAX];
    if (folder == AT_FDCWD ? !getcwd(parent, sizeof parent) : !of_descriptor(folder, parent)) return 0;
    return snprintf(path, PATH_MAX, "%.2000s/%.2000s", parent, name), below(path);
}

// Whether the call that is about to be made is the one that fails.
static int fails(const char *call, const char *path) {
    long number = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    if (names >= 0) dprintf(names, "%s %s\n", call, path + strlen(root));
    if (number != at || mode != ERROR) return 0;
    errno = error;
    return 1;
}

// After a call. The number was taken before it: this thread's own is not kept, which no single-threaded writer notices.
static void passed(void) {
    if (count != at || mode == NOTHING || mode == ERROR) return;
    int saved = errno;
    at = 0;
    kill(getpid(), mode == KILL ? SIGKILL : SIGINT);
    errno = saved;
}

#define POINT(type, name, parameters, arguments, found)                 \
    type name parameters {                                              \
        char path[PATH_MAX];                                            \
        if (!(found)) return REAL(name) arguments;                      \
        if (fails(#name, path)) return -1;                              \
        type result = REAL(name) arguments;                             \
        passed();                                                       \
        return result;                                                  \
    }

POINT(ssize_t, write, (int fd, const void *b, size_t n), (fd, b, n), of_descriptor(fd, path))
POINT(ssize_t, pwrite64, (int fd, const void *b, size_t n, off64_t o), (fd, b, n, o), of_descriptor(fd, path))
POINT(ssize_t, writev, (int fd, const struct iovec *v, int n), (fd, v, n), of_descriptor(fd, path))
POINT(ssize_t, sendfile64, (int out, int in, off64_t *o, size_t n), (out, in, o, n), of_descriptor(out, path))
POINT(int, fsync, (int fd), (fd), of_descriptor(fd, path))
POINT(int, fdatasync, (int fd), (fd), of_descriptor(fd, path))
POINT(int, ftruncate64, (int fd, off64_t n), (fd, n), of_descriptor(fd, path))
POINT(int, rename, (const char *a, const char *b), (a, b), of_name(AT_FDCWD, b, path))
POINT(int, renameat, (int c, const char *a, int d, const char *b), (c, a, d, b), of_name(d, b, path))
POINT(int, renameat2, (int c, const char *a, int d, const char *b, unsigned f), (c, a, d, b, f), of_name(d, b, path))
POINT(int, linkat, (int c, const char *a, int d, const char *b, int f), (c, a, d, b, f), of_name(d, b, path))
POINT(int, unlink, (const char *a), (a), of_name(AT_FDCWD, a, path))
POINT(int, unlinkat, (int d, const char *a, int flags), (d, a, flags), of_name(d, a, path))
POINT(int, rmdir, (const char *a), (a), of_name(AT_FDCWD, a, path))
POINT(int, mkdir, (const char *a, mode_t m), (a, m), of_name(AT_FDCWD, a, path))

#define OPEN(name)                                                                                          \
    int name(const char *a, int flags, ...) {                                                               \
        va_list list;                                                                                       \
        va_start(list, flags);                                                                              \
        mode_t m = flags & O_CREAT ? va_arg(list, mode_t) : 0;                                              \
        va_end(list);                                                                                       \
        char path[PATH_MAX];                                                                                \
        if (!(flags & (O_CREAT | O_TRUNC)) || !of_name(AT_FDCWD, a, path)) return REAL(name)(a, flags, m);  \
        if (fails(#name, path)) return -1;                                                                  \
        int result = REAL(name)(a, flags, m);                                                               \
        passed();                                                                                           \
        return result;                                                                                      \
    }
OPEN(open)
OPEN(open64)
