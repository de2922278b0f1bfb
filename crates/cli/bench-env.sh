#!/bin/sh
# bench-env.sh DIR: a Python environment in DIR with every loader that `forebay bench` knows.
#
# torch and torchvision must install; any other loader that cannot is named, and the bench goes on
# without it. Versions are those of bench-requirements.txt.
set -eu

dir=${1:?usage: bench-env.sh DIR}
requirements=$(dirname "$0")/bench-requirements.txt

# FFCV compiles against OpenCV and libjpeg-turbo.
libraries="build-essential pkg-config libopencv-dev libturbojpeg0-dev"

if ! command -v uv >/dev/null; then
    echo "error: uv is not installed" >&2
    echo "hint: \`pip install uv\`, or see https://docs.astral.sh/uv/" >&2
    exit 2
fi

absent=""
for library in $libraries; do
    dpkg -s "$library" >/dev/null 2>&1 || absent="$absent $library"
done
if [ -n "$absent" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        # shellcheck disable=SC2086  # one word for each package
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends $absent; } >&2 ||
            echo "warning: could not install$absent; FFCV may be missing" >&2
    else
        echo "warning: FFCV needs these system packages:$absent" >&2
    fi
fi

[ -x "$dir/bin/python" ] || uv venv --quiet --python 3.11 "$dir"
VIRTUAL_ENV=$(cd "$dir" && pwd)
export VIRTUAL_ENV

# pinned NAME...: each name with its version from the requirements.
pinned() {
    for name in "$@"; do
        grep -E "^$name==" "$requirements"
    done
}

# peer LOADER NAME...: installs, or says that it could not.
failed=""
peer() {
    loader=$1
    shift
    # shellcheck disable=SC2046  # one word for each requirement
    if ! uv pip install --quiet --no-build-isolation $(pinned "$@") >&2; then
        failed="$failed $loader"
    fi
}

# shellcheck disable=SC2046
uv pip install --quiet $(pinned torch torchvision pillow numpy) >&2
peer DALI nvidia-dali-cuda120
peer WebDataset webdataset
peer SPDL spdl
peer TensorSocket tensorsocket
peer FFCV setuptools wheel numba opencv-python-headless pytorch-pfn-extras numpy
case "$failed" in
*FFCV*) ;;
*) peer FFCV ffcv numpy opencv-python-headless ;;
esac

for name in $failed; do
    echo "warning: $name could not be installed; \`forebay bench\` will run without it" >&2
done
echo "$VIRTUAL_ENV/bin/python"
