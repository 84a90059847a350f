// Vectors of floats as wide as the instruction set that a source is being compiled for.
#pragma once

#include <cstring>

#include "vectors.h"

// Before a loop over vectors that are to stay in registers: without, compilers leave longer ones as
// loops over memory.
#define TACIT_UNROLL _Pragma("GCC unroll 32")

namespace tacit {
namespace TACIT_LEVEL {

constexpr int kLanes = TACIT_LANES;
typedef float Lanes __attribute__((vector_size(4 * TACIT_LANES)));

inline Lanes load(const float *from) {
    Lanes value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline void store(float *to, Lanes value) { std::memcpy(to, &value, sizeof value); }

}  // namespace TACIT_LEVEL
}  // namespace tacit
