// Work shared out over threads in contiguous ranges.
#pragma once

#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace tacit {

// Calls work(first, last) on ranges that cover 0 ... count, one for each thread; ranges follow from
// the numbers of threads and items alone.
template <typename Work>
void share(int threads, std::int64_t count, const Work &work) {
#ifdef _OPENMP
    if (threads > count) threads = int(count);
    if (threads > 1) {
#pragma omp parallel num_threads(threads)
        {
            const std::int64_t mine = omp_get_thread_num(), all = omp_get_num_threads();
            work(count * mine / all, count * (mine + 1) / all);
        }
        return;
    }
#endif
    (void)threads;
    if (count > 0) work(std::int64_t(0), count);
}

}  // namespace tacit
