// What Python calls for rectified numbers and the largest of windows; see interface.cpp.
#include <algorithm>

#include "interface.h"

using tacit::Kernels;
using tacit::kernels;
using tacit::kRanges;
using tacit::kRectified;
using tacit::kRectifiedWords;

extern "C" {

// Numbers above zero, and zero for others; what is dropped is remembered in as many words for each
// block of numbers, the last of which may not be full.
void tacit_rectify(std::int32_t level, std::int32_t threads, std::int64_t count, const float *x,
                   float *y, std::uint32_t *dropped) {
    const Kernels &use = kernels(level);
    const std::int64_t blocks = (count + kRectified - 1) / kRectified;
    tacit::share(threads, blocks, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t at = first * kRectified; first < last; first++, at += kRectified)
            use.rectify(x + at, std::min<std::int64_t>(kRectified, count - at), y + at,
                        dropped + first * kRectifiedWords);
    }, kRanges);
}

void tacit_rectify_back(std::int32_t level, std::int32_t threads, std::int64_t count,
                        const float *g, const std::uint32_t *dropped, float *dx) {
    const Kernels &use = kernels(level);
    const std::int64_t blocks = (count + kRectified - 1) / kRectified;
    tacit::share(threads, blocks, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t at = first * kRectified; first < last; first++, at += kRectified)
            use.rectify_back(g + at, std::min<std::int64_t>(kRectified, count - at),
                             dropped + first * kRectifiedWords, dx + at);
    }, kRanges);
}

// The largest number of every window of every image, and which one of the window it is.
void tacit_largest(std::int32_t level, std::int32_t threads, const tacit::Pooled *shape,
                   std::int64_t images, const float *x, float *y, std::uint8_t *taps) {
    const Kernels &use = kernels(level);
    const std::int64_t x_size = shape->channels * shape->height * shape->width;
    const std::int64_t y_size = shape->channels * shape->out_height * shape->out_width;
    tacit::share(threads, images, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; i++)
            use.largest(*shape, x + i * x_size, y + i * y_size, taps + i * y_size);
    }, kRanges);
}

void tacit_largest_back(std::int32_t level, std::int32_t threads, const tacit::Pooled *shape,
                        std::int64_t images, const float *g, const std::uint8_t *taps, float *dx) {
    const Kernels &use = kernels(level);
    const std::int64_t x_size = shape->channels * shape->height * shape->width;
    const std::int64_t y_size = shape->channels * shape->out_height * shape->out_width;
    tacit::share(threads, images, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; i++)
            use.largest_back(*shape, g + i * y_size, taps + i * y_size, dx + i * x_size);
    }, kRanges);
}

}  // extern "C"
