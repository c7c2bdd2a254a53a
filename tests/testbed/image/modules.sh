#!/bin/sh
# Makes the test host's kernel modules in a throw-away tree: mtty, which is taken out
# of Debian's kernel source and patched, and our own (modules/). Arguments: the tree,
# where to leave the modules, and the command that makes the tree.
set -eu
tree=$1 outputs=$2
here=$(dirname "$0")
shift 2

"$@"
# What it names is outside the tree.
unset TMPDIR

set -- "$tree"/usr/src/linux-source-*.tar.xz
[ "$#" -eq 1 ] || { echo "expected one kernel source, found: $*" >&2; exit 1; }
cp -r "$here/modules" "$tree/build"
tar -C "$tree/build" -xJf "$1" --strip-components=3 --wildcards \
    '*/samples/vfio-mdev/mtty.c'

# Dirty-page logging needs IOMMUFD, which Debian 13's kernel lacks: with log_ops set no guest with
# an mtty could be saved or migrated. The mtty of Debian 12's kernel, 6.1, can't be migrated at all.
wanted=0
if grep -q 'vfio_migration_ops' "$tree/build/mtty.c"; then wanted=1; fi
assignment='^[[:space:]]*vdev->log_ops = &mtty_log_ops;$'
found=$(grep -c "$assignment" "$tree/build/mtty.c" || :)
[ "$found" -eq "$wanted" ] || {
    echo "mtty.c sets vdev->log_ops in $found places, expected $wanted: see to the patch" >&2
    exit 1
}
sed -i "/$assignment/d" "$tree/build/mtty.c"

cp "$here/build-modules.sh" "$tree/build/"
chroot "$tree" sh /build/build-modules.sh
cp "$tree"/build/*.ko "$outputs/"
