#!/bin/sh
# Fuzzes the runtime's file readers: every tests/fuzz_readers/fuzz_NAME.c is a libFuzzer target,
# built with the address and undefined-behaviour sanitizers, started from the inputs in
# tests/fuzz_readers/corpus_NAME.
#   tools/fuzz_readers.sh [SECONDS]      for each target, 30 unless given
# What it finds goes to build/fuzz_readers/fuzz_NAME; an input that breaks a reader ends it with status 1.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-30}
case $seconds in
*[!0-9]* | 0*)
    echo "fuzz_readers: takes a number of seconds from 1, got '$seconds'" >&2
    exit 2
    ;;
esac
flags="-std=c11 -g -O1 -fno-omit-frame-pointer -fsanitize=fuzzer,address,undefined"
flags="$flags -fno-sanitize-recover=all -Iruntime/include -Iruntime/src/host"

if ! command -v clang >/dev/null; then
    echo "fuzz_readers: no clang; install it with: apt-get install clang" >&2
    exit 1
fi
count=0
for source in tests/fuzz_readers/*.c; do
    [ -e "$source" ] || continue
    name=$(basename "$source" .c)
    work=build/fuzz_readers/$name
    corpus=tests/fuzz_readers/corpus_${name#fuzz_}
    mkdir -p "$work/corpus"
    echo "fuzz_readers: building $name"
    # shellcheck disable=SC2086
    clang $flags "$source" runtime/src/edge/*.c runtime/src/host/*.c -o "$work/target" \
        -ljansson -ldl -pthread -lm
    echo "fuzz_readers: running $name for $seconds s"
    # The first directory receives new inputs, the second is the one in the repository.
    if ! "$work/target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -artifact_prefix="$work/" -print_final_stats=1 "$work/corpus" "$corpus" \
        >"$work/log" 2>&1; then
        tail -n 40 "$work/log" >&2
        echo "fuzz_readers: $name FAILED; the input is in $work, the whole log is $work/log" >&2
        exit 1
    fi
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log")
    echo "fuzz_readers: $name: $runs inputs, none broke it"
    count=$((count + 1))
done
if [ "$count" = 0 ]; then
    echo "fuzz_readers: no targets in tests/fuzz_readers" >&2
    exit 1
fi
