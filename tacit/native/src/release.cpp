// Noises vectors: the fast path of every instruction set, then 32 bits against the normal tail in
// double precision. What neither decides is left to the caller.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "interface.h"

using tacit::kGroup;
using tacit::kPair;
using tacit::Kernels;
using tacit::Run;
using tacit::Stream;
using tacit::Tail;

namespace {

// Threads are not worth their start for fewer groups than this.
constexpr std::int64_t kFewGroups = 32;

// Open numbers are rare, so they are looked for among so many at once.
constexpr std::int64_t kChunk = 16;

inline bool none(const std::int32_t *open) {
    std::int32_t any = 0;
    for (int i = 0; i < kChunk; i++) any |= open[i];
    return !any;
}

// Q(b), the upper tail of the normal distribution, within a relative error of tail.error.
double upper_tail(const Tail &tail, double b) {
    const std::int64_t node = std::int64_t(b / tail.spacing + 0.5);
    const double rest = b - double(node) * tail.spacing;
    const double *row = tail.table + node * (tail.degree + 1);
    double value = row[tail.degree];
    for (std::int64_t n = tail.degree - 1; n >= 0; n--) value = value * rest + row[n];
    return value;
}

// The nearest integer, without a call of the standard library where the processor has no instruction.
inline double nearest(double x) {
    const double big = 0x1.8p52;
    return (x + big) - big;
}

// The integer nearest to t + ratio * z, if the 32 bits of z's word decide it. A guess is verified, so
// that only speed depends on it.
bool decided(const Tail &tail, std::uint32_t word, double t, double ratio, double &found) {
    const bool negative = word >> 31;
    const std::uint32_t folded = negative ? ~word : word;
    if (folded == 0) return false;
    t = t == t ? t : 0.0;
    t = std::min(std::max(t, -tacit::kLargest), tacit::kLargest);
    const double n = nearest(t), fraction = negative ? n - t : t - n;
    const double low = folded * 0x1p-32, high = (folded + 1.0) * 0x1p-32;
    const double end = double(tail.nodes - 1) * tail.spacing;
    const double root = std::sqrt(-2 * std::log(high));
    double size = tail.guess[4];
    for (int i = 3; i >= 0; i--) size = size * root + tail.guess[i];
    double k = std::max(0.0, nearest(fraction + ratio * std::max(0.0, size)));
    for (;;) {
        const double upper = (k + 0.5 - fraction) / ratio;
        const double lower = (k - 0.5 - fraction) / ratio;
        if (upper > end) return false;
        const double above = upper_tail(tail, upper);
        const double below = lower > 0 ? upper_tail(tail, lower) : 1.0;
        if (high < above * (1 - tail.error)) {
            k += 1;
        } else if (low > below * (1 + tail.error)) {
            k -= 1;
        } else {
            found = n + (negative ? -k : k) + 0.0;  // no -0, whose sign would be that of t
            return low > above * (1 + tail.error) && high < below * (1 - tail.error);
        }
    }
}

bool settle(const Kernels &use, const Run &run, const float *z, std::int64_t count, float *vector,
            std::int32_t *open) {
    return use.settle_floats(run, z, count, vector, open);
}

bool settle(const Kernels &use, const Run &run, const float *z, std::int64_t count, double *vector,
            std::int32_t *open) {
    return use.settle_doubles(run, z, count, vector, open);
}

template <typename Number>
std::int64_t release(const Kernels &use, int threads, const Stream &stream,
                     const tacit::Quantile &quantile, const Tail &tail, const Run *runs,
                     std::int64_t count_of_runs, Number *vector, std::int64_t *undecided,
                     std::int64_t capacity) {
    const std::int64_t count = count_of_runs ? runs[count_of_runs - 1].end : 0;
    const std::int64_t groups = (count + kGroup - 1) / kGroup;
    std::atomic<std::int64_t> left{0};
    if (groups < kFewGroups) threads = 1;
    tacit::share(threads, groups, [&](std::int64_t first, std::int64_t last) {
        alignas(64) std::uint32_t pair[kPair * kGroup];
        alignas(64) float z[kGroup];
        alignas(64) std::int32_t open[kGroup];
        const Run *run = std::upper_bound(
            runs, runs + count_of_runs, first * kGroup,
            [](std::int64_t place, const Run &one) { return place < one.end; });
        for (std::int64_t group = first; group < last; group++) {
            if (group == first || group % kPair == 0)
                use.keystream(stream, group - group % kPair, pair);
            const std::uint32_t *words = pair + group % kPair * kGroup;
            use.quantiles(quantile, words, z);
            const std::int64_t begin = group * kGroup, end = std::min(begin + kGroup, count);
            for (std::int64_t at = begin; at < end;) {
                while (run->end <= at) run++;
                const std::int64_t stop = std::min(end, run->end);
                const bool any = settle(use, *run, z + (at - begin), stop - at, vector + at, open);
                for (std::int64_t i = any ? at : stop; i < stop; i++) {
                    if ((i - at) % kChunk == 0 && i + kChunk <= stop && none(open + (i - at))) {
                        i += kChunk - 1;
                        continue;
                    }
                    if (!open[i - at]) continue;
                    double steps;
                    const double t = double(vector[i]) * run->inverse;
                    if (decided(tail, words[i - begin], t, run->ratio, steps)) {
                        vector[i] = Number(steps) * Number(run->factor);
                    } else {
                        const std::int64_t place = left++;
                        if (place < capacity) undecided[place] = i;
                    }
                }
                at = stop;
            }
        }
    }, tacit::kRanges);
    return left;
}

}  // namespace

extern "C" {

// Each returns how many numbers are left as they are; `undecided` gets the places of as many of them as
// it has room for.
std::int64_t tacit_release_floats(std::int32_t level, std::int32_t threads, const Stream *stream,
                                  const tacit::Quantile *quantile, const Tail *tail,
                                  const Run *runs, std::int64_t count_of_runs, float *vector,
                                  std::int64_t *undecided, std::int64_t capacity) {
    return release(tacit::kernels(level), threads, *stream, *quantile, *tail, runs, count_of_runs,
                   vector, undecided, capacity);
}

std::int64_t tacit_release_doubles(std::int32_t level, std::int32_t threads, const Stream *stream,
                                   const tacit::Quantile *quantile, const Tail *tail,
                                   const Run *runs, std::int64_t count_of_runs, double *vector,
                                   std::int64_t *undecided, std::int64_t capacity) {
    return release(tacit::kernels(level), threads, *stream, *quantile, *tail, runs, count_of_runs,
                   vector, undecided, capacity);
}

}  // extern "C"
