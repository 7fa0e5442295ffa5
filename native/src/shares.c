/* What becomes of several payloads of one vector: their mean, and how they lie to each other.
 *
 * A tile of each is decoded while the sums of all of them stay in the first cache, and what comes
 * of it is encoded at once: no vector of float32 is ever in memory whole. Every payload is checked
 * before the first tile. Padding goes along as if it were elements, and is cut off at the end.
 */
#include "sn_payload.h"

enum {
    SN_MEAN_ELEMS = 1280,  /* whole blocks of 64, 256 and 320: 10 KiB of sums, 5 KiB of values */
    SN_ROW_ELEMS = 4096,   /* inner products are those of such rows, added up */
    SN_ROWS_OF_T3 = 5,     /* whole blocks of 320 are whole rows only together */
    SN_RUN_ELEMS = 512,    /* of a row: of few members they stay in the first cache */
    SN_ROW_RUNS = SN_ROW_ELEMS / SN_RUN_ELEMS,
};

_Static_assert(SN_ROW_RUNS == 8, "the runs of a row are added as numpy adds them: by halves");

/* Blocks that are decoded at a time; a vector of them is no longer than SN_TILE_ELEMS. */
static size_t tile_blocks_of(const sn_format *format)
{
    const size_t block_elems = format->block_elems;
    return SN_MEAN_ELEMS % block_elems == 0 ? SN_MEAN_ELEMS / block_elems
                                            : SN_TILE_ELEMS / block_elems;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static sn_coded tile_of(const sn_format *format, const uint8_t *payload, size_t n_elems,
                        size_t first, size_t n_blocks)
{
    const sn_cut cut = sn_cut_of(format, n_elems);
    const sn_coded whole =
        sn_coded_of(format, payload, &cut, sn_n_blocks(format, n_elems), NULL);
    return sn_coded_part_of(&whole, first, n_blocks);
}

sn_verdict sn_payload_measure(const sn_isa *isa, const sn_format *format, const uint8_t *payload,
                              size_t n_elems, sn_magnitude *magnitude)
{
    const sn_verdict verdict = sn_validate(isa, format, payload, n_elems);
    const size_t n_blocks = verdict == SN_VALID ? sn_n_blocks(format, n_elems) : 0;
    const size_t tile_blocks = tile_blocks_of(format);
    sn_lanes lanes = {0};
    for (size_t b = 0; b < n_blocks; b += tile_blocks) {
        float values[SN_TILE_ELEMS];
        const size_t at = b * format->block_elems;
        const sn_coded tile =
            tile_of(format, payload, n_elems, b, least(tile_blocks, n_blocks - b));
        isa->codecs[format->codec]->decode(&tile, (uint8_t *)values);
        /* Without the padding, which some codecs decode to no zero. */
        const size_t count = least(tile.n_blocks * format->block_elems, n_elems - at);
        sn_lanes_take(isa, (const uint8_t *)values, count, &lanes);
    }
    *magnitude = sn_lanes_sum(&lanes);
    return verdict;
}

static sn_verdict all_validate(const sn_isa *isa, const sn_format *format, const sn_share *shares,
                               size_t n_shares, size_t n_elems)
{
    sn_verdict verdict = SN_VALID;
    for (size_t i = 0; i < n_shares && verdict == SN_VALID; i++) {
        verdict = sn_validate(isa, format, shares[i].payload, n_elems);
    }
    return verdict;
}

static void tile_weigh(const sn_isa *isa, const sn_coded *tile, double weight, double *sums)
{
    const sn_kernels *kernels = isa->codecs[tile->format->codec];
    if (kernels->weigh != NULL) {
        kernels->weigh(tile, weight, sums);
        return;
    }
    float values[SN_TILE_ELEMS];
    kernels->decode(tile, (uint8_t *)values);
    isa->wide->weigh(values, tile->n_blocks * tile->format->block_elems, weight, sums);
}

sn_verdict sn_mean(const sn_isa *isa, const sn_format *format, const sn_share *shares,
                   size_t n_shares, size_t n_elems, double divisor, uint8_t *payload,
                   size_t *n_encoded)
{
    *n_encoded = 0;
    const sn_verdict verdict = all_validate(isa, format, shares, n_shares, n_elems);
    if (verdict != SN_VALID) {
        return verdict;
    }
    const size_t n_blocks = sn_n_blocks(format, n_elems);
    const size_t tile_blocks = tile_blocks_of(format);
    uint8_t *codes = payload + n_blocks * format->scale_bytes;
    for (size_t b = 0; b < n_blocks; b += tile_blocks) {
        const size_t count = least(tile_blocks, n_blocks - b);
        const size_t tile_elems = count * format->block_elems;
        double sums[SN_TILE_ELEMS];
        float values[SN_TILE_ELEMS];
        memset(sums, 0, tile_elems * sizeof sums[0]);
        for (size_t i = 0; i < n_shares; i++) {
            const sn_coded tile = tile_of(format, shares[i].payload, n_elems, b, count);
            tile_weigh(isa, &tile, shares[i].weight, sums);
        }
        isa->wide->divide(sums, tile_elems, divisor, values);
        const size_t used = least(tile_elems, n_elems - b * format->block_elems);
        memset(values + used, 0, (tile_elems - used) * sizeof values[0]);
        const sn_values from = {format, (const uint8_t *)values, NULL, count};
        *n_encoded += isa->codecs[format->codec]->encode(&from, payload + b * format->scale_bytes,
                                                         codes + b * format->block_code_bytes);
        if (*n_encoded < b + count) {
            memset(payload, 0xFF, sn_payload_bytes(format, n_elems));
            return SN_VALID;
        }
    }
    return SN_VALID;
}

/* Elements of each vector that are decoded together: whole rows, and whole blocks. */
static size_t span_elems_of(const sn_format *format)
{
    return SN_ROW_ELEMS % format->block_elems == 0 ? SN_ROW_ELEMS : SN_ROWS_OF_T3 * SN_ROW_ELEMS;
}

static size_t n_pairs_of(size_t n_shares)
{
    return n_shares * (n_shares + 1) / 2;
}

size_t sn_products_room(const sn_format *format, size_t n_shares)
{
    return n_shares * span_elems_of(format) + n_pairs_of(n_shares) * SN_ROW_RUNS;
}

/* Decodes the blocks of a span to float64. */
static void span_widen(const sn_isa *isa, const sn_coded *span, double *out)
{
    const size_t block_elems = span->format->block_elems;
    const size_t tile_blocks = tile_blocks_of(span->format);
    for (size_t b = 0; b < span->n_blocks; b += tile_blocks) {
        float values[SN_TILE_ELEMS];
        const sn_coded tile =
            sn_coded_part_of(span, b, least(tile_blocks, span->n_blocks - b));
        isa->codecs[span->format->codec]->decode(&tile, (uint8_t *)values);
        isa->wide->widen(values, tile.n_blocks * block_elems, out + b * block_elems);
    }
}

/* A whole row run by run, so that the runs of all vectors are in the cache for all pairs. */
static void runs_multiply(const sn_isa *isa, const double *rows, size_t stride, size_t n_shares,
                          double *runs)
{
    for (size_t run = 0; run < SN_ROW_RUNS; run++) {
        const double *at = rows + run * SN_RUN_ELEMS;
        double *to = runs + run;
        for (size_t i = 0; i < n_shares; i++) {
            for (size_t j = i; j < n_shares; j++) {
                *to = isa->wide->product(at + i * stride, at + j * stride, SN_RUN_ELEMS);
                to += SN_ROW_RUNS;
            }
        }
    }
}

static double halves_add(const double *runs)
{
    return ((runs[0] + runs[1]) + (runs[2] + runs[3])) +
           ((runs[4] + runs[5]) + (runs[6] + runs[7]));
}

/* Adds the products of a row of n_elems, at most SN_ROW_ELEMS, to the upper triangle. */
static void row_multiply(const sn_isa *isa, const double *rows, size_t stride, size_t n_shares,
                         size_t n_elems, double *runs, double *gram)
{
    const int is_whole = n_elems == SN_ROW_ELEMS;
    if (is_whole) {
        runs_multiply(isa, rows, stride, n_shares, runs);
    }
    for (size_t i = 0; i < n_shares; i++) {
        for (size_t j = i; j < n_shares; j++) {
            gram[i * n_shares + j] +=
                is_whole ? halves_add(runs)
                         : isa->wide->product(rows + i * stride, rows + j * stride, n_elems);
            runs += SN_ROW_RUNS;
        }
    }
}

sn_verdict sn_products(const sn_isa *isa, const sn_format *format, const sn_share *shares,
                       size_t n_shares, size_t n_elems, double *room, double *gram)
{
    const sn_verdict verdict = all_validate(isa, format, shares, n_shares, n_elems);
    const size_t n_blocks = verdict == SN_VALID ? sn_n_blocks(format, n_elems) : 0;
    const size_t span_elems = span_elems_of(format);
    const size_t span_blocks = span_elems / format->block_elems;
    double *runs = room + n_shares * span_elems;
    for (size_t b = 0; b < n_blocks; b += span_blocks) {
        const size_t count = least(span_blocks, n_blocks - b);
        for (size_t i = 0; i < n_shares; i++) {
            const sn_coded span = tile_of(format, shares[i].payload, n_elems, b, count);
            span_widen(isa, &span, room + i * span_elems);
        }
        const size_t used = least(span_elems, n_elems - b * format->block_elems);
        for (size_t at = 0; at < used; at += SN_ROW_ELEMS) {
            row_multiply(isa, room + at, span_elems, n_shares, least(SN_ROW_ELEMS, used - at), runs,
                         gram);
        }
    }
    return verdict;
}
