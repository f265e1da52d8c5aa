/* The recorder between a driver and a CUPTI that are played here: what each call is to leave in the folder
   argv[1]. `threads` as argv[2]: four threads at once, ended while they run where argv[3] is there. */

#include <dlfcn.h>
static void *stub(const char *name);
#define dlopen(name, how) stub(name)
#define dlsym(library, name) stub(name)
#include RECORDER
#include <assert.h>
#include <signal.h>

static CUpti_CallbackFunc tell;
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *s, CUpti_CallbackFunc c, void *u) { (void)s; (void)u; tell = c; return 0; }
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle s) { (void)s; return 0; }
CUptiResult cuptiEnableDomain(uint32_t e, CUpti_SubscriberHandle s, CUpti_CallbackDomain d) { (void)e; (void)s; (void)d; return 0; }
CUptiResult cuptiEnableCallback(uint32_t e, CUpti_SubscriberHandle s, CUpti_CallbackDomain d, CUpti_CallbackId i) {
    (void)e; (void)s; (void)d; (void)i;
    return 0;
}

/* The driver: kernels have two parameters of 8 bytes; graph 1 has a kernel and a conditional node. */
static CUresult get_module(CUmodule *m, CUfunction f) { *m = (CUmodule)((uintptr_t)f & ~0xffful); return 0; }
static CUresult get_name(const char **n, CUfunction f) { (void)f; *n = "k"; return 0; }
static CUresult get_parameter(CUfunction f, size_t i, size_t *offset, size_t *size) {
    (void)f;
    *offset = 8 * i, *size = 8;
    return i > 1;
}
static CUresult get_attribute(void *d, CUpointer_attribute a, CUdeviceptr p) { (void)d; (void)a; return p != 0x7f0000000000; }
static CUresult get_range(CUdeviceptr *base, size_t *size, CUdeviceptr p) { *base = p, *size = 16; return 0; }
static CUresult synchronize(void) { return 0; }
static CUresult copy(void *to, CUdeviceptr from, size_t size) { (void)from; memset(to, 7, size); return 0; }
static CUresult get_nodes(CUgraph g, CUgraphNode *nodes, size_t *count_) {
    if (nodes) nodes[0] = (CUgraphNode)((uintptr_t)g << 4 | 1), nodes[1] = (CUgraphNode)((uintptr_t)g << 4 | 2);
    *count_ = 2;
    return 0;
}
static CUresult get_type(CUgraphNode n, CUgraphNodeType *type) {
    *type = (uintptr_t)n & 1 ? CU_GRAPH_NODE_TYPE_KERNEL : CU_GRAPH_NODE_TYPE_CONDITIONAL;
    return 0;
}
static uint64_t values[2] = {5, 6};
static void *pointers[2] = {&values[0], &values[1]};
static CUDA_KERNEL_NODE_PARAMS shape(unsigned threads) {
    return (CUDA_KERNEL_NODE_PARAMS){(CUfunction)0x9000, 1, 1, 1, threads, 1, 1, 0, pointers, NULL, NULL, NULL};
}
static CUresult get_params(CUgraphNode n, CUDA_KERNEL_NODE_PARAMS *p) { (void)n; *p = shape(64); return 0; }

static void *stub(const char *name) {
    static const struct {
        const char *name;
        void *function;
    } known[] = {
        {"libcuda.so.1", stub}, {"cuFuncGetModule", get_module}, {"cuFuncGetName", get_name},
        {"cuFuncGetParamInfo", get_parameter}, {"cuPointerGetAttribute", get_attribute},
        {"cuMemGetAddressRange_v2", get_range}, {"cuCtxSynchronize", synchronize}, {"cuMemcpyDtoH_v2", copy},
        {"cuGraphGetNodes", get_nodes}, {"cuGraphNodeGetType", get_type}, {"cuGraphKernelNodeGetParams_v2", get_params},
    };
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        if (!strcmp(known[k].name, name)) return known[k].function;
    return NULL;
}

static void module(uint32_t id, int unload) {
    char cubin[64] = {0};
    snprintf(cubin, sizeof cubin, "cubin%u", id);
    CUpti_ModuleResourceData m = {.moduleId = id, .cubinSize = 64, .pCubin = cubin};
    CUpti_ResourceData r = {.resourceDescriptor = &m};
    tell(NULL, CUPTI_CB_DOMAIN_RESOURCE, unload ? CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING : CUPTI_CBID_RESOURCE_MODULE_LOADED, &r);
}

static void called_with(int id, const void *parameters, CUresult result) {
    CUpti_CallbackData d = {.functionParams = parameters, .functionReturnValue = &result, .symbolName = "k"};
    d.callbackSite = CUPTI_API_ENTER;
    tell(NULL, CUPTI_CB_DOMAIN_DRIVER_API, (CUpti_CallbackId)id, &d);
    d.callbackSite = CUPTI_API_EXIT;
    tell(NULL, CUPTI_CB_DOMAIN_DRIVER_API, (CUpti_CallbackId)id, &d);
}
#define CALL(name, result, ...) called_with(CUPTI_DRIVER_TRACE_CBID_##name, &(name##_params){__VA_ARGS__}, result)

static int rounds; /* of all threads */
static void *work(void *which) {
    uintptr_t t = (uintptr_t)which;
    for (uint32_t r = 0; r < 200; r++) {
        uint32_t id = (uint32_t)t * 1000 + r % 7;
        CUmodule handle = (CUmodule)((t * 16 + r % 7 + 1) << 12);
        module(id, 0);
        CALL(cuModuleLoadData, 0, &handle, NULL);
        uint64_t a = r % 40, b = 0x7f0000000000;
        void *parameters[2] = {&a, &b};
        CALL(cuLaunchKernel, 0, (CUfunction)handle, 2, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL);
        CUgraphExec made = (CUgraphExec)(0x100 + t);
        if (r % 10 == 0) CALL(cuGraphInstantiateWithFlags, 0, &made, (CUgraph)1, 0);
        CALL(cuGraphLaunch, 0, made, NULL);
        if (r % 3 == 0) module(id, 1);
        __atomic_add_fetch(&rounds, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

int main(int count_, char **given) {
    (void)count_;
    assert(layoutopt_capture_begin(given[1], 1024) == 0);
    assert(layoutopt_capture_begin(given[1], 1024) == 1);
    if (given[2]) {
        pthread_t threads[4];
        for (uintptr_t k = 0; k < 4; k++) pthread_create(threads + k, NULL, work, (void *)k);
        while (given[3] && __atomic_load_n(&rounds, __ATOMIC_ACQUIRE) < 8) usleep(100);
        if (given[3]) layoutopt_capture_end();
        for (int k = 0; k < 4; k++) pthread_join(threads[k], NULL);
        layoutopt_capture_end();
        return 0;
    }
    CUmodule handle = (CUmodule)0x9000;
    CUgraphExec made = (CUgraphExec)0x100;
    CUDA_KERNEL_NODE_PARAMS now = shape(96), other = shape(128);
    CUDA_KERNEL_NODE_PARAMS_v1 old;
    memcpy(&old, &other, sizeof old);
    module(1, 0);
    CALL(cuModuleLoadData, 0, &handle, NULL);
    CALL(cuLaunchKernel, 0, (CUfunction)handle, 1, 1, 1, 32, 1, 1, 0, NULL, pointers, NULL);
    CALL(cuLaunchKernel, 1, (CUfunction)handle, 1, 1, 1, 32, 1, 1, 0, NULL, pointers, NULL); /* refused */
    CUDA_LAUNCH_PARAMS two[2] = {{(CUfunction)handle, 1, 1, 1, 32, 1, 1, 0, NULL, pointers}};
    two[1] = two[0];
    CALL(cuLaunchCooperativeKernelMultiDevice, 0, two, 2, 0);
    CALL(cuGraphInstantiateWithFlags, 0, &made, (CUgraph)1, 0);
    CALL(cuGraphLaunch, 0, made, NULL); /* of 64 threads */
    CALL(cuGraphExecKernelNodeSetParams_v2, 0, made, (CUgraphNode)0x11, &now);
    CALL(cuGraphLaunch, 0, made, NULL);
    CALL(cuGraphExecUpdate_v2, 0, made, (CUgraph)2, NULL); /* of 64 again; nodes keep their names */
    CALL(cuGraphExecKernelNodeSetParams, 0, made, (CUgraphNode)0x11, &old);
    CALL(cuGraphLaunch, 0, made, NULL);
    CALL(cuGraphNodeSetEnabled, 0, made, (CUgraphNode)0x11, 0);
    CALL(cuGraphLaunch, 0, made, NULL);
    for (values[0] = 100; values[0] < 120; values[0]++) /* more than are kept */
        CALL(cuLaunchKernel, 0, (CUfunction)handle, 1, 1, 1, 256, 1, 1, 0, NULL, pointers, NULL);
    if (!fork()) CALL(cuLaunchKernel, 0, (CUfunction)handle, 1, 1, 1, 32, 1, 1, 0, NULL, pointers, NULL), _exit(0);
    kill(getpid(), SIGKILL); /* no ending is needed */
}
