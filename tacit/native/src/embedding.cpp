// Gradients of a table that was looked up: the norm of one record's, and the weighted sum of all.
#include "kernels.h"
#include "vectors.h"

namespace tacit {
namespace TACIT_LEVEL {

// Rows of a token that occurs more than once in the record are added up before they are measured.
// `seen` holds for each token the last record it was met in and its place among that record's
// different tokens; `sums` has room for `positions` rows.
float table_norm(const Lookups &l, std::int64_t record, const std::int64_t *tokens, const float *g,
                 Seen *seen, float *sums) {
    std::int64_t different = 0;
    for (std::int64_t position = 0; position < l.positions; position++) {
        const std::int64_t token = tokens[record * l.positions + position];
        if (token == l.padding) continue;
        const float *row = g + record * l.record_stride + position * l.position_stride;
        Seen &last = seen[token];
        if (last.record == record) {
            float *sum = sums + last.place * l.width;
            for (std::int64_t i = 0; i < l.width; i++) sum[i] += row[i];
        } else {
            float *sum = sums + different * l.width;
            for (std::int64_t i = 0; i < l.width; i++) sum[i] = row[i];
            last.record = record;
            last.place = different++;
        }
    }
    constexpr int kApart = 16;
    float squares[kApart] = {};
    const std::int64_t count = different * l.width;
    std::int64_t i = 0;
    for (; i + kApart <= count; i += kApart)
        for (int lane = 0; lane < kApart; lane++) squares[lane] += sums[i + lane] * sums[i + lane];
    for (; i < count; i++) squares[0] += sums[i] * sums[i];
    float total = 0;
    for (int lane = 0; lane < kApart; lane++) total += squares[lane];
    return total;
}

// Adds every record's rows, times its factor, to the rows of `total` whose number leaves the
// remainder `part` when divided by `parts`.
void table_sum(const Lookups &l, std::int64_t records, const std::int64_t *tokens, const float *g,
               const float *factors, float *total, std::int64_t part, std::int64_t parts) {
    for (std::int64_t record = 0; record < records; record++) {
        const float factor = factors[record];
        for (std::int64_t position = 0; position < l.positions; position++) {
            const std::int64_t token = tokens[record * l.positions + position];
            if (token == l.padding || token % parts != part) continue;
            const float *row = g + record * l.record_stride + position * l.position_stride;
            float *sum = total + token * l.width;
            for (std::int64_t i = 0; i < l.width; i++) sum[i] += factor * row[i];
        }
    }
}

}  // namespace TACIT_LEVEL
}  // namespace tacit
