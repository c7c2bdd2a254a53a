/* SPDX-License-Identifier: GPL-2.0 */
#ifndef TESTGPU_H
#define TESTGPU_H

#include <linux/device.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/vfio_pci_core.h>

#define TESTGPU_DRIVER "nvidia"

enum testgpu_fault {
	TESTGPU_NONE,
	TESTGPU_RESET_EIO,
	TESTGPU_RESET_EBUSY,
	TESTGPU_WEDGED,
	TESTGPU_UNREADABLE,
	TESTGPU_IGNORE_WRITE,
	TESTGPU_WRONG_TYPE,
	TESTGPU_SLOW_CREATE,
};

struct testgpu_params {
	char text[256];
};

struct testgpu_type {
	unsigned int id;
	const char *name;
	unsigned int mib;
};

/* What is of the whole card is the sum over the VFs that have the same PF. */
struct testgpu_vf {
	struct vfio_pci_core_device core;
	struct list_head list;
	const struct testgpu_type *type;
	struct testgpu_params params;
	unsigned int placement;
	unsigned int writes;
	bool open;
	enum vfio_device_mig_state state;
	enum testgpu_fault fault;
	unsigned int delay_ms;
};

/* Guards testgpu_vfs, all that the VFs hold, and the accounts of the mdev parents. */
extern struct mutex testgpu_lock;
extern struct list_head testgpu_vfs;
extern struct mdev_driver testgpu_mdev_driver;

#ifdef TESTGPU_VFS
extern const struct attribute_group *testgpu_driver_groups[];

int testgpu_vf_probe(struct pci_dev *pdev);
void testgpu_vf_remove(struct pci_dev *pdev);
#else
static inline int testgpu_vf_probe(struct pci_dev *pdev)
{
	return -ENODEV;
}

static inline void testgpu_vf_remove(struct pci_dev *pdev)
{
}
#endif
void testgpu_migration_init(struct testgpu_vf *vf);
int testgpu_parent_probe(struct pci_dev *pdev);
void testgpu_parent_remove(struct pci_dev *pdev);

ssize_t testgpu_params_show(struct testgpu_params *params, char *buf);
ssize_t testgpu_params_store(struct testgpu_params *params, const char *buf, size_t count);

#endif
