// SPDX-License-Identifier: GPL-2.0
/* NVIDIA's vendor-specific VFIO framework on an SR-IOV VF (fact E2). */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/pci.h>

#include "testgpu.h"

static unsigned int framebuffer_mib = 48 * 1024;
module_param(framebuffer_mib, uint, 0644);
MODULE_PARM_DESC(framebuffer_mib, "Framebuffer of each PF, in MiB");

static bool same_type;
module_param(same_type, bool, 0644);
MODULE_PARM_DESC(same_type, "All vGPUs of a PF are of the type of its first");

/* 1145, 1148 and 2164 are a real card's (fact E2); the other ids are ours. */
static const struct testgpu_type testgpu_types[] = {
	{ 1145, "NVIDIA L40S-1B", 1024 },
	{ 1148, "NVIDIA L40S-2Q", 2048 },
	{ 1149, "NVIDIA L40S-4Q", 4096 },
	{ 1150, "NVIDIA L40S-8Q", 8192 },
	{ 1151, "NVIDIA L40S-16Q", 16384 },
	{ 1152, "NVIDIA L40S-24Q", 24576 },
	{ 1153, "NVIDIA L40S-48Q", 49152 },
	{ 2164, "NVIDIA L40S-3B", 3072 },
};

static struct testgpu_vf *testgpu_vf_of(struct device *dev)
{
	return container_of(dev_get_drvdata(dev), struct testgpu_vf, core);
}

static bool testgpu_siblings(const struct testgpu_vf *a, const struct testgpu_vf *b)
{
	return pci_physfn(a->core.pdev) == pci_physfn(b->core.pdev);
}

/* Fact E2: what one VF has shortens the lists of its siblings; a VF with a type lists nothing. */
static bool testgpu_creatable(const struct testgpu_vf *vf, const struct testgpu_type *type)
{
	const struct testgpu_vf *other;
	unsigned int used = 0;

	if (vf->type)
		return false;
	list_for_each_entry(other, &testgpu_vfs, list) {
		if (!other->type || !testgpu_siblings(vf, other))
			continue;
		if (same_type && other->type != type)
			return false;
		used += other->type->mib;
	}
	return used + type->mib <= framebuffer_mib;
}

/* A choice of ours: the lowest that no sibling has. */
static unsigned int testgpu_free_placement(const struct testgpu_vf *vf)
{
	const struct testgpu_vf *other;
	unsigned int placement = 0;
again:
	list_for_each_entry(other, &testgpu_vfs, list) {
		if (other->type && testgpu_siblings(vf, other) && other->placement == placement) {
			placement++;
			goto again;
		}
	}
	return placement;
}

static const struct testgpu_type *testgpu_find(const struct testgpu_vf *vf, unsigned int id)
{
	bool other = vf->fault == TESTGPU_WRONG_TYPE;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(testgpu_types); i++) {
		const struct testgpu_type *type = &testgpu_types[i];

		if ((type->id == id) != other && testgpu_creatable(vf, type))
			return type;
	}
	return NULL;
}

/* Fact E2: EIO for all that can't be made, with a line like this in the kernel's log. */
static int testgpu_create(struct testgpu_vf *vf, unsigned int id)
{
	const struct testgpu_type *type = testgpu_find(vf, id);

	if (vf->fault == TESTGPU_WEDGED || !type) {
		pr_err("NVRM: Failed to add vgpu create request: 0x38\n");
		return -EIO;
	}
	vf->placement = testgpu_free_placement(vf);
	vf->type = type;
	return 0;
}

/* A choice of ours, the errno of a refusal while in use being unknown (fact E2): EBUSY. */
static int testgpu_reset(struct testgpu_vf *vf)
{
	if (vf->fault == TESTGPU_WEDGED || vf->fault == TESTGPU_RESET_EIO)
		return -EIO;
	if (vf->fault == TESTGPU_RESET_EBUSY || vf->open)
		return -EBUSY;
	vf->type = NULL;
	vf->params.text[0] = '\0';
	return 0;
}

static ssize_t creatable_vgpu_types_show(struct device *dev, struct device_attribute *attr,
					 char *buf)
{
	struct testgpu_vf *vf = testgpu_vf_of(dev);
	ssize_t length = -EIO;
	unsigned int i;

	mutex_lock(&testgpu_lock);
	if (vf->fault == TESTGPU_UNREADABLE)
		goto out;
	length = sysfs_emit(buf, "ID    : vGPU Name\n");
	for (i = 0; i < ARRAY_SIZE(testgpu_types); i++)
		if (testgpu_creatable(vf, &testgpu_types[i]))
			length += sysfs_emit_at(buf, length, "%-6u: %s\n",
						testgpu_types[i].id, testgpu_types[i].name);
out:
	mutex_unlock(&testgpu_lock);
	return length;
}
static DEVICE_ATTR_RO(creatable_vgpu_types);

static ssize_t current_vgpu_type_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct testgpu_vf *vf = testgpu_vf_of(dev);
	ssize_t length = -EIO;

	mutex_lock(&testgpu_lock);
	if (vf->fault != TESTGPU_UNREADABLE)
		length = sysfs_emit(buf, "%u\n", vf->type ? vf->type->id : 0);
	mutex_unlock(&testgpu_lock);
	return length;
}

static ssize_t current_vgpu_type_store(struct device *dev, struct device_attribute *attr,
				       const char *buf, size_t count)
{
	struct testgpu_vf *vf = testgpu_vf_of(dev);
	unsigned int id, delay = 0;
	int err = kstrtouint(buf, 10, &id);

	mutex_lock(&testgpu_lock);
	vf->writes++;
	if (!err && id && vf->fault == TESTGPU_SLOW_CREATE)
		delay = vf->delay_ms;
	mutex_unlock(&testgpu_lock);
	if (err)
		return -EINVAL;
	if (delay && msleep_interruptible(delay))
		return -EINTR;

	mutex_lock(&testgpu_lock);
	if (vf->fault != TESTGPU_IGNORE_WRITE)
		err = id ? testgpu_create(vf, id) : testgpu_reset(vf);
	mutex_unlock(&testgpu_lock);
	return err ?: count;
}
static DEVICE_ATTR_RW(current_vgpu_type);

/* Fact E2: ENXIO while there is no type. */
static ssize_t testgpu_show_of_type(struct device *dev, char *buf, bool placement)
{
	struct testgpu_vf *vf = testgpu_vf_of(dev);
	ssize_t length = -ENXIO;

	mutex_lock(&testgpu_lock);
	if (vf->type)
		length = sysfs_emit(buf, "%u\n", placement ? vf->placement : 0);
	mutex_unlock(&testgpu_lock);
	return length;
}

/* The mode says that these can be written (fact E2), but not what: nothing is taken. */
static ssize_t testgpu_refuse(struct device *dev, struct device_attribute *attr, const char *buf,
			      size_t count)
{
	return -EINVAL;
}

static ssize_t gpu_instance_id_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return testgpu_show_of_type(dev, buf, false);
}
static DEVICE_ATTR(gpu_instance_id, 0644, gpu_instance_id_show, testgpu_refuse);

static ssize_t placement_id_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return testgpu_show_of_type(dev, buf, true);
}
static DEVICE_ATTR(placement_id, 0644, placement_id_show, testgpu_refuse);

static ssize_t warm_update_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "0\n");
}
static DEVICE_ATTR(warm_update, 0644, warm_update_show, testgpu_refuse);

static ssize_t vgpu_params_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return testgpu_params_show(&testgpu_vf_of(dev)->params, buf);
}

static ssize_t vgpu_params_store(struct device *dev, struct device_attribute *attr,
				 const char *buf, size_t count)
{
	return testgpu_params_store(&testgpu_vf_of(dev)->params, buf, count);
}
static DEVICE_ATTR_RW(vgpu_params);

static struct attribute *testgpu_vf_attrs[] = {
	&dev_attr_creatable_vgpu_types.attr,
	&dev_attr_current_vgpu_type.attr,
	&dev_attr_gpu_instance_id.attr,
	&dev_attr_placement_id.attr,
	&dev_attr_vgpu_params.attr,
	&dev_attr_warm_update.attr,
	NULL
};

static const struct attribute_group testgpu_vf_group = {
	.name = "nvidia",
	.attrs = testgpu_vf_attrs,
};

static struct testgpu_vf *testgpu_vf_of_vfio(struct vfio_device *vdev)
{
	return container_of(vdev, struct testgpu_vf, core.vdev);
}

static int testgpu_vf_init(struct vfio_device *vdev)
{
	testgpu_migration_init(testgpu_vf_of_vfio(vdev));
	return vfio_pci_core_init_dev(vdev);
}

static int testgpu_vf_open(struct vfio_device *vdev)
{
	struct testgpu_vf *vf = testgpu_vf_of_vfio(vdev);
	int err = -EIO;

	mutex_lock(&testgpu_lock);
	if (vf->type)
		err = vfio_pci_core_enable(&vf->core);
	vf->open = !err;
	vf->state = VFIO_DEVICE_STATE_RUNNING;
	mutex_unlock(&testgpu_lock);
	if (err)
		return err;
	vfio_pci_core_finish_enable(&vf->core);
	/* With the BAR mapped QEMU asks for its dirty pages, gets EINVAL, and migrates no more. */
	memset(vf->core.bar_mmap_supported, 0, sizeof(vf->core.bar_mmap_supported));
	return 0;
}

static void testgpu_vf_close(struct vfio_device *vdev)
{
	vfio_pci_core_close_device(vdev);
	mutex_lock(&testgpu_lock);
	testgpu_vf_of_vfio(vdev)->open = false;
	mutex_unlock(&testgpu_lock);
}

static const struct vfio_device_ops testgpu_vf_ops = {
	.name = "nvidia-vgpu-vfio",
	.init = testgpu_vf_init,
	.release = vfio_pci_core_release_dev,
	.open_device = testgpu_vf_open,
	.close_device = testgpu_vf_close,
	.ioctl = vfio_pci_core_ioctl,
	.device_feature = vfio_pci_core_ioctl_feature,
	.read = vfio_pci_core_read,
	.write = vfio_pci_core_write,
	.mmap = vfio_pci_core_mmap,
	.request = vfio_pci_core_request,
	.match = vfio_pci_core_match,
	.bind_iommufd = vfio_iommufd_physical_bind,
	.unbind_iommufd = vfio_iommufd_physical_unbind,
	.attach_ioas = vfio_iommufd_physical_attach_ioas,
	.detach_ioas = vfio_iommufd_physical_detach_ioas,
};

static void testgpu_vf_forget(struct testgpu_vf *vf)
{
	mutex_lock(&testgpu_lock);
	list_del(&vf->list);
	mutex_unlock(&testgpu_lock);
}

int testgpu_vf_probe(struct pci_dev *pdev)
{
	struct testgpu_vf *vf;
	int err;

	vf = vfio_alloc_device(testgpu_vf, core.vdev, &pdev->dev, &testgpu_vf_ops);
	if (IS_ERR(vf))
		return PTR_ERR(vf);
	dev_set_drvdata(&pdev->dev, &vf->core);
	mutex_lock(&testgpu_lock);
	list_add_tail(&vf->list, &testgpu_vfs);
	mutex_unlock(&testgpu_lock);
	err = vfio_pci_core_register_device(&vf->core);
	if (err)
		goto forget;
	err = device_add_group(&pdev->dev, &testgpu_vf_group);
	if (err)
		goto unregister;
	return 0;
unregister:
	vfio_pci_core_unregister_device(&vf->core);
forget:
	testgpu_vf_forget(vf);
	vfio_put_device(&vf->core.vdev);
	return err;
}

void testgpu_vf_remove(struct pci_dev *pdev)
{
	struct testgpu_vf *vf = testgpu_vf_of(&pdev->dev);

	device_remove_group(&pdev->dev, &testgpu_vf_group);
	vfio_pci_core_unregister_device(&vf->core);
	testgpu_vf_forget(vf);
	vfio_put_device(&vf->core.vdev);
}
