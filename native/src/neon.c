/* NEON on 64-bit ARM: a block is sixteen registers. Bit-equal to ref.c. */
#if defined(__aarch64__)

#include <arm_neon.h>

#define SN_TARGET
#include "sn_plain.h"
#include "sn_sign.h"
#include "sn_q2.h"
#include "sn_t3.h"
#include "sn_topk.h"
#include "sn_topk2.h"
#include "sn_wide.h"

typedef float32x4_t sn_part;

enum { SN_PARTS = 16 };

typedef struct {
    sn_part part[SN_PARTS];
} sn_block;

SN_INLINE sn_part part_load(const uint8_t *at)
{
    return vreinterpretq_f32_u8(vld1q_u8(at));
}

SN_INLINE void part_store(uint8_t *at, sn_part part)
{
    vst1q_u8(at, vreinterpretq_u8_f32(part));
}

/* Compilers offer no store past the cache that all of them know. */
SN_INLINE void part_stream(uint8_t *at, sn_part part)
{
    part_store(at, part);
}

SN_INLINE sn_part part_set(float value)
{
    return vdupq_n_f32(value);
}

SN_INLINE sn_part part_add(sn_part a, sn_part b)
{
    return vaddq_f32(a, b);
}

SN_INLINE sn_part part_sub(sn_part a, sn_part b)
{
    return vsubq_f32(a, b);
}

SN_INLINE sn_part part_mul(sn_part a, sn_part b)
{
    return vmulq_f32(a, b);
}

SN_INLINE sn_part part_saturated(sn_part values)
{
    const sn_part capped = vminq_f32(values, vdupq_n_f32(FLT_MAX)); /* lets a NaN through */
    return vmaxq_f32(capped, vdupq_n_f32(-FLT_MAX));
}

SN_INLINE sn_block block_load(const uint8_t *at)
{
    sn_block block;
    for (size_t i = 0; i < SN_PARTS; i++) {
        block.part[i] = part_load(at + i * (SN_BLOCK_BYTES / SN_PARTS));
    }
    return block;
}

SN_INLINE uint32_t amax_bits_of(const sn_block *block)
{
    const uint32x4_t mask = vdupq_n_u32(SN_ABS_MASK);
    uint32x4_t largest = vdupq_n_u32(0);
    for (size_t i = 0; i < 16; i++) {
        largest = vmaxq_u32(largest, vandq_u32(vreinterpretq_u32_f32(block->part[i]), mask));
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

SN_INLINE sn_block q8_unpack(const sn_coded *from, size_t b)
{
    const float32x4_t scale = vdupq_n_f32(sn_scale_load(from->scales, b));
    sn_block block;
    for (size_t quarter = 0; quarter < 4; quarter++) {
        const uint8x16_t packed = vld1q_u8(from->codes + b * SN_Q8_CODE_BYTES + quarter * 16);
        unpack_quarter(&block, quarter, vreinterpretq_s8_u8(packed), scale);
    }
    return block;
}

static sn_verdict q8_check(const sn_coded *from)
{
    const uint8x16_t invalid = vdupq_n_u8(SN_INVALID_Q8_BYTE);
    uint8x16_t found = vdupq_n_u8(0);
    for (size_t i = 0; i < from->n_blocks * SN_Q8_CODE_BYTES; i += 16) {
        found = vorrq_u8(found, vceqq_u8(vld1q_u8(from->codes + i), invalid));
    }
    return vmaxvq_u8(found) != 0 ? SN_INVALID_CODE : SN_VALID;
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

SN_INLINE sn_block q4_unpack(const sn_coded *from, size_t b)
{
    const float32x4_t scale = vdupq_n_f32(sn_scale_load(from->scales, b));
    const int8x16_t offset = vdupq_n_s8(SN_Q4_OFFSET);
    sn_block block;
    for (size_t i = 0; i < 2; i++) {
        const uint8x16_t pairs = vld1q_u8(from->codes + b * SN_Q4_CODE_BYTES + i * 16);
        const uint8x16_t low = vandq_u8(pairs, vdupq_n_u8(0x0F));
        const uint8x16_t high = vshrq_n_u8(pairs, 4);
        unpack_quarter(&block, i, vsubq_s8(vreinterpretq_s8_u8(low), offset), scale);
        unpack_quarter(&block, i + 2, vsubq_s8(vreinterpretq_s8_u8(high), offset), scale);
    }
    return block;
}

/* E3M0 has no nibble of 0 either. */
static sn_verdict q4_check(const sn_coded *from)
{
    const size_t n_bytes = from->n_blocks * from->format->block_code_bytes;
    uint8x16_t smallest = vdupq_n_u8(0x0F);
    for (size_t i = 0; i < n_bytes; i += 16) {
        const uint8x16_t pairs = vld1q_u8(from->codes + i);
        smallest = vminq_u8(smallest, vandq_u8(pairs, vdupq_n_u8(0x0F)));
        smallest = vminq_u8(smallest, vshrq_n_u8(pairs, 4));
    }
    return vminvq_u8(smallest) == 0 ? SN_INVALID_CODE : SN_VALID;
}

/* E3M0 */

SN_INLINE uint32x4_t e3m0_nibbles_of(float32x4_t values, float32x4_t inverse_scale)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(vmulq_f32(values, inverse_scale));
    const uint32x4_t magnitude = vandq_u32(bits, vdupq_n_u32(SN_ABS_MASK));
    const uint32x4_t exponent = vshrq_n_u32(magnitude, SN_EXPONENT_SHIFT);
    const uint32x4_t level = vqsubq_u32(exponent, vdupq_n_u32(SN_EXPONENT_BIAS)); /* not below 0 */
    const uint32x4_t is_negative =
        vandq_u32(vcltzq_s32(vreinterpretq_s32_u32(bits)), vtstq_u32(level, level));
    return vorrq_u32(level, vbicq_u32(vdupq_n_u32(SN_E3M0_POSITIVE), is_negative));
}

SN_INLINE uint8x16_t e3m0_nibbles_of_quarter(const sn_block *block, size_t quarter,
                                             float32x4_t inverse)
{
    const float32x4_t *part = block->part + quarter * 4;
    const uint16x8_t low = vcombine_u16(vmovn_u32(e3m0_nibbles_of(part[0], inverse)),
                                        vmovn_u32(e3m0_nibbles_of(part[1], inverse)));
    const uint16x8_t high = vcombine_u16(vmovn_u32(e3m0_nibbles_of(part[2], inverse)),
                                         vmovn_u32(e3m0_nibbles_of(part[3], inverse)));
    return vcombine_u8(vmovn_u16(low), vmovn_u16(high));
}

SN_INLINE void e3m0_quantize(const sn_block *block, float32x4_t inverse_scale, uint8_t *codes)
{
    for (size_t i = 0; i < 2; i++) {
        const uint8x16_t low = e3m0_nibbles_of_quarter(block, i, inverse_scale);
        const uint8x16_t high = e3m0_nibbles_of_quarter(block, i + 2, inverse_scale);
        vst1q_u8(codes + i * 16, vorrq_u8(low, vshlq_n_u8(high, 4)));
    }
}

/* Four values: the level becomes an exponent, and what the sign bit is not becomes the sign. */
SN_INLINE float32x4_t e3m0_values(uint32x4_t nibbles, float32x4_t scale)
{
    const uint32x4_t level = vandq_u32(nibbles, vdupq_n_u32(SN_E3M0_LEVELS));
    const uint32x4_t exponent =
        vaddq_u32(level, vdupq_n_u32(SN_EXPONENT_BIAS - SN_E3M0_LEVELS));
    const uint32x4_t magnitude =
        vandq_u32(vshlq_n_u32(exponent, SN_EXPONENT_SHIFT), vtstq_u32(level, level));
    const uint32x4_t sign =
        vbicq_u32(vdupq_n_u32(~SN_ABS_MASK), vshlq_n_u32(nibbles, 28));
    return vmulq_f32(vreinterpretq_f32_u32(vorrq_u32(magnitude, sign)), scale);
}

SN_INLINE void e3m0_unpack_quarter(sn_block *block, size_t quarter, uint8x16_t nibbles,
                                   float32x4_t scale)
{
    const uint16x8_t halves[2] = {vmovl_u8(vget_low_u8(nibbles)), vmovl_u8(vget_high_u8(nibbles))};
    for (size_t i = 0; i < 2; i++) {
        const uint32x4_t low = vmovl_u16(vget_low_u16(halves[i]));
        const uint32x4_t high = vmovl_u16(vget_high_u16(halves[i]));
        block->part[quarter * 4 + i * 2] = e3m0_values(low, scale);
        block->part[quarter * 4 + i * 2 + 1] = e3m0_values(high, scale);
    }
}

SN_INLINE sn_block e3m0_unpack(const sn_coded *from, size_t b)
{
    const float32x4_t scale = vdupq_n_f32(sn_e3m0_scale_load(from->scales, b));
    sn_block block;
    for (size_t i = 0; i < 2; i++) {
        const uint8x16_t pairs = vld1q_u8(from->codes + b * SN_Q4_CODE_BYTES + i * 16);
        e3m0_unpack_quarter(&block, i, vandq_u8(pairs, vdupq_n_u8(0x0F)), scale);
        e3m0_unpack_quarter(&block, i + 2, vshrq_n_u8(pairs, 4), scale);
    }
    return block;
}

/* Q2B64 */

/* Moves bit i of the lowest four to the highest place of lane i. */
SN_INLINE uint32x4_t bits_spread(uint64_t bits)
{
    static const int32_t shifts[4] = {31, 30, 29, 28};
    return vshlq_u32(vdupq_n_u32((uint32_t)(bits & 0x0F)), vld1q_s32(shifts));
}

SN_INLINE sn_block q2_unpack(const sn_coded *from, size_t b)
{
    const sn_q2_block coded = q2_load(from, b);
    const float32x4_t small = vdupq_n_f32(coded.small);
    const float32x4_t large = vdupq_n_f32(coded.large);
    sn_block block;
    for (size_t i = 0; i < SN_PARTS; i++) {
        const int32x4_t sizes = vreinterpretq_s32_u32(bits_spread(coded.sizes >> 4 * i));
        const float32x4_t magnitude = vbslq_f32(vcltzq_s32(sizes), large, small);
        const uint32x4_t signs =
            vandq_u32(bits_spread(coded.signs >> 4 * i), vdupq_n_u32(~SN_ABS_MASK));
        block.part[i] =
            vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(magnitude), signs));
    }
    return block;
}

/* T3B320 */

SN_INLINE float32x4_t part_counted(float32x4_t part)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(part);
    const uint32x4_t magnitude = vandq_u32(bits, vdupq_n_u32(SN_ABS_MASK));
    const uint32x4_t is_counted = vcgeq_u32(magnitude, vdupq_n_u32(SN_SIGN_BITS_MIN));
    return vreinterpretq_f32_u32(vandq_u32(bits, is_counted));
}

SN_INLINE uint16x4_t trits_of_part(float32x4_t part, uint32x4_t threshold_bits)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(part);
    const uint32x4_t magnitude = vandq_u32(bits, vdupq_n_u32(SN_ABS_MASK));
    const uint32x4_t one_or_two = vsraq_n_u32(vdupq_n_u32(1), bits, 31);
    return vmovn_u32(vandq_u32(vcgtq_u32(magnitude, threshold_bits), one_or_two));
}

SN_INLINE void trits_of(const sn_block *block, uint32_t threshold_bits, uint8_t *trits)
{
    const uint32x4_t threshold = vdupq_n_u32(threshold_bits);
    for (size_t i = 0; i < SN_PARTS; i += 2) {
        const uint16x8_t eight = vcombine_u16(trits_of_part(block->part[i], threshold),
                                              trits_of_part(block->part[i + 1], threshold));
        vst1_u8(trits + i * 4, vmovn_u16(eight));
    }
}

SN_INLINE sn_block t3_unpack(const sn_coded *from, size_t b)
{
    static const int8_t levels[16] = {0, 1, -1};
    const uint8_t *codes = from->codes + b / SN_T3_TRITS * SN_T3_CODE_BYTES;
    const float32x4_t scale = vdupq_n_f32(sn_scale_load(from->scales, b / SN_T3_TRITS));
    const uint16_t factor = sn_t3_factors[b % SN_T3_TRITS];
    sn_block block;
    for (size_t quarter = 0; quarter < 4; quarter++) {
        const uint8x16_t bytes = vld1q_u8(codes + quarter * 16);
        const uint16x8_t low = vmulq_n_u16(vmovl_u8(vget_low_u8(bytes)), factor);
        const uint16x8_t high = vmulq_n_u16(vmovl_u8(vget_high_u8(bytes)), factor);
        /* A trit is how many thirds of 2^16 are reached. */
        const uint16x8_t first = vdupq_n_u16(0x5556);
        const uint16x8_t second = vdupq_n_u16(0xAAAB);
        const uint16x8_t of_low = vaddq_u16(vcgeq_u16(low, first), vcgeq_u16(low, second));
        const uint16x8_t of_high = vaddq_u16(vcgeq_u16(high, first), vcgeq_u16(high, second));
        const int8x16_t minus_trits =
            vreinterpretq_s8_u8(vcombine_u8(vmovn_u16(of_low), vmovn_u16(of_high)));
        const uint8x16_t trits = vreinterpretq_u8_s8(vnegq_s8(minus_trits));
        unpack_quarter(&block, quarter, vqtbl1q_s8(vld1q_s8(levels), trits), scale);
    }
    return block;
}

/* How large a vector is: a part is half a row, in two registers of doubles */

typedef struct {
    float32x4_t largest;
    float64x2_t square_sums[2];
} sn_four_lanes;

typedef struct {
    sn_four_lanes half[2];
} sn_gauge;

SN_INLINE sn_four_lanes four_load(const sn_lanes *lanes, size_t first)
{
    return (sn_four_lanes){
        vld1q_f32(lanes->largest + first),
        {vld1q_f64(lanes->square_sums + first), vld1q_f64(lanes->square_sums + first + 2)},
    };
}

SN_INLINE void four_store(const sn_four_lanes *four, sn_lanes *lanes, size_t first)
{
    vst1q_f32(lanes->largest + first, four->largest);
    vst1q_f64(lanes->square_sums + first, four->square_sums[0]);
    vst1q_f64(lanes->square_sums + first + 2, four->square_sums[1]);
}

SN_INLINE sn_gauge gauge_load(const sn_lanes *lanes)
{
    return (sn_gauge){{four_load(lanes, 0), four_load(lanes, SN_LANES / 2)}};
}

SN_INLINE void gauge_store(const sn_gauge *gauge, sn_lanes *lanes)
{
    four_store(&gauge->half[0], lanes, 0);
    four_store(&gauge->half[1], lanes, SN_LANES / 2);
}

SN_INLINE void gauge_take(sn_gauge *gauge, size_t i, sn_part part)
{
    sn_four_lanes *four = &gauge->half[i % 2];
    const float32x4_t some = vabsq_f32(part);
    /* Not the maximum, which a NaN would become. */
    four->largest = vbslq_f32(vcgtq_f32(some, four->largest), some, four->largest);
    const float64x2_t wide[2] = {vcvt_f64_f32(vget_low_f32(some)), vcvt_high_f64_f32(some)};
    for (int j = 0; j < 2; j++) { /* squares are exact: one rounding, fused or not */
        four->square_sums[j] = vfmaq_f64(four->square_sums[j], wide[j], wide[j]);
    }
}

/* The mean of payloads */

SN_INLINE void half_weigh(float64x2_t values, float64x2_t weights, double *sums)
{
    vst1q_f64(sums, vaddq_f64(vld1q_f64(sums), vmulq_f64(weights, values)));
}

SN_INLINE void part_weigh(sn_part part, double weight, double *sums)
{
    const float64x2_t weights = vdupq_n_f64(weight);
    half_weigh(vcvt_f64_f32(vget_low_f32(part)), weights, sums);
    half_weigh(vcvt_high_f64_f32(part), weights, sums + 2);
}

#include "sn_loops.h"

void sn_measure_neon(const uint8_t *values, size_t n_rows, sn_lanes *lanes)
{
    sn_gauge gauge = gauge_load(lanes);
    for (size_t row = 0; row < n_rows; row++) {
        const uint8_t *at = values + row * SN_ROW_BYTES;
        sn_prefetch(at, SN_ROW_BYTES);
        gauge_take(&gauge, 0, part_load(at));
        gauge_take(&gauge, 1, part_load(at + SN_ROW_BYTES / 2));
    }
    gauge_store(&gauge, lanes);
}

SN_DEFINE_KERNELS(neon);

#else
typedef int sn_neon_is_for_aarch64; /* ISO C wants at least one declaration */
#endif
