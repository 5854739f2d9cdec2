#!/bin/sh
# How kernels scale over threads, beside two pinned FMA loops in the same run.
#
#   sh bench/scaling.sh [THREADS [CONFIG…]]     default: 2 threads, bench/shapes
#
# Run it while nothing else runs. Everything it makes goes to build/scaling/. Exit status 1 when a
# kernel could not be built or its bits depend on the number of threads.
set -eu
cd "$(dirname "$0")/.."

threads=${1:-2}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- bench/shapes/*.lua
out=build/scaling
mkdir -p "$out"
cc=${CC:-gcc}
include="-Iruntime/include -Ibench"

# the last vector ISA this machine runs, with what machine.c wants to know of it
isa=$(lua5.4 -e '
package.path = "./?.lua;./?/init.lua;" .. package.path
local data = require("gen.isa").get((require("gen.host").native_isa()))
print(data.name, data.lanes, data.registers, table.concat(data.flags, " "))')
name=$(echo "$isa" | cut -f 1)
lanes=$(echo "$isa" | cut -f 2)
registers=$(echo "$isa" | cut -f 3)
flags=$(echo "$isa" | cut -f 4)

# shellcheck disable=SC2086
$cc -std=c11 -O3 -ffp-contract=fast -fno-tree-vectorize -fno-tree-slp-vectorize $flags \
    -DLANES="$lanes" -DREGISTERS="$registers" $include -c bench/machine.c -o "$out/machine.o"
# shellcheck disable=SC2086
$cc -std=c11 -O2 -D_GNU_SOURCE $include -Iruntime/src bench/scaling.c bench/samples.c \
    "$out/machine.o" runtime/src/edge/*.c runtime/src/host/threads.c runtime/src/host/cpu.c \
    runtime/src/host/signature.c runtime/src/host/status.c -lpthread -ldl -lm -o "$out/scaling"

failed=0
for config; do
    id=$(basename "$config" .lua)
    dir=$out/$id
    rm -rf "$dir"
    if ! ./attngen --quiet emit "$config" --set "isa=$name" -o "$dir" >/dev/null; then
        failed=1
        continue
    fi
    manifest=$(ls "$dir"/*.json)
    lua5.4 examples/flags.lua "$manifest" "$cc" >"$dir/flags"
    objects=
    while read -r source source_flags; do
        object=$dir/$(basename "$source" .c).o
        # shellcheck disable=SC2086
        $cc $source_flags -fPIC -c "$source" -o "$object"
        objects="$objects $object"
    done <"$dir/flags"
    # shellcheck disable=SC2086
    $cc -shared -o "$dir/kernel.so" $objects
    "$out/scaling" "$dir/kernel.so" "$(basename "$manifest" .json)" "$threads" || failed=1
done
exit $failed
