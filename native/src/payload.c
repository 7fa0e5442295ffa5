/* Whole payloads: where the planes lie, what makes them valid, and a last block that is part full.
 *
 * Every byte of a foreign payload is checked here before one byte of a result is written.
 */
#include "sn_kernels.h"

const sn_format *sn_format_of(int bits)
{
    return bits == 8 ? &sn_q8_format : bits == 4 ? &sn_q4_format : NULL;
}

static const sn_kernels *kernels_of(const sn_isa *isa, const sn_format *format)
{
    return format->bits == 8 ? isa->q8 : isa->q4;
}

static size_t n_blocks_of(size_t n_elems)
{
    return n_elems / SN_BLOCK_ELEMS + (n_elems % SN_BLOCK_ELEMS != 0);
}

size_t sn_payload_bytes(const sn_format *format, size_t n_elems)
{
    return n_blocks_of(n_elems) * (SN_SCALE_BYTES + format->block_code_bytes);
}

/* One payload cut into its whole blocks and the rest. */
typedef struct {
    size_t n_whole;      /* blocks */
    size_t n_rest_bytes; /* of float32 in the last, part full block; 0 if there is none */
    size_t scales_bytes;
} sn_cut;

static sn_cut cut_of(size_t n_elems)
{
    return (sn_cut){
        .n_whole = n_elems / SN_BLOCK_ELEMS,
        .n_rest_bytes = n_elems % SN_BLOCK_ELEMS * sizeof(float),
        .scales_bytes = n_blocks_of(n_elems) * SN_SCALE_BYTES,
    };
}

size_t sn_encode(const sn_isa *isa, const sn_format *format, const uint8_t *values, size_t n_elems,
                 uint8_t *payload)
{
    const sn_kernels *kernels = kernels_of(isa, format);
    const sn_cut cut = cut_of(n_elems);
    uint8_t *codes = payload + cut.scales_bytes;
    size_t n_encoded = kernels->encode(values, payload, codes, cut.n_whole);
    if (n_encoded == cut.n_whole && cut.n_rest_bytes != 0) {
        uint8_t last[SN_BLOCK_BYTES] = {0};
        memcpy(last, values + cut.n_whole * SN_BLOCK_BYTES, cut.n_rest_bytes);
        n_encoded += kernels->encode(last, payload + cut.n_whole * SN_SCALE_BYTES,
                                     codes + cut.n_whole * format->block_code_bytes, 1);
    }
    if (n_encoded != n_blocks_of(n_elems)) {
        memset(payload, 0xFF, sn_payload_bytes(format, n_elems));
    }
    return n_encoded;
}

static int has_invalid_scale(const uint8_t *scales, size_t n_blocks, uint32_t scale_bits_max)
{
    /* As integers, every negative, infinite or NaN bfloat16 is above the largest legal one. */
    uint16_t found = 0;
    for (size_t b = 0; b < n_blocks; b++) {
        uint16_t scale_bits;
        memcpy(&scale_bits, scales + b * SN_SCALE_BYTES, sizeof scale_bits);
        found |= scale_bits > scale_bits_max;
    }
    return found;
}

/* Whether the codes from element n_used on, in the last block, are all zero. */
static int is_padding_zero(const sn_format *format, const uint8_t *block_codes, size_t n_used)
{
    uint8_t difference = 0;
    for (size_t i = n_used; i < SN_BLOCK_ELEMS; i++) {
        const size_t byte = format->bits == 8 ? i : i % 32;
        const uint8_t mask = format->bits == 8 ? 0xFF : i < 32 ? 0x0F : 0xF0;
        difference |= (uint8_t)((block_codes[byte] ^ format->zero_code_byte) & mask);
    }
    return difference == 0;
}

sn_verdict sn_validate(const sn_isa *isa, const sn_format *format, const uint8_t *payload,
                       size_t n_elems)
{
    const size_t n_blocks = n_blocks_of(n_elems);
    const sn_cut cut = cut_of(n_elems);
    const uint8_t *codes = payload + cut.scales_bytes;
    if (has_invalid_scale(payload, n_blocks, format->scale_bits_max)) {
        return SN_INVALID_SCALE;
    }
    if (kernels_of(isa, format)->has_invalid_code(codes, n_blocks)) {
        return SN_INVALID_CODE;
    }
    if (cut.n_rest_bytes != 0 &&
        !is_padding_zero(format, codes + cut.n_whole * format->block_code_bytes,
                         cut.n_rest_bytes / sizeof(float))) {
        return SN_INVALID_PADDING;
    }
    return SN_VALID;
}

sn_verdict sn_decode(const sn_isa *isa, const sn_format *format, const uint8_t *payload,
                     size_t n_elems, uint8_t *out)
{
    const sn_verdict verdict = sn_validate(isa, format, payload, n_elems);
    if (verdict != SN_VALID) {
        return verdict;
    }
    const sn_kernels *kernels = kernels_of(isa, format);
    const sn_cut cut = cut_of(n_elems);
    const uint8_t *codes = payload + cut.scales_bytes;
    kernels->decode(payload, codes, out, cut.n_whole);
    if (cut.n_rest_bytes != 0) {
        uint8_t last[SN_BLOCK_BYTES];
        kernels->decode(payload + cut.n_whole * SN_SCALE_BYTES,
                        codes + cut.n_whole * format->block_code_bytes, last, 1);
        memcpy(out + cut.n_whole * SN_BLOCK_BYTES, last, cut.n_rest_bytes);
    }
    return SN_VALID;
}

sn_verdict sn_merge(const sn_isa *isa, const sn_format *format, const uint8_t *payload,
                    size_t n_elems, uint8_t *target, float own_weight, float peer_weight)
{
    const sn_verdict verdict = sn_validate(isa, format, payload, n_elems);
    if (verdict != SN_VALID) {
        return verdict;
    }
    const sn_kernels *kernels = kernels_of(isa, format);
    const sn_cut cut = cut_of(n_elems);
    const uint8_t *codes = payload + cut.scales_bytes;
    kernels->merge(payload, codes, target, cut.n_whole, own_weight, peer_weight);
    if (cut.n_rest_bytes != 0) {
        uint8_t last[SN_BLOCK_BYTES] = {0};
        uint8_t *rest = target + cut.n_whole * SN_BLOCK_BYTES;
        memcpy(last, rest, cut.n_rest_bytes);
        kernels->merge(payload + cut.n_whole * SN_SCALE_BYTES,
                       codes + cut.n_whole * format->block_code_bytes, last, 1, own_weight,
                       peer_weight);
        memcpy(rest, last, cut.n_rest_bytes);
    }
    return SN_VALID;
}
