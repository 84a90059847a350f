// Normal numbers from a ChaCha20 keystream, and their addition to a sum.
//
// tacit/noise/normals.py makes numbers of the same law without this file. Those made here have the
// same bits whatever the number of threads; instruction sets differ in how they round.
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
    const float u = float(word) * 0x1p-32f + 0x1p-33f;
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

// Box and Muller. The second word is an angle: a multiple of a quarter of a turn, which says which
// of sine and cosine comes first and with which signs, and at most an eighth of a turn beside it.
void normals(const std::uint32_t *__restrict words, float *__restrict out) {
    for (int row = 0; row < kGroup; row += 32) {
        for (int lane = 0; lane < 16; lane++) {
            const std::uint32_t angle = words[row + 16 + lane];
            const float x = float(std::int32_t(angle << 2) >> 2) * 0x1p-30f;
            const float z = x * x;
            float sine = kSine[3], cosine = kCosine[3];
            for (int i = 2; i >= 0; i--) sine = sine * z + kSine[i];
            for (int i = 2; i >= 0; i--) cosine = cosine * z + kCosine[i];
            const std::uint32_t turned = angle + 0x20000000u;
            const bool odd = turned & 0x40000000u;
            const std::uint32_t one = same_bits<std::uint32_t>(odd ? sine * x : cosine);
            const std::uint32_t other = same_bits<std::uint32_t>(odd ? cosine : sine * x);
            const float length = radius(words[row + lane]);
            const std::uint32_t sign = 0x80000000u;
            out[row + lane] = length * same_bits<float>(one ^ ((turned + 0x40000000u) & sign));
            out[row + 16 + lane] = length * same_bits<float>(other ^ (turned & sign));
        }
    }
}

void perturb(float *__restrict vector, const float *__restrict noise, std::int64_t count,
             float scale, float factor) {
    for (std::int64_t i = 0; i < count; i++) vector[i] = (vector[i] + noise[i] * scale) * factor;
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
