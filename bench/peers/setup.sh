#!/bin/sh
# Makes the virtual environment of `make bench-peers` and installs what can be had, each library by
# itself: one that cannot be installed is named and left out, the next run tries again.
#
#   bench/peers/setup.sh VENV        $PYTHON chooses the interpreter
set -eu
venv=$1
python=${PYTHON:-python3}
log=$venv/pip.log

if ! [ -x "$venv/bin/python" ]; then
    "$python" -m venv "$venv"
fi
# numpy first: a pinned build of one library must not be replaced by the next one's wish.
for packages in numpy "torch==2.13.0" "onnxruntime onnx" openvino "mkl mkl-include" scipy-openblas32; do
    stamp=$venv/installed-$(echo "$packages" | tr -c 'a-z0-9.\n' '_')
    if [ -e "$stamp" ]; then
        continue
    fi
    echo "bench-peers: installing $packages into $venv" >&2
    # shellcheck disable=SC2086
    if "$venv/bin/pip" install --quiet --retries 1 $packages >"$log" 2>&1; then
        touch "$stamp"
    else
        echo "bench-peers: $packages cannot be installed: $(tail -n 1 "$log")" >&2
    fi
done
