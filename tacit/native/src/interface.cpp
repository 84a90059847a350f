// What Python calls: plain C functions, which choose an instruction set and share work over threads.
//
// Every function takes the level of the instruction set first. Levels count from 0, the one that
// every processor of the architecture has, to tacit_levels() - 1.
#include <algorithm>
#include <cmath>
#include <vector>

#include "interface.h"

using tacit::Kernels;
using tacit::kernels;
using tacit::kGroup;
using tacit::kRanges;
using tacit::Scratch;
using tacit::Stream;

namespace {

// Threads are not worth their start for fewer groups than this.
constexpr std::int64_t kFewGroups = 32;

int worthwhile(int threads, std::int64_t groups) { return groups < kFewGroups ? 1 : threads; }

constexpr std::int64_t kTagBytes = tacit::kTagBlock * sizeof(std::uint32_t);

// Records whose outer products are added up in registers: what is packed of them fits into a cache.
constexpr std::int64_t kRecordsTogether = 512;

// Columns that threads share: whole vectors, whatever their width.
constexpr std::int64_t kAligned = 16;

// Threads are not worth their start for fewer products than this.
constexpr std::int64_t kFewProducts = 1 << 18;

// Some outputs of one of several sums of outer products.
struct Range {
    const tacit::Outer *outer;
    std::int64_t first, last;
};

}  // namespace

extern "C" {

// Changes with the functions below, so that a library left over from another version is noticed.
std::int32_t tacit_version() { return 13; }

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
    std::uint32_t pair[tacit::kPair * kGroup];
    for (std::int64_t group = 0; group < groups; group++) {
        if (group % tacit::kPair == 0) kernels(level).keystream(*stream, group, pair);
        const std::uint32_t *words = pair + group % tacit::kPair * kGroup;
        for (int i = 0; i < kGroup; i++) out[group * kGroup + i] = words[i % 16 * 16 + i / 16];
    }
}

// Sums of each piece of a tensor's bytes; the last is filled up with zeros.
void tacit_tags(std::int32_t level, std::int32_t threads, const std::uint8_t *bytes,
                std::int64_t count, const std::uint32_t *key, std::uint64_t *sums) {
    const Kernels &use = kernels(level);
    constexpr std::int64_t size = tacit::kTagPiece * sizeof(std::uint32_t);
    const std::int64_t pieces = (count + size - 1) / size;
    tacit::share(worthwhile(threads, pieces), pieces, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; i++) {
            const std::uint8_t *from = bytes + i * size;
            const std::int64_t left = std::min(size, count - i * size);
            std::uint8_t filled[size];
            if (left < size) {
                std::fill_n(filled, size, 0);
                from = std::copy_n(from, left, filled) - left;
            }
            const std::int64_t blocks = (left + kTagBytes - 1) / kTagBytes;
            use.tag_piece(from, blocks * tacit::kTagBlock, key, sums + i * tacit::kTagSums);
        }
    }, kRanges);
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

// Squared norms of records, [records, groups], over several gradients that are outer products; 1 if
// all are finite, else 0.
std::int32_t tacit_outer_squares(std::int32_t level, std::int32_t threads, const tacit::Outer *outers,
                                 std::int64_t count, std::int64_t records, std::int64_t groups,
                                 float *squares) {
    const Kernels &use = kernels(level);
    std::fill_n(squares, records * groups, 0.0f);
    tacit::share(threads, records, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; i++)
            use.outer_squares(outers, count, i, squares + i * groups);
    }, kRanges);
    return std::all_of(squares, squares + records * groups, [](float s) { return std::isfinite(s); });
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

// Several maps, one after the other. A row's result is the same with any number of threads, and whatever
// other rows there are.
void tacit_affine(std::int32_t level, std::int32_t threads, const tacit::Affine *affines,
                  std::int64_t count) {
    const Kernels &use = kernels(level);
    for (std::int64_t i = 0; i < count; i++) {
        const tacit::Affine &affine = affines[i];
        const std::int64_t vectors = (affine.columns + kAligned - 1) / kAligned;
        const std::int64_t work = affine.rows * affine.terms * affine.columns;
        const std::int64_t packed = std::min(affine.terms, tacit::kAffineTerms);
        const int workers = work < kFewProducts ? 1 : threads;
        tacit::share(workers, vectors, [&](std::int64_t first, std::int64_t last) {
            Scratch scratch(packed * tacit::kAffineColumns);
            use.affine(affine, first * kAligned, std::min(last * kAligned, affine.columns),
                       scratch.floats());
        });
    }
}

}  // extern "C"
