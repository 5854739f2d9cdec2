/* Runs a list of kernel checks without a test framework: for emulators, sanitizers and the fuzzer.
 *
 * usage: check_main LIST [--mutant N] [--timeout SECONDS]
 * Prints a line per kernel; ends with 1 when any failed, 2 on bad usage. */
#include <stdlib.h>
#include <string.h>

#include "fuzz/arena.h"
#include "fuzz/check.h"

int main(int argc, char **argv)
{
    int mutant = 0, failed = 0;
    for (int i = 2; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--mutant") == 0) {
            mutant = atoi(argv[i + 1]);
        } else if (strcmp(argv[i], "--timeout") == 0) {
            arena_set_timeout((unsigned)atoi(argv[i + 1]));
        } else {
            fprintf(stderr, "unknown option %s\n", argv[i]);
            return 2;
        }
    }
    FILE *list = argc > 1 ? fopen(argv[1], "r") : NULL;
    if (list == NULL) {
        fprintf(stderr, "usage: check_main LIST [--mutant N] [--timeout SECONDS]\n");
        return 2;
    }
    char line[2048], message[256];
    while (fgets(line, sizeof line, list) != NULL) {
        check_job job;
        check_result result;
        if (check_parse(&job, line, message, sizeof message) != 0) {
            fprintf(stderr, "%s\n", message);
            fclose(list);
            return 2;
        }
        job.mutant = mutant;
        failed |= check_run(&job, &result) != 0;
        check_print(stdout, &job, &result);
        fflush(stdout);
    }
    fclose(list);
    return failed;
}
