/* FIPS 180-4, with the SHA extensions of x86-64: four rounds of both messages in turn. */
#include "sn_sha256.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define SN_SHA __attribute__((target("sha,sse4.1,ssse3")))

enum { BLOCK_BYTES = 64, LENGTH_BYTES = 8, CPUID_SHA_BIT = 29, CPUID_SSE41_BIT = 19 };

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

/* The eight words, in the order that the instructions want. */
typedef struct {
    __m128i abef;
    __m128i cdgh;
} sn_state;

SN_SHA static inline __m128i to_big_endian(__m128i words)
{
    return _mm_shuffle_epi8(words, _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203));
}

SN_SHA static inline void block_load(const uint8_t *block, __m128i words[4])
{
    for (int i = 0; i < 4; i++) {
        words[i] = to_big_endian(_mm_loadu_si128((const __m128i *)(const void *)(block + 16 * i)));
    }
}

SN_SHA static inline void two_rounds(sn_state *state, __m128i words)
{
    const __m128i old = state->abef;
    state->abef = _mm_sha256rnds2_epu32(state->cdgh, old, words);
    state->cdgh = old;
}

/* Words of four rounds, sixteen later. */
SN_SHA static inline __m128i next_words(const __m128i words[4], int i)
{
    const __m128i last = words[(i + 3) & 3];
    const __m128i middle = _mm_alignr_epi8(last, words[(i + 2) & 3], 4);
    const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(words[i], words[(i + 1) & 3]), middle);
    return _mm_sha256msg2_epu32(sum, last);
}

SN_SHA static inline void state_add(sn_state *state, const sn_state *other)
{
    state->abef = _mm_add_epi32(state->abef, other->abef);
    state->cdgh = _mm_add_epi32(state->cdgh, other->cdgh);
}

SN_SHA static void blocks_take(sn_state states[2], const uint8_t *const blocks[2], size_t n_blocks)
{
    sn_state a = states[0];
    sn_state b = states[1];
    for (size_t at = 0; at < n_blocks * BLOCK_BYTES; at += BLOCK_BYTES) {
        const sn_state a_before = a;
        const sn_state b_before = b;
        __m128i a_words[4];
        __m128i b_words[4];
        block_load(blocks[0] + at, a_words);
        block_load(blocks[1] + at, b_words);
#pragma GCC unroll 16
        for (int step = 0; step < 16; step++) {
            const int i = step & 3;
            const __m128i four =
                _mm_loadu_si128((const __m128i *)(const void *)(constants + 4 * step));
            const __m128i a_four = _mm_add_epi32(a_words[i], four);
            const __m128i b_four = _mm_add_epi32(b_words[i], four);
            two_rounds(&a, a_four);
            two_rounds(&b, b_four);
            two_rounds(&a, _mm_shuffle_epi32(a_four, 0x0e));
            two_rounds(&b, _mm_shuffle_epi32(b_four, 0x0e));
            if (step < 12) {
                a_words[i] = next_words(a_words, i);
                b_words[i] = next_words(b_words, i);
            }
        }
        state_add(&a, &a_before);
        state_add(&b, &b_before);
    }
    states[0] = a;
    states[1] = b;
}

SN_SHA static void digest_write(const sn_state *state, uint8_t *digest)
{
    /* a b e f, c d g h from the highest word down; wanted: a b c d, e f g h from the lowest up. */
    const __m128i abcd = _mm_unpackhi_epi64(state->cdgh, state->abef);
    const __m128i efgh = _mm_unpacklo_epi64(state->cdgh, state->abef);
    const __m128i first = to_big_endian(_mm_shuffle_epi32(abcd, 0x1b));
    const __m128i second = to_big_endian(_mm_shuffle_epi32(efgh, 0x1b));
    _mm_storeu_si128((__m128i *)(void *)digest, first);
    _mm_storeu_si128((__m128i *)(void *)(digest + 16), second);
}

/* Writes what comes behind the last whole block; returns how many blocks that makes. */
static size_t tail_write(uint8_t *tail, size_t rest_bytes, size_t message_bytes)
{
    const size_t n_blocks = rest_bytes + 1 + LENGTH_BYTES > BLOCK_BYTES ? 2 : 1;
    tail[rest_bytes] = 0x80;
    for (size_t i = 0; i < LENGTH_BYTES; i++) {
        tail[n_blocks * BLOCK_BYTES - 1 - i] = (uint8_t)((uint64_t)message_bytes * 8 >> (8 * i));
    }
    return n_blocks;
}

int sn_sha256_is_there(void)
{
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> CPUID_SSE41_BIT & 1)) {
        return 0;
    }
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> CPUID_SHA_BIT & 1);
}

SN_SHA void sn_sha256_two(uint8_t first, const uint8_t *const messages[2], size_t n_bytes,
                          uint8_t digests[2][SN_SHA256_BYTES])
{
    const sn_state start = {_mm_set_epi32(0x6a09e667, (int)0xbb67ae85, 0x510e527f, (int)0x9b05688c),
                            _mm_set_epi32(0x3c6ef372, (int)0xa54ff53a, 0x1f83d9ab, 0x5be0cd19)};
    sn_state states[2] = {start, start};
    uint8_t tails[2][2 * BLOCK_BYTES] = {{first}, {first}};
    const uint8_t *const both[2] = {tails[0], tails[1]};
    size_t at = 0;        /* of a message */
    size_t tail_from = 1; /* where its rest goes */
    if (n_bytes >= BLOCK_BYTES - 1) {
        at = BLOCK_BYTES - 1;
        for (int i = 0; i < 2; i++) {
            memcpy(tails[i] + 1, messages[i], at);
        }
        blocks_take(states, both, 1);
        const uint8_t *const whole[2] = {messages[0] + at, messages[1] + at};
        const size_t n_blocks = (n_bytes - at) / BLOCK_BYTES;
        blocks_take(states, whole, n_blocks);
        at += n_blocks * BLOCK_BYTES;
        tail_from = 0;
        memset(tails, 0, sizeof tails);
    }
    const size_t rest_bytes = n_bytes - at;
    size_t n_tail_blocks = 0;
    for (int i = 0; i < 2; i++) {
        memcpy(tails[i] + tail_from, messages[i] + at, rest_bytes);
        n_tail_blocks = tail_write(tails[i], tail_from + rest_bytes, n_bytes + 1);
    }
    blocks_take(states, both, n_tail_blocks);
    digest_write(&states[0], digests[0]);
    digest_write(&states[1], digests[1]);
}

#else

int sn_sha256_is_there(void)
{
    return 0;
}

void sn_sha256_two(uint8_t first, const uint8_t *const messages[2], size_t n_bytes,
                   uint8_t digests[2][SN_SHA256_BYTES])
{
    (void)first;
    (void)messages;
    (void)n_bytes;
    memset(digests, 0, 2 * SN_SHA256_BYTES);
}

#endif
