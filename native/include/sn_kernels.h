/* What the kernels of all instruction sets share: formats, scale rules, and their tables. */
#ifndef SN_KERNELS_H
#define SN_KERNELS_H

#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "sn_codec.h"

/* Loops take the codec as an argument; inlining makes it constant, so each gets its own loop. */
#define SN_INLINE static inline __attribute__((always_inline))

#define SN_Q4_OFFSET 8 /* a nibble holds code + 8, so that zeroed memory is no valid payload */

enum {
    SN_Q8_CODE_BYTES = 64, /* codes of one block of 64 */
    SN_Q4_CODE_BYTES = 32, /* E3M0, too */
    SN_E3M0_BLOCKS = 4,    /* blocks of 64 that share a scale */
    SN_SIGN_CODE_BYTES = 8,
    SN_Q2_CODE_BYTES = 2 * SN_SIGN_CODE_BYTES,
    SN_T3_TRITS = 5,       /* of a byte */
    SN_T3_CODE_BYTES = 64,
    SN_T3_ELEMS = SN_T3_TRITS * SN_T3_CODE_BYTES,
    SN_T3_CODES = 243, /* five trits are less */
    SN_POSITION_PAIR_BYTES = 3,
};

static const sn_format sn_q8_format = {
    .codec = SN_Q8,
    .block_elems = SN_BLOCK_ELEMS,
    .scale_bytes = 2,
    .block_code_bytes = SN_Q8_CODE_BYTES,
    .levels = 127.0f,
    .scale_bits_max = 0x7C01u,
};
static const sn_format sn_q4_format = {
    .codec = SN_Q4,
    .block_elems = SN_BLOCK_ELEMS,
    .scale_bytes = 2,
    .block_code_bytes = SN_Q4_CODE_BYTES,
    .levels = 7.0f,
    .scale_bits_max = 0x7E12u,
};
static const sn_format sn_e3m0_format = {
    .codec = SN_E3M0,
    .block_elems = SN_BLOCK_ELEMS * SN_E3M0_BLOCKS,
    .scale_bytes = 4,
    .block_code_bytes = SN_Q4_CODE_BYTES * SN_E3M0_BLOCKS,
    .scale_bits_max = 0x7F7FFFFFu,
};

static const sn_format sn_sign_format = {
    .codec = SN_SIGN,
    .block_elems = SN_BLOCK_ELEMS,
    .scale_bytes = 2,
    .block_code_bytes = SN_SIGN_CODE_BYTES,
    .scale_bits_max = 0x7F7Fu,
};
static const sn_format sn_q2_format = {
    .codec = SN_Q2,
    .block_elems = SN_BLOCK_ELEMS,
    .scale_bytes = 2,
    .block_code_bytes = SN_Q2_CODE_BYTES,
    .scale_bits_max = 0x7F07u,
};
static const sn_format sn_t3_format = {
    .codec = SN_T3,
    .block_elems = SN_T3_ELEMS,
    .scale_bytes = 2,
    .block_code_bytes = SN_T3_CODE_BYTES,
    .scale_bits_max = 0x7F7Fu,
};

/* Trit i of a byte of T3B320. */
SN_INLINE unsigned sn_t3_trit(uint8_t byte, size_t i)
{
    static const uint8_t powers[SN_T3_TRITS] = {1, 3, 9, 27, 81};
    return byte / powers[i] % 3u;
}

/* TK4: positions of twelve bits, two in three bytes, then the nibbles. */
SN_INLINE size_t sn_tk4_position(const uint8_t *codes, size_t index)
{
    const uint8_t *pair = codes + index / 2 * SN_POSITION_PAIR_BYTES;
    return index % 2 == 0 ? (size_t)pair[0] | (size_t)(pair[1] & 0x0F) << 8
                          : (size_t)pair[1] >> 4 | (size_t)pair[2] << 4;
}

SN_INLINE uint8_t sn_tk4_nibble(const uint8_t *codes, size_t n_kept, size_t index)
{
    const uint8_t *nibbles = codes + n_kept / 2 * SN_POSITION_PAIR_BYTES;
    return index < n_kept / 2 ? nibbles[index] & 0x0F : nibbles[index - n_kept / 2] >> 4;
}

/* TK2: two levels of 16 bits, the low bits of positions, their high bits, two bits an entry. */
enum {
    SN_TK2_TABLE_BYTES = 4,
    SN_TK2_LEVELS = 32767,
    SN_TK2_LARGE = 1,
    SN_TK2_NEGATIVE = 2,
};

SN_INLINE size_t sn_tk2_high_at(const sn_format *format)
{
    return SN_TK2_TABLE_BYTES + format->n_kept * format->low_bits / 8;
}

SN_INLINE size_t sn_tk2_pairs_at(const sn_format *format)
{
    return format->block_code_bytes - format->n_kept / 4;
}

SN_INLINE unsigned sn_tk2_pair(const sn_format *format, const uint8_t *codes, size_t index)
{
    const unsigned four = codes[sn_tk2_pairs_at(format) + index / 4];
    return four >> index % 4 * 2 & 3u;
}

/* Writes the positions of a tile, at most n_kept; returns how many its high bits have. */
static inline size_t sn_tk2_positions(const sn_format *format, const uint8_t *codes,
                                      uint16_t positions[SN_KEPT_MAX])
{
    const uint8_t *low = codes + SN_TK2_TABLE_BYTES;
    const size_t begin = sn_tk2_high_at(format);
    const size_t end = sn_tk2_pairs_at(format);
    const uint32_t low_mask = (1u << format->low_bits) - 1;
    size_t count = 0;
    for (size_t at = begin; at < end; at++) {
        for (unsigned bits = codes[at]; bits != 0; bits &= bits - 1) {
            if (count < format->n_kept) {
                /* At most nine bits lie in two bytes; the byte after the last is of the high bits. */
                const size_t bit = count * format->low_bits;
                const uint32_t two = (uint32_t)low[bit / 8] | (uint32_t)low[bit / 8 + 1] << 8;
                const size_t high = (at - begin) * 8 + (size_t)__builtin_ctz(bits) - count;
                const uint32_t low_part = two >> bit % 8 & low_mask;
                positions[count] = (uint16_t)(high << format->low_bits | low_part);
            }
            count++;
        }
    }
    return count;
}

enum { SN_GROUP_BLOCKS = 16 }; /* 4 KiB of float32 */

#define SN_ABS_MASK 0x7FFFFFFFu
#define SN_INFINITY_BITS 0x7F800000u
#define SN_INVALID_Q8_BYTE 0x80u

/* A block whose largest value is below this many levels is all zero. Elements that are denormal
 * then never reach a code other than 0, so a thread that flushes denormals writes the same bytes;
 * and 1 / scale is always finite. */
#define SN_SCALE_MIN 0x1p-124f

/* E3M0: a value is 2^(level - 7) of the scale, levels 1 to 7; 0 is zero. Times 2^7.5 / scale, its
 * level is the exponent: that of the nearest power of two in log2. A scale below 2^-110 is zero,
 * so that no denormal reaches level 1. */
#define SN_E3M0_FACTOR 0x1.6a09e6p+7f
#define SN_E3M0_SCALE_BITS_MIN 0x08800000u
#define SN_E3M0_LEVELS 7
#define SN_E3M0_POSITIVE 8 /* the sign in a nibble; a zero is positive, so nibble 0 is invalid */
#define SN_EXPONENT_SHIFT 23
#define SN_EXPONENT_BIAS 127

/* SIGN64: smaller ones do not count in the mean. Then every term is normal, and a thread that
 * flushes denormals writes the same bytes. */
#define SN_SIGN_BITS_MIN 0x0D800000 /* 2^-100 */
#define SN_SIGN_FACTOR 0x1p-6f

/* Q2B64: four levels with the least square error for a Gaussian, in units of its mean magnitude
 * (Max 1960, Lloyd 1982): a magnitude above 1.2303 scales is 1.8926 of them, another one 0.5674. */
#define SN_Q2_THRESHOLD 0x1.3af4fp+0f
#define SN_Q2_SMALL 0x1.22824p-1f
#define SN_Q2_LARGE 0x1.e4817p+0f

/* What the encoders of SIGN64 and Q2B64 need to know of 64 values. */
typedef struct {
    uint32_t amax_bits;
    float mean;     /* of the magnitudes; means nothing if one is not finite */
    uint64_t signs; /* bit i is that of element i */
} sn_sign_summary;

/* The kernels read ahead of the processor's own prefetcher, which stops at a page of 4 KiB. */
#define SN_PREFETCH_BYTES 4096

/* From here on (512 KiB of float32) decoded values bypass the cache: they are for another process
 * to read later, and not fetching a line only to overwrite it is worth a third of the time. */
#define SN_STREAM_BLOCKS 2048

static inline float sn_float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t sn_bits_from_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float sn_scale_from_bits(uint32_t scale_bits)
{
    return sn_float_from_bits(scale_bits << 16);
}

/* The bfloat16 scale of a block: amax / levels rounded up, so that no code exceeds `levels`. */
static inline uint32_t sn_scale_bits(uint32_t amax_bits, const sn_format *format)
{
    const float exact = sn_float_from_bits(amax_bits) / format->levels;
    const uint32_t rounded_up = (sn_bits_from_float(exact) + 0xFFFFu) >> 16;
    const uint32_t largest = format->scale_bits_max;
    const uint32_t capped = rounded_up < largest ? rounded_up : largest;
    return exact < SN_SCALE_MIN ? 0 : capped;
}

/* What values are multiplied by to become codes; 0 for a scale of 0. */
static inline float sn_inverse_scale(uint32_t scale_bits)
{
    const float inverse = 1.0f / sn_scale_from_bits(scale_bits);
    return scale_bits == 0 ? 0.0f : inverse;
}

static inline uint32_t sn_e3m0_scale_bits(uint32_t amax_bits)
{
    return amax_bits < SN_E3M0_SCALE_BITS_MIN ? 0 : amax_bits;
}

static inline float sn_e3m0_inverse_scale(uint32_t scale_bits)
{
    const float inverse = SN_E3M0_FACTOR / sn_float_from_bits(scale_bits);
    return scale_bits == 0 ? 0.0f : inverse;
}

/* Vector encoders work on groups of blocks in two passes over the first-level cache: the largest
 * magnitude of every block, then the codes. Between them the scales of the whole group are a few
 * vector instructions, where block by block each code would wait for two divisions in a row. */
typedef struct {
    uint32_t amax_bits[SN_GROUP_BLOCKS];
    float inverse_scales[SN_GROUP_BLOCKS];
} sn_group;

/* Writes the scales of the first `count` blocks, whose amax_bits are set, and their inverses. */
SN_INLINE void sn_group_scale_bf16(sn_group *group, size_t count, const sn_format *format,
                                   uint8_t *scales)
{
    uint16_t stored[SN_GROUP_BLOCKS];
    for (size_t i = 0; i < SN_GROUP_BLOCKS; i++) {
        const uint32_t scale_bits = sn_scale_bits(group->amax_bits[i], format);
        stored[i] = (uint16_t)scale_bits;
        group->inverse_scales[i] = sn_inverse_scale(scale_bits);
    }
    memcpy(scales, stored, count * sizeof stored[0]);
}

/* The same for E3M0, where four blocks of 64 share a scale. */
SN_INLINE void sn_group_scale_e3m0(sn_group *group, size_t count, uint8_t *scales)
{
    uint32_t stored[SN_GROUP_BLOCKS / SN_E3M0_BLOCKS];
    for (size_t i = 0; i < SN_GROUP_BLOCKS; i += SN_E3M0_BLOCKS) {
        uint32_t amax_bits = 0;
        for (size_t j = 0; j < SN_E3M0_BLOCKS; j++) {
            const uint32_t other = group->amax_bits[i + j];
            amax_bits = other > amax_bits ? other : amax_bits;
        }
        const uint32_t scale_bits = sn_e3m0_scale_bits(amax_bits);
        stored[i / SN_E3M0_BLOCKS] = scale_bits;
        for (size_t j = 0; j < SN_E3M0_BLOCKS; j++) {
            group->inverse_scales[i + j] = sn_e3m0_inverse_scale(scale_bits);
        }
    }
    memcpy(scales, stored, count / SN_E3M0_BLOCKS * sizeof stored[0]);
}

SN_INLINE void sn_group_scale(sn_group *group, size_t count, const sn_format *format,
                              uint8_t *scales)
{
    if (format->codec == SN_E3M0) {
        sn_group_scale_e3m0(group, count, scales);
    } else {
        sn_group_scale_bf16(group, count, format, scales);
    }
}

/* The index of the first of `count` blocks that is not finite, or `count`. */
static inline size_t sn_group_refused(const sn_group *group, size_t count)
{
    size_t i = 0;
    while (i < count && group->amax_bits[i] < SN_INFINITY_BITS) {
        i++;
    }
    return i;
}

/* Scales of two bytes are bfloat16, of four bytes float32. */
SN_INLINE void sn_scale_store(uint8_t *scales, size_t block, uint32_t scale_bits)
{
    const uint16_t stored = (uint16_t)scale_bits;
    memcpy(scales + block * sizeof stored, &stored, sizeof stored);
}

SN_INLINE float sn_scale_load(const uint8_t *scales, size_t block)
{
    uint16_t stored;
    memcpy(&stored, scales + block * sizeof stored, sizeof stored);
    return sn_scale_from_bits(stored);
}

/* The scale of the block-th 64 elements. */
SN_INLINE float sn_e3m0_scale_load(const uint8_t *scales, size_t block)
{
    float scale;
    memcpy(&scale, scales + block / SN_E3M0_BLOCKS * sizeof scale, sizeof scale);
    return scale;
}

/* A reference and a decoded difference may be finite and their sum not. */
SN_INLINE float sn_saturated(float value)
{
    const float capped = value > FLT_MAX ? FLT_MAX : value;
    return capped < -FLT_MAX ? -FLT_MAX : capped;
}

SN_INLINE float sn_merged(float own, float decoded, float own_weight, float peer_weight)
{
    const float own_part = own_weight * own;
    const float peer_part = peer_weight * decoded;
    return own_part + peer_part;
}

/* Halves round away from zero: add a half with the sign of t, then truncate. */
SN_INLINE int32_t sn_code_of(float value, float inverse_scale)
{
    const float t = value * inverse_scale;
    return (int32_t)(t + (t < 0.0f ? -0.5f : 0.5f));
}

/* 64 bytes of 0 or 1 to 64 bits. */
SN_INLINE uint64_t sn_bits_packed(const uint8_t flags[64])
{
    uint64_t packed = 0;
#if defined(__x86_64__) /* SSE2 is always there */
    for (int i = 0; i < 4; i++) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)(flags + i * 16));
        const uint32_t sixteen = (uint32_t)_mm_movemask_epi8(_mm_slli_epi16(bytes, 7));
        packed |= (uint64_t)sixteen << 16 * i;
    }
#else /* the product moves the low bits of eight bytes into the highest byte */
    for (int i = 0; i < 8; i++) {
        uint64_t eight;
        memcpy(&eight, flags + i * 8, sizeof eight);
        packed |= (eight * 0x0102040810204080u >> 56) << 8 * i;
    }
#endif
    return packed;
}

/* A hint may lie past the end of an array: harmless to the processor, and as an integer to C. */
static inline const void *sn_ahead(const uint8_t *at)
{
    return (const void *)((uintptr_t)at + SN_PREFETCH_BYTES);
}

/* Asks for what is SN_PREFETCH_BYTES ahead of `size_bytes` of memory. */
SN_INLINE void sn_prefetch(const uint8_t *at, size_t size_bytes)
{
    for (size_t line = 0; line < size_bytes; line += 64) {
        __builtin_prefetch(sn_ahead(at + line));
    }
}

/* The tables of one instruction set, in the order of sn_codec. */
#define SN_EXTERN_KERNELS(isa)                                                                     \
    extern const sn_kernels sn_raw32_##isa, sn_bf16_##isa, sn_q8_##isa, sn_q4_##isa,               \
        sn_e3m0_##isa, sn_sign_##isa, sn_tk4_##isa, sn_tk2_##isa, sn_q2_##isa,      \
        sn_t3_##isa

#define SN_KERNELS(codec, measured, check, weigh)                                                  \
    {                                                                                              \
        codec##_encode, codec##_decode, measured, codec##_merge, check, weigh                      \
    }

#define SN_DEFINE_KERNELS(isa)                                                                     \
    const sn_kernels sn_raw32_##isa = SN_KERNELS(raw32, NULL, raw32_check, NULL);                  \
    const sn_kernels sn_bf16_##isa = SN_KERNELS(bf16, NULL, bf16_check, NULL);                     \
    const sn_kernels sn_q8_##isa = SN_KERNELS(q8, q8_decode_measured, q8_check, q8_weigh);         \
    const sn_kernels sn_q4_##isa = SN_KERNELS(q4, q4_decode_measured, q4_check, q4_weigh);         \
    const sn_kernels sn_e3m0_##isa =                                                               \
        SN_KERNELS(e3m0, e3m0_decode_measured, q4_check, e3m0_weigh);                              \
    const sn_kernels sn_sign_##isa = SN_KERNELS(sign, NULL, sign_check, NULL);                     \
    const sn_kernels sn_tk4_##isa = SN_KERNELS(tk4, NULL, tk4_check, NULL);                        \
    const sn_kernels sn_tk2_##isa = SN_KERNELS(tk2, NULL, tk2_check, NULL);                        \
    const sn_kernels sn_q2_##isa = SN_KERNELS(q2, q2_decode_measured, sign_check, q2_weigh);       \
    const sn_kernels sn_t3_##isa = SN_KERNELS(t3, t3_decode_measured, t3_check, t3_weigh);         \
    SN_DEFINE_WIDE(isa)

#define SN_DECLARE_ISA(isa)                                                                        \
    SN_EXTERN_KERNELS(isa);                                                                        \
    extern const sn_wide sn_wide_##isa;                                                            \
    void sn_measure_##isa(const uint8_t *values, size_t n_rows, sn_lanes *lanes)

SN_DECLARE_ISA(ref);
#if defined(__x86_64__)
SN_DECLARE_ISA(avx2);
SN_DECLARE_ISA(avx512);
#elif defined(__aarch64__)
SN_DECLARE_ISA(neon);
#endif

#endif
