/* How large a vector is, on any instruction set. */
#include <string.h>

#include "sn_codec.h"

_Static_assert(SN_ROW_BYTES == SN_LANES * sizeof(float), "a row is one float32 of each lane");

void sn_measure(const sn_isa *isa, const uint8_t *values, size_t n_elems, double *largest,
                double *square_sum)
{
    const size_t n_rows = n_elems / SN_LANES;
    uint8_t rest[SN_ROW_BYTES] = {0}; /* zeros change neither result */
    memcpy(rest, values + n_rows * SN_ROW_BYTES, n_elems % SN_LANES * sizeof(float));
    sn_lanes lanes = {0};
    isa->measure(values, n_rows, &lanes);
    isa->measure(rest, 1, &lanes);
    float found = 0;
    double sum = 0;
    for (size_t lane = 0; lane < SN_LANES; lane++) {
        found = lanes.largest[lane] > found ? lanes.largest[lane] : found;
        sum += lanes.square_sums[lane];
    }
    *largest = (double)found;
    *square_sum = sum;
}
