#!/bin/sh
# Builds the source archive and the wheel of the working tree, uncommitted files and all, into OUTDIR.
# Needs no network. Prints their paths, and the build's output if it fails.
set -eu

[ "$#" -eq 1 ] || { echo "usage: $0 OUTDIR" >&2; exit 2; }
mkdir -p "$1"
outdir=$(cd "$1" && pwd)
top=$(cd "$(dirname "$0")/../.." && pwd)
# The distribution's own Python, whatever virtual environment this is called from.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
unset VIRTUAL_ENV PYTHONPATH PYTHONHOME

if ! command -v git >/dev/null || ! python3 -I -c 'import build, setuptools, wheel' 2>/dev/null; then
    packages="git python3-build python3-setuptools python3-wheel"
    echo "$0: missing is one of: $packages" >&2
    echo "$0: run: apt-get install $packages    # or dnf install" >&2
    exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

cd "$top"
# shellcheck disable=SC2016 # $file is for the inner sh
git ls-files -z --cached --others --exclude-standard |
    xargs -0 sh -c 'for file; do [ ! -e "$file" ] || printf "%s\0" "$file"; done' sh |
    tar -c --null --no-recursion -T - | tar -x -C "$work"
if ! python3 -I -m build --no-isolation --outdir "$outdir" "$work" >"$work/.log" 2>&1; then
    cat "$work/.log" >&2
    exit 1
fi
ls "$outdir"/vgpu_hook-*.whl "$outdir"/vgpu[_-]hook-*.tar.gz
