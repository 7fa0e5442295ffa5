/* The codecs in portable C: the specification that every other instruction set must equal.
 *
 * Always compiled, so it can always be forced (SWARMNODE_NATIVE=ref) and compared with. It is
 * written to be read; compilers vectorise decode and merge well, encode not at all.
 */
#define SN_TARGET
#include "sn_plain.h"
#include "sn_sign.h"
#include "sn_q2.h"
#include "sn_t3.h"
#include "sn_topk.h"
#include "sn_topk2.h"
#include "sn_wide.h"

typedef struct {
    float elems[SN_BLOCK_ELEMS];
} sn_block;

/* The b-th 64 values, or their difference to the reference. */
SN_INLINE sn_block block_load(const sn_values *from, size_t b)
{
    sn_block block;
    memcpy(block.elems, from->values + b * SN_BLOCK_BYTES, SN_BLOCK_BYTES);
    if (from->reference != NULL) {
        float reference[SN_BLOCK_ELEMS];
        memcpy(reference, from->reference + b * SN_BLOCK_BYTES, SN_BLOCK_BYTES);
        for (size_t i = 0; i < SN_BLOCK_ELEMS; i++) {
            block.elems[i] -= reference[i];
        }
    }
    return block;
}

static uint32_t amax_bits_of(const sn_block *block)
{
    /* Ordering magnitudes as integers orders NaN above infinity above every number. */
    uint32_t amax_bits = 0;
    for (size_t i = 0; i < SN_BLOCK_ELEMS; i++) {
        const uint32_t magnitude = sn_bits_from_float(block->elems[i]) & SN_ABS_MASK;
        amax_bits = magnitude > amax_bits ? magnitude : amax_bits;
    }
    return amax_bits;
}

typedef void (*sn_unpack)(const sn_coded *from, size_t b, sn_block *block);

SN_INLINE sn_block block_decode(const sn_coded *from, size_t b, sn_unpack unpack)
{
    sn_block block;
    unpack(from, b, &block);
    if (from->reference != NULL) {
        float reference[SN_BLOCK_ELEMS];
        memcpy(reference, from->reference + b * SN_BLOCK_BYTES, SN_BLOCK_BYTES);
        for (size_t i = 0; i < SN_BLOCK_ELEMS; i++) {
            block.elems[i] = sn_saturated(reference[i] + block.elems[i]);
        }
    }
    return block;
}

SN_INLINE void decode(const sn_coded *from, size_t n_blocks, uint8_t *out, sn_unpack unpack)
{
    for (size_t b = 0; b < n_blocks; b++) {
        const sn_block block = block_decode(from, b, unpack);
        memcpy(out + b * SN_BLOCK_BYTES, block.elems, SN_BLOCK_BYTES);
    }
}

/* How large a vector is. The square of a float32 is exact as a double: only the sum is rounded. */

void sn_measure_ref(const uint8_t *values, size_t n_rows, sn_lanes *lanes)
{
    for (size_t row = 0; row < n_rows; row++) {
        float some[SN_LANES];
        memcpy(some, values + row * SN_ROW_BYTES, sizeof some);
        for (size_t lane = 0; lane < SN_LANES; lane++) {
            const float value = sn_float_from_bits(sn_bits_from_float(some[lane]) & SN_ABS_MASK);
            lanes->largest[lane] = value > lanes->largest[lane] ? value : lanes->largest[lane];
            lanes->square_sums[lane] += (double)value * (double)value;
        }
    }
}

SN_INLINE void decode_measured(const sn_coded *from, size_t n_blocks, uint8_t *out,
                               sn_lanes *lanes, sn_unpack unpack)
{
    for (size_t b = 0; b < n_blocks; b++) {
        const sn_block block = block_decode(from, b, unpack);
        uint8_t *at = out + b * SN_BLOCK_BYTES;
        memcpy(at, block.elems, SN_BLOCK_BYTES);
        sn_measure_ref(at, SN_BLOCK_BYTES / SN_ROW_BYTES, lanes);
    }
}

SN_INLINE void merge(const sn_coded *from, size_t n_blocks, uint8_t *target, float own_weight,
                     float peer_weight, sn_unpack unpack)
{
    for (size_t b = 0; b < n_blocks; b++) {
        const sn_block peer = block_decode(from, b, unpack);
        float own[SN_BLOCK_ELEMS];
        memcpy(own, target + b * SN_BLOCK_BYTES, sizeof own);
        for (size_t i = 0; i < SN_BLOCK_ELEMS; i++) {
            own[i] = sn_merged(own[i], peer.elems[i], own_weight, peer_weight);
        }
        memcpy(target + b * SN_BLOCK_BYTES, own, sizeof own);
    }
}

SN_INLINE void weigh(const sn_coded *from, size_t n_blocks, double weight, double *sums,
                     sn_unpack unpack)
{
    for (size_t b = 0; b < n_blocks; b++) {
        const sn_block block = block_decode(from, b, unpack);
        wide_weigh(block.elems, SN_BLOCK_ELEMS, weight, sums + b * SN_BLOCK_ELEMS);
    }
}

/* Q8B64 */

static size_t q8_encode(const sn_values *from, uint8_t *scales, uint8_t *codes)
{
    for (size_t b = 0; b < from->n_blocks; b++) {
        const sn_block block = block_load(from, b);
        const uint32_t amax_bits = amax_bits_of(&block);
        if (amax_bits >= SN_INFINITY_BITS) {
            return b;
        }
        const uint32_t scale_bits = sn_scale_bits(amax_bits, &sn_q8_format);
        const float inverse_scale = sn_inverse_scale(scale_bits);
        sn_scale_store(scales, b, scale_bits);
        for (size_t i = 0; i < SN_BLOCK_ELEMS; i++) {
            codes[b * SN_Q8_CODE_BYTES + i] = (uint8_t)sn_code_of(block.elems[i], inverse_scale);
        }
    }
    return from->n_blocks;
}

SN_INLINE void q8_unpack(const sn_coded *from, size_t b, sn_block *block)
{
    const float scale = sn_scale_load(from->scales, b);
    for (size_t i = 0; i < SN_BLOCK_ELEMS; i++) {
        const int8_t code = (int8_t)from->codes[b * SN_Q8_CODE_BYTES + i];
        block->elems[i] = (float)code * scale;
    }
}

static void q8_decode(const sn_coded *from, uint8_t *out)
{
    decode(from, from->n_blocks, out, q8_unpack);
}

static void q8_decode_measured(const sn_coded *from, uint8_t *out, sn_lanes *lanes)
{
    decode_measured(from, from->n_blocks, out, lanes, q8_unpack);
}

static void q8_merge(const sn_coded *from, uint8_t *target, float own_weight, float peer_weight)
{
    merge(from, from->n_blocks, target, own_weight, peer_weight, q8_unpack);
}

static void q8_weigh(const sn_coded *from, double weight, double *sums)
{
    weigh(from, from->n_blocks, weight, sums, q8_unpack);
}

static sn_verdict q8_check(const sn_coded *from)
{
    uint8_t found = 0;
    for (size_t i = 0; i < from->n_blocks * SN_Q8_CODE_BYTES; i++) {
        found |= from->codes[i] == SN_INVALID_Q8_BYTE;
    }
    return found ? SN_INVALID_CODE : SN_VALID;
}

/* Q4B64 */

static size_t q4_encode(const sn_values *from, uint8_t *scales, uint8_t *codes)
{
    for (size_t b = 0; b < from->n_blocks; b++) {
        const sn_block block = block_load(from, b);
        const uint32_t amax_bits = amax_bits_of(&block);
        if (amax_bits >= SN_INFINITY_BITS) {
            return b;
        }
        const uint32_t scale_bits = sn_scale_bits(amax_bits, &sn_q4_format);
        const float inverse_scale = sn_inverse_scale(scale_bits);
        sn_scale_store(scales, b, scale_bits);
        for (size_t t = 0; t < SN_Q4_CODE_BYTES; t++) {
            const int32_t low = sn_code_of(block.elems[t], inverse_scale) + SN_Q4_OFFSET;
            const int32_t high = sn_code_of(block.elems[t + 32], inverse_scale) + SN_Q4_OFFSET;
            codes[b * SN_Q4_CODE_BYTES + t] = (uint8_t)(low | high << 4);
        }
    }
    return from->n_blocks;
}

SN_INLINE void q4_unpack(const sn_coded *from, size_t b, sn_block *block)
{
    const float scale = sn_scale_load(from->scales, b);
    for (size_t t = 0; t < SN_Q4_CODE_BYTES; t++) {
        const uint8_t pair = from->codes[b * SN_Q4_CODE_BYTES + t];
        block->elems[t] = (float)((pair & 0x0F) - SN_Q4_OFFSET) * scale;
        block->elems[t + 32] = (float)((pair >> 4) - SN_Q4_OFFSET) * scale;
    }
}

static void q4_decode(const sn_coded *from, uint8_t *out)
{
    decode(from, from->n_blocks, out, q4_unpack);
}

static void q4_decode_measured(const sn_coded *from, uint8_t *out, sn_lanes *lanes)
{
    decode_measured(from, from->n_blocks, out, lanes, q4_unpack);
}

static void q4_merge(const sn_coded *from, uint8_t *target, float own_weight, float peer_weight)
{
    merge(from, from->n_blocks, target, own_weight, peer_weight, q4_unpack);
}

static void q4_weigh(const sn_coded *from, double weight, double *sums)
{
    weigh(from, from->n_blocks, weight, sums, q4_unpack);
}

/* E3M0 has no nibble of 0 either. */
static sn_verdict q4_check(const sn_coded *from)
{
    uint8_t found = 0;
    for (size_t i = 0; i < from->n_blocks * from->format->block_code_bytes; i++) {
        found |= ((from->codes[i] & 0x0F) == 0) | ((from->codes[i] >> 4) == 0);
    }
    return found ? SN_INVALID_CODE : SN_VALID;
}

/* E3M0 */

static uint8_t e3m0_nibble(float value, float inverse_scale)
{
    const uint32_t bits = sn_bits_from_float(value * inverse_scale);
    const int32_t exponent = (int32_t)((bits & SN_ABS_MASK) >> SN_EXPONENT_SHIFT);
    const int32_t level = exponent > SN_EXPONENT_BIAS ? exponent - SN_EXPONENT_BIAS : 0;
    const int is_negative = bits >> 31 != 0 && level != 0;
    return (uint8_t)(is_negative ? level : level | SN_E3M0_POSITIVE);
}

static float e3m0_value(uint8_t nibble, float scale)
{
    static const float levels[SN_E3M0_LEVELS + 1] = {0.0f,     0x1p-6f, 0x1p-5f, 0x1p-4f,
                                                     0x1p-3f, 0x1p-2f, 0x1p-1f, 1.0f};
    const float magnitude = levels[nibble % SN_E3M0_POSITIVE] * scale;
    return nibble >= SN_E3M0_POSITIVE ? magnitude : -magnitude;
}

static size_t e3m0_encode(const sn_values *from, uint8_t *scales, uint8_t *codes)
{
    for (size_t b = 0; b < from->n_blocks; b++) {
        sn_block blocks[SN_E3M0_BLOCKS];
        uint32_t amax_bits = 0;
        for (size_t i = 0; i < SN_E3M0_BLOCKS; i++) {
            blocks[i] = block_load(from, b * SN_E3M0_BLOCKS + i);
            const uint32_t other = amax_bits_of(&blocks[i]);
            amax_bits = other > amax_bits ? other : amax_bits;
        }
        if (amax_bits >= SN_INFINITY_BITS) {
            return b;
        }
        const uint32_t scale_bits = sn_e3m0_scale_bits(amax_bits);
        const float inverse_scale = sn_e3m0_inverse_scale(scale_bits);
        memcpy(scales + b * sizeof scale_bits, &scale_bits, sizeof scale_bits);
        for (size_t i = 0; i < SN_E3M0_BLOCKS; i++) {
            uint8_t *to = codes + (b * SN_E3M0_BLOCKS + i) * SN_Q4_CODE_BYTES;
            for (size_t t = 0; t < SN_Q4_CODE_BYTES; t++) {
                const uint8_t low = e3m0_nibble(blocks[i].elems[t], inverse_scale);
                const uint8_t high = e3m0_nibble(blocks[i].elems[t + 32], inverse_scale);
                to[t] = (uint8_t)(low | high << 4);
            }
        }
    }
    return from->n_blocks;
}

SN_INLINE void e3m0_unpack(const sn_coded *from, size_t b, sn_block *block)
{
    const float scale = sn_e3m0_scale_load(from->scales, b);
    for (size_t t = 0; t < SN_Q4_CODE_BYTES; t++) {
        const uint8_t pair = from->codes[b * SN_Q4_CODE_BYTES + t];
        block->elems[t] = e3m0_value(pair & 0x0F, scale);
        block->elems[t + 32] = e3m0_value(pair >> 4, scale);
    }
}

static void e3m0_decode(const sn_coded *from, uint8_t *out)
{
    decode(from, from->n_blocks * SN_E3M0_BLOCKS, out, e3m0_unpack);
}

static void e3m0_decode_measured(const sn_coded *from, uint8_t *out, sn_lanes *lanes)
{
    decode_measured(from, from->n_blocks * SN_E3M0_BLOCKS, out, lanes, e3m0_unpack);
}

static void e3m0_merge(const sn_coded *from, uint8_t *target, float own_weight, float peer_weight)
{
    merge(from, from->n_blocks * SN_E3M0_BLOCKS, target, own_weight, peer_weight, e3m0_unpack);
}

static void e3m0_weigh(const sn_coded *from, double weight, double *sums)
{
    weigh(from, from->n_blocks * SN_E3M0_BLOCKS, weight, sums, e3m0_unpack);
}

/* Q2B64 */

SN_INLINE void q2_unpack(const sn_coded *from, size_t b, sn_block *block)
{
    const sn_q2_block coded = q2_load(from, b);
    for (size_t i = 0; i < SN_BLOCK_ELEMS; i++) {
        const float magnitude = coded.sizes >> i & 1 ? coded.large : coded.small;
        block->elems[i] = coded.signs >> i & 1 ? -magnitude : magnitude;
    }
}

static void q2_decode(const sn_coded *from, uint8_t *out)
{
    decode(from, from->n_blocks, out, q2_unpack);
}

static void q2_decode_measured(const sn_coded *from, uint8_t *out, sn_lanes *lanes)
{
    decode_measured(from, from->n_blocks, out, lanes, q2_unpack);
}

static void q2_merge(const sn_coded *from, uint8_t *target, float own_weight, float peer_weight)
{
    merge(from, from->n_blocks, target, own_weight, peer_weight, q2_unpack);
}

static void q2_weigh(const sn_coded *from, double weight, double *sums)
{
    weigh(from, from->n_blocks, weight, sums, q2_unpack);
}

/* T3B320 */

static uint32_t t3_magnitude_bits(float value)
{
    const uint32_t magnitude = sn_bits_from_float(value) & SN_ABS_MASK;
    return magnitude >= SN_SIGN_BITS_MIN ? magnitude : 0;
}

static double t3_square_sum(const sn_block blocks[SN_T3_TRITS])
{
    sn_lanes lanes = {0};
    for (size_t i = 0; i < SN_T3_TRITS; i++) {
        float counted[SN_BLOCK_ELEMS];
        for (size_t t = 0; t < SN_BLOCK_ELEMS; t++) {
            counted[t] = sn_float_from_bits(t3_magnitude_bits(blocks[i].elems[t]));
        }
        sn_measure_ref((const uint8_t *)counted, SN_BLOCK_BYTES / SN_ROW_BYTES, &lanes);
    }
    return sn_lanes_sum(&lanes).square_sum;
}

static uint8_t t3_trit_of(float value, uint32_t threshold_bits)
{
    const uint8_t is_negative = (uint8_t)(sn_bits_from_float(value) >> 31);
    return t3_magnitude_bits(value) > threshold_bits ? (uint8_t)(1 + is_negative) : 0;
}

static size_t t3_encode(const sn_values *from, uint8_t *scales, uint8_t *codes)
{
    for (size_t b = 0; b < from->n_blocks; b++) {
        sn_block blocks[SN_T3_TRITS];
        for (size_t i = 0; i < SN_T3_TRITS; i++) {
            blocks[i] = block_load(from, b * SN_T3_TRITS + i);
        }
        const double square_sum = t3_square_sum(blocks);
        if (sn_t3_is_refused(square_sum)) {
            return b;
        }
        const uint32_t scale_bits = sn_t3_scale_bits(square_sum);
        const uint32_t threshold_bits = sn_t3_threshold_bits(scale_bits);
        uint8_t trits[SN_T3_TRITS][SN_BLOCK_ELEMS];
        for (size_t i = 0; i < SN_T3_TRITS; i++) {
            for (size_t t = 0; t < SN_BLOCK_ELEMS; t++) {
                trits[i][t] = t3_trit_of(blocks[i].elems[t], threshold_bits);
            }
        }
        sn_scale_store(scales, b, scale_bits);
        sn_t3_pack(trits, codes + b * SN_T3_CODE_BYTES);
    }
    return from->n_blocks;
}

SN_INLINE void t3_unpack(const sn_coded *from, size_t b, sn_block *block)
{
    static const float levels[3] = {0.0f, 1.0f, -1.0f};
    const size_t coded = b / SN_T3_TRITS;
    const float scale = sn_scale_load(from->scales, coded);
    for (size_t t = 0; t < SN_BLOCK_ELEMS; t++) {
        const uint8_t byte = from->codes[coded * SN_T3_CODE_BYTES + t];
        block->elems[t] = levels[sn_t3_trit(byte, b % SN_T3_TRITS)] * scale;
    }
}

static void t3_decode(const sn_coded *from, uint8_t *out)
{
    decode(from, from->n_blocks * SN_T3_TRITS, out, t3_unpack);
}

static void t3_decode_measured(const sn_coded *from, uint8_t *out, sn_lanes *lanes)
{
    decode_measured(from, from->n_blocks * SN_T3_TRITS, out, lanes, t3_unpack);
}

static void t3_merge(const sn_coded *from, uint8_t *target, float own_weight, float peer_weight)
{
    merge(from, from->n_blocks * SN_T3_TRITS, target, own_weight, peer_weight, t3_unpack);
}

static void t3_weigh(const sn_coded *from, double weight, double *sums)
{
    weigh(from, from->n_blocks * SN_T3_TRITS, weight, sums, t3_unpack);
}

static sn_verdict t3_check(const sn_coded *from)
{
    return sn_t3_has_invalid_code(from) ? SN_INVALID_CODE : SN_VALID;
}

SN_DEFINE_KERNELS(ref);
