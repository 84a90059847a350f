// Work shared out over threads in contiguous ranges.
#pragma once

#include <cstdint>

namespace tacit {

// Calls work(first, last) on ranges that cover 0 ... count, `each` of them for every thread; ranges
// follow from the numbers of threads and items alone. With several ranges for each, a thread that
// the machine holds up leaves some of its own to the others.
template <typename Work>
void share(int threads, std::int64_t count, const Work &work, int each = 1) {
#ifdef _OPENMP
    if (threads > count) threads = int(count);
    if (threads > 1) {
        const std::int64_t ranges = std::int64_t(threads) * each;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
        for (std::int64_t range = 0; range < ranges; range++)
            work(count * range / ranges, count * (range + 1) / ranges);
        return;
    }
#endif
    (void)threads, (void)each;
    if (count > 0) work(std::int64_t(0), count);
}

}  // namespace tacit
