// Group normalisation of one image with channels innermost, forward and backward.
//
// Sums over pixels are kept for every channel, in registers, and moved to double precision after
// every stretch of pixels; groups are put together from their channels.
#include <cstring>

#include "kernels.h"
#include "vectors.h"

namespace tacit {
namespace TACIT_LEVEL {
namespace {

constexpr std::int64_t kLanes = TACIT_LANES;
constexpr std::int64_t kStretch = 128;
typedef float Lanes __attribute__((vector_size(4 * TACIT_LANES)));

template <typename Value>
inline Value load(const float *from) {
    Value value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

// Where a value is a vector of channels or one channel, the double sums of its channels.
inline void add(double *to, Lanes values) {
    for (int lane = 0; lane < kLanes; lane++) to[lane] += values[lane];
}
inline void add(double *to, float value) { *to += value; }

// Adds to `first` the sums over pixels of x - x0, and to `second` of their squares, with x0 the
// first pixel: the spread is then not lost behind a large mean.
template <typename Value>
void moments(const float *x, std::int64_t pixels, std::int64_t channels, double *first,
             double *second) {
    const Value origin = load<Value>(x);
    for (std::int64_t start = 0; start < pixels; start += kStretch) {
        const std::int64_t stop = start + kStretch < pixels ? start + kStretch : pixels;
        Value sums = {}, squares = {};
        for (std::int64_t pixel = start; pixel < stop; pixel++) {
            const Value moved = load<Value>(x + pixel * channels) - origin;
            sums += moved;
            squares += moved * moved;
        }
        add(first, sums);
        add(second, squares);
    }
}

// Adds to `products` the sums over pixels of g (x - mean), and to `sums` of g.
template <typename Value>
void overlaps(const float *x, const float *g, const float *mean, std::int64_t pixels,
              std::int64_t channels, double *products, double *sums) {
    const Value centre = load<Value>(mean);
    for (std::int64_t start = 0; start < pixels; start += kStretch) {
        const std::int64_t stop = start + kStretch < pixels ? start + kStretch : pixels;
        Value both = {}, alone = {};
        for (std::int64_t pixel = start; pixel < stop; pixel++) {
            const Value slope = load<Value>(g + pixel * channels);
            both += slope * (load<Value>(x + pixel * channels) - centre);
            alone += slope;
        }
        add(products, both);
        add(sums, alone);
    }
}

}  // namespace

std::int64_t group_norm_scratch(const Grouped &n) { return 7 * n.channels; }

void group_norm(const Grouped &n, const float *x, const float *weight, const float *bias, float *y,
                float *mean, float *rstd, double *scratch) {
    const std::int64_t channels = n.channels, each = channels / n.groups;
    double *first = scratch, *second = first + channels;
    float *slope = reinterpret_cast<float *>(second + channels), *offset = slope + channels;
    for (std::int64_t c = 0; c < 2 * channels; c++) scratch[c] = 0;
    std::int64_t c = 0;
    for (; c + kLanes <= channels; c += kLanes)
        moments<Lanes>(x + c, n.pixels, channels, first + c, second + c);
    for (; c < channels; c++) moments<float>(x + c, n.pixels, channels, first + c, second + c);
    for (std::int64_t group = 0; group < n.groups; group++) {
        const std::int64_t begin = group * each, end = begin + each;
        double centre = 0, spread = 0;
        for (c = begin; c < end; c++) centre += first[c] / n.pixels + x[c];
        centre /= each;
        for (c = begin; c < end; c++) {
            const double own = first[c] / n.pixels, away = own + x[c] - centre;
            spread += second[c] / n.pixels - own * own + away * away;
        }
        spread = spread > 0 || spread != spread ? spread / each : 0;
        mean[group] = float(centre);
        rstd[group] = float(1 / __builtin_sqrt(spread + n.eps));
        for (c = begin; c < end; c++) {
            slope[c] = weight ? rstd[group] * weight[c] : rstd[group];
            offset[c] = bias ? bias[c] : 0;
            offset[c] = float(offset[c] - centre * slope[c]);
        }
    }
    for (std::int64_t pixel = 0; pixel < n.pixels; pixel++, x += channels, y += channels)
        for (c = 0; c < channels; c++) y[c] = x[c] * slope[c] + offset[c];
}

void group_norm_backward(const Grouped &n, const float *x, const float *g, const float *weight,
                         const float *mean, const float *rstd, float *dx, float *scale,
                         float *shift, double *scratch) {
    const std::int64_t channels = n.channels, each = channels / n.groups;
    double *products = scratch, *sums = products + channels;
    float *of_g = reinterpret_cast<float *>(sums + channels), *of_x = of_g + channels;
    float *alone = of_x + channels;
    for (std::int64_t c = 0; c < 2 * channels; c++) scratch[c] = 0;
    for (std::int64_t c = 0; c < channels; c++) alone[c] = mean[c / each];
    std::int64_t c = 0;
    for (; c + kLanes <= channels; c += kLanes)
        overlaps<Lanes>(x + c, g + c, alone + c, n.pixels, channels, products + c, sums + c);
    for (; c < channels; c++)
        overlaps<float>(x + c, g + c, alone + c, n.pixels, channels, products + c, sums + c);
    for (c = 0; c < channels; c++) {
        scale[c] = float(products[c] * rstd[c / each]);
        shift[c] = float(sums[c]);
    }
    if (!dx) return;
    for (std::int64_t group = 0; group < n.groups; group++) {
        const std::int64_t begin = group * each, end = begin + each;
        const double elements = double(each) * n.pixels, unit = rstd[group];
        double along = 0, level = 0;
        for (c = begin; c < end; c++) {
            along += products[c] * (weight ? weight[c] : 1.0f);
            level += sums[c] * (weight ? weight[c] : 1.0f);
        }
        along *= -unit * unit * unit / elements;
        level = -level * unit / elements - along * mean[group];
        for (c = begin; c < end; c++) {
            of_g[c] = float(unit) * (weight ? weight[c] : 1.0f);
            of_x[c] = float(along);
            alone[c] = float(level);
        }
    }
    for (std::int64_t pixel = 0; pixel < n.pixels; pixel++, x += channels, g += channels)
        for (c = 0; c < channels; c++, dx++) *dx = of_g[c] * g[c] + (of_x[c] * x[c] + alone[c]);
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
