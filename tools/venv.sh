#!/bin/sh
# Makes or repairs .venv and installs one set of packages; quick when there is nothing to do.
#
#   usage: [PYTHON=python3.12] [TORCH=torch==2.13.0] sh tools/venv.sh verify|dev|torch
#
#   verify   the verifier alone: no torch, no CUDA, no development tools
#   dev      the verifier, the trainer, tests and linters
#   torch    dev, and the CPU build of torch that some tests compare with
#
# A finished set leaves a stamp that holds what it depends on (this path, the Python, pyproject.toml): a moved folder, another
# Python or an edited pyproject.toml installs again, and an interrupted run leaves no stamp. So does a `pip install .` by hand:
# it puts a copy of auditkit in the place of this checkout, without the bundled runs and blind to later edits.
set -eu
cd "$(dirname "$0")/.."

want=${1:?usage: tools/venv.sh verify|dev|torch}
torch=${TORCH:-torch==2.13.0}
venv=.venv
here=$(pwd -P)
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() { printf '%s\n' "$*" >&2; }

usable() {
    "$1" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        usable "$PYTHON" && { printf '%s\n' "$PYTHON"; return; }
        say "error: PYTHON=$PYTHON is not Python 3.11 or newer with the modules venv and ensurepip"
        return 1
    fi
    for python in python3 python3.14 python3.13 python3.12 python3.11 python; do
        usable "$python" && { printf '%s\n' "$python"; return; }
    done
    say "error: no Python 3.11 or newer with the modules venv and ensurepip was found"
    say "hint: install one (Debian, Ubuntu: python3 and python3-venv; macOS: brew install python), or name it:"
    say "      make PYTHON=/path/to/python3.12 ..."
    return 1
}

version_of() { "$1" -c 'import sys; print(sys.version, sys.base_prefix)' 2>/dev/null || true; }

# The .venv that is there can be used: not moved, not half made, its Python not removed, and the one asked for.
healthy() {
    [ -z "${PYTHON:-}" ] || [ "$(version_of "$PYTHON")" = "$(version_of $venv/bin/python)" ] || return 1
    [ "$(cat $venv/.home 2>/dev/null || printf '%s' "$here")" = "$here" ] &&
        $venv/bin/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

make_venv() {
    python=$(find_python)
    [ ! -e $venv ] || say "making .venv again: it was unfinished or moved, its Python is gone, or another is asked for"
    rm -rf $venv
    "$python" -m venv $venv
    printf '%s' "$here" >$venv/.home
}

fingerprint() {
    printf '%s\n' "$here" "$1"
    $venv/bin/python -c 'import sys; print(sys.version)'
    cksum <pyproject.toml
}

# auditkit is imported from here: read from the files of an editable install, since starting Python to ask takes longer.
from_here() {
    for packages in $venv/lib/python*/site-packages; do
        [ ! -e "$packages/auditkit/__init__.py" ] && cat "$packages"/*auditkit_verifier*.pth 2>/dev/null | grep -qxF "$here" && return 0
    done
    return 1
}

finished() { [ -f "$venv/.installed-$1" ] && from_here && [ "$(fingerprint "$1")" = "$(cat "$venv/.installed-$1")" ]; }

finish() { fingerprint "$1" >"$venv/.installed-$1"; }

pip_install() { $venv/bin/python -m pip install --quiet --quiet "$@"; }

install_project() {
    case $1 in
        verify) what="the verifier" from=. ;;
        dev) what="the verifier, the trainer and the development tools" from='.[dev]' ;;
    esac
    say "installing $what into .venv (only the first time, or after a change)"
    pip_install --editable "$from"
}

# An unfinished .venv may hold half a package that pip can neither use nor remove: then start over once.
ensure_project() {
    ! finished "$1" || return 0
    was_unfinished=$unfinished
    if ! install_project "$1"; then
        [ "$was_unfinished" = yes ] || { say "error: pip failed (above)"; return 1; }
        make_venv
        install_project "$1"
    fi
    finish "$1"
}

has_torch() {
    $venv/bin/python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'
}

# The index's Linux build of torch brings gigabytes of CUDA; PyTorch's own CPU index has a build without.
ensure_torch() {
    ! { finished torch && has_torch; } || return 0
    if ! has_torch; then
        say "installing $torch into .venv (only the first time; the tests compare with it)"
        if [ "$(uname -s)" = Linux ]; then
            pip_install --retries 0 --no-deps --index-url https://download.pytorch.org/whl/cpu "$torch" 2>/dev/null || true
        fi
        if ! pip_install "$torch"; then
            say "warning: $torch could not be installed: the tests that compare with torch cannot run here"
            case ${CI:-} in '' | 0 | false) return 0 ;; *) return 1 ;; esac
        fi
    fi
    finish torch
}

unfinished=no
if ! healthy; then
    make_venv
elif [ -f $venv/.home ] && ! ls $venv/.installed-* >/dev/null 2>&1; then
    unfinished=yes
fi

case $want in
    verify) finished dev || ensure_project verify ;;
    dev) ensure_project dev ;;
    torch) ensure_project dev && ensure_torch ;;
    *) say "error: unknown set $want"; exit 2 ;;
esac
