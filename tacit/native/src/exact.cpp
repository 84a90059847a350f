// Gradients of linear layers, truncated to whole numbers, record by record, and added up without
// rounding: products and sums are whole numbers, times a power of two, that a double holds exactly.
// Proof: docs/proofs/sums.md.
#include <cstring>

#include "floats.h"
#include "kernels.h"

namespace tacit {
namespace TACIT_LEVEL {
namespace {

constexpr int kDoubles = TACIT_LANES / 2;
// Outputs of a tile: the largest, and the one that ten outputs leave no gap in.
constexpr int kMostRows = TACIT_LANES == 16 ? 10 : 6, kFiveRows = 5;
constexpr int kWide = 2;
constexpr int kColumns = kExactColumns;
constexpr int kTile = kWide * kDoubles;
constexpr int kLine = 16;  // floats in a line of a cache
static_assert(kTile == kLanes && kColumns % kTile == 0, "whole tiles");
// Inputs whose norm is below 2 to this count as zero.
constexpr int kLeastExponent = -90;

typedef double Doubles __attribute__((vector_size(8 * kDoubles)));
typedef std::int32_t Whole __attribute__((vector_size(4 * TACIT_LANES)));
typedef std::int32_t HalfWhole __attribute__((vector_size(4 * kDoubles)));
typedef float HalfLanes __attribute__((vector_size(4 * kDoubles)));

inline Doubles load_doubles(const double *from) {
    Doubles value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline void store_doubles(double *to, Doubles value) { std::memcpy(to, &value, sizeof value); }

// The squared norm of a row: squares of floats are exact in a double.
double squared(const float *row, std::int64_t width) {
    Doubles sums[4] = {};
    std::int64_t i = 0;
    for (; i + 4 * kDoubles <= width; i += 4 * kDoubles)
        for (int k = 0; k < 4; k++) {
            HalfLanes half;
            std::memcpy(&half, row + i + k * kDoubles, sizeof half);
            const Doubles value = __builtin_convertvector(half, Doubles);
            sums[k] += value * value;
        }
    const Doubles all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    double sum = 0.0;
    for (; i < width; i++) sum += double(row[i]) * double(row[i]);
    for (int lane = 0; lane < kDoubles; lane++) sum += all[lane];
    return sum;
}

double power_of_two(std::int64_t exponent) {
    const std::int64_t bits = (exponent + 1023) << 52;
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// e with ||row|| <= 2^e from the computed square, which is finite.
std::int64_t exponent_of(double squares) {
    const double norm = __builtin_sqrt(squares / kFactorSlack);
    std::int64_t bits;
    std::memcpy(&bits, &norm, sizeof bits);
    return ((bits >> 52) & 0x7ff) - 1022;
}

inline void truncate(Lanes values, double *to) {
    const Whole whole = __builtin_convertvector(values, Whole);
    HalfWhole halves[2];
    std::memcpy(halves, &whole, sizeof whole);
    store_doubles(to, __builtin_convertvector(halves[0], Doubles));
    store_doubles(to + kDoubles, __builtin_convertvector(halves[1], Doubles));
}

// Some inputs of each record as whole numbers, tile after tile.
void pack_inputs(const Exact &exact, std::int64_t first_record, std::int64_t records,
                 const float *scales, std::int64_t column, int width, double *block) {
    for (std::int64_t r = 0; r < records; r++, block += kTile) {
        const float scale = scales[r];
        const float *from = exact.x + (first_record + r) * exact.x_stride + column;
        for (int i = 0; i < width; i += kTile) {
            double *to = block + i * records;
            if (scale == 0.0f) std::memset(to, 0, sizeof(double) * kTile);
            else if (width - i >= kTile) truncate(load(from + i) * scale, to);
            else {
                float some[kTile] = {};
                for (int k = 0; k < width - i; k++) some[k] = from[i + k];
                truncate(load(some) * scale, to);
            }
        }
    }
}

// What `ahead` points at is wanted soon, record by record.
template <int kRows>
void tile(const double *g, const double *x, std::int64_t records, const float *ahead,
          std::int64_t ahead_stride, double *to, std::int64_t stride, int rows, int width) {
    Doubles sums[kRows][kWide] = {};
    for (std::int64_t r = 0; r < records; r++) {
        __builtin_prefetch(ahead + r * ahead_stride);
        Doubles inputs[kWide];
        for (int k = 0; k < kWide; k++) inputs[k] = load_doubles(x + r * kTile + k * kDoubles);
        for (int o = 0; o < kRows; o++)
            for (int k = 0; k < kWide; k++) sums[o][k] += g[r * kRows + o] * inputs[k];
    }
    if (width >= kTile) {
        for (int o = 0; o < kRows; o++)
            for (int k = 0; k < kWide && o < rows; k++) {
                double *at = to + o * stride + k * kDoubles;
                store_doubles(at, load_doubles(at) + sums[o][k]);
            }
        return;
    }
    double result[kRows][kTile];
    for (int o = 0; o < kRows; o++)
        for (int k = 0; k < kWide; k++) store_doubles(result[o] + k * kDoubles, sums[o][k]);
    for (int o = 0; o < rows; o++)
        for (int i = 0; i < width; i++) to[o * stride + i] += result[o][i];
}

template <int kRows>
void sum_up(const Exact &exact, const double *factors, std::int64_t groups, std::int64_t first,
            std::int64_t last, std::int64_t first_column, std::int64_t last_column,
            std::int64_t first_record, std::int64_t records, double *scratch) {
    float *input_scales = reinterpret_cast<float *>(scratch);
    double *block = scratch + 2 * records, *packed = block + records * kColumns;
    const double unit = power_of_two(exact.exponent - exact.bits);
    const std::int64_t output_bits = exact.bits - exact.input_bits;
    const std::int64_t tiles = (last - first + kRows - 1) / kRows;
    for (std::int64_t r = 0; r < records; r++) {
        const std::int64_t record = first_record + r;
        const double factor = factors[record * groups + exact.column];
        double *to = packed + r * kRows;
        const std::int64_t exponent = factor == 0.0 ? 0 : exponent_of(exact.across[record]);
        if (factor == 0.0 || exponent < kLeastExponent) {
            input_scales[r] = 0.0f;
            for (std::int64_t t = 0; t < tiles; t++, to += records * kRows)
                std::memset(to, 0, sizeof(double) * kRows);
            continue;
        }
        input_scales[r] = float(power_of_two(exact.input_bits - exponent));
        const double scale = factor * power_of_two(exponent + output_bits - exact.exponent);
        const float *from = exact.g + record * exact.g_stride;
        for (std::int64_t o = first; o < last; o += kRows, to += records * kRows)
            for (int i = 0; i < kRows; i++)
                to[i] = o + i < last ? double(std::int32_t(double(from[o + i]) * scale)) * unit : 0.0;
    }
    for (std::int64_t column = first_column; column < last_column; column += kColumns) {
        const std::int64_t left = last_column - column;
        const int width = int(left < kColumns ? left : kColumns);
        pack_inputs(exact, first_record, records, input_scales, column, width, block);
        const float *next = exact.x + first_record * exact.x_stride + column + width;
        for (int i = 0; i < width; i += kTile)
            for (std::int64_t t = 0; t < tiles; t++) {
                const bool wanted = t == 0 && i % kLine == 0 && i < last_column - column - width;
                const std::int64_t o = first + t * kRows;
                const int rows = int(last - o < kRows ? last - o : kRows);
                tile<kRows>(packed + t * records * kRows, block + i * records, records,
                            wanted ? next + i : input_scales, wanted ? exact.x_stride : 0,
                            exact.total + o * exact.inputs + column + i, exact.inputs, rows,
                            width - i < kTile ? width - i : kTile);
            }
    }
}

}  // namespace

void exact_squares(const Exact *exacts, std::int64_t count, std::int64_t record, double *squares) {
    for (std::int64_t i = 0; i < count; i++) {
        const Exact &exact = exacts[i];
        const double down = squared(exact.g + record * exact.g_stride, exact.outputs);
        if (exact.x) {
            const double across = squared(exact.x + record * exact.x_stride, exact.inputs);
            exact.across[record] = across;
            squares[exact.column] += across * down;
        }
        if (exact.shift) squares[exact.shift_column] += down;
    }
}

std::int64_t exact_scratch(std::int64_t records, std::int64_t outputs) {
    return records * (kColumns + 2) + (outputs + kMostRows) * records;
}

void exact_shift(const Exact &exact, const double *factors, std::int64_t groups,
                 std::int64_t records, std::int64_t first, std::int64_t last) {
    const double unit = power_of_two(exact.shift_exponent - exact.bits);
    const double units = power_of_two(exact.bits - exact.shift_exponent);
    for (std::int64_t r = 0; r < records; r++) {
        const double factor = factors[r * groups + exact.shift_column];
        if (factor == 0.0) continue;
        const float *from = exact.g + r * exact.g_stride;
        const double scale = factor * units;
        for (std::int64_t o = first; o < last; o++)
            exact.shift[o] += __builtin_trunc(double(from[o]) * scale) * unit;
    }
}

void exact_sum(const Exact &exact, const double *factors, std::int64_t groups, std::int64_t first,
               std::int64_t last, std::int64_t first_column, std::int64_t last_column,
               std::int64_t first_record, std::int64_t records, double *scratch) {
    const auto sum = (last - first) % kMostRows && (last - first) % kFiveRows == 0
                         ? sum_up<kFiveRows> : sum_up<kMostRows>;
    sum(exact, factors, groups, first, last, first_column, last_column, first_record, records,
        scratch);
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
