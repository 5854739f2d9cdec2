#!/bin/sh
# Installs attngen: its own tree under share/, a link to it in bin/, the C headers in include/.
#   tools/install.sh DESTDIR PREFIX
set -eu
cd "$(dirname "$0")/.."
destination=$1$2
share=$destination/share/attngen

# tests/: what the benchmark's judge is made of.
for place in gen templates runtime bench tests/reference tests/fuzz/inputs.c tests/fuzz/inputs.h \
    tests/harness/case_text.lua; do
    find "$place" -type f ! -name '*.pyc' | while read -r file; do
        install -D -m 644 "$file" "$share/$file"
    done
done
install -D -m 755 attngen "$share/attngen"
install -D -m 644 LICENSE "$share/LICENSE"
for header in runtime/include/attngen/*.h; do
    install -D -m 644 "$header" "$destination/include/attngen/$(basename "$header")"
done
mkdir -p "$destination/bin"
ln -sf ../share/attngen/attngen "$destination/bin/attngen"
echo "installed: $destination/bin/attngen"
