/* What the kernels of all instruction sets share: the scale rule, and their tables. */
#ifndef SN_KERNELS_H
#define SN_KERNELS_H

#include <string.h>

#include "sn_codec.h"

#define SN_Q8_LEVELS 127.0f
#define SN_Q4_LEVELS 7.0f
#define SN_Q4_OFFSET 8 /* a nibble holds code + 8, so that zeroed memory is no valid payload */

/* The largest bfloat16 whose product with the largest code is a finite float32:
 * 127 x 0x7C01 and 7 x 0x7E12 lie just under FLT_MAX. */
#define SN_Q8_SCALE_BITS_MAX 0x7C01u
#define SN_Q4_SCALE_BITS_MAX 0x7E12u

#define SN_ABS_MASK 0x7FFFFFFFu
#define SN_INFINITY_BITS 0x7F800000u
#define SN_INVALID_Q8_BYTE 0x80u

/* A block whose largest value is below this many levels is all zero. Elements that are denormal
 * then never reach a code other than 0, so a thread that flushes denormals writes the same bytes;
 * and 1 / scale is always finite. */
#define SN_SCALE_MIN 0x1p-124f

/* The kernels read ahead of the processor's own prefetcher, which stops at a page of 4 KiB. */
#define SN_PREFETCH_BYTES 4096

/* From here on (512 KiB of float32) decoded values bypass the cache: they are for another process
 * to read later, and not fetching a line only to overwrite it is worth a third of the time. */
#define SN_STREAM_BLOCKS 2048

static inline float sn_float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t sn_bits_from_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The bfloat16 scale of a block: amax / levels rounded up, so that no code exceeds `levels`. */
static inline uint32_t sn_scale_bits(uint32_t amax_bits, float levels, uint32_t scale_bits_max)
{
    const float exact = sn_float_from_bits(amax_bits) / levels;
    if (exact < SN_SCALE_MIN) {
        return 0;
    }
    const uint32_t rounded_up = (sn_bits_from_float(exact) + 0xFFFFu) >> 16;
    return rounded_up < scale_bits_max ? rounded_up : scale_bits_max;
}

static inline float sn_scale_from_bits(uint32_t scale_bits)
{
    return sn_float_from_bits(scale_bits << 16);
}

static inline float sn_inverse_scale(uint32_t scale_bits)
{
    return scale_bits == 0 ? 0.0f : 1.0f / sn_scale_from_bits(scale_bits);
}

static inline void sn_scale_store(uint8_t *scales, size_t block, uint32_t scale_bits)
{
    const uint16_t stored = (uint16_t)scale_bits;
    memcpy(scales + block * SN_SCALE_BYTES, &stored, sizeof stored);
}

static inline float sn_scale_load(const uint8_t *scales, size_t block)
{
    uint16_t stored;
    memcpy(&stored, scales + block * SN_SCALE_BYTES, sizeof stored);
    return sn_scale_from_bits(stored);
}

/* A hint may point past the end of an array; as an integer the address is no out-of-bounds pointer. */
static inline const void *sn_ahead(const uint8_t *at)
{
    return (const void *)((uintptr_t)at + SN_PREFETCH_BYTES);
}

extern const sn_kernels sn_q8_ref, sn_q4_ref;
#if defined(__x86_64__)
extern const sn_kernels sn_q8_avx2, sn_q4_avx2;
extern const sn_kernels sn_q8_avx512, sn_q4_avx512;
#elif defined(__aarch64__)
extern const sn_kernels sn_q8_neon, sn_q4_neon;
#endif

#endif
