/* How large a vector is, on any instruction set. */
#include <string.h>

#include "sn_codec.h"

_Static_assert(SN_ROW_BYTES == SN_LANES * sizeof(float), "a row is one float32 of each lane");

void sn_lanes_take(const sn_isa *isa, const uint8_t *values, size_t n_elems, sn_lanes *lanes)
{
    const size_t n_rows = n_elems / SN_LANES;
    uint8_t rest[SN_ROW_BYTES] = {0}; /* zeros change neither result */
    memcpy(rest, values + n_rows * SN_ROW_BYTES, n_elems % SN_LANES * sizeof(float));
    isa->measure(values, n_rows, lanes);
    isa->measure(rest, 1, lanes);
}

sn_magnitude sn_lanes_sum(const sn_lanes *lanes)
{
    float largest = 0;
    double sum = 0;
    for (size_t lane = 0; lane < SN_LANES; lane++) {
        largest = lanes->largest[lane] > largest ? lanes->largest[lane] : largest;
        sum += lanes->square_sums[lane];
    }
    return (sn_magnitude){(double)largest, sum};
}

sn_magnitude sn_measure(const sn_isa *isa, const uint8_t *values, size_t n_elems)
{
    sn_lanes lanes = {0};
    sn_lanes_take(isa, values, n_elems, &lanes);
    return sn_lanes_sum(&lanes);
}
