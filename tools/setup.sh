#!/bin/sh
# setup.sh VENV REQUIREMENTS: what a bare Debian-like machine lacks, then a Python environment in VENV.
#
# System packages are installed when this user may; otherwise one sentence says what to install.
set -eu

venv=${1:?usage: setup.sh VENV REQUIREMENTS}
requirements=${2:?usage: setup.sh VENV REQUIREMENTS}

absent=""
need() { command -v "$1" >/dev/null 2>&1 || absent="$absent $2"; }
need cc gcc
need cmake cmake
need nasm nasm
need python3 python3
python3 -c 'import ensurepip' 2>/dev/null || command -v uv >/dev/null 2>&1 || absent="$absent python3-venv"
if [ -n "$absent" ]; then
    as_root=""
    [ "$(id -u)" = 0 ] || as_root="sudo -n"
    if command -v apt-get >/dev/null 2>&1 && $as_root true 2>/dev/null; then
        echo "installing$absent" >&2
        # shellcheck disable=SC2086  # one word for each package
        { $as_root apt-get update -qq && $as_root apt-get install -y -qq --no-install-recommends $absent; } >&2
    else
        echo "error: please install these packages with your system's package manager:$absent" >&2
        exit 2
    fi
fi
if ! command -v cargo >/dev/null 2>&1; then
    echo "error: cargo is not installed; see https://rustup.rs for Rust 1.95 or newer" >&2
    exit 2
fi
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "error: Python 3.10 or newer is needed, found $(python3 --version)" >&2
    exit 2
fi

uv=$(command -v uv || true)
if [ -z "$uv" ]; then
    # An environment of its own for uv: the system's Python may be closed to pip.
    [ -x "$venv-uv/bin/uv" ] || { python3 -m venv "$venv-uv" && "$venv-uv/bin/pip" install -q uv==0.13.7; }
    uv="$venv-uv/bin/uv"
fi
[ -x "$venv/bin/python" ] || "$uv" venv --quiet --python "$(command -v python3)" "$venv"
VIRTUAL_ENV=$(cd "$venv" && pwd) "$uv" pip install --quiet -r "$requirements"
touch "$venv/.ready"
