// What lets some numbers through and remembers which: those above zero, and the largest of windows.
#include "floats.h"
#include "kernels.h"

namespace tacit {
namespace TACIT_LEVEL {
namespace {

typedef std::int32_t Ints __attribute__((vector_size(4 * TACIT_LANES)));
typedef std::uint32_t Words __attribute__((vector_size(4 * TACIT_LANES)));
typedef std::uint8_t Bytes __attribute__((vector_size(TACIT_LANES)));

constexpr int kBits = kRectified / kRectifiedWords;
static_assert(kBits == 32 && kRectifiedWords % kLanes == 0, "a word for every lane");

inline Words words(const std::uint32_t *from) {
    Words value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline void largest_of(const float *x, const Pooled &p, float *y, std::uint8_t *taps) {
    Lanes most = load(x);
    Ints where = {};
    for (std::int64_t i = 0; i < p.window_height; i++)
        for (std::int64_t j = 0; j < p.window_width; j++) {
            const Lanes value = load(x + (i * p.width + j) * p.channels);
            const Ints taken = (value > most) | (value != value);
            most = taken ? value : most;
            where = taken ? Ints{} + std::int32_t(i * p.window_width + j) : where;
        }
    store(y, most);
    const Bytes bytes = __builtin_convertvector(where, Bytes);
    std::memcpy(taps, &bytes, sizeof bytes);
}

inline Ints taken_from(const std::uint8_t *taps) {
    Bytes bytes;
    std::memcpy(&bytes, taps, sizeof bytes);
    return __builtin_convertvector(bytes, Ints);
}

// Where windows overlap, or leave pixels out: slopes are added up in the order of the windows.
void added_back(const Pooled &p, const float *g, const std::uint8_t *taps, float *dx) {
    std::memset(dx, 0, sizeof(float) * p.height * p.width * p.channels);
    for (std::int64_t row = 0; row < p.out_height; row++)
        for (std::int64_t column = 0; column < p.out_width; column++) {
            float *window =
                dx + (row * p.step_down * p.width + column * p.step_right) * p.channels;
            for (std::int64_t c = 0; c < p.channels; c += kLanes) {
                const Ints where = taken_from(taps + c);
                const Lanes slope = load(g + c);
                for (std::int64_t i = 0; i < p.window_height; i++)
                    for (std::int64_t j = 0; j < p.window_width; j++) {
                        float *to = window + (i * p.width + j) * p.channels + c;
                        const Lanes added = load(to) + slope;
                        const Ints here = where == std::int32_t(i * p.window_width + j);
                        store(to, here ? added : load(to));
                    }
            }
            g += p.channels, taps += p.channels;
        }
}

}  // namespace

// Bit k of word w stands for number 16 k + w of a block.
void rectify(const float *x, std::int64_t count, float *y, std::uint32_t *dropped) {
    if (count == kRectified) {
        for (int w = 0; w < kRectifiedWords; w += kLanes) {
            Words bits = {};
            for (int k = 0; k < kBits; k++) {
                const Lanes value = load(x + kRectifiedWords * k + w);
                store(y + kRectifiedWords * k + w, value < 0 ? Lanes{} : value);
                bits |= Words(value <= 0) & (1u << k);
            }
            std::memcpy(dropped + w, &bits, sizeof bits);
        }
        return;
    }
    std::memset(dropped, 0, sizeof(std::uint32_t) * kRectifiedWords);
    for (std::int64_t i = 0; i < count; i++) {
        y[i] = x[i] < 0 ? 0.0f : x[i];
        dropped[i % kRectifiedWords] |= std::uint32_t(x[i] <= 0) << (i / kRectifiedWords);
    }
}

void rectify_back(const float *g, std::int64_t count, const std::uint32_t *dropped, float *dx) {
    if (count == kRectified) {
        for (int w = 0; w < kRectifiedWords; w += kLanes) {
            const Words bits = words(dropped + w);
            for (int k = 0; k < kBits; k++) {
                const Ints below = (bits & (1u << k)) != 0;
                const std::int64_t at = kRectifiedWords * k + w;
                store(dx + at, below ? Lanes{} : load(g + at));
            }
        }
        return;
    }
    for (std::int64_t i = 0; i < count; i++)
        dx[i] = dropped[i % kRectifiedWords] >> (i / kRectifiedWords) & 1 ? 0.0f : g[i];
}

// A number that is none counts as the largest, as for torch; of equal ones the first.
void largest(const Pooled &p, const float *x, float *y, std::uint8_t *taps) {
    for (std::int64_t row = 0; row < p.out_height; row++)
        for (std::int64_t column = 0; column < p.out_width; column++) {
            const float *window =
                x + (row * p.step_down * p.width + column * p.step_right) * p.channels;
            for (std::int64_t c = 0; c < p.channels; c += kLanes)
                largest_of(window + c, p, y + c, taps + c);
            y += p.channels, taps += p.channels;
        }
}

void largest_back(const Pooled &p, const float *g, const std::uint8_t *taps, float *dx) {
    if (p.step_down != p.window_height || p.step_right != p.window_width)
        return added_back(p, g, taps, dx);
    const std::int64_t wide = p.width * p.channels;
    const std::int64_t covered = p.out_width * p.window_width * p.channels;
    for (std::int64_t row = 0; row < p.height; row++, dx += wide) {
        if (row >= p.out_height * p.window_height) {
            std::memset(dx, 0, sizeof(float) * wide);
            continue;
        }
        const std::int64_t above = row / p.window_height * p.out_width;
        const std::int64_t first = row % p.window_height * p.window_width;
        for (std::int64_t column = 0; column < p.out_width; column++) {
            const std::int64_t from = (above + column) * p.channels;
            float *to = dx + column * p.window_width * p.channels;
            for (std::int64_t c = 0; c < p.channels; c += kLanes) {
                const Ints where = taken_from(taps + from + c);
                const Lanes slope = load(g + from + c);
                for (std::int64_t j = 0; j < p.window_width; j++)
                    store(to + j * p.channels + c,
                          where == std::int32_t(first + j) ? slope : Lanes{});
            }
        }
        std::memset(dx + covered, 0, sizeof(float) * (wide - covered));
    }
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
