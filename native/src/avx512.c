/* AVX-512 (F and BW): a block is four registers. Bit-equal to ref.c. */
#if defined(__x86_64__)

#include <immintrin.h>

/* An attribute, not a compiler flag: one command builds every file, and the rest of the extension
 * still runs on a processor without these instructions. */
#define SN_AVX512 __attribute__((target("avx512f,avx512bw")))
#define SN_TARGET SN_AVX512

#include "sn_plain.h"
#include "sn_topk.h"
#include "sn_topk2.h"
#include "sn_wide.h"

typedef __m512 sn_part;

enum { SN_PARTS = 4 };

typedef struct {
    sn_part part[SN_PARTS];
} sn_block;

SN_AVX512 SN_INLINE sn_part part_load(const uint8_t *at)
{
    return _mm512_loadu_ps((const float *)at);
}

SN_AVX512 SN_INLINE void part_store(uint8_t *at, sn_part part)
{
    _mm512_storeu_ps((float *)at, part);
}

SN_AVX512 SN_INLINE void part_stream(uint8_t *at, sn_part part)
{
    _mm512_stream_ps((float *)at, part);
}

SN_AVX512 SN_INLINE sn_part part_set(float value)
{
    return _mm512_set1_ps(value);
}

SN_AVX512 SN_INLINE sn_part part_add(sn_part a, sn_part b)
{
    return _mm512_add_ps(a, b);
}

SN_AVX512 SN_INLINE sn_part part_sub(sn_part a, sn_part b)
{
    return _mm512_sub_ps(a, b);
}

SN_AVX512 SN_INLINE sn_part part_mul(sn_part a, sn_part b)
{
    return _mm512_mul_ps(a, b);
}

/* The order of the operands lets a NaN through, as everywhere. */
SN_AVX512 SN_INLINE sn_part part_saturated(sn_part values)
{
    const sn_part capped = _mm512_min_ps(_mm512_set1_ps(FLT_MAX), values);
    return _mm512_max_ps(_mm512_set1_ps(-FLT_MAX), capped);
}

SN_AVX512 SN_INLINE sn_block block_load(const uint8_t *at)
{
    sn_block block;
    for (size_t i = 0; i < SN_PARTS; i++) {
        block.part[i] = part_load(at + i * (SN_BLOCK_BYTES / SN_PARTS));
    }
    return block;
}

SN_AVX512 SN_INLINE uint32_t amax_bits_of(const sn_block *block)
{
    const __m512i mask = _mm512_set1_epi32((int)SN_ABS_MASK);
    __m512i magnitudes[4];
    for (int i = 0; i < 4; i++) {
        magnitudes[i] = _mm512_and_si512(_mm512_castps_si512(block->part[i]), mask);
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

/* Q8B64 */

SN_AVX512 SN_INLINE void q8_quantize(const sn_block *block, __m512 inverse_scale, uint8_t *codes)
{
    for (int i = 0; i < 4; i++) {
        const __m128i packed = _mm512_cvtepi32_epi8(codes_of(block->part[i], inverse_scale));
        _mm_storeu_si128((__m128i *)(codes + i * 16), packed);
    }
}

SN_AVX512 SN_INLINE sn_block q8_unpack(const sn_coded *from, size_t b)
{
    const __m512 scale = _mm512_set1_ps(sn_scale_load(from->scales, b));
    sn_block block;
    for (int i = 0; i < 4; i++) {
        const __m128i packed =
            _mm_loadu_si128((const __m128i *)(from->codes + b * SN_Q8_CODE_BYTES + i * 16));
        const __m512i wide = _mm512_cvtepi8_epi32(packed);
        block.part[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(wide), scale);
    }
    return block;
}

SN_AVX512 static sn_verdict q8_check(const sn_coded *from)
{
    const __m512i invalid = _mm512_set1_epi8((char)SN_INVALID_Q8_BYTE);
    __mmask64 found = 0;
    for (size_t b = 0; b < from->n_blocks; b++) {
        const __m512i packed = _mm512_loadu_si512(from->codes + b * SN_Q8_CODE_BYTES);
        found |= _mm512_cmpeq_epi8_mask(packed, invalid);
    }
    return found != 0 ? SN_INVALID_CODE : SN_VALID;
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

/* `table` is all sixteen values that a nibble can mean in this block: decoding is one permute an
 * element. */
SN_AVX512 SN_INLINE sn_block nibbles_block(const sn_coded *from, size_t b, __m512 table)
{
    sn_block block;
    for (int i = 0; i < 2; i++) {
        const __m128i packed =
            _mm_loadu_si128((const __m128i *)(from->codes + b * SN_Q4_CODE_BYTES + i * 16));
        const __m512i pairs = _mm512_cvtepu8_epi32(packed);
        /* The permute looks at the low four bits only. */
        block.part[i] = _mm512_permutexvar_ps(pairs, table);
        block.part[i + 2] = _mm512_permutexvar_ps(_mm512_srli_epi32(pairs, 4), table);
    }
    return block;
}

SN_AVX512 SN_INLINE sn_block q4_unpack(const sn_coded *from, size_t b)
{
    const __m512 codes =
        _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    const float scale = sn_scale_load(from->scales, b);
    return nibbles_block(from, b, _mm512_mul_ps(codes, _mm512_set1_ps(scale)));
}

/* E3M0 has no nibble of 0 either. */
SN_AVX512 static sn_verdict q4_check(const sn_coded *from)
{
    const size_t n_bytes = from->n_blocks * from->format->block_code_bytes;
    const __m512i low_mask = _mm512_set1_epi8(0x0F);
    const __m512i high_mask = _mm512_set1_epi8((char)0xF0);
    __mmask64 all_valid = ~(__mmask64)0;
    for (size_t i = 0; i < n_bytes; i += 64) {
        /* The last half register may be missing: 32 bytes are one block of Q4B64. */
        const __mmask64 is_there = n_bytes - i < 64 ? 0xFFFFFFFFu : ~(__mmask64)0;
        const __m512i pairs = _mm512_mask_loadu_epi8(low_mask, is_there, from->codes + i);
        all_valid &= _mm512_test_epi8_mask(pairs, low_mask);
        all_valid &= _mm512_test_epi8_mask(pairs, high_mask) | ~is_there;
    }
    return all_valid != ~(__mmask64)0 ? SN_INVALID_CODE : SN_VALID;
}

/* E3M0 */

SN_AVX512 SN_INLINE __m512i e3m0_nibbles_of(__m512 values, __m512 inverse_scale)
{
    const __m512i bits = _mm512_castps_si512(_mm512_mul_ps(values, inverse_scale));
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32((int)SN_ABS_MASK));
    const __m512i exponent = _mm512_srli_epi32(magnitude, SN_EXPONENT_SHIFT);
    const __m512i bias = _mm512_set1_epi32(SN_EXPONENT_BIAS);
    const __m512i level = _mm512_sub_epi32(_mm512_max_epi32(exponent, bias), bias);
    const __mmask16 is_negative = _mm512_mask_cmplt_epi32_mask(
        _mm512_test_epi32_mask(level, level), bits, _mm512_setzero_si512());
    return _mm512_mask_or_epi32(level, (__mmask16)~is_negative, level,
                                _mm512_set1_epi32(SN_E3M0_POSITIVE));
}

SN_AVX512 SN_INLINE void e3m0_quantize(const sn_block *block, __m512 inverse_scale,
                                       uint8_t *codes)
{
    for (int i = 0; i < 2; i++) {
        const __m512i low = e3m0_nibbles_of(block->part[i], inverse_scale);
        const __m512i high = e3m0_nibbles_of(block->part[i + 2], inverse_scale);
        const __m512i pairs = _mm512_or_si512(low, _mm512_slli_epi32(high, 4));
        _mm_storeu_si128((__m128i *)(codes + i * 16), _mm512_cvtepi32_epi8(pairs));
    }
}

SN_AVX512 SN_INLINE sn_block e3m0_unpack(const sn_coded *from, size_t b)
{
    const __m512 levels =
        _mm512_setr_ps(0.0f, -0x1p-6f, -0x1p-5f, -0x1p-4f, -0x1p-3f, -0x1p-2f, -0x1p-1f, -1.0f,
                       0.0f, 0x1p-6f, 0x1p-5f, 0x1p-4f, 0x1p-3f, 0x1p-2f, 0x1p-1f, 1.0f);
    const float scale = sn_e3m0_scale_load(from->scales, b);
    return nibbles_block(from, b, _mm512_mul_ps(levels, _mm512_set1_ps(scale)));
}

/* SIGN64 */

#define SN_SIGN_SUMMARY sign_summary
SN_AVX512 SN_INLINE sn_sign_summary sign_summary(const uint8_t *values)
{
    const sn_block block = block_load(values);
    const __m512i abs_mask = _mm512_set1_epi32((int)SN_ABS_MASK);
    const __m512i min = _mm512_set1_epi32(SN_SIGN_BITS_MIN);
    uint64_t signs = 0;
    __m512 terms[4];
    for (int i = 0; i < 4; i++) {
        const __m512i bits = _mm512_castps_si512(block.part[i]);
        const __m512i magnitude = _mm512_and_si512(bits, abs_mask);
        const __mmask16 is_counted = _mm512_cmpge_epi32_mask(magnitude, min);
        terms[i] = _mm512_maskz_mul_ps(is_counted, _mm512_castsi512_ps(magnitude),
                                       _mm512_set1_ps(SN_SIGN_FACTOR));
        const __mmask16 is_negative = _mm512_cmplt_epi32_mask(bits, _mm512_setzero_si512());
        signs |= (uint64_t)is_negative << 16 * i;
    }
    const __m512 sums =
        _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(terms[0], terms[1]), terms[2]), terms[3]);
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(sums), 1));
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(sums), high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    const __m128 mean = _mm_add_ss(two, _mm_shuffle_ps(two, two, 1));
    return (sn_sign_summary){amax_bits_of(&block), _mm_cvtss_f32(mean), signs};
}

#include "sn_sign.h"

/* Q2B64 */

#define SN_Q2_SIZES q2_sizes
SN_AVX512 SN_INLINE uint64_t q2_sizes(const uint8_t *values, float threshold)
{
    const sn_block block = block_load(values);
    const __m512i abs_mask = _mm512_set1_epi32((int)SN_ABS_MASK);
    const __m512i threshold_bits = _mm512_set1_epi32((int)sn_bits_from_float(threshold));
    uint64_t sizes = 0;
    for (int i = 0; i < 4; i++) {
        const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(block.part[i]), abs_mask);
        const __mmask16 is_large = _mm512_cmpgt_epi32_mask(magnitude, threshold_bits);
        sizes |= (uint64_t)is_large << 16 * i;
    }
    return sizes;
}

#include "sn_q2.h"

SN_AVX512 SN_INLINE sn_block q2_unpack(const sn_coded *from, size_t b)
{
    const sn_q2_block coded = q2_load(from, b);
    const __m512 small = _mm512_set1_ps(coded.small);
    const __m512 large = _mm512_set1_ps(coded.large);
    const __m512i sign = _mm512_set1_epi32((int)~SN_ABS_MASK);
    sn_block block;
    for (int i = 0; i < 4; i++) {
        const __mmask16 is_large = (__mmask16)(coded.sizes >> 16 * i);
        const __mmask16 is_negative = (__mmask16)(coded.signs >> 16 * i);
        const __m512i magnitude =
            _mm512_castps_si512(_mm512_mask_blend_ps(is_large, small, large));
        block.part[i] = _mm512_castsi512_ps(
            _mm512_mask_or_epi32(magnitude, is_negative, magnitude, sign));
    }
    return block;
}

/* T3B320 */

#include "sn_t3.h"

SN_AVX512 SN_INLINE __m512 part_counted(__m512 part)
{
    const __m512i bits = _mm512_castps_si512(part);
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32((int)SN_ABS_MASK));
    const __mmask16 is_counted =
        _mm512_cmpge_epi32_mask(magnitude, _mm512_set1_epi32(SN_SIGN_BITS_MIN));
    return _mm512_maskz_mov_ps(is_counted, part);
}

SN_AVX512 SN_INLINE void trits_of(const sn_block *block, uint32_t threshold_bits, uint8_t *trits)
{
    const __m512i threshold = _mm512_set1_epi32((int)threshold_bits);
    const __m512i abs_mask = _mm512_set1_epi32((int)SN_ABS_MASK);
    const __m512i one = _mm512_set1_epi32(1);
    for (int i = 0; i < 4; i++) {
        const __m512i bits = _mm512_castps_si512(block->part[i]);
        const __mmask16 is_above =
            _mm512_cmpgt_epi32_mask(_mm512_and_si512(bits, abs_mask), threshold);
        const __m512i one_or_two = _mm512_add_epi32(_mm512_srli_epi32(bits, 31), one);
        const __m512i wide = _mm512_maskz_mov_epi32(is_above, one_or_two);
        _mm_storeu_si128((__m128i *)(trits + i * 16), _mm512_cvtepi32_epi8(wide));
    }
}

/* A byte in 32 bits, of which the products of 16 bits see the lower half: the upper one is zero. */
SN_AVX512 SN_INLINE sn_block t3_unpack(const sn_coded *from, size_t b)
{
    const uint8_t *codes = from->codes + b / SN_T3_TRITS * SN_T3_CODE_BYTES;
    const __m512 scale = _mm512_set1_ps(sn_scale_load(from->scales, b / SN_T3_TRITS));
    const __m512 levels =
        _mm512_mul_ps(_mm512_setr_ps(0, 1, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), scale);
    const __m512i factor = _mm512_set1_epi32(sn_t3_factors[b % SN_T3_TRITS]);
    const __m512i three = _mm512_set1_epi32(3);
    sn_block block;
    for (int i = 0; i < 4; i++) {
        const __m512i bytes =
            _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(codes + i * 16)));
        const __m512i trits = _mm512_mulhi_epu16(_mm512_mullo_epi16(bytes, factor), three);
        block.part[i] = _mm512_permutexvar_ps(trits, levels);
    }
    return block;
}

/* How large a vector is: a part is two rows */

typedef struct {
    __m512 largest; /* of both rows' lanes, as their order means nothing to the largest */
    __m512d square_sums;
} sn_gauge;

SN_AVX512 SN_INLINE sn_gauge gauge_load(const sn_lanes *lanes)
{
    return (sn_gauge){
        _mm512_maskz_loadu_ps(0x00FF, lanes->largest),
        _mm512_loadu_pd(lanes->square_sums),
    };
}

SN_AVX512 SN_INLINE __m256 upper_half(__m512 values)
{
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(values), 1));
}

SN_AVX512 SN_INLINE void gauge_store(const sn_gauge *gauge, sn_lanes *lanes)
{
    const __m256 lower = _mm512_castps512_ps256(gauge->largest);
    _mm256_storeu_ps(lanes->largest, _mm256_max_ps(lower, upper_half(gauge->largest)));
    _mm512_storeu_pd(lanes->square_sums, gauge->square_sums);
}

SN_AVX512 SN_INLINE __m512d squares_added(__m512d sums, __m256 row)
{
    const __m512d wide = _mm512_cvtps_pd(row);
    return _mm512_fmadd_pd(wide, wide, sums); /* squares are exact: one rounding either way */
}

SN_AVX512 SN_INLINE void gauge_take(sn_gauge *gauge, size_t i, sn_part part)
{
    (void)i;
    const __m512i abs_mask = _mm512_set1_epi32((int)SN_ABS_MASK);
    const __m512 some =
        _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(part), abs_mask));
    /* The second of the two where the first is NaN. */
    gauge->largest = _mm512_max_ps(some, gauge->largest);
    gauge->square_sums = squares_added(gauge->square_sums, _mm512_castps512_ps256(some));
    gauge->square_sums = squares_added(gauge->square_sums, upper_half(some));
}

/* The mean of payloads */

SN_AVX512 SN_INLINE void half_weigh(__m256 values, __m512d weights, double *sums)
{
    const __m512d terms = _mm512_mul_pd(weights, _mm512_cvtps_pd(values));
    _mm512_storeu_pd(sums, _mm512_add_pd(_mm512_loadu_pd(sums), terms));
}

SN_AVX512 SN_INLINE void part_weigh(sn_part part, double weight, double *sums)
{
    const __m512d weights = _mm512_set1_pd(weight);
    half_weigh(_mm512_castps512_ps256(part), weights, sums);
    half_weigh(upper_half(part), weights, sums + 8);
}

#include "sn_loops.h"

SN_DEFINE_KERNELS(avx512);

#else
typedef int sn_avx512_is_for_x86_64; /* ISO C wants at least one declaration */
#endif
