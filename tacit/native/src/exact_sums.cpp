// What Python calls for sums without rounding; see interface.cpp and exact.cpp.
#include <algorithm>
#include <vector>

#include "interface.h"

using tacit::Exact;
using tacit::Kernels;
using tacit::kernels;
using tacit::kRanges;
using tacit::Scratch;

namespace {

// Records whose products are added up in registers: what is packed of them fits into a cache.
constexpr std::int64_t kTogether = 128;

// Outputs that are packed at once, at most.
constexpr std::int64_t kMost = 240;

// Some outputs and inputs of one of several sums.
struct Range {
    const Exact *exact;
    std::int64_t first, last, first_column, last_column;
};

// Elements of a shift that stay in the nearest cache while the records are added to them.
constexpr std::int64_t kShifted = 1024;

void add_shift(const Kernels &use, std::int32_t threads, const Exact &exact, const double *factors,
               std::int64_t groups, std::int64_t records) {
    const std::int64_t blocks = (exact.outputs + kShifted - 1) / kShifted;
    tacit::share(threads, blocks, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t block = begin; block < end; block++)
            use.exact_shift(exact, factors, groups, records, block * kShifted,
                            std::min((block + 1) * kShifted, exact.outputs));
    }, kRanges);
}

}  // namespace

extern "C" {

// Squared norms of records, [records, groups].
void tacit_exact_squares(std::int32_t level, std::int32_t threads, const Exact *exacts,
                         std::int64_t count, std::int64_t records, std::int64_t groups,
                         double *squares) {
    const Kernels &use = kernels(level);
    std::fill_n(squares, records * groups, 0.0);
    tacit::share(threads, records, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; i++)
            use.exact_squares(exacts, count, i, squares + i * groups);
    }, kRanges);
}

// Adds the sums of these, each record times its group's factor; no two may share memory.
void tacit_exact_sums(std::int32_t level, std::int32_t threads, const Exact *exacts,
                      std::int64_t count, std::int64_t records, std::int64_t groups,
                      const double *factors) {
    const Kernels &use = kernels(level);
    std::vector<Range> ranges;
    for (std::int64_t i = 0; i < count; i++) {
        const Exact &exact = exacts[i];
        if (exact.shift) add_shift(use, threads, exact, factors, groups, records);
        if (!exact.x) continue;
        const std::int64_t lines = (exact.inputs + tacit::kExactColumns - 1) / tacit::kExactColumns;
        const std::int64_t parts = std::min<std::int64_t>(threads, lines);
        for (std::int64_t part = 0; part < parts; part++) {
            const std::int64_t from = lines * part / parts * tacit::kExactColumns;
            const std::int64_t to = lines * (part + 1) / parts * tacit::kExactColumns;
            for (std::int64_t first = 0; first < exact.outputs; first += kMost)
                ranges.push_back(Range{&exact, first, std::min(first + kMost, exact.outputs), from,
                                       std::min(to, exact.inputs)});
        }
    }
    const std::int64_t work = std::int64_t(ranges.size());
    tacit::share(threads, work, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; i++) {
            const Range &range = ranges[i];
            const std::int64_t together = std::min(kTogether, records);
            const std::int64_t doubles = use.exact_scratch(together, range.last - range.first);
            Scratch scratch(2 * doubles);
            double *memory = reinterpret_cast<double *>(scratch.floats());
            for (std::int64_t first = 0; first < records; first += kTogether)
                use.exact_sum(*range.exact, factors, groups, range.first, range.last,
                              range.first_column, range.last_column, first,
                              std::min(kTogether, records - first), memory);
        }
    }, int((work + threads - 1) / threads));
}

// Adds each record's row, in whole units of a grid, to the rows of a table that its tokens name.
void tacit_exact_table(std::int32_t, std::int32_t threads, std::int64_t records,
                       std::int64_t positions, std::int64_t width, std::int64_t padding,
                       const std::int64_t *tokens, const double *rows, double *total) {
    tacit::share(threads, threads, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t part = begin; part < end; part++)
            for (std::int64_t r = 0; r < records; r++) {
                const double *row = rows + r * width;
                for (std::int64_t p = 0; p < positions; p++) {
                    const std::int64_t token = tokens[r * positions + p];
                    if (token == padding || token % threads != part) continue;
                    double *sum = total + token * width;
                    for (std::int64_t i = 0; i < width; i++) sum[i] += row[i];
                }
            }
    });
}

}  // extern "C"
