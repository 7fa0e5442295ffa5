/* Whole payloads: where the planes lie, what makes them valid, and a last block that is part full.
 *
 * Every byte of a foreign payload is checked here before one byte of a result is written.
 */
#include "sn_payload.h"

static const sn_format raw32_format = {
    .codec = SN_RAW32,
    .block_elems = 1,
    .block_code_bytes = 4,
};
static const sn_format bf16_format = {
    .codec = SN_BF16,
    .block_elems = 1,
    .block_code_bytes = 2,
};

static int tk4_format_read(int n_kept, sn_format *format)
{
    if (n_kept < 2 || n_kept > SN_KEPT_MAX || n_kept % 2 != 0) {
        return 0;
    }
    *format = sn_q4_format;
    format->codec = SN_TK4;
    format->block_elems = SN_TILE_ELEMS;
    format->n_kept = (size_t)n_kept;
    format->block_code_bytes = format->n_kept / 2 * (SN_POSITION_PAIR_BYTES + 1);
    return 1;
}

static int tk2_format_read(int n_kept, sn_format *format)
{
    if (n_kept < 8 || n_kept > SN_KEPT_MAX || n_kept % 8 != 0) {
        return 0;
    }
    const size_t kept = (size_t)n_kept;
    unsigned low_bits = 0;
    while ((size_t)SN_TILE_ELEMS >> (low_bits + 1) >= kept) {
        low_bits++;
    }
    const size_t high_bits = kept + ((size_t)SN_TILE_ELEMS >> low_bits);
    *format = (sn_format){
        .codec = SN_TK2,
        .block_elems = SN_TILE_ELEMS,
        .scale_bytes = 2,
        .block_code_bytes = SN_TK2_TABLE_BYTES + (kept * low_bits + high_bits) / 8 + kept / 4,
        .scale_bits_max = 0x7800u,
        .levels = (float)SN_TK2_LEVELS,
        .n_kept = kept,
        .low_bits = low_bits,
    };
    return 1;
}

int sn_format_read(int codec, int n_kept, sn_format *format)
{
    static const sn_format *const fixed[SN_CODEC_END] = {
        [SN_RAW32] = &raw32_format,   [SN_BF16] = &bf16_format, [SN_Q8] = &sn_q8_format,
        [SN_Q4] = &sn_q4_format,      [SN_E3M0] = &sn_e3m0_format,
        [SN_SIGN] = &sn_sign_format,  [SN_Q2] = &sn_q2_format,
        [SN_T3] = &sn_t3_format,
    };
    if (codec == SN_TK4) {
        return tk4_format_read(n_kept, format);
    }
    if (codec == SN_TK2) {
        return tk2_format_read(n_kept, format);
    }
    if (codec < 0 || codec >= SN_CODEC_END || fixed[codec] == NULL || n_kept != 0) {
        return 0;
    }
    *format = *fixed[codec];
    return 1;
}

int sn_takes_reference(const sn_format *format)
{
    return format->codec == SN_Q8 || format->codec == SN_Q4 || format->codec == SN_E3M0 ||
           format->codec == SN_Q2 || format->codec == SN_T3;
}

size_t sn_n_blocks(const sn_format *format, size_t n_elems)
{
    return n_elems / format->block_elems + (n_elems % format->block_elems != 0);
}

size_t sn_payload_bytes(const sn_format *format, size_t n_elems)
{
    return sn_n_blocks(format, n_elems) * (format->scale_bytes + format->block_code_bytes);
}

/* Copies the last block of a vector and fills it up with zeros; NULL stays NULL. */
static const uint8_t *rest_load(uint8_t *block, const sn_format *format, const uint8_t *vector,
                                const sn_cut *cut)
{
    if (vector == NULL) {
        return NULL;
    }
    memset(block, 0, format->block_elems * sizeof(float));
    memcpy(block, vector + cut->whole_bytes, cut->rest_bytes);
    return block;
}

size_t sn_encode(const sn_isa *isa, const sn_format *format, const uint8_t *values,
                 const uint8_t *reference, size_t n_elems, uint8_t *payload)
{
    const sn_kernels *kernels = isa->codecs[format->codec];
    const sn_cut cut = sn_cut_of(format, n_elems);
    uint8_t *codes = payload + cut.scales_bytes;
    const sn_values whole = {format, values, reference, cut.n_whole};
    size_t n_encoded = kernels->encode(&whole, payload, codes);
    if (n_encoded == cut.n_whole && cut.n_rest_elems != 0) {
        uint8_t last[SN_BLOCK_BYTES_MAX];
        uint8_t last_reference[SN_BLOCK_BYTES_MAX];
        const sn_values rest = {
            .format = format,
            .values = rest_load(last, format, values, &cut),
            .reference = rest_load(last_reference, format, reference, &cut),
            .n_blocks = 1,
        };
        n_encoded += kernels->encode(&rest, payload + cut.rest_scales, codes + cut.rest_codes);
    }
    if (n_encoded != sn_n_blocks(format, n_elems)) {
        memset(payload, 0xFF, sn_payload_bytes(format, n_elems));
    }
    return n_encoded;
}

static int has_invalid_scale(const sn_format *format, const uint8_t *scales, size_t n_blocks)
{
    /* As integers, every negative, infinite or NaN scale is above the largest legal one. */
    int found = 0;
    if (format->scale_bytes == sizeof(uint16_t)) {
        const uint16_t largest = (uint16_t)format->scale_bits_max;
        for (size_t b = 0; b < n_blocks; b++) {
            uint16_t scale_bits;
            memcpy(&scale_bits, scales + b * sizeof scale_bits, sizeof scale_bits);
            found |= scale_bits > largest;
        }
    } else if (format->scale_bytes == sizeof(uint32_t)) {
        for (size_t b = 0; b < n_blocks; b++) {
            uint32_t scale_bits;
            memcpy(&scale_bits, scales + b * sizeof scale_bits, sizeof scale_bits);
            found |= scale_bits > format->scale_bits_max;
        }
    }
    return found;
}

/* The nibble of element i where byte t of each 64 elements holds those at t and t + 32. */
static uint8_t nibble_at(const uint8_t *codes, size_t i)
{
    const uint8_t pair = codes[i / SN_BLOCK_ELEMS * SN_Q4_CODE_BYTES + i % SN_Q4_CODE_BYTES];
    return i / SN_Q4_CODE_BYTES % 2 == 0 ? pair & 0x0F : pair >> 4;
}

/* Whether element i of a block means zero. */
static int is_zero_at(const sn_format *format, const uint8_t *codes, size_t i)
{
    switch (format->codec) {
    case SN_Q8:
        return codes[i] == 0;
    case SN_SIGN: /* a bit cannot say zero; the padding has positive signs */
        return (codes[i / 8] >> i % 8 & 1) == 0;
    case SN_Q2: /* nor can two; the padding is positive and small */
        return ((codes[i / 8] | codes[SN_SIGN_CODE_BYTES + i / 8]) >> i % 8 & 1) == 0;
    case SN_T3:
        return sn_t3_trit(codes[i % SN_T3_CODE_BYTES], i / SN_T3_CODE_BYTES) == 0;
    default:
        return nibble_at(codes, i) == SN_Q4_OFFSET;
    }
}

/* Whether TK4 names no element from n_used on, except with a code of zero. */
static int is_tk4_padding_zero(const sn_format *format, const uint8_t *codes, size_t n_used)
{
    int is_zero = 1;
    for (size_t i = 0; i < format->n_kept; i++) {
        is_zero &= sn_tk4_position(codes, i) < n_used ||
                   sn_tk4_nibble(codes, format->n_kept, i) == SN_Q4_OFFSET;
    }
    return is_zero;
}

/* Whether TK2 names no element from n_used on, except as a positive small one: two bits cannot say
 * zero. The positions are valid. */
static int is_tk2_padding_zero(const sn_format *format, const uint8_t *codes, size_t n_used)
{
    uint16_t positions[SN_KEPT_MAX];
    sn_tk2_positions(format, codes, positions);
    int is_zero = 1;
    for (size_t i = 0; i < format->n_kept; i++) {
        is_zero &= positions[i] < n_used || sn_tk2_pair(format, codes, i) == 0;
    }
    return is_zero;
}

/* Whether the codes from element n_used on, in the last block, are all zero. */
static int is_padding_zero(const sn_format *format, const uint8_t *codes, size_t n_used)
{
    if (format->codec == SN_TK4) {
        return is_tk4_padding_zero(format, codes, n_used);
    }
    if (format->codec == SN_TK2) {
        return is_tk2_padding_zero(format, codes, n_used);
    }
    int is_zero = 1;
    for (size_t i = n_used; i < format->block_elems; i++) {
        is_zero &= is_zero_at(format, codes, i);
    }
    return is_zero;
}

/* The last, part full block of a payload. */
static sn_coded coded_rest_of(const sn_format *format, const uint8_t *payload, const sn_cut *cut,
                              const uint8_t *last_reference)
{
    return (sn_coded){
        .format = format,
        .scales = payload + cut->rest_scales,
        .codes = payload + cut->scales_bytes + cut->rest_codes,
        .reference = last_reference,
        .n_blocks = 1,
    };
}

sn_verdict sn_validate(const sn_isa *isa, const sn_format *format, const uint8_t *payload,
                       size_t n_elems)
{
    const sn_cut cut = sn_cut_of(format, n_elems);
    const size_t n_blocks = sn_n_blocks(format, n_elems);
    const sn_coded coded = sn_coded_of(format, payload, &cut, n_blocks, NULL);
    if (has_invalid_scale(format, payload, n_blocks)) {
        return SN_INVALID_SCALE;
    }
    const sn_verdict verdict = isa->codecs[format->codec]->check(&coded);
    if (verdict == SN_VALID && cut.n_rest_elems != 0 &&
        !is_padding_zero(format, coded.codes + cut.rest_codes, cut.n_rest_elems)) {
        return SN_INVALID_PADDING;
    }
    return verdict;
}

/* Without a fused kernel: a tile at a time, which is still in the cache when it is measured. */
static void tiles_decode(const sn_isa *isa, const sn_coded *whole, uint8_t *out, sn_lanes *lanes)
{
    const size_t block_elems = whole->format->block_elems;
    const size_t tile_blocks = SN_TILE_ELEMS / block_elems;
    for (size_t b = 0; b < whole->n_blocks; b += tile_blocks) {
        const size_t left = whole->n_blocks - b;
        const size_t n_blocks = left < tile_blocks ? left : tile_blocks;
        const sn_coded tile = sn_coded_part_of(whole, b, n_blocks);
        uint8_t *at = out + b * block_elems * sizeof(float);
        isa->codecs[whole->format->codec]->decode(&tile, at);
        sn_lanes_take(isa, at, n_blocks * block_elems, lanes);
    }
}

/* Measures, too, unless lanes is NULL. */
static void whole_decode(const sn_isa *isa, const sn_coded *whole, uint8_t *out, sn_lanes *lanes)
{
    const sn_kernels *kernels = isa->codecs[whole->format->codec];
    if (lanes == NULL) {
        kernels->decode(whole, out);
    } else if (kernels->decode_measured != NULL) {
        kernels->decode_measured(whole, out, lanes);
    } else {
        tiles_decode(isa, whole, out, lanes);
    }
}

static sn_verdict decode(const sn_isa *isa, const sn_format *format, const uint8_t *payload,
                         const uint8_t *reference, size_t n_elems, uint8_t *out, sn_lanes *lanes)
{
    const sn_verdict verdict = sn_validate(isa, format, payload, n_elems);
    if (verdict != SN_VALID) {
        return verdict;
    }
    const sn_kernels *kernels = isa->codecs[format->codec];
    const sn_cut cut = sn_cut_of(format, n_elems);
    const sn_coded whole = sn_coded_of(format, payload, &cut, cut.n_whole, reference);
    whole_decode(isa, &whole, out, lanes);
    if (cut.n_rest_elems != 0) {
        uint8_t last[SN_BLOCK_BYTES_MAX];
        uint8_t room[SN_BLOCK_BYTES_MAX];
        const uint8_t *last_reference = rest_load(room, format, reference, &cut);
        const sn_coded rest = coded_rest_of(format, payload, &cut, last_reference);
        kernels->decode(&rest, last);
        memcpy(out + cut.whole_bytes, last, cut.rest_bytes);
        if (lanes != NULL) { /* without the padding, which some codecs decode to no zero */
            sn_lanes_take(isa, last, cut.n_rest_elems, lanes);
        }
    }
    return SN_VALID;
}

sn_verdict sn_decode(const sn_isa *isa, const sn_format *format, const uint8_t *payload,
                     const uint8_t *reference, size_t n_elems, uint8_t *out)
{
    return decode(isa, format, payload, reference, n_elems, out, NULL);
}

sn_verdict sn_decode_measured(const sn_isa *isa, const sn_format *format, const uint8_t *payload,
                              const uint8_t *reference, size_t n_elems, uint8_t *out,
                              sn_magnitude *magnitude)
{
    sn_lanes lanes = {0};
    const sn_verdict verdict = decode(isa, format, payload, reference, n_elems, out, &lanes);
    *magnitude = sn_lanes_sum(&lanes);
    return verdict;
}

sn_verdict sn_merge(const sn_isa *isa, const sn_format *format, const uint8_t *payload,
                    const uint8_t *reference, size_t n_elems, uint8_t *target, float own_weight,
                    float peer_weight)
{
    const sn_verdict verdict = sn_validate(isa, format, payload, n_elems);
    if (verdict != SN_VALID) {
        return verdict;
    }
    const sn_kernels *kernels = isa->codecs[format->codec];
    const sn_cut cut = sn_cut_of(format, n_elems);
    const sn_coded whole = sn_coded_of(format, payload, &cut, cut.n_whole, reference);
    kernels->merge(&whole, target, own_weight, peer_weight);
    if (cut.n_rest_elems != 0) {
        uint8_t last[SN_BLOCK_BYTES_MAX];
        uint8_t room[SN_BLOCK_BYTES_MAX];
        const uint8_t *last_reference = rest_load(room, format, reference, &cut);
        const sn_coded rest = coded_rest_of(format, payload, &cut, last_reference);
        rest_load(last, format, target, &cut);
        kernels->merge(&rest, last, own_weight, peer_weight);
        memcpy(target + cut.whole_bytes, last, cut.rest_bytes);
    }
    return SN_VALID;
}
