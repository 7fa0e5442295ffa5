/* Python binding of the codecs: reads arguments, checks sizes, releases the GIL; no arithmetic.
 *
 * `isa` is an index into isas(), `bits` names the codec (8 or 4). Foreign bytes that break a rule
 * are a return value, not an exception: codec.py knows which error and which words fit. Built for
 * the limited API of Python 3.11, so that one wheel serves every later version.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "sn_codec.h"

typedef struct {
    const sn_isa *isa;
    const sn_format *format;
} sn_choice;

static int choice_read(int isa_index, int bits, sn_choice *choice)
{
    choice->isa = isa_index < 0 ? NULL : sn_isa_at((size_t)isa_index);
    choice->format = sn_format_of(bits);
    if (choice->isa == NULL || choice->format == NULL) {
        PyErr_Format(PyExc_ValueError, "expected an index into isas() and 8 or 4 bits, got %d, %d",
                     isa_index, bits);
        return 0;
    }
    return 1;
}

/* Whether a payload of payload_bytes holds exactly the elements of values_bytes. Memory safety
 * rests on this check alone. */
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
    int bits;
    Py_buffer values;
    Py_buffer payload;
    if (!PyArg_ParseTuple(args, "iiy*w*:encode", &isa_index, &bits, &values, &payload)) {
        return NULL;
    }
    PyObject *result = NULL;
    sn_choice choice;
    if (choice_read(isa_index, bits, &choice) &&
        sizes_check(choice.format, payload.len, values.len)) {
        const size_t n_elems = (size_t)values.len / sizeof(float);
        size_t n_encoded;
        Py_BEGIN_ALLOW_THREADS
        n_encoded = sn_encode(choice.isa, choice.format, values.buf, n_elems, payload.buf);
        Py_END_ALLOW_THREADS
        const size_t n_blocks = (n_elems + SN_BLOCK_ELEMS - 1) / SN_BLOCK_ELEMS;
        result = PyLong_FromSsize_t(n_encoded == n_blocks ? -1 : (Py_ssize_t)n_encoded);
    }
    PyBuffer_Release(&payload);
    PyBuffer_Release(&values);
    return result;
}

static PyObject *py_validate(PyObject *module, PyObject *args)
{
    (void)module;
    int isa_index;
    int bits;
    Py_buffer payload;
    Py_ssize_t n_elems;
    if (!PyArg_ParseTuple(args, "iiy*n:validate", &isa_index, &bits, &payload, &n_elems)) {
        return NULL;
    }
    PyObject *result = NULL;
    sn_choice choice;
    if (n_elems < 0 || n_elems > PY_SSIZE_T_MAX / (Py_ssize_t)sizeof(float)) {
        PyErr_Format(PyExc_ValueError, "%zd is no number of elements", n_elems);
    } else if (choice_read(isa_index, bits, &choice) &&
               sizes_check(choice.format, payload.len, n_elems * (Py_ssize_t)sizeof(float))) {
        sn_verdict verdict;
        Py_BEGIN_ALLOW_THREADS
        verdict = sn_validate(choice.isa, choice.format, payload.buf, (size_t)n_elems);
        Py_END_ALLOW_THREADS
        result = PyLong_FromLong(verdict);
    }
    PyBuffer_Release(&payload);
    return result;
}

static PyObject *py_decode(PyObject *module, PyObject *args)
{
    (void)module;
    int isa_index;
    int bits;
    Py_buffer payload;
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "iiy*w*:decode", &isa_index, &bits, &payload, &out)) {
        return NULL;
    }
    PyObject *result = NULL;
    sn_choice choice;
    if (choice_read(isa_index, bits, &choice) && sizes_check(choice.format, payload.len, out.len)) {
        sn_verdict verdict;
        Py_BEGIN_ALLOW_THREADS
        verdict = sn_decode(choice.isa, choice.format, payload.buf,
                            (size_t)out.len / sizeof(float), out.buf);
        Py_END_ALLOW_THREADS
        result = PyLong_FromLong(verdict);
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&payload);
    return result;
}

static PyObject *py_merge(PyObject *module, PyObject *args)
{
    (void)module;
    int isa_index;
    int bits;
    Py_buffer payload;
    Py_buffer target;
    float own_weight;
    float peer_weight;
    if (!PyArg_ParseTuple(args, "iiy*w*ff:merge", &isa_index, &bits, &payload, &target, &own_weight,
                          &peer_weight)) {
        return NULL;
    }
    PyObject *result = NULL;
    sn_choice choice;
    if (choice_read(isa_index, bits, &choice) &&
        sizes_check(choice.format, payload.len, target.len)) {
        sn_verdict verdict;
        Py_BEGIN_ALLOW_THREADS
        verdict = sn_merge(choice.isa, choice.format, payload.buf,
                           (size_t)target.len / sizeof(float), target.buf, own_weight, peer_weight);
        Py_END_ALLOW_THREADS
        result = PyLong_FromLong(verdict);
    }
    PyBuffer_Release(&target);
    PyBuffer_Release(&payload);
    return result;
}

static PyMethodDef methods[] = {
    {"isas", py_isas, METH_NOARGS, "isas() -> names of what this machine runs, best first"},
    {"encode", py_encode, METH_VARARGS,
     "encode(isa, bits, values, payload) -> index of the first block that is not finite, or -1"},
    {"validate", py_validate, METH_VARARGS, "validate(isa, bits, payload, n_elems) -> verdict"},
    {"decode", py_decode, METH_VARARGS, "decode(isa, bits, payload, out) -> verdict"},
    {"merge", py_merge, METH_VARARGS,
     "merge(isa, bits, payload, target, own_weight, peer_weight) -> verdict"},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module)
{
    if (PyModule_AddIntConstant(module, "INVALID_SCALE", SN_INVALID_SCALE) != 0 ||
        PyModule_AddIntConstant(module, "INVALID_CODE", SN_INVALID_CODE) != 0 ||
        PyModule_AddIntConstant(module, "INVALID_PADDING", SN_INVALID_PADDING) != 0) {
        return -1;
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)module_exec},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "swarmnode.tensor._native",
    .m_doc = "Block codecs in C; use swarmnode.tensor.codec.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
