// A universal hash: NH of Black, Halevi, Krawczyk, Krovetz and Rogaway (1999), four times, each time
// with the key moved on by a block.
#include <cstring>

#include "kernels.h"
#include "vectors.h"

namespace tacit {
namespace TACIT_LEVEL {
namespace {

constexpr int kWords = TACIT_LANES;
typedef std::uint32_t Words __attribute__((vector_size(4 * kWords)));
typedef std::uint64_t Pairs __attribute__((vector_size(4 * kWords)));

inline Words words(const void *from) {
    Words value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

}  // namespace

// sums[t] = sum over i of (w[2i] + k[2i + 32t]) (w[2i + 1] + k[2i + 1 + 32t]), factors modulo 2^32, the
// sum modulo 2^64, for words w and key k.
void tag_piece(const std::uint8_t *piece, std::int64_t count, const std::uint32_t *key,
               std::uint64_t *sums) {
    Pairs totals[kTagSums] = {};
    for (std::int64_t i = 0; i < count; i += kWords) {
        const Words given = words(piece + 4 * i);
        for (int t = 0; t < kTagSums; t++) {
            const Words moved = given + words(key + i + kTagBlock * t);
            Pairs pairs;
            std::memcpy(&pairs, &moved, sizeof pairs);
            totals[t] += (pairs & 0xffffffffu) * (pairs >> 32);
        }
    }
    for (int t = 0; t < kTagSums; t++) {
        sums[t] = 0;
        for (int lane = 0; lane < kWords / 2; lane++) sums[t] += totals[t][lane];
    }
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
