/* Whatever bytes come as a payload or as values, on every instruction set of this machine.
 *
 * libFuzzer calls LLVMFuzzerTestOneInput() and learns which inputs reach new code (make -C native
 * fuzz). Built with SN_REPLAY it is a program that runs the files it is given, by any compiler
 * (make -C native replay). Buffers are allocated to the byte, so that the address sanitizer sees a
 * read or a write of one byte too many; and all instruction sets are to agree with the reference.
 *
 * To encode a tile takes as long as fifty other inputs. With SN_WITHOUT_TILES in the environment
 * none is, so that the others are not crowded out.
 *
 * An input is a head of HEAD_BYTES (see plan_read), then the bytes that are the payload or the
 * values; where they are too few they come again. What values are encoded to is read as a payload
 * too, with a byte of it changed: bytes that were drawn are seldom a long payload that is valid.
 */
#include <stdio.h>
#include <stdlib.h>

#include "sn_kernels.h"
#include "sn_sha256.h"

enum {
    HEAD_BYTES = 8,
    TILES_ELEMS_MAX = 9000, /* two tiles of 4096 and a part of a third */
    BLOCKS_ELEMS_MAX = 1500, /* more than are weighed at a time */
    SHORT_ELEMS_MIN = 66,    /* a block of 64, and a part of another */
    SHARES_MAX = 3,
    UNTOUCHED = 0xA5,
    IS_LONG = 0x40, /* flags of an input's first byte */
    HAS_REFERENCE = 0x80,
    ISA_SHIFT = 2, /* two bits of it */
    ISA_MASK = 3,
};

typedef enum { PAYLOAD, VALUES, SHARES, MESSAGES, N_KINDS } input_kind;

typedef struct {
    input_kind kind;
    sn_format format;
    size_t n_elems;
    size_t n_shares;
    int has_reference;
    float own_weight;
    float peer_weight;
    size_t changed_at;
    uint8_t changed;
    const uint8_t *bytes;
    size_t n_bytes;
} plan;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fail(const char *what, const sn_isa *isa, const plan *from)
{
    fprintf(stderr, "%s: codec %d, %zu kept, %zu elements, %s\n", what, (int)from->format.codec,
            from->format.n_kept, from->n_elems, isa->name);
    abort();
}

static uint8_t *room_new(size_t size)
{
    uint8_t *made = malloc(size + (size == 0));
    if (made == NULL) {
        abort();
    }
    memset(made, UNTOUCHED, size + (size == 0));
    return made;
}

/* `size` bytes of the input from `at` on, again and again; zeros where it has none. */
static uint8_t *bytes_new(const plan *from, size_t at, size_t size)
{
    uint8_t *made = room_new(size);
    if (from->n_bytes == 0) {
        memset(made, 0, size);
        return made;
    }
    size_t next = at % from->n_bytes;
    for (size_t filled = 0, part; filled < size; filled += part) {
        part = from->n_bytes - next < size - filled ? from->n_bytes - next : size - filled;
        memcpy(made + filled, from->bytes + next, part);
        next = 0;
    }
    return made;
}

static int is_untouched(const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] != UNTOUCHED) {
            return 0;
        }
    }
    return 1;
}

/* Bit for bit, but for which NaN it is: of infinity - infinity that is the processor's choice. */
static int is_same_floats(const uint8_t *a, const uint8_t *b, size_t n_elems)
{
    for (size_t i = 0; i < n_elems * sizeof(float); i += sizeof(float)) {
        float x;
        float y;
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        if (sn_bits_from_float(x) != sn_bits_from_float(y) && !(x != x && y != y)) {
            return 0;
        }
    }
    return 1;
}

static int is_same_magnitude(sn_magnitude a, sn_magnitude b)
{
    const int is_nan = a.square_sum != a.square_sum && b.square_sum != b.square_sum;
    return memcmp(&a.largest, &b.largest, sizeof a.largest) == 0 &&
           (is_nan || memcmp(&a.square_sum, &b.square_sum, sizeof a.square_sum) == 0);
}

static int is_finite(const uint8_t *values, size_t n_elems)
{
    for (size_t i = 0; i < n_elems * sizeof(float); i += sizeof(float)) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        if ((bits & SN_ABS_MASK) >= SN_INFINITY_BITS) {
            return 0;
        }
    }
    return 1;
}

static size_t n_isas(void)
{
    size_t count = 1;
    while (sn_isa_at(count) != NULL) {
        count++;
    }
    return count;
}

static const sn_isa *reference_isa(void)
{
    return sn_isa_at(n_isas() - 1);
}

static void payload_measured_check(const sn_isa *isa, const plan *from, const uint8_t *payload,
                                   const uint8_t *reference, const uint8_t *expected,
                                   sn_verdict expected_verdict)
{
    const sn_isa *ref = reference_isa();
    uint8_t *got = room_new(from->n_elems * sizeof(float));
    sn_magnitude magnitude = {0};
    if (sn_decode_measured(isa, &from->format, payload, reference, from->n_elems, got,
                           &magnitude) != expected_verdict ||
        !is_same_floats(got, expected, from->n_elems)) {
        fail("decode_measured differs from decode", isa, from);
    }
    if (expected_verdict == SN_VALID) {
        sn_magnitude alone = {0};
        if (!is_same_magnitude(magnitude, sn_measure(ref, expected, from->n_elems))) {
            fail("decode_measured measures something else", isa, from);
        }
        if (reference == NULL &&
            (sn_payload_measure(isa, &from->format, payload, from->n_elems, &alone) != SN_VALID ||
             !is_same_magnitude(alone, magnitude))) {
            fail("payload_measure differs", isa, from);
        }
    }
    free(got);
}

static void payload_merged_check(const sn_isa *isa, const plan *from, const uint8_t *payload,
                                 const uint8_t *reference, sn_verdict expected_verdict)
{
    const sn_isa *ref = reference_isa();
    const size_t size = from->n_elems * sizeof(float);
    uint8_t *expected = bytes_new(from, 5, size);
    uint8_t *got = bytes_new(from, 5, size);
    uint8_t *before = bytes_new(from, 5, size);
    sn_merge(ref, &from->format, payload, reference, from->n_elems, expected, from->own_weight,
             from->peer_weight);
    if (sn_merge(isa, &from->format, payload, reference, from->n_elems, got, from->own_weight,
                 from->peer_weight) != expected_verdict ||
        !is_same_floats(got, expected, from->n_elems)) {
        fail("merge differs", isa, from);
    }
    if (expected_verdict != SN_VALID && size != 0 && memcmp(got, before, size) != 0) {
        fail("merge writes what is not valid", isa, from);
    }
    free(expected);
    free(got);
    free(before);
}

static void payload_check(const sn_isa *isa, const plan *from, const uint8_t *payload)
{
    const sn_isa *ref = reference_isa();
    const size_t size = sn_payload_bytes(&from->format, from->n_elems);
    uint8_t *reference =
        from->has_reference ? bytes_new(from, size / 2, from->n_elems * sizeof(float)) : NULL;
    uint8_t *expected = room_new(from->n_elems * sizeof(float));
    uint8_t *got = room_new(from->n_elems * sizeof(float));
    const sn_verdict verdict =
        sn_decode(ref, &from->format, payload, reference, from->n_elems, expected);
    if (sn_decode(isa, &from->format, payload, reference, from->n_elems, got) != verdict ||
        sn_validate(isa, &from->format, payload, from->n_elems) != verdict ||
        !is_same_floats(got, expected, from->n_elems)) {
        fail("decode differs", isa, from);
    }
    if (verdict != SN_VALID && !is_untouched(got, from->n_elems * sizeof(float))) {
        fail("decode writes what is not valid", isa, from);
    }
    if (verdict == SN_VALID && reference == NULL && !is_finite(got, from->n_elems)) {
        fail("a valid payload is not finite", isa, from);
    }
    payload_measured_check(isa, from, payload, reference, expected, verdict);
    payload_merged_check(isa, from, payload, reference, verdict);
    free(reference);
    free(expected);
    free(got);
}

static void payload_run(const sn_isa *isa, const plan *from)
{
    uint8_t *payload = bytes_new(from, 0, sn_payload_bytes(&from->format, from->n_elems));
    payload_check(isa, from, payload);
    free(payload);
}

static void values_run(const sn_isa *isa, const plan *from)
{
    const sn_isa *ref = reference_isa();
    const size_t size = sn_payload_bytes(&from->format, from->n_elems);
    uint8_t *values = bytes_new(from, 0, from->n_elems * sizeof(float));
    uint8_t *reference =
        from->has_reference ? bytes_new(from, 4, from->n_elems * sizeof(float)) : NULL;
    uint8_t *expected = room_new(size);
    uint8_t *got = room_new(size);
    const size_t n_blocks =
        sn_encode(ref, &from->format, values, reference, from->n_elems, expected);
    if (sn_encode(isa, &from->format, values, reference, from->n_elems, got) != n_blocks ||
        (size != 0 && memcmp(got, expected, size) != 0)) {
        fail("encode differs", isa, from);
    }
    const int is_whole = n_blocks == sn_n_blocks(&from->format, from->n_elems);
    const sn_verdict verdict = sn_validate(isa, &from->format, got, from->n_elems);
    if (is_whole != (verdict == SN_VALID)) {
        fail("what it encodes is valid where it is refused, or the reverse", isa, from);
    }
    if (!is_same_magnitude(sn_measure(isa, values, from->n_elems),
                           sn_measure(ref, values, from->n_elems))) {
        fail("measure differs", isa, from);
    }
    if (size != 0) {
        /* Half of them as they are. */
        got[from->changed_at % size] ^= from->changed & 1 ? from->changed : 0;
        payload_check(isa, from, got);
    }
    free(values);
    free(reference);
    free(expected);
    free(got);
}

static void shares_run(const sn_isa *isa, const plan *from)
{
    const sn_isa *ref = reference_isa();
    const size_t size = sn_payload_bytes(&from->format, from->n_elems);
    sn_share shares[SHARES_MAX];
    uint8_t *payloads[SHARES_MAX];
    for (size_t i = 0; i < from->n_shares; i++) {
        payloads[i] = bytes_new(from, i * size, size);
        shares[i] = (sn_share){payloads[i], i == 0 ? (double)from->own_weight
                                                   : (double)from->peer_weight};
    }
    uint8_t *expected = room_new(size);
    uint8_t *got = room_new(size);
    size_t n_expected = 0;
    size_t n_got = 0;
    const sn_verdict verdict = sn_mean(ref, &from->format, shares, from->n_shares, from->n_elems,
                                       (double)from->n_shares, expected, &n_expected);
    if (sn_mean(isa, &from->format, shares, from->n_shares, from->n_elems, (double)from->n_shares,
                got, &n_got) != verdict ||
        n_got != n_expected || (size != 0 && memcmp(got, expected, size) != 0)) {
        fail("mean differs", isa, from);
    }
    const size_t n_room = sn_products_room(&from->format, from->n_shares);
    double *room = malloc(n_room * sizeof(double));
    if (room == NULL) {
        abort();
    }
    double grams[2][SHARES_MAX * SHARES_MAX] = {{0}};
    if (sn_products(ref, &from->format, shares, from->n_shares, from->n_elems, room, grams[0]) !=
            verdict ||
        sn_products(isa, &from->format, shares, from->n_shares, from->n_elems, room, grams[1]) !=
            verdict ||
        memcmp(grams[0], grams[1], sizeof grams[0]) != 0) {
        fail("products differ", isa, from);
    }
    for (size_t i = 0; i < from->n_shares; i++) {
        free(payloads[i]);
    }
    free(expected);
    free(got);
    free(room);
}

/* Two messages at once are hashed alike in either place. */
static void messages_run(const plan *from)
{
    if (!sn_sha256_is_there()) {
        return;
    }
    const size_t n_bytes = from->n_elems % 600;
    uint8_t *a = bytes_new(from, 0, n_bytes);
    uint8_t *b = bytes_new(from, n_bytes, n_bytes);
    const uint8_t *one[2] = {a, b};
    const uint8_t *other[2] = {b, a};
    uint8_t digests[2][2][SN_SHA256_BYTES];
    sn_sha256_two(0, one, n_bytes, digests[0]);
    sn_sha256_two(0, other, n_bytes, digests[1]);
    if (memcmp(digests[0][0], digests[1][1], SN_SHA256_BYTES) != 0 ||
        memcmp(digests[0][1], digests[1][0], SN_SHA256_BYTES) != 0) {
        fail("a digest depends on its place", reference_isa(), from);
    }
    free(a);
    free(b);
}

static void isa_run(const sn_isa *isa, const plan *from)
{
    if (from->kind == PAYLOAD) {
        payload_run(isa, from);
    } else if (from->kind == VALUES) {
        values_run(isa, from);
    } else {
        shares_run(isa, from);
    }
}

/* The head: kind and flags, codec, kept elements, number of elements, weights.
 *
 * Without IS_LONG there are about as many elements as the input has bytes: what comes again in the
 * rest shows little, and takes most of the time.
 */
static int plan_read(const uint8_t *data, size_t size, plan *made)
{
    if (size < HEAD_BYTES) {
        return 0;
    }
    static const sn_codec codecs[] = {SN_RAW32, SN_BF16, SN_Q8,  SN_Q4, SN_E3M0,
                                      SN_SIGN,  SN_TK4,  SN_TK2, SN_Q2, SN_T3};
    const input_kind kind = (input_kind)(data[0] % N_KINDS);
    const sn_codec codec = codecs[data[1] % (sizeof codecs / sizeof codecs[0])];
    const int is_encoded_tile = kind != PAYLOAD && (codec == SN_TK4 || codec == SN_TK2);
    if (is_encoded_tile && getenv("SN_WITHOUT_TILES") != NULL) {
        return 0;
    }
    const int kept = (data[2] | data[3] << 8) % (SN_KEPT_MAX + 1);
    const int n_kept = codec == SN_TK4 ? kept & ~1 : codec == SN_TK2 ? kept & ~7 : 0;
    *made = (plan){
        .kind = kind,
        .n_shares = 1 + data[6] % SHARES_MAX,
        .own_weight = (float)data[6] / 256.0f,
        .peer_weight = (float)data[7] / 16.0f - 1.0f,
        .changed_at = (size_t)(data[size - 1] | data[size - 2] << 8),
        .changed = data[size - 3],
        .bytes = data + HEAD_BYTES,
        .n_bytes = size - HEAD_BYTES,
    };
    if (!sn_format_read((int)codec, n_kept, &made->format)) {
        return 0; /* fewer kept elements than a codec may keep */
    }
    const size_t elems_max = made->format.n_kept == 0 ? BLOCKS_ELEMS_MAX : TILES_ELEMS_MAX;
    made->n_elems = (size_t)(data[4] | data[5] << 8) % (elems_max + 1);
    const size_t short_max = SHORT_ELEMS_MIN + made->n_bytes;
    if ((data[0] & IS_LONG) == 0 && made->n_elems > short_max) {
        made->n_elems %= short_max + 1;
    }
    made->has_reference = (data[0] & HAS_REFERENCE) != 0 && sn_takes_reference(&made->format);
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    plan made;
    if (!plan_read(data, size, &made)) {
        return 0;
    }
    if (made.kind == MESSAGES) {
        messages_run(&made);
        return 0;
    }
#ifdef SN_REPLAY
    for (size_t i = 0; sn_isa_at(i) != NULL; i++) {
        isa_run(sn_isa_at(i), &made);
    }
#else
    /* The one that the input names: with all of them a third of the inputs run in a second. */
    isa_run(sn_isa_at((data[0] >> ISA_SHIFT & ISA_MASK) % n_isas()), &made);
#endif
    return 0;
}

#ifdef SN_REPLAY
static void file_run(const char *path)
{
    enum { FILE_BYTES_MAX = 1 << 20 };
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = room_new(FILE_BYTES_MAX);
    if (file == NULL) {
        fprintf(stderr, "expected a file that can be read: %s\n", path);
        exit(1);
    }
    const size_t size = fread(bytes, 1, FILE_BYTES_MAX, file);
    fclose(file);
    /* As long as the input is, so that one byte too many is seen here too. */
    uint8_t *whole = room_new(size);
    memcpy(whole, bytes, size);
    free(bytes);
    LLVMFuzzerTestOneInput(whole, size);
    free(whole);
}

int main(int count, char **paths)
{
    for (int i = 1; i < count; i++) {
        file_run(paths[i]);
    }
    printf("%d inputs ran\n", count - 1);
    return 0;
}
#endif
