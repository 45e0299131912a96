#!/usr/bin/env python3
"""What README.md shows is what happens: its C++ builds and runs, its Python and its commands run, its links lead somewhere.

    readme_test.py BUILD_DIR

Commands that need the real model run when HEADWISE_MODEL names its folder.
"""
import os
import re
import shlex
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from installed import InstalledTest, run  # noqa: E402

README = (ROOT / "README.md").read_text(encoding="utf-8")
MAX_LINES = 120


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


class Readme(InstalledTest):
    def test_length(self):
        self.assertLessEqual(len(README.splitlines()), MAX_LINES)

    def test_cpp(self):
        for i, code in enumerate(blocks("cpp")):
            source = self.folder / f"readme-{i}.cc"
            source.write_text(code)
            with self.subTest(code=code):
                self.run_with_pkg_config(source)

    def test_python(self):
        package = self.build_dir / "python"
        if not package.exists():
            self.skipTest("the Python package is not built")
        cache = (self.build_dir / "CMakeCache.txt").read_text(encoding="utf-8")
        python = re.search(r"^_?Python_EXECUTABLE:.*=(.*)$", cache, re.MULTILINE).group(1)
        for code in blocks("python"):
            with self.subTest(code=code):
                run(python, "-c", code, env=os.environ | {"PYTHONPATH": str(package)}, cwd=self.folder)

    def test_commands(self):
        model = os.environ.get("HEADWISE_MODEL")
        env = os.environ | {"PATH": f"{self.tool.parent}:{os.environ['PATH']}"}
        for line in "".join(blocks("sh")).splitlines():
            words = shlex.split(line, comments=True)
            if not words:
                continue
            with self.subTest(line=line):
                if words[0].startswith("scripts/"):  # the script runs this test, not the other way round
                    self.assertTrue(os.access(ROOT / words[0], os.X_OK))
                    continue
                if {"DIR", "FILE"} & set(words):
                    if not model:
                        continue
                    known = {"DIR": model, "FILE": f"{model}/model.safetensors"}
                    words = [known.get(word, word) for word in words]
                self.assertTrue(run(*words, env=env, cwd=self.folder))

    def test_links(self):
        for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
            text = re.sub("^    .*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)  # without code
            for target in re.findall(r"\]\(([^)#]+)", text):
                if "://" not in target:
                    self.assertTrue((page.parent / target).exists(), f"{page.name}: {target}")


if __name__ == "__main__":
    Readme.build_dir = Path(sys.argv.pop(1)).resolve()
    unittest.main()
