// SPDX-License-Identifier: GPL-2.0
/* NVIDIA's mdev framework on a whole card (fact E1); the devices are an empty config space. */
#include <linux/mdev.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/version.h>
#include <linux/vfio.h>
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 12, 0)
#include <asm/unaligned.h>
#else
#include <linux/unaligned.h>
#endif

#include "testgpu.h"

#define TESTGPU_CARD_MIB 16384
#define TESTGPU_CONFIG_OFFSET ((u64)VFIO_PCI_CONFIG_REGION_INDEX << 40)

struct testgpu_mdev_type {
	const char *id, *name;
	unsigned int mib, frl_config;
	const char *resolution;
};

/* A Tesla T4's, a choice of its list. */
static const struct testgpu_mdev_type testgpu_mdev_types[] = {
	{ "222", "GRID T4-1B", 1024, 45, "5120x2880" },
	{ "223", "GRID T4-2B", 2048, 45, "5120x2880" },
	{ "230", "GRID T4-1Q", 1024, 60, "5120x2880" },
	{ "231", "GRID T4-2Q", 2048, 60, "7680x4320" },
	{ "232", "GRID T4-4Q", 4096, 60, "7680x4320" },
	{ "233", "GRID T4-8Q", 8192, 60, "7680x4320" },
	{ "234", "GRID T4-16Q", 16384, 60, "7680x4320" },
};

#define TESTGPU_TYPES ARRAY_SIZE(testgpu_mdev_types)

struct testgpu_parent {
	struct mdev_parent parent;
	struct mdev_type types[TESTGPU_TYPES];
	struct mdev_type *pointers[TESTGPU_TYPES];
	/* Fact E1: the first device decides the type of all. */
	const struct testgpu_mdev_type *in_use;
	unsigned int count;
};

struct testgpu_mdev {
	struct vfio_device vdev;
	struct testgpu_parent *parent;
	struct testgpu_params params;
	u8 config[PCI_CFG_SPACE_SIZE];
};

static struct testgpu_parent *testgpu_parent_of(struct mdev_type *type)
{
	return container_of(type->parent, struct testgpu_parent, parent);
}

static const struct testgpu_mdev_type *testgpu_spec_of(struct mdev_type *type)
{
	return &testgpu_mdev_types[type - testgpu_parent_of(type)->types];
}

static unsigned int testgpu_left(struct mdev_type *type)
{
	const struct testgpu_mdev_type *spec = testgpu_spec_of(type);
	struct testgpu_parent *parent = testgpu_parent_of(type);

	if (parent->count && parent->in_use != spec)
		return 0;
	return TESTGPU_CARD_MIB / spec->mib - parent->count;
}

static unsigned int testgpu_mdev_available(struct mdev_type *type)
{
	unsigned int left;

	mutex_lock(&testgpu_lock);
	left = testgpu_left(type);
	mutex_unlock(&testgpu_lock);
	return left;
}

static ssize_t testgpu_mdev_description(struct mdev_type *type, char *buf)
{
	const struct testgpu_mdev_type *spec = testgpu_spec_of(type);

	return sysfs_emit(buf, "num_heads=4, frl_config=%u, framebuffer=%uM, max_resolution=%s, "
			  "max_instance=%u\n", spec->frl_config, spec->mib, spec->resolution,
			  TESTGPU_CARD_MIB / spec->mib);
}

static struct testgpu_mdev *testgpu_mdev_of(struct vfio_device *vdev)
{
	return container_of(vdev, struct testgpu_mdev, vdev);
}

/* A choice of ours, the errno of a full card being unknown: ENOSPC, as the kernel's samples. */
static int testgpu_mdev_init(struct vfio_device *vdev)
{
	struct testgpu_mdev *device = testgpu_mdev_of(vdev);
	struct mdev_type *type = to_mdev_device(vdev->dev)->type;
	int err = 0;

	device->parent = testgpu_parent_of(type);
	mutex_lock(&testgpu_lock);
	if (testgpu_left(type)) {
		device->parent->in_use = testgpu_spec_of(type);
		device->parent->count++;
	} else {
		err = -ENOSPC;
	}
	mutex_unlock(&testgpu_lock);
	if (err)
		return err;
	put_unaligned_le16(PCI_VENDOR_ID_NVIDIA, device->config + PCI_VENDOR_ID);
	put_unaligned_le16(0x1eb8, device->config + PCI_DEVICE_ID);
	/* A 3D controller: for a VGA one the guest's firmware would look for a ROM. */
	put_unaligned_le16(0x0302, device->config + PCI_CLASS_DEVICE);
	return 0;
}

static void testgpu_mdev_release(struct vfio_device *vdev)
{
	mutex_lock(&testgpu_lock);
	testgpu_mdev_of(vdev)->parent->count--;
	mutex_unlock(&testgpu_lock);
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
	vfio_free_device(vdev);
#endif
}

static bool testgpu_in_config(size_t count, loff_t pos)
{
	return pos >= TESTGPU_CONFIG_OFFSET &&
	       pos + count <= TESTGPU_CONFIG_OFFSET + PCI_CFG_SPACE_SIZE;
}

static ssize_t testgpu_mdev_read(struct vfio_device *vdev, char __user *buf, size_t count,
				 loff_t *ppos)
{
	if (!testgpu_in_config(count, *ppos))
		return -EINVAL;
	if (copy_to_user(buf, testgpu_mdev_of(vdev)->config + (*ppos - TESTGPU_CONFIG_OFFSET),
			 count))
		return -EFAULT;
	*ppos += count;
	return count;
}

/* Nothing of it can be set: no BAR, no interrupt. */
static ssize_t testgpu_mdev_write(struct vfio_device *vdev, const char __user *buf, size_t count,
				  loff_t *ppos)
{
	if (!testgpu_in_config(count, *ppos))
		return -EINVAL;
	*ppos += count;
	return count;
}

static int testgpu_device_info(void __user *arg)
{
	struct vfio_device_info info = {
		.argsz = sizeof(info),
		.flags = VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET,
		.num_regions = VFIO_PCI_NUM_REGIONS,
		.num_irqs = VFIO_PCI_NUM_IRQS,
	};

	return copy_to_user(arg, &info, offsetofend(struct vfio_device_info, num_irqs)) ?
		-EFAULT : 0;
}

static int testgpu_region_info(void __user *arg)
{
	struct vfio_region_info info;

	if (copy_from_user(&info, arg, sizeof(info)))
		return -EFAULT;
	if (info.argsz < sizeof(info) || info.index >= VFIO_PCI_NUM_REGIONS)
		return -EINVAL;
	info.flags = 0;
	info.cap_offset = 0;
	info.size = 0;
	info.offset = (u64)info.index << 40;
	if (info.index == VFIO_PCI_CONFIG_REGION_INDEX) {
		info.size = PCI_CFG_SPACE_SIZE;
		info.flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
	}
	return copy_to_user(arg, &info, sizeof(info)) ? -EFAULT : 0;
}

static int testgpu_irq_info(void __user *arg)
{
	struct vfio_irq_info info;

	if (copy_from_user(&info, arg, sizeof(info)))
		return -EFAULT;
	if (info.argsz < sizeof(info) || info.index >= VFIO_PCI_NUM_IRQS)
		return -EINVAL;
	info.flags = 0;
	info.count = 0;
	return copy_to_user(arg, &info, sizeof(info)) ? -EFAULT : 0;
}

static long testgpu_mdev_ioctl(struct vfio_device *vdev, unsigned int cmd, unsigned long arg)
{
	void __user *to = (void __user *)arg;

	switch (cmd) {
	case VFIO_DEVICE_GET_INFO:
		return testgpu_device_info(to);
	case VFIO_DEVICE_GET_REGION_INFO:
		return testgpu_region_info(to);
	case VFIO_DEVICE_GET_IRQ_INFO:
		return testgpu_irq_info(to);
	case VFIO_DEVICE_RESET:
		return 0;
	default:
		return -ENOTTY;
	}
}

/* No .request (fact D4): a removal waits until the device is closed. */
static const struct vfio_device_ops testgpu_mdev_ops = {
	.name = "nvidia-vgpu-vfio",
	.init = testgpu_mdev_init,
	.release = testgpu_mdev_release,
	.read = testgpu_mdev_read,
	.write = testgpu_mdev_write,
	.ioctl = testgpu_mdev_ioctl,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	.bind_iommufd = vfio_iommufd_emulated_bind,
	.unbind_iommufd = vfio_iommufd_emulated_unbind,
	.attach_ioas = vfio_iommufd_emulated_attach_ioas,
	.detach_ioas = vfio_iommufd_emulated_detach_ioas,
#endif
};

static int testgpu_mdev_probe(struct mdev_device *mdev)
{
	struct testgpu_mdev *device;
	int err;

	device = vfio_alloc_device(testgpu_mdev, vdev, &mdev->dev, &testgpu_mdev_ops);
	if (IS_ERR(device))
		return PTR_ERR(device);
	dev_set_drvdata(&mdev->dev, device);
	err = vfio_register_emulated_iommu_dev(&device->vdev);
	if (err)
		vfio_put_device(&device->vdev);
	return err;
}

static void testgpu_mdev_remove(struct mdev_device *mdev)
{
	struct testgpu_mdev *device = dev_get_drvdata(&mdev->dev);

	vfio_unregister_group_dev(&device->vdev);
	vfio_put_device(&device->vdev);
}

static ssize_t vgpu_params_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct testgpu_mdev *device = dev_get_drvdata(dev);

	return testgpu_params_show(&device->params, buf);
}

static ssize_t vgpu_params_store(struct device *dev, struct device_attribute *attr,
				 const char *buf, size_t count)
{
	struct testgpu_mdev *device = dev_get_drvdata(dev);

	return testgpu_params_store(&device->params, buf, count);
}
static DEVICE_ATTR_RW(vgpu_params);

static ssize_t placement_id_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "Not Applicable\n");
}
static DEVICE_ATTR_RO(placement_id);

static struct attribute *testgpu_mdev_attrs[] = {
	&dev_attr_vgpu_params.attr,
	&dev_attr_placement_id.attr,
	NULL
};

static const struct attribute_group testgpu_mdev_group = {
	.name = "nvidia",
	.attrs = testgpu_mdev_attrs,
};

static const struct attribute_group *testgpu_mdev_groups[] = { &testgpu_mdev_group, NULL };

struct mdev_driver testgpu_mdev_driver = {
	.device_api = VFIO_DEVICE_API_PCI_STRING,
	.probe = testgpu_mdev_probe,
	.remove = testgpu_mdev_remove,
	.get_available = testgpu_mdev_available,
	.show_description = testgpu_mdev_description,
	.driver = {
		.name = "nvidia-vgpu-vfio",
		.owner = THIS_MODULE,
		.mod_name = KBUILD_MODNAME,
		.dev_groups = testgpu_mdev_groups,
	},
};

/* The names come out as nvidia-222: the driver's name is put before them. */
int testgpu_parent_probe(struct pci_dev *pdev)
{
	struct testgpu_parent *parent = kzalloc(sizeof(*parent), GFP_KERNEL);
	unsigned int i;
	int err;

	if (!parent)
		return -ENOMEM;
	for (i = 0; i < TESTGPU_TYPES; i++) {
		parent->types[i].sysfs_name = testgpu_mdev_types[i].id;
		parent->types[i].pretty_name = testgpu_mdev_types[i].name;
		parent->pointers[i] = &parent->types[i];
	}
	dev_set_drvdata(&pdev->dev, parent);
	err = mdev_register_parent(&parent->parent, &pdev->dev, &testgpu_mdev_driver,
				   parent->pointers, TESTGPU_TYPES);
	if (err)
		kfree(parent);
	return err;
}

void testgpu_parent_remove(struct pci_dev *pdev)
{
	struct testgpu_parent *parent = dev_get_drvdata(&pdev->dev);

	mdev_unregister_parent(&parent->parent);
	kfree(parent);
}
