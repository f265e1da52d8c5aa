// Medians of launches of several kernels that do the same, for the programs that bench.py writes.
#include <algorithm>
#include <cstdio>
#include <vector>

template <class Kernel>
struct Run {
    const char* name;
    Kernel kernel;  // or null, for a copy
    int shared;     // dynamic bytes
    bool right;     // whether its results are those that they should be
    std::vector<float> times;
};

// Time what `launch` does with each run; after the first round `check` says whether its results are right.
template <class Kernel, int COUNT, class Launch, class Check>
void time_runs(Run<Kernel> (&runs)[COUNT], Launch launch, Check check) {
    cudaEvent_t start, stop;
    cudaEventCreate(&start);
    cudaEventCreate(&stop);
    for (int round = 0; round < 120; ++round)  // interleaved: clocks drift
        for (auto& run : runs) {
            if (run.kernel)
                cudaFuncSetAttribute(run.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, run.shared);
            cudaEventRecord(start);
            launch(run);
            cudaEventRecord(stop);
            cudaEventSynchronize(stop);
            float ms;
            cudaEventElapsedTime(&ms, start, stop);
            if (round >= 20) run.times.push_back(ms);
            if (round == 0) run.right = check(run);
        }
    for (auto& run : runs) {
        std::sort(run.times.begin(), run.times.end());
        cudaFuncAttributes attributes = {};
        int fit = 0;
        if (run.kernel) {
            cudaFuncGetAttributes(&attributes, run.kernel);
            cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, run.kernel, 256, run.shared);
        }
        std::printf("time\t%s\t%.2f\t%d\t%d\t%d\t%s\n", run.name, run.times[run.times.size() / 2] * 1000,
                    attributes.numRegs, fit, int(run.right), cudaGetErrorString(cudaGetLastError()));
    }
}
