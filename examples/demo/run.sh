#!/bin/sh
# Generates the demo's kernel, compiles it with the flags its manifest names, builds the demo around
# it and runs it. Everything it makes goes to build/demo/.
#
#   examples/demo/run.sh          $CC chooses the compiler
#
# The model's weights are in the repository; train.py made them.
set -eu
cd "$(dirname "$0")/../.."

CC=${CC:-cc}
demo=examples/demo
out=build/demo
include="-Iruntime/include -I$out -I$demo"
warnings="-std=c11 -D_POSIX_C_SOURCE=200809L -Wall -Wextra"

case $($CC --version 2>&1) in
*clang*) kind=clang ;;
*) kind=gcc ;;
esac
case $(uname -m) in
x86_64 | amd64) isa='["avx512","avx2","scalar"]' ;;
aarch64 | arm64) isa='["neon","scalar"]' ;;
*) isa='["scalar"]' ;;
esac

mkdir -p "$out/objects"
rm -f "$out"/objects/*.o

echo "1. Generate: attngen emit $demo/demo.lua --set isa=$isa"
./attngen --quiet emit "$demo/demo.lua" --set "isa=$isa" -o "$out" >/dev/null

echo "2. Compile:  the bundle with the flags from its manifest, the runtime, the demo ($CC)"
# shellcheck disable=SC2086
lua5.4 examples/flags.lua "$out/recall.json" "$kind" | while read -r source flags; do
    $CC $flags -c "$source" -o "$out/objects/$(basename "$source" .c).o"
done
# shellcheck disable=SC2086
for source in runtime/src/edge/*.c runtime/src/host/*.c "$demo"/*.c; do
    optimize=-O2
    if [ "$source" = "$demo/layer_blas.c" ]; then
        optimize="-O3 -march=native -ffast-math"
    fi
    $CC $warnings $optimize $include -c "$source" -o "$out/objects/$(basename "$source" .c).o"
done
$CC "$out"/objects/*.o -o "$out/demo" -lopenblas -ljansson -pthread -lm

echo "3. Check:    $out/demo check $demo/recall.safetensors $out/attention.svg"
echo
"$out/demo" check "$demo/recall.safetensors" "$out/attention.svg"

# OpenBLAS chooses its own core, since a forced one would slow it down; where its own choice does
# not work, the forced one is what there is to compare with.
echo
echo "4. Measure:  $out/demo time $demo/recall.safetensors"
echo
if ! env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE "$out/demo" time "$demo/recall.safetensors"; then
    [ -n "${OPENBLAS_CORETYPE:-}" ]
    echo "Once more with OPENBLAS_CORETYPE=$OPENBLAS_CORETYPE, as it is set here:"
    "$out/demo" time "$demo/recall.safetensors"
fi
