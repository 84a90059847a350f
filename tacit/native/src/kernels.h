// What every instruction set provides. The sources that define these functions are compiled once for
// each instruction set, into a namespace of its own, and the interface picks a table at run time.
#pragma once

#include <cstdint>

namespace tacit {

// A ChaCha20 keystream: eight words of key; the number of the first block and three words of nonce.
struct Stream {
    std::uint32_t key[8];
    std::uint32_t start[4];
};

// Numbers are drawn in groups of this many, from sixteen consecutive blocks of the keystream.
constexpr int kGroup = 256;
// The keystream is made for so many groups at once.
constexpr int kPair = 2;

// The polynomials behind the normal quantile function; tacit/noise/quantile.py has their values and
// what they are good to.
struct Quantile {
    float log[7], quantile[11], centre;
    std::int32_t lowest;
};

// Numbers up to `end`, whose noise is `ratio` times the step of their grid. Single precision decides
// where a distance is at most `limit` less `slope` times the quantile.
struct Run {
    std::int64_t end;
    double inverse, factor;
    float ratio, limit, slope;
};

// Numbers are clamped to so many steps.
constexpr double kLargest = 0x1p30;

// Taylor coefficients of the upper tail of the normal distribution, for nodes from zero on, and a first
// guess of its inverse.
struct Tail {
    const double *table;
    std::int64_t nodes, degree;
    double spacing, error;
    double guess[5];
};

// Tags are made of pieces of so many words, in whole blocks; each gives so many sums.
constexpr int kTagPiece = 4096, kTagBlock = 32, kTagSums = 4;

// A planar convolution of images whose channels lie innermost. Taps are `tap` pixels apart.
struct Planar {
    std::int64_t channels, height, width;
    std::int64_t outputs, out_height, out_width;
    std::int64_t kernel_height, kernel_width;
    std::int64_t step_down, step_right;
    std::int64_t pad_down, pad_right;
    std::int64_t tap_down, tap_right;
};

// Normalisation of each group of channels of an image whose channels lie innermost.
struct Grouped {
    std::int64_t pixels, channels, groups;
    double eps;
};

// Rows of a table that records looked up, and the layout of the gradients of what was found.
struct Lookups {
    std::int64_t positions, width;
    std::int64_t record_stride, position_stride;
    std::int64_t padding;  // a token that gets no gradient, or -1
};

struct Seen {
    std::int64_t record, place;
};

// A convolution with kernels of 3 x 3 and stride 1, of images with channels innermost. Channels and
// outputs are multiples of sixteen.
struct Winograd {
    std::int64_t images, height, width, channels;
    std::int64_t out_height, out_width, outputs;
    std::int64_t pad;
};

// Floats from one of the sixteen places of transformed tiles to the next, where each has so many. Places
// that are a power of two apart would share few lines of a cache.
constexpr std::int64_t place_apart(std::int64_t floats) { return floats + 16; }

// Where the weights of a convolution lie; `flipped` for the way back by Winograd's method.
struct Taps {
    std::int64_t channels, outputs;
    std::int64_t channel_stride, output_stride, tap_stride;
    std::int64_t flipped;
};

// Gradients of records that are outer products of a row of g, outputs, and a row of x, inputs; and
// those of a shift, the rows of g themselves. Sums over records, each times its factor, are written to
// total and shift, or added to what is kept there. Null: no x and total and no inputs, or no shift.
struct Outer {
    const float *x, *g;
    float *total, *shift;
    std::int64_t inputs, outputs;
    std::int64_t x_stride, g_stride;
    std::int64_t column;  // of the squares and factors, which have one for each group of norms
    std::int64_t kept, shift_kept;
};

// The same in whole numbers, times a power of two for each group of norms, that doubles hold exactly: sums are added to
// total and shift. `across` holds a squared norm of x for each record, which is written with the squares.
struct Exact {
    const float *x, *g;
    double *total, *shift, *across;
    std::int64_t inputs, outputs;
    std::int64_t x_stride, g_stride;
    std::int64_t column, shift_column;
    std::int64_t exponent, shift_exponent;  // a record's clipped gradient is at most 2^exponent long
    std::int64_t bits, input_bits;          // of a record's gradient, and of its inputs
};

// Clipping factors are multiplied by this, which covers the rounding of norms and factors.
constexpr double kFactorSlack = 1.0 - 1.0 / (1 << 20);

// Inputs that are truncated at once.
constexpr int kExactColumns = 64;

// Rows of x times a matrix, y[r, c] = sum over k of x[r, k] matrix[k, c], or matrix[c, k] if turned; then, each unless null or zero,
// a shift is added, what is below zero becomes zero, and so does all that is not above zero in `above`.
struct Affine {
    const float *x, *matrix, *shift, *above;
    float *y;  // without gaps
    std::int64_t rows, terms, columns;
    std::int64_t x_stride, matrix_stride, above_stride;
    std::int64_t turned, rectified;
};

// Terms that are packed at once, at most, and columns of a panel: what is packed fits into a cache.
constexpr std::int64_t kAffineTerms = 1024, kAffineColumns = 48;

// Windows of images whose channels, a multiple of sixteen, lie innermost. From one to the next are
// `step` pixels; pixels may be in none, in one or in several.
struct Pooled {
    std::int64_t channels, height, width;
    std::int64_t out_height, out_width;
    std::int64_t window_height, window_width;  // at most 256 pixels
    std::int64_t step_down, step_right;
};

// Numbers that are rectified at once, and words that say which of them were dropped.
constexpr int kRectified = 512, kRectifiedWords = 16;

// Outputs that are packed at once, at most.
constexpr int kOuterMost = 384;

struct Kernels {
    // Words of one group; block b's word w lies at 16 w + b.
    void (*keystream)(const Stream &, std::int64_t group, std::uint32_t *words);
    // Signed normal quantiles of one group, from its words; infinite in the far tails.
    void (*quantiles)(const Quantile &, const std::uint32_t *words, float *out);
    // Rounds numbers with their noise; says which are left as they are, and whether any is.
    bool (*settle_floats)(const Run &, const float *z, std::int64_t count, float *vector,
                          std::int32_t *open);
    bool (*settle_doubles)(const Run &, const float *z, std::int64_t count, double *vector,
                           std::int32_t *open);
    // Sums that tell a piece of so many words, whole blocks, from others, under a key of as many words
    // and 96 more.
    void (*tag_piece)(const std::uint8_t *piece, std::int64_t count, const std::uint32_t *key,
                      std::uint64_t *sums);
    // Floats of scratch memory that convolution_gradient needs.
    std::int64_t (*convolution_scratch)(const Planar &, std::int64_t images);
    // The squared norm of the weight gradient of some images, each times its factor unless factors
    // are null; the gradient is also written if asked for.
    float (*convolution_gradient)(const Planar &, std::int64_t images, const float *x,
                                  const float *g, const float *factors, float *gradient,
                                  float *scratch);
    // Doubles of scratch memory that the next two need.
    std::int64_t (*group_norm_scratch)(const Grouped &);
    // One image; weight and bias may be null.
    void (*group_norm)(const Grouped &, const float *x, const float *weight, const float *bias,
                       float *y, float *mean, float *rstd, double *scratch);
    // Gradients of one image's scale and shift, and of the image itself unless dx is null.
    void (*group_norm_backward)(const Grouped &, const float *x, const float *g,
                                const float *weight, const float *mean, const float *rstd,
                                float *dx, float *scale, float *shift, double *scratch);
    // The squared norm of one record's gradient of the whole table.
    float (*table_norm)(const Lookups &, std::int64_t record, const std::int64_t *tokens,
                        const float *g, Seen *seen, float *sums);
    // The weighted sum of all records' gradients, for one part of the table out of several.
    void (*table_sum)(const Lookups &, std::int64_t records, const std::int64_t *tokens,
                      const float *g, const float *factors, float *total, std::int64_t part,
                      std::int64_t parts);
    // Sixteen transformed weights for channels first to last and every output.
    void (*winograd_weights)(const Taps &, const float *weight, float *transformed,
                             std::int64_t first, std::int64_t last);
    // Tiles first to last of a convolution, with scratch for sixteen places of their channels and of
    // their outputs; bias may be null.
    void (*winograd)(const Winograd &, const float *x, const float *transformed, const float *bias,
                     float *y, std::int64_t first, std::int64_t last, float *scratch);
    // Doubles of scratch memory that pixel_norm needs.
    std::int64_t (*pixel_norm_scratch)(const Planar &);
    // The squared norm of one image's weight gradient from inner products, for taps next to each
    // other and steps of one; `parts` gets the norms of what every output pixel adds, added up.
    double (*pixel_norm)(const Planar &, const float *x, const float *g, double *parts,
                         double *scratch);
    // Floats of scratch memory that winograd_gradient needs.
    std::int64_t (*winograd_gradient_scratch)(const Winograd &);
    // The squared norm of one image's weight gradient, which is also written if asked for.
    float (*winograd_gradient)(const Winograd &, const float *x, const float *g, float *gradient,
                               float *scratch);
    // The weighted sum of all images' gradients in three stages. Tiles start + first to start + last
    // are transformed, into their places among those of a group; factors may be null.
    void (*winograd_transforms)(const Winograd &, const float *x, const float *g,
                                const float *factors, std::int64_t start, std::int64_t first,
                                std::int64_t last, std::int64_t tiles, float *v, float *u);
    // Products of a group, written to m or added to what is kept there, first to last of as many
    // parts as there are channels.
    void (*winograd_products)(const Winograd &, const float *v, const float *u, std::int64_t tiles,
                              bool kept, std::int64_t first, std::int64_t last, float *m);
    // The gradient of channels first to last from the products of all groups.
    void (*winograd_taps)(const Winograd &, const float *m, std::int64_t first, std::int64_t last,
                          float *gradient);
    // Floats of scratch memory that convolution_back needs, and of weights packed for it.
    std::int64_t (*convolution_back_scratch)(const Planar &);
    std::int64_t (*packed_weights_size)(const Planar &);
    void (*pack_weights)(const Planar &, const Taps &, const float *weight, float *packed);
    // One image's gradient from that of its outputs.
    void (*convolution_back)(const Planar &, const float *g, const float *packed, float *dx,
                             float *scratch);
    // Adds one record's squared norms to the columns of `squares`.
    void (*outer_squares)(const Outer *, std::int64_t count, std::int64_t record, float *squares);
    // Floats of scratch memory that outer_sum needs.
    std::int64_t (*outer_scratch)(std::int64_t records, std::int64_t outputs);
    // The sums of outputs first to last, at most kOuterMost, over so many records from first_record on.
    void (*outer_sum)(const Outer &, const float *factors, std::int64_t groups, std::int64_t first,
                      std::int64_t last, std::int64_t first_record, std::int64_t records,
                      float *scratch);
    // Adds one record's squared norms to the columns of `squares`.
    void (*exact_squares)(const Exact *, std::int64_t count, std::int64_t record, double *squares);
    // Doubles of scratch memory that exact_sum needs.
    std::int64_t (*exact_scratch)(std::int64_t records, std::int64_t outputs);
    // Elements first to last of the sum of the shift over so many records.
    void (*exact_shift)(const Exact &, const double *factors, std::int64_t groups,
                        std::int64_t records, std::int64_t first, std::int64_t last);
    // The sums of outputs first to last and inputs first_column to last_column.
    void (*exact_sum)(const Exact &, const double *factors, std::int64_t groups, std::int64_t first,
                      std::int64_t last, std::int64_t first_column, std::int64_t last_column,
                      std::int64_t first_record, std::int64_t records, double *scratch);
    // Columns first to last of an affine map, with scratch for kAffineTerms of kAffineColumns.
    void (*affine)(const Affine &, std::int64_t first, std::int64_t last, float *scratch);
    // Floats of scratch memory that convolved needs, and of weights and bias packed for it.
    std::int64_t (*convolved_scratch)(const Planar &);
    std::int64_t (*forward_weights_size)(const Planar &);
    // The bias may be null.
    void (*pack_forward)(const Planar &, const Taps &, const float *weight, const float *bias,
                         float *packed);
    // One image's convolution.
    void (*convolved)(const Planar &, const float *x, const float *packed, float *y,
                      float *scratch);
    // At most kRectified numbers: those above zero, zero for others, and bits that tell which.
    void (*rectify)(const float *x, std::int64_t count, float *y, std::uint32_t *dropped);
    void (*rectify_back)(const float *g, std::int64_t count, const std::uint32_t *dropped,
                         float *dx);
    // The largest numbers of one image's windows, and where in the window they are.
    void (*largest)(const Pooled &, const float *x, float *y, std::uint8_t *taps);
    void (*largest_back)(const Pooled &, const float *g, const std::uint8_t *taps, float *dx);
};

// Each is defined where the compiler was asked for that instruction set.
extern const Kernels baseline_kernels;
#ifdef TACIT_X86
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif

}  // namespace tacit
