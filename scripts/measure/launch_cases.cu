// Ways in which programs launch kernels and end, with the number of launches known: what a recorder must see.
// Built by nvcc -arch=sm_90; the mode is the first argument, and the count is printed.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

__global__ void stride(float *p, int step) {
    __shared__ float tile[2048];
    tile[threadIdx.x * step % 2048] = p[threadIdx.x];
    __syncthreads();
    p[threadIdx.x] = tile[threadIdx.x];
}
__global__ void empty() {}
__global__ void wild(float *p) { p[threadIdx.x + (1ull << 42)] = 1; }

static float *memory() {
    float *p;
    cudaMalloc(&p, 4096 * sizeof *p);
    return p;
}

static int launches(float *p, int count, cudaStream_t stream = 0) {
    for (int k = 0; k < count; k++) stride<<<1, 64, 0, stream>>>(p, 1 + k % 4);
    return count;
}

static int graph(float *p) {
    cudaGraph_t graph, child;
    cudaGraphNode_t node, second, nested;
    cudaGraphExec_t made;
    cudaGraphCreate(&graph, 0);
    cudaGraphCreate(&child, 0);
    int step = 2;
    void *given[2] = {&p, &step};
    cudaKernelNodeParams shape = {};
    shape.func = (void *)stride, shape.gridDim = 1, shape.blockDim = 64, shape.kernelParams = given;
    cudaGraphAddKernelNode(&node, graph, NULL, 0, &shape);
    shape.blockDim = 96;
    cudaGraphAddKernelNode(&second, graph, &node, 1, &shape);
    shape.blockDim = 32;
    cudaGraphAddKernelNode(&nested, child, NULL, 0, &shape);
    cudaGraphAddChildGraphNode(&nested, graph, &second, 1, child);
    cudaGraphInstantiate(&made, graph, 0);
    for (int k = 0; k < 3; k++) cudaGraphLaunch(made, 0); // 9
    shape.blockDim = 128, step = 32;
    cudaGraphExecKernelNodeSetParams(made, node, &shape);
    for (int k = 0; k < 2; k++) cudaGraphLaunch(made, 0); // 6
    cudaGraphNodeSetEnabled(made, second, 0);
    for (int k = 0; k < 4; k++) cudaGraphLaunch(made, 0); // 8
    return 23;
}

int main(int count, char **given) {
    const char *mode = count > 1 ? given[1] : "";
    int done = 0;
    if (!strcmp(mode, "fork")) { // two children with a GPU of their own, and one of a process that has one
        for (int k = 0; k < 2; k++)
            if (!fork()) launches(memory(), 4), cudaDeviceSynchronize(), exit(0);
        while (wait(NULL) > 0) {}
        done = 8 + launches(memory(), 3);
        if (!fork()) launches(NULL, 5), exit(0);
        while (wait(NULL) > 0) {}
        done += launches(memory(), 2);
    } else if (!strcmp(mode, "threads")) {
        std::vector<std::thread> threads;
        for (int k = 0; k < 8; k++) threads.emplace_back([] {
            cudaStream_t stream;
            cudaStreamCreate(&stream);
            launches(memory(), 50, stream);
            cudaStreamSynchronize(stream);
        });
        for (auto &one : threads) one.join();
        done = 400;
    } else if (!strcmp(mode, "graph")) {
        done = graph(memory());
    } else if (!strcmp(mode, "refused")) {
        done = launches(memory(), 6);
        stride<<<1, 4096>>>(NULL, 1);
    } else if (!strcmp(mode, "fault")) {
        done = launches(memory(), 6) + 1;
        wild<<<1, 32>>>(memory());
        cudaDeviceSynchronize();
    } else if (!strcmp(mode, "many")) {
        empty<<<1, 32>>>();
        cudaDeviceSynchronize();
        timespec began, ended;
        clock_gettime(CLOCK_MONOTONIC, &began);
        for (int k = 0; k < 200000; k++) empty<<<1, 32>>>();
        cudaDeviceSynchronize();
        clock_gettime(CLOCK_MONOTONIC, &ended);
        printf("%.3f us a launch\n", (ended.tv_sec - began.tv_sec) * 5.0 + (ended.tv_nsec - began.tv_nsec) / 2e8);
        done = 200001;
    } else {
        done = launches(memory(), 7);
    }
    printf("%d launches\n", done);
    fflush(stdout);
    if (!strcmp(mode, "crash")) abort();
    if (!strcmp(mode, "interrupt")) raise(SIGINT);
    if (!strcmp(mode, "kill")) raise(SIGKILL);
    return cudaDeviceSynchronize() != cudaSuccess;
}
