/* SIGN64: one bit an element, and the mean magnitude of 64. Included by each instruction set's
 * file after SN_TARGET is defined; compilers vectorise it. */
#ifndef SN_SIGN_H
#define SN_SIGN_H

#include "sn_kernels.h"

enum { SN_SIGN_LANES = 16 };

/* Smaller ones do not count in the mean. Then every term is normal, and a thread that flushes
 * denormals writes the same bytes. */
#define SN_SIGN_BITS_MIN 0x0D800000u /* 2^-100 */

/* The mean magnitude to the nearest bfloat16, ties to even. The order of the sum is part of the
 * contract; the terms are divided first, so that it cannot overflow. */
SN_TARGET SN_INLINE uint32_t sign_scale_bits(const uint32_t bits[SN_BLOCK_ELEMS])
{
    float terms[SN_BLOCK_ELEMS];
    for (size_t i = 0; i < SN_BLOCK_ELEMS; i++) {
        const uint32_t magnitude = bits[i] & SN_ABS_MASK;
        const uint32_t counted = magnitude >= SN_SIGN_BITS_MIN ? magnitude : 0;
        terms[i] = sn_float_from_bits(counted) * 0x1p-6f;
    }
    float lanes[SN_SIGN_LANES];
    for (size_t i = 0; i < SN_SIGN_LANES; i++) {
        lanes[i] = ((terms[i] + terms[i + 16]) + terms[i + 32]) + terms[i + 48];
    }
    for (size_t n = SN_SIGN_LANES / 2; n > 0; n /= 2) {
        for (size_t i = 0; i < n; i++) {
            lanes[i] += lanes[i + n];
        }
    }
    const uint32_t mean = sn_bits_from_float(lanes[0]);
    const uint32_t rounded = (mean + 0x7FFFu + (mean >> 16 & 1)) >> 16;
    return rounded < sn_sign_format.scale_bits_max ? rounded : sn_sign_format.scale_bits_max;
}

/* Bit i is the sign of element i. The product moves the low bits of eight bytes into one. */
SN_TARGET SN_INLINE void sign_pack(const uint32_t bits[SN_BLOCK_ELEMS], uint8_t *codes)
{
    uint8_t signs[SN_BLOCK_ELEMS];
    for (size_t i = 0; i < SN_BLOCK_ELEMS; i++) {
        signs[i] = (uint8_t)(bits[i] >> 31);
    }
    for (size_t i = 0; i < SN_SIGN_CODE_BYTES; i++) {
        uint64_t eight;
        memcpy(&eight, signs + i * 8, sizeof eight);
        codes[i] = (uint8_t)(eight * 0x0102040810204080u >> 56);
    }
}

SN_TARGET static size_t sign_encode(const sn_values *from, uint8_t *scales, uint8_t *codes)
{
    for (size_t b = 0; b < from->n_blocks; b++) {
        uint32_t bits[SN_BLOCK_ELEMS];
        memcpy(bits, from->values + b * SN_BLOCK_BYTES, sizeof bits);
        uint32_t amax_bits = 0;
        for (size_t i = 0; i < SN_BLOCK_ELEMS; i++) {
            const uint32_t magnitude = bits[i] & SN_ABS_MASK;
            amax_bits = magnitude > amax_bits ? magnitude : amax_bits;
        }
        if (amax_bits >= SN_INFINITY_BITS) {
            return b;
        }
        sn_scale_store(scales, b, sign_scale_bits(bits));
        sign_pack(bits, codes + b * SN_SIGN_CODE_BYTES);
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

/* Every bit is a sign. */
static sn_verdict sign_check(const sn_coded *from)
{
    (void)from;
    return SN_VALID;
}

#endif
