/* How large a vector is: one pass, in lanes that every compiler turns into vectors by itself. */
#include "sn_codec.h"

#include <math.h>
#include <string.h>

enum { LANES = 8 };

/* Inlined, so that the lanes of sn_measure stay in registers. */
static inline void lanes_take(float *top, double *sums, const float *some)
{
    for (size_t lane = 0; lane < LANES; lane++) {
        const float value = fabsf(some[lane]);
        top[lane] = value > top[lane] ? value : top[lane];
        sums[lane] += (double)value * (double)value;
    }
}

void sn_measure(const void *values, size_t n_elems, double *largest, double *square_sum)
{
    const unsigned char *at = values;
    float top[LANES] = {0};
    double sums[LANES] = {0};
    float some[LANES];
    for (size_t left = n_elems / LANES; left > 0; left--) {
        memcpy(some, at, sizeof some); /* from anywhere: nothing says that it is aligned */
        lanes_take(top, sums, some);
        at += sizeof some;
    }
    memset(some, 0, sizeof some);
    memcpy(some, at, (n_elems % LANES) * sizeof(float));
    lanes_take(top, sums, some);
    float found = 0;
    double sum = 0;
    for (size_t lane = 0; lane < LANES; lane++) {
        found = top[lane] > found ? top[lane] : found;
        sum += sums[lane];
    }
    *largest = (double)found;
    *square_sum = sum;
}
