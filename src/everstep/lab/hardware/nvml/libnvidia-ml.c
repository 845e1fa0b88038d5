/* A libnvidia-ml.so.1 whose GPUs are the lines of a text file beside it. It has just the functions that Everstep asks,
 * with the names, structures and error codes of NVIDIA's nvml.h, so that NVIDIA's own Python binding runs against it.
 *
 * The file is `state` in the library's folder, read again at every call; everstep.lab.hardware.driver_state writes it.
 * A driver that hangs hangs here too: no call returns before it is mended.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, CORRUPTED_INFOROM = 14, GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999 };
enum { MAX_GPUS = 16, RECOVERY_ACTION_FIELD = 230, TYPE_UNSIGNED_INT = 1 };

struct gpu {
    char uuid[96], serial[32], pci[16], model[96];
    int lost, recovery, remap_pending, remap_failed, sram, fabric_state, fabric_status, inforom, width, max_width, broken;
    unsigned reasons;
};
struct driver { int loaded, hangs, count; struct gpu gpus[MAX_GPUS]; };

typedef struct device *device_t; /* index + 1 */
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef struct {
    unsigned field, scope; long long timestamp, latency; unsigned type, result; unsigned long long value;
} field_t;
typedef struct { unsigned version; unsigned long long counters[11]; unsigned exceeded; } sram_t;
typedef struct { unsigned version; unsigned char cluster[16]; unsigned status, clique, state, health; } fabric_t;

static int initialized;

/* Reads the file once. Anything that does not look as expected is an unknown error, never a healthy GPU. */
static int read_state(struct driver *driver) {
    Dl_info self;
    char path[4096], *slash;
    memset(driver, 0, sizeof *driver);
    if (!dladdr((void *)read_state, &self) || strlen(self.dli_fname) > sizeof path - 8) return UNKNOWN;
    strcpy(path, self.dli_fname);
    slash = strrchr(path, '/');
    strcpy(slash ? slash + 1 : path, "state");
    FILE *file = fopen(path, "r");
    if (!file) return DRIVER_NOT_LOADED;
    int result = fscanf(file, "driver loaded=%d hangs=%d\n", &driver->loaded, &driver->hangs) == 2 ? SUCCESS : UNKNOWN;
    while (result == SUCCESS && !feof(file) && driver->count < MAX_GPUS) {
        struct gpu *gpu = &driver->gpus[driver->count++];
        if (fscanf(file,
                   "gpu uuid=%95s serial=%31s pci=%15s lost=%d recovery=%d remap_pending=%d remap_failed=%d sram=%d "
                   "reasons=%x fabric_state=%d fabric_status=%d inforom=%d width=%d max_width=%d broken=%d model=%95[^\n]\n",
                   gpu->uuid, gpu->serial, gpu->pci, &gpu->lost, &gpu->recovery, &gpu->remap_pending,
                   &gpu->remap_failed, &gpu->sram, &gpu->reasons, &gpu->fabric_state, &gpu->fabric_status,
                   &gpu->inforom, &gpu->width, &gpu->max_width, &gpu->broken, gpu->model) != 16)
            result = UNKNOWN;
    }
    fclose(file);
    return result == SUCCESS && !driver->loaded ? DRIVER_NOT_LOADED : result;
}

/* The state now; of a driver that hangs, only when it no longer does. */
static int look(struct driver *driver) {
    int result = read_state(driver);
    while (driver->hangs) {
        usleep(50000);
        result = read_state(driver);
    }
    return result;
}

/* The GPU behind a handle, as it is now. */
static int find(device_t device, struct gpu *gpu) {
    struct driver driver;
    size_t number = (size_t)device;
    if (!initialized) return UNINITIALIZED;
    int result = look(&driver);
    if (result != SUCCESS) return result;
    if (number < 1 || number > (size_t)driver.count) return INVALID_ARGUMENT;
    *gpu = driver.gpus[number - 1];
    return gpu->lost ? GPU_IS_LOST : SUCCESS;
}

static int text(const char *from, char *to, unsigned size) {
    if (strlen(from) >= size) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) {
    struct driver driver;
    (void)flags;
    int result = look(&driver);
    initialized = result == SUCCESS;
    return result;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { int was = initialized; initialized = 0; return was ? SUCCESS : UNINITIALIZED; }
const char *nvmlErrorString(int result) { return result == UNKNOWN ? "Unknown Error" : "an NVML error"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    struct driver driver;
    if (!initialized) return UNINITIALIZED;
    int result = look(&driver);
    *count = driver.count;
    return result;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    struct gpu gpu;
    *device = (device_t)(size_t)(index + 1);
    return find(*device, &gpu);
}

int nvmlDeviceGetUUID(device_t device, char *to, unsigned size) {
    struct gpu gpu;
    int result = find(device, &gpu);
    return result == SUCCESS ? text(gpu.uuid, to, size) : result;
}

int nvmlDeviceGetSerial(device_t device, char *to, unsigned size) {
    struct gpu gpu;
    int result = find(device, &gpu);
    if (result == SUCCESS && !strcmp(gpu.serial, "-")) return NOT_SUPPORTED; /* as a consumer board */
    return result == SUCCESS ? text(gpu.serial, to, size) : result;
}

int nvmlDeviceGetName(device_t device, char *to, unsigned size) {
    struct gpu gpu;
    int result = find(device, &gpu);
    return result == SUCCESS ? text(gpu.model, to, size) : result;
}

int nvmlDeviceGetPciInfo_v3(device_t device, pci_t *pci) {
    struct gpu gpu;
    int result = find(device, &gpu);
    memset(pci, 0, sizeof *pci);
    if (result != SUCCESS) return result;
    if (sscanf(gpu.pci, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) != 3) return UNKNOWN;
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(device_t device, int count, field_t *values) {
    struct gpu gpu;
    int result = find(device, &gpu);
    for (int i = 0; result == SUCCESS && i < count; i++) {
        values[i].result = values[i].field == RECOVERY_ACTION_FIELD ? SUCCESS : NOT_SUPPORTED;
        values[i].type = TYPE_UNSIGNED_INT;
        values[i].value = (unsigned)gpu.recovery;
    }
    return result;
}

int nvmlDeviceGetRemappedRows(device_t device, unsigned *corr, unsigned *unc, unsigned *pending, unsigned *failed) {
    struct gpu gpu;
    int result = find(device, &gpu);
    if (result == SUCCESS && gpu.broken) return UNKNOWN;
    *corr = 0;
    *unc = (unsigned)(gpu.remap_pending + gpu.remap_failed);
    *pending = (unsigned)gpu.remap_pending;
    *failed = (unsigned)gpu.remap_failed;
    return result;
}

int nvmlDeviceGetSramEccErrorStatus(device_t device, sram_t *status) {
    struct gpu gpu;
    int result = find(device, &gpu);
    if (status->version != (1u << 24 | sizeof *status)) return ARGUMENT_VERSION_MISMATCH;
    status->exceeded = (unsigned)gpu.sram;
    return result;
}

int nvmlDeviceGetCurrentClocksEventReasons(device_t device, unsigned long long *reasons) {
    struct gpu gpu;
    int result = find(device, &gpu);
    *reasons = gpu.reasons;
    return result;
}

int nvmlDeviceGetGpuFabricInfoV(device_t device, fabric_t *info) {
    struct gpu gpu;
    int result = find(device, &gpu);
    if (info->version != (2u << 24 | sizeof *info)) return ARGUMENT_VERSION_MISMATCH;
    info->state = (unsigned)gpu.fabric_state;
    info->status = (unsigned)gpu.fabric_status;
    info->health = 0;
    return result;
}

int nvmlDeviceValidateInforom(device_t device) {
    struct gpu gpu;
    int result = find(device, &gpu);
    return result == SUCCESS && gpu.inforom ? CORRUPTED_INFOROM : result;
}

int nvmlDeviceGetCurrPcieLinkWidth(device_t device, unsigned *width) {
    struct gpu gpu;
    int result = find(device, &gpu);
    *width = (unsigned)gpu.width;
    return result;
}

int nvmlDeviceGetMaxPcieLinkWidth(device_t device, unsigned *width) {
    struct gpu gpu;
    int result = find(device, &gpu);
    *width = (unsigned)gpu.max_width;
    return result;
}
