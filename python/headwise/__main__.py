"""python -m headwise: the command-line tool."""
import os
import sys
from pathlib import Path


def main():
    program = Path(__file__).parent / "bin" / "headwise"
    if not program.exists():
        sys.exit(f"headwise: this build of the package has no command-line tool ({program})")
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
