#!/bin/sh
# Installs what the tests and the demo need on Debian 12, as root: packages from the
# distro, and in .venv what only PyPI has. Does nothing when all is there. Changes no
# service that runs.
set -eu
cd "$(dirname "$0")/.."

packages="build-essential cpio debhelper dh-python e2fsprogs git groff libvirt-clients
libvirt-daemon-system lintian mandoc mmdebstrap openssh-client procps pybuild-plugin-pyproject
python3-all python3-build python3-docutils python3-libvirt python3-lxml python3-pip
python3-pydantic python3-setuptools python3-structlog python3-venv python3-wheel
qemu-system-x86 qemu-utils rpm rpmlint secilc shellcheck systemd twine"
from_pypi="pytest>=8,<10 pytest-xdist>=3,<4 hypothesis>=6,<7 mypy>=1.10,<3 ruff>=0.6,<1
prometheus-client>=0.16,<1"
from_pypi_2="pytest>=8,<10 hypothesis>=6,<7 lxml>=5 pydantic>=2,<3 structlog>=24"
# By a path alone: setuptools' own finder takes 20 ms of each process that a test starts.
editable="--config-settings editable_mode=compat --editable ."

missing=""
for package in $packages; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
        missing="$missing $package"
done
if [ -n "$missing" ]; then
    echo "setup: installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # Word splitting is wanted: it is a list. No services are started by it.
    # shellcheck disable=SC2086
    RUNLEVEL=1 apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

# $1: folder, $2: extra flag, $3: requirements
virtual_environment() {
    stamp="$3 $editable $(cat pyproject.toml)"
    [ "$(cat "$1/stamp" 2>/dev/null)" = "$stamp" ] && return
    echo "setup: making $1"
    rm -rf "$1"
    # shellcheck disable=SC2086
    /usr/bin/python3 -m venv $2 "$1"
    # shellcheck disable=SC2086
    "$1/bin/pip" install -qq --disable-pip-version-check $3
    # shellcheck disable=SC2086
    "$1/bin/pip" install -qq --disable-pip-version-check --no-deps $editable
    printf '%s' "$stamp" >"$1/stamp"
}
# The distro's own libraries (Debian 12: pydantic 1.10), as users have them.
virtual_environment .venv --system-site-packages "$from_pypi"
# The newest of PyPI (pydantic 2), as on Debian 13 and Fedora.
virtual_environment .venv2 "" "$from_pypi_2"

# promtool alone, from Debian's package: Prometheus itself would be started and is not needed.
if [ ! -x .venv/bin/promtool ]; then
    echo "setup: fetching promtool"
    folder=$(mktemp -d)
    (
        cd "$folder"
        apt-get -qq -o APT::Sandbox::User=root download prometheus
        dpkg-deb --fsys-tarfile prometheus_*.deb | tar -xf - ./usr/bin/promtool
    )
    install -m 0755 "$folder/usr/bin/promtool" .venv/bin/promtool
    rm -rf "$folder"
fi
