/* AVX2 and FMA, which processors have together: a block is eight registers. Bit-equal to ref.c. */
#if defined(__x86_64__)

#include <immintrin.h>

/* An attribute, not a compiler flag: one command builds every file, and the rest of the extension
 * still runs on a processor without these instructions. Compilers fuse nothing themselves, as
 * -ffp-contract=off is among the flags: where both roundings count, products and sums are apart. */
#define SN_AVX2 __attribute__((target("avx2,fma")))
#define SN_TARGET SN_AVX2

#include "sn_plain.h"
#include "sn_topk.h"
#include "sn_topk2.h"
#include "sn_wide.h"

typedef __m256 sn_part;

enum { SN_PARTS = 8 };

typedef struct {
    sn_part part[SN_PARTS];
} sn_block;

SN_AVX2 SN_INLINE sn_part part_load(const uint8_t *at)
{
    return _mm256_loadu_ps((const float *)at);
}

SN_AVX2 SN_INLINE void part_store(uint8_t *at, sn_part part)
{
    _mm256_storeu_ps((float *)at, part);
}

SN_AVX2 SN_INLINE void part_stream(uint8_t *at, sn_part part)
{
    _mm256_stream_ps((float *)at, part);
}

SN_AVX2 SN_INLINE sn_part part_set(float value)
{
    return _mm256_set1_ps(value);
}

SN_AVX2 SN_INLINE sn_part part_add(sn_part a, sn_part b)
{
    return _mm256_add_ps(a, b);
}

SN_AVX2 SN_INLINE sn_part part_sub(sn_part a, sn_part b)
{
    return _mm256_sub_ps(a, b);
}

SN_AVX2 SN_INLINE sn_part part_mul(sn_part a, sn_part b)
{
    return _mm256_mul_ps(a, b);
}

/* The order of the operands lets a NaN through, as everywhere. */
SN_AVX2 SN_INLINE sn_part part_saturated(sn_part values)
{
    const sn_part capped = _mm256_min_ps(_mm256_set1_ps(FLT_MAX), values);
    return _mm256_max_ps(_mm256_set1_ps(-FLT_MAX), capped);
}

SN_AVX2 SN_INLINE sn_block block_load(const uint8_t *at)
{
    sn_block block;
    for (size_t i = 0; i < SN_PARTS; i++) {
        block.part[i] = part_load(at + i * (SN_BLOCK_BYTES / SN_PARTS));
    }
    return block;
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

SN_AVX2 SN_INLINE sn_block q8_unpack(const sn_coded *from, size_t b)
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

SN_AVX2 SN_INLINE sn_block q4_unpack(const sn_coded *from, size_t b)
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

SN_AVX2 SN_INLINE sn_block e3m0_unpack(const sn_coded *from, size_t b)
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

/* Q2B64 */

#define SN_Q2_SIZES q2_sizes
SN_AVX2 SN_INLINE uint64_t q2_sizes(const uint8_t *values, float threshold)
{
    const sn_block block = block_load(values);
    const __m256i abs_mask = _mm256_set1_epi32((int)SN_ABS_MASK);
    const __m256i threshold_bits = _mm256_set1_epi32((int)sn_bits_from_float(threshold));
    uint64_t sizes = 0;
    for (int i = 0; i < 8; i++) {
        const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(block.part[i]), abs_mask);
        const __m256i is_large = _mm256_cmpgt_epi32(magnitude, threshold_bits);
        sizes |= (uint64_t)(uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(is_large)) << 8 * i;
    }
    return sizes;
}

#include "sn_q2.h"

/* Moves bit i of the lowest eight to the highest place of lane i. */
SN_AVX2 SN_INLINE __m256 bits_spread(uint64_t bits)
{
    const __m256i shifts = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
    return _mm256_castsi256_ps(_mm256_sllv_epi32(_mm256_set1_epi32((int)(bits & 0xFF)), shifts));
}

SN_AVX2 SN_INLINE sn_block q2_unpack(const sn_coded *from, size_t b)
{
    const sn_q2_block coded = q2_load(from, b);
    const __m256 small = _mm256_set1_ps(coded.small);
    const __m256 large = _mm256_set1_ps(coded.large);
    const __m256 sign = _mm256_castsi256_ps(_mm256_set1_epi32((int)~SN_ABS_MASK));
    sn_block block;
    for (int i = 0; i < 8; i++) {
        /* The blend looks at the highest bits only. */
        const __m256 magnitude = _mm256_blendv_ps(small, large, bits_spread(coded.sizes >> 8 * i));
        const __m256 signs = _mm256_and_ps(bits_spread(coded.signs >> 8 * i), sign);
        block.part[i] = _mm256_or_ps(magnitude, signs);
    }
    return block;
}

/* T3B320 */

#include "sn_t3.h"

SN_AVX2 SN_INLINE __m256 part_counted(__m256 part)
{
    const __m256i bits = _mm256_castps_si256(part);
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32((int)SN_ABS_MASK));
    const __m256i is_counted =
        _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(SN_SIGN_BITS_MIN - 1));
    return _mm256_castsi256_ps(_mm256_and_si256(bits, is_counted));
}

SN_AVX2 SN_INLINE __m256i trits_of_part(__m256 part, __m256i threshold_bits)
{
    const __m256i bits = _mm256_castps_si256(part);
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32((int)SN_ABS_MASK));
    const __m256i one_or_two = _mm256_add_epi32(_mm256_srli_epi32(bits, 31), _mm256_set1_epi32(1));
    return _mm256_and_si256(_mm256_cmpgt_epi32(magnitude, threshold_bits), one_or_two);
}

SN_AVX2 SN_INLINE void trits_of(const sn_block *block, uint32_t threshold_bits, uint8_t *trits)
{
    const __m256i threshold = _mm256_set1_epi32((int)threshold_bits);
    for (int half = 0; half < 2; half++) {
        const __m256 *part = block->part + half * 4;
        const __m256i packed =
            packed_bytes(trits_of_part(part[0], threshold), trits_of_part(part[1], threshold),
                         trits_of_part(part[2], threshold), trits_of_part(part[3], threshold));
        _mm256_storeu_si256((__m256i *)(trits + half * 32), packed);
    }
}

/* A byte in 32 bits, of which the products of 16 bits see the lower half: the upper one is zero. */
SN_AVX2 SN_INLINE sn_block t3_unpack(const sn_coded *from, size_t b)
{
    const uint8_t *codes = from->codes + b / SN_T3_TRITS * SN_T3_CODE_BYTES;
    const __m256 scale = _mm256_set1_ps(sn_scale_load(from->scales, b / SN_T3_TRITS));
    const __m256 levels = _mm256_mul_ps(_mm256_setr_ps(0, 1, -1, 0, 0, 0, 0, 0), scale);
    const __m256i factor = _mm256_set1_epi32(sn_t3_factors[b % SN_T3_TRITS]);
    const __m256i three = _mm256_set1_epi32(3);
    sn_block block;
    for (int i = 0; i < 8; i++) {
        const __m256i bytes =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(codes + i * 8)));
        const __m256i trits = _mm256_mulhi_epu16(_mm256_mullo_epi16(bytes, factor), three);
        block.part[i] = _mm256_permutevar8x32_ps(levels, trits);
    }
    return block;
}

/* How large a vector is: a part is a row */

typedef struct {
    __m256 largest;
    __m256d square_sums[2]; /* of the lower and of the upper four lanes */
} sn_gauge;

SN_AVX2 SN_INLINE sn_gauge gauge_load(const sn_lanes *lanes)
{
    return (sn_gauge){
        _mm256_loadu_ps(lanes->largest),
        {_mm256_loadu_pd(lanes->square_sums), _mm256_loadu_pd(lanes->square_sums + SN_LANES / 2)},
    };
}

SN_AVX2 SN_INLINE void gauge_store(const sn_gauge *gauge, sn_lanes *lanes)
{
    _mm256_storeu_ps(lanes->largest, gauge->largest);
    _mm256_storeu_pd(lanes->square_sums, gauge->square_sums[0]);
    _mm256_storeu_pd(lanes->square_sums + SN_LANES / 2, gauge->square_sums[1]);
}

SN_AVX2 SN_INLINE __m256d squares_added(__m256d sums, __m128 values)
{
    const __m256d wide = _mm256_cvtps_pd(values);
    return _mm256_fmadd_pd(wide, wide, sums); /* squares are exact: one rounding either way */
}

SN_AVX2 SN_INLINE void gauge_take(sn_gauge *gauge, size_t i, sn_part part)
{
    (void)i;
    const __m256 abs_mask = _mm256_castsi256_ps(_mm256_set1_epi32((int)SN_ABS_MASK));
    const __m256 some = _mm256_and_ps(part, abs_mask);
    /* The second of the two where the first is NaN. */
    gauge->largest = _mm256_max_ps(some, gauge->largest);
    gauge->square_sums[0] = squares_added(gauge->square_sums[0], _mm256_castps256_ps128(some));
    gauge->square_sums[1] = squares_added(gauge->square_sums[1], _mm256_extractf128_ps(some, 1));
}

/* The mean of payloads */

SN_AVX2 SN_INLINE void half_weigh(__m128 values, __m256d weights, double *sums)
{
    const __m256d terms = _mm256_mul_pd(weights, _mm256_cvtps_pd(values));
    _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), terms));
}

SN_AVX2 SN_INLINE void part_weigh(sn_part part, double weight, double *sums)
{
    const __m256d weights = _mm256_set1_pd(weight);
    half_weigh(_mm256_castps256_ps128(part), weights, sums);
    half_weigh(_mm256_extractf128_ps(part, 1), weights, sums + 4);
}

#include "sn_loops.h"

SN_AVX2 void sn_measure_avx2(const uint8_t *values, size_t n_rows, sn_lanes *lanes)
{
    sn_gauge gauge = gauge_load(lanes);
    for (size_t row = 0; row < n_rows; row++) {
        const uint8_t *at = values + row * SN_ROW_BYTES;
        sn_prefetch(at, SN_ROW_BYTES);
        gauge_take(&gauge, row, part_load(at));
    }
    gauge_store(&gauge, lanes);
}

SN_DEFINE_KERNELS(avx2);

#else
typedef int sn_avx2_is_for_x86_64; /* ISO C wants at least one declaration */
#endif
