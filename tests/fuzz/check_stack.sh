#!/bin/sh
# A call must need no more stack than the manifest promises.
#   usage: check_stack.sh STACK-USAGE-FILE SOURCE BYTES
# Adds the frames that the compiler reports along the calls that the source makes, and fails when
# the deepest chain exceeds BYTES. A function that was inlined everywhere has no frame of its own;
# of several copies the largest counts.
awk -v most="$3" '
    function deepest(name,    count, list, i, best, depth) {
        if (name in known)
            return known[name]
        best = 0
        count = split(calls[name], list, " ")
        for (i = 1; i <= count; i++) {
            depth = list[i] == name ? 0 : deepest(list[i])
            if (depth > best)
                best = depth
        }
        return known[name] = best + frame[name]
    }
    FNR == NR {
        name = $1
        sub(/.*:/, "", name)
        sub(/\..*/, "", name) # foo.constprop.0
        if ($2 + 0 > frame[name] + 0)
            frame[name] = $2
        frames++
        next
    }
    /^[A-Za-z].*\(/ {
        line = $0
        sub(/\(.*/, "", line)
        sub(/.*[^A-Za-z0-9_]/, "", line)
        current = line
        defined[current] = 1
        next
    }
    /^[ \t]/ && current != "" {
        line = $0
        while (match(line, /[A-Za-z_][A-Za-z0-9_]*\(/)) {
            name = substr(line, RSTART, RLENGTH - 1)
            if (name in defined && index(" " calls[current] " ", " " name " ") == 0)
                calls[current] = calls[current] " " name
            line = substr(line, RSTART + RLENGTH)
        }
    }
    END {
        worst = 0
        for (name in defined) {
            depth = deepest(name)
            if (depth > worst)
                worst = depth
        }
        if (frames == 0 || worst > most) {
            print FILENAME ": a call may need " worst " bytes of stack, promised: " most > "/dev/stderr"
            exit 1
        }
    }' "$1" "$2"
