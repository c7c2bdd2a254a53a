"""The test host: Debian 13 with its own libvirt, QEMU and kernel in a TCG virtual machine.

Debian 12 is there too, for tests of the package.

For tests that need the real thing: a libvirtd that calls the installed hook, a kernel that
makes mediated devices. Not for tests that a simulated /sys can serve; those are far quicker.

    recipe.py    what goes in, and the key of the cache
    build.py     makes the image
    machine.py   runs it; qemu.py and ssh.py are the two halves of that
    guests.py    disks and domain XML for the guests inside it
    gpu.py       GPUs that look like NVIDIA's, plugged in; gpu_check.py sees that they do
    host.py      a running host with vgpu-hook's package in it
    pair.py      two of them side by side, for live migration
    plugin.py    the fixtures
"""
