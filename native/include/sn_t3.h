/* T3B320: one of three levels an element, five elements a byte. Byte t of a block of 320 holds the
 * trits of elements t, t + 64, t + 128, t + 192 and t + 256, the lowest first: so each run of 64
 * elements has the same trit of the 64 bytes, and vector units take bytes apart as they lie. Included
 * by each instruction set's file after sn_sign.h. */
#ifndef SN_T3_H
#define SN_T3_H

#include <math.h>

#include "sn_kernels.h"
#include "sn_sign.h"

/* Three levels with the least square error for a Gaussian, in units of its root mean square (Max
 * 1960, Lloyd 1982): 0 and +-1.2240; a magnitude above the middle, 0.6120, is not 0. */
#define SN_T3_LEVEL 0x1.39587cp+0f

/* A block's square sum in eight lanes, squares exact: that of sn_lanes, in the same order. Values
 * below SN_SIGN_BITS_MIN count as zero, so that neither scale nor trit depends on how a thread treats
 * denormals. Not finite if a value is not, as the largest squares of 320 float32 are. */
SN_TARGET SN_INLINE int sn_t3_is_refused(double square_sum)
{
    return !(square_sum <= DBL_MAX);
}

SN_TARGET SN_INLINE uint32_t sn_t3_scale_bits(double square_sum)
{
    const float rms = (float)sqrt(square_sum / (double)SN_T3_ELEMS);
    return sign_scale_bits(SN_T3_LEVEL * rms, &sn_t3_format);
}

/* A trit is not zero where the bits of the magnitude are above these: half of the scale as it is
 * sent. Magnitudes are compared as integers, which order them as numbers. */
SN_TARGET SN_INLINE uint32_t sn_t3_threshold_bits(uint32_t scale_bits)
{
    const uint32_t half_bits = sn_bits_from_float(0.5f * sn_scale_from_bits(scale_bits));
    return half_bits < SN_SIGN_BITS_MIN ? SN_SIGN_BITS_MIN - 1 : half_bits;
}

/* Five trits of each of 64 bytes to the bytes. */
SN_TARGET SN_INLINE void sn_t3_pack(uint8_t trits[SN_T3_TRITS][SN_BLOCK_ELEMS], uint8_t *codes)
{
    for (size_t t = 0; t < SN_T3_CODE_BYTES; t++) {
        const unsigned high = trits[4][t] * 3u + trits[3][t];
        codes[t] = (uint8_t)(((high * 3u + trits[2][t]) * 3u + trits[1][t]) * 3u + trits[0][t]);
    }
}

/* How vector units get at trit i of a byte: the byte times this, modulo 2^16, is a fraction of which
 * three times is a whole part, the trit, and a rest. 270 / 2^16 is 1 / 243, and a little more; the
 * error, 3^(4 - i) times as large, stays below .092 of the .333 that a trit takes. */
static const uint16_t sn_t3_factors[SN_T3_TRITS] = {21870, 7290, 2430, 810, 270};

SN_TARGET SN_INLINE int sn_t3_has_invalid_code(const sn_coded *from)
{
    uint8_t largest = 0;
    for (size_t i = 0; i < from->n_blocks * SN_T3_CODE_BYTES; i++) {
        largest = from->codes[i] > largest ? from->codes[i] : largest;
    }
    return largest >= SN_T3_CODES;
}

#endif
