/* Python binding of the codecs: reads arguments, checks sizes, releases the GIL; no arithmetic.
 *
 * `isa` is an index into isas(); `codec` and `n_kept` name the codec as sn_format_read() has them.
 * Foreign bytes that break a rule are a return value, not an exception: codec.py knows which error
 * and which words fit. Built for the limited API of Python 3.11, so that one wheel serves every
 * later version.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "sn_codec.h"
#include "sn_sha256.h"

/* Payloads at once: GROUP_MEMBERS_MAX of swarmnode/limits. */
enum { SN_SHARES_MAX = 64 };

typedef struct {
    const sn_isa *isa;
    sn_format format;
} sn_choice;

static int choice_read(int isa_index, int codec, int n_kept, sn_choice *choice)
{
    choice->isa = isa_index < 0 ? NULL : sn_isa_at((size_t)isa_index);
    if (choice->isa == NULL || !sn_format_read(codec, n_kept, &choice->format)) {
        PyErr_Format(PyExc_ValueError,
                     "expected an index into isas() and a codec, got %d, codec %d, %d kept",
                     isa_index, codec, n_kept);
        return 0;
    }
    return 1;
}

/* Whether a payload of payload_bytes holds exactly the elements of values_bytes. Memory safety
 * rests on this check and the next alone. */
static int sizes_check(const sn_format *format, Py_ssize_t payload_bytes, Py_ssize_t values_bytes)
{
    const size_t n_elems = (size_t)values_bytes / sizeof(float);
    if ((size_t)values_bytes % sizeof(float) != 0 ||
        (size_t)payload_bytes != sn_payload_bytes(format, n_elems)) {
        PyErr_Format(PyExc_ValueError, "%zd bytes of payload do not belong to %zd of float32",
                     payload_bytes, values_bytes);
        return 0;
    }
    return 1;
}

/* Whether a reference, if there is one, is as long as the values and the codec takes it. */
static int reference_check(const sn_format *format, const Py_buffer *reference,
                           Py_ssize_t values_bytes)
{
    if (reference->buf != NULL &&
        (reference->len != values_bytes || !sn_takes_reference(format))) {
        PyErr_Format(PyExc_ValueError,
                     "a reference of %zd bytes does not belong to %zd of float32 in codec %d",
                     reference->len, values_bytes, (int)format->codec);
        return 0;
    }
    return 1;
}

static int count_check(Py_ssize_t n_elems)
{
    if (n_elems < 0 || n_elems > PY_SSIZE_T_MAX / (Py_ssize_t)sizeof(float)) {
        PyErr_Format(PyExc_ValueError, "%zd is no number of elements", n_elems);
        return 0;
    }
    return 1;
}

static PyObject *py_isas(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    size_t count = 0;
    while (sn_isa_at(count) != NULL) {
        count++;
    }
    PyObject *names = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; names != NULL && i < count; i++) {
        PyObject *name = PyUnicode_FromString(sn_isa_at(i)->name);
        if (name == NULL || PyTuple_SetItem(names, (Py_ssize_t)i, name) != 0) {
            Py_CLEAR(names);
        }
    }
    return names;
}

static PyObject *py_encode(PyObject *module, PyObject *args)
{
    (void)module;
    int isa_index;
    int codec;
    int n_kept;
    Py_buffer values;
    Py_buffer payload;
    Py_buffer reference;
    if (!PyArg_ParseTuple(args, "iiiy*w*z*:encode", &isa_index, &codec, &n_kept, &values, &payload,
                          &reference)) {
        return NULL;
    }
    PyObject *result = NULL;
    sn_choice choice;
    if (choice_read(isa_index, codec, n_kept, &choice) &&
        sizes_check(&choice.format, payload.len, values.len) &&
        reference_check(&choice.format, &reference, values.len)) {
        const size_t n_elems = (size_t)values.len / sizeof(float);
        size_t n_encoded;
        Py_BEGIN_ALLOW_THREADS
        n_encoded = sn_encode(choice.isa, &choice.format, values.buf, reference.buf, n_elems,
                              payload.buf);
        Py_END_ALLOW_THREADS
        const size_t n_blocks = sn_n_blocks(&choice.format, n_elems);
        result = PyLong_FromSsize_t(n_encoded == n_blocks ? -1 : (Py_ssize_t)n_encoded);
    }
    PyBuffer_Release(&reference);
    PyBuffer_Release(&payload);
    PyBuffer_Release(&values);
    return result;
}

/* Checks a payload that nothing is kept of; measures it where there is a magnitude. Returns a
 * verdict, or -1 and an exception. */
static int payload_args(PyObject *args, const char *spec, sn_magnitude *magnitude)
{
    int isa_index;
    int codec;
    int n_kept;
    Py_buffer payload;
    Py_ssize_t n_elems;
    if (!PyArg_ParseTuple(args, spec, &isa_index, &codec, &n_kept, &payload, &n_elems)) {
        return -1;
    }
    int verdict = -1;
    sn_choice choice;
    if (choice_read(isa_index, codec, n_kept, &choice) && count_check(n_elems) &&
        sizes_check(&choice.format, payload.len, n_elems * (Py_ssize_t)sizeof(float))) {
        Py_BEGIN_ALLOW_THREADS
        verdict = magnitude == NULL
                      ? (int)sn_validate(choice.isa, &choice.format, payload.buf, (size_t)n_elems)
                      : (int)sn_payload_measure(choice.isa, &choice.format, payload.buf,
                                                (size_t)n_elems, magnitude);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&payload);
    return verdict;
}

/* What functions that measure return; NULL where there is an exception. */
static PyObject *measured(int verdict, const sn_magnitude *magnitude)
{
    if (verdict < 0) {
        return NULL;
    }
    return Py_BuildValue("idd", verdict, magnitude->largest, magnitude->square_sum);
}

static PyObject *py_validate(PyObject *module, PyObject *args)
{
    (void)module;
    const int verdict = payload_args(args, "iiiy*n:validate", NULL);
    return verdict < 0 ? NULL : PyLong_FromLong(verdict);
}

static PyObject *py_measure_payload(PyObject *module, PyObject *args)
{
    (void)module;
    sn_magnitude magnitude;
    const int verdict = payload_args(args, "iiiy*n:measure_payload", &magnitude);
    return measured(verdict, &magnitude);
}

/* Without a magnitude nothing is measured. Returns a verdict, or -1 and an exception. */
static int decode_args(PyObject *args, const char *spec, sn_magnitude *magnitude)
{
    int isa_index;
    int codec;
    int n_kept;
    Py_buffer payload;
    Py_buffer out;
    Py_buffer reference;
    if (!PyArg_ParseTuple(args, spec, &isa_index, &codec, &n_kept, &payload, &out, &reference)) {
        return -1;
    }
    int verdict = -1;
    sn_choice choice;
    if (choice_read(isa_index, codec, n_kept, &choice) &&
        sizes_check(&choice.format, payload.len, out.len) &&
        reference_check(&choice.format, &reference, out.len)) {
        const size_t n_elems = (size_t)out.len / sizeof(float);
        Py_BEGIN_ALLOW_THREADS
        verdict = magnitude == NULL
                      ? (int)sn_decode(choice.isa, &choice.format, payload.buf, reference.buf,
                                       n_elems, out.buf)
                      : (int)sn_decode_measured(choice.isa, &choice.format, payload.buf,
                                                reference.buf, n_elems, out.buf, magnitude);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&reference);
    PyBuffer_Release(&out);
    PyBuffer_Release(&payload);
    return verdict;
}

static PyObject *py_decode(PyObject *module, PyObject *args)
{
    (void)module;
    const int verdict = decode_args(args, "iiiy*w*z*:decode", NULL);
    return verdict < 0 ? NULL : PyLong_FromLong(verdict);
}

static PyObject *py_decode_measured(PyObject *module, PyObject *args)
{
    (void)module;
    sn_magnitude magnitude;
    const int verdict = decode_args(args, "iiiy*w*z*:decode_measured", &magnitude);
    return measured(verdict, &magnitude);
}

static PyObject *py_merge(PyObject *module, PyObject *args)
{
    (void)module;
    int isa_index;
    int codec;
    int n_kept;
    Py_buffer payload;
    Py_buffer target;
    Py_buffer reference;
    float own_weight;
    float peer_weight;
    if (!PyArg_ParseTuple(args, "iiiy*w*z*ff:merge", &isa_index, &codec, &n_kept, &payload,
                          &target, &reference, &own_weight, &peer_weight)) {
        return NULL;
    }
    PyObject *result = NULL;
    sn_choice choice;
    if (choice_read(isa_index, codec, n_kept, &choice) &&
        sizes_check(&choice.format, payload.len, target.len) &&
        reference_check(&choice.format, &reference, target.len)) {
        sn_verdict verdict;
        Py_BEGIN_ALLOW_THREADS
        verdict = sn_merge(choice.isa, &choice.format, payload.buf, reference.buf,
                           (size_t)target.len / sizeof(float), target.buf, own_weight, peer_weight);
        Py_END_ALLOW_THREADS
        result = PyLong_FromLong(verdict);
    }
    PyBuffer_Release(&reference);
    PyBuffer_Release(&target);
    PyBuffer_Release(&payload);
    return result;
}

static PyObject *py_measure(PyObject *module, PyObject *args)
{
    (void)module;
    int isa_index;
    Py_buffer values;
    if (!PyArg_ParseTuple(args, "iy*:measure", &isa_index, &values)) {
        return NULL;
    }
    PyObject *result = NULL;
    const sn_isa *isa = isa_index < 0 ? NULL : sn_isa_at((size_t)isa_index);
    if (isa == NULL) {
        PyErr_Format(PyExc_ValueError, "expected an index into isas(), got %d", isa_index);
    } else if ((size_t)values.len % sizeof(float) != 0) {
        PyErr_Format(PyExc_ValueError, "%zd bytes are no float32", values.len);
    } else {
        sn_magnitude magnitude;
        Py_BEGIN_ALLOW_THREADS
        magnitude = sn_measure(isa, values.buf, (size_t)values.len / sizeof(float));
        Py_END_ALLOW_THREADS
        result = Py_BuildValue("dd", magnitude.largest, magnitude.square_sum);
    }
    PyBuffer_Release(&values);
    return result;
}

/* Payloads of one vector, and their weights; all of it on the heap, as Python says how many. */
typedef struct {
    Py_ssize_t count; /* of buffers that are held */
    Py_buffer *buffers;
    sn_share *shares;
} sn_held;

static void held_release(sn_held *held)
{
    for (Py_ssize_t i = 0; i < held->count; i++) {
        PyBuffer_Release(&held->buffers[i]);
    }
    PyMem_Free(held->buffers);
    PyMem_Free(held->shares);
}

static int share_hold(sn_held *held, PyObject *payloads, PyObject *weights, const sn_choice *choice,
                      Py_ssize_t n_elems)
{
    const Py_ssize_t i = held->count;
    PyObject *payload = PyTuple_GetItem(payloads, i);
    if (payload == NULL || PyObject_GetBuffer(payload, &held->buffers[i], PyBUF_SIMPLE) != 0) {
        return 0;
    }
    held->count++;
    held->shares[i] = (sn_share){held->buffers[i].buf, 0.0};
    if (weights != NULL) {
        held->shares[i].weight = PyFloat_AsDouble(PyTuple_GetItem(weights, i));
    }
    return !PyErr_Occurred() && sizes_check(&choice->format, held->buffers[i].len,
                                            n_elems * (Py_ssize_t)sizeof(float));
}

/* Whether all are held, each of the size of n_elems. `weights`: as many, or NULL. */
static int held_take(sn_held *held, PyObject *payloads, PyObject *weights, const sn_choice *choice,
                     Py_ssize_t n_elems)
{
    const Py_ssize_t count = PyTuple_Size(payloads);
    if (!count_check(n_elems)) {
        return 0;
    }
    if (count < 1 || count > SN_SHARES_MAX || (weights != NULL && PyTuple_Size(weights) != count)) {
        PyErr_Format(PyExc_ValueError, "expected 1 to %d payloads and as many weights, got %zd",
                     (int)SN_SHARES_MAX, count);
        return 0;
    }
    held->buffers = PyMem_Calloc((size_t)count, sizeof *held->buffers);
    held->shares = PyMem_Calloc((size_t)count, sizeof *held->shares);
    if (held->buffers == NULL || held->shares == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    while (held->count < count) {
        if (!share_hold(held, payloads, weights, choice, n_elems)) {
            return 0;
        }
    }
    return 1;
}

static PyObject *py_mean(PyObject *module, PyObject *args)
{
    (void)module;
    int isa_index;
    int codec;
    int n_kept;
    PyObject *payloads;
    PyObject *weights;
    double divisor;
    Py_ssize_t n_elems;
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "iiiO!O!dnw*:mean", &isa_index, &codec, &n_kept, &PyTuple_Type,
                          &payloads, &PyTuple_Type, &weights, &divisor, &n_elems, &out)) {
        return NULL;
    }
    PyObject *result = NULL;
    sn_choice choice;
    sn_held held = {0};
    if (choice_read(isa_index, codec, n_kept, &choice) &&
        held_take(&held, payloads, weights, &choice, n_elems) &&
        sizes_check(&choice.format, out.len, n_elems * (Py_ssize_t)sizeof(float))) {
        sn_verdict verdict;
        size_t n_encoded;
        Py_BEGIN_ALLOW_THREADS
        verdict = sn_mean(choice.isa, &choice.format, held.shares, (size_t)held.count,
                          (size_t)n_elems, divisor, out.buf, &n_encoded);
        Py_END_ALLOW_THREADS
        const size_t n_blocks = sn_n_blocks(&choice.format, (size_t)n_elems);
        const int is_whole = verdict != SN_VALID || n_encoded == n_blocks;
        result = Py_BuildValue("in", (int)verdict, is_whole ? -1 : (Py_ssize_t)n_encoded);
    }
    held_release(&held);
    PyBuffer_Release(&out);
    return result;
}

/* The room and a copy of the matrix, which need not be aligned where it comes from. */
static int products_add(const sn_choice *choice, const sn_held *held, Py_ssize_t n_elems,
                        const Py_buffer *gram, sn_verdict *verdict)
{
    const size_t n_room = sn_products_room(&choice->format, (size_t)held->count);
    double *room = PyMem_Calloc(n_room + (size_t)gram->len / sizeof *room, sizeof *room);
    if (room == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    Py_BEGIN_ALLOW_THREADS
    memcpy(room + n_room, gram->buf, (size_t)gram->len);
    *verdict = sn_products(choice->isa, &choice->format, held->shares, (size_t)held->count,
                           (size_t)n_elems, room, room + n_room);
    memcpy(gram->buf, room + n_room, (size_t)gram->len);
    Py_END_ALLOW_THREADS
    PyMem_Free(room);
    return 1;
}

static PyObject *py_products(PyObject *module, PyObject *args)
{
    (void)module;
    int isa_index;
    int codec;
    int n_kept;
    PyObject *payloads;
    Py_ssize_t n_elems;
    Py_buffer gram;
    if (!PyArg_ParseTuple(args, "iiiO!nw*:products", &isa_index, &codec, &n_kept, &PyTuple_Type,
                          &payloads, &n_elems, &gram)) {
        return NULL;
    }
    PyObject *result = NULL;
    sn_choice choice;
    sn_held held = {0};
    if (choice_read(isa_index, codec, n_kept, &choice) &&
        held_take(&held, payloads, NULL, &choice, n_elems)) {
        const size_t n_shares = (size_t)held.count;
        sn_verdict verdict;
        if ((size_t)gram.len != n_shares * n_shares * sizeof(double)) {
            PyErr_Format(PyExc_ValueError, "%zd bytes are no matrix of %zd times %zd float64",
                         gram.len, held.count, held.count);
        } else if (products_add(&choice, &held, n_elems, &gram, &verdict)) {
            result = PyLong_FromLong(verdict);
        }
    }
    held_release(&held);
    PyBuffer_Release(&gram);
    return result;
}

static PyObject *py_sha256_two(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned char first;
    Py_buffer messages[2];
    if (!PyArg_ParseTuple(args, "by*y*:sha256_two", &first, &messages[0], &messages[1])) {
        return NULL;
    }
    PyObject *result = NULL;
    if (messages[0].len != messages[1].len) {
        PyErr_Format(PyExc_ValueError, "expected two messages of one size, got %zd and %zd bytes",
                     messages[0].len, messages[1].len);
    } else if (!sn_sha256_is_there()) {
        result = Py_NewRef(Py_None);
    } else {
        uint8_t digests[2][SN_SHA256_BYTES];
        const uint8_t *const both[2] = {messages[0].buf, messages[1].buf};
        Py_BEGIN_ALLOW_THREADS
        sn_sha256_two(first, both, (size_t)messages[0].len, digests);
        Py_END_ALLOW_THREADS
        result = Py_BuildValue("(y#y#)", digests[0], (Py_ssize_t)SN_SHA256_BYTES, digests[1],
                               (Py_ssize_t)SN_SHA256_BYTES);
    }
    PyBuffer_Release(&messages[0]);
    PyBuffer_Release(&messages[1]);
    return result;
}

static PyMethodDef methods[] = {
    {"isas", py_isas, METH_NOARGS, "isas() -> names of what this machine runs, best first"},
    {"encode", py_encode, METH_VARARGS,
     "encode(isa, codec, n_kept, values, payload, reference) -> index of the first block that is "
     "not finite, or -1"},
    {"validate", py_validate, METH_VARARGS,
     "validate(isa, codec, n_kept, payload, n_elems) -> verdict"},
    {"decode", py_decode, METH_VARARGS,
     "decode(isa, codec, n_kept, payload, out, reference) -> verdict"},
    {"decode_measured", py_decode_measured, METH_VARARGS,
     "decode_measured(isa, codec, n_kept, payload, out, reference) -> (verdict, the largest absolute "
     "value decoded, the sum of squares)"},
    {"merge", py_merge, METH_VARARGS,
     "merge(isa, codec, n_kept, payload, target, reference, own_weight, peer_weight) -> verdict"},
    {"measure", py_measure, METH_VARARGS,
     "measure(isa, values) -> (the largest absolute value, the sum of squares)"},
    {"measure_payload", py_measure_payload, METH_VARARGS,
     "measure_payload(isa, codec, n_kept, payload, n_elems) -> (verdict, the largest absolute value, "
     "the sum of squares)"},
    {"mean", py_mean, METH_VARARGS,
     "mean(isa, codec, n_kept, payloads, weights, divisor, n_elems, out) -> (verdict, index of the "
     "first block that is not finite, or -1)"},
    {"products", py_products, METH_VARARGS,
     "products(isa, codec, n_kept, payloads, n_elems, gram) -> verdict; adds to the upper triangle"},
    {"sha256_two", py_sha256_two, METH_VARARGS,
     "sha256_two(first, message, message) -> their two digests, each behind the byte first; None: "
     "the processor has no instructions for it"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "swarmnode.tensor._native",
    .m_doc = "Block codecs in C; use swarmnode.tensor.codec.",
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
