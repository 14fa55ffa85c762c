"""What a container of one host ends with: exit codes, signals, reaping, and what is left behind."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.runtime.harness import PYTHON, until, variables
from tpu_runtime.processes import descendants

if TYPE_CHECKING:
    from tests.unit.runtime.conftest import Launch


FOREVER = "while :; do sleep 0.05; done"


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_command_that_is_no_text(launch: Launch) -> None:
    launcher = launch(variables(), os.fsdecode(b"/no/such/\xff"))
    assert launcher.code() == 127
    assert launcher.message is not None
    assert launcher.message["error"].startswith("command not found: /no/such/?")
    assert "/no/such/\\udcff" in launcher.stderr


@pytest.mark.parametrize("code", [0, 3, 75])
def test_the_users_exit_code_is_passed_through(launch: Launch, code: int) -> None:
    launcher = launch(variables(), "sh", "-c", f"exit {code}")
    assert launcher.code() == code
    message = launcher.message
    if code == 0:
        assert message is None
    else:
        assert message is not None
        assert (message["cause"], message["exitCode"], message["signal"]) == ("UserError", code, None)


@pytest.mark.parametrize("signum", [signal.SIGSEGV, signal.SIGTERM])
def test_death_by_a_signal_is_128_plus_its_number(launch: Launch, signum: signal.Signals) -> None:
    launcher = launch(variables(), "sh", "-c", f"echo last words >&2; kill -{signum.value} $$")
    assert launcher.code() == 128 + signum
    message = launcher.message
    assert message is not None
    assert message["signal"] == signum
    assert signum.name in message["error"]
    assert "last words" in message["error"]
    assert "terminated" not in message


def test_the_message_says_where_when_and_what(launch: Launch) -> None:
    code = "print('step 1', flush=True)\nraise ValueError('bad thing')"
    before = time.time()
    launcher = launch(variables(), *PYTHON, "-c", code)
    assert launcher.code() == 1
    message = launcher.message
    assert message is not None
    assert message.keys() == {
        "v", "cause", "exitCode", "signal", "slice", "host", "localRank", "time", "error", "attempt", "log",
    }  # fmt: skip
    assert (message["v"], message["slice"], message["host"], message["localRank"]) == (1, 0, 0, 0)
    assert before < message["time"] < time.time()
    assert message["error"] == "ValueError: bad thing"
    assert message["log"].startswith("Traceback")
    assert launcher.stdout == b"step 1\n"
    assert "ValueError: bad thing" in launcher.stderr


def test_a_command_that_does_not_exist_is_the_users_error(launch: Launch) -> None:
    launcher = launch(variables(), "no-such-command", "--flag")
    assert launcher.code() == 127
    message = launcher.message
    assert message is not None
    assert message["cause"] == "UserError"
    assert "command not found: no-such-command" in message["error"]


def test_a_script_without_its_interpreter_is_told_from_one_that_is_missing(
    launch: Launch, tmp_path: Path
) -> None:
    script = tmp_path / "train"
    script.write_text("#!/no/such/python\n")
    script.chmod(0o755)
    launcher = launch(variables(), str(script))
    assert launcher.code() == 127
    assert "the interpreter that" in launcher.stderr


def test_a_file_that_is_not_executable(launch: Launch, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print()")
    launcher = launch(variables(), str(script))
    assert launcher.code() == 126
    assert "cannot be executed" in launcher.stderr


@pytest.mark.parametrize("arguments", [(), ("--gate-timeout",), ("--no-such-option",)])
def test_a_wrong_command_line_is_a_launcher_error(launch: Launch, arguments: tuple[str, ...]) -> None:
    command = ["train"] if arguments else []
    launcher = launch(variables(), *command, prefix=[*PYTHON, "-m", "tpu_runtime", *arguments])
    assert launcher.code() == 64
    assert "usage: tpu-launch" in launcher.stderr
    assert launcher.message is not None
    assert launcher.message["cause"] == "LauncherError"


def test_a_bad_environment_names_all_problems_at_once(launch: Launch) -> None:
    env = variables(TPU_OPERATOR_HOST="two", TPU_OPERATOR_LAUNCHER="mpi", TPU_WORKER_HOSTNAMES=None)
    launcher = launch(env, "true")
    assert launcher.code() == 64
    for part in (
        "3 problems",
        "TPU_OPERATOR_HOST='two'",
        "TPU_OPERATOR_LAUNCHER='mpi'",
        "TPU_WORKER_HOSTNAMES is not set",
    ):
        assert part in launcher.stderr
    assert launcher.message is not None
    assert launcher.message["cause"] == "LauncherError"
    assert launcher.message["host"] is None


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_signals_reach_the_process(launch: Launch, signum: signal.Signals) -> None:
    launcher = launch(
        variables(), "sh", "-c", f"trap 'exit 7' {signum.value}; echo ready; while :; do sleep 0.05; done"
    )
    launcher.wait_for("ready")
    launcher.signal(signum)
    assert launcher.code() == 7
    message = launcher.message
    assert message is not None
    asked_to_stop = signum in {signal.SIGTERM, signal.SIGINT}
    assert message["cause"] == (None if asked_to_stop else "UserError")
    assert message.get("terminated", False) is asked_to_stop


def test_a_process_that_was_told_to_stop_and_did_is_not_a_failure_nor_a_success(launch: Launch) -> None:
    for action, code in (("exit 0", 0), ("trap - TERM; kill $$", 143)):
        launcher = launch(
            variables(), "sh", "-c", f"trap '{action}' TERM; echo ready; while :; do sleep 0.05; done"
        )
        launcher.wait_for("ready")
        launcher.signal(signal.SIGTERM)
        assert launcher.code() == code
        message = launcher.message
        assert message is not None
        assert (message["cause"], message["terminated"], message["exitCode"]) == (None, True, code)


def test_what_is_left_after_the_grace_period_is_killed(launch: Launch) -> None:
    stubborn = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    launcher = launch(variables(TPU_LAUNCH_GRACE_SECONDS="0.2"), "sh", "-c", stubborn)
    launcher.wait_for("ready")
    launcher.signal(signal.SIGTERM)
    assert launcher.code() == 137
    assert launcher.message is not None
    assert launcher.message["terminated"] is True


def test_no_descendant_outlives_the_launcher(launch: Launch) -> None:
    code = (
        "import subprocess, sys\n"
        "sleeper = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print('pid', sleeper.pid, flush=True)\n"
    )
    launcher = launch(variables(), sys.executable, "-S", "-c", code)
    assert launcher.code() == 0
    pid = int(launcher.stdout.split()[1])
    until(lambda: not alive(pid), "the end of the sleeper")


def test_orphans_are_reaped_while_the_process_runs(launch: Launch) -> None:
    # The middle process dies at once, its child a little later: an orphan that only the launcher can reap.
    script = f"(sh -c 'echo orphan $$; exec sleep 0.01' &) ; trap 'exit 0' USR1; echo ready; {FOREVER}"
    launcher = launch(variables(), "sh", "-c", script)
    launcher.wait_for("ready")
    launcher.wait_for("orphan")
    orphan = next(int(line.split()[1]) for line in launcher.stdout.splitlines() if line.startswith(b"orphan"))
    until(lambda: not Path(f"/proc/{orphan}").exists(), "the orphan's burial")
    launcher.signal(signal.SIGUSR1)
    assert launcher.code() == 0


def test_when_one_process_fails_the_others_are_stopped_and_its_code_counts(launch: Launch) -> None:
    script = f'[ "$TPU_OPERATOR_LOCAL_RANK" = 2 ] && exit 3; trap "exit 9" TERM; {FOREVER}'
    launcher = launch(variables(processes=4), "sh", "-c", script)
    assert launcher.code() == 3
    message = launcher.message
    assert message is not None
    assert (message["localRank"], message["exitCode"], message["cause"]) == (2, 3, "UserError")


def test_stubborn_siblings_of_a_failed_process_are_killed(launch: Launch) -> None:
    script = (
        'if [ "$TPU_OPERATOR_LOCAL_RANK" = 0 ]; then exit 3; fi; trap "" TERM; while :; do sleep 0.05; done'
    )
    launcher = launch(variables(processes=2, TPU_LAUNCH_GRACE_SECONDS="0.2"), "sh", "-c", script)
    assert launcher.code() == 3


def test_a_failure_before_the_signal_to_stop_stays_the_cause(launch: Launch, tmp_path: Path) -> None:
    script = (
        '[ "$TPU_OPERATOR_LOCAL_RANK" = 0 ] && { while [ ! -e "$FLAG" ]; do sleep 0.02; done; exit 3; }; '
        f'trap "echo told to stop" TERM; touch "$FLAG"; {FOREVER}'
    )
    env = variables(processes=2, TPU_LAUNCH_GRACE_SECONDS="1", FLAG=str(tmp_path / "flag"))
    launcher = launch(env, "sh", "-c", script)
    launcher.wait_for("told to stop")
    launcher.signal(signal.SIGTERM)
    assert launcher.code() == 3
    message = launcher.message
    assert message is not None
    assert (message["cause"], message["localRank"], message["exitCode"]) == ("UserError", 0, 3)
    assert "terminated" not in message


def test_processes_run_without_core_dumps_and_with_the_users_limits(launch: Launch) -> None:
    launcher = launch(variables(), "sh", "-c", "ulimit -c; ulimit -n")
    assert launcher.code() == 0
    assert launcher.stdout.split() == [b"0", str(resource.getrlimit(resource.RLIMIT_NOFILE)[0]).encode()]


def test_the_process_has_the_whole_environment_and_its_own_rank(launch: Launch) -> None:
    launcher = launch(
        variables(MINE="a b"), "sh", "-c", 'echo "$MINE|$TPU_WORKER_ID|$TPU_OPERATOR_LOCAL_RANK"'
    )
    assert launcher.code() == 0
    assert launcher.stdout == b"a b|0|0\n"


def test_emulation_is_said_loudly(launch: Launch) -> None:
    launcher = launch(variables(), "true")
    assert launcher.code() == 0
    assert "EMULATION" in launcher.stderr
    launcher = launch(variables(TPU_OPERATOR_EMULATE=""), "true")
    assert launcher.code() == 0
    assert launcher.stderr == ""


def test_a_port_that_is_taken_is_named(launch: Launch) -> None:
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as taken:
        launcher = launch(variables(TPU_LAUNCH_PORT=str(taken.getsockname()[1])), "true")
        assert launcher.code() == 64
    assert "TPU_LAUNCH_PORT" in launcher.stderr


def test_killing_what_is_left_spares_everything_else() -> None:
    assert os.getpid() not in descendants(os.getpid())
    assert os.getppid() not in descendants(os.getpid())
