"""A contender in a process of its own: its threads never spin beside another's work, and a crash is its own."""
import multiprocessing
import os

import contenders
from timing import calls_per_block

PREPARE_TIMEOUT = 120.0
TIME_TIMEOUT = 120.0
MAX_ERROR = {"f32": 1e-4, "f64": 1e-10, "bf16": 2e-2, "f16": 2e-3}  # of the largest number in the checked rows
TRIAL_SECONDS = 0.03  # to choose among variants
WARM_SHARE = 0.1      # of a block's calls, before it and not counted


class Failed(Exception):
    """Why a contender has no time for a case, in a few words."""


def _reason(error):
    text = str(error).strip()
    return (text.splitlines()[0] if text else type(error).__name__)[:160]


def _trial(call):
    """Seconds a call, roughly."""
    call.seconds(1)
    once = call.seconds(1)
    return min(once, call.seconds(n) / n if (n := calls_per_block(once, TRIAL_SECONDS)) > 1 else once)


class _Server:
    def __init__(self, key, n_threads):
        self.contender = contenders.load(key)
        self.contender.set_threads(n_threads)
        self.call = None

    def version(self):
        return self.contender.version()

    def limits(self, n_threads):
        return self.contender.limits(n_threads)

    def read_bytes(self, n_threads):
        return self.contender.read_bytes(n_threads)

    def answer(self, case):
        return self.contender.answer(case)

    def prepare(self, case, answer):
        """Builds every variant, checks it against the answer and keeps the fastest that is right."""
        from inputs import error_of
        self.call, chosen, reasons = None, None, []
        for name, build in self.contender.variants(case):
            try:
                call = build()
                call.run()
                error = error_of(call.result(), answer)
                if not error <= MAX_ERROR[case.dtype]:
                    raise contenders.Unsupported(f"wrong answer, off by {error:.1e}")
                seconds = _trial(call)
            except Exception as e:  # of whatever kind: it is another's code
                reasons.append(f"{name}: {_reason(e)}" if name else _reason(e))
                continue
            if chosen is None or seconds < chosen["seconds"]:
                self.call, chosen = call, {"variant": name, "error": error, "seconds": seconds}
        if chosen is None:
            raise Failed("; ".join(reasons))
        return chosen

    def time(self, n):
        """Seconds a call, over n calls."""
        warm = int(n * WARM_SHARE)
        if warm:
            self.call.seconds(warm)
        return self.call.seconds(n) / n

    def release(self):
        self.call = None


def _serve(connection, key, n_threads):
    server = None
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            server = server or _Server(key, n_threads)
            name, *arguments = request
            answer = True, getattr(server, name)(*arguments)
        except ModuleNotFoundError as e:
            answer = False, f"not installed ({e.name})"
        except Exception as e:
            answer = False, _reason(e)
        connection.send(answer)


class Worker:
    """The other end: starts the process when it is first asked, and again after one has died."""

    def __init__(self, key, n_threads):
        self.key, self.n_threads = key, n_threads
        self.process = None

    def _start(self):
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ[name] = str(self.n_threads)
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.key, self.n_threads), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, *request, timeout=TIME_TIMEOUT):
        if self.process is None:
            self._start()
        self.connection.send(request)
        try:
            if not self.connection.poll(timeout):
                self.stop()
                raise Failed(f"no answer within {timeout:.0f} s")
            ok, answer = self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join(5)
            code = self.process.exitcode
            self.stop()
            raise Failed(f"its process ended with {code}") from None
        if not ok:
            raise Failed(answer)
        return answer

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None
