#!/bin/sh
# Run once in the booted host, before the snapshot: does slowly what would else be
# slow after every restore, that is libvirt's look at QEMU and a first guest start.
set -eu
virsh version
virsh capabilities >/dev/null
virsh domcapabilities --virttype qemu >/dev/null
virsh create /dev/stdin <<'XML'
<domain type='qemu'>
  <name>warm-up</name>
  <memory unit='MiB'>32</memory>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
  <devices>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
XML
virsh destroy warm-up
rm -f /var/log/libvirt/qemu/warm-up.log
