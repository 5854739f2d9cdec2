#!/bin/sh
# Style and warnings of everything written by hand (generated/ and build/ are not).
#   tools/lint.sh check     luacheck, clang-format, clang-tidy, compiler warnings, house rules
#   tools/lint.sh format    rewrite the C files with clang-format
set -eu
cd "$(dirname "$0")/.."

c_files() {
    find runtime tests examples bench -name '*.[ch]' 2>/dev/null | sort
}

lua_files() {
    echo attngen
    find gen tests tools examples bench generated -name '*.lua' 2>/dev/null | sort
}

failed=0
SKIPPED=77

# check LABEL FUNCTION
check() {
    status=0
    "$2" || status=$?
    case $status in
    0) echo "lint: $1: ok" ;;
    "$SKIPPED") ;; # the function has said why
    *)
        echo "lint: $1: FAILED" >&2
        failed=1
        ;;
    esac
}

# shellcheck disable=SC2046
check_lua() {
    luacheck --quiet --no-color $(lua_files)
}

# Versions of clang-format differ in details; the tree follows this one.
FORMAT_VERSION=14

# shellcheck disable=SC2046
check_format() {
    version=$(clang-format --version | sed 's/.*version \([0-9]*\).*/\1/')
    if [ "$version" != $FORMAT_VERSION ]; then
        echo "lint: clang-format: skipped, the tree is formatted with version $FORMAT_VERSION," \
            "this is $version"
        return $SKIPPED
    fi
    clang-format --dry-run -Werror $(c_files)
}

WARNINGS="-std=c11 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"

check_warnings() {
    for file in $(find runtime -name '*.c' | sort); do
        for compiler in gcc clang; do
            if command -v $compiler >/dev/null; then
                # shellcheck disable=SC2086
                $compiler $WARNINGS -Iruntime/include -fsyntax-only \
                    "$file" || return 1
            fi
        done
    done
}

TIDY_CHECKS="-*,bugprone-*,clang-analyzer-*,-bugprone-easily-swappable-parameters"
TIDY_CHECKS="$TIDY_CHECKS,-bugprone-reserved-identifier"
# memcpy of pointers is how object and function pointers of unknown type are moved in ISO C.
TIDY_CHECKS="$TIDY_CHECKS,-bugprone-multi-level-implicit-pointer-conversion"
TIDY_CHECKS="$TIDY_CHECKS,-clang-analyzer-security.insecureAPI.DeprecatedOrUnsafeBufferHandling"

check_tidy() {
    # shellcheck disable=SC2016
    find runtime -name '*.c' | sort | xargs -n 4 -P 2 sh -c '
        clang-tidy --quiet --warnings-as-errors="*" --checks="$0" "$@" \
            -- -std=c11 -Iruntime/include 2>/dev/null' "$TIDY_CHECKS"
}

# Words that say that something is unfinished.
check_words() {
    ! grep -rnwE 'TO''DO|FIX''ME|XX''X|HA''CK|not impl''emented' \
        --include='*.lua' --include='*.[ch]' --include='*.sh' --include='*.md' --include='*.in' \
        attngen gen runtime templates tests tools examples bench docs Makefile README.md 2>/dev/null
}

case ${1:-} in
check)
    check "luacheck" check_lua
    check "clang-format" check_format
    check "compiler warnings" check_warnings
    check "clang-tidy" check_tidy
    check "unfinished work" check_words
    exit $failed
    ;;
format)
    # shellcheck disable=SC2046
    clang-format -i $(c_files)
    ;;
*)
    echo "usage: tools/lint.sh check|format" >&2
    exit 2
    ;;
esac
