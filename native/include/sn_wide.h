/* Sums and products in float64 of what payloads hold. Included by each instruction set's file after
 * SN_TARGET is defined: compilers vectorise these loops for it as well as a hand would.
 *
 * A weighted sum takes one product and one sum an element and vector, each rounded, in the order of
 * the vectors, and one division. It is float64, not float32, as that is the contract (proto/group.md):
 * members of other versions and the laboratory come to the same bits, and a witness to the bytes of
 * the member that made a part. Inner products are summed as numpy sums a row of 4096 float64, see
 * product_of; the product of two float32 is exact, so each term is rounded once.
 */
#ifndef SN_WIDE_H
#define SN_WIDE_H

#include "sn_kernels.h"

enum { SN_LEAF_ELEMS = 128 }; /* what numpy sums in eight lanes, without halving it further */

/* Denormals, infinities and NaN are none here. */
static inline int sn_is_power_of_two(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint64_t exponent = bits >> 52 & 0x7FF;
    return bits << 12 == 0 && exponent != 0 && exponent != 0x7FF;
}

SN_TARGET static void wide_weigh(const float *values, size_t n_elems, double weight, double *sums)
{
    for (size_t i = 0; i < n_elems; i++) {
        sums[i] += weight * (double)values[i];
    }
}

/* Four members of equal weight are a power of two, whose inverse is exact: a product has the same
 * bits then, and is the cheaper one. */
SN_TARGET static void wide_divide(const double *sums, size_t n_elems, double divisor, float *out)
{
    const double inverse = 1.0 / divisor;
    if (sn_is_power_of_two(divisor) && sn_is_power_of_two(inverse)) {
        for (size_t i = 0; i < n_elems; i++) {
            out[i] = (float)(sums[i] * inverse);
        }
        return;
    }
    for (size_t i = 0; i < n_elems; i++) {
        out[i] = (float)(sums[i] / divisor);
    }
}

SN_TARGET static void wide_widen(const float *values, size_t n_elems, double *out)
{
    for (size_t i = 0; i < n_elems; i++) {
        out[i] = (double)values[i];
    }
}

/* Of whole rows of eight lanes. */
SN_TARGET SN_INLINE double leaf_product(const double *a, const double *b, size_t n_elems)
{
    double lanes[SN_LANES];
    for (size_t lane = 0; lane < SN_LANES; lane++) {
        lanes[lane] = a[lane] * b[lane];
    }
    for (size_t i = SN_LANES; i < n_elems; i += SN_LANES) {
        for (size_t lane = 0; lane < SN_LANES; lane++) {
            lanes[lane] += a[i + lane] * b[i + lane];
        }
    }
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
           ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

/* Halves that are whole rows, down to leaves of at most 128; what is no row comes at the end. */
SN_TARGET static double wide_product(const double *a, const double *b, size_t n_elems)
{
    if (n_elems > SN_LEAF_ELEMS) {
        const size_t half = n_elems / 2 - n_elems / 2 % SN_LANES;
        const double first = wide_product(a, b, half);
        return first + wide_product(a + half, b + half, n_elems - half);
    }
    if (n_elems == SN_LEAF_ELEMS) { /* a constant count, for which compilers make no loop */
        return leaf_product(a, b, SN_LEAF_ELEMS);
    }
    const size_t n_rows = n_elems / SN_LANES;
    double sum = n_rows == 0 ? 0.0 : leaf_product(a, b, n_rows * SN_LANES);
    for (size_t i = n_rows * SN_LANES; i < n_elems; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

#define SN_DEFINE_WIDE(isa)                                                                        \
    const sn_wide sn_wide_##isa = {wide_weigh, wide_divide, wide_widen, wide_product}

#endif
