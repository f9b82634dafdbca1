/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What test programs use of the CUDA driver interface, under the names of its exported symbols. A program that is built
 * with this header runs on a real driver and on the one in software beside it.
 */
#ifndef ONECOPY_TEST_DRIVER_H
#define ONECOPY_TEST_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct module *CUmodule;
typedef struct function *CUfunction;
typedef struct pool *CUmemoryPool;
typedef unsigned long long CUmemGenericAllocationHandle;

typedef struct {
	char reserved[64];
} CUipcMemHandle;

typedef struct {
	char reserved[64];
} CUipcEventHandle;

typedef struct {
	int type;
	int id;
} CUmemLocation;

typedef struct {
	int type;
	int requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	unsigned char allocFlags[8];
} CUmemAllocationProp;

typedef struct {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;

typedef struct {
	int allocType;
	int handleTypes;
	CUmemLocation location;
	void *win32SecurityAttributes;
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54];
} CUmemPoolProps;

typedef struct {
	unsigned char reserved[64];
} CUmemPoolPtrExportData;

enum {
	CU_STREAM_NON_BLOCKING = 1,
	CU_EVENT_DISABLE_TIMING = 2,
	CU_MEM_ATTACH_GLOBAL = 1,
};

#define CU_STREAM_PER_THREAD ((CUstream)2)

CUresult cuInit(unsigned int flags);
CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags);
CUresult cuMemAllocHost_v2(void **memory, size_t bytes);
CUresult cuMemFreeHost(void *memory);
CUresult cuMemHostRegister_v2(void *memory, size_t bytes, unsigned int flags);
CUresult cuMemHostUnregister(void *memory);
CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream);
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
		     unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wanted,
			     unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes);
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
		  unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes);
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address);
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle);
CUresult cuMemExportToShareableHandle(void *shared, CUmemGenericAllocationHandle handle, int type,
				      unsigned long long flags);
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared, int type);
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props);
CUresult cuMemPoolDestroy(CUmemoryPool pool);
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream);
CUresult cuMemPoolExportToShareableHandle(void *shared, CUmemoryPool pool, int type, unsigned long long flags);
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shared, int type, unsigned long long flags);
CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr address);
CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, CUmemPoolPtrExportData *data);
CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr address);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
			unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
			CUstream stream, void **parameters, void **extra);

/* Of the driver in software alone. */

/* Makes it fail: what, and after how many more operations of that kind. */
enum model_fault {
	MODEL_NO_FAULT,
	MODEL_OUT_OF_MEMORY,
	MODEL_ILLEGAL_ADDRESS,
	MODEL_LOST_CONTEXT,
	MODEL_NO_REGISTRATION,
	/* No event behind a long copy that is not done. */
	MODEL_NO_EVENT,
	/* So many times no memory of a pool is taken back in the order of a stream. */
	MODEL_NO_FREE
};
void cuModelFault(enum model_fault fault, int after);
/* Calls that waited for the device, or put work into a default stream, so far. */
unsigned long cuModelBlockingCalls(void);
/* Says that the program captures a stream: then only threads that ask for it may use the device. */
void cuModelCapture(int on);
/* Whether a call broke such a capture. */
int cuModelCaptureIsBroken(void);
/* Allocations, streams and events that are there. */
unsigned long cuModelObjects(void);
/* Bytes of host memory that are registered. */
unsigned long cuModelRegistered(void);
/* Questions about addresses, and copies, so far. */
unsigned long cuModelQueries(void);
unsigned long cuModelCopies(void);
/* Copies between devices so far, but for short ones. */
unsigned long cuModelBetween(void);
/* Mappings of other processes' memory that are open, and how many were opened so far. Calls that no program may make,
 * such as closing one while work names it, or to name a stream of a context that has ended. */
unsigned long cuModelMappings(void);
unsigned long cuModelOpenings(void);
unsigned long cuModelMisuses(void);
/* How often it was asked to show memory to other processes, by a handle or a descriptor. */
unsigned long cuModelShowings(void);
/* How often the calling thread has made a context its own: before any work. */
unsigned long cuModelEntries(void);
/* Keeps a thread that begins a copy in that call, as a driver does whose lock another thread holds. */
void cuModelStall(int on);
/* Threads that are kept so. */
unsigned long cuModelStalled(void);
/* Holds back copies of a device until they are let go: how a device that is stuck looks from outside. 1: all, 2: all
 * but short ones. */
void cuModelHold(int device, int on);

/*
 * A kernel that occupies the whole device until a word of memory has a value. The driver in software knows it by its
 * name.
 */
#define SPIN_PTX                                                                                                       \
	".version 7.0\n.target sm_75\n.address_size 64\n"                                                              \
	".visible .entry spin(.param .u64 word, .param .u32 value)\n{\n"                                               \
	".reg .u64 %rd<2>;\n.reg .u32 %r<3>;\n.reg .pred %p<2>;\n"                                                     \
	"ld.param.u64 %rd1, [word];\nld.param.u32 %r1, [value];\n"                                                     \
	"AGAIN:\nld.volatile.global.u32 %r2, [%rd1];\nsetp.ne.u32 %p1, %r2, %r1;\n@%p1 bra AGAIN;\nret;\n}\n"

#endif
