// The norm of one image's weight gradient from inner products between pixels, channels innermost.
//
// The gradient is a sum over output pixels of window times outputs, so its squared norm is a sum over
// pairs of output pixels: the product of their outputs times the product of their windows. Added up
// over the taps that bring two inputs together, the products of outputs become the matrix of a
// quadratic form in the inputs of each channel. All of it in double precision: what is added up is
// larger than the result by as much as the gradient's parts are larger than itself, squared.
#include <cmath>
#include <cstring>

#include "floats.h"
#include "kernels.h"

namespace tacit {
namespace TACIT_LEVEL {
namespace {

constexpr int kHalf = TACIT_LANES / 2;
typedef double Doubles __attribute__((vector_size(4 * TACIT_LANES)));

constexpr int kRows = TACIT_LANES == 16 ? 6 : 4;  // of a matrix, whose sums stay in registers
constexpr int kMostWide = TACIT_LANES == 16 ? 4 : 2;
constexpr int kBlock = 16;  // of a matrix that is turned

inline Doubles load(const double *from) {
    Doubles value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline void store(double *to, Doubles value) { std::memcpy(to, &value, sizeof value); }

std::int64_t rounded_up(std::int64_t count) { return (count + kHalf - 1) / kHalf * kHalf; }

struct Sizes {
    std::int64_t inputs, outputs;  // pixels
    std::int64_t wide;             // doubles of a row of products between outputs
    std::int64_t deep;             // doubles of the channels of one input
    std::int64_t across, apart;    // doubles of a row of a padded image; of a row of pairs
};

Sizes sizes_of(const Planar &p) {
    const std::int64_t outputs = p.out_height * p.out_width, across = p.width + 2 * p.pad_right;
    const std::int64_t padded = (p.height + 2 * p.pad_down) * across + p.kernel_width;
    return {p.height * p.width, outputs, rounded_up(outputs), rounded_up(p.channels), across,
            rounded_up(padded + kHalf)};
}

// What is worked on; every part begins where a vector does.
struct Work {
    double *turned;    // [output channels, wide]
    double *products;  // [output pixels, wide], twice those off the diagonal, none above it
    double *spread;    // one row of products, laid out as a padded image
    double *pairs;     // [inputs, apart], columns for the pixels of a padded image
    double *x;         // [inputs, deep]
    double *squares;   // of each input's channels, added up
};

std::int64_t lay_out(const Planar &p, const Sizes &s, double *at, Work &work) {
    const double *start = at;
    work.turned = at, at += p.outputs * s.wide;
    work.products = at, at += s.outputs * s.wide;
    work.spread = at, at += s.apart;
    work.pairs = at, at += s.inputs * s.apart;
    work.x = at, at += s.inputs * s.deep;
    work.squares = at, at += rounded_up(s.inputs);
    return at - start;
}

void turn(const Planar &p, const Sizes &s, const float *g, double *turned) {
    for (std::int64_t first = 0; first < p.outputs; first += kBlock) {
        const std::int64_t last = first + kBlock < p.outputs ? first + kBlock : p.outputs;
        for (std::int64_t q = 0; q < s.outputs; q++)
            for (std::int64_t o = first; o < last; o++)
                turned[o * s.wide + q] = double(g[q * p.outputs + o]);
        for (std::int64_t o = first; o < last; o++)
            for (std::int64_t q = s.outputs; q < s.wide; q++) turned[o * s.wide + q] = 0.0;
    }
}

// Products of Rows output pixels, from `first` on, with Wide vectors of them, from `column` on.
template <int Rows, int Wide>
void output_products(const Planar &p, const Sizes &s, const double *turned, std::int64_t first,
                     std::int64_t column, double *products) {
    Doubles sums[Rows][Wide] = {};
    for (std::int64_t o = 0; o < p.outputs; o++, turned += s.wide) {
        Doubles pixels[Wide];
        for (int v = 0; v < Wide; v++) pixels[v] = load(turned + column + v * kHalf);
        for (int r = 0; r < Rows; r++)
            for (int v = 0; v < Wide; v++) sums[r][v] += turned[first + r] * pixels[v];
    }
    for (int r = 0; r < Rows; r++)
        for (int v = 0; v < Wide; v++)
            store(products + (first + r) * s.wide + column + v * kHalf, sums[r][v]);
}

template <int Rows>
void output_rows(const Planar &p, const Sizes &s, const double *turned, std::int64_t first,
                 double *products) {
    for (std::int64_t column = 0; column < first + Rows;) {
        const std::int64_t left = (s.wide - column) / kHalf;
        const std::int64_t needed = (first + Rows - column + kHalf - 1) / kHalf;
        const int taken = needed >= kMostWide ? kMostWide : needed >= 2 && left >= 2 ? 2 : 1;
        if (taken == 1) output_products<Rows, 1>(p, s, turned, first, column, products);
        else if (taken == 2) output_products<Rows, 2>(p, s, turned, first, column, products);
        else output_products<Rows, kMostWide>(p, s, turned, first, column, products);
        column += taken * kHalf;
    }
    for (std::int64_t row = first; row < first + Rows; row++)
        for (std::int64_t q = 0; q < s.wide; q++) {  // above the diagonal there may be anything
            double &product = products[row * s.wide + q];
            product = q < row ? 2.0 * product : q == row ? product : 0.0;
        }
}

// The matrix of the quadratic form, none of it above its diagonal.
void add_up_taps(const Planar &p, const Sizes &s, const Work &work) {
    std::memset(work.pairs, 0, sizeof(double) * s.inputs * s.apart);
    std::memset(work.spread, 0, sizeof(double) * s.apart);
    for (std::int64_t q = 0; q < s.outputs; q++) {
        const std::int64_t row = q / p.out_width, column = q % p.out_width;
        for (std::int64_t r = 0; r <= row; r++)
            std::memcpy(work.spread + r * s.across, work.products + q * s.wide + r * p.out_width,
                        sizeof(double) * p.out_width);
        for (std::int64_t tap = 0; tap < p.kernel_height * p.kernel_width; tap++) {
            const std::int64_t down = tap / p.kernel_width, right = tap % p.kernel_width;
            const std::int64_t y = row + down - p.pad_down, x = column + right - p.pad_right;
            if (y < 0 || y >= p.height || x < 0 || x >= p.width) continue;
            double *to = work.pairs + (y * p.width + x) * s.apart + down * s.across + right;
            for (std::int64_t i = 0; i < row * s.across + p.out_width; i += kHalf)
                store(to + i, load(to + i) + load(work.spread + i));
        }
    }
}

// What Rows inputs, from `first` on, add to the squared norm together with all before them.
template <int Rows, int Wide>
Doubles form(const Planar &p, const Sizes &s, const double *pairs, const double *x,
             std::int64_t first) {
    Doubles sums[Rows][Wide] = {};
    const std::int64_t end = first + Rows;
    pairs += first * s.apart + p.pad_down * s.across + p.pad_right;
    for (std::int64_t row = 0; row * p.width < end; row++, pairs += s.across) {
        const double *input = x + row * p.width * s.deep;
        const std::int64_t left = end - row * p.width, columns = left < p.width ? left : p.width;
        for (std::int64_t column = 0; column < columns; column++, input += s.deep) {
            Doubles inputs[Wide];
            for (int v = 0; v < Wide; v++) inputs[v] = load(input + v * kHalf);
            for (int r = 0; r < Rows; r++)
                for (int v = 0; v < Wide; v++) sums[r][v] += pairs[r * s.apart + column] * inputs[v];
        }
    }
    Doubles found = {};
    for (int r = 0; r < Rows; r++)
        for (int v = 0; v < Wide; v++)
            found += sums[r][v] * load(x + (first + r) * s.deep + v * kHalf);
    return found;
}

template <int Wide>
Doubles all_forms(const Planar &p, const Sizes &s, const double *pairs, const double *x) {
    Doubles found = {};
    std::int64_t first = 0;
    for (; first + kRows <= s.inputs; first += kRows)
        found += form<kRows, Wide>(p, s, pairs, x, first);
    for (; first < s.inputs; first++) found += form<1, Wide>(p, s, pairs, x, first);
    return found;
}

// Σ over output pixels of the norm of its window times its outputs.
double parts_of(const Planar &p, const Sizes &s, const Work &work) {
    double together = 0;
    for (std::int64_t q = 0; q < s.outputs; q++) {
        const std::int64_t top = q / p.out_width - p.pad_down;
        const std::int64_t left = q % p.out_width - p.pad_right;
        double size = 0;
        for (std::int64_t tap = 0; tap < p.kernel_height * p.kernel_width; tap++) {
            const std::int64_t y = top + tap / p.kernel_width, x = left + tap % p.kernel_width;
            if (y >= 0 && y < p.height && x >= 0 && x < p.width)
                size += work.squares[y * p.width + x];
        }
        together += std::sqrt(size * work.products[q * s.wide + q]);
    }
    return together;
}

}  // namespace

std::int64_t pixel_norm_scratch(const Planar &p) {
    Work work;
    return lay_out(p, sizes_of(p), nullptr, work);
}

double pixel_norm(const Planar &p, const float *x, const float *g, double *parts, double *scratch) {
    const Sizes s = sizes_of(p);
    Work work;
    lay_out(p, s, scratch, work);
    turn(p, s, g, work.turned);
    std::int64_t first = 0;
    for (; first + kRows <= s.outputs; first += kRows)
        output_rows<kRows>(p, s, work.turned, first, work.products);
    for (; first < s.outputs; first++) output_rows<1>(p, s, work.turned, first, work.products);
    add_up_taps(p, s, work);
    for (std::int64_t i = 0; i < s.inputs; i++) {
        double *to = work.x + i * s.deep, square = 0;
        for (std::int64_t c = 0; c < s.deep; c++)
            to[c] = c < p.channels ? double(x[i * p.channels + c]) : 0.0;
        Doubles squares = {};
        for (std::int64_t c = 0; c < s.deep; c += kHalf) squares += load(to + c) * load(to + c);
        for (int lane = 0; lane < kHalf; lane++) square += squares[lane];
        work.squares[i] = square;
    }
    Doubles found = {};
    for (std::int64_t c = 0; c < s.deep;) {
        const std::int64_t left = (s.deep - c) / kHalf;
        const int taken = left >= kMostWide ? kMostWide : left >= 2 ? 2 : 1;
        if (taken == 1) found += all_forms<1>(p, s, work.pairs, work.x + c);
        else if (taken == 2) found += all_forms<2>(p, s, work.pairs, work.x + c);
        else found += all_forms<kMostWide>(p, s, work.pairs, work.x + c);
        c += taken * kHalf;
    }
    *parts = parts_of(p, s, work);
    double total = 0;
    for (int lane = 0; lane < kHalf; lane++) total += found[lane];
    return total;
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
