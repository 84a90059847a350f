// Exactly rounded Gaussian noise from a ChaCha20 keystream: the fast path.
//
// What is released is defined by the exact rounding alone (tacit/noise/rounding.py), so neither
// threads nor instruction sets change a bit.
#include <cstring>

#include "kernels.h"
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

// ChaCha20 (RFC 8439) of kSets times TACIT_LANES consecutive blocks at once, one in each lane. A round
// depends on the one before, so several sets keep the processor busy where registers suffice.
constexpr int kSets = TACIT_LANES == 16 ? 2 : 1;

inline void blocks(const Stream &stream, std::uint32_t first, std::uint32_t *const *words) {
    const std::uint32_t constants[4] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
    Lanes counter[kSets], state[kSets][16];
    for (int set = 0; set < kSets; set++) {
        counter[set] = Lanes{} + (stream.start[0] + first + set * TACIT_LANES);
        for (int lane = 0; lane < TACIT_LANES; lane++) counter[set][lane] += lane;
        for (int i = 0; i < 4; i++) state[set][i] = Lanes{} + constants[i];
        for (int i = 0; i < 8; i++) state[set][4 + i] = Lanes{} + stream.key[i];
        state[set][12] = counter[set];
        for (int i = 1; i < 4; i++) state[set][12 + i] = Lanes{} + stream.start[i];
    }
    for (int twice = 0; twice < 10; twice++) {
        for (int set = 0; set < kSets; set++) {
            Lanes *s = state[set];
            for (int i = 0; i < 4; i++) quarter_round(s[i], s[4 + i], s[8 + i], s[12 + i]);
        }
        for (int set = 0; set < kSets; set++) {
            Lanes *s = state[set];
            for (int i = 0; i < 4; i++)
                quarter_round(s[i], s[4 + (i + 1) % 4], s[8 + (i + 2) % 4], s[12 + (i + 3) % 4]);
        }
    }
    for (int set = 0; set < kSets; set++) {
        for (int i = 0; i < 16; i++) {
            Lanes word = state[set][i];
            if (i < 4) word += constants[i];
            else if (i < 12) word += stream.key[i - 4];
            else word += i == 12 ? counter[set] : Lanes{} + stream.start[i - 12];
            std::memcpy(words[set] + 16 * i, &word, sizeof word);
        }
    }
}

template <typename To, typename From>
inline To same_bits(From value) {
    To result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}

inline float nearest(float x) { return __builtin_rintf(x); }
inline double nearest(double x) { return __builtin_rint(x); }

}  // namespace

// The words of kPair groups, the first of them even.
void keystream(const Stream &stream, std::int64_t group, std::uint32_t *words) {
    for (int lane = 0; lane < 16 * kPair; lane += kSets * TACIT_LANES) {
        std::uint32_t *places[kSets];
        for (int set = 0; set < kSets; set++) {
            const int block = lane + set * TACIT_LANES;
            places[set] = words + kGroup * (block / 16) + block % 16;
        }
        blocks(stream, std::uint32_t(16 * group + lane), places);
    }
}

// Signed normal quantiles of a group's words, in single precision with the error bound that
// tacit/noise/quantile.py states; infinite where a word lies too far in the tails.
void quantiles(const Quantile &q, const std::uint32_t *__restrict words, float *__restrict out) {
    for (int i = 0; i < kGroup; i++) {
        const std::int32_t word = std::int32_t(words[i]);
        const std::int32_t folded = word ^ (word >> 31);
        const float scaled = float(folded) * 0x1p-30f + 0x1p-31f;
        const float share = 1.0f - 0.5f * scaled;
        const float product = scaled * (1.0f - 0.25f * scaled);
        const std::int32_t bits = same_bits<std::int32_t>(product);
        const std::int32_t exponent = (bits - 0x3f3504f3) >> 23;
        const float f = same_bits<float>(bits - exponent * (1 << 23)) - 1.0f;
        float log = q.log[6];
        for (int n = 5; n >= 0; n--) log = log * f + q.log[n];
        const float w = log * f - (float(exponent) + q.centre);
        float p = q.quantile[10];
        for (int n = 9; n >= 0; n--) p = p * w + q.quantile[n];
        const float size = folded < q.lowest ? __builtin_inff() : p * share;
        out[i] = same_bits<float>(same_bits<std::uint32_t>(size) | (words[i] & 0x80000000u));
    }
}

// Replaces numbers by the multiples of the grid's step that are nearest to them with noise, times
// the run's factor, and says which are left open because single precision does not decide.
template <typename Number>
inline bool settle(const Run &run, const float *__restrict z, std::int64_t count,
                   Number *__restrict vector, std::int32_t *__restrict open) {
    const Number inverse = Number(run.inverse), factor = Number(run.factor);
    const Number largest = Number(kLargest);
    std::int32_t any = 0;
    for (std::int64_t i = 0; i < count; i++) {
        const Number x = vector[i];
        Number t = x * inverse;
        t = t == t ? t : Number(0);
        t = t < largest ? t : largest;
        t = t > -largest ? t : -largest;
        const Number n = nearest(t);
        const float v = float(t - n) + run.ratio * z[i];
        const float k = nearest(v);
        const float off = __builtin_fabsf(v - k) + run.slope * __builtin_fabsf(z[i]);
        const bool decided = off <= run.limit;
        // Adding zero makes -0 positive: its sign would be that of x, whatever the noise.
        vector[i] = decided ? (n + Number(k) + Number(0)) * factor : x;
        open[i] = decided ? 0 : 1;
        any |= open[i];
    }
    return any;
}

bool settle_floats(const Run &run, const float *z, std::int64_t count, float *vector,
                   std::int32_t *open) {
    return settle(run, z, count, vector, open);
}

bool settle_doubles(const Run &run, const float *z, std::int64_t count, double *vector,
                    std::int32_t *open) {
    return settle(run, z, count, vector, open);
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
