/* Block codecs Q8B64 and Q4B64: float32 vectors to bytes and back.
 *
 * The payload of n elements, with n_blocks = ceil(n / 64):
 *
 *     scales   n_blocks x 2 bytes     bfloat16, little endian
 *     codes    n_blocks x 64 bytes    Q8B64: one signed byte an element
 *              n_blocks x 32 bytes    Q4B64: byte t of a block holds elements t and t + 32
 *
 * proto/codecs.md is the contract; src/ref.c is the same contract in C, and every other
 * instruction set must give its bytes and its floats bit for bit. No function here allocates,
 * keeps state or knows Python. Pointers need no alignment.
 */
#ifndef SN_CODEC_H
#define SN_CODEC_H

#include <float.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SN_BLOCK_ELEMS = 64,
    SN_BLOCK_BYTES = 256, /* of float32 */
    SN_SCALE_BYTES = 2,
    SN_Q8_CODE_BYTES = 64, /* codes of one block */
    SN_Q4_CODE_BYTES = 32,
};

_Static_assert(CHAR_BIT == 8 && sizeof(float) == 4, "float32 has four bytes of eight bits");
_Static_assert(SN_BLOCK_BYTES == SN_BLOCK_ELEMS * sizeof(float), "a block is 64 float32");
_Static_assert(SN_Q8_CODE_BYTES * CHAR_BIT == SN_BLOCK_ELEMS * 8, "eight bits a code");
_Static_assert(SN_Q4_CODE_BYTES * CHAR_BIT == SN_BLOCK_ELEMS * 4, "four bits a code");
_Static_assert(FLT_RADIX == 2 && FLT_MANT_DIG == 24 && FLT_MAX_EXP == 128, "IEEE binary32");
_Static_assert(FLT_EVAL_METHOD == 0, "an expression of floats is rounded to float at each step");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats and scales are little endian");

/* The codecs of one instruction set, over whole blocks. */
typedef struct {
    /* Returns the index of the first block with a NaN or infinity, where it stops, or n_blocks. */
    size_t (*encode)(const uint8_t *values, uint8_t *scales, uint8_t *codes, size_t n_blocks);
    void (*decode)(const uint8_t *scales, const uint8_t *codes, uint8_t *out, size_t n_blocks);
    /* target = own_weight * target + peer_weight * decoded: two products, one sum, each rounded. */
    void (*merge)(const uint8_t *scales, const uint8_t *codes, uint8_t *target, size_t n_blocks,
                  float own_weight, float peer_weight);
    /* Nonzero if a code is one that no encoder writes (-128, or a nibble of 0). */
    int (*has_invalid_code)(const uint8_t *codes, size_t n_blocks);
} sn_kernels;

/* What differs between the codecs apart from the kernels. */
typedef struct {
    int bits;                /* of a code */
    size_t block_code_bytes; /* codes of one block */
    float levels;            /* the largest code */
    uint32_t scale_bits_max; /* the largest bfloat16 whose product with `levels` is finite */
    uint8_t zero_code_byte;  /* a byte of codes that all mean zero */
} sn_format;

typedef struct {
    const char *name; /* what SWARMNODE_NATIVE calls it */
    int (*is_supported)(void);
    const sn_kernels *q8;
    const sn_kernels *q4;
} sn_isa;

typedef enum {
    SN_VALID = 0,
    SN_INVALID_SCALE = 1,
    SN_INVALID_CODE = 2,
    SN_INVALID_PADDING = 3,
} sn_verdict;

/* dispatch.c: the index-th instruction set that this machine can run, best first, or NULL. */
const sn_isa *sn_isa_at(size_t index);

/* payload.c: whole payloads of n_elems elements, and a last block that may be part full. */
const sn_format *sn_format_of(int bits); /* NULL unless bits is 8 or 4 */
size_t sn_payload_bytes(const sn_format *format, size_t n_elems);
/* Returns n_blocks, or the index of the first block that is not finite; then the whole payload
 * is filled with 0xFF, which no decoder accepts. */
size_t sn_encode(const sn_isa *isa, const sn_format *format, const uint8_t *values, size_t n_elems,
                 uint8_t *payload);
sn_verdict sn_validate(const sn_isa *isa, const sn_format *format, const uint8_t *payload,
                       size_t n_elems);
/* Both write nothing unless the payload is valid. */
sn_verdict sn_decode(const sn_isa *isa, const sn_format *format, const uint8_t *payload,
                     size_t n_elems, uint8_t *out);
sn_verdict sn_merge(const sn_isa *isa, const sn_format *format, const uint8_t *payload,
                    size_t n_elems, uint8_t *target, float own_weight, float peer_weight);

#endif
