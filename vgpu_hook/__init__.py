"""vgpu-hook: gives plain-libvirt VMs a vGPU with a whole, safe life cycle.

Layers point one way (docs/architecture.md): model <- (sysfs, domain, store, vfio)
<- (frameworks, placement) <- lifecycle <- hook <- cli.
"""

__version__ = "0.1.0"
