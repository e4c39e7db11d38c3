"""``torchrun --nproc-per-node 2 -m mesascope.language.train``: ``mesascope language train`` in several processes."""

import runpy
import sys

if __name__ == "__main__":
    sys.argv[1:1] = ["language", "train"]
    runpy.run_module("mesascope", run_name="__main__")
