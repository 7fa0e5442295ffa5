/* AVX-512 (F and BW): a block is four registers. Bit-equal to ref.c. */
#if defined(__x86_64__)

#include <immintrin.h>

#include "sn_kernels.h"

/* An attribute, not a compiler flag: one command builds every file, and the rest of the extension
 * still runs on a processor without these instructions. */
#define SN_AVX512 __attribute__((target("avx512f,avx512bw")))

typedef struct {
    __m512 part[4];
} sn_block;

SN_AVX512 SN_INLINE sn_block block_load(const uint8_t *at)
{
    return (sn_block){{_mm512_loadu_ps(at), _mm512_loadu_ps(at + 64), _mm512_loadu_ps(at + 128),
                       _mm512_loadu_ps(at + 192)}};
}

SN_AVX512 SN_INLINE void prefetch_block(const uint8_t *at)
{
    for (int line = 0; line < SN_BLOCK_BYTES; line += 64) {
        _mm_prefetch(sn_ahead(at + line), _MM_HINT_T0);
    }
}

SN_AVX512 SN_INLINE uint32_t amax_bits_of(const uint8_t *at)
{
    const sn_block block = block_load(at);
    const __m512i mask = _mm512_set1_epi32((int)SN_ABS_MASK);
    __m512i magnitudes[4];
    for (int i = 0; i < 4; i++) {
        magnitudes[i] = _mm512_and_si512(_mm512_castps_si512(block.part[i]), mask);
    }
    const __m512i low = _mm512_max_epu32(magnitudes[0], magnitudes[1]);
    const __m512i high = _mm512_max_epu32(magnitudes[2], magnitudes[3]);
    return _mm512_reduce_max_epu32(_mm512_max_epu32(low, high));
}

SN_AVX512 SN_INLINE __m512i codes_of(__m512 values, __m512 inverse_scale)
{
    const __m512i sign = _mm512_set1_epi32((int)~SN_ABS_MASK);
    const __m512i half = _mm512_castps_si512(_mm512_set1_ps(0.5f));
    const __m512 t = _mm512_mul_ps(values, inverse_scale);
    /* 0xEA: (t & sign) | half */
    const __m512i signed_half =
        _mm512_ternarylogic_epi32(_mm512_castps_si512(t), sign, half, 0xEA);
    return _mm512_cvttps_epi32(_mm512_add_ps(t, _mm512_castsi512_ps(signed_half)));
}

SN_AVX512 SN_INLINE __m512 merged(__m512 own, __m512 decoded, __m512 own_weight,
                                  __m512 peer_weight)
{
    return _mm512_add_ps(_mm512_mul_ps(own_weight, own), _mm512_mul_ps(peer_weight, decoded));
}

/* Q8B64 */

SN_AVX512 SN_INLINE void q8_quantize(const sn_block *block, __m512 inverse_scale, uint8_t *codes)
{
    for (int i = 0; i < 4; i++) {
        const __m128i packed = _mm512_cvtepi32_epi8(codes_of(block->part[i], inverse_scale));
        _mm_storeu_si128((__m128i *)(codes + i * 16), packed);
    }
}

SN_AVX512 SN_INLINE sn_block q8_block(const uint8_t *scales, const uint8_t *codes, size_t b)
{
    const __m512 scale = _mm512_set1_ps(sn_scale_load(scales, b));
    sn_block block;
    for (int i = 0; i < 4; i++) {
        const __m128i packed =
            _mm_loadu_si128((const __m128i *)(codes + b * SN_Q8_CODE_BYTES + i * 16));
        const __m512i wide = _mm512_cvtepi8_epi32(packed);
        block.part[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(wide), scale);
    }
    return block;
}

SN_AVX512 static int q8_has_invalid_code(const uint8_t *codes, size_t n_blocks)
{
    const __m512i invalid = _mm512_set1_epi8((char)SN_INVALID_Q8_BYTE);
    __mmask64 found = 0;
    for (size_t b = 0; b < n_blocks; b++) {
        const __m512i packed = _mm512_loadu_si512(codes + b * SN_Q8_CODE_BYTES);
        found |= _mm512_cmpeq_epi8_mask(packed, invalid);
    }
    return found != 0;
}

/* Q4B64 */

SN_AVX512 SN_INLINE void q4_quantize(const sn_block *block, __m512 inverse_scale, uint8_t *codes)
{
    /* Both offsets at once: (low + 8) | (high + 8) << 4 = low + (high << 4) + 136. */
    const __m512i offsets = _mm512_set1_epi32(SN_Q4_OFFSET | SN_Q4_OFFSET << 4);
    for (int i = 0; i < 2; i++) {
        const __m512i low = codes_of(block->part[i], inverse_scale);
        const __m512i high = codes_of(block->part[i + 2], inverse_scale);
        const __m512i pairs = _mm512_add_epi32(low, _mm512_slli_epi32(high, 4));
        const __m128i packed = _mm512_cvtepi32_epi8(_mm512_add_epi32(pairs, offsets));
        _mm_storeu_si128((__m128i *)(codes + i * 16), packed);
    }
}

/* All sixteen values that a nibble can mean in this block: decoding is one permute an element. */
SN_AVX512 SN_INLINE __m512 q4_table(float scale)
{
    const __m512 codes =
        _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    return _mm512_mul_ps(codes, _mm512_set1_ps(scale));
}

SN_AVX512 SN_INLINE sn_block q4_block(const uint8_t *scales, const uint8_t *codes, size_t b)
{
    const __m512 table = q4_table(sn_scale_load(scales, b));
    sn_block block;
    for (int i = 0; i < 2; i++) {
        const __m128i packed =
            _mm_loadu_si128((const __m128i *)(codes + b * SN_Q4_CODE_BYTES + i * 16));
        const __m512i pairs = _mm512_cvtepu8_epi32(packed);
        /* The permute looks at the low four bits only. */
        block.part[i] = _mm512_permutexvar_ps(pairs, table);
        block.part[i + 2] = _mm512_permutexvar_ps(_mm512_srli_epi32(pairs, 4), table);
    }
    return block;
}

SN_AVX512 static int q4_has_invalid_code(const uint8_t *codes, size_t n_blocks)
{
    const __m512i low_mask = _mm512_set1_epi8(0x0F);
    const __m512i high_mask = _mm512_set1_epi8((char)0xF0);
    __mmask64 all_valid = ~(__mmask64)0;
    size_t b = 0;
    for (; b + 2 <= n_blocks; b += 2) {
        const __m512i pairs = _mm512_loadu_si512(codes + b * SN_Q4_CODE_BYTES);
        all_valid &= _mm512_test_epi8_mask(pairs, low_mask);
        all_valid &= _mm512_test_epi8_mask(pairs, high_mask);
    }
    return all_valid != ~(__mmask64)0 ||
           sn_q4_ref.has_invalid_code(codes + b * SN_Q4_CODE_BYTES, n_blocks - b);
}

/* The codecs differ only in how a block is packed and unpacked. */

typedef void (*sn_quantize)(const sn_block *block, __m512 inverse_scale, uint8_t *codes);
typedef sn_block (*sn_unpack)(const uint8_t *scales, const uint8_t *codes, size_t b);

SN_AVX512 SN_INLINE size_t encode(const uint8_t *values, uint8_t *scales, uint8_t *codes,
                                  size_t n_blocks, const sn_format *format, sn_quantize quantize)
{
    for (size_t b = 0; b < n_blocks; b += SN_GROUP_BLOCKS) {
        const size_t count = n_blocks - b < SN_GROUP_BLOCKS ? n_blocks - b : SN_GROUP_BLOCKS;
        const uint8_t *from = values + b * SN_BLOCK_BYTES;
        sn_group group = {0};
        for (size_t i = 0; i < count; i++) {
            prefetch_block(from + i * SN_BLOCK_BYTES);
            group.amax_bits[i] = amax_bits_of(from + i * SN_BLOCK_BYTES);
        }
        const size_t refused = sn_group_refused(&group, count);
        if (refused < count) {
            return b + refused;
        }
        sn_group_scale(&group, count, format, scales + b * SN_SCALE_BYTES);
        for (size_t i = 0; i < count; i++) {
            const sn_block block = block_load(from + i * SN_BLOCK_BYTES);
            quantize(&block, _mm512_set1_ps(group.inverse_scales[i]),
                     codes + (b + i) * format->block_code_bytes);
        }
    }
    return n_blocks;
}

SN_AVX512 SN_INLINE void decode(const uint8_t *scales, const uint8_t *codes, uint8_t *out,
                                size_t n_blocks, sn_unpack unpack)
{
    if (n_blocks >= SN_STREAM_BLOCKS && (uintptr_t)out % sizeof(__m512) == 0) {
        for (size_t b = 0; b < n_blocks; b++) {
            const sn_block block = unpack(scales, codes, b);
            for (int i = 0; i < 4; i++) {
                _mm512_stream_ps((float *)(out + b * SN_BLOCK_BYTES + i * 64), block.part[i]);
            }
        }
        _mm_sfence();
        return;
    }
    for (size_t b = 0; b < n_blocks; b++) {
        const sn_block block = unpack(scales, codes, b);
        for (int i = 0; i < 4; i++) {
            _mm512_storeu_ps(out + b * SN_BLOCK_BYTES + i * 64, block.part[i]);
        }
    }
}

SN_AVX512 SN_INLINE void merge(const uint8_t *scales, const uint8_t *codes, uint8_t *target,
                               size_t n_blocks, float own_weight, float peer_weight,
                               sn_unpack unpack)
{
    const __m512 own_weights = _mm512_set1_ps(own_weight);
    const __m512 peer_weights = _mm512_set1_ps(peer_weight);
    for (size_t b = 0; b < n_blocks; b++) {
        uint8_t *at = target + b * SN_BLOCK_BYTES;
        prefetch_block(at);
        const sn_block own = block_load(at);
        const sn_block peer = unpack(scales, codes, b);
        for (int i = 0; i < 4; i++) {
            const __m512 result = merged(own.part[i], peer.part[i], own_weights, peer_weights);
            _mm512_storeu_ps(at + i * 64, result);
        }
    }
}

SN_AVX512 static size_t q8_encode(const uint8_t *values, uint8_t *scales, uint8_t *codes,
                                  size_t n_blocks)
{
    return encode(values, scales, codes, n_blocks, &sn_q8_format, q8_quantize);
}

SN_AVX512 static size_t q4_encode(const uint8_t *values, uint8_t *scales, uint8_t *codes,
                                  size_t n_blocks)
{
    return encode(values, scales, codes, n_blocks, &sn_q4_format, q4_quantize);
}

SN_AVX512 static void q8_decode(const uint8_t *scales, const uint8_t *codes, uint8_t *out,
                                size_t n_blocks)
{
    decode(scales, codes, out, n_blocks, q8_block);
}

SN_AVX512 static void q8_merge(const uint8_t *scales, const uint8_t *codes, uint8_t *target,
                               size_t n_blocks, float own_weight, float peer_weight)
{
    merge(scales, codes, target, n_blocks, own_weight, peer_weight, q8_block);
}

SN_AVX512 static void q4_decode(const uint8_t *scales, const uint8_t *codes, uint8_t *out,
                                size_t n_blocks)
{
    decode(scales, codes, out, n_blocks, q4_block);
}

SN_AVX512 static void q4_merge(const uint8_t *scales, const uint8_t *codes, uint8_t *target,
                               size_t n_blocks, float own_weight, float peer_weight)
{
    merge(scales, codes, target, n_blocks, own_weight, peer_weight, q4_block);
}

const sn_kernels sn_q8_avx512 = {q8_encode, q8_decode, q8_merge, q8_has_invalid_code};
const sn_kernels sn_q4_avx512 = {q4_encode, q4_decode, q4_merge, q4_has_invalid_code};

#else
typedef int sn_avx512_is_for_x86_64; /* ISO C wants at least one declaration */
#endif
