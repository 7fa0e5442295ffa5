/* The loops over blocks of Q8B64, Q4B64 and E3M0, which differ only in how a block is packed and
 * unpacked; those that decode are Q2B64's and T3B320's, too. Included at the end of each vector unit's
 * file, after sn_t3.h; it defines before:
 *
 *     SN_TARGET, sn_part (a register of floats), SN_PARTS, sn_block { sn_part part[SN_PARTS] }
 *     part_load, part_store, part_stream (past the cache), part_set, part_add, part_sub, part_mul
 *     part_saturated, amax_bits_of
 *     sn_gauge (sn_lanes in registers), gauge_load, gauge_take (the i-th part of a block), gauge_store
 *     q8_quantize, q4_quantize, e3m0_quantize, q8_unpack, q4_unpack, e3m0_unpack, q2_unpack, t3_unpack
 *     part_counted (0 where a magnitude is below SN_SIGN_BITS_MIN), trits_of (a block)
 *     part_weigh (adds a part times a weight to as many float64, a product and a sum, each rounded)
 *     q8_check, q4_check
 */
#ifndef SN_LOOPS_H
#define SN_LOOPS_H

#include "sn_kernels.h"

typedef void (*sn_quantize)(const sn_block *block, sn_part inverse_scale, uint8_t *codes);
typedef sn_block (*sn_unpack)(const sn_coded *from, size_t b);

enum { SN_PART_BYTES = SN_BLOCK_BYTES / SN_PARTS, SN_PART_ELEMS = SN_BLOCK_ELEMS / SN_PARTS };

/* The b-th 64 values, or their difference to the reference. */
SN_TARGET SN_INLINE sn_block block_given(const sn_values *from, const uint8_t *reference, size_t b)
{
    sn_block block = block_load(from->values + b * SN_BLOCK_BYTES);
    if (reference != NULL) {
        sn_prefetch(reference + b * SN_BLOCK_BYTES, SN_BLOCK_BYTES);
        const sn_block base = block_load(reference + b * SN_BLOCK_BYTES);
        for (size_t i = 0; i < SN_PARTS; i++) {
            block.part[i] = part_sub(block.part[i], base.part[i]);
        }
    }
    return block;
}

SN_TARGET SN_INLINE sn_block block_decoded(const sn_coded *from, const uint8_t *reference,
                                           size_t b, sn_unpack unpack)
{
    sn_block block = unpack(from, b);
    if (reference != NULL) {
        sn_prefetch(reference + b * SN_BLOCK_BYTES, SN_BLOCK_BYTES);
        const sn_block base = block_load(reference + b * SN_BLOCK_BYTES);
        for (size_t i = 0; i < SN_PARTS; i++) {
            block.part[i] = part_saturated(part_add(base.part[i], block.part[i]));
        }
    }
    return block;
}

SN_TARGET SN_INLINE size_t encode_from(const sn_values *from, const uint8_t *reference,
                                       uint8_t *scales, uint8_t *codes, const sn_format *format,
                                       sn_quantize quantize)
{
    const size_t n_shared = format->block_elems / SN_BLOCK_ELEMS; /* 64s that share a scale */
    const size_t n_blocks = from->n_blocks * n_shared;
    for (size_t b = 0; b < n_blocks; b += SN_GROUP_BLOCKS) {
        const size_t count = n_blocks - b < SN_GROUP_BLOCKS ? n_blocks - b : SN_GROUP_BLOCKS;
        sn_group group = {0};
        for (size_t i = 0; i < count; i++) {
            sn_prefetch(from->values + (b + i) * SN_BLOCK_BYTES, SN_BLOCK_BYTES);
            const sn_block block = block_given(from, reference, b + i);
            group.amax_bits[i] = amax_bits_of(&block);
        }
        const size_t refused = sn_group_refused(&group, count);
        if (refused < count) {
            return (b + refused) / n_shared;
        }
        sn_group_scale(&group, count, format, scales + b / n_shared * format->scale_bytes);
        for (size_t i = 0; i < count; i++) {
            const sn_block block = block_given(from, reference, b + i);
            quantize(&block, part_set(group.inverse_scales[i]),
                     codes + (b + i) * (format->block_code_bytes / n_shared));
        }
    }
    return from->n_blocks;
}

/* Each loop twice, so that the one without a reference does not ask for it at every block. */
SN_TARGET SN_INLINE size_t encode(const sn_values *from, uint8_t *scales, uint8_t *codes,
                                  const sn_format *format, sn_quantize quantize)
{
    if (from->reference == NULL) {
        return encode_from(from, NULL, scales, codes, format, quantize);
    }
    return encode_from(from, from->reference, scales, codes, format, quantize);
}

/* Writes all blocks; with a gauge, it takes them in. */
SN_TARGET SN_INLINE void decode_blocks(const sn_coded *from, const uint8_t *reference, uint8_t *out,
                                       size_t n_blocks, int is_streamed, sn_gauge *gauge,
                                       sn_unpack unpack)
{
    for (size_t b = 0; b < n_blocks; b++) {
        const sn_block block = block_decoded(from, reference, b, unpack);
        for (size_t i = 0; i < SN_PARTS; i++) {
            uint8_t *at = out + b * SN_BLOCK_BYTES + i * SN_PART_BYTES;
            if (gauge != NULL) {
                gauge_take(gauge, i, block.part[i]);
            }
            if (is_streamed) {
                part_stream(at, block.part[i]);
            } else {
                part_store(at, block.part[i]);
            }
        }
    }
}

SN_TARGET SN_INLINE void decode_from(const sn_coded *from, const uint8_t *reference, uint8_t *out,
                                     sn_gauge *gauge, const sn_format *format, sn_unpack unpack)
{
    const size_t n_blocks = from->n_blocks * (format->block_elems / SN_BLOCK_ELEMS);
    if (n_blocks >= SN_STREAM_BLOCKS && (uintptr_t)out % SN_PART_BYTES == 0) {
        decode_blocks(from, reference, out, n_blocks, 1, gauge, unpack);
        __sync_synchronize(); /* streamed stores are not ordered otherwise */
    } else {
        decode_blocks(from, reference, out, n_blocks, 0, gauge, unpack);
    }
}

SN_TARGET SN_INLINE void decode_to(const sn_coded *from, uint8_t *out, sn_gauge *gauge,
                                   const sn_format *format, sn_unpack unpack)
{
    if (from->reference == NULL) {
        decode_from(from, NULL, out, gauge, format, unpack);
    } else {
        decode_from(from, from->reference, out, gauge, format, unpack);
    }
}

SN_TARGET SN_INLINE void decode(const sn_coded *from, uint8_t *out, const sn_format *format,
                                sn_unpack unpack)
{
    decode_to(from, out, NULL, format, unpack);
}

/* The gauge is a variable of its own, so that it stays in registers. */
SN_TARGET SN_INLINE void decode_measured(const sn_coded *from, uint8_t *out, sn_lanes *lanes,
                                         const sn_format *format, sn_unpack unpack)
{
    sn_gauge gauge = gauge_load(lanes);
    decode_to(from, out, &gauge, format, unpack);
    gauge_store(&gauge, lanes);
}

SN_TARGET SN_INLINE void merge_from(const sn_coded *from, const uint8_t *reference,
                                    uint8_t *target, float own_weight, float peer_weight,
                                    const sn_format *format, sn_unpack unpack)
{
    const size_t n_blocks = from->n_blocks * (format->block_elems / SN_BLOCK_ELEMS);
    const sn_part own_weights = part_set(own_weight);
    const sn_part peer_weights = part_set(peer_weight);
    for (size_t b = 0; b < n_blocks; b++) {
        uint8_t *at = target + b * SN_BLOCK_BYTES;
        sn_prefetch(at, SN_BLOCK_BYTES);
        const sn_block peer = block_decoded(from, reference, b, unpack);
        for (size_t i = 0; i < SN_PARTS; i++) {
            /* Products and a sum, never fused: each step is rounded. */
            const sn_part own_part = part_mul(own_weights, part_load(at + i * SN_PART_BYTES));
            const sn_part peer_part = part_mul(peer_weights, peer.part[i]);
            part_store(at + i * SN_PART_BYTES, part_add(own_part, peer_part));
        }
    }
}

SN_TARGET SN_INLINE void merge(const sn_coded *from, uint8_t *target, float own_weight,
                               float peer_weight, const sn_format *format, sn_unpack unpack)
{
    if (from->reference == NULL) {
        merge_from(from, NULL, target, own_weight, peer_weight, format, unpack);
    } else {
        merge_from(from, from->reference, target, own_weight, peer_weight, format, unpack);
    }
}

SN_TARGET SN_INLINE void weigh(const sn_coded *from, double weight, double *sums,
                               const sn_format *format, sn_unpack unpack)
{
    const size_t n_blocks = from->n_blocks * (format->block_elems / SN_BLOCK_ELEMS);
    for (size_t b = 0; b < n_blocks; b++) {
        const sn_block block = unpack(from, b);
        for (size_t i = 0; i < SN_PARTS; i++) {
            part_weigh(block.part[i], weight, sums + b * SN_BLOCK_ELEMS + i * SN_PART_ELEMS);
        }
    }
}

SN_TARGET static size_t q8_encode(const sn_values *from, uint8_t *scales, uint8_t *codes)
{
    return encode(from, scales, codes, &sn_q8_format, q8_quantize);
}

SN_TARGET static void q8_decode(const sn_coded *from, uint8_t *out)
{
    decode(from, out, &sn_q8_format, q8_unpack);
}

SN_TARGET static void q8_decode_measured(const sn_coded *from, uint8_t *out, sn_lanes *lanes)
{
    decode_measured(from, out, lanes, &sn_q8_format, q8_unpack);
}

SN_TARGET static void q8_merge(const sn_coded *from, uint8_t *target, float own_weight,
                               float peer_weight)
{
    merge(from, target, own_weight, peer_weight, &sn_q8_format, q8_unpack);
}

SN_TARGET static void q8_weigh(const sn_coded *from, double weight, double *sums)
{
    weigh(from, weight, sums, &sn_q8_format, q8_unpack);
}

SN_TARGET static size_t q4_encode(const sn_values *from, uint8_t *scales, uint8_t *codes)
{
    return encode(from, scales, codes, &sn_q4_format, q4_quantize);
}

SN_TARGET static void q4_decode(const sn_coded *from, uint8_t *out)
{
    decode(from, out, &sn_q4_format, q4_unpack);
}

SN_TARGET static void q4_decode_measured(const sn_coded *from, uint8_t *out, sn_lanes *lanes)
{
    decode_measured(from, out, lanes, &sn_q4_format, q4_unpack);
}

SN_TARGET static void q4_merge(const sn_coded *from, uint8_t *target, float own_weight,
                               float peer_weight)
{
    merge(from, target, own_weight, peer_weight, &sn_q4_format, q4_unpack);
}

SN_TARGET static void q4_weigh(const sn_coded *from, double weight, double *sums)
{
    weigh(from, weight, sums, &sn_q4_format, q4_unpack);
}

SN_TARGET static size_t e3m0_encode(const sn_values *from, uint8_t *scales, uint8_t *codes)
{
    return encode(from, scales, codes, &sn_e3m0_format, e3m0_quantize);
}

SN_TARGET static void e3m0_decode(const sn_coded *from, uint8_t *out)
{
    decode(from, out, &sn_e3m0_format, e3m0_unpack);
}

SN_TARGET static void e3m0_decode_measured(const sn_coded *from, uint8_t *out, sn_lanes *lanes)
{
    decode_measured(from, out, lanes, &sn_e3m0_format, e3m0_unpack);
}

SN_TARGET static void e3m0_merge(const sn_coded *from, uint8_t *target, float own_weight,
                                 float peer_weight)
{
    merge(from, target, own_weight, peer_weight, &sn_e3m0_format, e3m0_unpack);
}

SN_TARGET static void e3m0_weigh(const sn_coded *from, double weight, double *sums)
{
    weigh(from, weight, sums, &sn_e3m0_format, e3m0_unpack);
}

SN_TARGET static void q2_decode(const sn_coded *from, uint8_t *out)
{
    decode(from, out, &sn_q2_format, q2_unpack);
}

SN_TARGET static void q2_decode_measured(const sn_coded *from, uint8_t *out, sn_lanes *lanes)
{
    decode_measured(from, out, lanes, &sn_q2_format, q2_unpack);
}

SN_TARGET static void q2_merge(const sn_coded *from, uint8_t *target, float own_weight,
                               float peer_weight)
{
    merge(from, target, own_weight, peer_weight, &sn_q2_format, q2_unpack);
}

SN_TARGET static void q2_weigh(const sn_coded *from, double weight, double *sums)
{
    weigh(from, weight, sums, &sn_q2_format, q2_unpack);
}

/* The square sum of the b-th 320 values, or of their difference to the reference. */
SN_TARGET SN_INLINE double t3_square_sum(const sn_values *from, const uint8_t *reference, size_t b)
{
    sn_lanes lanes = {0};
    sn_gauge gauge = gauge_load(&lanes);
    for (size_t i = 0; i < SN_T3_TRITS; i++) {
        sn_prefetch(from->values + (b * SN_T3_TRITS + i) * SN_BLOCK_BYTES, SN_BLOCK_BYTES);
        const sn_block block = block_given(from, reference, b * SN_T3_TRITS + i);
        for (size_t p = 0; p < SN_PARTS; p++) {
            gauge_take(&gauge, p, part_counted(block.part[p]));
        }
    }
    gauge_store(&gauge, &lanes);
    return sn_lanes_sum(&lanes).square_sum;
}

SN_TARGET SN_INLINE size_t t3_encode_from(const sn_values *from, const uint8_t *reference,
                                          uint8_t *scales, uint8_t *codes)
{
    for (size_t b = 0; b < from->n_blocks; b++) {
        const double square_sum = t3_square_sum(from, reference, b);
        if (sn_t3_is_refused(square_sum)) {
            return b;
        }
        const uint32_t scale_bits = sn_t3_scale_bits(square_sum);
        const uint32_t threshold_bits = sn_t3_threshold_bits(scale_bits);
        uint8_t trits[SN_T3_TRITS][SN_BLOCK_ELEMS];
        for (size_t i = 0; i < SN_T3_TRITS; i++) {
            const sn_block block = block_given(from, reference, b * SN_T3_TRITS + i);
            trits_of(&block, threshold_bits, trits[i]);
        }
        sn_scale_store(scales, b, scale_bits);
        sn_t3_pack(trits, codes + b * SN_T3_CODE_BYTES);
    }
    return from->n_blocks;
}

SN_TARGET static size_t t3_encode(const sn_values *from, uint8_t *scales, uint8_t *codes)
{
    if (from->reference == NULL) {
        return t3_encode_from(from, NULL, scales, codes);
    }
    return t3_encode_from(from, from->reference, scales, codes);
}

SN_TARGET static void t3_decode(const sn_coded *from, uint8_t *out)
{
    decode(from, out, &sn_t3_format, t3_unpack);
}

SN_TARGET static void t3_decode_measured(const sn_coded *from, uint8_t *out, sn_lanes *lanes)
{
    decode_measured(from, out, lanes, &sn_t3_format, t3_unpack);
}

SN_TARGET static void t3_merge(const sn_coded *from, uint8_t *target, float own_weight,
                               float peer_weight)
{
    merge(from, target, own_weight, peer_weight, &sn_t3_format, t3_unpack);
}

SN_TARGET static void t3_weigh(const sn_coded *from, double weight, double *sums)
{
    weigh(from, weight, sums, &sn_t3_format, t3_unpack);
}

SN_TARGET static sn_verdict t3_check(const sn_coded *from)
{
    return sn_t3_has_invalid_code(from) ? SN_INVALID_CODE : SN_VALID;
}

#endif
