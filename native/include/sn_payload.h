/* Where the planes of a payload lie, for what goes through payloads block by block. */
#ifndef SN_PAYLOAD_H
#define SN_PAYLOAD_H

#include "sn_kernels.h"

/* One payload cut into its whole blocks and the rest. */
typedef struct {
    size_t n_whole;      /* blocks */
    size_t whole_bytes;  /* of float32 in the whole blocks */
    size_t n_rest_elems; /* in the last, part full block; 0 if there is none */
    size_t rest_bytes;
    size_t scales_bytes; /* of all blocks */
    size_t rest_scales;  /* offsets of the last block in the two planes */
    size_t rest_codes;
} sn_cut;

static inline sn_cut sn_cut_of(const sn_format *format, size_t n_elems)
{
    const size_t n_whole = n_elems / format->block_elems;
    const size_t n_rest_elems = n_elems % format->block_elems;
    return (sn_cut){
        .n_whole = n_whole,
        .whole_bytes = n_whole * format->block_elems * sizeof(float),
        .n_rest_elems = n_rest_elems,
        .rest_bytes = n_rest_elems * sizeof(float),
        .scales_bytes = sn_n_blocks(format, n_elems) * format->scale_bytes,
        .rest_scales = n_whole * format->scale_bytes,
        .rest_codes = n_whole * format->block_code_bytes,
    };
}

static inline sn_coded sn_coded_of(const sn_format *format, const uint8_t *payload,
                                   const sn_cut *cut, size_t n_blocks, const uint8_t *reference)
{
    return (sn_coded){
        .format = format,
        .scales = payload,
        .codes = payload + cut->scales_bytes,
        .reference = reference,
        .n_blocks = n_blocks,
    };
}

/* Some whole blocks of a payload. */
static inline sn_coded sn_coded_part_of(const sn_coded *from, size_t first, size_t n_blocks)
{
    const sn_format *format = from->format;
    const size_t block_bytes = format->block_elems * sizeof(float);
    return (sn_coded){
        .format = format,
        .scales = from->scales + first * format->scale_bytes,
        .codes = from->codes + first * format->block_code_bytes,
        .reference = from->reference == NULL ? NULL : from->reference + first * block_bytes,
        .n_blocks = n_blocks,
    };
}

#endif
