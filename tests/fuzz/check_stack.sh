#!/bin/sh
# A call must need no more stack than the manifest promises.
#   usage: check_stack.sh STACK-USAGE-FILE BYTES
# Calls nest six deep at most (entry, run_phase, phase, block, stage, exact path): the six largest
# frames of the object are a bound for any of them.
sort -t "$(printf '\t')" -k 2 -n -r "$1" | head -n 6 | awk -F '\t' -v file="$1" -v most="$2" '
    { sum += $2 }
    END {
        if (NR == 0 || sum > most) {
            print file ": a call may need " sum + 0 " bytes of stack, promised: " most > "/dev/stderr"
            exit 1
        }
    }'
