// Weight gradients of convolutions with kernels of 3 x 3 and stride 1 by Winograd's method, for images
// with channels innermost.
//
// The way back through F(2 x 2, 3 x 3) to its kernels: sixteen matrices of channels by outputs, each a
// sum over tiles of transformed inputs times transformed output gradients, which a last transform
// turns into nine. Sixteen products for every tile and pair of channels instead of thirty-six, and as
// on the way there only additions and halves around them.
#include "winograd.h"

namespace tacit {
namespace TACIT_LEVEL {

void winograd_transforms(const Winograd &, const float *, const float *, const float *,
                         std::int64_t, std::int64_t, std::int64_t, std::int64_t, float *, float *);

namespace {

constexpr int kRows = 4;     // channels whose sums stay in registers
constexpr int kChunk = 16;   // channels that share a pass over output gradients
constexpr int kTaps = 9;

// Sixteen values for each output, from the gradients of a tile's 2 x 2 outputs times a factor.
void transform_gradient(const Winograd &w, const float *g, Tile tile, float factor, float *u,
                        std::int64_t apart) {
    const float *pixels[2][2];
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            const std::int64_t row = tile.top + i, column = tile.left + j;
            const bool inside = row < w.out_height && column < w.out_width;
            const std::int64_t pixel = (tile.image * w.out_height + row) * w.out_width + column;
            pixels[i][j] = inside ? g + pixel * w.outputs : nullptr;
        }
    for (std::int64_t o = 0; o < w.outputs; o += kLanes) {
        Lanes e[2][2];
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 2; j++)
                e[i][j] = pixels[i][j] ? factor * load(pixels[i][j] + o) : Lanes{};
        const Lanes rows[4][2] = {{e[0][0], e[0][1]},
                                  {e[0][0] + e[1][0], e[0][1] + e[1][1]},
                                  {e[0][0] - e[1][0], e[0][1] - e[1][1]},
                                  {-e[1][0], -e[1][1]}};
        for (int i = 0; i < 4; i++) {
            float *out = u + 4 * i * apart + o;
            store(out, rows[i][0]);
            store(out + apart, rows[i][0] + rows[i][1]);
            store(out + 2 * apart, rows[i][0] - rows[i][1]);
            store(out + 3 * apart, -rows[i][1]);
        }
    }
}

// kRows channels by Wide vectors of outputs, summed over tiles; m is [kRows, m_apart].
template <int Wide>
void products(const Winograd &w, const float *v, const float *u, std::int64_t tiles, float *m,
              std::int64_t m_apart, bool kept) {
    Lanes sums[kRows][Wide];
    for (int r = 0; r < kRows; r++)
        for (int k = 0; k < Wide; k++)
            sums[r][k] = kept ? load(m + r * m_apart + k * kLanes) : Lanes{};
    for (std::int64_t t = 0; t < tiles; t++, v += w.channels, u += w.outputs) {
        Lanes gradients[Wide];
        for (int k = 0; k < Wide; k++) gradients[k] = load(u + k * kLanes);
        for (int r = 0; r < kRows; r++)
            for (int k = 0; k < Wide; k++) sums[r][k] += v[r] * gradients[k];
    }
    for (int r = 0; r < kRows; r++)
        for (int k = 0; k < Wide; k++) store(m + r * m_apart + k * kLanes, sums[r][k]);
}

// The same for kChunk channels.
template <int Wide>
void chunk(const Winograd &w, const float *v, const float *u, std::int64_t tiles, float *m,
           std::int64_t m_apart, bool kept) {
    for (int c = 0; c < kChunk; c += kRows)
        products<Wide>(w, v + c, u, tiles, m + c * m_apart, m_apart, kept);
}

void chunk(int vectors, const Winograd &w, const float *v, const float *u, std::int64_t tiles,
           float *m, std::int64_t m_apart, bool kept) {
    if (vectors == 4) chunk<kMostWide>(w, v, u, tiles, m, m_apart, kept);
    else if (vectors == 2) chunk<2>(w, v, u, tiles, m, m_apart, kept);
    else chunk<1>(w, v, u, tiles, m, m_apart, kept);
}

// Nine taps from sixteen places, `apart` floats from one to the next.
void taps_of(const float *m, std::int64_t apart, Lanes (&taps)[3][3]) {
    Lanes rows[3][4];
    for (int j = 0; j < 4; j++) {
        Lanes d[4];
        for (int i = 0; i < 4; i++) d[i] = load(m + (4 * i + j) * apart);
        const Lanes sum = 0.5f * (d[1] + d[2]);
        rows[0][j] = d[0] + sum;
        rows[1][j] = 0.5f * (d[1] - d[2]);
        rows[2][j] = sum + d[3];
    }
    for (int i = 0; i < 3; i++) {
        const Lanes sum = 0.5f * (rows[i][1] + rows[i][2]);
        taps[i][0] = rows[i][0] + sum;
        taps[i][1] = 0.5f * (rows[i][1] - rows[i][2]);
        taps[i][2] = sum + rows[i][3];
    }
}

}  // namespace

std::int64_t winograd_gradient_scratch(const Winograd &w) {
    const std::int64_t tiles = (w.out_height + 1) / 2 * ((w.out_width + 1) / 2);
    return kPlaces * (place_apart(tiles * w.channels) + place_apart(tiles * w.outputs) +
                      place_apart(kChunk * kMostWide * kLanes));
}

// One image; [3, 3, channels, outputs] is written if `gradient` is given.
float winograd_gradient(const Winograd &w, const float *x, const float *g, float *gradient,
                        float *scratch) {
    const std::int64_t tiles = (w.out_height + 1) / 2 * ((w.out_width + 1) / 2);
    const std::int64_t v_apart = place_apart(tiles * w.channels);
    const std::int64_t u_apart = place_apart(tiles * w.outputs);
    float *v = scratch, *u = v + kPlaces * v_apart, *m = u + kPlaces * u_apart;
    winograd_transforms(w, x, g, nullptr, 0, 0, tiles, tiles, v, u);
    Lanes squares = {};
    for (std::int64_t o = 0; o < w.outputs;) {
        const int vectors = wide(w.outputs - o);
        const std::int64_t row = vectors * kLanes, size = kChunk * row, apart = place_apart(size);
        for (std::int64_t c = 0; c < w.channels; c += kChunk) {
            for (int p = 0; p < kPlaces; p++)
                chunk(vectors, w, v + p * v_apart + c, u + p * u_apart + o, tiles, m + p * apart,
                      row, false);
            Lanes part = {};
            for (std::int64_t at = 0; at < size; at += kLanes) {
                Lanes taps[3][3];
                taps_of(m + at, apart, taps);
                float *to = gradient + (c + at / row) * w.outputs + o + at % row;
                for (int tap = 0; tap < kTaps; tap++) {
                    const Lanes value = taps[tap / 3][tap % 3];
                    part += value * value;
                    if (gradient) store(to + tap * w.channels * w.outputs, value);
                }
            }
            squares += part;
        }
        o += row;
    }
    float total = 0;
    for (int lane = 0; lane < kLanes; lane++) total += squares[lane];
    return total;
}

// Tiles start + first to start + last of all images, into the places of a group of `tiles`.
void winograd_transforms(const Winograd &w, const float *x, const float *g, const float *factors,
                         std::int64_t start, std::int64_t first, std::int64_t last,
                         std::int64_t tiles, float *v, float *u) {
    for (std::int64_t t = first; t < last; t++) {
        const Tile tile = place(w, start + t);
        const float factor = factors ? factors[tile.image] : 1.0f;
        transform_input(w, x, tile, v + t * w.channels, place_apart(tiles * w.channels));
        transform_gradient(w, g, tile, factor, u + t * w.outputs, place_apart(tiles * w.outputs));
    }
}

// Products of a group of tiles, for chunks first to last of sixteen places times all channels.
void winograd_products(const Winograd &w, const float *v, const float *u, std::int64_t tiles,
                       bool kept, std::int64_t first, std::int64_t last, float *m) {
    const std::int64_t chunks = w.channels / kChunk;
    for (std::int64_t at = first; at < last; at++) {
        const std::int64_t p = at / chunks, c = at % chunks * kChunk;
        for (std::int64_t o = 0; o < w.outputs;) {
            const int vectors = wide(w.outputs - o);
            chunk(vectors, w, v + p * place_apart(tiles * w.channels) + c,
                  u + p * place_apart(tiles * w.outputs) + o, tiles,
                  m + (p * w.channels + c) * w.outputs + o, w.outputs, kept);
            o += vectors * kLanes;
        }
    }
}

// Taps of channels first to last, [3, 3, channels, outputs], from [places, channels, outputs].
void winograd_taps(const Winograd &w, const float *m, std::int64_t first, std::int64_t last,
                   float *gradient) {
    const std::int64_t apart = w.channels * w.outputs;
    for (std::int64_t at = first * w.outputs; at < last * w.outputs; at += kLanes) {
        Lanes taps[3][3];
        taps_of(m + at, apart, taps);
        for (int tap = 0; tap < kTaps; tap++)
            store(gradient + tap * apart + at, taps[tap / 3][tap % 3]);
    }
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
