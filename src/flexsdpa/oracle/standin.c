/* A stand-in for the NVIDIA driver library, for a child process that only builds plans and never runs one.
 * It reports that there is no device; what hands out handles succeeds with nothing in them; launches fail. */

enum { SUCCESS = 0, NO_DEVICE = 100, BAD_DEVICE = 101 };

int cuInit(unsigned flags) { (void)flags; return NO_DEVICE; }
int cuDeviceGetCount(int *count) { if (count) *count = 0; return SUCCESS; }
int cuDeviceGet(int *device, int ordinal) { (void)device; (void)ordinal; return BAD_DEVICE; }
int cuDriverGetVersion(int *version) { if (version) *version = 13000; return SUCCESS; }
int cuGetErrorString(int error, const char **text) { (void)error; if (text) *text = "stand-in driver"; return SUCCESS; }
int cuGetErrorName(int error, const char **text) { (void)error; if (text) *text = "STAND_IN"; return SUCCESS; }

#define SUCCEEDS(name) int name(void) { return SUCCESS; }
#define FAILS(name) int name(void) { return NO_DEVICE; }

SUCCEEDS(cuCtxGetCurrent) SUCCEEDS(cuCtxPushCurrent) SUCCEEDS(cuCtxPopCurrent) SUCCEEDS(cuCtxGetLimit)
SUCCEEDS(cuStreamGetCtx) SUCCEEDS(cuThreadExchangeStreamCaptureMode)
SUCCEEDS(cuLibraryLoadData) SUCCEEDS(cuLibraryLoadFromFile) SUCCEEDS(cuLibraryGetKernel) SUCCEEDS(cuLibraryUnload)
SUCCEEDS(cuKernelGetFunction) SUCCEEDS(cuKernelSetAttribute) SUCCEEDS(cuKernelGetAttribute)
SUCCEEDS(cuOccupancyMaxPotentialClusterSize)
SUCCEEDS(cuModuleLoadData) SUCCEEDS(cuModuleGetFunction) SUCCEEDS(cuModuleUnload)
SUCCEEDS(cuLinkCreate) SUCCEEDS(cuLinkAddData) SUCCEEDS(cuLinkComplete) SUCCEEDS(cuLinkDestroy)
SUCCEEDS(cuTensorMapEncodeTiled) SUCCEEDS(cuTensorMapEncodeIm2col)

FAILS(cuLaunchKernel) FAILS(cuLaunchCooperativeKernel) FAILS(cuLaunchKernelEx)
