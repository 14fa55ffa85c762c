"""`python -m tpu_runtime -- CMD…`, and what the one-file launcher runs."""

import sys

from tpu_runtime import early

if __name__ == "__main__":
    early.listen()
    from tpu_runtime.launch import main

    sys.exit(main())
