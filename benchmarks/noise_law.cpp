// Runs the fast path of tacit/native/src/noise.cpp on all 2^32 words; benchmarks/noise_law.py compiles
// it once for each instruction set.
#include <cmath>

#include "../tacit/native/src/noise.cpp"

using namespace tacit;

struct Law {
    std::int64_t decided, wrong;
    double largest_error, largest_share, second, fourth;
};

// The sum x is noised with every word. Result k is right for the words lowest[k + half] to
// highest[k + half]. The error of the quantile, at the farther end of a word's interval, is taken for
// positive numbers, from erfc to first order.
extern "C" void noise_law(const Quantile *quantile, const Run *run, float x, double constant,
                          double slope, const std::int64_t *lowest, const std::int64_t *highest,
                          std::int64_t half, Law *law) {
    std::uint32_t words[kGroup];
    float z[kGroup], vector[kGroup];
    std::int32_t open[kGroup];
    for (std::int64_t first = 0; first < std::int64_t(1) << 32; first += kGroup) {
        for (int i = 0; i < kGroup; i++) words[i] = std::uint32_t(first + i), vector[i] = x;
        TACIT_LEVEL::quantiles(*quantile, words, z);
        TACIT_LEVEL::settle_floats(*run, z, kGroup, vector, open);
        for (int i = 0; i < kGroup; i++) {
            if (!open[i]) {
                const std::int64_t cell = std::int64_t(vector[i]) + half;
                const std::int64_t word = first + i;
                law->decided++;
                law->wrong += word < lowest[cell] || word > highest[cell];
            }
            if (std::isinf(z[i])) continue;
            const double size = z[i], square = size * size;
            law->second += square;
            law->fourth += square * square;
            if (size <= 0) continue;
            const double density = std::exp(-square / 2) * 0.3989422804014327;
            const double above = std::erfc(size * 0.7071067811865476) / 2;
            const double middle = (double(first + i) + 0.5) * 0x1p-32;
            const double error = (std::fabs(above - middle) + 0x1p-33) / density;
            law->largest_error = std::fmax(law->largest_error, error);
            law->largest_share = std::fmax(law->largest_share, error / (constant + slope * size));
        }
    }
}
