/* Every instruction set of this machine against the reference, on hostile values and payloads.
 *
 * Built with the address and undefined behaviour sanitizers (make -C native test). Buffers are
 * allocated to the byte and start at odd addresses, so a kernel that reads or writes one byte too
 * many, or assumes alignment, ends the run. Seeded: a failure names its round.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>

#include "sn_kernels.h"

enum {
    ROUNDS = 7000,
    LARGE_EVERY = 301, /* no multiple of the number of codecs, so that each has its turn */
    SMALL_ELEMS_MAX = 1300,
    TILES_ELEMS_MAX = 10000,
    GROUP_EVERY = 5, /* a group takes six times as long as a payload */
};

static uint64_t random_state = 20240229;

static uint64_t random_u64(void) /* splitmix64 */
{
    uint64_t z = random_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static size_t random_below(size_t n)
{
    return (size_t)(random_u64() % n);
}

/* `size` bytes that end where the allocation ends, `offset` bytes after a cache line begins. */
typedef struct {
    void *allocation;
    uint8_t *bytes;
    size_t size;
} buffer;

static buffer buffer_new(size_t size, size_t offset)
{
    buffer made = {.size = size};
    if (posix_memalign(&made.allocation, 64, size + offset + (size + offset == 0)) != 0) {
        abort();
    }
    made.bytes = (uint8_t *)made.allocation + offset;
    memset(made.bytes, 0xA5, size);
    return made;
}

static void buffer_free(buffer b)
{
    free(b.allocation);
}

static void fail(const char *what, const sn_isa *isa, const sn_format *format, int round)
{
    fprintf(stderr, "round %d, codec %d: %s differs from ref in %s\n", round, (int)format->codec,
            isa->name, what);
    exit(1);
}

typedef enum { ANY_BITS, GAUSSIAN_LIKE, EDGES, TIES, DENORMALS, TINY, HUGE, N_KINDS } value_kind;

static float random_value(value_kind kind)
{
    static const uint32_t edges[] = {
        0x00000000u, 0x80000000u, 0x00000001u, 0x807FFFFFu, 0x00800000u, 0x7F7FFFFFu, 0xFF7FFFFFu,
        0x3F800000u, 0xBF800000u, 0x01000000u, 0x02800000u, 0x02000000u, 0x7E800000u, 0x3F000000u,
    };
    const uint64_t bits = random_u64();
    const float unit = (float)(int64_t)bits * 0x1p-63f;
    switch (kind) {
    case ANY_BITS:
        return sn_float_from_bits((uint32_t)bits);
    case GAUSSIAN_LIKE:
        return unit * unit * unit;
    case EDGES:
        return sn_float_from_bits(edges[bits % (sizeof edges / sizeof edges[0])]);
    case TIES: /* half codes: what rounds away from zero */
        return (float)((int)(bits % 255) - 127) * 0.5f;
    case DENORMALS:
        return sn_float_from_bits((uint32_t)bits & 0x80FFFFFFu);
    case TINY: /* around the smallest scale */
        return unit * 0x1p-117f;
    default:
        return unit * FLT_MAX;
    }
}

static void values_fill(buffer values)
{
    const value_kind kind = (value_kind)random_below(N_KINDS);
    for (size_t i = 0; i < values.size; i += sizeof(float)) {
        const int is_other = random_below(16) == 0;
        const float value =
            random_value(is_other ? (value_kind)(ANY_BITS + 1 + random_below(N_KINDS - 1)) : kind);
        memcpy(values.bytes + i, &value, sizeof value);
    }
}

static void payload_mutate(buffer payload)
{
    if (payload.size == 0) {
        return;
    }
    for (size_t n = random_below(4); n > 0; n--) {
        payload.bytes[random_below(payload.size)] ^= (uint8_t)(1u << random_below(8));
    }
    if (random_below(8) == 0) {
        for (size_t i = 0; i < payload.size; i++) {
            payload.bytes[i] = (uint8_t)random_u64();
        }
    }
}

static int is_same_floats(buffer a, buffer b)
{
    for (size_t i = 0; i < a.size; i += sizeof(float)) {
        float x;
        float y;
        memcpy(&x, a.bytes + i, sizeof x);
        memcpy(&y, b.bytes + i, sizeof y);
        /* Which NaN comes out of infinity - infinity is the processor's choice. */
        if (sn_bits_from_float(x) != sn_bits_from_float(y) && !(x != x && y != y)) {
            return 0;
        }
    }
    return 1;
}

/* A thread that flushes denormals (torch can switch that on) must encode the same bytes. */
static void flush_denormals(int on)
{
#if defined(__x86_64__)
    const unsigned int flush = 0x8040; /* FTZ and DAZ */
    __builtin_ia32_ldmxcsr((__builtin_ia32_stmxcsr() & ~flush) | (on ? flush : 0));
#else
    (void)on;
#endif
}

static void encode_compare(const sn_isa *ref, const sn_isa *isa, const sn_format *format,
                           buffer values, const uint8_t *reference, buffer expected, int round)
{
    const size_t n_elems = values.size / sizeof(float);
    buffer got = buffer_new(expected.size, random_below(8));
    const size_t expected_blocks =
        sn_encode(ref, format, values.bytes, reference, n_elems, expected.bytes);
    const size_t got_blocks =
        sn_encode(isa, format, values.bytes, reference, n_elems, got.bytes);
    if (got_blocks != expected_blocks || memcmp(got.bytes, expected.bytes, got.size) != 0) {
        fail("encode", isa, format, round);
    }
    const int is_refused = expected_blocks != sn_n_blocks(format, n_elems);
    const int is_valid = sn_validate(ref, format, got.bytes, n_elems) == SN_VALID;
    if (is_refused == is_valid) {
        fail("validity of what it encodes", isa, format, round);
    }
    /* The difference of two denormals is one that a thread may flush before it is encoded. */
    if (reference == NULL) {
        flush_denormals(1);
        sn_encode(isa, format, values.bytes, NULL, n_elems, got.bytes);
        flush_denormals(0);
        if (memcmp(got.bytes, expected.bytes, got.size) != 0) {
            fail("encode with denormals flushed", isa, format, round);
        }
    }
    buffer_free(got);
}

static void finiteness_check(const sn_isa *isa, const sn_format *format, buffer decoded, int round)
{
    for (size_t i = 0; i < decoded.size; i += sizeof(float)) {
        uint32_t bits;
        memcpy(&bits, decoded.bytes + i, sizeof bits);
        if ((bits & SN_ABS_MASK) >= SN_INFINITY_BITS) {
            fail("finiteness of a valid payload", isa, format, round);
        }
    }
}

/* Bit for bit, but for which NaN a sum is. */
static int is_same_magnitude(sn_magnitude a, sn_magnitude b)
{
    const int is_nan = a.square_sum != a.square_sum && b.square_sum != b.square_sum;
    return memcmp(&a.largest, &b.largest, sizeof a.largest) == 0 &&
           (is_nan || memcmp(&a.square_sum, &b.square_sum, sizeof a.square_sum) == 0);
}

/* Decoding and measuring at once is to give what one after the other gives. */
static void decode_measured_compare(const sn_isa *ref, const sn_isa *isa, const sn_format *format,
                                    buffer payload, const uint8_t *reference, buffer expected,
                                    int round)
{
    const size_t n_elems = expected.size / sizeof(float);
    buffer got = buffer_new(expected.size, random_below(4) == 0 ? 0 : random_below(16));
    sn_magnitude magnitude;
    const sn_verdict verdict = sn_decode_measured(isa, format, payload.bytes, reference, n_elems,
                                                  got.bytes, &magnitude);
    if (verdict != sn_validate(ref, format, payload.bytes, n_elems) ||
        !is_same_floats(got, expected)) {
        fail("decode_measured", isa, format, round);
    }
    if (verdict == SN_VALID &&
        !is_same_magnitude(magnitude, sn_measure(ref, expected.bytes, n_elems))) {
        fail("what decode_measured measures", isa, format, round);
    }
    buffer_free(got);
}

static void decode_compare(const sn_isa *ref, const sn_isa *isa, const sn_format *format,
                           buffer payload, const uint8_t *reference, size_t n_elems, int round)
{
    const size_t offset = random_below(4) == 0 ? 0 : random_below(16);
    buffer expected = buffer_new(n_elems * sizeof(float), 0);
    buffer got = buffer_new(n_elems * sizeof(float), offset);
    const sn_verdict verdict =
        sn_decode(ref, format, payload.bytes, reference, n_elems, expected.bytes);
    if (sn_decode(isa, format, payload.bytes, reference, n_elems, got.bytes) != verdict ||
        !is_same_floats(got, expected)) {
        fail("decode", isa, format, round);
    }
    decode_measured_compare(ref, isa, format, payload, reference, expected, round);
    if (verdict == SN_VALID && reference == NULL) {
        finiteness_check(isa, format, got, round);
    }
    values_fill(expected);
    memcpy(got.bytes, expected.bytes, got.size);
    const float own_weight = random_value(GAUSSIAN_LIKE);
    const float peer_weight = random_below(2) ? 1.0f - own_weight : random_value(HUGE);
    const sn_verdict expected_verdict = sn_merge(ref, format, payload.bytes, reference, n_elems,
                                                 expected.bytes, own_weight, peer_weight);
    const sn_verdict got_verdict = sn_merge(isa, format, payload.bytes, reference, n_elems,
                                            got.bytes, own_weight, peer_weight);
    if (got_verdict != expected_verdict || !is_same_floats(got, expected)) {
        fail("merge", isa, format, round);
    }
    buffer_free(expected);
    buffer_free(got);
}

static void measure_compare(const sn_isa *ref, const sn_isa *isa, const sn_format *format,
                            buffer values, int round)
{
    const size_t n_elems = values.size / sizeof(float);
    const sn_magnitude expected = sn_measure(ref, values.bytes, n_elems);
    if (!is_same_magnitude(sn_measure(isa, values.bytes, n_elems), expected)) {
        fail("measure", isa, format, round);
    }
}

enum { SHARES_MAX = 6 };

/* The mean of some payloads, one of which may be hostile, and their inner products. */
static void shares_compare(const sn_isa *ref, const sn_isa *isa, const sn_format *format,
                           const buffer *payloads, size_t n_elems, int round)
{
    const size_t n_shares = 1 + random_below(SHARES_MAX);
    sn_share shares[SHARES_MAX];
    for (size_t i = 0; i < n_shares; i++) {
        shares[i] = (sn_share){payloads[i].bytes, (double)random_value(GAUSSIAN_LIKE)};
    }
    buffer expected = buffer_new(payloads[0].size, random_below(8));
    buffer got = buffer_new(payloads[0].size, random_below(8));
    const double divisor = random_below(2) ? 4.0 : (double)random_value(GAUSSIAN_LIKE) + 2.0;
    size_t expected_blocks;
    size_t got_blocks;
    const sn_verdict expected_verdict = sn_mean(ref, format, shares, n_shares, n_elems, divisor,
                                                expected.bytes, &expected_blocks);
    const sn_verdict got_verdict =
        sn_mean(isa, format, shares, n_shares, n_elems, divisor, got.bytes, &got_blocks);
    if (got_verdict != expected_verdict || got_blocks != expected_blocks ||
        memcmp(got.bytes, expected.bytes, got.size) != 0) {
        fail("mean", isa, format, round);
    }
    double grams[2][SHARES_MAX * SHARES_MAX] = {0};
    buffer room = buffer_new(sn_products_room(format, n_shares) * sizeof(double), 0);
    const sn_verdict verdicts[2] = {
        sn_products(ref, format, shares, n_shares, n_elems, room.allocation, grams[0]),
        sn_products(isa, format, shares, n_shares, n_elems, room.allocation, grams[1]),
    };
    if (verdicts[0] != expected_verdict || verdicts[1] != expected_verdict ||
        memcmp(grams[0], grams[1], sizeof grams[0]) != 0) {
        fail("products", isa, format, round);
    }
    buffer_free(expected);
    buffer_free(got);
    buffer_free(room);
}

static void payload_measure_compare(const sn_isa *ref, const sn_isa *isa, const sn_format *format,
                                    buffer payload, size_t n_elems, int round)
{
    buffer decoded = buffer_new(n_elems * sizeof(float), 0);
    sn_magnitude expected = {0};
    sn_magnitude got;
    const sn_verdict expected_verdict = sn_decode_measured(ref, format, payload.bytes, NULL, n_elems,
                                                           decoded.bytes, &expected);
    const sn_verdict verdict = sn_payload_measure(isa, format, payload.bytes, n_elems, &got);
    if (verdict != expected_verdict || !is_same_magnitude(got, expected)) {
        fail("what payload_measure measures", isa, format, round);
    }
    buffer_free(decoded);
}

/* Payloads of random numbers that are finite, and at times a hostile one among them. */
static void group_compare(const sn_isa *ref, const sn_isa *isa, const sn_format *format,
                          size_t n_elems, int round)
{
    buffer values = buffer_new(n_elems * sizeof(float), random_below(8));
    buffer payloads[SHARES_MAX];
    for (size_t i = 0; i < SHARES_MAX; i++) {
        for (size_t at = 0; at < values.size; at += sizeof(float)) {
            const float value = random_value(round % 3 == 0 ? EDGES : GAUSSIAN_LIKE);
            memcpy(values.bytes + at, &value, sizeof value);
        }
        payloads[i] = buffer_new(sn_payload_bytes(format, n_elems), random_below(8));
        sn_encode(ref, format, values.bytes, NULL, n_elems, payloads[i].bytes);
    }
    if (random_below(4) == 0) {
        payload_mutate(payloads[random_below(SHARES_MAX)]);
    }
    shares_compare(ref, isa, format, payloads, n_elems, round);
    payload_measure_compare(ref, isa, format, payloads[0], n_elems, round);
    for (size_t i = 0; i < SHARES_MAX; i++) {
        buffer_free(payloads[i]);
    }
    buffer_free(values);
}

static sn_format format_of(sn_codec codec)
{
    static const int tk4_kepts[] = {2, 64, 64, 500, SN_KEPT_MAX};
    static const int tk2_kepts[] = {8, 64, 64, 1000, SN_KEPT_MAX};
    const size_t which = random_below(5);
    const int n_kept = codec == SN_TK4 ? tk4_kepts[which] : codec == SN_TK2 ? tk2_kepts[which] : 0;
    sn_format format;
    if (!sn_format_read((int)codec, n_kept, &format)) {
        abort();
    }
    return format;
}

static size_t n_elems_of(const sn_format *format, int round)
{
    if (round % LARGE_EVERY == 0) {
        return SN_STREAM_BLOCKS * SN_BLOCK_ELEMS + random_below(200);
    }
    const int is_tiled = format->n_kept != 0 && random_below(2) != 0;
    return random_below(is_tiled ? TILES_ELEMS_MAX : SMALL_ELEMS_MAX);
}

/* Sometimes rows of 4096, of which inner products are made. */
static size_t group_elems_of(size_t n_elems, int round)
{
    return random_below(3) == 0 && round % LARGE_EVERY != 0 ? random_below(TILES_ELEMS_MAX) : n_elems;
}

static void round_run(const sn_isa *ref, const sn_isa *isa, const sn_format *format, int round)
{
    const size_t n_elems = n_elems_of(format, round);
    buffer values = buffer_new(n_elems * sizeof(float), random_below(8));
    buffer base = buffer_new(n_elems * sizeof(float), random_below(8));
    buffer payload = buffer_new(sn_payload_bytes(format, n_elems), random_below(8));
    values_fill(values);
    values_fill(base);
    measure_compare(ref, isa, format, values, round);
    const uint8_t *reference =
        sn_takes_reference(format) && random_below(3) == 0 ? base.bytes : NULL;
    encode_compare(ref, isa, format, values, reference, payload, round);
    decode_compare(ref, isa, format, payload, reference, n_elems, round);
    payload_mutate(payload);
    decode_compare(ref, isa, format, payload, reference, n_elems, round);
    if (random_below(GROUP_EVERY) == 0) {
        group_compare(ref, isa, format, group_elems_of(n_elems, round), round);
    }
    buffer_free(values);
    buffer_free(base);
    buffer_free(payload);
}

int main(void)
{
    static const sn_codec codecs[] = {SN_RAW32, SN_BF16, SN_Q8,  SN_Q4, SN_E3M0,
                                      SN_SIGN,  SN_TK4,  SN_TK2, SN_Q2, SN_T3};
    const size_t n_codecs = sizeof codecs / sizeof codecs[0];
    size_t count = 0;
    while (sn_isa_at(count) != NULL) {
        count++;
    }
    const sn_isa *ref = sn_isa_at(count - 1);
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < count; i++) {
            const sn_format format = format_of(codecs[(size_t)round % n_codecs]);
            round_run(ref, sn_isa_at(i), &format, round);
        }
    }
    for (size_t i = 0; i < count; i++) {
        printf("%s ", sn_isa_at(i)->name);
    }
    printf("agree on %d rounds\n", ROUNDS);
    return 0;
}
