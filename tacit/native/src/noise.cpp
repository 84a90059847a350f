// Normal numbers from a ChaCha20 keystream, and their addition to a sum.
//
// tacit/noise/normals.py defines the same numbers in numpy. Both must give the same bits, whatever
// the instruction set: this file is compiled without contraction of products and sums, and uses
// only operations that IEEE 754 rounds in one way.
#include <cstring>

#include "kernels.h"
#include "noise.h"
#include "vectors.h"

namespace tacit {
namespace TACIT_LEVEL {
namespace {

typedef std::uint32_t Lanes __attribute__((vector_size(4 * TACIT_LANES)));

inline Lanes rotated(Lanes x, int bits) { return (x << bits) | (x >> (32 - bits)); }

inline void quarter_round(Lanes &a, Lanes &b, Lanes &c, Lanes &d) {
    a += b, d = rotated(d ^ a, 16);
    c += d, b = rotated(b ^ c, 12);
    a += b, d = rotated(d ^ a, 8);
    c += d, b = rotated(b ^ c, 7);
}

// ChaCha20 (RFC 8439) of TACIT_LANES consecutive blocks at once, one in each lane.
inline void blocks(const Stream &stream, std::uint32_t first, std::uint32_t *words) {
    const std::uint32_t constants[4] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
    Lanes initial[16], state[16];
    for (int i = 0; i < 4; i++) initial[i] = Lanes{} + constants[i];
    for (int i = 0; i < 8; i++) initial[4 + i] = Lanes{} + stream.key[i];
    for (int i = 0; i < 4; i++) initial[12 + i] = Lanes{} + stream.start[i];
    for (int lane = 0; lane < TACIT_LANES; lane++) initial[12][lane] += first + lane;
    for (int i = 0; i < 16; i++) state[i] = initial[i];
    for (int twice = 0; twice < 10; twice++) {
        for (int i = 0; i < 4; i++)
            quarter_round(state[i], state[4 + i], state[8 + i], state[12 + i]);
        for (int i = 0; i < 4; i++)
            quarter_round(state[i], state[4 + (i + 1) % 4], state[8 + (i + 2) % 4],
                          state[12 + (i + 3) % 4]);
    }
    for (int i = 0; i < 16; i++) {
        const Lanes word = state[i] + initial[i];
        std::memcpy(words + 16 * i, &word, sizeof word);
    }
}

template <typename To, typename From>
inline To same_bits(From value) {
    To result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}

// sqrt(-2 log u) for u = (word + 1/2) / 2^32. With u = m 2^e and m near one, -2 log m is a
// polynomial in m - 1, good to half a unit in the last place.
inline float radius(std::uint32_t word) {
    const float whole = float(std::int32_t(word >> 16)) * 65536.0f;
    const float u = ((whole + float(std::int32_t(word & 0xffff))) + 0.5f) * 0x1p-32f;
    const std::int32_t bits = same_bits<std::int32_t>(u);
    const std::int32_t exponent = (bits - 0x3f3504f3) >> 23;
    const float f = same_bits<float>(bits - exponent * (1 << 23)) - 1.0f;
    float q = kLog[8];
    for (int i = 7; i >= 0; i--) q = q * f + kLog[i];
    return __builtin_sqrtf(float(exponent) * kTwoLogHalf + q * f);
}

}  // namespace

void keystream(const Stream &stream, std::int64_t group, std::uint32_t *words) {
    for (int lane = 0; lane < 16; lane += TACIT_LANES)
        blocks(stream, std::uint32_t(16 * group + lane), words + lane);
}

// Box and Muller. Thirty bits of the second word are an angle of at most an eighth of a turn, the
// other two say which of sine and cosine comes first, and the sign of both.
void normals(const std::uint32_t *words, float *out) {
    for (int row = 0; row < kGroup; row += 32) {
        for (int lane = 0; lane < 16; lane++) {
            const std::uint32_t second = words[row + 16 + lane];
            const float x = float(std::int32_t(second << 2) >> 2) * 0x1p-30f;
            const float z = x * x;
            float sine = kSine[3], cosine = kCosine[3];
            for (int i = 2; i >= 0; i--) sine = sine * z + kSine[i];
            for (int i = 2; i >= 0; i--) cosine = cosine * z + kCosine[i];
            sine *= x;
            const std::uint32_t sign = second & 0x80000000u;
            const float length = radius(words[row + lane]);
            const float r = same_bits<float>(same_bits<std::uint32_t>(length) ^ sign);
            const bool swapped = second & 0x40000000u;
            out[row + lane] = r * (swapped ? sine : cosine);
            out[row + 16 + lane] = r * (swapped ? cosine : sine);
        }
    }
}

void perturb(float *vector, const float *noise, std::int64_t count, float scale, float divisor) {
    for (std::int64_t i = 0; i < count; i++)
        vector[i] = (vector[i] + noise[i] * scale) / divisor;
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
