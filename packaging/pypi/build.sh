#!/bin/sh
# Builds the source archive and the wheel of the working tree, uncommitted files and all, into OUTDIR.
# Needs no network. Prints their paths, and the build's output if it fails.
set -eu

# shellcheck source=packaging/common.sh
. "$(dirname "$0")/../common.sh"

if ! command -v git >/dev/null || ! python3 -I -c 'import build, setuptools, wheel' 2>/dev/null; then
    packages="git python3-build python3-setuptools python3-wheel"
    echo "$0: missing is one of: $packages" >&2
    echo "$0: run: apt-get install $packages    # or dnf install" >&2
    exit 1
fi

make_work

cd "$top"
copy_tree "$work"
if ! python3 -I -m build --no-isolation --outdir "$outdir" "$work" >"$work/.log" 2>&1; then
    cat "$work/.log" >&2
    exit 1
fi
ls "$outdir"/vgpu_hook-*.whl "$outdir"/vgpu[_-]hook-*.tar.gz
