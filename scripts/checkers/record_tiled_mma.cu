// What CuTe itself says of some TiledMMAs: tests/data/cute_tiled_mma.json.gz (the text that it prints, and the
// element of each thread and value, row-major over the operand).
//
//     pip install nvidia-cutlass
//     nvcc -std=c++17 -arch=sm_80 -I.../cutlass_library/source/include record_tiled_mma.cu -o record
//     ./record | python -c "import json, sys; print(json.dumps(json.loads(sys.stdin.read(), strict=False)))" |
//         gzip -n > tests/data/cute_tiled_mma.json.gz
//
// Needs no GPU.
#include <cstdio>

#include <cute/atom/mma_atom.hpp>
#include <cute/tensor.hpp>
using namespace cute;

static bool first = true;

// One row. What CuTe prints has line ends, which a strict reader of JSON refuses.
template <class Mma, class Part>
void row(Mma mma, char operand, int rows, int columns, Part part_of) {
    printf("%s{\"peer\":\"CUTLASS 4.2.0\",\"text\":\"", first ? "[" : ",");
    first = false;
    print(mma);
    printf("\",\"operand\":\"%c\",\"tile\":[%d,%d],\"table\":[", operand, rows, columns);
    for (int t = 0; t < int(size(mma)); ++t) {
        auto part = part_of(mma.get_slice(t), make_identity_tensor(make_shape(rows, columns)));
        printf("%s[", t ? "," : "");
        for (int i = 0; i < int(size(part)); ++i)
            printf("%s%d", i ? "," : "", int(get<0>(part(i))) * columns + int(get<1>(part(i))));
        printf("]");
    }
    printf("]}");
}

template <class Mma>
void record(Mma mma, int m, int n, int k) {
    row(mma, 'A', m, k, [](auto slice, auto tensor) { return slice.partition_A(tensor); });
    row(mma, 'B', n, k, [](auto slice, auto tensor) { return slice.partition_B(tensor); });
    row(mma, 'C', m, n, [](auto slice, auto tensor) { return slice.partition_C(tensor); });
}

int main() {
    record(make_tiled_mma(SM80_16x8x16_F32F16F16F32_TN{}, Layout<Shape<_2, _2, _1>>{}), 64, 32, 32);
    record(make_tiled_mma(SM80_16x8x16_F32F16F16F32_TN{}, Layout<Shape<_4, _1, _1>>{}, Tile<_64, _32, _16>{}),
           64, 64, 16);
    record(make_tiled_mma(SM80_8x8x4_F64F64F64F64_TN{}, Layout<Shape<_2, _1, _2>>{}), 16, 16, 8);
    record(make_tiled_mma(SM70_8x8x4_F32F16F16F32_TN{}, Layout<Shape<_2, _2, _1>>{}), 16, 16, 8);
    record(make_tiled_mma(SM75_16x8x8_F32F16F16F32_TN{}, Layout<Shape<_1, _2, _1>>{}), 32, 16, 8);
    printf("]\n");
}
