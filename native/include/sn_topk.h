/* TK4: the largest elements of a tile of 4096 in four bits each, and where they are. Included by
 * each instruction set's file after SN_TARGET is defined; compilers vectorise the passes over a
 * tile. Codes of a tile that keeps k: positions of 12 bits, two in three bytes, then k nibbles. */
#ifndef SN_TOPK_H
#define SN_TOPK_H

#include "sn_kernels.h"

enum { SN_TOPK_UNROLLED = 8 };

/* What may be kept: those at least as large as some bound, in ascending order of position. */
typedef struct {
    size_t count;
    uint32_t magnitudes[SN_TILE_ELEMS];
    uint16_t positions[SN_TILE_ELEMS + SN_TOPK_UNROLLED];
} topk_candidates;

SN_TARGET SN_INLINE size_t topk_count(const uint32_t *magnitudes, size_t count, uint32_t bound)
{
    /* Magnitudes are below 2^31, and every vector unit compares signed integers. */
    const int32_t signed_bound = (int32_t)bound;
    uint32_t found = 0;
    for (size_t i = 0; i < count; i++) {
        found += (int32_t)magnitudes[i] >= signed_bound;
    }
    return found;
}

/* Writes the positions of the bits that are set, `base` added, and returns how many. Most words
 * of 64 have few: the first ones are written without asking, as a branch that no CPU can predict
 * costs more, and the count then says which of them hold. (Source: Langdale and Lemire, "Parsing
 * gigabytes of JSON per second", section 3.2.) */
SN_TARGET SN_INLINE size_t topk_positions(uint64_t bits, size_t base, uint16_t *positions)
{
    const size_t count = (size_t)__builtin_popcountll(bits);
    for (size_t i = 0; i < SN_TOPK_UNROLLED; i++) {
        positions[i] = (uint16_t)(base + (size_t)__builtin_ctzll(bits | 1ull << 63));
        bits &= bits - 1;
    }
    for (size_t i = SN_TOPK_UNROLLED; i < count; i++) {
        positions[i] = (uint16_t)(base + (size_t)__builtin_ctzll(bits));
        bits &= bits - 1;
    }
    return count;
}

/* Collects at least n_kept candidates: those within one binary exponent of the largest, or two,
 * four, and so on. That leaves a few hundred of a tile to search among. */
SN_TARGET SN_INLINE void topk_collect(const uint32_t *magnitudes, uint32_t amax_bits,
                                      size_t n_kept, topk_candidates *candidates)
{
    uint32_t bound = amax_bits;
    for (uint32_t step = 1u << SN_EXPONENT_SHIFT; bound > 0; step *= 2) {
        bound = amax_bits > step ? amax_bits - step : 0;
        if (topk_count(magnitudes, SN_TILE_ELEMS, bound) >= n_kept) {
            break;
        }
    }
    size_t count = 0;
    for (size_t base = 0; base < SN_TILE_ELEMS; base += 64) {
        uint8_t flags[64];
        for (size_t i = 0; i < 64; i++) {
            flags[i] = (int32_t)magnitudes[base + i] >= (int32_t)bound;
        }
        count += topk_positions(sn_bits_packed(flags), base, candidates->positions + count);
    }
    for (size_t i = 0; i < count; i++) {
        candidates->magnitudes[i] = magnitudes[candidates->positions[i]];
    }
    candidates->count = count;
}

/* The magnitude of the n_kept-th largest, or a lower one that no more than n_kept reach. */
SN_TARGET SN_INLINE uint32_t topk_threshold(const topk_candidates *candidates, uint32_t amax_bits,
                                            size_t n_kept)
{
    uint32_t low = 0; /* at least n_kept reach it */
    uint32_t high = amax_bits + 1; /* fewer than n_kept reach it */
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        const size_t count = topk_count(candidates->magnitudes, candidates->count, middle);
        if (count == n_kept) {
            return middle;
        }
        if (count > n_kept) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Writes the positions of the n_kept largest in ascending order; of equals, the first ones. One
 * more is written than kept, as the loop writes before it asks. */
SN_TARGET SN_INLINE void topk_select(const uint32_t *magnitudes, uint32_t amax_bits,
                                     size_t n_kept, uint16_t positions[SN_KEPT_MAX + 1])
{
    topk_candidates candidates;
    topk_collect(magnitudes, amax_bits, n_kept, &candidates);
    const uint32_t threshold = topk_threshold(&candidates, amax_bits, n_kept);
    size_t ties_left =
        n_kept - topk_count(candidates.magnitudes, candidates.count, threshold + 1);
    size_t n_selected = 0;
    for (size_t i = 0; i < candidates.count; i++) {
        const size_t is_larger = candidates.magnitudes[i] > threshold;
        const size_t is_tie = candidates.magnitudes[i] == threshold && ties_left > 0;
        positions[n_selected] = candidates.positions[i];
        n_selected += is_larger | is_tie;
        ties_left -= is_tie;
    }
}

/* Writes the magnitudes of a tile; returns the largest. */
SN_TARGET SN_INLINE uint32_t topk_magnitudes(const uint8_t *values,
                                             uint32_t magnitudes[SN_TILE_ELEMS])
{
    memcpy(magnitudes, values, SN_BLOCK_BYTES_MAX);
    uint32_t amax_bits = 0;
    for (size_t i = 0; i < SN_TILE_ELEMS; i++) {
        magnitudes[i] &= SN_ABS_MASK;
        amax_bits = magnitudes[i] > amax_bits ? magnitudes[i] : amax_bits;
    }
    return amax_bits;
}

SN_TARGET SN_INLINE void topk_merge_tile(const float tile[SN_TILE_ELEMS], uint8_t *target,
                                         float own_weight, float peer_weight)
{
    for (size_t i = 0; i < SN_TILE_ELEMS; i++) {
        float own;
        memcpy(&own, target + i * sizeof own, sizeof own);
        const float result = sn_merged(own, tile[i], own_weight, peer_weight);
        memcpy(target + i * sizeof own, &result, sizeof result);
    }
}

/* What differs between formats: how what is kept of a tile is written and read. Both are known at
 * each call, so the loops below are compiled once for each format, without a call through them. */
typedef void (*topk_packer)(const uint8_t *values, const uint16_t *positions, float inverse_scale,
                            const sn_format *format, uint8_t *codes);
typedef void (*topk_unpacker)(const sn_coded *from, size_t b, float tile[SN_TILE_ELEMS]);

SN_TARGET SN_INLINE size_t topk_encode(const sn_values *from, const sn_format *scale_format,
                                       topk_packer pack, uint8_t *scales, uint8_t *codes)
{
    const sn_format *format = from->format;
    for (size_t b = 0; b < from->n_blocks; b++) {
        const uint8_t *values = from->values + b * SN_BLOCK_BYTES_MAX;
        uint32_t magnitudes[SN_TILE_ELEMS];
        const uint32_t amax_bits = topk_magnitudes(values, magnitudes);
        if (amax_bits >= SN_INFINITY_BITS) {
            return b;
        }
        uint16_t positions[SN_KEPT_MAX + 1];
        topk_select(magnitudes, amax_bits, format->n_kept, positions);
        const uint32_t scale_bits = sn_scale_bits(amax_bits, scale_format);
        sn_scale_store(scales, b, scale_bits);
        pack(values, positions, sn_inverse_scale(scale_bits), format,
             codes + b * format->block_code_bytes);
    }
    return from->n_blocks;
}

SN_TARGET SN_INLINE void topk_decode(const sn_coded *from, topk_unpacker unpack, uint8_t *out)
{
    for (size_t b = 0; b < from->n_blocks; b++) {
        float tile[SN_TILE_ELEMS];
        unpack(from, b, tile);
        memcpy(out + b * SN_BLOCK_BYTES_MAX, tile, sizeof tile);
    }
}

SN_TARGET SN_INLINE void topk_merge(const sn_coded *from, topk_unpacker unpack, uint8_t *target,
                                    float own_weight, float peer_weight)
{
    for (size_t b = 0; b < from->n_blocks; b++) {
        float tile[SN_TILE_ELEMS];
        unpack(from, b, tile);
        topk_merge_tile(tile, target + b * SN_BLOCK_BYTES_MAX, own_weight, peer_weight);
    }
}

SN_TARGET SN_INLINE void tk4_pack(const uint8_t *values, const uint16_t *positions,
                                  float inverse_scale, const sn_format *format, uint8_t *codes)
{
    const size_t n_kept = format->n_kept;
    uint8_t *pairs = codes + n_kept / 2 * SN_POSITION_PAIR_BYTES;
    int32_t nibbles[SN_KEPT_MAX];
    for (size_t i = 0; i < n_kept; i++) {
        float value;
        memcpy(&value, values + positions[i] * sizeof value, sizeof value);
        nibbles[i] = sn_code_of(value, inverse_scale) + SN_Q4_OFFSET;
    }
    for (size_t i = 0; i < n_kept / 2; i++) {
        const uint32_t pair = (uint32_t)positions[2 * i] | (uint32_t)positions[2 * i + 1] << 12;
        for (size_t byte = 0; byte < SN_POSITION_PAIR_BYTES; byte++) {
            codes[i * SN_POSITION_PAIR_BYTES + byte] = (uint8_t)(pair >> 8 * byte);
        }
        pairs[i] = (uint8_t)(nibbles[i] | nibbles[i + n_kept / 2] << 4);
    }
}

SN_TARGET static size_t tk4_encode(const sn_values *from, uint8_t *scales, uint8_t *codes)
{
    return topk_encode(from, &sn_q4_format, tk4_pack, scales, codes);
}

SN_TARGET SN_INLINE void tk4_unpack(const sn_coded *from, size_t b, float tile[SN_TILE_ELEMS])
{
    const uint8_t *codes = from->codes + b * from->format->block_code_bytes;
    const size_t n_kept = from->format->n_kept;
    const float scale = sn_scale_load(from->scales, b);
    memset(tile, 0, SN_BLOCK_BYTES_MAX);
    for (size_t i = 0; i < n_kept; i++) {
        const int32_t code = sn_tk4_nibble(codes, n_kept, i) - SN_Q4_OFFSET;
        tile[sn_tk4_position(codes, i)] = (float)code * scale;
    }
}

SN_TARGET static void tk4_decode(const sn_coded *from, uint8_t *out)
{
    topk_decode(from, tk4_unpack, out);
}

SN_TARGET static void tk4_merge(const sn_coded *from, uint8_t *target, float own_weight,
                                float peer_weight)
{
    topk_merge(from, tk4_unpack, target, own_weight, peer_weight);
}

/* Nibbles as those of Q4B64; positions must ascend, so that each is named once. */
static sn_verdict tk4_check(const sn_coded *from)
{
    const size_t n_kept = from->format->n_kept;
    for (size_t b = 0; b < from->n_blocks; b++) {
        const uint8_t *codes = from->codes + b * from->format->block_code_bytes;
        for (size_t i = 0; i < n_kept; i++) {
            if (sn_tk4_nibble(codes, n_kept, i) == 0) {
                return SN_INVALID_CODE;
            }
        }
    }
    for (size_t b = 0; b < from->n_blocks; b++) {
        const uint8_t *codes = from->codes + b * from->format->block_code_bytes;
        for (size_t i = 1; i < n_kept; i++) {
            if (sn_tk4_position(codes, i) <= sn_tk4_position(codes, i - 1)) {
                return SN_INVALID_POSITION;
            }
        }
    }
    return SN_VALID;
}

#endif
