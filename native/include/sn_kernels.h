/* What the kernels of all instruction sets share: the scale rule, and their tables. */
#ifndef SN_KERNELS_H
#define SN_KERNELS_H

#include <string.h>

#include "sn_codec.h"

/* Loops take the codec as an argument; inlining makes it constant, so each gets a loop of its own. */
#define SN_INLINE static inline __attribute__((always_inline))

#define SN_Q4_OFFSET 8 /* a nibble holds code + 8, so that zeroed memory is no valid payload */

static const sn_format sn_q8_format = {
    .bits = 8,
    .block_code_bytes = SN_Q8_CODE_BYTES,
    .levels = 127.0f,
    .scale_bits_max = 0x7C01u,
    .zero_code_byte = 0x00,
};
static const sn_format sn_q4_format = {
    .bits = 4,
    .block_code_bytes = SN_Q4_CODE_BYTES,
    .levels = 7.0f,
    .scale_bits_max = 0x7E12u,
    .zero_code_byte = SN_Q4_OFFSET | SN_Q4_OFFSET << 4,
};

enum { SN_GROUP_BLOCKS = 16 }; /* 4 KiB of float32 */

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

static inline float sn_scale_from_bits(uint32_t scale_bits)
{
    return sn_float_from_bits(scale_bits << 16);
}

/* The bfloat16 scale of a block: amax / levels rounded up, so that no code exceeds `levels`. */
static inline uint32_t sn_scale_bits(uint32_t amax_bits, const sn_format *format)
{
    const float exact = sn_float_from_bits(amax_bits) / format->levels;
    const uint32_t rounded_up = (sn_bits_from_float(exact) + 0xFFFFu) >> 16;
    const uint32_t largest = format->scale_bits_max;
    const uint32_t capped = rounded_up < largest ? rounded_up : largest;
    return exact < SN_SCALE_MIN ? 0 : capped;
}

/* What values are multiplied by to become codes; 0 for a scale of 0. */
static inline float sn_inverse_scale(uint32_t scale_bits)
{
    const float inverse = 1.0f / sn_scale_from_bits(scale_bits);
    return scale_bits == 0 ? 0.0f : inverse;
}

/* Vector encoders work on groups of blocks in two passes over the first-level cache: the largest
 * magnitude of every block, then the codes. Between them the scales of the whole group are a few
 * vector instructions, where block by block each code would wait for two divisions in a row. */
typedef struct {
    uint32_t amax_bits[SN_GROUP_BLOCKS];
    float inverse_scales[SN_GROUP_BLOCKS];
} sn_group;

/* Writes the scales of the first `count` blocks, whose amax_bits are set, and their inverses. */
SN_INLINE void sn_group_scale(sn_group *group, size_t count, const sn_format *format,
                              uint8_t *scales)
{
    uint16_t stored[SN_GROUP_BLOCKS];
    for (size_t i = 0; i < SN_GROUP_BLOCKS; i++) {
        const uint32_t scale_bits = sn_scale_bits(group->amax_bits[i], format);
        stored[i] = (uint16_t)scale_bits;
        group->inverse_scales[i] = sn_inverse_scale(scale_bits);
    }
    memcpy(scales, stored, count * SN_SCALE_BYTES);
}

/* The index of the first of `count` blocks that is not finite, or `count`. */
static inline size_t sn_group_refused(const sn_group *group, size_t count)
{
    size_t i = 0;
    while (i < count && group->amax_bits[i] < SN_INFINITY_BITS) {
        i++;
    }
    return i;
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

/* A hint may lie past the end of an array: harmless to the processor, and as an integer to C. */
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
