#!/bin/sh
# Builds the kernel modules in /build. Run inside the throw-away build tree, which
# holds unpacked, unconfigured packages: a compiler, kernel headers, no more.
set -eu
set -- /usr/src/linux-headers-*-amd64
[ "$#" -eq 1 ] || { echo "expected headers of one kernel, found: $*" >&2; exit 1; }
# What configuring the packages would have made.
[ -e /usr/bin/awk ] || ln -s mawk /usr/bin/awk
[ -c /dev/null ] || mknod -m 0666 /dev/null c 1 3
make -s -C "$1" M=/build modules
