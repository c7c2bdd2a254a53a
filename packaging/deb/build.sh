#!/bin/sh
# Builds the .deb of the working tree, uncommitted files and all, into OUTDIR.
# Needs no network. Prints the package's path, and the build's output if it fails.
set -eu

[ "$#" -eq 1 ] || { echo "usage: $0 OUTDIR" >&2; exit 2; }
mkdir -p "$1"
outdir=$(cd "$1" && pwd)
top=$(cd "$(dirname "$0")/../.." && pwd)
# Debian's own Python, whatever virtual environment this is called from.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
unset VIRTUAL_ENV PYTHONPATH PYTHONHOME

if ! command -v git >/dev/null || ! command -v dpkg-buildpackage >/dev/null; then
    echo "$0: missing is one of: git dpkg-dev; run: apt-get install git dpkg-dev" >&2
    exit 1
fi
if ! missing=$(cd "$top/packaging/deb" && dpkg-checkbuilddeps 2>&1); then
    echo "$0: $missing" >&2
    echo "$0: run: apt-get build-dep $top/packaging/deb" >&2
    exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# What git tracks or would track. A file that is deleted but still in the index
# is left out.
source=$work/vgpu-hook
mkdir "$source"
cd "$top"
# shellcheck disable=SC2016 # $file is for the inner sh
git ls-files -z --cached --others --exclude-standard |
    xargs -0 sh -c 'for file; do [ ! -e "$file" ] || printf "%s\0" "$file"; done' sh |
    tar -c --null --no-recursion -T - | tar -x -C "$source"
cp -r packaging/deb/debian "$source/debian"

cd "$source"
packaged=$(dpkg-parsechangelog -S Version)
project=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
[ "$packaged" = "$project" ] || {
    echo "$0: debian/changelog says $packaged, pyproject.toml says $project" >&2
    exit 1
}
if ! dpkg-buildpackage -b -us -uc >"$work/log" 2>&1; then
    cat "$work/log" >&2
    exit 1
fi
mv "$work"/*.deb "$outdir/"
ls "$outdir"/vgpu-hook_"$packaged"_all.deb
