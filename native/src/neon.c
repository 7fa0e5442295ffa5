/* NEON on 64-bit ARM: a block is sixteen registers. Bit-equal to ref.c. */
#if defined(__aarch64__)

#include <arm_neon.h>

#include "sn_kernels.h"


typedef struct {
    float32x4_t part[16];
} sn_block;

SN_INLINE float32x4_t part_load(const uint8_t *at)
{
    return vreinterpretq_f32_u8(vld1q_u8(at));
}

SN_INLINE void part_store(uint8_t *at, float32x4_t part)
{
    vst1q_u8(at, vreinterpretq_u8_f32(part));
}

SN_INLINE sn_block block_load(const uint8_t *at)
{
    sn_block block;
    for (size_t i = 0; i < 16; i++) {
        block.part[i] = part_load(at + i * 16);
    }
    return block;
}

SN_INLINE void prefetch_block(const uint8_t *at)
{
    for (size_t line = 0; line < SN_BLOCK_BYTES; line += 64) {
        __builtin_prefetch(sn_ahead(at + line));
    }
}

SN_INLINE uint32_t amax_bits_of(const uint8_t *at)
{
    const sn_block block = block_load(at);
    const uint32x4_t mask = vdupq_n_u32(SN_ABS_MASK);
    uint32x4_t largest = vdupq_n_u32(0);
    for (size_t i = 0; i < 16; i++) {
        largest = vmaxq_u32(largest, vandq_u32(vreinterpretq_u32_f32(block.part[i]), mask));
    }
    return vmaxvq_u32(largest);
}

SN_INLINE int32x4_t codes_of(float32x4_t values, float32x4_t inverse_scale)
{
    const float32x4_t t = vmulq_f32(values, inverse_scale);
    const uint32x4_t sign = vdupq_n_u32(~SN_ABS_MASK);
    const float32x4_t signed_half = vbslq_f32(sign, t, vdupq_n_f32(0.5f));
    return vcvtq_s32_f32(vaddq_f32(t, signed_half)); /* truncates */
}

/* Sixteen codes of four registers to sixteen bytes. */
SN_INLINE int8x16_t codes_of_quarter(const sn_block *block, size_t quarter, float32x4_t inverse)
{
    const float32x4_t *part = block->part + quarter * 4;
    const int16x8_t low = vcombine_s16(vmovn_s32(codes_of(part[0], inverse)),
                                       vmovn_s32(codes_of(part[1], inverse)));
    const int16x8_t high = vcombine_s16(vmovn_s32(codes_of(part[2], inverse)),
                                        vmovn_s32(codes_of(part[3], inverse)));
    return vcombine_s8(vmovn_s16(low), vmovn_s16(high));
}

/* Sixteen signed bytes to sixteen scaled floats in four registers. */
SN_INLINE void unpack_quarter(sn_block *block, size_t quarter, int8x16_t codes, float32x4_t scale)
{
    const int16x8_t halves[2] = {vmovl_s8(vget_low_s8(codes)), vmovl_s8(vget_high_s8(codes))};
    for (size_t i = 0; i < 2; i++) {
        const int32x4_t low = vmovl_s16(vget_low_s16(halves[i]));
        const int32x4_t high = vmovl_s16(vget_high_s16(halves[i]));
        block->part[quarter * 4 + i * 2] = vmulq_f32(vcvtq_f32_s32(low), scale);
        block->part[quarter * 4 + i * 2 + 1] = vmulq_f32(vcvtq_f32_s32(high), scale);
    }
}

/* Q8B64 */

SN_INLINE void q8_quantize(const sn_block *block, float32x4_t inverse_scale, uint8_t *codes)
{
    for (size_t quarter = 0; quarter < 4; quarter++) {
        const int8x16_t packed = codes_of_quarter(block, quarter, inverse_scale);
        vst1q_u8(codes + quarter * 16, vreinterpretq_u8_s8(packed));
    }
}

SN_INLINE sn_block q8_block(const uint8_t *scales, const uint8_t *codes, size_t b)
{
    const float32x4_t scale = vdupq_n_f32(sn_scale_load(scales, b));
    sn_block block;
    for (size_t quarter = 0; quarter < 4; quarter++) {
        const uint8x16_t packed = vld1q_u8(codes + b * SN_Q8_CODE_BYTES + quarter * 16);
        unpack_quarter(&block, quarter, vreinterpretq_s8_u8(packed), scale);
    }
    return block;
}

static int q8_has_invalid_code(const uint8_t *codes, size_t n_blocks)
{
    const uint8x16_t invalid = vdupq_n_u8(SN_INVALID_Q8_BYTE);
    uint8x16_t found = vdupq_n_u8(0);
    for (size_t i = 0; i < n_blocks * SN_Q8_CODE_BYTES; i += 16) {
        found = vorrq_u8(found, vceqq_u8(vld1q_u8(codes + i), invalid));
    }
    return vmaxvq_u8(found) != 0;
}

/* Q4B64 */

SN_INLINE void q4_quantize(const sn_block *block, float32x4_t inverse_scale, uint8_t *codes)
{
    const int8x16_t offset = vdupq_n_s8(SN_Q4_OFFSET);
    for (size_t i = 0; i < 2; i++) {
        const int8x16_t low = vaddq_s8(codes_of_quarter(block, i, inverse_scale), offset);
        const int8x16_t high = vaddq_s8(codes_of_quarter(block, i + 2, inverse_scale), offset);
        const uint8x16_t pairs =
            vorrq_u8(vreinterpretq_u8_s8(low), vshlq_n_u8(vreinterpretq_u8_s8(high), 4));
        vst1q_u8(codes + i * 16, pairs);
    }
}

SN_INLINE sn_block q4_block(const uint8_t *scales, const uint8_t *codes, size_t b)
{
    const float32x4_t scale = vdupq_n_f32(sn_scale_load(scales, b));
    const int8x16_t offset = vdupq_n_s8(SN_Q4_OFFSET);
    sn_block block;
    for (size_t i = 0; i < 2; i++) {
        const uint8x16_t pairs = vld1q_u8(codes + b * SN_Q4_CODE_BYTES + i * 16);
        const uint8x16_t low = vandq_u8(pairs, vdupq_n_u8(0x0F));
        const uint8x16_t high = vshrq_n_u8(pairs, 4);
        unpack_quarter(&block, i, vsubq_s8(vreinterpretq_s8_u8(low), offset), scale);
        unpack_quarter(&block, i + 2, vsubq_s8(vreinterpretq_s8_u8(high), offset), scale);
    }
    return block;
}

static int q4_has_invalid_code(const uint8_t *codes, size_t n_blocks)
{
    uint8x16_t smallest = vdupq_n_u8(0x0F);
    for (size_t i = 0; i < n_blocks * SN_Q4_CODE_BYTES; i += 16) {
        const uint8x16_t pairs = vld1q_u8(codes + i);
        smallest = vminq_u8(smallest, vandq_u8(pairs, vdupq_n_u8(0x0F)));
        smallest = vminq_u8(smallest, vshrq_n_u8(pairs, 4));
    }
    return vminvq_u8(smallest) == 0;
}

/* The codecs differ only in how a block is packed and unpacked. */

typedef void (*sn_quantize)(const sn_block *block, float32x4_t inverse_scale, uint8_t *codes);
typedef sn_block (*sn_unpack)(const uint8_t *scales, const uint8_t *codes, size_t b);

SN_INLINE size_t encode(const uint8_t *values, uint8_t *scales, uint8_t *codes,
                        size_t n_blocks, const sn_format *format, sn_quantize quantize)
{
    for (size_t b = 0; b < n_blocks; b += SN_GROUP_BLOCKS) {
        const size_t count = n_blocks - b < SN_GROUP_BLOCKS ? n_blocks - b : SN_GROUP_BLOCKS;
        const uint8_t *from = values + b * SN_BLOCK_BYTES;
        sn_group group = {0};
        for (size_t i = 0; i < count; i++) {
            prefetch_block(from + i * SN_BLOCK_BYTES);
            group.amax_bits[i] = amax_bits_of(from + i * SN_BLOCK_BYTES);
        }
        const size_t refused = sn_group_refused(&group, count);
        if (refused < count) {
            return b + refused;
        }
        sn_group_scale(&group, count, format, scales + b * SN_SCALE_BYTES);
        for (size_t i = 0; i < count; i++) {
            const sn_block block = block_load(from + i * SN_BLOCK_BYTES);
            quantize(&block, vdupq_n_f32(group.inverse_scales[i]),
                     codes + (b + i) * format->block_code_bytes);
        }
    }
    return n_blocks;
}

SN_INLINE void decode(const uint8_t *scales, const uint8_t *codes, uint8_t *out, size_t n_blocks,
                      sn_unpack unpack)
{
    for (size_t b = 0; b < n_blocks; b++) {
        const sn_block block = unpack(scales, codes, b);
        for (size_t i = 0; i < 16; i++) {
            part_store(out + b * SN_BLOCK_BYTES + i * 16, block.part[i]);
        }
    }
}

SN_INLINE void merge(const uint8_t *scales, const uint8_t *codes, uint8_t *target, size_t n_blocks,
                     float own_weight, float peer_weight, sn_unpack unpack)
{
    for (size_t b = 0; b < n_blocks; b++) {
        uint8_t *at = target + b * SN_BLOCK_BYTES;
        prefetch_block(at);
        const sn_block peer = unpack(scales, codes, b);
        for (size_t i = 0; i < 16; i++) {
            /* A product and a sum, never vfmaq or vmlaq: each step is rounded. */
            const float32x4_t own_part = vmulq_n_f32(part_load(at + i * 16), own_weight);
            const float32x4_t peer_part = vmulq_n_f32(peer.part[i], peer_weight);
            part_store(at + i * 16, vaddq_f32(own_part, peer_part));
        }
    }
}

static size_t q8_encode(const uint8_t *values, uint8_t *scales, uint8_t *codes,
                        size_t n_blocks)
{
    return encode(values, scales, codes, n_blocks, &sn_q8_format, q8_quantize);
}

static size_t q4_encode(const uint8_t *values, uint8_t *scales, uint8_t *codes,
                        size_t n_blocks)
{
    return encode(values, scales, codes, n_blocks, &sn_q4_format, q4_quantize);
}

static void q8_decode(const uint8_t *scales, const uint8_t *codes, uint8_t *out, size_t n_blocks)
{
    decode(scales, codes, out, n_blocks, q8_block);
}

static void q8_merge(const uint8_t *scales, const uint8_t *codes, uint8_t *target, size_t n_blocks,
                     float own_weight, float peer_weight)
{
    merge(scales, codes, target, n_blocks, own_weight, peer_weight, q8_block);
}

static void q4_decode(const uint8_t *scales, const uint8_t *codes, uint8_t *out, size_t n_blocks)
{
    decode(scales, codes, out, n_blocks, q4_block);
}

static void q4_merge(const uint8_t *scales, const uint8_t *codes, uint8_t *target, size_t n_blocks,
                     float own_weight, float peer_weight)
{
    merge(scales, codes, target, n_blocks, own_weight, peer_weight, q4_block);
}

const sn_kernels sn_q8_neon = {q8_encode, q8_decode, q8_merge, q8_has_invalid_code};
const sn_kernels sn_q4_neon = {q4_encode, q4_decode, q4_merge, q4_has_invalid_code};

#else
typedef int sn_neon_is_for_aarch64; /* ISO C wants at least one declaration */
#endif
