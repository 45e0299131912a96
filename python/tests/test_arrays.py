"""What comes in and what goes out: kinds of arrays, dtypes, strides, refusals."""
import gc
import importlib.util
import unittest
import weakref

import ml_dtypes
import numpy as np

import headwise
import reference

attend = headwise.scaled_dot_product_attention


def draw(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


class DlpackOnly:
    """An array of nobody's kind."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class WithNamespace(DlpackOnly):
    """One that says who makes its kind, as the array API standard wants."""

    def __array_namespace__(self):
        return self

    @staticmethod
    def from_dlpack(array):
        return WithNamespace(np.from_dlpack(array))


class Dtypes(unittest.TestCase):
    def test_every_dtype(self):
        q, k, v = draw(2, 3, 5, 8), draw(2, 3, 7, 8, seed=1), draw(2, 3, 7, 4, seed=2)
        for dtype, eps in [(np.float32, 2e-7), (np.float64, 4e-16), (np.float16, 1e-3), (ml_dtypes.bfloat16, 8e-3)]:
            with self.subTest(dtype=dtype):
                args = [x.astype(dtype) for x in (q, k, v)]
                out = attend(*args)
                self.assertEqual(out.dtype, np.dtype(dtype))
                self.assertTrue(out.flags.writeable and out.flags.c_contiguous)
                expected, _ = reference.attention(*args)
                np.testing.assert_allclose(out.astype(np.float64), expected, rtol=0, atol=8 * eps)

    def test_others_are_refused(self):
        x = draw(2, 4, 8)
        for dtype in (np.int32, np.uint8, bool):
            with self.assertRaisesRegex(TypeError, "^query: found dtype"):
                attend(x.astype(dtype), x, x)
        with self.assertRaisesRegex(TypeError, "^query: found an element type of 64 bits"):
            attend(x.astype(np.complex64), x, x)
        with self.assertRaisesRegex(TypeError, "^key: found dtype f64, expected q's dtype f32"):
            attend(x, x.astype(np.float64), x)
        with self.assertRaisesRegex(TypeError, "^attn_mask: found dtype int64, expected bool"):
            attend(x, x, x, np.ones((4, 4), np.int64))

    def test_names_of_dtypes(self):
        for dtype in ("float16", np.float16, np.dtype(np.float16)):
            self.assertEqual(headwise.MultiheadAttention(8, 2, dtype=dtype).dtype, "float16")
        self.assertEqual(headwise.MultiheadAttention(8, 2, dtype=ml_dtypes.bfloat16).dtype, "bfloat16")
        with self.assertRaisesRegex(TypeError, "^dtype: found int8, expected float32"):
            headwise.MultiheadAttention(8, 2, dtype="int8")


class Layouts(unittest.TestCase):
    def test_any_strides(self):
        base = draw(4, 6, 10, 16)
        layouts = {
            "transposed": base.swapaxes(1, 2), "reversed": base[::-1, :, ::-1], "last reversed": base[..., ::-1],
            "every second": base[:, ::2, ::3, ::2], "last apart": base.swapaxes(1, 3),
            "broadcast": np.broadcast_to(base[:1, :1], base.shape), "Fortran": np.asfortranarray(base),
        }
        for name, x in layouts.items():
            with self.subTest(name):
                np.testing.assert_array_equal(attend(x, x, x), attend(*[np.ascontiguousarray(x)] * 3))

    def test_read_only(self):
        x = draw(2, 4, 8)
        expected = attend(x, x, x)
        x.setflags(write=False)
        np.testing.assert_array_equal(attend(x, x, x), expected)

    def test_strided_masks_and_bfloat16(self):
        x = draw(2, 6, 8)
        mask = np.ones((12, 6), bool)[::2]
        mask[:, 3] = False
        np.testing.assert_array_equal(attend(x, x, x, mask), attend(x, x, x, mask.copy()))
        b = x.astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(attend(b[:, ::-1], b, b[..., ::2]), attend(b[:, ::-1].copy(), b, b[..., ::2].copy()))

    def test_empty(self):
        for shape in [(0, 4, 8), (2, 0, 8), (2, 4, 0)]:
            x = np.zeros(shape, np.float32)
            self.assertEqual(attend(x, x, x).shape, shape)

    def test_what_cannot_be_read(self):
        x = draw(1, 4, 8)
        apart = np.zeros(32, dtype=[("a", "u1"), ("b", "f4")])["b"].reshape(1, 4, 8)
        for bad in (apart, x.astype(">f4"), [[1.0]], "text", 3, object()):
            with self.assertRaisesRegex(TypeError, "^query: found .*, expected a NumPy array"):
                attend(bad, x, x)
        with self.assertRaises(TypeError):
            attend(None, x, x)


class Kinds(unittest.TestCase):
    def test_same_kind_out(self):
        x = draw(2, 4, 8)
        expected = attend(x, x, x)
        out = attend(WithNamespace(x), x, DlpackOnly(x))
        self.assertIsInstance(out, WithNamespace)
        np.testing.assert_array_equal(out.array, expected)
        self.assertIsInstance(attend(DlpackOnly(x), x, x), np.ndarray)
        output, weights = headwise.MultiheadAttention(8, 2)(WithNamespace(x), x, x)
        self.assertIsInstance(output, WithNamespace)
        self.assertIsInstance(weights, WithNamespace)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "needs torch")
    def test_torch(self):
        import torch
        x = draw(2, 4, 8)
        t = torch.from_numpy(x)
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            out = attend(t.to(dtype), t.to(dtype), t.to(dtype), torch.ones(4, 4, dtype=torch.bool))
            self.assertEqual(out.dtype, dtype)
        np.testing.assert_array_equal(attend(t, x, t).numpy(), attend(x, x, x))
        t.requires_grad_()
        with self.assertRaisesRegex(ValueError, "^query: found a tensor that requires gradients"):
            attend(t, x, x)
        with torch.no_grad():
            attend(t, t, t)
        with self.assertRaisesRegex(TypeError, "^query: found Tensor of torch.float32 on meta"):
            attend(torch.zeros(2, 4, 8, device="meta"), x, x)

    @unittest.skipUnless(importlib.util.find_spec("jax"), "needs jax")
    def test_jax(self):
        import jax
        x = draw(2, 4, 8)
        out = attend(*[jax.numpy.asarray(x)] * 3)
        self.assertIsInstance(out, jax.Array)
        np.testing.assert_array_equal(np.asarray(out), attend(x, x, x))

    def test_lifetimes(self):
        """Inputs are let go after the call, and the output's memory lives as long as a view of it."""
        x = draw(2, 4, 8)
        out = attend(x, x, x)
        kept, part = out.copy(), out[1:]
        del out
        gc.collect()
        np.testing.assert_array_equal(part, kept[1:])
        gone = weakref.ref(x)
        del x
        gc.collect()
        self.assertIsNone(gone())


if __name__ == "__main__":
    unittest.main()
