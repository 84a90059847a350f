// Tags of blocks of words under secret keys; tacit/noise/names.py defines the same numbers.
#include "kernels.h"
#include "vectors.h"

namespace tacit {
namespace TACIT_LEVEL {

void block_tags(const std::uint32_t *words, const std::uint32_t *keys, std::int64_t *tags) {
    constexpr int half = kBlock / 2;
    for (int pass = 0; pass < kBlockKeys; pass++) {
        const std::uint32_t *key = keys + pass * kBlock;
        std::uint64_t sum = 0;
        for (int i = 0; i < half; i++) {
            const std::int32_t first = std::int32_t(words[i] + key[i]);
            const std::int32_t second = std::int32_t(words[half + i] + key[half + i]);
            sum += std::uint64_t(std::int64_t(first) * std::int64_t(second));
        }
        tags[pass] = std::int64_t(sum);
    }
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
