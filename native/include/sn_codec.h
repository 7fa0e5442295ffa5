/* Codecs: float32 vectors to bytes and back.
 *
 * The payload of n elements, with n_blocks = ceil(n / block_elems):
 *
 *     scales   n_blocks x scale_bytes          none, bfloat16 or float32, little endian
 *     codes    n_blocks x block_code_bytes     as each codec packs them
 *
 * RAW32 and BF16 have blocks of one element and no scales. proto/codecs.md is the contract; the
 * kernels of src/ref.c are the same contract in C, and every other instruction set must give its
 * bytes and its floats bit for bit. No function here allocates, keeps state or knows Python.
 * Pointers need no alignment.
 */
#ifndef SN_CODEC_H
#define SN_CODEC_H

#include <float.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers of proto/codecs.md. */
typedef enum {
    SN_RAW32 = 1,
    SN_BF16 = 2,
    SN_Q8 = 3,
    SN_Q4 = 4,
    SN_E3M0 = 5,
    SN_SIGN = 6,
    SN_TK4 = 7,
    SN_TK2 = 8,
    SN_Q2 = 10, /* 9, RAW64, has no kernels */
    SN_T3 = 11,
    SN_CODEC_END = 12,
} sn_codec;

enum {
    SN_BLOCK_ELEMS = 64,       /* what most kernels work on at a time */
    SN_BLOCK_BYTES = 256,      /* of float32 */
    SN_TILE_ELEMS = 4096,      /* a block of TK4 and TK2 */
    SN_BLOCK_BYTES_MAX = 16384, /* of float32, in a block of any codec */
    SN_KEPT_MAX = 2048,        /* elements that they keep of a tile */
};

_Static_assert(CHAR_BIT == 8 && sizeof(float) == 4, "float32 has four bytes of eight bits");
_Static_assert(SN_BLOCK_BYTES == SN_BLOCK_ELEMS * sizeof(float), "a block is 64 float32");
_Static_assert(SN_BLOCK_BYTES_MAX == SN_TILE_ELEMS * sizeof(float), "TK4 has the largest block");
_Static_assert(FLT_RADIX == 2 && FLT_MANT_DIG == 24 && FLT_MAX_EXP == 128, "IEEE binary32");
_Static_assert(FLT_EVAL_METHOD == 0, "an expression of floats is rounded to float at each step");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats and scales are little endian");

/* What differs between the codecs apart from the kernels. */
typedef struct {
    sn_codec codec;
    size_t block_elems;
    size_t scale_bytes;      /* of one block: 0, 2 or 4 */
    size_t block_code_bytes; /* codes of one block */
    uint32_t scale_bits_max; /* the largest scale that decodes to finite values only */
    float levels;            /* the largest code of Q8B64, Q4B64 and TK4; the largest level of TK2 */
    size_t n_kept;           /* elements that TK4 and TK2 keep of a tile */
    unsigned low_bits;       /* of a position, that TK2 writes as they are */
} sn_format;

typedef enum {
    SN_VALID = 0,
    SN_INVALID_SCALE = 1,
    SN_INVALID_CODE = 2,
    SN_INVALID_PADDING = 3,
    SN_INVALID_VALUE = 4,
    SN_INVALID_POSITION = 5,
} sn_verdict;

/* Whole blocks of float32; of a reference, what is encoded is the difference to it. */
typedef struct {
    const sn_format *format;
    const uint8_t *values;
    const uint8_t *reference; /* as long as the values, or NULL */
    size_t n_blocks;
} sn_values;

/* Whole blocks of a payload. */
typedef struct {
    const sn_format *format;
    const uint8_t *scales;
    const uint8_t *codes;
    const uint8_t *reference;
    size_t n_blocks;
} sn_coded;

/* How large a vector is. Lane i has seen elements i, i + 8, i + 16 ..., in this order: so every
 * instruction set rounds the same sums, and the norm has equal bits on all machines. */
enum { SN_LANES = 8, SN_ROW_BYTES = 32 };

typedef struct {
    float largest[SN_LANES]; /* of the absolute values, but for NaN */
    double square_sums[SN_LANES];
} sn_lanes;

/* Of all lanes; both 0 for no elements. A NaN makes the sum one, and does not count in the
 * largest. */
typedef struct {
    double largest;
    double square_sum;
} sn_magnitude;

/* One codec on one instruction set. */
typedef struct {
    /* Returns the index of the first block with a NaN or infinity, where it stops, or n_blocks. */
    size_t (*encode)(const sn_values *from, uint8_t *scales, uint8_t *codes);
    void (*decode)(const sn_coded *from, uint8_t *out);
    /* The same, and the lanes take in every element while it is in a register: large outputs
     * bypass the cache, so measuring afterwards reads all of them from memory again. NULL where
     * decoding a part and then measuring it in the cache is as good. */
    void (*decode_measured)(const sn_coded *from, uint8_t *out, sn_lanes *lanes);
    /* target = own_weight * target + peer_weight * decoded: two products, one sum, each rounded. */
    void (*merge)(const sn_coded *from, uint8_t *target, float own_weight, float peer_weight);
    /* Whether an encoder could have written these codes. */
    sn_verdict (*check)(const sn_coded *from);
    /* sums += weight * decoded, in float64: a product and a sum, each rounded. No reference counts.
     * NULL where decoding a part and then weighing it in the cache is as good. */
    void (*weigh)(const sn_coded *from, double weight, double *sums);
} sn_kernels;

/* What is done in float64, whatever the codec; see sn_wide.h. */
typedef struct {
    void (*weigh)(const float *values, size_t n_elems, double weight, double *sums);
    void (*divide)(const double *sums, size_t n_elems, double divisor, float *out);
    void (*widen)(const float *values, size_t n_elems, double *out);
    double (*product)(const double *a, const double *b, size_t n_elems);
} sn_wide;

typedef struct {
    const char *name; /* what SWARMNODE_NATIVE calls it */
    int (*is_supported)(void);
    const sn_kernels *codecs[SN_CODEC_END];
    /* Takes in n_rows rows of eight float32. */
    void (*measure)(const uint8_t *values, size_t n_rows, sn_lanes *lanes);
    const sn_wide *wide;
} sn_isa;

/* dispatch.c: the index-th instruction set that this machine can run, best first, or NULL. */
const sn_isa *sn_isa_at(size_t index);

/* payload.c: whole payloads of n_elems elements, and a last block that may be part full.
 * n_kept belongs to TK4 (even, 2 to SN_KEPT_MAX) and to TK2 (a multiple of 8); 0 with every other
 * codec. Returns 0 if there is no such codec. */
int sn_format_read(int codec, int n_kept, sn_format *format);
size_t sn_payload_bytes(const sn_format *format, size_t n_elems);
size_t sn_n_blocks(const sn_format *format, size_t n_elems);
/* Whether values are encoded as the difference to a reference if there is one. */
int sn_takes_reference(const sn_format *format);
/* Returns n_blocks, or the index of the first block that is not finite; then the whole payload
 * is filled with 0xFF, which no decoder accepts. */
size_t sn_encode(const sn_isa *isa, const sn_format *format, const uint8_t *values,
                 const uint8_t *reference, size_t n_elems, uint8_t *payload);
sn_verdict sn_validate(const sn_isa *isa, const sn_format *format, const uint8_t *payload,
                       size_t n_elems);
/* All three write nothing unless the payload is valid. */
sn_verdict sn_decode(const sn_isa *isa, const sn_format *format, const uint8_t *payload,
                     const uint8_t *reference, size_t n_elems, uint8_t *out);
/* Decodes; the magnitude is sn_measure's of `out`, bit for bit. */
sn_verdict sn_decode_measured(const sn_isa *isa, const sn_format *format, const uint8_t *payload,
                              const uint8_t *reference, size_t n_elems, uint8_t *out,
                              sn_magnitude *magnitude);
sn_verdict sn_merge(const sn_isa *isa, const sn_format *format, const uint8_t *payload,
                    const uint8_t *reference, size_t n_elems, uint8_t *target, float own_weight,
                    float peer_weight);

/* shares.c: several payloads of one codec, of n_elems elements each, without a decoded copy. What
 * one holds is `weight` times as much in the sum. */
typedef struct {
    const uint8_t *payload;
    double weight;
} sn_share;

/* How large a payload's values are: the magnitude is sn_measure's of what it decodes to. */
sn_verdict sn_payload_measure(const sn_isa *isa, const sn_format *format, const uint8_t *payload,
                              size_t n_elems, sn_magnitude *magnitude);
/* The payload of the sum by weight over `divisor`. `n_encoded` is what sn_encode returns. */
sn_verdict sn_mean(const sn_isa *isa, const sn_format *format, const sn_share *shares,
                   size_t n_shares, size_t n_elems, double divisor, uint8_t *payload,
                   size_t *n_encoded);
/* Adds the inner products of all pairs, i <= j, to gram [n_shares, n_shares]. `room` holds
 * sn_products_room() of float64. */
size_t sn_products_room(const sn_format *format, size_t n_shares);
sn_verdict sn_products(const sn_isa *isa, const sn_format *format, const sn_share *shares,
                       size_t n_shares, size_t n_elems, double *room, double *gram);

/* measure.c: how large float32 are. */
sn_magnitude sn_measure(const sn_isa *isa, const uint8_t *values, size_t n_elems);
/* Takes in the next elements of a vector; only its last ones may be no whole row. */
void sn_lanes_take(const sn_isa *isa, const uint8_t *values, size_t n_elems, sn_lanes *lanes);
sn_magnitude sn_lanes_sum(const sn_lanes *lanes);

#endif
