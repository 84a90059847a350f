// What Python calls: plain C functions, which choose an instruction set and share work over threads.
//
// Every function takes the level of the instruction set first. Levels count from 0, the one that
// every processor of the architecture has, to tacit_levels() - 1.
#include <algorithm>
#include <memory>
#include <vector>

#include "kernels.h"
#include "threads.h"

using tacit::Kernels;
using tacit::kGroup;
using tacit::Stream;

namespace {

const Kernels &kernels(int level) {
#ifdef TACIT_X86
    if (level == 2) return tacit::avx512_kernels;
    if (level == 1) return tacit::avx2_kernels;
#endif
    (void)level;
    return tacit::baseline_kernels;
}

// Threads are not worth their start for fewer groups than this.
constexpr std::int64_t kFewGroups = 32;

int worthwhile(int threads, std::int64_t groups) { return groups < kFewGroups ? 1 : threads; }

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

// Records whose outer products are added up in registers: what is packed of them fits into a cache.
constexpr std::int64_t kRecordsTogether = 512;

// Some outputs of one of several sums of outer products.
struct Range {
    const tacit::Outer *outer;
    std::int64_t first, last;
};

// Ranges of noise, and of tiles, for every thread.
constexpr int kRanges = 8;

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

// Tiles whose products are added up before sums leave the registers: no more than memory is for.
std::int64_t tiles_summed(const tacit::Winograd &shape) {
    const std::int64_t each = 16 * sizeof(float) * (shape.channels + shape.outputs);
    return std::max<std::int64_t>(16, std::min<std::int64_t>(256, (16 << 20) / each));
}

}  // namespace

extern "C" {

// Changes with the functions below, so that a library left over from another version is noticed.
std::int32_t tacit_version() { return 7; }

std::int32_t tacit_levels() {
#ifdef TACIT_X86
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 1;
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    return wide ? 3 : 2;
#else
    return 1;
#endif
}

// The keystream in its own order, 256 words for each group.
void tacit_keystream(std::int32_t level, const Stream *stream, std::uint32_t *out,
                     std::int64_t groups) {
    std::uint32_t words[kGroup];
    for (std::int64_t group = 0; group < groups; group++) {
        kernels(level).keystream(*stream, group, words);
        for (int i = 0; i < kGroup; i++) out[group * kGroup + i] = words[i % 16 * 16 + i / 16];
    }
}

void tacit_normals(std::int32_t level, std::int32_t threads, const Stream *stream, float *out,
                   std::int64_t count) {
    const Kernels &use = kernels(level);
    const std::int64_t groups = (count + kGroup - 1) / kGroup;
    tacit::share(worthwhile(threads, groups), groups, [&](std::int64_t first, std::int64_t last) {
        alignas(64) std::uint32_t words[kGroup];
        alignas(64) float noise[kGroup];
        for (std::int64_t group = first; group < last; group++) {
            use.keystream(*stream, group, words);
            use.normals(words, noise);
            const std::int64_t start = group * kGroup;
            std::copy_n(noise, std::min<std::int64_t>(kGroup, count - start), out + start);
        }
    }, kRanges);
}

// vector = (vector + scale * noise) * factor, where elements up to ends[r] that belong to no run
// before r have scale scales[r].
void tacit_perturb(std::int32_t level, std::int32_t threads, const Stream *stream, float *vector,
                   const std::int64_t *ends, const float *scales, std::int64_t runs,
                   float factor) {
    const Kernels &use = kernels(level);
    const std::int64_t count = runs ? ends[runs - 1] : 0;
    const std::int64_t groups = (count + kGroup - 1) / kGroup;
    tacit::share(worthwhile(threads, groups), groups, [&](std::int64_t first, std::int64_t last) {
        alignas(64) std::uint32_t words[kGroup];
        alignas(64) float noise[kGroup];
        std::int64_t run = std::upper_bound(ends, ends + runs, first * kGroup) - ends;
        for (std::int64_t group = first; group < last; group++) {
            use.keystream(*stream, group, words);
            use.normals(words, noise);
            const std::int64_t begin = group * kGroup, end = std::min(begin + kGroup, count);
            for (std::int64_t at = begin; at < end;) {
                while (ends[run] <= at) run++;
                const std::int64_t stop = std::min(end, ends[run]);
                use.perturb(vector + at, noise + (at - begin), stop - at, scales[run], factor);
                at = stop;
            }
        }
    }, kRanges);
}

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

void tacit_group_norm(std::int32_t level, std::int32_t threads, const tacit::Grouped *shape,
                      std::int64_t images, const float *x, const float *weight, const float *bias,
                      float *y, float *mean, float *rstd) {
    const Kernels &use = kernels(level);
    const std::int64_t size = shape->pixels * shape->channels;
    tacit::share(threads, images, [&](std::int64_t first, std::int64_t last) {
        std::vector<double> scratch(use.group_norm_scratch(*shape));
        for (std::int64_t i = first; i < last; i++)
            use.group_norm(*shape, x + i * size, weight, bias, y + i * size,
                           mean + i * shape->groups, rstd + i * shape->groups, scratch.data());
    });
}

void tacit_group_norm_backward(std::int32_t level, std::int32_t threads,
                               const tacit::Grouped *shape, std::int64_t images, const float *x,
                               const float *g, const float *weight, const float *mean,
                               const float *rstd, float *dx, float *scale, float *shift) {
    const Kernels &use = kernels(level);
    const std::int64_t size = shape->pixels * shape->channels;
    tacit::share(threads, images, [&](std::int64_t first, std::int64_t last) {
        std::vector<double> scratch(use.group_norm_scratch(*shape));
        for (std::int64_t i = first; i < last; i++)
            use.group_norm_backward(
                *shape, x + i * size, g + i * size, weight, mean + i * shape->groups,
                rstd + i * shape->groups, dx ? dx + i * size : nullptr,
                scale + i * shape->channels, shift + i * shape->channels, scratch.data());
    });
}

// Squared norms of every record's gradient of a table with `size` rows.
void tacit_table_norms(std::int32_t level, std::int32_t threads, const tacit::Lookups *shape,
                       std::int64_t records, std::int64_t size, const std::int64_t *tokens,
                       const float *g, float *squares) {
    const Kernels &use = kernels(level);
    tacit::share(threads, records, [&](std::int64_t first, std::int64_t last) {
        std::vector<tacit::Seen> seen(size, tacit::Seen{-1, 0});
        std::vector<float> sums(shape->positions * shape->width);
        for (std::int64_t i = first; i < last; i++)
            squares[i] = use.table_norm(*shape, i, tokens, g, seen.data(), sums.data());
    });
}

// Adds the weighted sum of all records' gradients to a table. Every row is added up by one thread, in
// the order of the records, so that the number of threads changes no bit.
void tacit_table_sum(std::int32_t level, std::int32_t threads, const tacit::Lookups *shape,
                     std::int64_t records, const std::int64_t *tokens, const float *g,
                     const float *factors, float *total) {
    const Kernels &use = kernels(level);
    tacit::share(threads, threads, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t part = first; part < last; part++)
            use.table_sum(*shape, records, tokens, g, factors, total, part, threads);
    });
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
        const std::int64_t size = 16 * together * (shape->channels + shape->outputs);
        Scratch scratch(size);
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

// The sum of the same gradients, each times its image's factor, as [3, 3, channels, outputs]. Every
// element is added up by one thread, in the order of the images.
void tacit_winograd_sum(std::int32_t level, std::int32_t threads, const tacit::Winograd *shape,
                        const float *x, const float *g, const float *factors, float *sum) {
    const Kernels &use = kernels(level);
    const std::int64_t channels = shape->channels, outputs = shape->outputs;
    const std::int64_t all =
        shape->images * ((shape->out_height + 1) / 2) * ((shape->out_width + 1) / 2);
    const std::int64_t group = std::min(all, tiles_summed(*shape));
    Scratch v(16 * group * channels), u(16 * group * outputs), m(16 * channels * outputs);
    for (std::int64_t start = 0; start < all; start += group) {
        const std::int64_t tiles = std::min(group, all - start);
        tacit::share(threads, tiles, [&](std::int64_t first, std::int64_t last) {
            use.winograd_transforms(*shape, x, g, factors, start, first, last, tiles, v.floats(),
                                    u.floats());
        });
        tacit::share(threads, channels, [&](std::int64_t first, std::int64_t last) {
            use.winograd_products(*shape, v.floats(), u.floats(), tiles, start > 0, first, last,
                                  m.floats());
        });
    }
    tacit::share(threads, channels, [&](std::int64_t first, std::int64_t last) {
        use.winograd_taps(*shape, m.floats(), first, last, sum);
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

// Squared norms of records, [records, groups], over several gradients that are outer products.
void tacit_outer_squares(std::int32_t level, std::int32_t threads, const tacit::Outer *outers,
                         std::int64_t count, std::int64_t records, std::int64_t groups,
                         float *squares) {
    const Kernels &use = kernels(level);
    std::fill_n(squares, records * groups, 0.0f);
    tacit::share(threads, records, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; i++)
            use.outer_squares(outers, count, i, squares + i * groups);
    }, kRanges);
}

// Sums of these, each record times its group's factor; no two may share memory. Every element is
// added up by one thread, in the order of the records.
void tacit_outer_sums(std::int32_t level, std::int32_t threads, const tacit::Outer *outers,
                      std::int64_t count, std::int64_t records, std::int64_t groups,
                      const float *factors) {
    const Kernels &use = kernels(level);
    std::vector<Range> ranges;
    for (std::int64_t i = 0; i < count; i++) {
        const std::int64_t outputs = outers[i].outputs;
        const std::int64_t share = (outputs + threads - 1) / threads;
        const std::int64_t most = std::min<std::int64_t>(share, tacit::kOuterMost);
        for (std::int64_t first = 0; first < outputs; first += most)
            ranges.push_back(Range{outers + i, first, std::min(first + most, outputs)});
    }
    const std::int64_t blocks =
        std::max<std::int64_t>(1, (records + kRecordsTogether - 1) / kRecordsTogether);
    const std::int64_t work = std::int64_t(ranges.size());
    tacit::share(threads, work, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; i++) {
            const Range &range = ranges[i];
            Scratch scratch(use.outer_scratch(records / blocks + 1, range.last - range.first));
            for (std::int64_t block = 0; block < blocks; block++) {
                const std::int64_t first = records * block / blocks;
                use.outer_sum(*range.outer, factors, groups, range.first, range.last, first,
                              records * (block + 1) / blocks - first, scratch.floats());
            }
        }
    }, int((work + threads - 1) / threads));
}

}  // extern "C"
