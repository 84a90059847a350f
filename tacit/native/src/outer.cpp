// Gradients of linear layers with one position: norms of rows, and weighted sums of outer products.
//
// The sums are products of matrices whose one operand is scaled while it is packed. The sum over
// records stays in registers, a tile of outputs by inputs at a time.
#include <cstring>

#include "floats.h"
#include "kernels.h"

namespace tacit {
namespace TACIT_LEVEL {
namespace {

constexpr int kRows = TACIT_LANES == 16 ? 8 : 6;
constexpr int kWide = TACIT_LANES == 16 ? 3 : 2;
constexpr int kLine = 16;  // floats in a line of a cache
static_assert(kOuterMost % kRows == 0, "whole tiles");

// Floats from one packed tile to the next: a line more than they take, lest all begin at places that a
// cache keeps in one set.
std::int64_t panel(std::int64_t records) { return records * kRows + kLine; }

// Where a tile's result goes; `rows` and `width` say how much of it is wanted.
struct Target {
    float *to;
    std::int64_t stride;
    int rows, width;
    bool kept;
};

// kRows outputs by Wide vectors of inputs. What `ahead` points at is wanted soon, record by record.
template <int Wide>
void tile(const float *g, const float *x, std::int64_t records, const float *ahead,
          std::int64_t ahead_stride, const Target &target) {
    for (int o = 0; o < target.rows; o++)
        for (int i = 0; i < target.width; i += kLine)
            __builtin_prefetch(target.to + o * target.stride + i, 1);
    Lanes sums[kRows][Wide] = {};
    for (std::int64_t r = 0; r < records; r++) {
        __builtin_prefetch(ahead + r * ahead_stride);
        Lanes inputs[Wide];
        for (int k = 0; k < Wide; k++) inputs[k] = load(x + (r * Wide + k) * kLanes);
        for (int o = 0; o < kRows; o++)
            for (int k = 0; k < Wide; k++) sums[o][k] += g[r * kRows + o] * inputs[k];
    }
    if (target.width == Wide * kLanes) {
        for (int o = 0; o < kRows; o++)
            for (int k = 0; k < Wide && o < target.rows; k++) {
                float *at = target.to + o * target.stride + k * kLanes;
                store(at, target.kept ? load(at) + sums[o][k] : sums[o][k]);
            }
        return;
    }
    alignas(64) float result[kRows][Wide * kLanes];
    for (int o = 0; o < kRows; o++)
        for (int k = 0; k < Wide; k++) store(result[o] + k * kLanes, sums[o][k]);
    for (int o = 0; o < target.rows; o++)
        for (int i = 0; i < target.width; i++) {
            float *at = target.to + o * target.stride + i;
            *at = target.kept ? *at + result[o][i] : result[o][i];
        }
}

// Some outputs and records of a sum: as many as are packed at once.
struct Part {
    std::int64_t first, last;
    std::int64_t first_record, records;
};

// The sums of `width` inputs from `column` on.
template <int Wide>
void sum_columns(const Outer &outer, const Part &part, const float *packed, std::int64_t column,
                 int width, float *block) {
    const std::int64_t stride = outer.x_stride;
    const float *from = outer.x + part.first_record * stride + column;
    for (std::int64_t r = 0; r < part.records; r++) {
        float *to = block + r * Wide * kLanes;
        if (width == Wide * kLanes) std::memcpy(to, from + r * stride, sizeof(Lanes) * Wide);
        else
            for (int i = 0; i < Wide * kLanes; i++) to[i] = i < width ? from[r * stride + i] : 0.0f;
    }
    const std::int64_t following = outer.inputs - column - width;
    Target target{outer.total + part.first * outer.inputs + column, outer.inputs, kRows, width,
                  outer.kept || part.first_record > 0};
    for (std::int64_t o = part.first, line = 0; o < part.last; o += kRows, line += kLine) {
        const bool wanted = line < kWide * kLanes && line < following;
        if (part.last - o < kRows) target.rows = int(part.last - o);
        tile<Wide>(packed, block, part.records, wanted ? from + width + line : block,
                   wanted ? stride : 0, target);
        packed += panel(part.records);
        target.to += kRows * outer.inputs;
    }
}

// Scales the part's outputs and packs them, tile by tile; adds up the shift.
void pack(const Outer &outer, const Part &part, const float *factors, std::int64_t groups,
          float *packed) {
    const std::int64_t outputs = part.last - part.first;
    alignas(64) float row[kOuterMost], sums[kOuterMost] = {};
    for (std::int64_t r = 0; r < part.records; r++) {
        const std::int64_t record = part.first_record + r;
        const float factor = factors[record * groups + outer.column];
        const float *from = outer.g + record * outer.g_stride + part.first;
        for (std::int64_t o = 0; o < outputs; o++) row[o] = from[o] * factor;
        for (std::int64_t o = outputs; o % kRows; o++) row[o] = 0.0f;
        for (std::int64_t o = 0; outer.shift && o < outputs; o++) sums[o] += row[o];
        float *to = packed + r * kRows;
        for (std::int64_t o = 0; outer.x && o < outputs; o += kRows, to += panel(part.records))
            std::memcpy(to, row + o, sizeof(float) * kRows);
    }
    const bool kept = outer.shift_kept || part.first_record > 0;
    for (std::int64_t o = 0; outer.shift && o < outputs; o++) {
        float *to = outer.shift + part.first + o;
        *to = kept ? *to + sums[o] : sums[o];
    }
}

// A row's squared norm, never less: what squares too small for a float have lost is added.
float squared(const float *row, std::int64_t width) {
    Lanes sums[4] = {};
    std::int64_t i = 0;
    for (; i + 4 * kLanes <= width; i += 4 * kLanes)
        for (int k = 0; k < 4; k++) {
            const Lanes value = load(row + i + k * kLanes);
            sums[k] += value * value;
        }
    const Lanes all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    float sum = 0.0f;
    for (; i < width; i++) sum += row[i] * row[i];
    for (int lane = 0; lane < kLanes; lane++) sum += all[lane];
    return sum + float(width) * __FLT_MIN__;
}

}  // namespace

void outer_squares(const Outer *outers, std::int64_t count, std::int64_t record, float *squares) {
    for (std::int64_t i = 0; i < count; i++) {
        const Outer &outer = outers[i];
        float across = outer.shift ? 1.0f : 0.0f;
        if (outer.x) across += squared(outer.x + record * outer.x_stride, outer.inputs);
        squares[outer.column] +=
            across * squared(outer.g + record * outer.g_stride, outer.outputs);
    }
}

std::int64_t outer_scratch(std::int64_t records, std::int64_t outputs) {
    return records * kWide * kLanes + (outputs + kRows - 1) / kRows * panel(records);
}

void outer_sum(const Outer &outer, const float *factors, std::int64_t groups, std::int64_t first,
               std::int64_t last, std::int64_t first_record, std::int64_t records, float *scratch) {
    const Part part{first, last, first_record, records};
    float *block = scratch, *packed = scratch + records * kWide * kLanes;
    pack(outer, part, factors, groups, packed);
    for (std::int64_t column = 0; column < outer.inputs; column += kWide * kLanes) {
        const std::int64_t left = outer.inputs - column;
        const int width = int(left < kWide * kLanes ? left : kWide * kLanes);
        if (width <= kLanes) sum_columns<1>(outer, part, packed, column, width, block);
        else if (width <= 2 * kLanes) sum_columns<2>(outer, part, packed, column, width, block);
        else sum_columns<kWide>(outer, part, packed, column, width, block);
    }
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
