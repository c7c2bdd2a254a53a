#!/bin/sh
# Builds the rpms and the source rpm of the working tree, uncommitted files and all, into OUTDIR.
# On Fedora with its own macros; elsewhere with stand-ins, which is for looking at, not for use.
# Needs no network. Prints the packages' paths, and the build's output if it fails.
set -eu

# shellcheck source=packaging/common.sh
. "$(dirname "$0")/../common.sh"

spec=packaging/rpm/vgpu-hook.spec
fedora=
if [ -e /etc/fedora-release ] || [ -e /etc/redhat-release ]; then
    fedora=yes
fi
install="dnf install git rpm-build 'dnf-command(builddep)' && dnf builddep $top/$spec"
[ -n "$fedora" ] || install="apt-get install git rpm python3-pip python3-docutils python3-setuptools python3-wheel"
macros=
! command -v rpm >/dev/null || macros=$(rpm --eval '%{?pyproject_wheel:there}')
# With stand-ins it would be built for another Python's folders, and could not be used.
if ! command -v git >/dev/null || ! command -v rpmbuild >/dev/null ||
    { [ -n "$fedora" ] && [ "$macros" != there ]; }; then
    echo "$0: what builds rpms is missing, or not whole; run: $install" >&2
    exit 1
fi

make_work

cd "$top"
version=$(sed -n 's/^Version: *//p' $spec)
check_version $spec "$version"
name=vgpu-hook-$version
mkdir "$work/$name" "$work/SOURCES"
copy_tree "$work/$name"
tar -cz -f "$work/SOURCES/$name.tar.gz" -C "$work" "$name"
rm -r "${work:?}/$name"

set -- --define "_topdir $work" -ba $spec
if [ "$macros" != there ]; then
    echo "$0: no Fedora here: built with stand-ins for its macros" >&2
    grep -v '^#' packaging/rpm/stand-ins.macros >"$work/macros"
    set -- --nodeps --load "$work/macros" "$@"
fi
if ! rpmbuild "$@" >"$work/log" 2>&1; then
    cat "$work/log" >&2
    ! grep -qi 'failed build dependencies' "$work/log" || echo "$0: run: $install" >&2
    exit 1
fi
find "$work/RPMS" "$work/SRPMS" -name '*.rpm' -exec mv {} "$outdir/" \;
ls "$outdir"/*.rpm
