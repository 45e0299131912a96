"""An installed build in a folder of its own, for tests that stand outside the project."""
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path


def run(*command, **options):
    """Runs a command and returns what it printed; that belongs to the error when it fails."""
    command = [str(c) for c in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        raise AssertionError(f"exit {done.returncode}: {' '.join(command)}\n{done.stdout}")
    return done.stdout


class InstalledTest(unittest.TestCase):
    """Has the build of `build_dir` under `prefix`, and `folder` to work in."""

    build_dir: Path

    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="installed-", dir=cls.build_dir))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        # Moved after installing: nothing may depend on where it was put first.
        run("cmake", "--install", cls.build_dir, "--prefix", cls.folder / "first")
        cls.prefix = cls.folder / "prefix"
        (cls.folder / "first").rename(cls.prefix)
        cls.lib = next(cls.prefix.glob("lib*/**/libheadwise.*")).parent
        cls.shared = (cls.lib / "libheadwise.so").exists()
        cls.tool = cls.prefix / "bin" / "headwise"

    def build_with_cmake(self, source):
        """Builds a project that says find_package(headwise); returns its build folder."""
        build = self.folder / f"{source.name}-build"
        run("cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("cmake", "--build", build)
        return build

    def run_with_pkg_config(self, source):
        """Builds one source file with the flags of pkg-config; returns what the program prints."""
        env = os.environ | {"PKG_CONFIG_PATH": str(self.lib / "pkgconfig"), "LD_LIBRARY_PATH": str(self.lib)}
        kind = [] if self.shared else ["--static"]
        flags = run("pkg-config", *kind, "--cflags", "--libs", "headwise", env=env).split()
        program = self.folder / f"{source.stem}-by-pkg-config"
        run(os.environ.get("CXX", "g++"), "-std=c++20", source, "-o", program, *flags)
        return run(program, env=env, cwd=self.folder)
