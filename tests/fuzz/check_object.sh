#!/bin/sh
# A kernel object must need no symbol at all and have no writable data.
#   usage: check_object.sh NM SIZE OBJECT [SYMBOL-IT-MAY-NEED ...]
nm=$1 size=$2 object=$3
shift 3
bad=$("$nm" -u "$object" | awk '{ print $NF }')
for allowed in "$@"; do
    bad=$(printf '%s\n' "$bad" | grep -vx "$allowed")
done
if [ -n "$bad" ]; then
    echo "$object: undefined symbols: $bad" >&2
    exit 1
fi
# .data.rel.ro holds the descriptor's function pointers and is read-only once loaded.
"$size" -A "$object" | awk -v object="$object" '
    $1 ~ /^\.(data|bss|tdata|tbss)/ && $1 !~ /^\.data\.rel\.ro/ && $2 > 0 {
        print object ": writable section " $1 " of " $2 " bytes" > "/dev/stderr"; bad = 1
    }
    END { exit bad }'
