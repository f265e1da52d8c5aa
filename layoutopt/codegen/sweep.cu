//@ head
#pragma once
#include <cstdint>
#if defined(__CUDACC__) || defined(__HIPCC__)
#define LAYOUTOPT_FUNCTION __host__ __device__ constexpr
#else
#define LAYOUTOPT_FUNCTION constexpr
#endif

namespace @NAMESPACE@ {

struct Tile {
    const char* name;
@PARAMETERS@    uint32_t bytes, declared_bytes, alignment_bytes;
    double excess;
    uint32_t dims, shape[@RANK@], formula;
};

constexpr uint32_t tile_count = @COUNT@;
constexpr Tile tiles[@AT_LEAST_ONE@] = {
//@ functions
};

LAYOUTOPT_FUNCTION bool same(const char* a, const char* b) {
    while (*a != 0 && *a == *b) {
        ++a;
        ++b;
    }
    return *a == *b;
}

@CALLED@// Byte offset of the element at these coordinates.
template <typename... Coordinates>
LAYOUTOPT_FUNCTION uint32_t offset_bytes(const Tile& tile, Coordinates... coordinates) {
    const uint32_t x[@RANK@] = {static_cast<uint32_t>(coordinates)...};
    (void)x;
    switch (tile.formula) {
@FORMULAS@    default: return 0;
    }
}

//@ find
// The number of a tile, -1 where there is none.
LAYOUTOPT_FUNCTION int @NAME@(@DECLARED@) {
    for (uint32_t k = 0; k < tile_count; ++k) {
        if (@TESTS@) {
            return static_cast<int>(k);
        }
    }
    return -1;
}

