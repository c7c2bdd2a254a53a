#!/bin/sh
# Turns the fresh root tree into the test host. Arguments: the tree, a directory
# with kernel modules and authorized_keys, and where to leave the kernel and the initrd.
# Needs a mount namespace of its own: it mounts into the tree and leaves it so.
# Not for anything about vgpu-hook itself: that is installed at test time.
set -eu
tree=$1 inputs=$2 outputs=$3
here=$(dirname "$0")

mount -t proc proc "$tree/proc"
mount -t sysfs sysfs "$tree/sys"

cp -r --no-preserve=ownership "$here/overlay/." "$tree/"

# libvirt asks QEMU for each of some 460 CPU properties at every guest start, which is most of
# that start under TCG. Without this capability it asks in the old way, with a few commands.
printf '\ncapability_filters = [ "cpu-unavailable-features" ]\n' >>"$tree/etc/libvirt/qemu.conf"

install -d -m 0700 "$tree/root/.ssh"
install -m 0600 "$inputs/authorized_keys" "$tree/root/.ssh/authorized_keys"
: >"$tree/etc/machine-id"

set -- "$tree"/lib/modules/*
[ "$#" -eq 1 ] || { echo "expected one kernel in the tree, found: $*" >&2; exit 1; }
version=${1##*/}
install -d -m 0755 "$tree/lib/modules/$version/updates"
install -m 0644 "$inputs"/*.ko "$tree/lib/modules/$version/updates/"
chroot "$tree" depmod "$version"
built_for=$(chroot "$tree" modinfo -k "$version" -F vermagic mtty | cut -d' ' -f1)
[ "$built_for" = "$version" ] || {
    echo "the modules were built for $built_for, the tree's kernel is $version" >&2
    exit 1
}

# A small initrd of our own: only what finds the disk, packed fast to unpack.
conf=$tree/tmp/initramfs
cp -r "$tree/etc/initramfs-tools" "$conf"
cp "$here/initramfs.conf" "$conf/initramfs.conf"
printf 'virtio_pci\nvirtio_blk\next4\n' >>"$conf/modules"
chroot "$tree" mkinitramfs -d /tmp/initramfs -o /tmp/initrd.img "$version"
mv "$tree/tmp/initrd.img" "$outputs/initrd.img"
cp "$tree/boot/vmlinuz-$version" "$outputs/vmlinuz"
rm -rf "$conf" "${tree:?}"/boot/*

# Only what a test needs runs: no timers, no login prompt on the serial log,
# nothing that waits for a network that is not there.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
    e2scrub_all.timer e2scrub_reap.service fstrim.timer logrotate.timer \
    man-db.timer systemd-tmpfiles-clean.timer systemd-networkd-wait-online.service \
    getty@tty1.service serial-getty@ttyS0.service sshd-keygen.service \
    rpcbind.socket rpcbind.service rpc-statd.service rpc-statd-notify.service \
    nfs-blkmap.service nfs-idmapd.service; do
    ln -sf /dev/null "$tree/etc/systemd/system/$unit"
done
# Only a pair of hosts shares a store, over NFS 4, which needs none of those above.
chroot "$tree" systemctl disable nfs-server.service nfs-client.target
chroot "$tree" systemctl enable systemd-networkd.service ssh.service
