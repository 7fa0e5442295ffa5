/* The codecs in portable C: the specification that every other instruction set must equal.
 *
 * Always compiled, so it can always be forced (SWARMNODE_NATIVE=ref) and compared with. It is
 * written to be read; compilers vectorise decode and merge well, encode not at all.
 */
#include "sn_kernels.h"

static uint32_t amax_bits_of(const float block[SN_BLOCK_ELEMS])
{
    /* Ordering magnitudes as integers orders NaN above infinity above every number. */
    uint32_t amax_bits = 0;
    for (size_t i = 0; i < SN_BLOCK_ELEMS; i++) {
        const uint32_t magnitude = sn_bits_from_float(block[i]) & SN_ABS_MASK;
        amax_bits = magnitude > amax_bits ? magnitude : amax_bits;
    }
    return amax_bits;
}

/* Halves round away from zero: add a half with the sign of t, then truncate. */
static int32_t code_of(float value, float inverse_scale)
{
    const float t = value * inverse_scale;
    return (int32_t)(t + (t < 0.0f ? -0.5f : 0.5f));
}

static float merged(float own, float decoded, float own_weight, float peer_weight)
{
    const float own_part = own_weight * own;
    const float peer_part = peer_weight * decoded;
    return own_part + peer_part;
}

static size_t q8_encode(const uint8_t *values, uint8_t *scales, uint8_t *codes, size_t n_blocks)
{
    for (size_t b = 0; b < n_blocks; b++) {
        float block[SN_BLOCK_ELEMS];
        memcpy(block, values + b * SN_BLOCK_BYTES, sizeof block);
        const uint32_t amax_bits = amax_bits_of(block);
        if (amax_bits >= SN_INFINITY_BITS) {
            return b;
        }
        const uint32_t scale_bits = sn_scale_bits(amax_bits, &sn_q8_format);
        const float inverse_scale = sn_inverse_scale(scale_bits);
        sn_scale_store(scales, b, scale_bits);
        for (size_t i = 0; i < SN_BLOCK_ELEMS; i++) {
            codes[b * SN_Q8_CODE_BYTES + i] = (uint8_t)code_of(block[i], inverse_scale);
        }
    }
    return n_blocks;
}

static float q8_value(uint8_t code, float scale)
{
    return (float)(int8_t)code * scale;
}

static void q8_decode(const uint8_t *scales, const uint8_t *codes, uint8_t *out, size_t n_blocks)
{
    for (size_t b = 0; b < n_blocks; b++) {
        const float scale = sn_scale_load(scales, b);
        float block[SN_BLOCK_ELEMS];
        for (size_t i = 0; i < SN_BLOCK_ELEMS; i++) {
            block[i] = q8_value(codes[b * SN_Q8_CODE_BYTES + i], scale);
        }
        memcpy(out + b * SN_BLOCK_BYTES, block, sizeof block);
    }
}

static void q8_merge(const uint8_t *scales, const uint8_t *codes, uint8_t *target, size_t n_blocks,
                     float own_weight, float peer_weight)
{
    for (size_t b = 0; b < n_blocks; b++) {
        const float scale = sn_scale_load(scales, b);
        float block[SN_BLOCK_ELEMS];
        memcpy(block, target + b * SN_BLOCK_BYTES, sizeof block);
        for (size_t i = 0; i < SN_BLOCK_ELEMS; i++) {
            const float decoded = q8_value(codes[b * SN_Q8_CODE_BYTES + i], scale);
            block[i] = merged(block[i], decoded, own_weight, peer_weight);
        }
        memcpy(target + b * SN_BLOCK_BYTES, block, sizeof block);
    }
}

static int q8_has_invalid_code(const uint8_t *codes, size_t n_blocks)
{
    uint8_t found = 0;
    for (size_t i = 0; i < n_blocks * SN_Q8_CODE_BYTES; i++) {
        found |= codes[i] == SN_INVALID_Q8_BYTE;
    }
    return found;
}

const sn_kernels sn_q8_ref = {q8_encode, q8_decode, q8_merge, q8_has_invalid_code};

static size_t q4_encode(const uint8_t *values, uint8_t *scales, uint8_t *codes, size_t n_blocks)
{
    for (size_t b = 0; b < n_blocks; b++) {
        float block[SN_BLOCK_ELEMS];
        memcpy(block, values + b * SN_BLOCK_BYTES, sizeof block);
        const uint32_t amax_bits = amax_bits_of(block);
        if (amax_bits >= SN_INFINITY_BITS) {
            return b;
        }
        const uint32_t scale_bits = sn_scale_bits(amax_bits, &sn_q4_format);
        const float inverse_scale = sn_inverse_scale(scale_bits);
        sn_scale_store(scales, b, scale_bits);
        for (size_t t = 0; t < SN_Q4_CODE_BYTES; t++) {
            const int32_t low = code_of(block[t], inverse_scale) + SN_Q4_OFFSET;
            const int32_t high = code_of(block[t + 32], inverse_scale) + SN_Q4_OFFSET;
            codes[b * SN_Q4_CODE_BYTES + t] = (uint8_t)(low | high << 4);
        }
    }
    return n_blocks;
}

static float q4_value(uint8_t nibble, float scale)
{
    return (float)(nibble - SN_Q4_OFFSET) * scale;
}

static void q4_decode(const uint8_t *scales, const uint8_t *codes, uint8_t *out, size_t n_blocks)
{
    for (size_t b = 0; b < n_blocks; b++) {
        const float scale = sn_scale_load(scales, b);
        float block[SN_BLOCK_ELEMS];
        for (size_t t = 0; t < SN_Q4_CODE_BYTES; t++) {
            const uint8_t pair = codes[b * SN_Q4_CODE_BYTES + t];
            block[t] = q4_value(pair & 0x0F, scale);
            block[t + 32] = q4_value(pair >> 4, scale);
        }
        memcpy(out + b * SN_BLOCK_BYTES, block, sizeof block);
    }
}

static void q4_merge(const uint8_t *scales, const uint8_t *codes, uint8_t *target, size_t n_blocks,
                     float own_weight, float peer_weight)
{
    for (size_t b = 0; b < n_blocks; b++) {
        const float scale = sn_scale_load(scales, b);
        float block[SN_BLOCK_ELEMS];
        memcpy(block, target + b * SN_BLOCK_BYTES, sizeof block);
        for (size_t t = 0; t < SN_Q4_CODE_BYTES; t++) {
            const uint8_t pair = codes[b * SN_Q4_CODE_BYTES + t];
            const float low = q4_value(pair & 0x0F, scale);
            const float high = q4_value(pair >> 4, scale);
            block[t] = merged(block[t], low, own_weight, peer_weight);
            block[t + 32] = merged(block[t + 32], high, own_weight, peer_weight);
        }
        memcpy(target + b * SN_BLOCK_BYTES, block, sizeof block);
    }
}

static int q4_has_invalid_code(const uint8_t *codes, size_t n_blocks)
{
    uint8_t found = 0;
    for (size_t i = 0; i < n_blocks * SN_Q4_CODE_BYTES; i++) {
        found |= ((codes[i] & 0x0F) == 0) | ((codes[i] >> 4) == 0);
    }
    return found;
}

const sn_kernels sn_q4_ref = {q4_encode, q4_decode, q4_merge, q4_has_invalid_code};
