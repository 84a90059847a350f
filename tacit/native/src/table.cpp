// The functions of one instruction set, under a name that the interface knows.
#include "kernels.h"
#include "vectors.h"

namespace tacit {
namespace TACIT_LEVEL {

void keystream(const Stream &, std::int64_t, std::uint32_t *);
void quantiles(const Quantile &, const std::uint32_t *, float *);
bool settle_floats(const Run &, const float *, std::int64_t, float *, std::int32_t *);
bool settle_doubles(const Run &, const float *, std::int64_t, double *, std::int32_t *);
void tag_piece(const std::uint8_t *, std::int64_t, const std::uint32_t *, std::uint64_t *);
std::int64_t convolution_scratch(const Planar &, std::int64_t);
float convolution_gradient(const Planar &, std::int64_t, const float *, const float *,
                           const float *, float *, float *);
std::int64_t group_norm_scratch(const Grouped &);
void group_norm(const Grouped &, const float *, const float *, const float *, float *, float *,
                float *, double *);
void group_norm_backward(const Grouped &, const float *, const float *, const float *,
                         const float *, const float *, float *, float *, float *, double *);
float table_norm(const Lookups &, std::int64_t, const std::int64_t *, const float *, Seen *,
                 float *);
void table_sum(const Lookups &, std::int64_t, const std::int64_t *, const float *, const float *,
               float *, std::int64_t, std::int64_t);
void winograd_weights(const Taps &, const float *, float *, std::int64_t, std::int64_t);
void winograd(const Winograd &, const float *, const float *, const float *, float *, std::int64_t,
              std::int64_t, float *);
std::int64_t pixel_norm_scratch(const Planar &);
double pixel_norm(const Planar &, const float *, const float *, double *, double *);
std::int64_t winograd_gradient_scratch(const Winograd &);
float winograd_gradient(const Winograd &, const float *, const float *, float *, float *);
void winograd_transforms(const Winograd &, const float *, const float *, const float *,
                         std::int64_t, std::int64_t, std::int64_t, std::int64_t, float *, float *);
void winograd_products(const Winograd &, const float *, const float *, std::int64_t, bool,
                       std::int64_t, std::int64_t, float *);
void winograd_taps(const Winograd &, const float *, std::int64_t, std::int64_t, float *);
std::int64_t convolution_back_scratch(const Planar &);
std::int64_t packed_weights_size(const Planar &);
void pack_weights(const Planar &, const Taps &, const float *, float *);
void convolution_back(const Planar &, const float *, const float *, float *, float *);
void outer_squares(const Outer *, std::int64_t, std::int64_t, float *);
std::int64_t outer_scratch(std::int64_t, std::int64_t);
std::int64_t convolved_scratch(const Planar &);
std::int64_t forward_weights_size(const Planar &);
void pack_forward(const Planar &, const Taps &, const float *, const float *, float *);
void convolved(const Planar &, const float *, const float *, float *, float *);
void outer_sum(const Outer &, const float *, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
               std::int64_t, float *);
void exact_squares(const Exact *, std::int64_t, std::int64_t, double *);
std::int64_t exact_scratch(std::int64_t, std::int64_t);
void exact_shift(const Exact &, const double *, std::int64_t, std::int64_t, std::int64_t,
                 std::int64_t);
void exact_sum(const Exact &, const double *, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
               std::int64_t, std::int64_t, std::int64_t, double *);
void affine(const Affine &, std::int64_t, std::int64_t, float *);
void rectify(const float *, std::int64_t, float *, std::uint32_t *);
void rectify_back(const float *, std::int64_t, const std::uint32_t *, float *);
void largest(const Pooled &, const float *, float *, std::uint8_t *);
void largest_back(const Pooled &, const float *, const std::uint8_t *, float *);

}  // namespace TACIT_LEVEL

#define TACIT_JOIN(level) level##_kernels
#define TACIT_NAMED(level) TACIT_JOIN(level)

extern const Kernels TACIT_NAMED(TACIT_LEVEL) = {
    TACIT_LEVEL::keystream,
    TACIT_LEVEL::quantiles,
    TACIT_LEVEL::settle_floats,
    TACIT_LEVEL::settle_doubles,
    TACIT_LEVEL::tag_piece,
    TACIT_LEVEL::convolution_scratch,
    TACIT_LEVEL::convolution_gradient,
    TACIT_LEVEL::group_norm_scratch,
    TACIT_LEVEL::group_norm,
    TACIT_LEVEL::group_norm_backward,
    TACIT_LEVEL::table_norm,
    TACIT_LEVEL::table_sum,
    TACIT_LEVEL::winograd_weights,
    TACIT_LEVEL::winograd,
    TACIT_LEVEL::pixel_norm_scratch,
    TACIT_LEVEL::pixel_norm,
    TACIT_LEVEL::winograd_gradient_scratch,
    TACIT_LEVEL::winograd_gradient,
    TACIT_LEVEL::winograd_transforms,
    TACIT_LEVEL::winograd_products,
    TACIT_LEVEL::winograd_taps,
    TACIT_LEVEL::convolution_back_scratch,
    TACIT_LEVEL::packed_weights_size,
    TACIT_LEVEL::pack_weights,
    TACIT_LEVEL::convolution_back,
    TACIT_LEVEL::outer_squares,
    TACIT_LEVEL::outer_scratch,
    TACIT_LEVEL::outer_sum,
    TACIT_LEVEL::exact_squares,
    TACIT_LEVEL::exact_scratch,
    TACIT_LEVEL::exact_shift,
    TACIT_LEVEL::exact_sum,
    TACIT_LEVEL::affine,
    TACIT_LEVEL::convolved_scratch,
    TACIT_LEVEL::forward_weights_size,
    TACIT_LEVEL::pack_forward,
    TACIT_LEVEL::convolved,
    TACIT_LEVEL::rectify,
    TACIT_LEVEL::rectify_back,
    TACIT_LEVEL::largest,
    TACIT_LEVEL::largest_back,
};

}  // namespace tacit
