"""`python -m tpu_runtime -- CMD…`, and what the one-file launcher runs; with `doctor`, it is tpu-doctor."""

import sys

from tpu_runtime import early

if __name__ == "__main__":
    if sys.argv[1:2] == ["doctor"]:
        from tpu_runtime import doctor

        sys.exit(doctor.main(sys.argv[2:]))
    early.listen()
    from tpu_runtime.launch import main

    sys.exit(main())
