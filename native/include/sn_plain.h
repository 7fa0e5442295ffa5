/* RAW32 and BF16: one code an element, no scales. Included by each instruction set's file after
 * SN_TARGET is defined: compilers vectorise these loops for it as well as a hand would. */
#ifndef SN_PLAIN_H
#define SN_PLAIN_H

#include "sn_kernels.h"

enum { SN_PLAIN_ELEMS = 1024 }; /* checked, then encoded, while they are in the cache */

#define SN_BF16_MAX 0x7F7Fu
#define SN_BF16_INFINITY 0x7F80u
#define SN_BF16_ABS_MASK 0x7FFFu

SN_TARGET SN_INLINE uint32_t plain_bits_load(const uint8_t *at, size_t index)
{
    uint32_t bits;
    memcpy(&bits, at + index * sizeof bits, sizeof bits);
    return bits;
}

/* Whether one of `count` float32 is NaN or infinite. */
SN_TARGET SN_INLINE int plain_is_refused(const uint8_t *values, size_t count)
{
    uint32_t amax_bits = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t magnitude = plain_bits_load(values, i) & SN_ABS_MASK;
        amax_bits = magnitude > amax_bits ? magnitude : amax_bits;
    }
    return amax_bits >= SN_INFINITY_BITS;
}

SN_TARGET SN_INLINE size_t plain_first_refused(const uint8_t *values)
{
    size_t i = 0;
    while ((plain_bits_load(values, i) & SN_ABS_MASK) < SN_INFINITY_BITS) {
        i++;
    }
    return i;
}

SN_TARGET SN_INLINE float plain_merged(const uint8_t *at, uint32_t decoded_bits, float own_weight,
                                       float peer_weight)
{
    float own;
    memcpy(&own, at, sizeof own);
    return sn_merged(own, sn_float_from_bits(decoded_bits), own_weight, peer_weight);
}

/* RAW32 */

SN_TARGET static size_t raw32_encode(const sn_values *from, uint8_t *scales, uint8_t *codes)
{
    (void)scales;
    for (size_t at = 0; at < from->n_blocks; at += SN_PLAIN_ELEMS) {
        const size_t rest = from->n_blocks - at;
        const size_t count = rest < SN_PLAIN_ELEMS ? rest : SN_PLAIN_ELEMS;
        const uint8_t *values = from->values + at * sizeof(float);
        if (plain_is_refused(values, count)) {
            return at + plain_first_refused(values);
        }
        memcpy(codes + at * sizeof(float), values, count * sizeof(float));
    }
    return from->n_blocks;
}

SN_TARGET static void raw32_decode(const sn_coded *from, uint8_t *out)
{
    memcpy(out, from->codes, from->n_blocks * sizeof(float));
}

SN_TARGET SN_INLINE void raw32_merge_count(const uint8_t *codes, uint8_t *target, size_t count,
                                           float own_weight, float peer_weight)
{
    for (size_t i = 0; i < count; i++) {
        uint8_t *at = target + i * sizeof(float);
        const uint32_t bits = plain_bits_load(codes, i);
        const float result = plain_merged(at, bits, own_weight, peer_weight);
        memcpy(at, &result, sizeof result);
    }
}

SN_TARGET static void raw32_merge(const sn_coded *from, uint8_t *target, float own_weight,
                                  float peer_weight)
{
    for (size_t i = 0; i < from->n_blocks; i += SN_BLOCK_ELEMS) {
        const size_t rest = from->n_blocks - i;
        const uint8_t *codes = from->codes + i * sizeof(float);
        uint8_t *own = target + i * sizeof(float);
        sn_prefetch(codes, SN_BLOCK_BYTES);
        sn_prefetch(own, SN_BLOCK_BYTES);
        if (rest >= SN_BLOCK_ELEMS) { /* a constant count, for which compilers make no loop */
            raw32_merge_count(codes, own, SN_BLOCK_ELEMS, own_weight, peer_weight);
        } else {
            raw32_merge_count(codes, own, rest, own_weight, peer_weight);
        }
    }
}

SN_TARGET static sn_verdict raw32_check(const sn_coded *from)
{
    return plain_is_refused(from->codes, from->n_blocks) ? SN_INVALID_VALUE : SN_VALID;
}

/* BF16 */

/* To nearest, ties to even; what would become infinity becomes the largest. Integers only, so
 * that a thread that flushes denormals writes the same bytes. */
SN_TARGET SN_INLINE uint16_t bf16_of(uint32_t bits)
{
    const uint32_t magnitude = bits & SN_ABS_MASK;
    const uint32_t rounded = (magnitude + 0x7FFFu + (magnitude >> 16 & 1)) >> 16;
    const uint32_t capped = rounded < SN_BF16_MAX ? rounded : SN_BF16_MAX;
    return (uint16_t)(capped | (bits >> 16 & ~SN_BF16_ABS_MASK));
}

SN_TARGET SN_INLINE uint16_t bf16_load(const uint8_t *codes, size_t index)
{
    uint16_t code;
    memcpy(&code, codes + index * sizeof code, sizeof code);
    return code;
}

SN_TARGET static size_t bf16_encode(const sn_values *from, uint8_t *scales, uint8_t *codes)
{
    (void)scales;
    for (size_t at = 0; at < from->n_blocks; at += SN_PLAIN_ELEMS) {
        const size_t rest = from->n_blocks - at;
        const size_t count = rest < SN_PLAIN_ELEMS ? rest : SN_PLAIN_ELEMS;
        const uint8_t *values = from->values + at * sizeof(float);
        if (plain_is_refused(values, count)) {
            return at + plain_first_refused(values);
        }
        uint8_t *to = codes + at * sizeof(uint16_t);
        for (size_t i = 0; i < count; i++) {
            const uint16_t code = bf16_of(plain_bits_load(values, i));
            memcpy(to + i * sizeof code, &code, sizeof code);
        }
    }
    return from->n_blocks;
}

SN_TARGET static void bf16_decode(const sn_coded *from, uint8_t *out)
{
    const uint8_t *codes = from->codes;
    for (size_t i = 0; i < from->n_blocks; i++) {
        const uint32_t bits = (uint32_t)bf16_load(codes, i) << 16;
        memcpy(out + i * sizeof bits, &bits, sizeof bits);
    }
}

SN_TARGET SN_INLINE void bf16_merge_count(const uint8_t *codes, uint8_t *target, size_t count,
                                          float own_weight, float peer_weight)
{
    for (size_t i = 0; i < count; i++) {
        uint8_t *at = target + i * sizeof(float);
        const uint32_t bits = (uint32_t)bf16_load(codes, i) << 16;
        const float result = plain_merged(at, bits, own_weight, peer_weight);
        memcpy(at, &result, sizeof result);
    }
}

SN_TARGET static void bf16_merge(const sn_coded *from, uint8_t *target, float own_weight,
                                 float peer_weight)
{
    for (size_t i = 0; i < from->n_blocks; i += SN_BLOCK_ELEMS) {
        const size_t rest = from->n_blocks - i;
        const uint8_t *codes = from->codes + i * sizeof(uint16_t);
        uint8_t *own = target + i * sizeof(float);
        sn_prefetch(codes, SN_BLOCK_BYTES / 2);
        sn_prefetch(own, SN_BLOCK_BYTES);
        if (rest >= SN_BLOCK_ELEMS) { /* a constant count, for which compilers make no loop */
            bf16_merge_count(codes, own, SN_BLOCK_ELEMS, own_weight, peer_weight);
        } else {
            bf16_merge_count(codes, own, rest, own_weight, peer_weight);
        }
    }
}

SN_TARGET static sn_verdict bf16_check(const sn_coded *from)
{
    uint16_t amax = 0;
    for (size_t i = 0; i < from->n_blocks; i++) {
        const uint16_t magnitude = (uint16_t)(bf16_load(from->codes, i) & SN_BF16_ABS_MASK);
        amax = magnitude > amax ? magnitude : amax;
    }
    return amax >= SN_BF16_INFINITY ? SN_INVALID_VALUE : SN_VALID;
}

#endif
