// Images with channels innermost, copied with zeros around them.
#pragma once

#include <cstring>

#include "floats.h"
#include "kernels.h"

namespace tacit {
namespace TACIT_LEVEL {

inline std::int64_t vectors_of(std::int64_t floats) { return (floats + kLanes - 1) / kLanes; }

inline std::int64_t padded_row(const Planar &p) {
    return (p.width + 2 * p.pad_right) * p.channels;
}

inline std::int64_t padded_size(const Planar &p) {
    return (p.height + 2 * p.pad_down) * padded_row(p);
}

// Few floats: a call of memcpy takes longer.
inline void copy(const float *from, std::int64_t count, float *to) {
    if (count < kLanes) {
        for (std::int64_t i = 0; i < count; i++) to[i] = from[i];
        return;
    }
    for (std::int64_t i = 0; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
    store(to + count - kLanes, load(from + count - kLanes));
}

inline void pad(const Planar &p, const float *x, float *to) {
    const std::int64_t row = p.width * p.channels, across = padded_row(p);
    std::memset(to, 0, sizeof(float) * padded_size(p));
    to += p.pad_down * across + p.pad_right * p.channels;
    for (std::int64_t r = 0; r < p.height; r++) copy(x + r * row, row, to + r * across);
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
