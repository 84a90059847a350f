// The way back through a planar convolution to images with few channels, channels innermost.
//
// The taps of one kernel row lie one behind the other in such an image, and where channels are few
// it is these runs that fill vectors. Runs of neighbouring outputs overlap: each goes to one of
// several copies of the image, so that no processor has to wait for what it has just written.
#include <cstring>

#include "images.h"

namespace tacit {
namespace TACIT_LEVEL {
namespace {

constexpr int kAccumulators = TACIT_LANES == 16 ? 24 : 12;
constexpr int kMostVectors = 4;  // of a run, taken at once
constexpr int kMostPixels = 12;

std::int64_t run_of(const Planar &p) { return p.kernel_width * p.channels; }

// Floats of one copy: the last run may end within a vector.
std::int64_t copy_size(const Planar &p) { return padded_size(p) + kMostVectors * kLanes; }

// Outputs so many columns apart do not overlap.
std::int64_t copies_of(const Planar &p) {
    return (p.kernel_width + p.step_right - 1) / p.step_right;
}

// Copies of an image, and to which of them the first of some outputs belongs.
struct Copies {
    std::int64_t count, size, first;
};

// What Pixels neighbouring outputs send back to Vectors vectors of a run of inputs each. Weights of
// different outputs are `length` floats apart.
template <int Vectors, int Pixels>
void send_back(const Planar &p, const float *g, const float *weights, std::int64_t length,
               const Copies &copies, float *dx) {
    Lanes sums[Pixels][Vectors] = {};
    for (std::int64_t o = 0; o < p.outputs; o++, weights += length) {
        Lanes taps[Vectors];
        for (int v = 0; v < Vectors; v++) taps[v] = load(weights + v * kLanes);
TACIT_UNROLL
        for (int q = 0; q < Pixels; q++)
            for (int v = 0; v < Vectors; v++) sums[q][v] += g[q * p.outputs + o] * taps[v];
    }
    std::int64_t copy = copies.first;
TACIT_UNROLL
    for (int q = 0; q < Pixels; q++, dx += p.step_right * p.channels) {
        float *to = dx + copy * copies.size;
        for (int v = 0; v < Vectors; v++) store(to + v * kLanes, load(to + v * kLanes) + sums[q][v]);
        copy = copy + 1 < copies.count ? copy + 1 : 0;
    }
}

typedef void (*SendBack)(const Planar &, const float *, const float *, std::int64_t,
                         const Copies &, float *);

template <int Vectors>
constexpr int most_pixels() {
    return kAccumulators / Vectors < kMostPixels ? kAccumulators / Vectors : kMostPixels;
}

template <int Vectors, int Pixels>
SendBack find(std::int64_t pixels) {
    if constexpr (Pixels > most_pixels<Vectors>()) {
        return nullptr;
    } else {
        return pixels == Pixels ? send_back<Vectors, Pixels> : find<Vectors, Pixels + 1>(pixels);
    }
}

// All outputs, with one piece of every kernel row's run. Rows of outputs are taken in parts of about
// the same length.
template <int Vectors>
void all_back(const Planar &p, const float *g, const float *weights, std::int64_t length,
              float *dx) {
    const std::int64_t parts = (p.out_width + most_pixels<Vectors>() - 1) / most_pixels<Vectors>();
    Copies copies = {copies_of(p), copy_size(p), 0};
    for (std::int64_t tap = 0; tap < p.kernel_height; tap++)
        for (std::int64_t part = 0; part < parts; part++) {
            const std::int64_t first = p.out_width * part / parts;
            const std::int64_t pixels = p.out_width * (part + 1) / parts - first;
            const SendBack back = find<Vectors, 1>(pixels);
            copies.first = first % copies.count;
            for (std::int64_t row = 0; row < p.out_height; row++)
                back(p, g + (row * p.out_width + first) * p.outputs,
                     weights + tap * p.outputs * length, length, copies,
                     dx + (row * p.step_down + tap) * padded_row(p) +
                         first * p.step_right * p.channels);
        }
}

}  // namespace

std::int64_t convolution_back_scratch(const Planar &p) { return copies_of(p) * copy_size(p); }

std::int64_t packed_weights_size(const Planar &p) {
    return p.outputs * p.kernel_height * vectors_of(run_of(p)) * kLanes;
}

// [rows, outputs, runs], runs filled up with zeros.
void pack_weights(const Planar &p, const Taps &taps, const float *weight, float *packed) {
    const std::int64_t run = run_of(p), length = vectors_of(run) * kLanes;
    std::memset(packed, 0, sizeof(float) * packed_weights_size(p));
    for (std::int64_t o = 0; o < p.outputs; o++)
        for (std::int64_t i = 0; i < p.kernel_height; i++)
            for (std::int64_t t = 0; t < run; t++) {
                const std::int64_t tap = i * p.kernel_width + t / p.channels;
                packed[(i * p.outputs + o) * length + t] =
                    weight[o * taps.output_stride + t % p.channels * taps.channel_stride +
                           tap * taps.tap_stride];
            }
}

void convolution_back(const Planar &p, const float *g, const float *packed, float *dx,
                      float *scratch) {
    const std::int64_t row = padded_row(p), vectors = vectors_of(run_of(p));
    const std::int64_t length = vectors * kLanes;
    std::memset(scratch, 0, sizeof(float) * convolution_back_scratch(p));
    for (std::int64_t v = 0; v < vectors; v += kMostVectors) {
        const float *from = packed + v * kLanes;
        float *to = scratch + v * kLanes;
        const std::int64_t left = vectors - v;
        if (left >= 4) all_back<4>(p, g, from, length, to);
        else if (left == 3) all_back<3>(p, g, from, length, to);
        else if (left == 2) all_back<2>(p, g, from, length, to);
        else all_back<1>(p, g, from, length, to);
    }
    for (std::int64_t i = 0; i < p.height; i++) {
        const float *from = scratch + (p.pad_down + i) * row + p.pad_right * p.channels;
        float *to = dx + i * p.width * p.channels;
        std::memcpy(to, from, sizeof(float) * p.width * p.channels);
        for (std::int64_t copy = 1; copy < copies_of(p); copy++)
            for (std::int64_t c = 0; c < p.width * p.channels; c++)
                to[c] += from[copy * copy_size(p) + c];
    }
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
