// Rows times a matrix, and what follows at once: a shift and a rectifier, or on the way back the rows
// that a rectifier let through.
//
// The matrix is packed in panels of as many columns as a tile has; a tile's sums over terms stay in
// registers. Terms are added up in their own order, so a row's result never depends on other rows.
#include "floats.h"
#include "kernels.h"

namespace tacit {
namespace TACIT_LEVEL {
namespace {

constexpr int kRows = TACIT_LANES == 16 ? 8 : 6;
constexpr int kWide = TACIT_LANES == 16 ? 3 : 2;
// Some columns and terms: as many as are packed at once.
struct Panel {
    std::int64_t column, width;
    std::int64_t first, terms;
};

typedef std::int32_t Places __attribute__((vector_size(4 * TACIT_LANES)));

// Numbers of a and b, which count on from those of a.
inline Lanes picked(Lanes a, Lanes b, Places places) {
#ifdef __clang__
    Lanes result;
    for (int i = 0; i < kLanes; i++)
        result[i] = places[i] < kLanes ? a[places[i]] : b[places[i] - kLanes];
    return result;
#else
    return __builtin_shuffle(a, b, places);
#endif
}

// Blocks of Step numbers above the diagonal change places with those below it; then smaller blocks do.
template <int Step>
inline void turn(Lanes (&square)[kLanes]) {
    Places upper, lower;
    for (int i = 0; i < kLanes; i++) {
        upper[i] = i & Step ? kLanes + i - Step : i;
        lower[i] = i & Step ? kLanes + i : i + Step;
    }
    TACIT_UNROLL
    for (int i = 0; i < kLanes; i++) {
        if (i & Step) continue;
        const Lanes above = square[i], below = square[i + Step];
        square[i] = picked(above, below, upper);
        square[i + Step] = picked(above, below, lower);
    }
    if constexpr (Step > 1) turn<Step / 2>(square);
}

// Columns of the matrix that lie one after the other become rows of a panel, a square at a time.
template <int Wide>
void pack_turned(const Affine &affine, const Panel &panel, float *packed) {
    const float *from = affine.matrix + panel.column * affine.matrix_stride + panel.first;
    for (std::int64_t k = 0; k < panel.terms; k += kLanes) {
        const std::int64_t left = panel.terms - k, count = left < kLanes ? left : kLanes;
        for (int w = 0; w < Wide; w++) {
            float *to = packed + (k * Wide + w) * kLanes;
            const float *at = from + w * kLanes * affine.matrix_stride + k;
            if (count == kLanes && panel.width >= (w + 1) * kLanes) {
                Lanes square[kLanes];
                TACIT_UNROLL
                for (int c = 0; c < kLanes; c++) square[c] = load(at + c * affine.matrix_stride);
                turn<kLanes / 2>(square);
                TACIT_UNROLL
                for (int c = 0; c < kLanes; c++) store(to + c * Wide * kLanes, square[c]);
                continue;
            }
            for (std::int64_t i = 0; i < count; i++)
                for (int c = 0; c < kLanes; c++)
                    to[i * Wide * kLanes + c] =
                        w * kLanes + c < panel.width ? at[c * affine.matrix_stride + i] : 0.0f;
        }
    }
}

// The same where rows of the matrix do.
template <int Wide>
void pack_rows(const Affine &affine, const Panel &panel, float *packed) {
    const float *from = affine.matrix + panel.first * affine.matrix_stride + panel.column;
    for (std::int64_t k = 0; k < panel.terms; k++, packed += Wide * kLanes) {
        const float *at = from + k * affine.matrix_stride;
        if (panel.width == Wide * kLanes) std::memcpy(packed, at, sizeof(Lanes) * Wide);
        else
            for (int c = 0; c < Wide * kLanes; c++) packed[c] = c < panel.width ? at[c] : 0.0f;
    }
}

// Numbers behind `from`, of which `left` are there; others become zero.
inline Lanes some(const float *from, std::int64_t left) {
    if (left >= kLanes) return load(from);
    float values[kLanes] = {};
    for (std::int64_t i = 0; i < left; i++) values[i] = from[i];
    return load(values);
}

// kRows rows by Wide vectors of columns; `rows` of them are wanted.
template <int Wide>
void tile(const Affine &affine, const Panel &panel, const float *packed, std::int64_t row, int rows) {
    const float *x[kRows];
    for (int r = 0; r < kRows; r++)
        x[r] = affine.x + (row + (r < rows ? r : rows - 1)) * affine.x_stride + panel.first;
    Lanes sums[kRows][Wide] = {};
    for (std::int64_t k = 0; k < panel.terms; k++) {
        Lanes terms[Wide];
        for (int w = 0; w < Wide; w++) terms[w] = load(packed + (k * Wide + w) * kLanes);
        for (int r = 0; r < kRows; r++)
            for (int w = 0; w < Wide; w++) sums[r][w] += x[r][k] * terms[w];
    }
    const bool begun = panel.first > 0, done = panel.first + panel.terms == affine.terms;
    for (int r = 0; r < kRows; r++) {
        if (r >= rows) break;
        for (int w = 0; w < Wide; w++) {
            const std::int64_t at = panel.column + w * kLanes;
            const std::int64_t left = panel.width - w * kLanes;
            float *to = affine.y + (row + r) * affine.columns + at;
            Lanes value = sums[r][w];
            if (begun) value += some(to, left);
            if (done && affine.shift) value += some(affine.shift + at, left);
            if (done && affine.rectified) value = value < 0 ? Lanes{} : value;
            if (done && affine.above) {
                const Lanes above = some(affine.above + (row + r) * affine.above_stride + at, left);
                value = above <= 0 ? Lanes{} : value;
            }
            if (left >= kLanes) store(to, value);
            else
                for (std::int64_t i = 0; i < left; i++) to[i] = value[i];
        }
    }
}

template <int Wide>
void columns(const Affine &affine, std::int64_t column, std::int64_t width, float *packed) {
    for (std::int64_t first = 0; first == 0 || first < affine.terms; first += kAffineTerms) {
        const std::int64_t left = affine.terms - first;
        const Panel panel{column, width, first, left < kAffineTerms ? left : kAffineTerms};
        if (affine.turned) pack_turned<Wide>(affine, panel, packed);
        else pack_rows<Wide>(affine, panel, packed);
        for (std::int64_t row = 0; row < affine.rows; row += kRows) {
            const std::int64_t rows = affine.rows - row;
            tile<Wide>(affine, panel, packed, row, rows < kRows ? int(rows) : kRows);
        }
    }
}

}  // namespace

void affine(const Affine &affine, std::int64_t first, std::int64_t last, float *scratch) {
    for (std::int64_t column = first; column < last; column += kWide * kLanes) {
        const std::int64_t left = last - column;
        const std::int64_t width = left < kWide * kLanes ? left : kWide * kLanes;
        if (width <= kLanes) columns<1>(affine, column, width, scratch);
        else if (width <= 2 * kLanes) columns<2>(affine, column, width, scratch);
        else columns<kWide>(affine, column, width, scratch);
    }
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
