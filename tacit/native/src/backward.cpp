// The way back through a planar convolution to images with few channels, channels innermost.
//
// The taps of one kernel row lie one behind the other in such an image, and where channels are few
// it is these runs that fill vectors. Runs of neighbouring outputs overlap: each goes to one of
// several copies of the image, so that no processor has to wait for what it has just written.
#include <cstring>

#include "floats.h"
#include "kernels.h"

namespace tacit {
namespace TACIT_LEVEL {
namespace {

constexpr int kAccumulators = TACIT_LANES == 16 ? 24 : 12;
constexpr int kMostVectors = 4;  // of a run, taken at once
constexpr int kMostRows = 5;

std::int64_t vectors_of(std::int64_t floats) { return (floats + kLanes - 1) / kLanes; }

std::int64_t padded_row(const Planar &p) { return (p.width + 2 * p.pad_right) * p.channels; }

std::int64_t padded_size(const Planar &p) {
    return (p.height + 2 * p.pad_down) * padded_row(p) + kMostVectors * kLanes;
}

std::int64_t run_of(const Planar &p) { return p.kernel_width * p.channels; }

// Outputs so many columns apart do not overlap.
std::int64_t copies_of(const Planar &p) {
    return (p.kernel_width + p.step_right - 1) / p.step_right;
}

// What Pixels neighbouring outputs, the first in this column, send back to Rows rows of Vectors
// vectors of inputs.
template <int Vectors, int Rows, int Pixels>
void send_back(const Planar &p, const float *g, const float *weights, std::int64_t apart,
               std::int64_t length, std::int64_t column, float *dx) {
    Lanes sums[Pixels][Rows][Vectors] = {};
    g += column * p.outputs;
    for (std::int64_t o = 0; o < p.outputs; o++, weights += apart)
        for (int r = 0; r < Rows; r++)
            for (int v = 0; v < Vectors; v++) {
                const Lanes weight = load(weights + r * length + v * kLanes);
                for (int q = 0; q < Pixels; q++) sums[q][r][v] += g[q * p.outputs + o] * weight;
            }
    for (int q = 0; q < Pixels; q++) {
        float *copy = dx + (column + q) % copies_of(p) * padded_size(p) +
                      (column + q) * p.step_right * p.channels;
        for (int r = 0; r < Rows; r++)
            for (int v = 0; v < Vectors; v++) {
                float *to = copy + r * padded_row(p) + v * kLanes;
                store(to, load(to) + sums[q][r][v]);
            }
    }
}

template <int Vectors, int Rows>
void row_back(const Planar &p, const float *g, const float *weights, std::int64_t apart,
              std::int64_t length, float *dx) {
    constexpr int kMany = Vectors * Rows * 4 <= kAccumulators ? 4 : 2;
    std::int64_t column = 0;
    for (; column + kMany <= p.out_width; column += kMany)
        send_back<Vectors, Rows, kMany>(p, g, weights, apart, length, column, dx);
    for (; column < p.out_width; column++)
        send_back<Vectors, Rows, 1>(p, g, weights, apart, length, column, dx);
}

typedef void (*RowBack)(const Planar &, const float *, const float *, std::int64_t, std::int64_t,
                        float *);

template <int Vectors>
constexpr int most_rows() {
    return kAccumulators / 2 / Vectors < kMostRows ? kAccumulators / 2 / Vectors : kMostRows;
}

template <int Vectors, int Rows>
RowBack find_rows(std::int64_t rows) {
    if constexpr (Rows > most_rows<Vectors>()) {
        return nullptr;
    } else {
        return rows == Rows ? row_back<Vectors, Rows> : find_rows<Vectors, Rows + 1>(rows);
    }
}

// All rows of outputs, with one piece of every kernel row's run.
template <int Vectors>
void all_back(const Planar &p, const float *g, const float *weights, std::int64_t apart,
              std::int64_t length, float *dx) {
    for (std::int64_t first = 0; first < p.kernel_height;) {
        const std::int64_t left = p.kernel_height - first;
        const std::int64_t pieces = (left + most_rows<Vectors>() - 1) / most_rows<Vectors>();
        const std::int64_t rows = (left + pieces - 1) / pieces;
        const RowBack back = find_rows<Vectors, 1>(rows);
        for (std::int64_t row = 0; row < p.out_height; row++)
            back(p, g + row * p.out_width * p.outputs, weights + first * length, apart, length,
                 dx + (row * p.step_down + first) * padded_row(p));
        first += rows;
    }
}

}  // namespace

std::int64_t convolution_back_scratch(const Planar &p) { return copies_of(p) * padded_size(p); }

std::int64_t packed_weights_size(const Planar &p) {
    return p.outputs * p.kernel_height * vectors_of(run_of(p)) * kLanes;
}

// [outputs, rows, runs], runs filled up with zeros.
void pack_weights(const Planar &p, const Taps &taps, const float *weight, float *packed) {
    const std::int64_t run = run_of(p), length = vectors_of(run) * kLanes;
    std::memset(packed, 0, sizeof(float) * packed_weights_size(p));
    for (std::int64_t o = 0; o < p.outputs; o++)
        for (std::int64_t i = 0; i < p.kernel_height; i++)
            for (std::int64_t t = 0; t < run; t++) {
                const std::int64_t tap = i * p.kernel_width + t / p.channels;
                packed[(o * p.kernel_height + i) * length + t] =
                    weight[o * taps.output_stride + t % p.channels * taps.channel_stride +
                           tap * taps.tap_stride];
            }
}

void convolution_back(const Planar &p, const float *g, const float *packed, float *dx,
                      float *scratch) {
    const std::int64_t row = padded_row(p), vectors = vectors_of(run_of(p));
    const std::int64_t length = vectors * kLanes, apart = p.kernel_height * length;
    std::memset(scratch, 0, sizeof(float) * convolution_back_scratch(p));
    for (std::int64_t v = 0; v < vectors; v += kMostVectors) {
        const float *from = packed + v * kLanes;
        float *to = scratch + v * kLanes;
        const std::int64_t left = vectors - v;
        if (left >= 4) all_back<4>(p, g, from, apart, length, to);
        else if (left == 3) all_back<3>(p, g, from, apart, length, to);
        else if (left == 2) all_back<2>(p, g, from, apart, length, to);
        else all_back<1>(p, g, from, apart, length, to);
    }
    for (std::int64_t i = 0; i < p.height; i++) {
        const float *from = scratch + (p.pad_down + i) * row + p.pad_right * p.channels;
        float *to = dx + i * p.width * p.channels;
        std::memcpy(to, from, sizeof(float) * p.width * p.channels);
        for (std::int64_t copy = 1; copy < copies_of(p); copy++)
            for (std::int64_t c = 0; c < p.width * p.channels; c++)
                to[c] += from[copy * padded_size(p) + c];
    }
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
