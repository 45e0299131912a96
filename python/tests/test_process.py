"""The package in its process: import, threads, the GIL, fork, memory."""
import gc
import multiprocessing
import os
import resource
import subprocess
import sys
import threading
import unittest
from pathlib import Path

import numpy as np

import headwise

attend = headwise.scaled_dot_product_attention
PACKAGE = Path(headwise.__file__).parent


def python(code):
    """What a new interpreter prints."""
    env = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=60)
    if done.returncode != 0:
        raise AssertionError(f"exit {done.returncode}: {done.stdout}")
    return done.stdout.strip()


def draw_in_child(queue):
    x = headwise.randn(2, 4, 64, 8)
    queue.put(float(attend(x, x, x).sum()))


class Process(unittest.TestCase):
    def test_import(self):
        code = ("import sys, time, numpy; start = time.perf_counter(); import headwise;"
                "print(time.perf_counter() - start, *sorted({'torch', 'jax', 'ml_dtypes'} & set(sys.modules)))")
        times = [python(code).split() for _ in range(3)]
        self.assertEqual([len(t) for t in times], [1, 1, 1])  # nothing else was imported
        self.assertLess(min(float(t[0]) for t in times), 0.1)

    def test_ends_quietly(self):
        self.assertEqual(python("import headwise; m = headwise.MultiheadAttention(8, 2); x = headwise.randn(2, 2, 8);"
                                "kept = [m, m(x, x, x), m.forward]"), "")

    def test_ends_while_a_thread_computes(self):
        for _ in range(3):
            self.assertEqual(python("import headwise, threading, time; x = headwise.randn(1, 8, 1000, 64);"
                                    "attend = lambda: [headwise.scaled_dot_product_attention(x, x, x) for _ in range(9999)];"
                                    "threading.Thread(target=attend, daemon=True).start(); time.sleep(0.1)"), "")

    def test_names(self):
        for name in headwise.__all__:
            self.assertTrue(hasattr(headwise, name), name)
        for name in ("scaled_dot_product_attention", "MultiheadAttention", "randn"):
            self.assertGreater(len(getattr(headwise, name).__doc__), 80)
        self.assertTrue((PACKAGE / "py.typed").exists())
        stub = (PACKAGE / "_core.pyi").read_text()
        compile(stub, "_core.pyi", "exec")
        self.assertIn("class MultiheadAttention:", stub)

    def test_settings(self):
        n, isa = headwise.get_num_threads(), headwise.isa()
        try:
            headwise.set_num_threads(1)
            self.assertEqual(headwise.get_num_threads(), 1)
            headwise.set_isa(headwise.available_isas()[-1])
            self.assertEqual(headwise.isa(), headwise.available_isas()[-1])
            headwise.set_kernel("flash")
            self.assertEqual(headwise.kernel(), "flash")
        finally:
            headwise.set_num_threads(n)
            headwise.set_isa(isa)
            headwise.set_kernel("auto")
        for call in (headwise.set_isa, headwise.set_kernel):
            with self.assertRaisesRegex(ValueError, "expected one of auto"):
                call("fastest")
        with self.assertRaisesRegex(ValueError, "at least 1 thread"):
            headwise.set_num_threads(0)

    def test_other_threads_run_meanwhile(self):
        x = headwise.randn(1, 4, 3000, 64)
        ticks, seen, done = [0], [], threading.Event()

        def work():
            before = ticks[0]
            attend(x, x, x)
            seen.append(ticks[0] - before)
            done.set()

        thread = threading.Thread(target=work)
        thread.start()
        while not done.is_set():
            ticks[0] += 1
        thread.join()
        self.assertGreater(seen[0], 100)

    def test_several_callers_and_a_loader(self):
        x = headwise.randn(5, 2, 32)
        module = headwise.MultiheadAttention(32, 4)
        states = [headwise.MultiheadAttention(32, 4).state_dict() for _ in range(2)]
        possible = []
        for state in states:
            module.load_state_dict(state)
            possible.append(module(x, x, x)[0])
        wrong, stop = [], threading.Event()

        def call():
            while not stop.is_set():
                found = module(x, x, x)[0]
                if not any(np.array_equal(found, p) for p in possible):
                    wrong.append(found)

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        for i in range(200):
            module.load_state_dict(states[i % 2])
        stop.set()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_fork_after_use(self):
        x = headwise.randn(1, 4, 600, 64)
        attend(x, x, x)
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=draw_in_child, args=(queue,))
        child.start()
        self.assertTrue(np.isfinite(queue.get(timeout=60)))
        child.join(60)
        self.assertEqual(child.exitcode, 0)

    def test_nothing_leaks(self):
        module = headwise.MultiheadAttention(64, 4)
        x = headwise.randn(32, 4, 64)
        state = module.state_dict()

        def calls(n):
            for i in range(n):
                module(x, x, x)
                attend(x, x, x)
                if i % 50 == 0:
                    module.load_state_dict(state)
                try:
                    attend(x, x[:, :, 1:], x)
                except ValueError:
                    pass
            gc.collect()
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        calls(300)
        before = calls(200)
        self.assertLess(calls(3000) - before, 4096)  # KiB; 3000 outputs alone are 96 MiB


class Libgomp(unittest.TestCase):
    def test_where_the_system_has_none(self):
        from headwise import _libgomp
        paths = list(_libgomp.candidates())
        self.assertEqual(paths[-1], PACKAGE / "lib" / "libgomp.so.1")
        self.assertTrue(all("torch" in str(path) for path in paths[:-1]))

    def test_is_the_plain_one(self):
        """Never a renamed copy: it has to be the one that PyTorch asks for."""
        python("import headwise; maps = open('/proc/self/maps').read();"
               "names = {line.split('/')[-1] for line in maps.splitlines() if 'gomp' in line};"
               "assert len(names) == 1 and names.pop().startswith('libgomp.so.1'), names")


if __name__ == "__main__":
    unittest.main()
