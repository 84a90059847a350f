// What convolutions by Winograd's method F(2 x 2, 3 x 3) and their gradients share: tiles of 2 x 2
// outputs, and the transform of the 4 x 4 inputs of each.
#pragma once

#include "floats.h"
#include "kernels.h"

namespace tacit {
namespace TACIT_LEVEL {

constexpr int kPlaces = 16;  // of a transformed tile
constexpr int kMostWide = TACIT_LANES == 16 ? 4 : 2;

// Vectors of output channels that are taken at once where `left` are to come.
inline int wide(std::int64_t left) {
    const std::int64_t vectors = left / kLanes;
    return vectors >= 4 && kMostWide == 4 ? 4 : vectors >= 2 ? 2 : 1;
}

struct Tile {
    std::int64_t image, top, left;  // the image, and the tile's first output
};

inline Tile place(const Winograd &w, std::int64_t tile) {
    const std::int64_t across = (w.out_width + 1) / 2, down = (w.out_height + 1) / 2;
    return {tile / (across * down), tile / across % down * 2, tile % across * 2};
}

// Sixteen values for each channel, one of each `apart` floats from the next.
inline void transform_input(const Winograd &w, const float *x, Tile tile, float *v,
                            std::int64_t apart) {
    const float *pixels[4][4];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            const std::int64_t row = tile.top + i - w.pad, column = tile.left + j - w.pad;
            const bool inside = row >= 0 && row < w.height && column >= 0 && column < w.width;
            const std::int64_t pixel = (tile.image * w.height + row) * w.width + column;
            pixels[i][j] = inside ? x + pixel * w.channels : nullptr;
        }
    for (std::int64_t c = 0; c < w.channels; c += kLanes) {
        Lanes rows[4][4];
        for (int j = 0; j < 4; j++) {
            Lanes d[4];
            for (int i = 0; i < 4; i++) d[i] = pixels[i][j] ? load(pixels[i][j] + c) : Lanes{};
            rows[0][j] = d[0] - d[2];
            rows[1][j] = d[1] + d[2];
            rows[2][j] = d[2] - d[1];
            rows[3][j] = d[1] - d[3];
        }
        for (int i = 0; i < 4; i++) {
            float *out = v + 4 * i * apart + c;
            store(out, rows[i][0] - rows[i][2]);
            store(out + apart, rows[i][1] + rows[i][2]);
            store(out + 2 * apart, rows[i][2] - rows[i][1]);
            store(out + 3 * apart, rows[i][1] - rows[i][3]);
        }
    }
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
