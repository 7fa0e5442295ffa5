/* SIGN64: one bit an element, and the mean magnitude of 64. Included by each instruction set's
 * file after SN_TARGET is defined; compilers vectorise it. */
#ifndef SN_SIGN_H
#define SN_SIGN_H

#include "sn_kernels.h"

/* The order of the sum is part of the contract; the terms are divided first, so that it cannot
 * overflow. Vector units have a summary of their own: a sum in this order is what compilers make
 * least of. */
#ifndef SN_SIGN_SUMMARY
#define SN_SIGN_SUMMARY sign_summary_portable
SN_TARGET SN_INLINE sn_sign_summary sign_summary_portable(const uint8_t *values)
{
    uint32_t bits[SN_BLOCK_ELEMS];
    memcpy(bits, values, sizeof bits);
    uint32_t amax_bits = 0;
    uint8_t signs[SN_BLOCK_ELEMS];
    float terms[SN_BLOCK_ELEMS];
    for (size_t i = 0; i < SN_BLOCK_ELEMS; i++) {
        const uint32_t magnitude = bits[i] & SN_ABS_MASK;
        const uint32_t counted = magnitude >= SN_SIGN_BITS_MIN ? magnitude : 0;
        amax_bits = magnitude > amax_bits ? magnitude : amax_bits;
        signs[i] = (uint8_t)(bits[i] >> 31);
        terms[i] = sn_float_from_bits(counted) * SN_SIGN_FACTOR;
    }
    float sums[16];
    for (size_t i = 0; i < 16; i++) {
        sums[i] = ((terms[i] + terms[i + 16]) + terms[i + 32]) + terms[i + 48];
    }
    for (size_t n = 8; n > 0; n /= 2) {
        for (size_t i = 0; i < n; i++) {
            sums[i] += sums[i + n];
        }
    }
    return (sn_sign_summary){amax_bits, sums[0], sn_bits_packed(signs)};
}
#endif

/* To the nearest bfloat16, ties to even; at most the largest scale of the format. */
SN_TARGET SN_INLINE uint32_t sign_scale_bits(float mean, const sn_format *format)
{
    const uint32_t bits = sn_bits_from_float(mean);
    const uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
    return rounded < format->scale_bits_max ? rounded : format->scale_bits_max;
}

SN_TARGET static size_t sign_encode(const sn_values *from, uint8_t *scales, uint8_t *codes)
{
    for (size_t b = 0; b < from->n_blocks; b++) {
        const uint8_t *values = from->values + b * SN_BLOCK_BYTES;
        const sn_sign_summary summary = SN_SIGN_SUMMARY(values);
        if (summary.amax_bits >= SN_INFINITY_BITS) {
            return b;
        }
        sn_scale_store(scales, b, sign_scale_bits(summary.mean, &sn_sign_format));
        memcpy(codes + b * SN_SIGN_CODE_BYTES, &summary.signs, SN_SIGN_CODE_BYTES);
    }
    return from->n_blocks;
}

/* The scale with the signs of the block-th 64 elements, as bits. */
SN_TARGET SN_INLINE void sign_unpack(const sn_coded *from, size_t b, uint32_t bits[SN_BLOCK_ELEMS])
{
    const uint32_t scale_bits = sn_bits_from_float(sn_scale_load(from->scales, b));
    for (size_t half = 0; half < 2; half++) {
        uint32_t signs;
        memcpy(&signs, from->codes + b * SN_SIGN_CODE_BYTES + half * sizeof signs, sizeof signs);
        for (size_t i = 0; i < 32; i++) {
            const uint32_t is_negative = (signs & 1u << i) != 0;
            bits[half * 32 + i] = scale_bits | is_negative << 31;
        }
    }
}

SN_TARGET static void sign_decode(const sn_coded *from, uint8_t *out)
{
    for (size_t b = 0; b < from->n_blocks; b++) {
        uint32_t bits[SN_BLOCK_ELEMS];
        sign_unpack(from, b, bits);
        memcpy(out + b * SN_BLOCK_BYTES, bits, sizeof bits);
    }
}

SN_TARGET static void sign_merge(const sn_coded *from, uint8_t *target, float own_weight,
                                 float peer_weight)
{
    for (size_t b = 0; b < from->n_blocks; b++) {
        uint32_t bits[SN_BLOCK_ELEMS];
        float own[SN_BLOCK_ELEMS];
        sign_unpack(from, b, bits);
        memcpy(own, target + b * SN_BLOCK_BYTES, sizeof own);
        for (size_t i = 0; i < SN_BLOCK_ELEMS; i++) {
            own[i] = sn_merged(own[i], sn_float_from_bits(bits[i]), own_weight, peer_weight);
        }
        memcpy(target + b * SN_BLOCK_BYTES, own, sizeof own);
    }
}

/* Every bit is a sign; of Q2B64, too, or a size. */
static sn_verdict sign_check(const sn_coded *from)
{
    (void)from;
    return SN_VALID;
}

#endif
