// SPDX-License-Identifier: GPL-2.0
/*
 * Devices that look to software like NVIDIA's vGPU driver does, for tests. No graphics.
 *
 * Bound to an SR-IOV VF it is NVIDIA's vendor-specific VFIO framework (testgpu_vf.c), bound to
 * a PCI device without SR-IOV the older mdev one (testgpu_mdev.c). Of a PF it only makes the
 * VFs. It binds to nothing by itself: write "nvidia" to the device's driver_override. "Fact" is
 * a section of the project's notes on libvirt, the kernel and NVIDIA; what they don't know is
 * marked as a choice of ours. Without TESTGPU_VFS (Kbuild) there is only the mdev one.
 */
#include <linux/mdev.h>
#include <linux/module.h>
#include <linux/pci.h>

#include "testgpu.h"

DEFINE_MUTEX(testgpu_lock);
LIST_HEAD(testgpu_vfs);

/* Fact E1: a write without a newline is ignored, a blank clears them. */
ssize_t testgpu_params_store(struct testgpu_params *params, const char *buf, size_t count)
{
	if (!count || buf[count - 1] != '\n')
		return count;
	if (count >= sizeof(params->text))
		return -EINVAL;
	mutex_lock(&testgpu_lock);
	strscpy(params->text, *skip_spaces(buf) ? buf : "", sizeof(params->text));
	mutex_unlock(&testgpu_lock);
	return count;
}

ssize_t testgpu_params_show(struct testgpu_params *params, char *buf)
{
	ssize_t length;

	mutex_lock(&testgpu_lock);
	length = sysfs_emit(buf, "%s", params->text);
	mutex_unlock(&testgpu_lock);
	return length;
}

static int testgpu_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	if (pdev->is_virtfn)
		return testgpu_vf_probe(pdev);
	return pdev->is_physfn ? 0 : testgpu_parent_probe(pdev);
}

static void testgpu_remove(struct pci_dev *pdev)
{
	if (pdev->is_virtfn)
		testgpu_vf_remove(pdev);
	else if (pdev->is_physfn)
		pci_disable_sriov(pdev);
	else
		testgpu_parent_remove(pdev);
}

/* Fact E2: VFs stay on the driver "nvidia"; libvirt decides by vfio-dev/ (fact C3). */
static struct pci_driver testgpu_pci_driver = {
	.name = TESTGPU_DRIVER,
	.probe = testgpu_probe,
	.remove = testgpu_remove,
#ifdef TESTGPU_VFS
	.sriov_configure = pci_sriov_configure_simple,
	.groups = testgpu_driver_groups,
#endif
	.err_handler = &vfio_pci_core_err_handlers,
	.driver_managed_dma = true,
};

static int __init testgpu_init(void)
{
	int err = mdev_register_driver(&testgpu_mdev_driver);

	if (err)
		return err;
	err = pci_register_driver(&testgpu_pci_driver);
	if (err)
		mdev_unregister_driver(&testgpu_mdev_driver);
	return err;
}

static void __exit testgpu_exit(void)
{
	pci_unregister_driver(&testgpu_pci_driver);
	mdev_unregister_driver(&testgpu_mdev_driver);
}

module_init(testgpu_init);
module_exit(testgpu_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Looks like NVIDIA's vGPU driver, for tests");
