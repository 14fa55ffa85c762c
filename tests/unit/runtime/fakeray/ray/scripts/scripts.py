"""`ray start --block`: a node that is there until it is told to stop, or the test breaks it."""

import json
import os
import signal
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["FAKE_RAY"])


def option(name: str) -> str:
    prefix = f"--{name}="
    return next(a.removeprefix(prefix) for a in sys.argv if a.startswith(prefix))


def note(what: str) -> None:
    with (FOLDER / "log").open("a") as log:
        log.write(f"{option('node-name')} {what}\n")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    name, attempt = option("node-name"), os.environ["TPU_OPERATOR_ATTEMPT"]
    fails = FOLDER / f"fails-{name}"
    if fails.exists():
        fails.unlink()
        sys.exit("Exception: The current node timed out during startup.")
    if (FOLDER / f"never-{name}").exists():
        sys.stdout.write("Local node IP: 127.0.0.1\n")  # Python keeps it until the end
        raise RuntimeError(*(FOLDER / f"never-{name}").read_text().splitlines())
    record = FOLDER / f"node-{name}"
    resources = {} if os.environ.get("LACKING") == name else json.loads(option("resources"))
    record.write_text(json.dumps([attempt, resources]))

    def stop(*_: object) -> None:
        record.unlink()
        note("stopped")
        sys.exit(15)

    signal.signal(signal.SIGTERM, stop)
    note("started")
    say("-" * 20 + "\nRay runtime started.\n" + "-" * 20)
    parent = os.getppid()
    while not (FOLDER / f"break-{name}").exists():
        time.sleep(0.02)
        if os.getppid() != parent:
            sys.exit("the launcher is gone")
    (FOLDER / f"break-{name}").unlink()
    record.unlink()
    say("\nSome Ray subprocesses exited unexpectedly:\n  raylet [exit code=-9]\n")
    os._exit(1)


main()
