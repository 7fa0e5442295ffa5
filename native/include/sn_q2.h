/* Q2B64: the scale and the signs of SIGN64, and a bit that says which elements are large. Included
 * by each instruction set's file after sn_sign.h, whose summary it shares. */
#ifndef SN_Q2_H
#define SN_Q2_H

#include "sn_sign.h"

/* One block of a payload, with both levels times its scale. */
typedef struct {
    float small;
    float large;
    uint64_t signs; /* bit i is that of element i */
    uint64_t sizes; /* bit i is set where element i is large */
} sn_q2_block;

SN_TARGET SN_INLINE sn_q2_block q2_load(const sn_coded *from, size_t b)
{
    const float scale = sn_scale_load(from->scales, b);
    sn_q2_block block = {.small = SN_Q2_SMALL * scale, .large = SN_Q2_LARGE * scale};
    const uint8_t *planes = from->codes + b * SN_Q2_CODE_BYTES;
    memcpy(&block.signs, planes, SN_SIGN_CODE_BYTES);
    memcpy(&block.sizes, planes + SN_SIGN_CODE_BYTES, SN_SIGN_CODE_BYTES);
    return block;
}

/* Magnitudes are compared as integers, which order them as numbers: a thread that flushes denormals
 * sets the same bits, in a block whose scale is zero too. */
#ifndef SN_Q2_SIZES
#define SN_Q2_SIZES q2_sizes_portable
SN_TARGET SN_INLINE uint64_t q2_sizes_portable(const uint8_t *values, float threshold)
{
    const uint32_t threshold_bits = sn_bits_from_float(threshold);
    uint32_t bits[SN_BLOCK_ELEMS];
    memcpy(bits, values, sizeof bits);
    uint8_t sizes[SN_BLOCK_ELEMS];
    for (size_t i = 0; i < SN_BLOCK_ELEMS; i++) {
        sizes[i] = (bits[i] & SN_ABS_MASK) > threshold_bits;
    }
    return sn_bits_packed(sizes);
}
#endif

SN_TARGET SN_INLINE void q2_difference(const uint8_t *values, const uint8_t *reference,
                                       float difference[SN_BLOCK_ELEMS])
{
    float base[SN_BLOCK_ELEMS];
    memcpy(difference, values, SN_BLOCK_BYTES);
    memcpy(base, reference, SN_BLOCK_BYTES);
    for (size_t i = 0; i < SN_BLOCK_ELEMS; i++) {
        difference[i] -= base[i];
    }
}

SN_TARGET static size_t q2_encode(const sn_values *from, uint8_t *scales, uint8_t *codes)
{
    for (size_t b = 0; b < from->n_blocks; b++) {
        const uint8_t *values = from->values + b * SN_BLOCK_BYTES;
        float difference[SN_BLOCK_ELEMS];
        if (from->reference != NULL) {
            q2_difference(values, from->reference + b * SN_BLOCK_BYTES, difference);
            values = (const uint8_t *)difference;
        }
        const sn_sign_summary summary = SN_SIGN_SUMMARY(values);
        if (summary.amax_bits >= SN_INFINITY_BITS) {
            return b;
        }
        const uint32_t scale_bits = sign_scale_bits(summary.mean, &sn_q2_format);
        const float threshold = SN_Q2_THRESHOLD * sn_scale_from_bits(scale_bits);
        const uint64_t planes[2] = {summary.signs, SN_Q2_SIZES(values, threshold)};
        sn_scale_store(scales, b, scale_bits);
        memcpy(codes + b * SN_Q2_CODE_BYTES, planes, sizeof planes);
    }
    return from->n_blocks;
}

#endif
