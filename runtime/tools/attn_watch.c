/* Runs a program so that it can neither hang nor be left behind.
 *   attn_watch [-b] [-t SECONDS] [-o FILE] -- COMMAND [ARGUMENT...]
 * The program gets a process group of its own and an empty standard input; -o sends both its output
 * streams to FILE. The whole group is told to end, and killed if it does not, after SECONDS, when
 * whoever started attn_watch is gone, and on SIGINT, SIGTERM or SIGHUP. -b writes a line "." to
 * standard output ten times a second, so that a reader learns that time passes and attn_watch that
 * there is a reader; the last line says how the program ended:
 *   exit CODE | signal NUMBER | timeout 0 | stopped NUMBER, then seconds of wall and of CPU time.
 * Exit: the program's code, 124 after a timeout, 127 if it cannot be started, 128 + n on signal n. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    BEAT_MS = 100,
    GRACE_MS = 300,
    EXIT_USAGE = 2,
    EXIT_TIMEOUT = 124,
    EXIT_NOT_STARTED = 127,
    SIGNALLED = 128
};

typedef struct {
    bool beats;
    double limit; /* seconds, 0: none */
    const char *output;
    char **command;
} options;

static int wake_pipe[2];
static volatile sig_atomic_t stop_signal;

/* Both ends of the pipe do not block, and a full pipe wakes just as well. */
static void on_signal(int number)
{
    const int saved = errno;
    if (number != SIGCHLD) {
        stop_signal = number;
    }
    const ssize_t written = write(wake_pipe[1], "", 1);
    (void)written;
    errno = saved;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static bool parse(int argc, char **argv, options *parsed)
{
    int at = 1;
    for (; at < argc && strcmp(argv[at], "--") != 0; at++) {
        if (strcmp(argv[at], "-b") == 0) {
            parsed->beats = true;
        } else if (strcmp(argv[at], "-t") == 0 && at + 1 < argc) {
            char *end;
            parsed->limit = strtod(argv[++at], &end);
            if (*end != '\0' || !(parsed->limit > 0.0)) {
                return false;
            }
        } else if (strcmp(argv[at], "-o") == 0 && at + 1 < argc) {
            parsed->output = argv[++at];
        } else {
            return false;
        }
    }
    parsed->command = argv + at + 1;
    return at + 1 < argc;
}

static bool set_up_signals(void)
{
    if (pipe(wake_pipe) != 0) {
        return false;
    }
    for (int end = 0; end < 2; end++) {
        fcntl(wake_pipe[end], F_SETFL, O_NONBLOCK);
        fcntl(wake_pipe[end], F_SETFD, FD_CLOEXEC);
    }
    struct sigaction action;
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    action.sa_handler = on_signal;
    const int caught[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof caught / sizeof caught[0]; i++) {
        sigaction(caught[i], &action, NULL);
    }
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
    return true;
}

static void run_command(const options *wanted)
{
    /* What this process ignores or catches is not the program's business. */
    signal(SIGPIPE, SIG_DFL);
    setpgid(0, 0);
    const int input = open("/dev/null", O_RDONLY);
    if (input >= 0) {
        dup2(input, STDIN_FILENO);
    }
    if (wanted->output) {
        const int file = open(wanted->output, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        if (file < 0) {
            fprintf(stderr, "attn_watch: %s: %s\n", wanted->output, strerror(errno));
            _exit(EXIT_NOT_STARTED);
        }
        dup2(file, STDOUT_FILENO);
        dup2(file, STDERR_FILENO);
    }
    execvp(wanted->command[0], wanted->command);
    fprintf(stderr, "attn_watch: %s: %s\n", wanted->command[0], strerror(errno));
    _exit(EXIT_NOT_STARTED);
}

static void drain_wake_pipe(void)
{
    char bytes[64];
    while (read(wake_pipe[0], bytes, sizeof bytes) > 0) {
    }
}

/* True while somebody reads the beats. */
static bool beat(const options *wanted)
{
    return !wanted->beats || write(STDOUT_FILENO, ".\n", 2) == 2;
}

typedef enum { ENDED, TIMED_OUT, STOPPED } outcome;

/* Returns when the program has ended (its status in *status) or has to be killed. */
static outcome wait_for(pid_t child, pid_t parent, const options *wanted, int *status)
{
    const double start = now();
    for (;;) {
        struct pollfd waiting = {.fd = wake_pipe[0], .events = POLLIN};
        double pause = BEAT_MS * 1e-3;
        if (wanted->limit > 0.0 && start + wanted->limit - now() < pause) {
            pause = start + wanted->limit - now();
        }
        const int ready = poll(&waiting, 1, pause > 0.0 ? (int)(pause * 1e3) + 1 : 0);
        drain_wake_pipe();
        if (waitpid(child, status, WNOHANG) == child) {
            return ENDED;
        }
        if (stop_signal != 0 || getppid() != parent) {
            return STOPPED;
        }
        if (wanted->limit > 0.0 && now() - start >= wanted->limit) {
            return TIMED_OUT;
        }
        if (ready == 0 && !beat(wanted)) {
            return STOPPED;
        }
    }
}

/* A program that starts others (ninja does) gets the time to end them too. */
static void end_group(pid_t child, int *status)
{
    kill(-child, SIGTERM);
    const double start = now();
    while (waitpid(child, status, WNOHANG) == 0) {
        struct pollfd waiting = {.fd = wake_pipe[0], .events = POLLIN};
        if (now() - start >= GRACE_MS * 1e-3) {
            kill(-child, SIGKILL);
            waitpid(child, status, 0);
            return;
        }
        poll(&waiting, 1, BEAT_MS / 10);
        drain_wake_pipe();
    }
}

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

int main(int argc, char **argv)
{
    options wanted = {0};
    if (!parse(argc, argv, &wanted)) {
        fprintf(stderr, "usage: attn_watch [-b] [-t SECONDS] [-o FILE] -- COMMAND [ARGUMENT...]\n");
        return EXIT_USAGE;
    }
    const pid_t parent = getppid();
    const double start = now();
    if (!set_up_signals()) {
        perror("attn_watch");
        return EXIT_NOT_STARTED;
    }
    const pid_t child = fork();
    if (child < 0) {
        perror("attn_watch");
        return EXIT_NOT_STARTED;
    } else if (child == 0) {
        run_command(&wanted);
    }
    setpgid(child, child); /* whichever of the two comes first */
    int status = 0;
    const outcome end = wait_for(child, parent, &wanted, &status);
    if (end != ENDED) {
        end_group(child, &status);
    }
    kill(-child, SIGKILL); /* what the program has started and left behind */
    const char *word = "exit";
    int number = WIFEXITED(status) ? WEXITSTATUS(status) : 0, code = number;
    if (end == TIMED_OUT) {
        word = "timeout", number = 0, code = EXIT_TIMEOUT;
    } else if (end == STOPPED) {
        word = "stopped", number = stop_signal, code = SIGNALLED + (number ? number : SIGPIPE);
    } else if (WIFSIGNALED(status)) {
        word = "signal", number = WTERMSIG(status), code = SIGNALLED + number;
    }
    if (wanted.beats) {
        printf("%s %d %.6f %.6f\n", word, number, now() - start, cpu_seconds());
    }
    return code;
}
