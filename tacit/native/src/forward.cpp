// Planar convolutions of images with few channels, channels innermost.
//
// The taps of one kernel row lie one behind the other in such an image. Outputs fill the vectors, and
// those of several neighbouring pixels stay in registers while all taps are gone through.
#include <cstring>

#include "images.h"

namespace tacit {
namespace TACIT_LEVEL {
namespace {

constexpr int kAccumulators = TACIT_LANES == 16 ? 28 : 12;
constexpr int kMostVectors = 4;  // of outputs, taken at once
constexpr int kMostPixels = 14;

std::int64_t taps_of(const Planar &p) { return p.kernel_height * p.kernel_width * p.channels; }

// Vectors of outputs of Pixels neighbouring pixels, whose inputs begin at x.
template <int Vectors, int Pixels>
void convolve(const Planar &p, const float *x, const float *weights, float *y) {
    const std::int64_t run = p.kernel_width * p.channels, right = p.step_right * p.channels;
    const std::int64_t wide = vectors_of(p.outputs) * kLanes;
    Lanes sums[Pixels][Vectors];
TACIT_UNROLL
    for (int q = 0; q < Pixels; q++)
        for (int v = 0; v < Vectors; v++) sums[q][v] = load(weights + v * kLanes);
    weights += wide;
    for (std::int64_t r = 0; r < p.kernel_height; r++, x += padded_row(p))
        for (std::int64_t t = 0; t < run; t++, weights += wide) {
            Lanes taps[Vectors];
            for (int v = 0; v < Vectors; v++) taps[v] = load(weights + v * kLanes);
TACIT_UNROLL
            for (int q = 0; q < Pixels; q++)
                for (int v = 0; v < Vectors; v++) sums[q][v] += x[q * right + t] * taps[v];
        }
TACIT_UNROLL
    for (int q = 0; q < Pixels; q++)
        for (int v = 0; v < Vectors; v++) store(y + q * p.outputs + v * kLanes, sums[q][v]);
}

typedef void (*Convolve)(const Planar &, const float *, const float *, float *);

template <int Vectors>
constexpr int most_pixels() {
    return kAccumulators / Vectors < kMostPixels ? kAccumulators / Vectors : kMostPixels;
}

template <int Vectors, int Pixels>
Convolve find(std::int64_t pixels) {
    if constexpr (Pixels > most_pixels<Vectors>()) {
        return nullptr;
    } else {
        return pixels == Pixels ? convolve<Vectors, Pixels> : find<Vectors, Pixels + 1>(pixels);
    }
}

// Vectors of outputs of all pixels, from left to right and from top to bottom: what a vector holds
// beyond the last output is then written over.
template <int Vectors>
void all_pixels(const Planar &p, const float *x, const float *weights, float *y) {
    const std::int64_t parts = (p.out_width + most_pixels<Vectors>() - 1) / most_pixels<Vectors>();
    for (std::int64_t row = 0; row < p.out_height; row++)
        for (std::int64_t part = 0; part < parts; part++) {
            const std::int64_t first = p.out_width * part / parts;
            const std::int64_t pixels = p.out_width * (part + 1) / parts - first;
            find<Vectors, 1>(pixels)(
                p, x + row * p.step_down * padded_row(p) + first * p.step_right * p.channels,
                weights, y + (row * p.out_width + first) * p.outputs);
        }
}

}  // namespace

std::int64_t convolved_scratch(const Planar &p) {
    return padded_size(p) + p.out_height * p.out_width * p.outputs + kLanes;
}

std::int64_t forward_weights_size(const Planar &p) {
    return (1 + taps_of(p)) * vectors_of(p.outputs) * kLanes;
}

// The bias, then [taps, outputs], outputs filled up with zeros.
void pack_forward(const Planar &p, const Taps &taps, const float *weight, const float *bias,
                  float *packed) {
    const std::int64_t wide = vectors_of(p.outputs) * kLanes;
    std::memset(packed, 0, sizeof(float) * forward_weights_size(p));
    if (bias) std::memcpy(packed, bias, sizeof(float) * p.outputs);
    packed += wide;
    for (std::int64_t t = 0; t < taps_of(p); t++, packed += wide)
        for (std::int64_t o = 0; o < p.outputs; o++)
            packed[o] = weight[o * taps.output_stride + t % p.channels * taps.channel_stride +
                               t / p.channels * taps.tap_stride];
}

void convolved(const Planar &p, const float *x, const float *packed, float *y, float *scratch) {
    const std::int64_t size = p.out_height * p.out_width * p.outputs, rest = p.outputs % kLanes;
    if (p.pad_down || p.pad_right) {
        pad(p, x, scratch);
        x = scratch;
    }
    float *out = rest ? scratch + padded_size(p) : y;
    if (rest) all_pixels<1>(p, x, packed + p.outputs - rest, out + p.outputs - rest);
    for (std::int64_t first = 0; first + kLanes <= p.outputs;) {
        const std::int64_t vectors = (p.outputs - first) / kLanes;
        const int taken = vectors >= kMostVectors ? kMostVectors : vectors >= 2 ? 2 : 1;
        const float *weights = packed + first;
        if (taken == 1) all_pixels<1>(p, x, weights, out + first);
        else if (taken == 2) all_pixels<2>(p, x, weights, out + first);
        else all_pixels<kMostVectors>(p, x, weights, out + first);
        first += taken * kLanes;
    }
    if (rest) std::memcpy(y, out, sizeof(float) * size);
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
