// Weighted sums of outer products: the weight gradient of a linear layer, records times factors.
//
// A product of matrices whose one operand is scaled while it is packed; the sum over records stays
// in registers, a tile of outputs by inputs at a time.
#include <cstring>

#include "floats.h"
#include "kernels.h"

namespace tacit {
namespace TACIT_LEVEL {
namespace {

constexpr int kRows = kOuterRows;
constexpr int kWide = TACIT_LANES == 16 ? 4 : 2;

// kRows outputs by Wide vectors of inputs. Results go to `to`, kWide vectors for each output.
template <int Wide>
void tile(const float *g, const float *x, std::int64_t records, float *to) {
    Lanes sums[kRows][Wide] = {};
    for (std::int64_t r = 0; r < records; r++) {
        Lanes inputs[Wide];
        for (int k = 0; k < Wide; k++) inputs[k] = load(x + (r * Wide + k) * kLanes);
        for (int o = 0; o < kRows; o++)
            for (int k = 0; k < Wide; k++) sums[o][k] += g[r * kRows + o] * inputs[k];
    }
    for (int o = 0; o < kRows; o++)
        for (int k = 0; k < Wide; k++) store(to + (o * kWide + k) * kLanes, sums[o][k]);
}

void put(const float *from, std::int64_t width, bool kept, float *to) {
    if (kept)
        for (std::int64_t i = 0; i < width; i++) to[i] += from[i];
    else
        std::memcpy(to, from, sizeof(float) * width);
}

}  // namespace

std::int64_t outer_scratch(std::int64_t records, std::int64_t outputs) {
    const std::int64_t tiles = (outputs + kRows - 1) / kRows;
    return records * (tiles * kRows + kWide * kLanes);
}

void outer_sum(const Outer &outer, const float *factors, std::int64_t first, std::int64_t last,
               float *scratch) {
    const std::int64_t records = outer.records, tiles = (last - first + kRows - 1) / kRows;
    alignas(64) float result[kRows * kWide * kLanes];
    float *block = scratch, *packed = scratch + records * kWide * kLanes;
    for (std::int64_t t = 0; t < tiles; t++) {
        const std::int64_t start = first + t * kRows;
        const int rows = int(last - start < kRows ? last - start : kRows);
        float *to = packed + t * records * kRows;
        for (std::int64_t r = 0; r < records; r++, to += kRows) {
            const float *from = outer.g + r * outer.g_stride + start;
            for (int o = 0; o < kRows; o++) to[o] = o < rows ? from[o] * factors[r] : 0.0f;
        }
    }
    for (std::int64_t column = 0; column < outer.inputs; column += kWide * kLanes) {
        const std::int64_t left = outer.inputs - column;
        const std::int64_t width = left < kWide * kLanes ? left : kWide * kLanes;
        const int vectors = int((width + kLanes - 1) / kLanes);
        const int wide = vectors > 2 ? kWide : vectors;
        for (std::int64_t r = 0; r < records; r++) {
            float *to = block + r * wide * kLanes;
            std::memcpy(to, outer.x + r * outer.x_stride + column, sizeof(float) * width);
            for (std::int64_t i = width; i < wide * kLanes; i++) to[i] = 0.0f;
        }
        for (std::int64_t t = 0; t < tiles; t++) {
            const std::int64_t start = first + t * kRows;
            const float *g = packed + t * records * kRows;
            if (wide == 1) tile<1>(g, block, records, result);
            else if (wide == 2) tile<2>(g, block, records, result);
            else tile<kWide>(g, block, records, result);
            for (int o = 0; o < kRows && start + o < last; o++)
                put(result + o * kWide * kLanes, width, outer.kept,
                    outer.total + (start + o) * outer.inputs + column);
        }
    }
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
