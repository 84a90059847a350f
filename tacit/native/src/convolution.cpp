// The weight gradient of a planar convolution, channels innermost, with its norm.
//
// The gradient is a matrix of kernel taps by output channels: for every pair, a sum over the pixels
// of the outputs of one image or of several. A tile of it stays in registers for a whole pass over
// the pixels, and its squared norm is taken there, so that gradients that are only to be measured
// are never written at all.
#include <cstring>

#include "images.h"

namespace tacit {
namespace TACIT_LEVEL {
namespace {

// Vectors of a tile that still leave registers for the operands.
constexpr int kAccumulators = TACIT_LANES == 16 ? 27 : 12;
constexpr int kMostRows = 5;
constexpr int kMostRun = 24;

// One pass over the output pixels. Inputs of a tile are `rows` runs of consecutive floats.
struct Pass {
    std::int64_t images;
    std::int64_t image;                // floats from one image to the next
    std::int64_t height, width;        // output pixels
    std::int64_t down, right;          // floats from one pixel's inputs to the next one's
    std::int64_t apart;                // floats from one run of a tile to the next
    std::int64_t outputs;              // floats of one pixel of g
    std::int64_t written;              // floats of one tap of the result, a multiple of kLanes
};

typedef Lanes (*Tile)(const Pass &, const float *x, const float *g, float *out,
                      std::int64_t out_apart);

// Rows x Run taps by Wide vectors of output channels. Writes the tile tap by tap, if it is to be
// written, and returns the squares of its elements added up in each lane. Squares of different
// vectors are added up apart, or each would wait for the one before.
template <int Wide, int Rows, int Run>
Lanes tile(const Pass &pass, const float *x, const float *g, float *out, std::int64_t out_apart) {
    Lanes sums[Rows][Run][Wide] = {};
    for (std::int64_t image = 0; image < pass.images; image++, x += pass.image)
        for (std::int64_t row = 0; row < pass.height; row++) {
            const float *input = x + row * pass.down;
            for (std::int64_t column = 0; column < pass.width; column++) {
                Lanes outputs[Wide];
                for (int v = 0; v < Wide; v++) outputs[v] = load(g + v * kLanes);
TACIT_UNROLL
                for (int r = 0; r < Rows; r++)
TACIT_UNROLL
                    for (int i = 0; i < Run; i++)
                        for (int v = 0; v < Wide; v++)
                            sums[r][i][v] += input[r * pass.apart + i] * outputs[v];
                input += pass.right;
                g += pass.outputs;
            }
        }
    Lanes squares[4] = {};
TACIT_UNROLL
    for (int r = 0; r < Rows; r++)
TACIT_UNROLL
        for (int i = 0; i < Run; i++)
            for (int v = 0; v < Wide; v++) {
                squares[(i * Wide + v) % 4] += sums[r][i][v] * sums[r][i][v];
                if (out)
                    store(out + r * out_apart + i * pass.written + v * kLanes, sums[r][i][v]);
            }
    return (squares[0] + squares[1]) + (squares[2] + squares[3]);
}

template <int Wide>
constexpr bool fits(int rows, int run) {
    return rows * run * Wide <= kAccumulators;
}

template <int Wide, int Rows, int Run>
Tile find(int rows, int run) {
    if constexpr (Rows > kMostRows) {
        return nullptr;
    } else if constexpr (Run > kMostRun || !fits<Wide>(Rows, Run)) {
        return find<Wide, Rows + 1, 1>(rows, run);
    } else {
        if (Rows == rows && Run == run) return tile<Wide, Rows, Run>;
        return find<Wide, Rows, Run + 1>(rows, run);
    }
}

template <int Wide>
int longest_run() {
    return kAccumulators / Wide < kMostRun ? kAccumulators / Wide : kMostRun;
}

// All taps by one block of Wide vectors of output channels.
template <int Wide>
Lanes block(const Planar &p, Pass &pass, const float *x, const float *g, float *out) {
    const std::int64_t row = padded_row(p) * p.tap_down;
    const bool joined = p.tap_right == 1;
    const std::int64_t length = joined ? p.kernel_width * p.channels : p.channels;
    const std::int64_t columns = joined ? 1 : p.kernel_width;
    const std::int64_t pieces = (length + longest_run<Wide>() - 1) / longest_run<Wide>();
    Lanes squares = {};
    Tile chosen = nullptr;
    std::int64_t chosen_rows = 0, chosen_run = 0;
    pass.apart = row;
    for (std::int64_t column = 0; column < columns; column++) {
        for (std::int64_t piece = 0; piece < pieces; piece++) {
            const std::int64_t first = length * piece / pieces;
            const std::int64_t run = length * (piece + 1) / pieces - first;
            std::int64_t most = kAccumulators / Wide / run;
            most = most < kMostRows ? most : kMostRows;
            for (std::int64_t r = 0; r < p.kernel_height;) {
                const std::int64_t left = p.kernel_height - r;
                const std::int64_t steps = (left + most - 1) / most;
                const std::int64_t rows = (left + steps - 1) / steps;
                const std::int64_t tap = column * p.tap_right * p.channels + first;
                const std::int64_t place =
                    (r * p.kernel_width + column) * p.channels + first;
                if (rows != chosen_rows || run != chosen_run)
                    chosen = find<Wide, 1, 1>(int(rows), int(run));
                chosen_rows = rows, chosen_run = run;
                squares += chosen(pass, x + r * row + tap, g,
                                  out ? out + place * pass.written : nullptr,
                                  p.kernel_width * p.channels * pass.written);
                r += rows;
            }
        }
    }
    return squares;
}

// Copies of outputs, each image's times its factor if there are any. The last vector of a pixel may
// reach into the next, so that the last pixel needs one.
void weigh(const Planar &p, std::int64_t images, const float *g, const float *factors, float *to) {
    const std::int64_t size = p.out_height * p.out_width * p.outputs;
    for (std::int64_t i = 0; i < images; i++, g += size, to += size)
        for (std::int64_t o = 0; o < size; o++) to[o] = factors ? g[o] * factors[i] : g[o];
    std::memset(to, 0, sizeof(float) * kLanes);
}

}  // namespace

std::int64_t convolution_scratch(const Planar &p, std::int64_t images) {
    const std::int64_t each = padded_size(p) + p.out_height * p.out_width * p.outputs;
    const std::int64_t wide = vectors_of(p.outputs) * kLanes;
    return images * each + kLanes + p.kernel_height * p.kernel_width * p.channels * wide;
}

// Writes [kernel height, kernel width, channels, outputs] if `gradient` is given.
float convolution_gradient(const Planar &p, std::int64_t images, const float *x, const float *g,
                           const float *factors, float *gradient, float *scratch) {
    const std::int64_t pixels = p.out_height * p.out_width, size = padded_size(p);
    const std::int64_t wide = vectors_of(p.outputs) * kLanes, rest = p.outputs % kLanes;
    const std::int64_t taps = p.kernel_height * p.kernel_width * p.channels;
    float *out = gradient;
    if (p.pad_down || p.pad_right) {
        for (std::int64_t i = 0; i < images; i++)
            pad(p, x + i * p.height * p.width * p.channels, scratch + i * size);
        x = scratch;
        scratch += images * size;
    }
    if (rest || factors) {
        weigh(p, images, g, factors, scratch);
        g = scratch;
        scratch += images * pixels * p.outputs + kLanes;
    }
    if (rest && gradient) out = scratch;
    Pass pass = {images, size, p.out_height, p.out_width,
                 p.step_down * padded_row(p), p.step_right * p.channels, 0, p.outputs, wide};
    Lanes squares = {}, last = {};
    for (std::int64_t first = 0; first < p.outputs;) {
        const std::int64_t left = (p.outputs - first) / kLanes;
        float *to = out ? out + first : nullptr;
        const int taken = left >= 4 ? 4 : left >= 2 ? 2 : 1;
        if (left == 0) last = block<1>(p, pass, x, g + first, to);
        else if (taken == 4) squares += block<4>(p, pass, x, g + first, to);
        else if (taken == 2) squares += block<2>(p, pass, x, g + first, to);
        else squares += block<1>(p, pass, x, g + first, to);
        first += taken * kLanes;
    }
    if (out != gradient)
        for (std::int64_t tap = 0; tap < taps; tap++)
            std::memcpy(gradient + tap * p.outputs, out + tap * wide, sizeof(float) * p.outputs);
    float total = 0;
    for (int lane = 0; lane < kLanes; lane++) total += squares[lane];
    for (int lane = 0; lane < rest; lane++) total += last[lane];
    return total;
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
