"""`python -m tpu_runtime -- CMD…`, and what the one-file launcher runs."""

import sys

from tpu_runtime.launch import main

if __name__ == "__main__":
    sys.exit(main())
