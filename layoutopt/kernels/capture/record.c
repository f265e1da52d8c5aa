/* Records each distinct kernel launch of the process that loads this library.

   The driver loads it where CUDA_INJECTION64_PATH names it, and calls InitializeInjection. Callbacks of CUPTI
   then tell of loaded modules and of launches; no counters are read. The file launches.PID.toml of the folder
   $LAYOUTOPT_CAPTURE is written as the program runs: a launch when it is first seen, its count in place, so
   that a program that crashes leaves a file that can be read.

   Two launches are one where the kernel, the shape and the bytes of the parameters agree; of a parameter that
   points into memory of the GPU, the lowest byte and whether it points are compared, not where it points.
   $LAYOUTOPT_CAPTURE_DATA bytes at most of an allocation that a parameter points into are kept with the first
   of them (0: none). Of one kernel and shape, MOST_VARIANTS launches with different parameters are kept; more
   are counted as `not_recorded` of the last. What is known to have run and is in no record is counted in
   [missed]. */

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

typedef struct { /* a number in the file, and where */
    off_t at;
    uint64_t number;
} Count;
typedef struct Module { /* a loaded module; its bytes until they are written */
    struct Module *older;
    uint32_t id;
    int nests; /* kernels of it can launch others */
    CUmodule handle; /* where it is known whose bytes these are */
    uint64_t name, *kernels;
    size_t kernel_count, size;
    void *bytes;
} Module;
typedef struct { /* a kernel, by the handle that launches it */
    uint64_t module;
    unsigned unloads; /* when it was found: handles may come again after another */
    int nests;
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
typedef struct { /* launches of one kernel and shape in the file: of those kept, the last, and of the others */
    Count *left;
    int kept;
} Shape;
typedef struct { /* a node of a graph, and what its run counts; as a whole where it is known no better */
    CUgraphNode node;
    Count *count;
    int disabled;
} Step;
typedef struct { /* what a graph runs each time it is launched */
    int count, room;
    Step *steps;
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
static uint64_t spent_ns, most_data;
static Count spent, unwritten, unfollowed, nested;
static __thread Count *counted; /* by the launch that this thread is in: it may yet fail */
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
        module->nests |= !strncmp(name + 6, "__cudaCDP2LaunchDevice", 22);
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
        kernel->nests = module->nests;
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

static void count(Count *what, int more) { put_number(what->at, what->number += (uint64_t)(int64_t)more); }

#define DIMENSIONS(p) {(p)->gridDimX, (p)->gridDimY, (p)->gridDimZ}, {(p)->blockDimX, (p)->blockDimY, (p)->blockDimZ}

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

/* A number's field in a text that is written at `begin` of the file. */
static int put_field(char *text, size_t room, off_t begin, const char *name, Count *count) {
    int length = snprintf(text, room, "%s = ", name);
    count->at = begin + length;
    return length + snprintf(text + length, room - (size_t)length, "%*d\n", COUNT_DIGITS, 0);
}

/* What counts a launch: its record, written where it is new, or that it is in none. */
static Count *recorded(const Launch *launch, int may_read) {
    static unsigned char bytes[MOST_PARAMETER_BYTES + 8], same[MOST_PARAMETER_BYTES + 8];
    Kernel *kernel = kernel_of(launch);
    if (!kernel) return &unwritten;
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
    if (!known || !place) return &unwritten;
    if (*known) return *known;
    Shape *variants = *place ? *place : (*place = calloc(1, sizeof *variants));
    if (!variants) return &unwritten;
    if (variants->kept == MOST_VARIANTS) return variants->left;
    static char text[2 * MOST_PARAMETER_BYTES + 20000];
    Count *counts = calloc(2, sizeof *counts); /* of these parameters, and of those that are left out after them */
    if (!counts) return &unwritten;
    off_t end = lseek(file, 0, SEEK_END);
    int length = snprintf(text, sizeof text, "\n[[launch]]\n");
    length += put_field(text + length, 80, end + length, "launches", &counts[0]);
    length += put_field(text + length, 80, end + length, "not_recorded", &counts[1]);
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
        free(counts);
        return &unwritten;
    }
    for (size_t k = 0; may_read && most_data && k + 8 <= size; k += 8) {
        uint64_t word;
        CUdeviceptr base;
        size_t bytes_there;
        memcpy(&word, bytes + k, 8);
        if (allocation(word, &base, &bytes_there)) put_memory(base, bytes_there);
    }
    variants->left = &counts[1];
    variants->kept++;
    if (kernel->nests) count(&nested, 1);
    put_number(spent.at, spent_ns / 1000); /* for a program that crashes */
    return *known = &counts[0];
}

static int is_capturing(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return p_cuStreamIsCapturing && p_cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static void launched(const Launch *launch, CUstream stream) {
    if (is_capturing(stream)) return; /* nothing runs: the graph does, when it is launched */
    count(counted = recorded(launch, 1), 1);
}

/* ---- Graphs: their kernels when they are instantiated, counted when they are launched. ---- */

static void add_step(Replay *replay, CUgraphNode node, Count *counts) {
    if (replay->count == replay->room) {
        int room = 2 * replay->room + 16;
        Step *more = realloc(replay->steps, (size_t)room * sizeof *more);
        if (!more) return count(&unwritten, 1);
        replay->steps = more;
        replay->room = room;
    }
    replay->steps[replay->count++] = (Step){node, counts, 0};
}

/* What counts a run of a kernel's node. */
static Count *node_count(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *told) {
    Launch launch = {told->func ? told->func : (CUfunction)told->kern, NULL, DIMENSIONS(told), {0, 0, 0},
                     told->sharedMemBytes, told->kernelParams, told->extra};
    CUlaunchAttributeValue value;
    if (p_cuGraphKernelNodeGetAttribute &&
        p_cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value) == CUDA_SUCCESS &&
        value.clusterDim.x > 0) {
        launch.cluster[0] = value.clusterDim.x;
        launch.cluster[1] = value.clusterDim.y;
        launch.cluster[2] = value.clusterDim.z;
    }
    return recorded(&launch, 0);
}

static void add_nodes(CUgraph graph, Replay *replay) {
    size_t count_ = 0;
    if (!p_cuGraphGetNodes || p_cuGraphGetNodes(graph, NULL, &count_) != CUDA_SUCCESS) {
        add_step(replay, NULL, &unfollowed);
        return;
    }
    CUgraphNode *nodes = calloc(count_ + 1, sizeof *nodes);
    if (!nodes || p_cuGraphGetNodes(graph, nodes, &count_) != CUDA_SUCCESS) {
        add_step(replay, NULL, &unfollowed);
        count_ = 0;
    }
    for (size_t k = 0; k < count_; k++) {
        CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
        CUgraph child;
        CUDA_KERNEL_NODE_PARAMS told;
        memset(&told, 0, sizeof told);
        int is_read = p_cuGraphNodeGetType(nodes[k], &type) == CUDA_SUCCESS;
        if (type == CU_GRAPH_NODE_TYPE_GRAPH && p_cuGraphChildGraphNodeGetGraph(nodes[k], &child) == CUDA_SUCCESS)
            add_nodes(child, replay);
        else if (type == CU_GRAPH_NODE_TYPE_KERNEL &&
                 p_cuGraphKernelNodeGetParams_v2(nodes[k], &told) == CUDA_SUCCESS)
            add_step(replay, nodes[k], node_count(nodes[k], &told));
        else if (!is_read || type == CU_GRAPH_NODE_TYPE_GRAPH || type == CU_GRAPH_NODE_TYPE_KERNEL ||
                 type == CU_GRAPH_NODE_TYPE_CONDITIONAL) /* how often its body runs is decided on the GPU */
            add_step(replay, nodes[k], &unfollowed);
    }
    free(nodes);
}

static void graph_made(CUgraphExec made, CUgraph graph, int is_update) {
    void **place = at(&graphs, (uint64_t)(uintptr_t)made, 1);
    Replay *replay = place ? calloc(1, sizeof *replay) : NULL, *before = place ? *place : NULL;
    if (!replay) return;
    add_nodes(graph, replay);
    /* Nodes go by the names that they had in the graph of which it was made, and stay disabled. */
    for (int k = 0; is_update && before && before->count == replay->count && k < replay->count; k++) {
        replay->steps[k].node = before->steps[k].node;
        replay->steps[k].disabled = before->steps[k].disabled;
    }
    if (before) free(before->steps); /* it was updated, or another had the handle */
    free(before);
    *place = replay;
}

/* A node of a graph that is made was changed: what counts it from now on, or (NULL) whether it is disabled. */
static void node_changed(CUgraphExec graph, CUgraphNode node, Count *counts, int disabled) {
    void **place = at(&graphs, (uint64_t)(uintptr_t)graph, 0);
    Replay *replay = place ? *place : NULL;
    for (int k = 0; replay && k < replay->count; k++)
        if (replay->steps[k].node == node) {
            if (counts) replay->steps[k].count = counts;
            else replay->steps[k].disabled = disabled;
            return;
        }
    if (replay && counts) add_step(replay, node, &unfollowed);
}

static void graph_launched(CUgraphExec graph, CUstream stream) {
    if (is_capturing(stream)) return; /* it becomes a node */
    void **place = at(&graphs, (uint64_t)(uintptr_t)graph, 0);
    Replay *replay = place ? *place : NULL;
    if (!replay) count(&unfollowed, 1);
    for (int k = 0; replay && k < replay->count; k++)
        if (!replay->steps[k].disabled) count(replay->steps[k].count, 1);
}

/* ---- Callbacks. ---- */

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
        int fails = *(const CUresult *)call->functionReturnValue != CUDA_SUCCESS;
        if (fails && counted) count(counted, -1);
        counted = NULL;
        if (fails) return;
        switch (id) { /* all that make graphs begin with the handle, and the graph */
        case CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiate:
        case CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiate_v2:
        case CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithFlags:
        case CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithParams:
        case CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithParams_ptsz: {
            const cuGraphInstantiateWithFlags_params *p = told;
            graph_made(*p->phGraphExec, p->hGraph, 0);
            break;
        }
        case CUPTI_DRIVER_TRACE_CBID_cuGraphExecUpdate: case CUPTI_DRIVER_TRACE_CBID_cuGraphExecUpdate_v2: {
            const cuGraphExecUpdate_v2_params *p = told;
            graph_made(p->hGraphExec, p->hGraph, 1);
            break;
        }
        case CUPTI_DRIVER_TRACE_CBID_cuGraphExecKernelNodeSetParams: {
            const cuGraphExecKernelNodeSetParams_params *p = told;
            CUDA_KERNEL_NODE_PARAMS now = {0};
            memcpy(&now, p->nodeParams, sizeof *p->nodeParams); /* the others come after these */
            node_changed(p->hGraphExec, p->hNode, node_count(p->hNode, &now), 0);
            break;
        }
        case CUPTI_DRIVER_TRACE_CBID_cuGraphExecKernelNodeSetParams_v2: {
            const cuGraphExecKernelNodeSetParams_v2_params *p = told;
            node_changed(p->hGraphExec, p->hNode, node_count(p->hNode, p->nodeParams), 0);
            break;
        }
        case CUPTI_DRIVER_TRACE_CBID_cuGraphExecNodeSetParams: {
            const cuGraphExecNodeSetParams_params *p = told;
            const void *kernel = &p->nodeParams->kernel; /* of the same fields */
            if (p->nodeParams->type == CU_GRAPH_NODE_TYPE_KERNEL)
                node_changed(p->hGraphExec, p->hNode, node_count(p->hNode, kernel), 0);
            if (p->nodeParams->type == CU_GRAPH_NODE_TYPE_GRAPH)
                node_changed(p->hGraphExec, p->hNode, &unfollowed, 0);
            break;
        }
        case CUPTI_DRIVER_TRACE_CBID_cuGraphExecChildGraphNodeSetParams: {
            const cuGraphExecChildGraphNodeSetParams_params *p = told;
            node_changed(p->hGraphExec, p->hNode, &unfollowed, 0);
            break;
        }
        case CUPTI_DRIVER_TRACE_CBID_cuGraphNodeSetEnabled: {
            const cuGraphNodeSetEnabled_params *p = told;
            node_changed(p->hGraphExec, p->hNode, NULL, !p->isEnabled);
            break;
        }
        case CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch: case CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz: {
            const cuGraphLaunch_params *p = told;
            graph_launched(p->hGraph, STREAM(p->hStream, cuGraphLaunch));
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
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernelMultiDevice: {
        const cuLaunchCooperativeKernelMultiDevice_params *p = told;
        for (const CUDA_LAUNCH_PARAMS *one = p->launchParamsList; one < p->launchParamsList + p->numDevices; one++) {
            Launch launch = {one->function, NULL, DIMENSIONS(one), {0, 0, 0}, one->sharedMemBytes, one->kernelParams, NULL};
            launched(&launch, one->hStream);
        }
        break;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuLaunch: case CUPTI_DRIVER_TRACE_CBID_cuLaunchGrid:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchGridAsync: /* CUDA 3's */
        count(counted = &unfollowed, 1);
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
    if (file >= 0) put_number(spent.at, spent_ns / 1000);
}

/* A child of fork shares the file with its parent, and cannot use the GPU: it writes nothing. */
static void forked(void) { file = -1; }

/* For a process that is recorded from within: begins, or ends. 0 where it is recorded; once, since what is known
   of modules and launches belongs to one folder. */
int layoutopt_capture_begin(const char *where, unsigned long long data) {
    char text[400];
    if (spent.at) return 1;
    most_data = data;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
#define LOAD(name) p_##name = driver ? (__typeof__(&name))dlsym(driver, #name) : NULL;
    DRIVER(LOAD)
    folder = open(where, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    snprintf(text, sizeof text, "launches.%d.toml", (int)getpid());
    if (folder < 0 || !p_cuFuncGetModule) return 1;
    file = openat(folder, text, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) return 1;
    int length = snprintf(text, sizeof text, "schema = \"layoutopt.launches/1\"\n");
    length += put_field(text + length, 80, length, "spent_us", &spent);
    length += snprintf(text + length, 80, "[missed]\n");
    length += put_field(text + length, 80, length, "unwritten", &unwritten);
    length += put_field(text + length, 80, length, "unfollowed", &unfollowed);
    length += put_field(text + length, 80, length, "nested", &nested);
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
        CUPTI_DRIVER_TRACE_CBID_cuKernelGetFunction, CUPTI_DRIVER_TRACE_CBID_cuGraphExecKernelNodeSetParams,
        CUPTI_DRIVER_TRACE_CBID_cuGraphExecKernelNodeSetParams_v2, CUPTI_DRIVER_TRACE_CBID_cuGraphExecNodeSetParams,
        CUPTI_DRIVER_TRACE_CBID_cuGraphExecChildGraphNodeSetParams, CUPTI_DRIVER_TRACE_CBID_cuGraphNodeSetEnabled,
        CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernelMultiDevice, CUPTI_DRIVER_TRACE_CBID_cuLaunch,
        CUPTI_DRIVER_TRACE_CBID_cuLaunchGrid, CUPTI_DRIVER_TRACE_CBID_cuLaunchGridAsync};
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
    put_number(spent.at, spent_ns / 1000);
    close(file);
    close(folder);
    file = -1;
    pthread_mutex_unlock(&lock);
}
