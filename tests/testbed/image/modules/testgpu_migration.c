// SPDX-License-Identifier: GPL-2.0
/* Live migration of a VF by VFIO's states, as the kernel's mtty does it; nothing is carried over. */
#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/module.h>

#include "testgpu.h"

static ssize_t testgpu_state_read(struct file *file, char __user *buf, size_t count, loff_t *pos)
{
	return 0;
}

static ssize_t testgpu_state_write(struct file *file, const char __user *buf, size_t count,
				   loff_t *pos)
{
	return -EINVAL;
}

static const struct file_operations testgpu_state_fops = {
	.owner = THIS_MODULE,
	.read = testgpu_state_read,
	.write = testgpu_state_write,
};

static struct file *testgpu_state_file(int flags)
{
	struct file *file = anon_inode_getfile("testgpu", &testgpu_state_fops, NULL, flags);

	if (!IS_ERR(file))
		stream_open(file_inode(file), file);
	return file;
}

static struct file *testgpu_step(enum vfio_device_mig_state from, enum vfio_device_mig_state to)
{
	if (from != VFIO_DEVICE_STATE_STOP || to == VFIO_DEVICE_STATE_RUNNING)
		return NULL;
	return testgpu_state_file(to == VFIO_DEVICE_STATE_STOP_COPY ? O_RDONLY : O_WRONLY);
}

static struct file *testgpu_set_state(struct vfio_device *vdev, enum vfio_device_mig_state wanted)
{
	struct testgpu_vf *vf = container_of(vdev, struct testgpu_vf, core.vdev);
	enum vfio_device_mig_state next;
	struct file *file = NULL;

	mutex_lock(&testgpu_lock);
	while (!file && vf->state != wanted) {
		int err = vfio_mig_get_next_state(vdev, vf->state, wanted, &next);

		file = err ? ERR_PTR(err) : testgpu_step(vf->state, next);
		if (!IS_ERR(file))
			vf->state = next;
	}
	mutex_unlock(&testgpu_lock);
	return file;
}

static int testgpu_get_state(struct vfio_device *vdev, enum vfio_device_mig_state *state)
{
	struct testgpu_vf *vf = container_of(vdev, struct testgpu_vf, core.vdev);

	mutex_lock(&testgpu_lock);
	*state = vf->state;
	mutex_unlock(&testgpu_lock);
	return 0;
}

static int testgpu_get_data_size(struct vfio_device *vdev, unsigned long *length)
{
	/* A whole page, or QEMU fails to allocate a buffer of no bytes. */
	*length = PAGE_SIZE;
	return 0;
}

static const struct vfio_migration_ops testgpu_migration_ops = {
	.migration_set_state = testgpu_set_state,
	.migration_get_state = testgpu_get_state,
	.migration_get_data_size = testgpu_get_data_size,
};

/* No log_ops: dirty pages are logged by IOMMUFD, which Debian's kernel lacks. */
void testgpu_migration_init(struct testgpu_vf *vf)
{
	vf->state = VFIO_DEVICE_STATE_RUNNING;
	vf->core.vdev.migration_flags = VFIO_MIGRATION_STOP_COPY;
	vf->core.vdev.mig_ops = &testgpu_migration_ops;
}
