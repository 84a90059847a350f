// What Python calls for planar convolutions; see interface.cpp.
#include <algorithm>

#include "interface.h"

using tacit::Kernels;
using tacit::kernels;
using tacit::kRanges;
using tacit::Scratch;

namespace {

// Sums of convolution gradients that are added up apart, and then in order.
constexpr std::int64_t kSums = 16;

// Images whose gradients are added up in registers: no more than a cache holds.
std::int64_t images_together(const tacit::Planar &shape) {
    const std::int64_t pixels =
        (shape.height + 2 * shape.pad_down) * (shape.width + 2 * shape.pad_right);
    const std::int64_t outputs = shape.out_height * shape.out_width * shape.outputs;
    const std::int64_t each = sizeof(float) * (pixels * shape.channels + outputs);
    return std::max<std::int64_t>(1, (256 << 10) / each);
}

// Tiles of a convolution that are transformed together: so many that transformed weights are worth
// reading once for them, and where channels are few no more than a cache holds.
std::int64_t tiles_together(const tacit::Winograd &shape) {
    const std::int64_t each = 16 * sizeof(float) * (shape.channels + shape.outputs);
    return std::max<std::int64_t>(48, (768 << 10) / each / 6 * 6);
}

// The same for gradients that go to one sum, of which every thread makes its own or all make one.
std::int64_t tiles_summed(const tacit::Winograd &shape, bool alone) {
    const std::int64_t each = 16 * sizeof(float) * (shape.channels + shape.outputs);
    const std::int64_t most = (alone ? 512 << 10 : 16 << 20) / each;
    return std::max<std::int64_t>(16, std::min<std::int64_t>(256, most));
}

// Sums by Winograd's method that are added up apart, and then in order: one where it fills a cache.
std::int64_t winograd_sums(const tacit::Winograd &shape) {
    const std::int64_t each = 16 * sizeof(float) * shape.channels * shape.outputs;
    return each <= 512 << 10 ? std::clamp<std::int64_t>(shape.images, 1, 8) : 1;
}

// The sum for tiles first to last, before taps are made of its sixteen places.
void sum_tiles(const Kernels &use, int threads, const tacit::Winograd &shape, const float *x,
               const float *g, const float *factors, std::int64_t first, std::int64_t last,
               std::int64_t group, float *m) {
    const std::int64_t channels = shape.channels, outputs = shape.outputs;
    Scratch v(16 * tacit::place_apart(group * channels));
    Scratch u(16 * tacit::place_apart(group * outputs));
    for (std::int64_t start = first; start < last; start += group) {
        const std::int64_t tiles = std::min(group, last - start);
        tacit::share(threads, tiles, [&](std::int64_t from, std::int64_t to) {
            use.winograd_transforms(shape, x, g, factors, start, from, to, tiles, v.floats(),
                                    u.floats());
        });
        tacit::share(threads, channels, [&](std::int64_t from, std::int64_t to) {
            use.winograd_products(shape, v.floats(), u.floats(), tiles, start > first, from, to, m);
        });
    }
}

}  // namespace

extern "C" {

// Squared norms of the weight gradients of `images` images with channels innermost; also the
// gradients as [images, kernel height, kernel width, channels, outputs] unless `gradients` is null.
void tacit_convolution(std::int32_t level, std::int32_t threads, const tacit::Planar *shape,
                       std::int64_t images, const float *x, const float *g, float *gradients,
                       float *squares) {
    const Kernels &use = kernels(level);
    const std::int64_t x_size = shape->channels * shape->height * shape->width;
    const std::int64_t g_size = shape->outputs * shape->out_height * shape->out_width;
    const std::int64_t size =
        shape->kernel_height * shape->kernel_width * shape->channels * shape->outputs;
    tacit::share(threads, images, [&](std::int64_t first, std::int64_t last) {
        Scratch scratch(use.convolution_scratch(*shape, 1));
        for (std::int64_t i = first; i < last; i++)
            squares[i] = use.convolution_gradient(
                *shape, 1, x + i * x_size, g + i * g_size, nullptr,
                gradients ? gradients + i * size : nullptr, scratch.floats());
    }, kRanges);
}

// The sum of all images' weight gradients, each times its factor, as [kernel height, kernel width,
// channels, outputs]. Which images are added up together does not follow from the number of
// threads, so that this changes no bit.
void tacit_convolution_sum(std::int32_t level, std::int32_t threads, const tacit::Planar *shape,
                           std::int64_t images, const float *x, const float *g,
                           const float *factors, float *total) {
    const Kernels &use = kernels(level);
    const std::int64_t x_size = shape->channels * shape->height * shape->width;
    const std::int64_t g_size = shape->outputs * shape->out_height * shape->out_width;
    const std::int64_t size =
        shape->kernel_height * shape->kernel_width * shape->channels * shape->outputs;
    const std::int64_t together = images_together(*shape), sums = std::min(kSums, images);
    Scratch parts(sums * size);
    tacit::share(threads, sums, [&](std::int64_t first, std::int64_t last) {
        Scratch scratch(use.convolution_scratch(*shape, together)), more(size);
        for (std::int64_t sum = first; sum < last; sum++) {
            float *part = parts.floats() + sum * size, *gradient = part;
            const std::int64_t end = images * (sum + 1) / sums;
            for (std::int64_t i = images * sum / sums; i < end; i += together) {
                use.convolution_gradient(*shape, std::min(together, end - i), x + i * x_size,
                                         g + i * g_size, factors + i, gradient, scratch.floats());
                for (std::int64_t w = 0; w < size && gradient != part; w++) part[w] += gradient[w];
                gradient = more.floats();
            }
        }
    }, kRanges);
    std::fill_n(total, size, 0.0f);
    for (std::int64_t sum = 0; sum < sums; sum++)
        for (std::int64_t w = 0; w < size; w++) total[w] += parts.floats()[sum * size + w];
}

// Sixteen transformed weights for every pair of channel and output.
void tacit_winograd_weights(std::int32_t level, std::int32_t threads, const tacit::Taps *taps,
                            const float *weight, float *transformed) {
    const Kernels &use = kernels(level);
    tacit::share(threads, taps->channels, [&](std::int64_t first, std::int64_t last) {
        use.winograd_weights(*taps, weight, transformed, first, last);
    });
}

void tacit_winograd(std::int32_t level, std::int32_t threads, const tacit::Winograd *shape,
                    const float *x, const float *transformed, const float *bias, float *y) {
    const Kernels &use = kernels(level);
    const std::int64_t together = tiles_together(*shape);
    const std::int64_t tiles =
        shape->images * ((shape->out_height + 1) / 2) * ((shape->out_width + 1) / 2);
    const std::int64_t groups = (tiles + together - 1) / together;
    tacit::share(threads, groups, [&](std::int64_t first, std::int64_t last) {
        Scratch scratch(16 * (tacit::place_apart(together * shape->channels) +
                              tacit::place_apart(together * shape->outputs)));
        for (std::int64_t group = first; group < last; group++)
            use.winograd(*shape, x, transformed, bias, y, group * together,
                         std::min(tiles, (group + 1) * together), scratch.floats());
    }, kRanges);
}

// Squared norms of weight gradients from inner products between pixels, and for each image the norms
// of what its output pixels add to the gradient, added up.
void tacit_pixel_norms(std::int32_t level, std::int32_t threads, const tacit::Planar *shape,
                       std::int64_t images, const float *x, const float *g, double *squares,
                       double *parts) {
    const Kernels &use = kernels(level);
    const std::int64_t x_size = shape->channels * shape->height * shape->width;
    const std::int64_t g_size = shape->outputs * shape->out_height * shape->out_width;
    tacit::share(threads, images, [&](std::int64_t first, std::int64_t last) {
        Scratch scratch(2 * use.pixel_norm_scratch(*shape));
        for (std::int64_t i = first; i < last; i++)
            squares[i] = use.pixel_norm(*shape, x + i * x_size, g + i * g_size, parts + i,
                                        reinterpret_cast<double *>(scratch.floats()));
    }, kRanges);
}

// Squared norms of the weight gradients of all images; also the gradients as [images, 3, 3, channels,
// outputs] unless `gradients` is null.
void tacit_winograd_gradients(std::int32_t level, std::int32_t threads,
                              const tacit::Winograd *shape, const float *x, const float *g,
                              float *gradients, float *squares) {
    const Kernels &use = kernels(level);
    const std::int64_t x_size = shape->channels * shape->height * shape->width;
    const std::int64_t g_size = shape->outputs * shape->out_height * shape->out_width;
    const std::int64_t size = 9 * shape->channels * shape->outputs;
    tacit::share(threads, shape->images, [&](std::int64_t first, std::int64_t last) {
        Scratch scratch(use.winograd_gradient_scratch(*shape));
        for (std::int64_t i = first; i < last; i++)
            squares[i] =
                use.winograd_gradient(*shape, x + i * x_size, g + i * g_size,
                                      gradients ? gradients + i * size : nullptr, scratch.floats());
    });
}

// The sum of the same gradients, each times its image's factor, as [3, 3, channels, outputs]. Which
// images are added up together does not follow from the number of threads.
void tacit_winograd_sum(std::int32_t level, std::int32_t threads, const tacit::Winograd *shape,
                        const float *x, const float *g, const float *factors, float *sum) {
    const Kernels &use = kernels(level);
    const std::int64_t each = ((shape->out_height + 1) / 2) * ((shape->out_width + 1) / 2);
    const std::int64_t size = 16 * shape->channels * shape->outputs;
    const std::int64_t sums = winograd_sums(*shape), images = shape->images;
    const std::int64_t group = tiles_summed(*shape, sums > 1);
    const int threads_each = sums > 1 ? 1 : threads;
    Scratch parts(sums * size);
    float *m = parts.floats();
    tacit::share(threads, sums, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t part = first; part < last; part++)
            sum_tiles(use, threads_each, *shape, x, g, factors, images * part / sums * each,
                      images * (part + 1) / sums * each, group, m + part * size);
    }, kRanges);
    tacit::share(threads, sums > 1 ? size : 0, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t part = 1; part < sums; part++)
            for (std::int64_t i = first; i < last; i++) m[i] += m[part * size + i];
    });
    tacit::share(threads, shape->channels, [&](std::int64_t first, std::int64_t last) {
        use.winograd_taps(*shape, m, first, last, sum);
    });
}

// A convolution; the bias may be null.
void tacit_convolved(std::int32_t level, std::int32_t threads, const tacit::Planar *shape,
                     const tacit::Taps *taps, std::int64_t images, const float *x,
                     const float *weight, const float *bias, float *y) {
    const Kernels &use = kernels(level);
    Scratch packed(use.forward_weights_size(*shape));
    use.pack_forward(*shape, *taps, weight, bias, packed.floats());
    const std::int64_t x_size = shape->channels * shape->height * shape->width;
    const std::int64_t y_size = shape->outputs * shape->out_height * shape->out_width;
    tacit::share(threads, images, [&](std::int64_t first, std::int64_t last) {
        Scratch scratch(use.convolved_scratch(*shape));
        for (std::int64_t i = first; i < last; i++)
            use.convolved(*shape, x + i * x_size, packed.floats(), y + i * y_size,
                          scratch.floats());
    }, kRanges);
}

// The gradient of a convolution's images from that of its outputs.
void tacit_convolution_back(std::int32_t level, std::int32_t threads, const tacit::Planar *shape,
                            const tacit::Taps *taps, std::int64_t images, const float *g,
                            const float *weight, float *dx) {
    const Kernels &use = kernels(level);
    Scratch packed(use.packed_weights_size(*shape));
    use.pack_weights(*shape, *taps, weight, packed.floats());
    const std::int64_t x_size = shape->channels * shape->height * shape->width;
    const std::int64_t g_size = shape->outputs * shape->out_height * shape->out_width;
    tacit::share(threads, images, [&](std::int64_t first, std::int64_t last) {
        Scratch scratch(use.convolution_back_scratch(*shape));
        for (std::int64_t i = first; i < last; i++)
            use.convolution_back(*shape, g + i * g_size, packed.floats(), dx + i * x_size,
                                 scratch.floats());
    }, kRanges);
}

}  // extern "C"
