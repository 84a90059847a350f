// Convolutions with kernels of 3 x 3 and stride 1 by Winograd's minimal filtering F(2 x 2, 3 x 3),
// for images with channels innermost.
//
// Outputs are made in tiles of 2 x 2, each from 4 x 4 inputs: sixteen products for every pair of
// channels instead of thirty-six. Transforms only add and halve, so that rounding grows by a small
// factor (Lavin and Gray 2016; larger tiles would save more and lose digits).
#include "winograd.h"

namespace tacit {
namespace TACIT_LEVEL {
namespace {

constexpr int kRows = 6;  // tiles whose sums stay in registers

// Rows x Wide vectors of products: tiles by output channels, summed over input channels.
template <int Wide, int Rows>
void products(const float *v, const float *u, std::int64_t channels, float *m,
              std::int64_t outputs) {
    Lanes sums[Rows][Wide] = {};
    for (std::int64_t c = 0; c < channels; c++) {
        Lanes weights[Wide];
        for (int k = 0; k < Wide; k++) weights[k] = load(u + (c * Wide + k) * kLanes);
        for (int r = 0; r < Rows; r++)
            for (int k = 0; k < Wide; k++) sums[r][k] += v[r * channels + c] * weights[k];
    }
    for (int r = 0; r < Rows; r++)
        for (int k = 0; k < Wide; k++) store(m + r * outputs + k * kLanes, sums[r][k]);
}

template <int Wide>
void all_products(const float *v, const float *u, std::int64_t channels, float *m,
                  std::int64_t outputs, std::int64_t tiles) {
    std::int64_t t = 0;
    for (; t + kRows <= tiles; t += kRows)
        products<Wide, kRows>(v + t * channels, u, channels, m + t * outputs, outputs);
    for (; t < tiles; t++)
        products<Wide, 1>(v + t * channels, u, channels, m + t * outputs, outputs);
}

void transform_output(const Winograd &w, const float *m, std::int64_t apart, const float *bias,
                      Tile tile, float *y) {
    float *first = y + ((tile.image * w.out_height + tile.top) * w.out_width + tile.left) * w.outputs;
    const bool below = tile.top + 1 < w.out_height, beside = tile.left + 1 < w.out_width;
    for (std::int64_t o = 0; o < w.outputs; o += kLanes) {
        Lanes rows[2][4];
        for (int j = 0; j < 4; j++) {
            Lanes d[4];
            for (int i = 0; i < 4; i++) d[i] = load(m + (4 * i + j) * apart + o);
            rows[0][j] = d[0] + d[1] + d[2];
            rows[1][j] = d[1] - d[2] - d[3];
        }
        const Lanes shift = bias ? load(bias + o) : Lanes{};
        for (int i = 0; i < (below ? 2 : 1); i++) {
            float *out = first + i * w.out_width * w.outputs + o;
            store(out, rows[i][0] + rows[i][1] + rows[i][2] + shift);
            if (beside) store(out + w.outputs, rows[i][1] - rows[i][2] - rows[i][3] + shift);
        }
    }
}

}  // namespace

// Transformed kernels, [places, blocks of outputs, channels, outputs of a block].
void winograd_weights(const Taps &taps, const float *weight, float *u, std::int64_t first,
                      std::int64_t last) {
    for (std::int64_t o = 0; o < taps.outputs;) {
        const int vectors = wide(taps.outputs - o);
        for (std::int64_t c = first; c < last; c++)
            for (int k = 0; k < vectors; k++) {
                Lanes g[3][3], rows[4][3];
                for (int tap = 0; tap < 9; tap++) {
                    const int from = taps.flipped ? 8 - tap : tap;
                    for (int lane = 0; lane < kLanes; lane++)
                        g[tap / 3][tap % 3][lane] =
                            weight[(o + k * kLanes + lane) * taps.output_stride +
                                   c * taps.channel_stride + from * taps.tap_stride];
                }
                for (int j = 0; j < 3; j++) {
                    rows[0][j] = g[0][j];
                    rows[1][j] = 0.5f * (g[0][j] + g[1][j] + g[2][j]);
                    rows[2][j] = 0.5f * (g[0][j] - g[1][j] + g[2][j]);
                    rows[3][j] = g[2][j];
                }
                float *out = u + o * taps.channels + (c * vectors + k) * kLanes;
                const std::int64_t apart = taps.channels * taps.outputs;
                for (int i = 0; i < 4; i++, out += 4 * apart) {
                    store(out, rows[i][0]);
                    store(out + apart, 0.5f * (rows[i][0] + rows[i][1] + rows[i][2]));
                    store(out + 2 * apart, 0.5f * (rows[i][0] - rows[i][1] + rows[i][2]));
                    store(out + 3 * apart, rows[i][2]);
                }
            }
        o += vectors * kLanes;
    }
}

// Tiles first to last of the outputs, at most as many as there is scratch for.
void winograd(const Winograd &w, const float *x, const float *u, const float *bias, float *y,
              std::int64_t first, std::int64_t last, float *scratch) {
    const std::int64_t tiles = last - first;
    const std::int64_t v_apart = place_apart(tiles * w.channels);
    const std::int64_t m_apart = place_apart(tiles * w.outputs);
    float *v = scratch, *m = scratch + kPlaces * v_apart;
    for (std::int64_t t = 0; t < tiles; t++)
        transform_input(w, x, place(w, first + t), v + t * w.channels, v_apart);
    for (int p = 0; p < kPlaces; p++) {
        const float *inputs = v + p * v_apart;
        const float *weights = u + p * w.channels * w.outputs;
        float *out = m + p * m_apart;
        for (std::int64_t o = 0; o < w.outputs;) {
            const int vectors = wide(w.outputs - o);
            const float *block = weights + o * w.channels;
            if (vectors == 4)
                all_products<kMostWide>(inputs, block, w.channels, out + o, w.outputs, tiles);
            else if (vectors == 2)
                all_products<2>(inputs, block, w.channels, out + o, w.outputs, tiles);
            else
                all_products<1>(inputs, block, w.channels, out + o, w.outputs, tiles);
            o += vectors * kLanes;
        }
    }
    for (std::int64_t t = 0; t < tiles; t++)
        transform_output(w, m + t * w.outputs, m_apart, bias, place(w, first + t), y);
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
