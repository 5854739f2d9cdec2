#!/bin/sh
# Installs the Debian or Ubuntu packages that one make target needs: says so first, once, and only
# when something is missing. Without root it prints the line to run and stops.
#
#   tools/setup.sh [--print] GROUP...     groups: bench peers demo minilm test lint check
#
# --print only says what is missing. Needs nothing but sh and dpkg/apt.
set -eu

log=${TMPDIR:-/tmp}/attngen-setup.$$.log

# "a|b": any of them will do; the first one that the release has is installed.
packages_of() {
    case $1 in
    demo)
        echo "lua5.4 lua-argparse lua-dkjson lua-filesystem gcc libc6-dev libjansson-dev" \
            "libopenblas-dev"
        ;;
    bench)
        echo "$(packages_of demo) clang ninja-build"
        ;;
    peers)
        echo "$(packages_of bench) g++ python3 python3-dev python3-venv"
        ;;
    minilm)
        echo "$(packages_of demo) python3 python3-venv"
        ;;
    test)
        echo "$(packages_of demo) lua-unit g++ clang $(clang_runtime)" \
            "libcriterion-dev libsimde-dev ninja-build valgrind binutils locales python3" \
            "$(cross_packages)"
        ;;
    lint)
        echo "lua5.4 lua-argparse lua-dkjson lua-filesystem lua-check gcc libc6-dev" \
            "clang-format clang-tidy libjansson-dev libcriterion-dev libopenblas-dev"
        ;;
    check)
        echo "$(packages_of test) $(packages_of lint)"
        ;;
    *)
        echo "tools/setup.sh: no package group $1" >&2
        exit 2
        ;;
    esac
}

# Arm code runs as it is on an Arm machine.
cross_packages() {
    case $(dpkg --print-architecture) in
    arm64) ;;
    *) echo "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user|qemu-user-static" ;;
    esac
}

# The sanitizers' and libFuzzer's library is named after clang's version in some releases.
clang_runtime() {
    present=$(echo "$installed" | sed -n '/^libclang-rt-.*dev$/{p;q}')
    if [ -n "$present" ]; then
        echo "$present"
        return
    fi
    version=$(apt-cache depends clang 2>/dev/null |
        sed -n 's/.*Depends: clang-\([0-9][0-9]*\)$/\1/p' | sed 1q)
    if [ -z "$version" ]; then
        echo "libclang-rt-dev"
    elif is_available "libclang-rt-$version-dev"; then
        echo "libclang-rt-$version-dev"
    else
        echo "libclang-common-$version-dev"
    fi
}

is_installed() {
    case "
$installed
" in
    *"
$1
"*) ;;
    *) return 1 ;;
    esac
}

is_available() {
    apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [^(]'
}

# Of "a|b": nothing when one is installed, else the name to install.
missing_of() {
    first=
    for name in $(echo "$1" | tr '|' ' '); do
        if is_installed "$name"; then
            return
        fi
        if [ -z "$first" ] && is_available "$name"; then
            first=$name
        fi
    done
    echo "${first:-${1%%|*}}"
}

missing_packages() {
    for group in "$@"; do
        for package in $(packages_of "$group"); do
            missing_of "$package"
        done
    done | awk '!seen[$0]++' | tr '\n' ' ' | sed 's/ $//'
}

# What apt printed, only when it failed.
quietly() {
    if ! "$@" >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        echo "attngen: failed: $*" >&2
        exit 1
    fi
    rm -f "$log"
}

has_lists() {
    ls /var/lib/apt/lists/*Packages* >/dev/null 2>&1
}

print_only=no
if [ "${1:-}" = --print ]; then
    print_only=yes
    shift
fi
if ! command -v dpkg-query >/dev/null 2>&1 || ! command -v apt-get >/dev/null 2>&1; then
    echo "attngen: not a Debian or Ubuntu system; these packages (Debian's names) are taken as" \
        "installed: $(for group in "$@"; do packages_of "$group"; done 2>/dev/null | tr '\n' ' ')" >&2
    exit 0
fi
# shellcheck disable=SC2016
installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' | sed -n 's/^installed //p' | sort -u)
missing=$(missing_packages "$@")
if [ -z "$missing" ]; then
    exit 0
fi
if [ "$print_only" = yes ]; then
    echo "$missing"
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    echo "attngen: some Debian packages are missing. Run this once, then try again:" >&2
    echo "    sudo apt-get install --no-install-recommends $missing" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
echo "attngen: installing the Debian packages that are missing: $missing" >&2
if ! has_lists; then
    quietly apt-get update
    missing=$(missing_packages "$@") # names can be resolved only now
fi
# shellcheck disable=SC2086
quietly apt-get install -y --no-install-recommends $missing
