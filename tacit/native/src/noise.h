// Coefficients of the functions behind normal numbers: minimax fits in double precision, rounded
// to single precision.
#pragma once

namespace tacit {

// -2 log(1 + f) / f for sqrt(1/2) <= 1 + f < sqrt(2).
constexpr float kLog[9] = {-2.0f,         0.99999976f, -0.66668373f, 0.5000415f, -0.39913666f,
                           0.33124784f, -0.29904535f, 0.28733698f, -0.17444721f};
constexpr float kTwoLogHalf = -1.3862944f;

// sin(pi x / 2) / x and cos(pi x / 2) in powers of x^2 for |x| <= 1/2.
constexpr float kSine[4] = {1.5707964f, -0.6459635f, 0.07968003f, -0.0046016579f};
constexpr float kCosine[4] = {0.99999994f, -1.2336967f, 0.25359493f, -0.020398581f};

}  // namespace tacit
