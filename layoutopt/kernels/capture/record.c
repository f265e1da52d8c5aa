/* Records each distinct kernel launch of the process that loads this library.

   The driver loads it where CUDA_INJECTION64_PATH names it, and calls InitializeInjection. Callbacks of CUPTI
   then tell of loaded modules and of launches; no counters are read. The file launches.PID.toml of the folder
   $LAYOUTOPT_CAPTURE is written as the program runs: a launch when it is first seen, its count in place, so
   that a program that crashes leaves a file that can be read.

   Two launches are one where the kernel, the shape and the bytes of the parameters agree; of a parameter that
   points into memory of the GPU, the lowest byte and whether it points are compared, not where it points.
   $LAYOUTOPT_CAPTURE_DATA bytes at most of an allocation that a parameter points into are kept with the first
   of them (0: none). Of one kernel and shape, MOST_VARIANTS launches with different parameters are kept; more
   are counted as `not_recorded` of the last. */

#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST_VARIANTS = 16, MOST_PARAMETER_BYTES = 32764, COUNT_DIGITS = 12 };

/* ---- Maps from 64 bits to a pointer: chains in a fixed number of buckets. ---- */

enum { BUCKETS = 4096 };

typedef struct Node {
    uint64_t key;
    void *value;
    struct Node *next;
} Node;
typedef struct {
    Node *bucket[BUCKETS];
} Map;

static void **at(Map *map, uint64_t key, int make) {
    Node **place = &map->bucket[(key ^ key >> 17 ^ key >> 41) % BUCKETS];
    for (; *place; place = &(*place)->next)
        if ((*place)->key == key) return &(*place)->value;
    if (!make || !(*place = calloc(1, sizeof(Node)))) return NULL;
    (*place)->key = key;
    return &(*place)->value;
}

/* FNV-1a. */
static uint64_t digest(uint64_t seed, const void *data, size_t size) {
    const unsigned char *byte = data;
    uint64_t hash = seed ? seed : 0xcbf29ce484222325u;
    for (size_t k = 0; k < size; k++) hash = (hash ^ byte[k]) * 0x100000001b3u;
    return hash;
}

/* ---- What is known of the process. ---- */

typedef struct Module { /* a loaded module; its bytes until they are written */
    struct Module *older;
    uint32_t id;
    CUmodule handle; /* where it is known whose bytes these are */
    uint64_t name, *kernels;
    size_t kernel_count, size;
    void *bytes;
} Module;
typedef struct { /* a kernel, by the handle that launches it */
    uint64_t module;
    unsigned unloads; /* when it was found: handles may come again after another */
    char *name;
    int parameters;
    size_t *offset, *size, total;
} Kernel;
typedef struct { /* a launch as the host asks for it */
    CUfunction function;
    const char *symbol;
    unsigned grid[3], block[3], cluster[3], shared;
    void **parameters, **extra;
} Launch;
typedef struct { /* a launch in the file */
    off_t count_at, left_at;
    uint64_t count, left;
} Record;
typedef struct { /* launches of one kernel and shape */
    Record *last;
    int count;
} Shape;
typedef struct Replay { /* the records that a graph launches */
    int count, room;
    Record **records;
} Replay;

static Module *modules;
static _Atomic unsigned unloads;
static __thread uint32_t loaded; /* the module, within a call of the program to the driver */
static __thread int has_loaded;
static Map kernels, shapes, records, graphs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Of `modules` and `unloads`. The driver tells of modules while it holds locks of its own: who holds this one
   calls no driver, and who tells of modules takes no other. */
static pthread_mutex_t modules_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int inside; /* calls of ours to the driver are not those of the program */
static _Atomic int file = -1;
static int folder = -1;
static off_t spent_at;
static uint64_t spent_ns, most_data;
static CUpti_SubscriberHandle subscriber;

/* Functions of the driver, which is loaded before us; older drivers lack some. */
#define DRIVER(X) X(cuFuncGetModule) X(cuFuncGetName) X(cuFuncGetParamInfo) X(cuFuncLoad) X(cuKernelGetFunction) \
    X(cuStreamIsCapturing) X(cuMemGetAddressRange_v2) X(cuPointerGetAttribute) X(cuMemcpyDtoH_v2) \
    X(cuCtxSynchronize) X(cuGraphGetNodes) X(cuGraphNodeGetType) X(cuGraphKernelNodeGetParams_v2) \
    X(cuGraphChildGraphNodeGetGraph) X(cuGraphKernelNodeGetAttribute) \
    X(cuThreadExchangeStreamCaptureMode)
#define DECLARE(name) static __typeof__(&name) p_##name;
DRIVER(DECLARE)

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int put(int to, const void *data, size_t size) {
    for (const char *from = data; size;) {
        ssize_t wrote = write(to, from, size);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return 0;
        from += wrote, size -= (size_t)wrote;
    }
    return 1;
}

/* At the end of the file of launches, whole or, on a full disk, not at all. */
static int append(const void *data, size_t size) {
    off_t end = lseek(file, 0, SEEK_END);
    return put(file, data, size) || (ftruncate(file, end), 0);
}

/* A number in place, right-aligned in its field, so that the file is whole at any time. */
static void put_number(off_t place, uint64_t number) {
    char text[COUNT_DIGITS + 9];
    int length = snprintf(text, sizeof text, "%*llu", COUNT_DIGITS, (unsigned long long)number);
    if (pwrite(file, text, (size_t)length, place) < 0) return;
}

/* A file of the folder under a temporary name, then under its own. */
static void put_file(const char *name, const void *data, size_t size) {
    char temporary[80];
    snprintf(temporary, sizeof temporary, "%s.%d", name, (int)getpid());
    if (!faccessat(folder, name, F_OK, 0)) return;
    int to = openat(folder, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (to < 0) return;
    int whole = put(to, data, size);
    close(to);
    if (!whole || renameat(folder, temporary, folder, name)) unlinkat(folder, temporary, 0);
}

/* ---- Modules and kernels. ---- */

/* Names of the kernels of a cubin: those of its sections of code. */
static void name_kernels(Module *module) {
    const unsigned char *bytes = module->bytes;
    const Elf64_Ehdr *head = module->bytes;
    if (module->size < sizeof *head || memcmp(bytes, ELFMAG, SELFMAG) ||
        head->e_shoff + (uint64_t)head->e_shnum * sizeof(Elf64_Shdr) > module->size)
        return;
    const Elf64_Shdr *section = (const void *)(bytes + head->e_shoff);
    const char *names = (const char *)bytes + section[head->e_shstrndx].sh_offset;
    if (!(module->kernels = calloc(head->e_shnum, sizeof *module->kernels))) return;
    for (int k = 0; k < head->e_shnum; k++) {
        const char *name = names + section[k].sh_name;
        if (strncmp(name, ".text.", 6)) continue;
        module->kernels[module->kernel_count++] = digest(0, name + 6, strlen(name + 6));
    }
}

static void module_loaded(const CUpti_ModuleResourceData *told) {
    Module *module = told->pCubin ? calloc(1, sizeof *module) : NULL;
    if (!module || !(module->bytes = malloc(told->cubinSize))) return free(module);
    memcpy(module->bytes, told->pCubin, told->cubinSize);
    module->id = told->moduleId;
    module->size = told->cubinSize;
    module->name = digest(0, module->bytes, module->size);
    name_kernels(module);
    loaded = module->id;
    has_loaded = 1;
    pthread_mutex_lock(&modules_lock);
    module->older = modules;
    modules = module;
    pthread_mutex_unlock(&modules_lock);
}

static void module_unloads(const CUpti_ModuleResourceData *told) {
    pthread_mutex_lock(&modules_lock);
    for (Module **place = &modules; *place; place = &(*place)->older)
        if ((*place)->id == told->moduleId) {
            Module *module = *place;
            *place = module->older;
            free(module->bytes);
            free(module->kernels);
            free(module);
            break;
        }
    unloads++;
    pthread_mutex_unlock(&modules_lock);
}

/* The module that was loaded within a call has this handle. */
static void loaded_is(CUmodule handle) {
    pthread_mutex_lock(&modules_lock);
    for (Module *module = modules; module; module = module->older)
        if (module->id == loaded && !module->handle) module->handle = handle;
    pthread_mutex_unlock(&modules_lock);
}

/* The module of a handle; where no call told which, the newest one with such a kernel that is no other's. */
static Module *module_of(CUmodule handle, const char *name) {
    uint64_t wanted = digest(0, name, strlen(name));
    Module *found = NULL;
    for (Module *module = modules; module; module = module->older) {
        if (module->handle == handle && handle) return module;
        if (module->handle || found) continue;
        for (size_t k = 0; k < module->kernel_count; k++)
            if (module->kernels[k] == wanted) found = module;
    }
    if (found) found->handle = handle;
    return found;
}

/* Note the module of a kernel, and write its bytes where they are not written yet. */
static int find_module(Kernel *kernel, CUmodule handle) {
    pthread_mutex_lock(&modules_lock);
    kernel->unloads = unloads;
    Module *module = module_of(handle, kernel->name);
    if (module) {
        kernel->module = module->name;
        if (module->bytes) {
            char cubin[48];
            snprintf(cubin, sizeof cubin, "%016llx.cubin", (unsigned long long)module->name);
            put_file(cubin, module->bytes, module->size);
            free(module->bytes);
            module->bytes = NULL;
        }
    }
    pthread_mutex_unlock(&modules_lock);
    return module != NULL;
}

static Kernel *kernel_of(const Launch *launch) {
    void **place = at(&kernels, (uint64_t)(uintptr_t)launch->function, 1);
    if (!place) return NULL;
    Kernel *kernel = *place;
    if (kernel && kernel->unloads == unloads) return kernel;
    if (kernel) {
        free(kernel->name);
        free(kernel->offset);
        free(kernel->size);
        free(kernel);
    }
    *place = kernel = calloc(1, sizeof *kernel);
    if (!kernel) return NULL;
    CUfunction function = launch->function;
    CUmodule handle = NULL;
    if (p_cuFuncGetModule(&handle, function) != CUDA_SUCCESS && p_cuKernelGetFunction) {
        /* a kernel of a library is launched by its own handle, too */
        if (p_cuKernelGetFunction(&function, (CUkernel)launch->function) == CUDA_SUCCESS)
            p_cuFuncGetModule(&handle, function);
    }
    const char *name = launch->symbol;
    if (!name && p_cuFuncGetName) p_cuFuncGetName(&name, function);
    kernel->name = strdup(name ? name : "");
    if (!find_module(kernel, handle) && p_cuFuncLoad && p_cuFuncLoad(function) == CUDA_SUCCESS)
        find_module(kernel, handle); /* it would have been loaded by this launch */
    size_t offset, size;
    while (p_cuFuncGetParamInfo &&
           p_cuFuncGetParamInfo(function, (size_t)kernel->parameters, &offset, &size) == CUDA_SUCCESS) {
        size_t room = (size_t)(kernel->parameters + 1) * sizeof(size_t);
        kernel->offset = realloc(kernel->offset, room);
        kernel->size = realloc(kernel->size, room);
        if (!kernel->offset || !kernel->size || offset + size > MOST_PARAMETER_BYTES) break;
        kernel->offset[kernel->parameters] = offset;
        kernel->size[kernel->parameters++] = size;
        if (offset + size > kernel->total) kernel->total = offset + size;
    }
    return kernel;
}

/* ---- Launches. ---- */

/* The bytes of the parameters as the kernel finds them; how many. */
static size_t parameters_of(const Launch *launch, const Kernel *kernel, unsigned char *bytes) {
    if (launch->parameters) {
        memset(bytes, 0, kernel->total);
        for (int k = 0; k < kernel->parameters; k++)
            if (launch->parameters[k])
                memcpy(bytes + kernel->offset[k], launch->parameters[k], kernel->size[k]);
        return kernel->total;
    }
    const void *from = NULL;
    size_t size = 0;
    for (void **extra = launch->extra; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) from = extra[1];
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *(size_t *)extra[1];
    }
    if (!from || size > MOST_PARAMETER_BYTES) return 0;
    memcpy(bytes, from, size);
    return size;
}

/* The allocation of the GPU that a word of the parameters points into. */
static int allocation(uint64_t word, CUdeviceptr *base, size_t *size) {
    unsigned kind = 0;
    if (word < 1 << 20 || word >> 48) return 0;
    if (p_cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, word) != CUDA_SUCCESS) return 0;
    return p_cuMemGetAddressRange_v2(base, size, word) == CUDA_SUCCESS;
}

static void put_memory(CUdeviceptr base, size_t size) {
    char name[64], line[200];
    void *bytes = size <= most_data ? malloc(size) : NULL;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* a capture elsewhere is not to fail by us */
    if (p_cuThreadExchangeStreamCaptureMode) p_cuThreadExchangeStreamCaptureMode(&mode);
    if (bytes && p_cuCtxSynchronize() == CUDA_SUCCESS &&
        p_cuMemcpyDtoH_v2(bytes, base, size) == CUDA_SUCCESS) {
        snprintf(name, sizeof name, "%016llx.bin", (unsigned long long)digest(0, bytes, size));
        put_file(name, bytes, size);
        int length = snprintf(line, sizeof line, "[[launch.memory]]\naddress = 0x%llx\nfile = \"%s\"\n",
                              (unsigned long long)base, name);
        append(line, (size_t)length);
    }
    if (p_cuThreadExchangeStreamCaptureMode) p_cuThreadExchangeStreamCaptureMode(&mode);
    free(bytes);
}

static int put_extents(char *text, size_t room, const char *name, const unsigned *extent) {
    return snprintf(text, room, "%s = [%u, %u, %u]\n", name, extent[0], extent[1], extent[2]);
}

/* The record of a launch, written where it is new. */
static Record *recorded(const Launch *launch, int may_read) {
    static unsigned char bytes[MOST_PARAMETER_BYTES + 8], same[MOST_PARAMETER_BYTES + 8];
    Kernel *kernel = kernel_of(launch);
    if (!kernel) return NULL;
    size_t size = parameters_of(launch, kernel, bytes);
    memcpy(same, bytes, size);
    for (size_t k = 0; k + 8 <= size; k += 8) {
        uint64_t word;
        CUdeviceptr base;
        size_t length;
        memcpy(&word, bytes + k, 8);
        if (allocation(word, &base, &length)) {
            memset(same + k, 0xff, 8);
            same[k] = (unsigned char)word;
        }
    }
    uint64_t shape = digest(kernel->module, kernel->name, strlen(kernel->name));
    shape = digest(shape, launch->grid, sizeof launch->grid);
    shape = digest(shape, launch->block, sizeof launch->block);
    shape = digest(shape, launch->cluster, sizeof launch->cluster);
    shape = digest(shape, &launch->shared, sizeof launch->shared);
    void **known = at(&records, digest(shape, same, size), 1), **place = at(&shapes, shape, 1);
    if (!known || !place) return NULL;
    if (*known) return *known;
    Shape *variants = *place ? *place : (*place = calloc(1, sizeof *variants));
    if (!variants) return NULL;
    if (variants->count == MOST_VARIANTS) {
        put_number(variants->last->left_at, ++variants->last->left);
        return NULL;
    }
    static char text[2 * MOST_PARAMETER_BYTES + 20000];
    Record *record = calloc(1, sizeof *record);
    if (!record) return NULL;
    off_t end = lseek(file, 0, SEEK_END);
    int length = snprintf(text, sizeof text, "\n[[launch]]\nlaunches = ");
    record->count_at = end + length;
    length += snprintf(text + length, sizeof text - (size_t)length, "%*d\nnot_recorded = ", COUNT_DIGITS, 0);
    record->left_at = end + length;
    length += snprintf(text + length, sizeof text - (size_t)length, "%*d\n", COUNT_DIGITS, 0);
    if (kernel->module)
        length += snprintf(text + length, sizeof text - (size_t)length, "file = \"%016llx.cubin\"\n",
                           (unsigned long long)kernel->module);
    length += snprintf(text + length, 16100, "entry = \"%.16000s\"\n", kernel->name);
    length += put_extents(text + length, 80, "block", launch->block);
    length += put_extents(text + length, 80, "grid", launch->grid);
    if (launch->cluster[0]) length += put_extents(text + length, 80, "cluster", launch->cluster);
    length += snprintf(text + length, 80, "shared = %u\nparameters = \"", launch->shared);
    for (size_t k = 0; k < size; k++) length += snprintf(text + length, 3, "%02x", bytes[k]);
    length += snprintf(text + length, 3, "\"\n");
    if (!append(text, (size_t)length)) {
        free(record);
        return NULL;
    }
    for (size_t k = 0; may_read && most_data && k + 8 <= size; k += 8) {
        uint64_t word;
        CUdeviceptr base;
        size_t bytes_there;
        memcpy(&word, bytes + k, 8);
        if (allocation(word, &base, &bytes_there)) put_memory(base, bytes_there);
    }
    variants->last = record;
    variants->count++;
    return *known = record;
}

static void count(Record *record) {
    if (record) put_number(record->count_at, ++record->count);
}

static void launched(const Launch *launch, CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (p_cuStreamIsCapturing && p_cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
        status != CU_STREAM_CAPTURE_STATUS_NONE)
        return; /* nothing runs: the graph does, when it is launched */
    count(recorded(launch, 1));
}

/* ---- Graphs: their kernels when they are instantiated, counted when they are launched. ---- */

static void add_nodes(CUgraph graph, Replay *replay) {
    size_t count_ = 0;
    if (!p_cuGraphGetNodes || p_cuGraphGetNodes(graph, NULL, &count_) != CUDA_SUCCESS || !count_) return;
    CUgraphNode *nodes = calloc(count_, sizeof *nodes);
    if (!nodes || p_cuGraphGetNodes(graph, nodes, &count_) != CUDA_SUCCESS) count_ = 0;
    for (size_t k = 0; k < count_; k++) {
        CUgraphNodeType type;
        CUgraph child;
        CUDA_KERNEL_NODE_PARAMS told;
        if (p_cuGraphNodeGetType(nodes[k], &type) != CUDA_SUCCESS) continue;
        if (type == CU_GRAPH_NODE_TYPE_GRAPH && p_cuGraphChildGraphNodeGetGraph(nodes[k], &child) == CUDA_SUCCESS)
            add_nodes(child, replay);
        memset(&told, 0, sizeof told);
        if (type != CU_GRAPH_NODE_TYPE_KERNEL ||
            p_cuGraphKernelNodeGetParams_v2(nodes[k], &told) != CUDA_SUCCESS)
            continue;
        Launch launch = {told.func ? told.func : (CUfunction)told.kern, NULL,
                         {told.gridDimX, told.gridDimY, told.gridDimZ},
                         {told.blockDimX, told.blockDimY, told.blockDimZ}, {0, 0, 0},
                         told.sharedMemBytes, told.kernelParams, told.extra};
        CUlaunchAttributeValue cluster;
        if (p_cuGraphKernelNodeGetAttribute &&
            p_cuGraphKernelNodeGetAttribute(nodes[k], CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &cluster) ==
                CUDA_SUCCESS && cluster.clusterDim.x > 0) {
            launch.cluster[0] = cluster.clusterDim.x;
            launch.cluster[1] = cluster.clusterDim.y;
            launch.cluster[2] = cluster.clusterDim.z;
        }
        Record *record = recorded(&launch, 0);
        if (!record) continue;
        if (replay->count == replay->room) {
            replay->room = 2 * replay->room + 16;
            Record **more = realloc(replay->records, (size_t)replay->room * sizeof *more);
            if (!more) break;
            replay->records = more;
        }
        replay->records[replay->count++] = record;
    }
    free(nodes);
}

static void graph_made(CUgraphExec made, CUgraph graph) {
    void **place = at(&graphs, (uint64_t)(uintptr_t)made, 1);
    Replay *replay = place ? calloc(1, sizeof *replay) : NULL;
    if (!replay) return;
    add_nodes(graph, replay);
    if (*place) free(((Replay *)*place)->records); /* another had the handle, or it was updated */
    free(*place);
    *place = replay;
}

static void graph_launched(CUgraphExec graph) {
    void **place = at(&graphs, (uint64_t)(uintptr_t)graph, 0);
    Replay *replay = place ? *place : NULL;
    for (int k = 0; replay && k < replay->count; k++) count(replay->records[k]);
}

/* ---- Callbacks. ---- */

#define DIMENSIONS(p) {(p)->gridDimX, (p)->gridDimY, (p)->gridDimZ}, {(p)->blockDimX, (p)->blockDimY, (p)->blockDimZ}

/* The stream that 0 means: the thread's own in programs that are compiled so. */
#define STREAM(given, call) ((given) || id != CUPTI_DRIVER_TRACE_CBID_##call##_ptsz ? (given) : CU_STREAM_PER_THREAD)

static void driver_called(CUpti_CallbackId id, const CUpti_CallbackData *call) {
    const void *told = call->functionParams;
    if (call->callbackSite == CUPTI_API_EXIT) {
        CUmodule handle = NULL;
        if (has_loaded) switch (id) { /* whose bytes were loaded within this call */
            case CUPTI_DRIVER_TRACE_CBID_cuModuleLoad: case CUPTI_DRIVER_TRACE_CBID_cuModuleLoadData:
            case CUPTI_DRIVER_TRACE_CBID_cuModuleLoadDataEx: case CUPTI_DRIVER_TRACE_CBID_cuModuleLoadFatBinary:
                loaded_is(*((const cuModuleLoadData_params *)told)->module);
                break;
            case CUPTI_DRIVER_TRACE_CBID_cuModuleGetFunction:
                loaded_is(((const cuModuleGetFunction_params *)told)->hmod);
                break;
            case CUPTI_DRIVER_TRACE_CBID_cuKernelGetFunction:
                if (p_cuFuncGetModule(&handle, *((const cuKernelGetFunction_params *)told)->pFunc) == CUDA_SUCCESS)
                    loaded_is(handle);
            }
        has_loaded = 0;
        if (*(const CUresult *)call->functionReturnValue != CUDA_SUCCESS) return;
        switch (id) { /* all begin with the handle that was made, and the graph */
        case CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiate:
        case CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiate_v2:
        case CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithFlags:
        case CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithParams:
        case CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithParams_ptsz: {
            const cuGraphInstantiateWithFlags_params *p = told;
            graph_made(*p->phGraphExec, p->hGraph);
            break;
        }
        case CUPTI_DRIVER_TRACE_CBID_cuGraphExecUpdate: case CUPTI_DRIVER_TRACE_CBID_cuGraphExecUpdate_v2: {
            const cuGraphExecUpdate_v2_params *p = told;
            graph_made(p->hGraphExec, p->hGraph);
        }
        }
        return;
    }
    switch (id) {
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz: {
        const cuLaunchKernel_params *p = told;
        Launch launch = {p->f, call->symbolName, DIMENSIONS(p), {0, 0, 0}, p->sharedMemBytes, p->kernelParams, p->extra};
        launched(&launch, STREAM(p->hStream, cuLaunchKernel));
        break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz: {
        const cuLaunchCooperativeKernel_params *p = told;
        Launch launch = {p->f, call->symbolName, DIMENSIONS(p), {0, 0, 0}, p->sharedMemBytes, p->kernelParams, NULL};
        launched(&launch, STREAM(p->hStream, cuLaunchCooperativeKernel));
        break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz: {
        const cuLaunchKernelEx_params *p = told;
        const CUlaunchConfig *c = p->config;
        Launch launch = {p->f, call->symbolName, DIMENSIONS(c), {0, 0, 0}, c->sharedMemBytes, p->kernelParams, p->extra};
        for (unsigned k = 0; k < c->numAttrs; k++)
            if (c->attrs[k].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
                launch.cluster[0] = c->attrs[k].value.clusterDim.x;
                launch.cluster[1] = c->attrs[k].value.clusterDim.y;
                launch.cluster[2] = c->attrs[k].value.clusterDim.z;
            }
        launched(&launch, STREAM(c->hStream, cuLaunchKernelEx));
        break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch:
    case CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz:
        graph_launched(((const cuGraphLaunch_params *)told)->hGraph);
    }
}

static void CUPTIAPI called(void *unused, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *told) {
    (void)unused;
    if (file < 0) return;
    if (domain == CUPTI_CB_DOMAIN_RESOURCE) { /* what we call may load a module, too */
        const CUpti_ResourceData *resource = told;
        if (id == CUPTI_CBID_RESOURCE_MODULE_LOADED) module_loaded(resource->resourceDescriptor);
        if (id == CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING) module_unloads(resource->resourceDescriptor);
    } else if (!inside) {
        uint64_t began = now_ns();
        pthread_mutex_lock(&lock);
        inside = 1;
        if (file >= 0) driver_called(id, told); /* it may have ended meanwhile */
        inside = 0;
        spent_ns += now_ns() - began;
        pthread_mutex_unlock(&lock);
    }
}

__attribute__((destructor)) static void ends(void) {
    if (file >= 0) put_number(spent_at, spent_ns / 1000);
}

/* A child of fork shares the file with its parent, and cannot use the GPU: it writes nothing. */
static void forked(void) { file = -1; }

/* For a process that is recorded from within: begins, or ends. 0 where it is recorded; once, since what is known
   of modules and launches belongs to one folder. */
int layoutopt_capture_begin(const char *where, unsigned long long data) {
    char text[400];
    if (spent_at) return 1;
    most_data = data;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
#define LOAD(name) p_##name = driver ? (__typeof__(&name))dlsym(driver, #name) : NULL;
    DRIVER(LOAD)
    folder = open(where, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    snprintf(text, sizeof text, "launches.%d.toml", (int)getpid());
    if (folder < 0 || !p_cuFuncGetModule) return 1;
    file = openat(folder, text, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) return 1;
    int length = snprintf(text, sizeof text, "schema = \"layoutopt.launches/1\"\nspent_us = ");
    spent_at = length;
    length += snprintf(text + length, sizeof text - (size_t)length, "%*d\n", COUNT_DIGITS, 0);
    put(file, text, (size_t)length);
    pthread_atfork(NULL, NULL, forked);
    if (cuptiSubscribe(&subscriber, called, NULL) != CUPTI_SUCCESS) { /* another tool is */
        close(file);
        file = -1;
        return 1;
    }
    cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE);
    static const CUpti_CallbackId wanted[] = {
        CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
        CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz,
        CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz,
        CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiate, CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiate_v2,
        CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithFlags, CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithParams,
        CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithParams_ptsz, CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch,
        CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz, CUPTI_DRIVER_TRACE_CBID_cuGraphExecUpdate,
        CUPTI_DRIVER_TRACE_CBID_cuGraphExecUpdate_v2, CUPTI_DRIVER_TRACE_CBID_cuModuleLoad,
        CUPTI_DRIVER_TRACE_CBID_cuModuleLoadData, CUPTI_DRIVER_TRACE_CBID_cuModuleLoadDataEx,
        CUPTI_DRIVER_TRACE_CBID_cuModuleLoadFatBinary, CUPTI_DRIVER_TRACE_CBID_cuModuleGetFunction,
        CUPTI_DRIVER_TRACE_CBID_cuKernelGetFunction};
    for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++)
        cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, wanted[k]);
    return 0;
}

int InitializeInjection(void) {
    const char *where = getenv("LAYOUTOPT_CAPTURE"), *data = getenv("LAYOUTOPT_CAPTURE_DATA");
    if (where) layoutopt_capture_begin(where, data ? strtoull(data, NULL, 10) : 0);
    return 1;
}

void layoutopt_capture_end(void) {
    if (file < 0) return;
    cuptiUnsubscribe(subscriber);
    pthread_mutex_lock(&lock); /* another thread may be in a callback */
    put_number(spent_at, spent_ns / 1000);
    close(file);
    close(folder);
    file = -1;
    pthread_mutex_unlock(&lock);
}
