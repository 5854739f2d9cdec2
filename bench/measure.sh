#!/bin/sh
# Times the kernels of one config against the FMA peak measured in the same process.
#
#   sh bench/measure.sh [CONFIG [ISA…]]     default: bench/minilm.lua with every ISA this CPU runs
#
# Each of gcc and clang that is installed takes a turn, three rounds, pinned to one core where taskset
# exists. Run it while nothing else runs. Everything it makes goes to build/bench/.
set -eu
cd "$(dirname "$0")/.."

config=${1:-bench/minilm.lua}
[ $# -gt 0 ] && shift
isas=${*:-$(lua5.4 bench/runnable.lua)}
out=build/bench
mkdir -p "$out"
include="-Iruntime/include -Ibench"
pin=
if command -v taskset >/dev/null 2>&1; then pin="taskset -c 0"; fi

lscpu 2>/dev/null | sed -n 's/^Model name: */CPU: /p' || true
runs=$out/runs
: >"$runs"
for isa in $isas; do
    ./attngen --quiet emit "$config" --set "isa=$isa" -o "$out/$isa" >/dev/null
    flops=$(./attngen plan "$config" --set "isa=$isa" --json | lua5.4 bench/flops.lua)
    manifest=$(ls "$out/$isa"/*.json)
    name=$(basename "$manifest" .json)
    for cc in gcc clang; do
        command -v "$cc" >/dev/null 2>&1 || continue
        objects=
        # shellcheck disable=SC2086
        lua5.4 examples/flags.lua "$manifest" "$cc" >"$out/flags"
        while read -r source flags; do
            object=$out/$isa/$(basename "$source" .c)-$cc.o
            # shellcheck disable=SC2086
            $cc $flags -fPIC -c "$source" -o "$object"
            objects="$objects $object"
        done <"$out/flags"
        kernel_flags=$(sed -n "s,^[^ ]*/$name.c ,,p" "$out/flags")
        # shellcheck disable=SC2086
        $cc -shared -o "$out/$isa/$name-$cc.so" $objects
        # shellcheck disable=SC2086
        $cc $kernel_flags -Ibench -c bench/peak.c -o "$out/$isa/peak-$cc.o"
        # shellcheck disable=SC2086
        $cc -std=c11 -O2 -D_POSIX_C_SOURCE=200809L $include bench/measure.c \
            "$out/$isa/peak-$cc.o" -o "$out/$isa/measure-$cc" -ldl -lm
        echo "$cc $out/$isa/measure-$cc $out/$isa/$name-$cc.so $name $flops" >>"$runs"
        echo "$cc: $($cc --version | head -n 1)"
    done
done
for round in 1 2 3; do
    echo "round $round"
    while read -r cc program library name flops; do
        # shellcheck disable=SC2086
        printf '  %-6s %s ' "$cc" "$name"
        $pin "$program" "$library" "$name" "$flops"
    done <"$runs"
done
