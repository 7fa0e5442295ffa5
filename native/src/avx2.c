/* AVX2: a block is eight registers. Bit-equal to ref.c. */
#if defined(__x86_64__)

#include <immintrin.h>

/* An attribute, not a compiler flag: one command builds every file, and the rest of the extension
 * still runs on a processor without these instructions. Without "fma" none can slip in. */
#define SN_AVX2 __attribute__((target("avx2")))
#define SN_TARGET SN_AVX2

#include "sn_plain.h"
#include "sn_topk.h"

typedef struct {
    __m256 part[8];
} sn_block;

SN_AVX2 SN_INLINE sn_block block_load(const uint8_t *at)
{
    sn_block block;
    for (int i = 0; i < 8; i++) {
        block.part[i] = _mm256_loadu_ps((const float *)(at + i * 32));
    }
    return block;
}

/* The b-th 64 values, or their difference to the reference. */
SN_AVX2 SN_INLINE sn_block block_of(const sn_values *from, const uint8_t *reference, size_t b)
{
    sn_block block = block_load(from->values + b * SN_BLOCK_BYTES);
    if (reference != NULL) {
        const sn_block base = block_load(reference + b * SN_BLOCK_BYTES);
        for (int i = 0; i < 8; i++) {
            block.part[i] = _mm256_sub_ps(block.part[i], base.part[i]);
        }
    }
    return block;
}

SN_AVX2 SN_INLINE void prefetch_block(const uint8_t *at)
{
    for (int line = 0; line < SN_BLOCK_BYTES; line += 64) {
        _mm_prefetch(sn_ahead(at + line), _MM_HINT_T0);
    }
}

SN_AVX2 SN_INLINE uint32_t amax_bits_of(const sn_block *block)
{
    const __m256i mask = _mm256_set1_epi32((int)SN_ABS_MASK);
    __m256i magnitudes[8];
    for (int i = 0; i < 8; i++) {
        magnitudes[i] = _mm256_and_si256(_mm256_castps_si256(block->part[i]), mask);
    }
    for (int n = 4; n > 0; n /= 2) {
        for (int i = 0; i < n; i++) {
            magnitudes[i] = _mm256_max_epu32(magnitudes[i], magnitudes[i + n]);
        }
    }
    __m128i lanes = _mm_max_epu32(_mm256_castsi256_si128(magnitudes[0]),
                                  _mm256_extracti128_si256(magnitudes[0], 1));
    lanes = _mm_max_epu32(lanes, _mm_shuffle_epi32(lanes, _MM_SHUFFLE(1, 0, 3, 2)));
    lanes = _mm_max_epu32(lanes, _mm_shuffle_epi32(lanes, _MM_SHUFFLE(2, 3, 0, 1)));
    return (uint32_t)_mm_cvtsi128_si32(lanes);
}

SN_AVX2 SN_INLINE __m256i codes_of(__m256 values, __m256 inverse_scale)
{
    const __m256 sign = _mm256_castsi256_ps(_mm256_set1_epi32((int)~SN_ABS_MASK));
    const __m256 half = _mm256_set1_ps(0.5f);
    const __m256 t = _mm256_mul_ps(values, inverse_scale);
    const __m256 signed_half = _mm256_or_ps(_mm256_and_ps(t, sign), half);
    return _mm256_cvttps_epi32(_mm256_add_ps(t, signed_half));
}

/* 32 codes of 32 bits in four registers to 32 bytes in order. The packs work in each half of a
 * register, so groups of four bytes come out interleaved; the permute undoes that. */
SN_AVX2 SN_INLINE __m256i packed_bytes(__m256i a, __m256i b, __m256i c, __m256i d)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    return _mm256_permutevar8x32_epi32(bytes, order);
}

SN_AVX2 SN_INLINE __m256i codes_of_half(const sn_block *block, int half, __m256 inverse_scale)
{
    const __m256 *part = block->part + half * 4;
    return packed_bytes(codes_of(part[0], inverse_scale), codes_of(part[1], inverse_scale),
                        codes_of(part[2], inverse_scale), codes_of(part[3], inverse_scale));
}

SN_AVX2 SN_INLINE __m256 merged(__m256 own, __m256 decoded, __m256 own_weight,
                                __m256 peer_weight)
{
    return _mm256_add_ps(_mm256_mul_ps(own_weight, own), _mm256_mul_ps(peer_weight, decoded));
}

/* The order of the operands lets a NaN through, as everywhere. */
SN_AVX2 SN_INLINE __m256 saturated(__m256 values)
{
    const __m256 capped = _mm256_min_ps(_mm256_set1_ps(FLT_MAX), values);
    return _mm256_max_ps(_mm256_set1_ps(-FLT_MAX), capped);
}

/* Eight signed bytes to eight scaled floats. */
SN_AVX2 SN_INLINE __m256 scaled(__m128i bytes, __m256 scale)
{
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), scale);
}

/* Q8B64 */

SN_AVX2 SN_INLINE void q8_quantize(const sn_block *block, __m256 inverse_scale, uint8_t *codes)
{
    for (int half = 0; half < 2; half++) {
        const __m256i packed = codes_of_half(block, half, inverse_scale);
        _mm256_storeu_si256((__m256i *)(codes + half * 32), packed);
    }
}

SN_AVX2 SN_INLINE sn_block q8_block(const sn_coded *from, size_t b)
{
    const __m256 scale = _mm256_set1_ps(sn_scale_load(from->scales, b));
    sn_block block;
    for (int i = 0; i < 8; i++) {
        const uint8_t *at = from->codes + b * SN_Q8_CODE_BYTES + i * 8;
        block.part[i] = scaled(_mm_loadl_epi64((const __m128i *)at), scale);
    }
    return block;
}

SN_AVX2 static sn_verdict q8_check(const sn_coded *from)
{
    const __m256i invalid = _mm256_set1_epi8((char)SN_INVALID_Q8_BYTE);
    __m256i found = _mm256_setzero_si256();
    for (size_t i = 0; i < from->n_blocks * SN_Q8_CODE_BYTES; i += 32) {
        const __m256i packed = _mm256_loadu_si256((const __m256i *)(from->codes + i));
        found = _mm256_or_si256(found, _mm256_cmpeq_epi8(packed, invalid));
    }
    return _mm256_movemask_epi8(found) != 0 ? SN_INVALID_CODE : SN_VALID;
}

/* Q4B64 */

SN_AVX2 SN_INLINE void q4_quantize(const sn_block *block, __m256 inverse_scale, uint8_t *codes)
{
    const __m256i offset = _mm256_set1_epi8(SN_Q4_OFFSET);
    const __m256i low = _mm256_add_epi8(codes_of_half(block, 0, inverse_scale), offset);
    const __m256i high = _mm256_add_epi8(codes_of_half(block, 1, inverse_scale), offset);
    /* Nibbles are below 16, so a shift of 16-bit lanes carries nothing across bytes. */
    const __m256i pairs = _mm256_or_si256(low, _mm256_slli_epi16(high, 4));
    _mm256_storeu_si256((__m256i *)codes, pairs);
}

SN_AVX2 SN_INLINE sn_block q4_block(const sn_coded *from, size_t b)
{
    const __m256 scale = _mm256_set1_ps(sn_scale_load(from->scales, b));
    const __m128i mask = _mm_set1_epi8(0x0F);
    const __m128i offset = _mm_set1_epi8(SN_Q4_OFFSET);
    sn_block block;
    for (int i = 0; i < 2; i++) {
        const uint8_t *at = from->codes + b * SN_Q4_CODE_BYTES + i * 16;
        const __m128i pairs = _mm_loadu_si128((const __m128i *)at);
        const __m128i low = _mm_sub_epi8(_mm_and_si128(pairs, mask), offset);
        const __m128i high =
            _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(pairs, 4), mask), offset);
        block.part[2 * i] = scaled(low, scale);
        block.part[2 * i + 1] = scaled(_mm_srli_si128(low, 8), scale);
        block.part[2 * i + 4] = scaled(high, scale);
        block.part[2 * i + 5] = scaled(_mm_srli_si128(high, 8), scale);
    }
    return block;
}

/* E3M0 has no nibble of 0 either. */
SN_AVX2 static sn_verdict q4_check(const sn_coded *from)
{
    const size_t n_bytes = from->n_blocks * from->format->block_code_bytes;
    const __m256i mask = _mm256_set1_epi8(0x0F);
    __m256i smallest = mask;
    for (size_t i = 0; i < n_bytes; i += 32) {
        const __m256i pairs = _mm256_loadu_si256((const __m256i *)(from->codes + i));
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(pairs, 4), mask);
        smallest = _mm256_min_epu8(smallest, _mm256_and_si256(pairs, mask));
        smallest = _mm256_min_epu8(smallest, high);
    }
    const __m256i zeros = _mm256_cmpeq_epi8(smallest, _mm256_setzero_si256());
    return _mm256_movemask_epi8(zeros) != 0 ? SN_INVALID_CODE : SN_VALID;
}

/* E3M0 */

SN_AVX2 SN_INLINE __m256i e3m0_nibbles_of(__m256 values, __m256 inverse_scale)
{
    const __m256i bits = _mm256_castps_si256(_mm256_mul_ps(values, inverse_scale));
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32((int)SN_ABS_MASK));
    const __m256i exponent = _mm256_srli_epi32(magnitude, SN_EXPONENT_SHIFT);
    const __m256i zero = _mm256_setzero_si256();
    const __m256i level = _mm256_max_epi32(
        _mm256_sub_epi32(exponent, _mm256_set1_epi32(SN_EXPONENT_BIAS)), zero);
    const __m256i is_negative =
        _mm256_and_si256(_mm256_srai_epi32(bits, 31), _mm256_cmpgt_epi32(level, zero));
    const __m256i positive = _mm256_set1_epi32(SN_E3M0_POSITIVE);
    return _mm256_or_si256(level, _mm256_andnot_si256(is_negative, positive));
}

SN_AVX2 SN_INLINE __m256i e3m0_nibbles_of_half(const sn_block *block, int half,
                                               __m256 inverse_scale)
{
    const __m256 *part = block->part + half * 4;
    return packed_bytes(
        e3m0_nibbles_of(part[0], inverse_scale), e3m0_nibbles_of(part[1], inverse_scale),
        e3m0_nibbles_of(part[2], inverse_scale), e3m0_nibbles_of(part[3], inverse_scale));
}

SN_AVX2 SN_INLINE void e3m0_quantize(const sn_block *block, __m256 inverse_scale, uint8_t *codes)
{
    const __m256i low = e3m0_nibbles_of_half(block, 0, inverse_scale);
    const __m256i high = e3m0_nibbles_of_half(block, 1, inverse_scale);
    const __m256i pairs = _mm256_or_si256(low, _mm256_slli_epi16(high, 4));
    _mm256_storeu_si256((__m256i *)codes, pairs);
}

/* Eight values whose nibbles are the low bits of eight integers: the permute looks at the three
 * bits of the level, and the sign is what the fourth is not. */
SN_AVX2 SN_INLINE __m256 e3m0_values(__m256i nibbles, __m256 levels)
{
    const __m256 magnitude = _mm256_permutevar8x32_ps(levels, nibbles);
    const __m256i sign = _mm256_andnot_si256(_mm256_slli_epi32(nibbles, 28),
                                             _mm256_set1_epi32((int)~SN_ABS_MASK));
    return _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign));
}

SN_AVX2 SN_INLINE sn_block e3m0_block(const sn_coded *from, size_t b)
{
    const __m256 levels = _mm256_mul_ps(_mm256_setr_ps(0.0f, 0x1p-6f, 0x1p-5f, 0x1p-4f, 0x1p-3f,
                                                       0x1p-2f, 0x1p-1f, 1.0f),
                                        _mm256_set1_ps(sn_e3m0_scale_load(from->scales, b)));
    sn_block block;
    for (int i = 0; i < 4; i++) {
        const uint8_t *at = from->codes + b * SN_Q4_CODE_BYTES + i * 8;
        const __m256i pairs = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at));
        block.part[i] = e3m0_values(pairs, levels);
        block.part[i + 4] = e3m0_values(_mm256_srli_epi32(pairs, 4), levels);
    }
    return block;
}

/* SIGN64 */

#define SN_SIGN_SUMMARY sign_summary
SN_AVX2 SN_INLINE sn_sign_summary sign_summary(const uint8_t *values)
{
    const sn_block block = block_load(values);
    const __m256i abs_mask = _mm256_set1_epi32((int)SN_ABS_MASK);
    const __m256i below_min = _mm256_set1_epi32(SN_SIGN_BITS_MIN - 1);
    uint64_t signs = 0;
    __m256 terms[8];
    for (int i = 0; i < 8; i++) {
        const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(block.part[i]), abs_mask);
        const __m256i counted =
            _mm256_and_si256(magnitude, _mm256_cmpgt_epi32(magnitude, below_min));
        terms[i] = _mm256_mul_ps(_mm256_castsi256_ps(counted), _mm256_set1_ps(SN_SIGN_FACTOR));
        signs |= (uint64_t)(uint32_t)_mm256_movemask_ps(block.part[i]) << 8 * i;
    }
    __m256 sums[2];
    for (int i = 0; i < 2; i++) {
        sums[i] = _mm256_add_ps(_mm256_add_ps(_mm256_add_ps(terms[i], terms[i + 2]), terms[i + 4]),
                                terms[i + 6]);
    }
    const __m256 eight = _mm256_add_ps(sums[0], sums[1]);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    const __m128 mean = _mm_add_ss(two, _mm_shuffle_ps(two, two, 1));
    return (sn_sign_summary){amax_bits_of(&block), _mm_cvtss_f32(mean), signs};
}

#include "sn_sign.h"

/* The codecs differ only in how a block is packed and unpacked. */

typedef void (*sn_quantize)(const sn_block *block, __m256 inverse_scale, uint8_t *codes);
typedef sn_block (*sn_unpack)(const sn_coded *from, size_t b);

SN_AVX2 SN_INLINE size_t encode_from(const sn_values *from, const uint8_t *reference, uint8_t *scales,
                             uint8_t *codes, const sn_format *format, sn_quantize quantize)
{
    const size_t n_blocks = from->n_blocks * (format->block_elems / SN_BLOCK_ELEMS);
    for (size_t b = 0; b < n_blocks; b += SN_GROUP_BLOCKS) {
        const size_t count = n_blocks - b < SN_GROUP_BLOCKS ? n_blocks - b : SN_GROUP_BLOCKS;
        sn_group group = {0};
        for (size_t i = 0; i < count; i++) {
            prefetch_block(from->values + (b + i) * SN_BLOCK_BYTES);
            const sn_block block = block_of(from, reference, b + i);
            group.amax_bits[i] = amax_bits_of(&block);
        }
        const size_t refused = sn_group_refused(&group, count);
        if (refused < count) {
            return (b + refused) / (format->block_elems / SN_BLOCK_ELEMS);
        }
        sn_group_scale(&group, count, format, scales + sn_scale_offset(format, b));
        for (size_t i = 0; i < count; i++) {
            const sn_block block = block_of(from, reference, b + i);
            quantize(&block, _mm256_set1_ps(group.inverse_scales[i]),
                     codes + sn_code_offset(format, b + i));
        }
    }
    return from->n_blocks;
}

/* Two loops, so that the one without a reference does not ask for it at every block. */
SN_AVX2 SN_INLINE size_t encode(const sn_values *from, uint8_t *scales, uint8_t *codes,
                        const sn_format *format, sn_quantize quantize)
{
    if (from->reference == NULL) {
        return encode_from(from, NULL, scales, codes, format, quantize);
    }
    return encode_from(from, from->reference, scales, codes, format, quantize);
}

SN_AVX2 SN_INLINE sn_block decoded(const sn_coded *from, const uint8_t *reference, size_t b,
                           sn_unpack unpack)
{
    sn_block block = unpack(from, b);
    if (reference != NULL) {
        const sn_block base = block_load(reference + b * SN_BLOCK_BYTES);
        for (int i = 0; i < 8; i++) {
            block.part[i] = saturated(_mm256_add_ps(base.part[i], block.part[i]));
        }
    }
    return block;
}

SN_AVX2 SN_INLINE void decode_from(const sn_coded *from, const uint8_t *reference, uint8_t *out,
                           const sn_format *format, sn_unpack unpack)
{
    const size_t n_blocks = from->n_blocks * (format->block_elems / SN_BLOCK_ELEMS);
    if (n_blocks >= SN_STREAM_BLOCKS && (uintptr_t)out % sizeof(__m256) == 0) {
        for (size_t b = 0; b < n_blocks; b++) {
            const sn_block block = decoded(from, reference, b, unpack);
            for (int i = 0; i < 8; i++) {
                _mm256_stream_ps((float *)(out + b * SN_BLOCK_BYTES) + i * 8, block.part[i]);
            }
        }
        _mm_sfence();
        return;
    }
    for (size_t b = 0; b < n_blocks; b++) {
        const sn_block block = decoded(from, reference, b, unpack);
        for (int i = 0; i < 8; i++) {
            _mm256_storeu_ps((float *)(out + b * SN_BLOCK_BYTES) + i * 8, block.part[i]);
        }
    }
}

SN_AVX2 SN_INLINE void decode(const sn_coded *from, uint8_t *out, const sn_format *format,
                      sn_unpack unpack)
{
    if (from->reference == NULL) {
        decode_from(from, NULL, out, format, unpack);
    } else {
        decode_from(from, from->reference, out, format, unpack);
    }
}

SN_AVX2 SN_INLINE void merge_from(const sn_coded *from, const uint8_t *reference, uint8_t *target,
                          float own_weight, float peer_weight, const sn_format *format,
                          sn_unpack unpack)
{
    const size_t n_blocks = from->n_blocks * (format->block_elems / SN_BLOCK_ELEMS);
    const __m256 own_weights = _mm256_set1_ps(own_weight);
    const __m256 peer_weights = _mm256_set1_ps(peer_weight);
    for (size_t b = 0; b < n_blocks; b++) {
        uint8_t *at = target + b * SN_BLOCK_BYTES;
        prefetch_block(at);
        const sn_block own = block_load(at);
        const sn_block peer = decoded(from, reference, b, unpack);
        for (int i = 0; i < 8; i++) {
            const __m256 result = merged(own.part[i], peer.part[i], own_weights, peer_weights);
            _mm256_storeu_ps((float *)at + i * 8, result);
        }
    }
}

SN_AVX2 SN_INLINE void merge(const sn_coded *from, uint8_t *target, float own_weight,
                     float peer_weight, const sn_format *format, sn_unpack unpack)
{
    if (from->reference == NULL) {
        merge_from(from, NULL, target, own_weight, peer_weight, format, unpack);
    } else {
        merge_from(from, from->reference, target, own_weight, peer_weight, format, unpack);
    }
}

SN_AVX2 static size_t q8_encode(const sn_values *from, uint8_t *scales, uint8_t *codes)
{
    return encode(from, scales, codes, &sn_q8_format, q8_quantize);
}

SN_AVX2 static void q8_decode(const sn_coded *from, uint8_t *out)
{
    decode(from, out, &sn_q8_format, q8_block);
}

SN_AVX2 static void q8_merge(const sn_coded *from, uint8_t *target, float own_weight,
                             float peer_weight)
{
    merge(from, target, own_weight, peer_weight, &sn_q8_format, q8_block);
}

SN_AVX2 static size_t q4_encode(const sn_values *from, uint8_t *scales, uint8_t *codes)
{
    return encode(from, scales, codes, &sn_q4_format, q4_quantize);
}

SN_AVX2 static void q4_decode(const sn_coded *from, uint8_t *out)
{
    decode(from, out, &sn_q4_format, q4_block);
}

SN_AVX2 static void q4_merge(const sn_coded *from, uint8_t *target, float own_weight,
                             float peer_weight)
{
    merge(from, target, own_weight, peer_weight, &sn_q4_format, q4_block);
}

SN_AVX2 static size_t e3m0_encode(const sn_values *from, uint8_t *scales, uint8_t *codes)
{
    return encode(from, scales, codes, &sn_e3m0_format, e3m0_quantize);
}

SN_AVX2 static void e3m0_decode(const sn_coded *from, uint8_t *out)
{
    decode(from, out, &sn_e3m0_format, e3m0_block);
}

SN_AVX2 static void e3m0_merge(const sn_coded *from, uint8_t *target, float own_weight,
                               float peer_weight)
{
    merge(from, target, own_weight, peer_weight, &sn_e3m0_format, e3m0_block);
}

const sn_kernels sn_raw32_avx2 = {raw32_encode, raw32_decode, raw32_merge, raw32_check};
const sn_kernels sn_bf16_avx2 = {bf16_encode, bf16_decode, bf16_merge, bf16_check};
const sn_kernels sn_q8_avx2 = {q8_encode, q8_decode, q8_merge, q8_check};
const sn_kernels sn_q4_avx2 = {q4_encode, q4_decode, q4_merge, q4_check};
const sn_kernels sn_e3m0_avx2 = {e3m0_encode, e3m0_decode, e3m0_merge, q4_check};
const sn_kernels sn_sign_avx2 = {sign_encode, sign_decode, sign_merge, sign_check};
const sn_kernels sn_tk4_avx2 = {tk4_encode, tk4_decode, tk4_merge, tk4_check};

#else
typedef int sn_avx2_is_for_x86_64; /* ISO C wants at least one declaration */
#endif
