// SPDX-License-Identifier: GPL-2.0
/* The test's side: faults of a VF, and how often its type was written. */
#include <linux/pci.h>

#include "testgpu.h"

static const char *const testgpu_fault_names[] = {
	[TESTGPU_NONE] = "none",
	[TESTGPU_RESET_EIO] = "reset-eio",	/* 0 is refused with EIO */
	[TESTGPU_RESET_EBUSY] = "reset-ebusy",	/* ... with EBUSY, as if it were open */
	[TESTGPU_WEDGED] = "wedged",		/* every type, and 0, is refused with EIO */
	[TESTGPU_UNREADABLE] = "unreadable",	/* current and creatable read EIO */
	[TESTGPU_IGNORE_WRITE] = "ignore-write", /* a write succeeds and changes nothing */
	[TESTGPU_WRONG_TYPE] = "wrong-type",	/* another creatable type is set than asked for */
	[TESTGPU_SLOW_CREATE] = "slow-create",	/* takes so many milliseconds */
};

static int testgpu_set_fault(const char *address, int fault, unsigned int delay_ms)
{
	struct testgpu_vf *vf;

	list_for_each_entry(vf, &testgpu_vfs, list) {
		if (strcmp(pci_name(vf->core.pdev), address))
			continue;
		vf->fault = fault;
		vf->delay_ms = delay_ms;
		return 0;
	}
	return -ENODEV;
}

/* A line is "0000:01:00.2 reset-eio" or "0000:01:00.2 slow-create 1500". */
static ssize_t fault_store(struct device_driver *driver, const char *buf, size_t count)
{
	char address[16], name[16];
	unsigned int delay_ms = 0;
	int fault, err;

	if (sscanf(buf, "%15s %15s %u", address, name, &delay_ms) < 2)
		return -EINVAL;
	fault = match_string(testgpu_fault_names, ARRAY_SIZE(testgpu_fault_names), name);
	if (fault < 0)
		return -EINVAL;
	mutex_lock(&testgpu_lock);
	err = testgpu_set_fault(address, fault, delay_ms);
	mutex_unlock(&testgpu_lock);
	return err ?: count;
}

static ssize_t fault_show(struct device_driver *driver, char *buf)
{
	struct testgpu_vf *vf;
	ssize_t length = 0;

	mutex_lock(&testgpu_lock);
	list_for_each_entry(vf, &testgpu_vfs, list)
		length += sysfs_emit_at(buf, length, "%s %s %u\n", pci_name(vf->core.pdev),
					testgpu_fault_names[vf->fault], vf->delay_ms);
	mutex_unlock(&testgpu_lock);
	return length;
}
static DRIVER_ATTR_RW(fault);

/* Refused writes count too: a test can prove that there was none. */
static ssize_t writes_show(struct device_driver *driver, char *buf)
{
	struct testgpu_vf *vf;
	ssize_t length = 0;

	mutex_lock(&testgpu_lock);
	list_for_each_entry(vf, &testgpu_vfs, list)
		length += sysfs_emit_at(buf, length, "%s %u\n", pci_name(vf->core.pdev),
					vf->writes);
	mutex_unlock(&testgpu_lock);
	return length;
}
static DRIVER_ATTR_RO(writes);

static struct attribute *testgpu_driver_attrs[] = {
	&driver_attr_fault.attr,
	&driver_attr_writes.attr,
	NULL
};

static const struct attribute_group testgpu_driver_group = {
	.attrs = testgpu_driver_attrs,
};

const struct attribute_group *testgpu_driver_groups[] = { &testgpu_driver_group, NULL };
