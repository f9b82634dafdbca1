// SPDX-License-Identifier: GPL-2.0
/*
 * What commands of /dev/onecopy take and tell. And whether the module is ready: all three devices
 * ask that when they are opened.
 */
#include <linux/file.h>
#include <linux/uaccess.h>

#include "core.h"

static bool oc_ready;

/**
 * oc_is_ready() - whether the devices may be opened
 *
 * Until all devices are there none can be opened. A module that fails to begin goes at once,
 * however many files are open.
 *
 * Return: true once oc_set_ready() was called.
 */
bool oc_is_ready(void)
{
	return READ_ONCE(oc_ready);
}

/**
 * oc_set_ready() - let the devices be opened
 */
void oc_set_ready(void)
{
	WRITE_ONCE(oc_ready, true);
}

/**
 * oc_arg_read() - read a struct that begins with its size, as the caller knows it
 * @to: gets the struct; what the caller does not know is zero
 * @known: its size as the module knows it
 * @from: the caller's
 * @size: gets the caller's size
 *
 * Return: 0, or -EFAULT, -EINVAL: less than 8 bytes, -E2BIG: more than a page, or a member is not
 * zero that the module does not know.
 */
int oc_arg_read(void *to, size_t known, const void __user *from, u32 *size)
{
	if (get_user(*size, (const u32 __user *)from))
		return -EFAULT;
	if (*size < sizeof(u64))
		return -EINVAL;
	if (*size > PAGE_SIZE)
		return -E2BIG;
	return copy_struct_from_user(to, known, from, *size);
}

/**
 * oc_arg_write() - write such a struct back
 * @to: the caller's
 * @from: the struct
 * @known: its size as the module knows it
 * @size: its size as the caller knows it
 *
 * Return: 0 or -EFAULT.
 */
int oc_arg_write(void __user *to, const void *from, size_t known, u32 size)
{
	return copy_to_user(to, from, min_t(size_t, known, size)) ? -EFAULT : 0;
}

/**
 * oc_give_fd() - give the caller a descriptor for a file
 * @file: the file, or an error; consumed
 * @to: the caller's struct
 * @arg: the struct, which is written back
 * @known: its size as the module knows it
 * @size: its size as the caller knows it
 * @slot: the member of @arg that gets the descriptor
 *
 * Return: 0, or the error of @file, -EMFILE, -ENFILE or -EFAULT.
 */
int oc_give_fd(struct file *file, void __user *to, void *arg, size_t known, u32 size,
	       s32 *slot)
{
	int fd, err;

	if (IS_ERR(file))
		return PTR_ERR(file);
	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0) {
		fput(file);
		return fd;
	}
	*slot = fd;
	err = oc_arg_write(to, arg, known, size);
	if (err) {
		put_unused_fd(fd);
		fput(file);
		return err;
	}
	fd_install(fd, file);
	return 0;
}
