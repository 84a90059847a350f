// What the functions that Python calls share.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels.h"
#include "threads.h"

namespace tacit {

inline const Kernels &kernels(int level) {
#ifdef TACIT_X86
    if (level == 2) return avx512_kernels;
    if (level == 1) return avx2_kernels;
#endif
    (void)level;
    return baseline_kernels;
}

// Floats with nothing in them, beginning where a cache line does: vectors that cross lines cost twice.
class Scratch {
   public:
    explicit Scratch(std::int64_t floats) : memory(new float[floats + 16]) {}
    float *floats() {
        const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(memory.get());
        return reinterpret_cast<float *>((start + 63) / 64 * 64);
    }

   private:
    const std::unique_ptr<float[]> memory;
};

// Ranges of noise, images and tiles for every thread.
constexpr int kRanges = 8;

}  // namespace tacit
