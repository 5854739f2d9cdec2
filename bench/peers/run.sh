#!/bin/sh
# What `make bench-peers` does: installs the other libraries into build/peers/venv (once, about 2 GB),
# then measures. Arguments are those of `python3 -m bench.peers`, see --help.
set -eu
cd "$(dirname "$0")/../.."
venv=build/peers/venv
sh bench/peers/setup.sh "$venv"
exec "$venv/bin/python" -m bench.peers "$@"
