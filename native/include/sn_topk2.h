/* TK2: the largest elements of a tile of 4096 in two bits each, one of two levels and a sign, and
 * where they are. Included by each instruction set's file after sn_topk.h, which finds them: what
 * is done with the few that are kept is the same everywhere, and all of it in integers. */
#ifndef SN_TOPK2_H
#define SN_TOPK2_H

#include "sn_topk.h"

enum { SN_TK2_ROUNDS = 2 }; /* of Lloyd, after the mean */

/* The two levels of a tile. */
typedef struct {
    uint32_t small;
    uint32_t large;
} tk2_table;

/* Rounded means of what is at most `split` / 2, and of what is more. The smallest is never among
 * the latter; if nothing is, both levels are the same. */
static inline tk2_table tk2_means(const uint32_t *sizes, size_t n_kept, uint32_t split)
{
    uint32_t sums[2] = {0, 0};
    uint32_t counts[2] = {0, 0};
    for (size_t i = 0; i < n_kept; i++) {
        const size_t is_large = 2 * sizes[i] > split;
        sums[is_large] += sizes[i];
        counts[is_large]++;
    }
    tk2_table table;
    table.small = (2 * sums[0] + counts[0]) / (2 * counts[0]);
    table.large = counts[1] != 0 ? (2 * sums[1] + counts[1]) / (2 * counts[1]) : table.small;
    return table;
}

/* Parts the sizes at their mean, then in the middle between the means of both parts. Writes twice
 * the bound at which they are parted. */
static inline tk2_table tk2_table_of(const uint32_t *sizes, size_t n_kept, uint32_t *split)
{
    uint32_t sum = 0; /* 2048 times 32767 at most */
    for (size_t i = 0; i < n_kept; i++) {
        sum += sizes[i];
    }
    /* n size > sum is 2 size > 2 floor(sum / n) + 1: both say size > sum / n of whole sizes. */
    *split = 2 * (sum / (uint32_t)n_kept) + 1;
    tk2_table table = tk2_means(sizes, n_kept, *split);
    for (int round = 0; round < SN_TK2_ROUNDS; round++) {
        *split = table.small + table.large;
        table = tk2_means(sizes, n_kept, *split);
    }
    return table;
}

static inline void tk2_positions_pack(const uint16_t *positions, const sn_format *format,
                                      uint8_t *codes)
{
    uint8_t *low = codes + SN_TK2_TABLE_BYTES;
    uint8_t *high = codes + sn_tk2_high_at(format);
    const uint32_t low_mask = (1u << format->low_bits) - 1;
    memset(low, 0, sn_tk2_pairs_at(format) - SN_TK2_TABLE_BYTES);
    for (size_t i = 0; i < format->n_kept; i++) {
        const size_t bit = i * format->low_bits;
        const uint32_t two = (positions[i] & low_mask) << bit % 8;
        low[bit / 8] |= (uint8_t)two;
        if (two >> 8 != 0) {
            low[bit / 8 + 1] |= (uint8_t)(two >> 8);
        }
        const size_t at = (size_t)(positions[i] >> format->low_bits) + i;
        high[at / 8] |= (uint8_t)(1u << at % 8);
    }
}

SN_TARGET SN_INLINE void tk2_pack(const uint8_t *values, const uint16_t *positions,
                                  float inverse_scale, const sn_format *format, uint8_t *codes)
{
    uint32_t sizes[SN_KEPT_MAX];
    uint8_t is_negative[SN_KEPT_MAX];
    for (size_t i = 0; i < format->n_kept; i++) {
        uint32_t bits;
        memcpy(&bits, values + positions[i] * sizeof bits, sizeof bits);
        const float t = sn_float_from_bits(bits & SN_ABS_MASK) * inverse_scale;
        const uint32_t size = (uint32_t)(t + 0.5f);
        sizes[i] = size < SN_TK2_LEVELS ? size : SN_TK2_LEVELS;
        is_negative[i] = bits >> 31 != 0;
    }
    uint32_t split;
    const tk2_table table = tk2_table_of(sizes, format->n_kept, &split);
    const uint16_t stored[2] = {(uint16_t)table.small, (uint16_t)table.large};
    memcpy(codes, stored, sizeof stored);
    tk2_positions_pack(positions, format, codes);
    uint8_t *pairs = codes + sn_tk2_pairs_at(format);
    memset(pairs, 0, format->n_kept / 4);
    for (size_t i = 0; i < format->n_kept; i++) {
        const unsigned pair = (2 * sizes[i] > split ? SN_TK2_LARGE : 0u) |
                              (is_negative[i] ? SN_TK2_NEGATIVE : 0u);
        pairs[i / 4] |= (uint8_t)(pair << i % 4 * 2);
    }
}

SN_TARGET static size_t tk2_encode(const sn_values *from, uint8_t *scales, uint8_t *codes)
{
    return topk_encode(from, from->format, tk2_pack, scales, codes);
}

static inline tk2_table tk2_table_load(const uint8_t *codes)
{
    uint16_t stored[2];
    memcpy(stored, codes, sizeof stored);
    return (tk2_table){stored[0], stored[1]};
}

SN_TARGET SN_INLINE void tk2_unpack(const sn_coded *from, size_t b, float tile[SN_TILE_ELEMS])
{
    const uint8_t *codes = from->codes + b * from->format->block_code_bytes;
    const float scale = sn_scale_load(from->scales, b);
    const tk2_table table = tk2_table_load(codes);
    const float small = (float)table.small * scale;
    const float large = (float)table.large * scale;
    const float values[4] = {small, large, -small, -large};
    uint16_t positions[SN_KEPT_MAX];
    sn_tk2_positions(from->format, codes, positions);
    memset(tile, 0, SN_BLOCK_BYTES_MAX);
    for (size_t i = 0; i < from->format->n_kept; i++) {
        tile[positions[i]] = values[sn_tk2_pair(from->format, codes, i)];
    }
}

SN_TARGET static void tk2_decode(const sn_coded *from, uint8_t *out)
{
    topk_decode(from, tk2_unpack, out);
}

SN_TARGET static void tk2_merge(const sn_coded *from, uint8_t *target, float own_weight,
                                float peer_weight)
{
    topk_merge(from, tk2_unpack, target, own_weight, peer_weight);
}

/* Levels in order and in range; as many positions as are kept, ascending. */
static sn_verdict tk2_check(const sn_coded *from)
{
    const sn_format *format = from->format;
    for (size_t b = 0; b < from->n_blocks; b++) {
        const tk2_table table = tk2_table_load(from->codes + b * format->block_code_bytes);
        if (table.small > table.large || table.large > SN_TK2_LEVELS) {
            return SN_INVALID_CODE;
        }
    }
    for (size_t b = 0; b < from->n_blocks; b++) {
        const uint8_t *codes = from->codes + b * format->block_code_bytes;
        uint16_t positions[SN_KEPT_MAX];
        if (sn_tk2_positions(format, codes, positions) != format->n_kept) {
            return SN_INVALID_POSITION;
        }
        for (size_t i = 1; i < format->n_kept; i++) {
            if (positions[i] <= positions[i - 1]) {
                return SN_INVALID_POSITION;
            }
        }
        if (positions[format->n_kept - 1] >= SN_TILE_ELEMS) {
            return SN_INVALID_POSITION;
        }
    }
    return SN_VALID;
}

#endif
