#!/bin/sh
# Builds the .deb of the working tree, uncommitted files and all, into OUTDIR.
# Needs no network. Prints the package's path, and the build's output if it fails.
set -eu

# shellcheck source=packaging/common.sh
. "$(dirname "$0")/../common.sh"

if ! command -v git >/dev/null || ! command -v dpkg-buildpackage >/dev/null; then
    echo "$0: missing is one of: git dpkg-dev; run: apt-get install git dpkg-dev" >&2
    exit 1
fi
if ! missing=$(cd "$top/packaging/deb" && dpkg-checkbuilddeps 2>&1); then
    echo "$0: $missing" >&2
    echo "$0: run: apt-get build-dep $top/packaging/deb" >&2
    exit 1
fi

make_work

source=$work/vgpu-hook
mkdir "$source"
cd "$top"
copy_tree "$source"
cp -r packaging/deb/debian "$source/debian"

cd "$source"
packaged=$(dpkg-parsechangelog -S Version)
check_version debian/changelog "$packaged"
if ! dpkg-buildpackage -b -us -uc >"$work/log" 2>&1; then
    cat "$work/log" >&2
    exit 1
fi
mv "$work"/*.deb "$outdir/"
ls "$outdir"/vgpu-hook_"$packaged"_all.deb
